"""The certificate of an RL plan: space searched, bound, and what the best plans of other kinds lose."""

from collections.abc import Iterator
from dataclasses import replace
from math import inf, isfinite
from typing import Any, Literal

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.kinds.rl.agents.options import Agents
from planner.kinds.rl.agents.stated import agentic_problem
from planner.kinds.rl.curves.shapes import CONTEXTS, EXPERTS, PIPELINES
from planner.kinds.rl.formulate import FormulatedRl
from planner.kinds.rl.horizon import METRICS
from planner.kinds.rl.names import learner_name, mode_name, moves_of, priority_of, replica_name, service_name
from planner.kinds.rl.options import CRITIC_FREE, RlOptions
from planner.kinds.rl.plan.solved import Solved
from planner.kinds.rl.proof import horizon_evidence, horizon_record, proof_record
from planner.kinds.rl.setting import RlSetting
from planner.plan.schema import Certificate, Objective
from planner.progress import Limits
from planner.rl.curves import Learner
from planner.rl.evaluate import evaluate
from planner.rl.layout.trainings import straddles_somewhere
from planner.rl.plan import RlPlan
from planner.rl.problem import RlProblem
from planner.rl.search.agentic_search import solve_agentic
from planner.rl.search.horizon import HorizonEvaluation, HorizonPlan
from planner.rl.search.search import RlSolution
from planner.rl.search.search import solve as search
from planner.rl.services import scorers
from planner.solvers.result import relative_gap, relative_loss

TOLERANCE = 1e-6
PRUNED = "a lower bound on their generation or training is no better than the best plan"


def certificate(solved: Solved, solution: RlSolution[Any], alternatives: list[JsonValue]) -> Certificate:
    """What is proven of a solution, in the metric of the objective."""
    metric, value = objective(solved)
    sense = _sense(metric)

    def turned(minimised: float) -> float:
        """What the search minimised, as the metric counts."""
        assert solution.objective
        share = minimised / solution.objective
        return value / share if sense == "maximize" else value * share

    bound = None
    if solution.bound is not None and solution.objective:
        bound = turned(solution.bound)
    gap = relative_gap(value, bound)
    closed = gap is not None and gap <= TOLERANCE
    return Certificate(
        claim=claim(metric, closed=closed),
        status="optimal" if closed else "feasible",
        stop_reason=solution.stop_reason,
        objective=Objective(metric=metric, sense=sense, value=value),
        bound=bound,
        gap=gap,
        tolerance=TOLERANCE,
        axes=axes_of(solved.formulated, solved.setting),
        candidates=solution.seen + solution.pruned,
        pruned={PRUNED: solution.pruned},
        proof=proof_record(solved.formulated.curves, solved.formulated.problem.batches, solution, turned),
        next_best=alternatives,
    )


def _sense(metric: str) -> Literal["maximize", "minimize"]:
    return "maximize" if metric == "tokens_per_usd" else "minimize"


def claim(metric: str, *, closed: bool) -> str:
    """What is proven of a plan of one iteration, in words."""
    space = "over the stated axes, for the drawn lengths, under the stated costs and assumptions"
    return f"no plan has a better {metric} {space}" if closed else f"no plan beats the bound on {metric} {space}"


def horizon_claim(metric: str) -> str:
    """What is proven of a plan over a horizon, in words."""
    return f"no sequence of plans has a better {metric} over the stated axes and periods, changes included"


def horizon_axes(formulated: FormulatedRl, setting: RlSetting, periods: int) -> dict[str, list[JsonValue]]:
    """Every axis of an iteration, and the periods."""
    return {**axes_of(formulated, setting), "period": [*range(periods)]}


def horizon_certificate(solved: Solved, optimum: HorizonPlan, evaluation: HorizonEvaluation) -> Certificate:
    """Of plans over training time: every plan was priced in every period, and the dynamic program is exact."""
    formulated, metric = solved.formulated, METRICS[solved.formulated.problem.objective]
    bound = min(optimum.bound, evaluation.total)
    others = {"one plan for all periods": optimum.fixed_total, "the best plan of every period": optimum.greedy_total}
    return Certificate(
        claim=horizon_claim(metric),
        status="optimal",
        stop_reason="finished",
        objective=Objective(metric=metric, sense="minimize", value=evaluation.total),
        bound=bound,
        gap=relative_gap(evaluation.total, bound),
        tolerance=TOLERANCE,
        axes=horizon_axes(formulated, solved.setting, len(optimum.plans)),
        candidates=optimum.states,
        pruned={},
        proof=horizon_record(
            formulated.curves, solved.setting.resolved.problem, solved.setting.options, horizon_evidence(optimum)
        ),
        next_best=[
            {"plan": name, "objective": total, "loss": relative_loss(evaluation.total, total, "minimize")}
            if isfinite(total)
            else {"plan": name, "objective": None, "loss": None}
            for name, total in others.items()
        ],
    )


