"""Solves a serving problem: candidates, instance mix (MILP), proof, placement, plan."""

from dataclasses import replace

from planner.errors import Stopped
from planner.kinds.serve.plan.decode import decode
from planner.kinds.serve.plan.place import Unplaceable
from planner.kinds.serve.steady.frontier import frontier
from planner.kinds.serve.steady.limits import explain_infeasible
from planner.kinds.serve.steady.search import Outcome, ServeSetting, prepare, search, solve_problem
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.mix_solve import certify

PROOF_NODES = 1500  # of the tree that proves the bound; most problems need fewer than 50, rich mixes hundreds
PROOF_NODES_WAITING = 2000  # where clients wait relaxations are weak, and some 1000 nodes are common


def solve(resolved: Resolved, limits: Limits) -> Envelope:
    """The best plan for a serving problem.

    Raises Infeasible with a smallest conflict when no plan keeps all limits, Stopped when a limit of the solve came
    first, PlannerError for a problem that makes no sense.
    """
    setting = prepare(resolved)
    if setting.options.judged_by == "simulation":
        from planner.kinds.serve.simulated.placements import require_playable

        require_playable(setting)
    limits.tell("pricing candidates")
    outcome = search(setting, setting.targets, limits)
    if not outcome.has_mix:
        if not outcome.proven:
            raise Stopped(outcome.result.stop_reason, bound=outcome.result.bound)
        limits.tell("naming the limits in conflict")
        raise explain_infeasible(setting, limits)
    if setting.options.judged_by == "simulation":
        from planner.kinds.serve.simulated.solve import solve_by_simulation

        return solve_by_simulation(setting, outcome, limits)
    limits.tell("proving the bound")
    waiting = any(target.clients is not None for target in setting.targets)
    proof = certify(
        outcome.formulated.problem, outcome.result, node_limit=PROOF_NODES_WAITING if waiting else PROOF_NODES
    )
    points = frontier(setting, limits) if resolved.problem.objective.pareto is not None else ()
    while True:
        try:
            return decode(setting, outcome, proof, points)
        except Unplaceable as error:
            outcome = _with_fewer(setting, outcome, error, limits)


def _with_fewer(setting: ServeSetting, outcome: Outcome, error: Unplaceable, limits: Limits) -> Outcome:
    """The best mix with fewer instances of the type that has no regular place; its bound stays that of all mixes.

    Raises `error` when there is none.
    """
    (bad,) = (item for item in outcome.roles if item.role == error.role)
    shapes = tuple(
        replace(shape, max_instances=bad.count - 1) if candidate is bad.candidate else shape
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
