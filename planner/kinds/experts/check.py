"""Checks of expert-placement plans: slots of every rank, every expert present, token shares sum to one."""

from collections.abc import Iterator

from planner.kinds.experts.decision import ExpertsDecision, ExpertsOptions, LayerLayout
from planner.models.architecture import Architecture, MoeFfn
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.recorded import recorded_model, recorded_options, recorded_problem

SIDE_FILE = "expert_of_slot"
QUOTA_TOL = 1e-6
"""Of the shares of one expert: plans keep quotas to single precision, as launchers read them."""


def check(envelope: Envelope, decision: ExpertsDecision) -> list[Finding]:
    """One finding a rule and run of layers."""
    findings = [*_slots(decision), _policy(decision), _covered(decision)]
    for layout in decision.layouts:
        findings += [*_layout(decision, layout)]
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, ExpertsOptions)
    if problem is None or options is None:
        return findings
    findings += _asked(decision, options)
    if decision.roles[0].model is None:
        return findings
    model = recorded_model(problem, decision.roles[0].model)
    if model is None:
        what = f"not judged: the catalog does not know model `{decision.roles[0].model}`"
        return [*findings, Finding("experts.model", True, what, "num_experts", skipped=True)]
    return [*findings, _model(decision, model)]


def _slots(decision: ExpertsDecision) -> Iterator[Finding]:
    role = decision.roles[0]
    ranks = role.parallelism.ep
    yield Finding(
        "experts.role",
        len(decision.roles) == 1 and role.function == "experts",
        "one role `experts` holds the layout",
        "roles",
        "keep one role `experts`",
    )
    given = len(decision.slots_per_rank)
    yield Finding(
        "experts.ranks",
        given in (1, ranks),
        f"{given} slot counts for {ranks} ranks",
        "slots_per_rank",
        f"give one, or {ranks}",
    )
    total = _num_slots(decision)
    yield Finding(
        "experts.slots",
        total >= decision.num_experts,
        f"{total} slots a layer for {decision.num_experts} experts",
        "slots_per_rank",
        "give the ranks more slots, or use more ranks",
    )
    low = min(decision.slots_per_rank)
    yield Finding(
        "experts.home",
        decision.home_slots_per_rank <= low,
        f"{decision.home_slots_per_rank} home slots of {low} a rank",
        "home_slots_per_rank",
        "keep as many home slots as a rank has, or fewer",
    )


def _num_slots(decision: ExpertsDecision) -> int:
    slots = decision.slots_per_rank
    return slots[0] * decision.roles[0].parallelism.ep if len(slots) == 1 else sum(slots)


def _policy(decision: ExpertsDecision) -> Finding:
    periodic = decision.policy == "periodic"
    return Finding(
        "experts.policy",
        periodic == (decision.interval_s is not None),
        f"policy `{decision.policy}` with interval {decision.interval_s}",
        "interval_s",
        "give an interval to `periodic` layouts alone",
    )


def _covered(decision: ExpertsDecision) -> Finding:
    """Every layer is laid out once, inline or in the side file."""
    hint = "lay out every layer once, inline or in the side file"
    if SIDE_FILE in decision.side_files:
        inside = f"the layout is in the side file `{SIDE_FILE}`"
        return Finding("experts.layers", not decision.layouts, inside, "layouts", hint)
    spans = sorted(
        (layout.window * decision.num_layers + layout.first_layer, layout.num_layers) for layout in decision.layouts
    )
    reached, wanted = 0, decision.num_layers * decision.num_windows
    for first, count in spans:
        if first != reached:
            row, times = min(first, reached), "twice" if first < reached else "nowhere"
            window, layer = divmod(row, decision.num_layers)
            place = f"layer {layer}" if decision.num_windows == 1 else f"layer {layer} of window {window}"
            return Finding("experts.layers", False, f"{place} is laid out {times}", "layouts", hint)
        reached += count
    return Finding("experts.layers", reached == wanted, f"{reached} layers laid out of {wanted}", "layouts", hint)


