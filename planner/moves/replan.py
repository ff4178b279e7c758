"""A problem solved for a cluster on which another plan runs: little is moved, and the moves are put in order."""

from dataclasses import dataclass, replace
from typing import Any

from planner.api import solve
from planner.errors import Conflict, Infeasible, PlannerError, Stopped
from planner.kinds.registry import find_kind
from planner.plan.copies import room_bytes
from planner.plan.placement import last_device
from planner.plan.schema import Decision, Envelope
from planner.plan.store import plan_digest, plan_json
from planner.problem.recorded import recorded_problem
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.solvers.placement.regroup import Copy, Regroup, Step, order_moves
from planner.solvers.result import Status

SCHEMA = "planner.moves/1"


@dataclass(frozen=True, slots=True)
class Replan:
    """The plan, and the moves that lead to it from the one that runs."""

    plan: Envelope
    steps: tuple[Step, ...]
    moved_bytes: float
    least_bytes: float  # no order of moves to this plan brings fewer
    all_bytes: float  # of the plan's copies: what it takes to start it from nothing
    before: str  # digest of the plan that runs
    loss: float

    def document(self) -> dict[str, Any]:
        """As JSON: one entry a step, in order."""
        return {
            "schema": SCHEMA,
            "from": self.before,
            "to": plan_digest(plan_json(self.plan)),
            "loss": self.loss,
            "moved_bytes": self.moved_bytes,
            "least_bytes": self.least_bytes,
            "from_scratch_bytes": self.all_bytes,
            "steps": [
                {
                    "action": "bring" if step.brought else "drop",
                    "model": step.copy.model,
                    "pool": step.copy.devices[0][0],
                    "devices": [device for _, device in step.copy.devices],
                    "bytes": step.copy.brought_bytes if step.brought else 0.0,
                }
                for step in self.steps
            ],
        }


def replanned(resolved: Resolved, limits: Limits, before: Envelope, decision: Decision, loss: float = 0.0) -> Replan:
    """The problem's plan, laid near what runs, and the moves between them.

    Groups of a placement are laid where their models stand, and where `loss` (a share of those on time) allows it fewer
    of them change; other plans are as they are solved. Raises PlannerError for a plan of another cluster or kind,
    Infeasible where no plan keeps the limits or no order of moves has room.
    """
    _require_same_cluster(resolved, before, decision)
    running = find_kind(before.kind).copies(decision)
    kind = find_kind(resolved.problem.kind)
    if before.kind != kind.name:
        what = f"the plan is of kind `{before.kind}`, the problem of kind `{kind.name}`"
        raise PlannerError(what, where="--from", hint=f"give a plan of kind `{kind.name}`")
    plan = kind.near(resolved, solve(resolved, limits), decision, loss)
    chosen = kind.decision.model_validate(plan.decision)
    names = _renamed(before, plan)
    now = frozenset(replace(copy, model=names.get(copy.model, copy.model)) for copy in running)
    then = frozenset(kind.copies(chosen))
    room = min(room_bytes(decision), room_bytes(chosen))
    problem = Regroup(room, _matched(now, then), then)
    result = order_moves(problem)
    if result.status is Status.UNKNOWN:
        raise Stopped(result.stop_reason, bound=result.bound)
    if result.solution is None:
        raise _no_order(problem)
    moved = sum(step.copy.brought_bytes for step in result.solution if step.brought)
    everything = sum(copy.brought_bytes for copy in then)
    digest = plan_digest(plan_json(before))
    return Replan(plan, result.solution, moved, result.bound or 0.0, everything, digest, loss)


def _matched(now: frozenset[Copy], then: frozenset[Copy]) -> frozenset[Copy]:
    """Copies that stand, those that go on as the plan has them: their engines' caches may be of another size then."""
    going_on = {(copy.model, copy.devices, copy.brought_bytes): copy for copy in then}
    return frozenset(going_on.get((copy.model, copy.devices, copy.brought_bytes), copy) for copy in now)


def _renamed(before: Envelope, plan: Envelope) -> dict[str, str]:
    """Models of the same key that are other models now."""
    old, new = before.digests.models, plan.digests.models
    return {key: f"{key} (before)" for key in old if key in new and old[key] != new[key]}


def _require_same_cluster(resolved: Resolved, before: Envelope, decision: Decision) -> None:
    """The plan's pools are those of the problem, of the same GPUs, and reach no further."""
    problem = recorded_problem(before.inputs)
    if problem is None:
        raise PlannerError("the plan's inputs are no valid problem", where="--from", hint="check it: `planner check`")
    was = {spec.name or spec.gpu: spec.gpu for spec in problem.cluster.pools}
    sizes = {pool.name: pool.num_gpus for pool in resolved.pools}
    for spec in resolved.problem.cluster.pools:
        name = spec.name or spec.gpu
        if was.get(name, spec.gpu) != spec.gpu:
            what = f"the plan's pool `{name}` is of {was[name]}, the problem's of {spec.gpu}"
            raise PlannerError(what, where="--from", hint="give a plan of the same cluster")
    for block in decision.placement:
        if block.pool not in sizes:
            what = f"the plan runs on pool `{block.pool}`, which the problem does not have"
            hint = f"its pools are {', '.join(sizes)}: give a plan of the same cluster"
            raise PlannerError(what, where="--from", hint=hint)
        last = max(last_device(other) for other in decision.placement if other.pool == block.pool)
        if last >= sizes[block.pool]:
            what = f"the plan runs on device {last} of pool `{block.pool}`, which has {sizes[block.pool]}"
            raise PlannerError(what, where="--from", hint=f"give the pool {last + 1} GPUs or more")


def _no_order(problem: Regroup) -> Infeasible:
    """What stands in the way: memory of devices, and copies that may not go."""
    least = problem.least()
    conflict: list[Conflict] = [
        {"limit": f"{problem.memory_bytes / 1e9:.4g} GB of a device", "nearest": "devices beside those of the plans"},
        {"limit": f"no model without a copy: {', '.join(sorted(least))}", "nearest": "stop one of them for the moves"},
    ]
    return Infeasible(conflict, proved=True)
