"""Solves an RL problem: cost curves, exact search, decoding, certificate."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from planner.costs.training.config import USABLE_SHARE
from planner.documents.units import format_si
from planner.errors import Conflict, Infeasible, PlannerError, Stopped, errors_at
from planner.kinds.rl.agents.stated import agentic_problem
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.formulate import FormulatedRl, formulate
from planner.kinds.rl.fused_training import search_fused
from planner.kinds.rl.horizon import METRICS, horizon_problem, plan_named, read_running, running_of, steps_of
from planner.kinds.rl.plan.certificate import alternatives, certificate, horizon_certificate
from planner.kinds.rl.plan.decode import decode
from planner.kinds.rl.plan.solved import Solved
from planner.kinds.rl.planned import plan_of
from planner.kinds.rl.proof import HEURISTIC
from planner.kinds.rl.setting import RlSetting, read_setting
from planner.kinds.rl.simulated.scaled import search_simulated
from planner.plan.evidence import weighted_shares
from planner.plan.schema import (
    Certificate,
    Envelope,
    Evidence,
    Prediction,
)
from planner.problem.envelope import plan_envelope
from planner.problem.lengths import end_of_samples
from planner.problem.resolve import Resolved
from planner.problem.schema import MomentLengths, Problem
from planner.progress import Limits
from planner.rl.curves import DecodeCurve, TrainingOption
from planner.rl.generation import alone_s
from planner.rl.intervals import interval_s
from planner.rl.layout.trainings import straddles_somewhere
from planner.rl.partial import partial_rollout
from planner.rl.plan import RlPlan
from planner.rl.problem import RlProblem
from planner.rl.search.agentic_search import solve_agentic
from planner.rl.search.horizon import HorizonEvaluation, evaluate_horizon, plan_horizon
from planner.rl.search.search import RlSolution
from planner.rl.search.search import solve as search
from planner.rl.services import as_generated, handed_over
from planner.rl.trajectories import SampleBatch
from planner.solvers.result import Status

ASSUMPTIONS = (
    "lengths are drawn once by the problem's seed and known to the search; iterations to come draw others",
    "a replica decodes at its curve, fitted to the decode step of the cost model",
    "models that train or score share the training GPUs and take turns; their minibatches are the actor's",
    "models that only score on the training GPUs are cut as the actor is, or over GPUs of a node",
    "training state leaves the GPUs while colocated generation is in turn, over PCIe and back",
    "samples of a prompt share no prefix cache",
)
ROOM = f"training fills at most {USABLE_SHARE:.0%} of a GPU's memory, for what its allocator loses between tensors"
HEADLESS = "models train without their heads for further tokens (MTP), which no script of a launcher asks for"


SIDES = (("prompts", "input_tokens"), ("outputs", "output_tokens"))
LONGER_IS_MORE = ("iteration_time_s", "usd_per_iteration")
LONGER_IS_LESS = ("output_tokens_per_s", "tokens_per_usd")
BEST_FIRST, DYNAMIC = "rollouts simulated, best first", "rollouts simulated, dynamic program over periods"
STATED = (
    "lengths, curves and what handing over takes are as stated; iterations to come have others",
    "a replica decodes at its curve; whatever trains or scores beside the actor is in the curves of training",
)
UNKNOWN_RUNNING = "what runs now has parts that this problem does not offer; going from it is not charged"
SERVED = (
    "servers that score take samples in the order in which they are generated, as many as wait up to a full batch;"
    " where generation runs ahead and ends its rollouts they are free when a batch begins, and no iteration is shorter"
    " than their work for it"
)
HANDED = "servers that training hands its batches score them whole, one part after the other, before log-probabilities"
SHARED = "jobs that share servers send as many samples of the same lengths at the same times, and go first"
DRAFTED = (
    "every step yields a sequence the mean number of tokens of its drafts, in training weights as in the first ones"
)
FLOWING = (
    "samples under way when weights come keep their caches, and all replicas stop meanwhile; generators, trainers and"
    " the staleness allowed are taken as cycles that wait for themselves"
)
DROPPED = (
    "prompts are useful independently of their lengths, in the share stated; an iteration ends when enough of them are"
    " whole, and what the others made is thrown away"
)
SIMULATED = (
    "replicas named in `rollout_scales` decode as engines do in simulation with the plan's samples; others, that no"
    " plan found needed, by their curve"
)
GUESSED = (
    "too many assignments of trajectories to simulate each: those with a replica of their own start where neighbours in"
    " predicted length do, and the bound holds whatever starts where"
)
FUSED_TRAINING = "every minibatch waits as many micro-batches as the schedule of the mean one, actor and critic fused"


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The best plan, with a bound; raises PlannerError, Infeasible and Stopped."""
    setting = read_setting(resolved)
    formulated = formulate(setting)
    if setting.options.horizon is not None:
        return _over_time(setting, formulated)
    if setting.options.agents is not None:
        return _of_agents(setting, formulated, limits)
    with errors_at(resolved.where(("options",))):
        if setting.options.simulated_rollouts:
            simulated = search_simulated(setting, formulated, limits, resolved.problem.seed)
            formulated, fused = simulated.formulated, simulated.fused
        else:
            fused = search_fused(formulated.problem, formulated.curves, limits, resolved.problem.seed)
    formulated, solution = replace(formulated, problem=fused.problem), fused.solution
    if solution.status is Status.INFEASIBLE:
        raise _infeasible(formulated, solution)
    if solution.plan is None or solution.evaluation is None:
        raise Stopped(solution.stop_reason, bound=solution.bound)
    solved = Solved(setting, formulated, solution.plan, solution.evaluation, fused.training)
    return plan_of_iteration(solved, certificate(solved, solution, list(alternatives(solved, limits))))


