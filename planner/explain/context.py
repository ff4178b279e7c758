"""Why the roles of a serving plan take requests as long as they do, and what longer ones would cost."""

from collections.abc import Iterator

from planner.costs.operators.work import Shards
from planner.costs.serving.memory import kv_cache_bytes
from planner.documents.units import format_si, significant
from planner.explain.facts import Fact
from planner.models.architecture import Architecture
from planner.plan.schema import Decision, Envelope, Memory, Role
from planner.problem.recorded import recorded_model, recorded_problem

FIELD = "max_context_tokens"
ABOUT = (FIELD, "refused_share", "cut_share")


def context_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """One fact a role that keeps caches, and one a workload with requests that are longer than its roles take."""
    problem = recorded_problem(envelope.inputs)
    if envelope.kind != "serve" or problem is None:
        return
    for role in decision.roles:
        arch, tokens = recorded_model(problem, role.model), role.limits.get(FIELD)
        if arch is not None and role.memory is not None and isinstance(tokens, int) and role.function != "ffn":
            yield _of_role(role, role.memory, arch, tokens, problem.engine.max_context_tokens)
    shares = {(row.metric, row.of): row.value for row in envelope.predictions}
    for workload in problem.workloads:
        refused, cut = (shares.get((metric, workload.name), 0.0) for metric in ("refused_share", "cut_share"))
        if refused + cut > 0.0:
            what = (
                f"{100 * refused:.3g} % of the requests of `{workload.name}` are refused and {100 * cut:.3g} % of the "
                "answers cut, being longer than the context of their roles"
            )
            figures = {"refused_share": refused, "cut_share": cut}
            yield Fact("limit", what, (workload.name, *ABOUT), figures=figures)


def _of_role(role: Role, memory: Memory, arch: Architecture, tokens: int, stated: int | None) -> Fact:
    own, used = arch.max_context_tokens, memory.weights_bytes + memory.activations_bytes + memory.workspace_bytes
    room = memory.capacity_bytes - used
    taken, whole = (_sequence_bytes(role, arch, length) for length in (tokens, own))
    what = f"context of `{role.name}` {tokens} tokens"
    if stated is not None:
        what += f", as `engine.{FIELD}` states"
    elif tokens >= own:
        what += f", the own limit of {arch.name}"
    else:
        what += f" of the {own} of {arch.name}: the KV cache of one sequence takes no more beside weights"
    what += (
        f"; one sequence that long takes {format_si(taken, 'B')} of the {format_si(room, 'B')} a GPU has for KV caches"
    )
    batch = role.limits.get("max_batch")
    if isinstance(batch, int) and memory.kv_cache_bytes:
        what += f", as much as {significant(taken / (memory.kv_cache_bytes / batch))} sequences that it is planned for"
    if tokens < own:
        missing = whole - room
        what += f"; all {own} would take {format_si(whole, 'B')}"
        what += f", {format_si(missing, 'B')} more than there are" if missing > 0.0 else ", for which there is room"
    figures = {"tokens": float(tokens), "own_tokens": float(own), "sequence_bytes": taken, "room_bytes": room}
    return Fact("binding" if tokens < own and stated is None else "limit", what, (role.name, FIELD), figures=figures)


def _sequence_bytes(role: Role, arch: Architecture, tokens: int) -> float:
    """KV cache of one sequence on a device of the role."""
    shape = role.parallelism
    shards = Shards.of(shape.tp, shape.pp, shape.dp, shape.moe_tp, shape.ep)
    return float(kv_cache_bytes(arch, shards, [float(tokens)])[0])
