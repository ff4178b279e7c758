"""An RL problem to a plan: curves made, searched exactly, decoded, with what was proven and what it rests on."""

from collections.abc import Iterator
from dataclasses import replace

from pydantic import JsonValue

from planner import __version__
from planner.errors import PlannerError
from planner.files import digest
from planner.infeasible import Infeasible, Stopped
from planner.kinds.rl.decode import Solved, decode
from planner.kinds.rl.formulate import Formulated, formulate
from planner.kinds.rl.proof import proof_record, trained_tokens
from planner.kinds.rl.setting import read_setting
from planner.plan.schema import (
    SCHEMA,
    Certificate,
    Digests,
    Envelope,
    Evidence,
    Objective,
    Prediction,
    Software,
)
from planner.problem.resolve import Resolved, normalised
from planner.progress import Limits
from planner.rl.problem import Mode
from planner.rl.search import Solution
from planner.rl.search import solve as search
from planner.solvers.result import Status
from planner.units import format_si

TOLERANCE = 1e-6
ASSUMPTIONS = (
    "lengths are drawn once by the problem's seed and known to the search; iterations to come draw others",
    "a replica decodes at its curve, fitted to the decode step of the cost model",
    "models that train or score share the training GPUs and take turns; their minibatches are the actor's",
    "training state leaves the GPUs while colocated generation is in turn, over PCIe and back",
    "samples of a prompt share no prefix cache",
)


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The best plan, with a bound; raises PlannerError, Infeasible and Stopped."""
    setting = read_setting(resolved)
    formulated = formulate(setting)
    try:
        solution = search(formulated.problem, time_limit_s=limits.time_limit_s, gap=limits.gap)
    except PlannerError as error:
        raise PlannerError(error.what, where=resolved.where(("options",)), hint=error.hint) from None
    if solution.status is Status.INFEASIBLE:
        raise _infeasible(formulated, solution)
    if solution.plan is None or solution.evaluation is None:
        raise Stopped(solution.stop_reason, bound=solution.bound)
    solved = Solved(setting, formulated, solution.plan, solution.evaluation)
    return _envelope(solved, solution, list(_alternatives(solved, limits)))


def _infeasible(formulated: Formulated, solution: Solution) -> Infeasible:
    deadline = formulated.problem.max_iteration_s
    if deadline is None or solution.nearest_iteration_s is None:
        return Infeasible([{"limit": "GPUs of the pools", "nearest": ""}], proved=True)
    nearest = f"{solution.nearest_iteration_s:.4g} s"
    return Infeasible([{"limit": f"max_iteration <= {deadline:g} s", "nearest": nearest}], proved=True)


def _alternatives(solved: Solved, limits: Limits) -> Iterator[JsonValue]:
    """The best plan of every other mode, with what it loses; together they take as long as the solve may, at most."""
    value = _objective(solved)[1]
    share_s = None if limits.time_limit_s is None else limits.time_limit_s / len(solved.formulated.problem.modes)
    for mode in solved.formulated.problem.modes:
        if mode == solved.plan.mode:
            continue
        only = replace(solved.formulated.problem, modes=(mode,))
        try:
            found = search(only, time_limit_s=share_s, gap=max(limits.gap, 1e-3))
        except PlannerError:
            continue
        if found.plan is None or found.evaluation is None:
            yield {"plan": mode_name(mode), "objective": None, "loss": None}
            continue
        other = replace(solved, plan=found.plan, evaluation=found.evaluation)
        reached = _objective(other)[1]
        yield {"plan": mode_name(mode), "objective": reached, "loss": abs(reached - value) / max(abs(value), 1e-9)}


def mode_name(mode: Mode) -> str:
    """A mode in words: `disaggregated, asynchronous by 1`."""
    ahead = f"asynchronous by {mode.staleness}"
    sync = {"sync": "synchronous", "stream_sync": "stream", "k_step_async": ahead}[mode.sync]
    return f"{mode.placement}, {sync}"


def _objective(solved: Solved) -> tuple[str, float]:
    """Metric and value, as the problem asks for it."""
    goal, evaluation = solved.setting.resolved.problem.objective, solved.evaluation
    if goal.maximize == "tokens_per_usd":
        return "tokens_per_usd", trained_tokens(
            solved.formulated.problem.batches, solved.setting.options
        ) / evaluation.cost_usd
    if goal.minimize == "cost":
        return "usd_per_iteration", evaluation.cost_usd
    return "iteration_time_s", evaluation.iteration_s


def _envelope(solved: Solved, solution: Solution, alternatives: list[JsonValue]) -> Envelope:
    resolved = solved.setting.resolved
    inputs = normalised(resolved)
    known = resolved.digests()
    return Envelope(
        schema=SCHEMA,
        kind="rl",
        name=resolved.problem.name,
        software=Software(planner=__version__, solver="rollouts simulated, best first"),
        seed=resolved.problem.seed,
        digests=Digests(
            problem=digest(inputs),
            models=known["models"],
            hardware=known["hardware"],
            calibration=solved.setting.calibration.digest,
            traces=known["traces"],
        ),
        inputs=inputs,
        decision=decode(solved).model_dump(mode="json", exclude_none=True),
        predictions=tuple(_predictions(solved)),
        certificate=_certificate(solved, solution, alternatives),
        evidence=_evidence(solved),
        assumptions=(*ASSUMPTIONS, *resolved.price_notes),
    )


def _predictions(solved: Solved) -> Iterator[Prediction]:
    evaluation = solved.evaluation
    found = {
        "iteration_time_s": evaluation.iteration_s,
        "generation_s": evaluation.generation_s,
        "training_s": evaluation.training_s,
        "output_tokens_per_s": trained_tokens(solved.formulated.problem.batches, solved.setting.options)
        / evaluation.iteration_s,
    }
    if evaluation.cost_usd > 0:
        found["usd_per_iteration"] = evaluation.cost_usd
        found["tokens_per_usd"] = (
            trained_tokens(solved.formulated.problem.batches, solved.setting.options) / evaluation.cost_usd
        )
    for metric, value in found.items():
        yield Prediction(metric=metric, value=value)


def _certificate(solved: Solved, solution: Solution, alternatives: list[JsonValue]) -> Certificate:
    metric, value = _objective(solved)
    maximising = metric == "tokens_per_usd"
    bound = None
    if solution.bound is not None and solution.objective:
        share = solution.bound / solution.objective
        bound = value / share if maximising else value * share
    gap = None if bound is None else abs(value - bound) / max(abs(value), 1e-9)
    closed = gap is not None and gap <= TOLERANCE
    space = "over the stated axes, for the drawn lengths, under the stated costs and assumptions"
    claim = f"no plan has a better {metric} {space}" if closed else f"no plan beats the bound on {metric} {space}"
    return Certificate(
        claim=claim,
        status="optimal" if closed else "feasible",
        stop_reason=solution.stop_reason,
        objective=Objective(metric=metric, sense="maximize" if maximising else "minimize", value=value),
        bound=bound,
        gap=gap,
        tolerance=TOLERANCE,
        axes=_axes(solved.formulated),
        candidates=solution.seen + solution.pruned,
        pruned={"a lower bound on their generation or training is no better than the best plan": solution.pruned},
        proof=proof_record(solved.formulated.curves, solved.formulated.problem.batches, solution),
        next_best=alternatives,
    )


def _axes(formulated: Formulated) -> dict[str, list[JsonValue]]:
    problem = formulated.problem
    generation = sorted({f"{one.pool} tp{one.tp} pp{one.pp} ep{one.ep}" for one in problem.generation})
    training = sorted({f"{one.pool} tp{one.tp} pp{one.pp} {one.label}".strip() for one in problem.training})
    return {
        "mode": [mode_name(mode) for mode in problem.modes],
        "generating replica": [*generation],
        "generating replicas": ["every number that fits"],
        "training replica": [*training],
        "dp": ["every number that fits and divides a minibatch"],
        "tail_fraction": [*problem.tail_fractions],
        "groups": [*range(1, problem.max_groups + 1)],
    }


def _evidence(solved: Solved) -> Evidence:
    """The share of generation and training time by basis, and how far curves are from what they were fitted to."""
    evaluation = solved.evaluation
    generator = solved.formulated.generators[solved.plan.groups[0].option]
    total = evaluation.generation_s + evaluation.training_s
    shares: dict[str, float] = {
        name: share * evaluation.generation_s / total for name, share in generator.basis.items()
    }
    taught = "analytical" if solved.trainer.config is not None else "measured"
    shares[taught] = shares.get(taught, 0.0) + evaluation.training_s / total
    worst = max(solved.formulated.generators[group.option].error for group in solved.plan.groups)
    notes = [f"the decode curve is within {worst:.1%} of the decode step that it was fitted to"]
    if solved.setting.options.weight_sync_s is None:
        sync = format_si(evaluation.handover_s, "s")
        notes.append(f"handing over takes {sync} by bytes and bandwidths; `weight_sync` states a measured one")
    scale = sum(shares.values())
    basis = {name: share / scale for name, share in sorted(shares.items())}
    return Evidence(basis=basis, notes=tuple(notes))  # type: ignore[arg-type]  # names of the literal
