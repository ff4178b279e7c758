"""Solves a serving problem: candidates, instance mix (MILP), proof, placement, plan."""

import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from planner.errors import Infeasible, PlannerError, Stopped
from planner.kinds.serve.bounds.least_times import impossible_limits
from planner.kinds.serve.by_default import solved_by_default
from planner.kinds.serve.choice import Chosen, ProofOf, chosen, over_all
from planner.kinds.serve.expected import counts_expected, most_expected
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.decode import decode
from planner.kinds.serve.plan.losses import MOST_BUSY
from planner.kinds.serve.plan.place import Unplaceable
from planner.kinds.serve.steady.conflicts.limits import explain_infeasible
from planner.kinds.serve.steady.failures import most_losses
from planner.kinds.serve.steady.frontier import frontier
from planner.kinds.serve.steady.search import Outcome, ServeSetting, prepare, search, solve_problem
from planner.kinds.serve.verified.verifiable import ASKED, Unverified, estimated, unverifiable
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.mix_solve import certify

PROOF_NODES = 1500  # of the tree that proves the bound; most problems need fewer than 50, rich mixes hundreds
PROOF_NODES_LATE = 50  # once the time limit has come
MOST_SPREADS = 3
PROOF_NODES_WAITING = 2000  # where clients wait relaxations are weak, and some 1000 nodes are common


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The best plan for a serving problem: verified by simulation, or by formulas where it is asked for or must be.

    What is not verified is called an estimate, with the reason, in its certificate. Raises Infeasible with a smallest
    conflict when no plan keeps all limits, Stopped when a limit of the solve came first, PlannerError for a problem
    that makes no sense. Where what is expected counts, the confidence of the limits is chosen first; where the problem
    states none, there is one by default.
    """
    if not counts_expected(resolved):
        return solved_by_default(resolved, limits, _solved)
    chosen = most_expected(resolved, limits)
    plan = _solved(replace(resolved, confidence=chosen.confidence), limits)
    told = {"expected": chosen.expected, "confidences": chosen.searched}
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update=told)})


def _solved(resolved: Resolved, limits: Limits) -> Envelope:
    if resolved.problem.cache is not None:
        from planner.kinds.serve.cached.solve import solve_cached

        return solve_cached(resolved, limits, solve_by_formulas)
    started_s = time.monotonic()
    setting = prepare(resolved)
    level = "verification" if setting.options.reordered else setting.options.judged_by
    if level == "simulation":
        from planner.kinds.serve.simulated.placements import require_simulable

        require_simulable(setting)
    limits.tell("pricing candidates")
    picked = chosen(setting, limits.left(started_s), _searched)
    setting, outcome = picked.whole, picked.outcome
    why = ASKED if level == "queueing" else unverifiable(setting)
    impossible = impossible_limits(setting) if outcome.has_mix or outcome.proven else []
    if impossible:
        raise Infeasible(impossible, proved=True)
    if level in (None, "verification") and why is None and (outcome.has_mix or outcome.proven):
        from planner.kinds.serve.verified.preferred import solve_preferred

        try:
            return solve_preferred(picked, limits, started_s)
        except Unverified as ended:
            why = str(ended)
    if level == "verification":
        raise _not_verified(resolved, why)
    if not outcome.has_mix:
        if not outcome.proven:
            raise Stopped(outcome.result.stop_reason, bound=outcome.result.bound)
        raise explain_infeasible(setting, limits)
    if level == "simulation":
        from planner.kinds.serve.simulated.solve import solve_by_simulation

        return solve_by_simulation(setting, outcome, limits)
    return estimated(_proven(picked, limits.left(started_s), late=limits.spent(started_s)), why)


def _searched(setting: ServeSetting, limits: Limits) -> tuple[ServeSetting, Outcome]:
    """The best mix by formulas.

    Where own runs are taken at an instance's share of what is in flight, that of the GPUs which the mix uses: searched
    again until they are those over which it was spread, `MOST_SPREADS` times at most, and while there is a mix.
    """
    outcome = search(setting, setting.targets, limits)
    for _ in range(MOST_SPREADS if setting.takes_loads and outcome.has_mix else 0):
        used = sum(item.count * item.candidate.devices for item in outcome.roles)
        if used == setting.spread_gpus:
            break
        limits.tell(f"searching with what is in flight spread over {used} GPUs")
        spread = replace(prepare(setting.resolved, spread_gpus=used), forms=setting.forms)
        following = search(spread, spread.targets, limits)
        if not following.has_mix:
            break
        setting, outcome = spread, following
    return setting, outcome


def solve_by_formulas(resolved: Resolved, limits: Limits) -> Envelope:
    """The best plan by formulas; raises Infeasible where there is none."""
    picked = chosen(prepare(resolved), limits, _searched)
    if not picked.outcome.has_mix:
        raise explain_infeasible(picked.setting, limits)
    return _proven(picked, limits)


def _proven(picked: Chosen, limits: Limits, *, late: bool = False) -> Envelope:
    """The plan of a mix with its certificate, placed where it can stand."""
    limits.tell("proving the bound")
    waiting = any(target.clients is not None for target in picked.setting.targets)
    nodes = PROOF_NODES_LATE if late else PROOF_NODES_WAITING if waiting else PROOF_NODES
    proof_of = partial(certify, node_limit=nodes)
    plan, outcome = _placed(picked.setting, picked.outcome, proof_of, limits)
    return over_all(picked, plan, outcome, proof_of)


def _placed(setting: ServeSetting, outcome: Outcome, proof_of: ProofOf, limits: Limits) -> tuple[Envelope, Outcome]:
    """The plan of a mix that can stand, or of one near it that can, and that mix."""
    proof = proof_of(outcome.formulated.problem, outcome.result)
    points = frontier(setting, limits) if setting.resolved.problem.objective.pareto is not None else ()
    while True:
        try:
            plan = decode(setting, outcome, proof, points)
        except Unplaceable as error:
            outcome = _with_fewer(setting, outcome, error, limits)
            continue
        crowded = _crowded(outcome, ServeDecision.model_validate(plan.decision))
        if not crowded:
            return plan, outcome
        limits.tell("leaving more room for what fails together")
        outcome = _with_losses(setting, outcome, crowded, limits)


def _not_verified(resolved: Resolved, why: str | None) -> PlannerError:
    return PlannerError(
        f"no plan can be verified: {why or 'the search was stopped'}",
        where=resolved.where(("options", "judged_by")),
        hint="take `--level static`, whose answer is an estimate",
    )


def _crowded(outcome: Outcome, decision: ServeDecision) -> dict[int, int]:
    """By row of the candidates, of how many instances one is lost in the worst failure that leaves too little."""
    broken = [
        failure
        for failure in (decision.availability.failures if decision.availability else ())
        if failure.busy > MOST_BUSY
    ]
    rows, used = list(outcome.formulated.candidates), {item.role: item for item in outcome.roles}
    crowded: dict[int, int] = {}
    for role, lost in ((role, lost) for failure in broken for role, lost in failure.lost.items()):
        row = rows.index(used[role].candidate)
        crowded[row] = min(crowded.get(row, used[role].count), -(-used[role].count // lost))
    return crowded


def _with_losses(setting: ServeSetting, outcome: Outcome, crowded: Mapping[int, int], limits: Limits) -> Outcome:
    """The best mix that reckons with as large a loss of some types as their placement had; the bound stays.

    Where that is what it reckons with already, with the largest loss that there can be, wherever instances stand.
    Raises PlannerError when there is none.
    """
    availability = setting.resolved.problem.availability
    assert availability is not None
    shapes = list(outcome.searched.shapes)
    for row, spread in crowded.items():
        known = shapes[row].spread
        if known is not None and spread < known:
            shapes[row] = replace(shapes[row], spread=spread)
    if tuple(shapes) == outcome.searched.shapes:
        worst = (most_losses(each, setting.resolved.pools, availability.per) for each in outcome.formulated.candidates)
        shapes = [replace(shape, lost=lost, spread=spread) for shape, (lost, spread) in zip(shapes, worst, strict=True)]
    restricted = replace(outcome.searched, shapes=tuple(shapes))
    result = solve_problem(restricted, setting, limits, outcome.formulated.fullness, tie_break=True)
    safer = replace(outcome, searched=restricted, result=result)
    if not safer.has_mix or restricted == outcome.searched:
        raise _unspreadable(setting.resolved)
    return safer


def _unspreadable(resolved: Resolved) -> PlannerError:
    per = "role" if resolved.problem.availability is None else resolved.problem.availability.per
    return PlannerError(
        f"no placement was found that can lose any {per} and keep its limits, though nothing proves that there is none",
        where=resolved.where(("availability",)),
        hint="plan with `availability: n+1`, or give the pool more nodes",
    )


def _with_fewer(setting: ServeSetting, outcome: Outcome, error: Unplaceable, limits: Limits) -> Outcome:
    """The best mix with fewer instances of the type that has no regular place; its bound stays that of all mixes.

    Raises `error` when there is none.
    """
    (bad,) = (item for item in outcome.roles if item.role == error.role)
    shapes = tuple(
        replace(shape, max_instances=bad.count - 1) if candidate.is_alike(bad.candidate) else shape
        for shape, candidate in zip(outcome.searched.shapes, outcome.formulated.candidates, strict=True)
    )
    restricted = replace(outcome.searched, shapes=shapes)
    fewer = replace(
        outcome,
        searched=restricted,
        result=solve_problem(restricted, setting, limits, outcome.formulated.fullness, tie_break=True),
    )
    if not fewer.has_mix:
        raise error
    return fewer