def _layout(decision: ExpertsDecision, layout: LayerLayout) -> Iterator[Finding]:
    where = f"layouts.{layout.window * decision.num_layers + layout.first_layer}"
    slots, wanted = len(layout.expert_of_slot), _num_slots(decision)
    yield Finding(
        "experts.layout",
        slots == wanted,
        f"{slots} slots laid out, the ranks have {wanted}",
        where,
        "lay out every slot of every rank",
    )
    present = set(layout.expert_of_slot)
    foreign = sorted(expert for expert in present if expert >= decision.num_experts)
    yield Finding(
        "experts.range",
        not foreign,
        f"expert {foreign[0]} of {decision.num_experts}" if foreign else "experts are those of the model",
        where,
        "experts count from 0",
    )
    yield from _empty(decision, layout, where)
    lost = next((expert for expert in range(decision.num_experts) if expert not in present), None)
    yield Finding(
        "experts.placed",
        lost is None,
        f"expert {lost} has no slot" if lost is not None else "every expert has a slot",
        where,
        "give every expert at least one slot",
    )
    if layout.quota is not None:
        yield _quota(layout, where)


def _empty(decision: ExpertsDecision, layout: LayerLayout, where: str) -> Iterator[Finding]:
    """Slots stay empty in micro-batches, and where layers have fewer than the ranks."""
    empty = layout.expert_of_slot.count(-1)
    if empty and decision.policy != "micro_batches" and not decision.slots_by_layer:
        what, hint = f"{empty} slots are empty", "give every slot an expert"
        yield Finding("experts.empty", False, what, where, hint)


def _quota(layout: LayerLayout, where: str) -> Finding:
    assert layout.quota is not None
    totals: dict[int, float] = {}
    filled = (pair for pair in zip(layout.expert_of_slot, layout.quota, strict=True) if pair[0] >= 0)
    for expert, share in filled:
        totals[expert] = totals.get(expert, 0.0) + share
    wrong = sorted(expert for expert, total in totals.items() if abs(total - 1.0) > QUOTA_TOL)
    return Finding(
        "experts.quota",
        not wrong,
        f"the shares of expert {wrong[0]} add up to {totals[wrong[0]]:.6g}" if wrong else "shares add up to 1",
        where,
        "make the shares of every expert's copies add up to 1",
    )


def _asked(decision: ExpertsDecision, options: ExpertsOptions) -> Iterator[Finding]:
    ep, given, asked = decision.roles[0].parallelism.ep, decision.slots_per_rank, options.slots_per_rank
    room = (asked,) if isinstance(asked, int) else options.slots_by_rank
    if len(given) > 1 and len(room) > 1:
        kept = all(slots <= most for slots, most in zip(given, room, strict=False))
    else:  # one figure for all ranks, however many a plan that was edited says there are
        kept = max(given) <= min(room)
    yield Finding(
        "experts.asked",
        ep == options.ep and kept,
        f"ep {ep} with up to {max(given)} slots a rank, the problem gives {options.ep} and {max(room)}",
        "slots_per_rank",
        "keep to the ranks and slots of the problem",
    )
    if decision.slots_by_layer != options.slots_by_layer:
        stated, wanted = len(decision.slots_by_layer), len(options.slots_by_layer)
        what = f"{stated} layers with slots of their own, not the {wanted} of the problem"
        yield Finding("experts.by_layer", False, what, "slots_by_layer", "keep to the slots of the problem")
    yield Finding(
        "experts.policy",
        decision.policy == options.policy,
        f"plans `{decision.policy}`, the problem asks for `{options.policy}`",
        "policy",
        "use the policy asked for",
    )


def _model(decision: ExpertsDecision, model: Architecture) -> Finding:
    layers = [layer.ffn for layer in model.layers if isinstance(layer.ffn, MoeFfn)]
    sizes = sorted({ffn.num_experts for ffn in layers})
    right = sizes == [decision.num_experts] and decision.num_layers in (len(layers), len(layers) + model.num_mtp_heads)
    laid = f"{decision.num_layers} layers of {decision.num_experts} experts"
    return Finding(
        "experts.model",
        right,
        f"{laid}, `{model.name}` has {len(layers)} of {', '.join(map(str, sizes))}",
        "num_experts",
        "lay out the expert layers of the model",
    )