def plan_of_iteration(solved: Solved, proven: Certificate) -> Envelope:
    """The plan of one iteration, with what is proven of it."""
    return _envelope(solved, proven, decode(solved), dict(_predictions(solved)))


def _of_agents(setting: RlSetting, formulated: FormulatedRl, limits: Limits) -> Envelope:
    """The plan of agents of an iteration."""
    assert setting.options.agents is not None
    problem = agentic_problem(formulated.problem, setting.options.agents)
    with errors_at(setting.resolved.where(("options", "agents"))):
        solution = solve_agentic(problem, time_limit_s=limits.time_limit_s, gap=limits.gap)
    if solution.plan is None or solution.evaluation is None:
        if solution.stop_reason == "finished":
            raise _infeasible(formulated, solution)
        raise Stopped(solution.stop_reason, bound=solution.bound)
    solved = Solved(setting, formulated, solution.plan.whole, solution.evaluation, agents=solution.plan)
    return plan_of_iteration(solved, certificate(solved, solution, list(alternatives(solved, limits))))


def _over_time(setting: RlSetting, formulated: FormulatedRl) -> Envelope:
    """The plan of every period; roles, phases and predictions of an iteration are those of the first."""
    resolved, options = setting.resolved, setting.options
    running = read_running(resolved)
    assert options.horizon is not None
    named = options.horizon.running
    before = plan_of(running, formulated.problem) if running is not None else None
    if named is not None:
        before = plan_named(named, formulated.problem)
        if before is None:
            hint = "write mode, generation and training in the words of a plan of this problem"
            where = resolved.where(("options", "horizon", "running"))
            raise PlannerError("no plan of the problem goes by these words", where=where, hint=hint)
    horizon = horizon_problem(resolved.problem, options, formulated.problem, before)
    with errors_at(resolved.where(("options",))):
        optimum = plan_horizon(horizon)
    evaluation = evaluate_horizon(horizon, optimum.plans)
    solved = Solved(setting, formulated, optimum.plans[0], evaluation.evaluations[0])
    proven = horizon_certificate(solved, optimum, evaluation)
    unknown = running is not None and before is None
    return plan_over_time(solved, proven, optimum.plans, evaluation, before, unknown=unknown)


def plan_over_time(
    solved: Solved,
    proven: Certificate,
    plans: tuple[RlPlan, ...],
    evaluation: HorizonEvaluation,
    before: RlPlan | None,
    *,
    unknown: bool,
) -> Envelope:
    """The plan of every period, with what is proven of it; `unknown`: what runs now is no plan of the problem."""
    formulated, options = solved.formulated, solved.setting.options
    decision = decode(solved).model_copy(
        update={
            "horizon": steps_of(options, plans, evaluation),
            "running": running_of(before) if before is not None else None,
        }
    )
    metric = METRICS[formulated.problem.objective]
    predictions = {
        **dict(_predictions(solved)),
        metric: evaluation.total,
        f"{metric.removesuffix('_s')}_of_changes{'_s' if metric.endswith('_s') else ''}": evaluation.change_total,
    }
    return _envelope(solved, proven, decision, predictions, (UNKNOWN_RUNNING,) if unknown else ())


