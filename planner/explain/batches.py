"""Time and memory of a role at a smaller and a larger batch than the plan's."""

from collections.abc import Iterator

from planner.documents.units import format_si
from planner.explain.facts import Fact
from planner.explain.stated import held_text
from planner.plan.schema import Envelope, LimitMargins, Role
from planner.problem.recorded import recorded_problem


def batch_facts(envelope: Envelope, role: Role, batch: int) -> Iterator[Fact]:
    """How many sequences the memory would hold, and the neighbours of the batch on its axis against the limits."""
    if role.memory is not None:
        yield _most(role, batch)
    steps = (envelope.evidence.steps or {}).get(role.name)
    for text, tpot_s in ((steps.tpot_s_by_batch or {}) if steps is not None else {}).items():
        if text.isdecimal() and int(text) != batch:
            yield _neighbour(envelope, role, batch, int(text), tpot_s)


def _most(role: Role, batch: int) -> Fact:
    memory = role.memory
    assert memory is not None
    each = memory.kv_cache_bytes / batch
    room = memory.capacity_bytes - memory.used_bytes
    most = max(batch, batch + int(room / each)) if each > 0 else batch
    what = f"memory would hold a batch of {most} at this length, in place of {batch}"
    if most == batch:
        what = f"memory holds no larger batch than {batch} at this length"
    return Fact("memory", what, (role.name, "memory", "max_batch"), figures={"most": float(most)})


def _neighbour(envelope: Envelope, role: Role, batch: int, other: int, tpot_s: float) -> Fact:
    """One other batch: the time per output token with the role full, the memory, and which limit it breaks."""
    limit = _tpot_limit(envelope, role)
    what = f"with max_batch {other}: tpot with the role full {format_si(tpot_s, 's')}"
    figures = {"max_batch": float(other), "tpot_s": tpot_s}
    if limit is not None:
        held_to_s, limit_s, margins = limit
        figures |= {"limit_s": limit_s, "held_to_s": held_to_s}
        what += f" {'breaks the limit of' if tpot_s > held_to_s else 'of'} {held_text(limit_s, held_to_s, margins)}"
    if role.memory is not None:
        needed = role.memory.used_bytes + role.memory.kv_cache_bytes * (other / batch - 1.0)
        figures["memory_bytes"] = needed
        fits = needed <= role.memory.capacity_bytes
        what += f", memory {format_si(needed, 'B')}{'' if fits else ' does not fit'}"
    return Fact("change", what, (role.name, "max_batch", "memory"), figures=figures)


def _tpot_limit(envelope: Envelope, role: Role) -> tuple[float, float, LimitMargins | None] | None:
    """The strictest limit on the time per output token of the workloads of the role's model.

    What it is held to, as it is stated, both in seconds, and for which confidence.
    """
    problem = recorded_problem(envelope.inputs)
    if problem is None:
        return None
    limits = []
    for workload in problem.workloads:
        margins = envelope.evidence.margins_of(workload.name)
        margin = 1.0 if margins is None else margins.tpot
        bounds_s = [bound_s for name, _, bound_s in workload.slo.limits() if name == "tpot"]
        if problem.model_of(workload) == role.model:
            limits += [(bound_s / margin, bound_s, margins) for bound_s in bounds_s]
    return min(limits, key=lambda limit: limit[0], default=None)