def axes_of(formulated: FormulatedRl, setting: RlSetting) -> dict[str, list[JsonValue]]:
    """Every axis with its values, and what the space leaves out."""
    problem = formulated.problem
    generation = sorted({replica_name(option) for option in problem.generation})
    training = sorted(
        {
            f"{option.pool} tp{option.tp} pp{option.pp} {option.label}".strip()
            + (f", {option.apart} apart" if option.apart else "")
            for option in problem.training
        }
    )
    parts = dict.fromkeys(service.part for service in scorers(problem.services))
    learners = [learner_name(learner) for learner in problem.services if isinstance(learner, Learner)]
    whole = setting.options.whole_nodes
    return {
        "mode": [mode_name(mode) for mode in problem.modes],
        "generating replica": [*generation],
        "generating replicas": ["every number that fits"],
        "training replica": [*training],
        "dp": ["every number that fits and divides a minibatch"],
        **({"GPUs of a role": ["all of its nodes, or of one node with all others"]} if whole else {}),
        "tail_fraction": [*problem.tail_fractions],
        "groups": [*range(1, problem.max_groups + 1)],
        "scoring fused with generation from a share left of": [*problem.fusion_thresholds],
        "priority of samples that come back": [
            *sorted({priority_of(policy) for policy in problem.policies} or {"fifo"})
        ],
        "moves in tool calls": [*sorted({moves_of(policy.move_threshold) for policy in problem.policies} or {"never"})],
        "other replicas late, from a share left of": [*problem.late_thresholds],
        "actor and critic": ["in turn", *(["at the same time"] if formulated.curves.critics else [])],
        **(_axes_of_agents(setting.options.agents) if setting.options.agents is not None else {}),
        **{
            f"served {part}": [service_name(service) for service in scorers(problem.services) if service.part == part]
            for part in parts
        },
        **({"critic on GPUs of its own": [*learners]} if learners else {}),
        "not in the space": [*left_out(setting), *(FREE_BETWEEN if straddles_somewhere(problem) else ())],
    }


def _axes_of_agents(agents: Agents) -> dict[str, list[JsonValue]]:
    """What plans of agents choose in another way than plans of samples."""
    moves = [inf if factor is None else factor for factor in agents.move_thresholds]
    return {
        "groups": [1, 2],
        "where trajectories start": [*sorted(set(agents.dispatches))],
        "priority of samples that come back": [*sorted(set(agents.priorities))],
        "moves in tool calls": [*(moves_of(factor) for factor in sorted(set(moves)))],
    }


NEVER_SEARCHED = (
    "training with ZeRO 2 or 3, its optimizer on the host, adapters in place of all weights, or pipelines that are"
    " interleaved",
    f"training with tp beyond a node, pp beyond {max(PIPELINES)}, cp beyond {max(CONTEXTS)} or ep beyond"
    f" {max(EXPERTS)}, where degrees are not asked for",
    "more than two groups of replicas, and replicas of several sizes in one",
    "engines whose weights stay on devices that train",
)
FREE_BETWEEN = ("GPUs left free between roles or replicas, so that a tensor-parallel group begins with a node",)
OPENED_BY = {
    "served": "models that score with engines of their own",
    "training_precision": "training in fp8",
    "rollout_weights": "generators whose weights have another format than the model",
    "engine_sleep": "engines that sleep with their weights on the host",
    "tail_fractions": "replicas of their own for the longest samples",
    "fusion_thresholds": "scoring beside the last samples",
    "late_thresholds": "other replicas late in a rollout",
    "fused_training": "actor and critic trained at the same time",
    "critic_gpus": "a critic on GPUs of its own",
    "in_flight_updates": "weights that come while samples are under way",
    "partial_rollouts": "samples that go on in the next iteration",
}
"""What a problem leaves out of the space that does not write an option."""


def left_out(setting: RlSetting) -> Iterator[str]:
    """What no plan of the space does, and which option of the problem would open it."""
    if setting.bare:
        yield "replicas of generation and of training that the problem states no curve of"
        return
    options = setting.options
    yield from NEVER_SEARCHED
    scores = any((options.reference, options.reward, options.teacher))
    idle = {
        "served": not scores,
        "fused_training": options.algorithm in CRITIC_FREE,
        "critic_gpus": options.algorithm in CRITIC_FREE,
        "fusion_thresholds": not scores,
    }
    for name, what in OPENED_BY.items():
        if getattr(options, name) == RlOptions.model_fields[name].default and not idle.get(name, False):
            yield f"{what}: `{name}`"
    if "hybrid" not in options.arrangements:
        yield "GPUs some of which both generate and train: `arrangements: [hybrid]`"