def _infeasible(formulated: FormulatedRl, solution: RlSolution[Any]) -> Infeasible:
    if formulated.problem.partial:
        free = search(replace(formulated.problem, max_staleness=None)).plan
        if free is not None:
            oldest = partial_rollout(formulated.problem, free.groups[0], free.services).oldest + free.mode.staleness
            limit = f"max_staleness = {formulated.problem.max_staleness}, with samples carried over"
            return Infeasible([{"limit": limit, "nearest": f"max_staleness {oldest}"}], proved=True)
    deadline = formulated.problem.max_iteration_s
    proved = not solution.unproven
    if deadline is None or solution.nearest_iteration_s is None:
        return Infeasible([_too_few_gpus(formulated.problem)], proved=proved)
    nearest = f"{solution.nearest_iteration_s:.4g} s"
    return Infeasible([{"limit": f"max_iteration <= {deadline:g} s", "nearest": nearest}], proved=proved)


def _too_few_gpus(problem: RlProblem) -> Conflict:
    """What keeps every plan off the GPUs: where tensor-parallel groups may lie, if plans fit without that rule."""
    free = replace(problem, pools=tuple(replace(pool, domains=()) for pool in problem.pools))
    if not straddles_somewhere(problem) or search(free).plan is None:
        generation = min((option.gpus for option in problem.generation), default=0)
        trains = min((gpus for option in problem.training if (gpus := _fewest_gpus(problem, option))), default=0)
        told = f": training takes {trains} or more, generation {generation} or more" if trains and generation else ""
        return {"limit": f"GPUs of the pools{told}", "nearest": ""}
    sizes = " and ".join(str(size) for size in sorted({pool.domain_gpus for pool in problem.pools}))
    limit = f"tensor-parallel groups inside scale-up domains of {sizes} GPUs"
    return {"limit": limit, "nearest": f"tp that divides {sizes}"}


def _fewest_gpus(problem: RlProblem, option: TrainingOption) -> int:
    """GPUs of the fewest replicas that fit in memory and divide a minibatch, where they must; 0 where none do."""
    limit = problem.trained_samples // problem.minibatches
    able = range(option.min_dp, limit + 1)
    fewest = (dp for dp in able if not problem.equal_shares or limit % (dp * option.ranks) == 0)
    return next(fewest, 0) * option.gpus


def _envelope(
    solved: Solved,
    proven: Certificate,
    decision: RlDecision,
    predictions: dict[str, float],
    assumed: tuple[str, ...] = (),
) -> Envelope:
    resolved = solved.setting.resolved
    return plan_envelope(
        resolved,
        decision,
        proven,
        predictions=tuple(_with_interval(solved, metric, value) for metric, value in predictions.items()),
        evidence=_evidence(solved),
        assumptions=(
            *(STATED if solved.setting.bare else ASSUMPTIONS),
            *((ROOM,) if solved.modelled_training else ()),
            *((HEADLESS,) if solved.modelled_training and solved.setting.actor.mtp_layers else ()),
            *((FUSED_TRAINING,) if solved.fused_training is not None else ()),
            *((DROPPED,) if solved.setting.options.useful_share < 1.0 else ()),
            *((SIMULATED,) if solved.formulated.scales else ()),
            *((SERVED,) if as_generated(solved.plan.services) else ()),
            *((HANDED,) if handed_over(solved.plan.services) else ()),
            *((SHARED,) if any(service.shared_by > 1 for service in solved.plan.services) else ()),
            *((FLOWING,) if solved.plan.mode.in_flight else ()),
            *((GUESSED,) if proven.proof.get(HEURISTIC) else ()),
            *((DRAFTED,) if solved.setting.options.speculation is not None else ()),
            *assumed,
            *_cut(resolved.problem),
            *resolved.price_notes,
        ),
        solver=DYNAMIC if decision.horizon else BEST_FIRST,
        digests={"calibration": None if solved.setting.bare else solved.setting.calibration.digest},
    )


def _cut(problem: Problem) -> Iterator[str]:
    """Where log-normal lengths of samples end."""
    for workload, (name, side) in product(problem.workloads[:1], SIDES):
        lengths = getattr(workload, side)
        if isinstance(lengths, MomentLengths) and lengths.cv > 0.0:
            end = end_of_samples(workload, side)
            yield f"log-normal lengths of {name} are cut at mean x (1 + 4 cv), {end} tokens"


def _predictions(solved: Solved) -> Iterator[tuple[str, float]]:
    """Of a mean iteration."""
    evaluation = solved.evaluation
    yield "iteration_time_s", evaluation.iteration_s
    yield "generation_s", solved.generated_s
    if solved.plan.training is not None:
        yield "training_s", evaluation.training_s
    yield "output_tokens_per_s", solved.tokens / evaluation.iteration_s
    if evaluation.cost_usd > 0:
        yield "usd_per_iteration", evaluation.cost_usd
        yield "tokens_per_usd", solved.tokens / evaluation.cost_usd


def _with_interval(solved: Solved, metric: str, value: float) -> Prediction:
    """What follows from the length of an iteration has an interval, where generation and training are modelled."""
    generators = [solved.formulated.generators[group.option] for group in solved.plan.groups]
    modelled = solved.modelled_training and all(generator.memory is not None for generator in generators)
    if not modelled or metric not in (*LONGER_IS_MORE, *LONGER_IS_LESS):
        return Prediction(metric=metric, value=value)
    low, high = interval_s(solved.setting.actor, 1.0)
    interval = (value * low, value * high) if metric in LONGER_IS_MORE else (value / high, value / low)
    return Prediction(metric=metric, value=value, interval=interval)


def _evidence(solved: Solved) -> Evidence:
    """The share of generation and training time by basis, and how far curves are from what they were fitted to."""
    evaluation = solved.evaluation
    generator = solved.formulated.generators[solved.plan.groups[0].option]
    taught = "analytical" if solved.modelled_training else "measured"
    basis = weighted_shares(
        [(evaluation.generation_s, generator.basis), (evaluation.training_s, {taught: 1.0})],
    )
    worst = max(solved.formulated.generators[group.option].error for group in solved.plan.groups)
    if solved.setting.bare:
        return Evidence(basis={"measured": 1.0}, sources=("curves that the problem states",))
    notes = [f"the decode curve is within {worst:.1%} of the decode step that it was fitted to"]
    if solved.setting.options.weight_sync_s is None:
        sync = format_si(evaluation.handover_s, "s")
        notes.append(f"handing over takes {sync} by tensors, bytes and bandwidths; `weight_sync` states a measured one")
    return Evidence(basis=basis, notes=(*notes, *_longest(solved)))


def _longest(solved: Solved) -> Iterator[str]:
    """What the longest sample takes of a rollout that ends with it, which more replicas do not shorten."""
    problem, plan = solved.formulated.problem, solved.plan
    sizes = {batch.size for batch in problem.batches}
    changes = plan.mode.in_flight or problem.partial or plan.late is not None or len(plan.groups) > 1
    if changes or sizes != {problem.trained_samples} or solved.setting.options.horizon is not None:
        return
    ends = [_longest_s(batch, plan.groups[0].option.curve) for batch in problem.batches]
    alone_s, tools_s = (sum(seconds) / len(ends) for seconds in zip(*ends, strict=True))
    waits = f" ({format_si(tools_s, 's')} in tools)" if tools_s else ""
    share = alone_s / solved.evaluation.generation_s
    yield (
        f"the longest sample of a batch takes {format_si(alone_s, 's')}{waits} on a replica of its own,"
        f" {100 * share:.0f} % of a rollout, which no number of these replicas shortens"
    )


def _longest_s(batch: SampleBatch, curve: DecodeCurve) -> tuple[float, float]:
    """Of the sample that takes longest alone, at least, tools included; and of that in tools."""
    turns = batch.trajectories
    decoding_s_N = alone_s(turns.prompt_N, batch.output_tokens_N, curve)
    tools_s_N = np.add.reduceat(turns.tool_s_T, turns.first_N[:-1]) - turns.tool_s_T[turns.first_N[1:] - 1]
    longest = int((decoding_s_N + tools_s_N).argmax())
    return float(decoding_s_N[longest] + tools_s_N[longest]), float(tools_s_N[longest])