def alternatives(solved: Solved, limits: Limits) -> Iterator[JsonValue]:
    """The best plan of every other mode, and without fusion, with what each loses.

    Together they take as long as the solve may, at most.
    """
    if solved.agents is not None:
        yield from _other_modes_of_agents(solved, limits)
        return
    asked = list(_other_spaces(solved.formulated.problem, solved.plan))
    share_s = None if limits.time_limit_s is None else limits.time_limit_s / (len(asked) + 1)
    metric, value = objective(solved)
    sense = _sense(metric)
    for name, space in asked:
        try:
            solution = search(space, time_limit_s=share_s, gap=max(limits.gap, 1e-3))
        except PlannerError:
            continue
        if solution.plan is None or solution.evaluation is None:
            yield {"plan": name, "objective": None, "loss": None}
            continue
        reached = objective(replace(solved, plan=solution.plan, evaluation=solution.evaluation))[1]
        name = name if solution.plan.fusion is None else f"{name}, scoring fused with generation"
        yield {"plan": name, "objective": reached, "loss": relative_loss(value, reached, sense)}
    yield from _other_splits(solved)


def _other_modes_of_agents(solved: Solved, limits: Limits) -> Iterator[JsonValue]:
    """The best plan of agents in every other mode, with what it loses."""
    assert solved.setting.options.agents is not None
    problem = agentic_problem(solved.formulated.problem, solved.setting.options.agents)
    modes = [mode for mode in problem.curves.modes if mode != solved.plan.mode]
    share_s = None if limits.time_limit_s is None else limits.time_limit_s / (len(modes) + 1)
    metric, value = objective(solved)
    for mode in modes:
        space = replace(problem, curves=replace(problem.curves, modes=(mode,)))
        solution = solve_agentic(space, time_limit_s=share_s, gap=max(limits.gap, 1e-3))
        if solution.plan is None or solution.evaluation is None:
            yield {"plan": mode_name(mode), "objective": None, "loss": None}
            continue
        plan, evaluation = solution.plan.whole, solution.evaluation
        reached = objective(replace(solved, plan=plan, evaluation=evaluation, agents=solution.plan))[1]
        yield {"plan": mode_name(mode), "objective": reached, "loss": relative_loss(value, reached, _sense(metric))}


def _other_splits(solved: Solved) -> Iterator[JsonValue]:
    """One replica more and one less that generate, on GPUs that training takes or leaves: what the split is worth.

    Replicas of generation and training stay as they are, and training has the best number of its own; none for roles
    that share GPUs, lie in several pools, or whose samples are not one group's.
    """
    problem, plan = solved.formulated.problem, solved.plan
    if plan.training is None:
        return
    training = solved.training
    group, pool = plan.groups[0], training.option.pool
    plain = plan.fusion is None and plan.late is None and len(plan.groups) == 1
    if plan.mode.placement != "disaggregated" or group.option.pool != pool or not plain:
        return
    gpus, minibatch = problem.pool_of[pool].gpus, problem.trained_samples // problem.minibatches
    step = max(1, problem.pool_of[pool].whole_node_gpus // group.option.gpus)
    for replicas in (group.replicas - step, group.replicas + step):
        most = (gpus - replicas * group.option.gpus) // training.option.gpus
        if replicas < 1 or most < 1:
            continue
        moved = replace(plan, groups=(replace(group, replicas=replicas),))
        priced = [
            replace(solved, plan=other, evaluation=evaluation)
            for dp in range(1, most + 1)
            if minibatch % (dp * training.option.ranks) == 0
            for other in [replace(moved, training=replace(training, dp=dp))]
            if (evaluation := evaluate(problem, other)).feasible
        ]
        metric, value = objective(solved)
        losses = {other: relative_loss(value, other, _sense(metric)) for _, other in map(objective, priced)}
        if losses:
            best = min(losses, key=losses.__getitem__)
            name = f"{replicas} replicas generate in place of {group.replicas}"
            yield {"plan": name, "objective": best, "loss": losses[best]}


def _other_spaces(problem: RlProblem, plan: RlPlan) -> Iterator[tuple[str, RlProblem]]:
    if plan.fusion is not None:
        yield "scoring after generation", replace(problem, fusion_thresholds=())
    if plan.late is not None:
        yield "the same replicas to the end", replace(problem, late_thresholds=())
    if plan.training in problem.bubbles:
        yield "actor and critic trained in turn", replace(problem, bubbles={})
    for mode in problem.modes:
        alike = (mode.placement, mode.sync, mode.keeps) == (plan.mode.placement, plan.mode.sync, plan.mode.keeps)
        if not alike or mode.staleness < plan.mode.staleness:  # running further ahead than the best plan gains nothing
            yield mode_name(mode), replace(problem, modes=(mode,))


def objective(solved: Solved) -> tuple[str, float]:
    """Metric and value, as the problem asks for it."""
    goal, evaluation = solved.setting.resolved.problem.objective, solved.evaluation
    if goal.maximize == "tokens_per_usd":
        return "tokens_per_usd", solved.tokens / evaluation.cost_usd
    if goal.minimize == "cost":
        return "usd_per_iteration", evaluation.cost_usd
    return "iteration_time_s", evaluation.iteration_s
