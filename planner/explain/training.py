"""Facts on training plans: what a step waits for, why degrees lie on their links, and where runs were measured."""

from collections.abc import Iterator
from typing import Any

from planner.costs.training.config import MEGATRON, machine_of
from planner.costs.training.measured_layouts import NAMES, region_of
from planner.documents.units import figure, format_si
from planner.errors import PlannerError
from planner.explain.facts import NEAR, Fact
from planner.models.architecture import MoeFfn
from planner.plan.schema import Decision, Envelope, Role
from planner.problem.recorded import INPUTS, recorded_model, recorded_problem
from planner.problem.resolve import resolve_pool
from planner.problem.schema import Problem

_MOST_FAMILIES = 4  # families of plans that are named with what none of theirs is below


def training_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """Nothing of other kinds."""
    if envelope.kind != "train" or not decision.roles:
        return
    data: dict[str, Any] = decision.model_dump(mode="json")
    yield from _ranks(data)
    yield from _waits(envelope, data)
    yield from _modules(data)
    yield from _orders(data)
    yield from _groups(data)
    yield from _racks(data)
    yield from _recomputed(data)
    yield from _measured(envelope, data, decision.roles[0])
    yield from _families(envelope, decision.roles[0])


def _ranks(data: dict[str, Any]) -> Iterator[Fact]:
    """The slowest and the fullest rank of the pipeline."""
    ranks = data.get("pipeline_ranks") or []
    if not ranks:
        return
    works = [rank["forward_s"] + rank["backward_input_s"] + rank["backward_weight_s"] for rank in ranks]
    slowest = max(range(len(ranks)), key=works.__getitem__)
    alike = sum(work >= works[slowest] * (1.0 - 1e-6) for work in works)
    what = f"rank {slowest} of the pipeline takes {format_si(works[slowest], 's')} for a micro-batch"
    what += f", as long as {alike} of {len(ranks)} ranks: the step waits for it" if alike > 1 else ", the longest"
    about: tuple[str, ...] = (
        "pipeline_ranks",
        "stage_runs",
        "schedule",
        "step_time_s",
        "objective",
        "pp",
        "parallelism",
    )
    figures = {"work_s": works[slowest], "idle_share": ranks[slowest]["idle_share"]}
    yield Fact(
        "binding", f"{what} ({100 * ranks[slowest]['idle_share']:.1f} % of its time idle)", about, figures=figures
    )
    used = [_used(rank["memory"]) / max(rank["memory"]["capacity_bytes"], 1.0) for rank in ranks]
    fullest = max(range(len(ranks)), key=used.__getitem__)
    what = f"rank {fullest} of the pipeline fills {100 * used[fullest]:.1f} % of the memory that plans may use"
    peak = ranks[fullest]["peak_micro_batches"]
    what += f", with the activations of {peak:.4g} micro-batches in flight"
    topic = "binding" if used[fullest] >= NEAR else "memory"
    yield Fact(topic, what, ("pipeline_ranks", "memory", "stage_runs"), figures={"used": used[fullest]})  # type: ignore[arg-type]  # one of Topic


def _used(memory: dict[str, float]) -> float:
    return sum(value for name, value in memory.items() if name != "capacity_bytes")


def _waits(envelope: Envelope, data: dict[str, Any]) -> Iterator[Fact]:
    """The share of a step in which the pipeline waits, and that communication shows in."""
    for name, step in (envelope.evidence.steps or {}).items():
        total = sum(step.seconds.values())
        if total <= 0.0:
            continue
        bubble = step.seconds.get("pipeline_wait", 0.0)
        told = f"{100 * bubble / total:.1f} % of a step waits in the pipeline"
        batches = data.get("num_micro_batches")
        schedule = f"schedule {data.get('schedule')}, {batches} micro-batches of {data.get('micro_batch')}"
        about: tuple[str, ...] = (
            "schedule",
            "num_micro_batches",
            "micro_batch",
            "pp",
            "vpp",
            "step",
            "objective",
            name,
        )
        yield Fact("time", f"{told}: {schedule}", about, figures={"pipeline_wait": bubble / total})
        shown = step.seconds.get("data_parallel", 0.0)
        what = f"{100 * shown / total:.1f} % of a step is exchange between data-parallel ranks that nothing hides"
        overlap = ", ".join(data.get("overlap") or ()) or "nothing"
        about = ("zero_stage", "overlap", "dp", "groups", "step", name)
        yield Fact("time", f"{what}: ZeRO {data.get('zero_stage')}, behind computation: {overlap}", about)


def _racks(data: dict[str, Any]) -> Iterator[Fact]:
    """What the step waits for uplinks of racks."""
    racks = data.get("racks")
    if not racks:
        return
    waits, least = racks["step_waits_s"], racks["step_waits_least_s"]
    busiest = f"the busiest uplink sends for {format_si(racks['busiest_uplink_s'], 's')} of a step"
    more = (
        f"{format_si(racks['rank_order_s'], 's')} in rank order, no placement below {format_si(racks['bound_s'], 's')}"
    )
    told = f"the step waits {format_si(waits, 's')} for it" if waits else "the step does not wait for it"
    least_told = f", and {format_si(least, 's')} at least wherever its nodes stand" if waits else ""
    about = ("racks", "rack_of_node", "placement", "step", "step_time_s", "uplink")
    yield Fact("limit", f"{busiest} ({more}): {told}{least_told}", about, figures={"waits_s": waits})


def _orders(data: dict[str, Any]) -> Iterator[Fact]:
    """What the order of samples, and degrees by document, are worth."""
    order = data.get("sample_order")
    if order:
        span, dealt, least = (format_si(order[name], "s") for name in ("span_s", "dealt_s", "bound_s"))
        what = (
            f"samples in the stated order keep the pipeline for {span}: {dealt} dealt in turn, no order below {least}"
        )
        yield Fact("time", what, ("sample_order", "ordered_step_time_s", "samples"))
    degrees = data.get("sequence_degrees")
    if degrees:
        names = ("span_s", "packed_s", "free_s", "bound_s")
        span, packed, free, least = (format_si(degrees[name], "s") for name in names)
        what = f"documents on ranks by their length take {span}, packed sequences {packed}"
        what += f"; free degrees came to {free}, and none are below {least}"
        yield Fact("time", what, ("sequence_degrees", "degrees_step_time_s", "documents", "cp", "max_tokens_per_rank"))
    yield from _spread_out(data)


def _spread_out(data: dict[str, Any]) -> Iterator[Fact]:
    """What core attention apart, heads by sparsity and a schedule by modality are worth."""
    apart = data.get("core_attention")
    if apart:
        span, packed, least = (format_si(apart[name], "s") for name in ("span_s", "packed_s", "bound_s"))
        moved = sum(len(row["ranges"]) * row["micro_batches"] for row in apart["batches"])
        size = sum(row["moved_bytes"] * row["micro_batches"] for row in apart["batches"])
        fewest = sum(row["bound_bytes"] * row["micro_batches"] for row in apart["batches"])
        what = f"{moved} ranges of core attention run on other replicas, {format_si(size, 'B')} a layer"
        what += (
            f" ({format_si(fewest, 'B')} at least): passes take {span}, {packed} where all stay, {least} shared evenly"
        )
        yield Fact("time", what, ("core_attention", "core_attention_step_time_s", "documents", "ranges"))
    heads = data.get("sparse_heads")
    if heads:
        names = ("attention_s", "longest_first_s", "dense_s", "bound_s")
        own, rule, dense, least = (format_si(heads[name], "s") for name in names)
        what = (
            f"attention of a layer takes {own} on {heads['head_ranks']} head x {heads['sequence_ranks']} sequence ranks"
        )
        what += (
            f": {rule} with heads longest first, {dense} with every score; no heads and sizes take less than {least}"
        )
        yield Fact("time", what, ("sparse_heads", "sparse_heads_step_time_s", "cp", "head_ranks", "sequence_ranks"))
    order = data.get("modality_schedule")
    if order:
        names = ("span_s", "colocated_s", "in_turn_s", "bound_s")
        own, first, turn, least = (format_si(order[name], "s") for name in names)
        what = f"passes in the stated order take {own}: 1F1B {first} with towers on the first rank"
        what += f", {turn} with them on all; no order of these passes takes less than {least}"
        yield Fact("time", what, ("modality_schedule", "modality_schedule_step_time_s", "samples", "schedule"))


def _modules(data: dict[str, Any]) -> Iterator[Fact]:
    """What each takes of a micro-batch beside the rank that it runs on, then each of its operators, longest first."""
    ranks = data.get("pipeline_ranks") or []
    for module in data.get("modules") or ():
        name = module["name"]
        whole_s = sum(row["forward_s"] + row["backward_s"] for row in module["operators"])
        about = ("modules", name, "step_time_s", "objective", "operators")
        yield Fact("time", _told_of(module, ranks, whole_s), about, figures={"work_s": whole_s})
        rows = sorted(module["operators"], key=lambda row: -(row["forward_s"] + row["backward_s"]))
        for row in rows:
            own_s = row["forward_s"] + row["backward_s"]
            what = f"{row['name']} of the {name}: {format_si(row['forward_s'], 's')} forward"
            what += f", {format_si(row['backward_s'], 's')} backward" if row["backward_s"] else ", no backward pass"
            what += f", {100 * own_s / whole_s:.1f} % of its time"
            yield Fact("time", what, ("modules", name, "operators", row["name"]), figures={"work_s": own_s})
        learnt, size = module["trained_parameters"], module["parameters"]
        what = f"the {name} has {size / 1e6:.4g} million parameters, {learnt / 1e6:.4g} million of which learn"
        what += f"; a rank keeps {format_si(module['activations_bytes'], 'B')} of a micro-batch for its backward pass"
        yield Fact("memory", what, ("modules", name, "memory", "frozen"), figures={"trained_share": learnt / size})


def _told_of(module: dict[str, Any], ranks: list[dict[str, Any]], whole_s: float) -> str:
    """Its time, and its share of the rank that it runs on, which would take as much less for text alone."""
    what = f"the {module['name']} takes {format_si(whole_s, 's')} of a micro-batch"
    if module["place"] != "colocated" or not ranks:
        return f"{what} on {module['tp'] * module['dp']} GPUs of its own"
    rank = ranks[-1] if module["name"] == "generator" else ranks[0]
    held_s = rank["forward_s"] + rank["backward_input_s"] + rank["backward_weight_s"]
    end = "last" if module["name"] == "generator" else "first"
    what += f", {100 * whole_s / held_s:.1f} % of the {format_si(held_s, 's')} of the {end} rank of the pipeline"
    return f"{what}: with text alone that rank takes {format_si(held_s - whole_s, 's')}"


def _groups(data: dict[str, Any]) -> Iterator[Fact]:
    """Which dimension talks over which links."""
    for group in data.get("groups") or ():
        what = f"the {group['size']} ranks of {group['name']} talk over `{group['level']}`"
        what += f", {group['stride']} devices apart" if group["stride"] > 1 else ", side by side"
        yield Fact("limit", what, ("groups", "parallelism", group["name"], "placement"))


def _recomputed(data: dict[str, Any]) -> Iterator[Fact]:
    """How many stages compute anything again."""
    runs = data.get("stage_runs") or ()
    again = sum(run["stages"] for run in runs if run["recompute"]["granularity"] != "none")
    total = sum(run["stages"] for run in runs)
    if not total:
        return
    modules = dict.fromkeys(name for run in runs for name in run["recompute"]["modules"])
    what = (
        "no stage computes anything again: all activations fit" if not again else f"{again} of {total} stages recompute"
    )
    what += f" {', '.join(modules)}" if again and modules else ""
    what += ", for room" if again else ""
    yield Fact("memory", what, ("stage_runs", "recompute", "recompute_rows", "layer_runs", "memory"))


def _measured(envelope: Envelope, data: dict[str, Any], role: Role) -> Iterator[Fact]:
    """How far each degree is from any measured run of its region; these are of all codes."""
    problem = recorded_problem(envelope.inputs)
    arch = None if problem is None else recorded_model(problem, role.model)
    generation = None if problem is None else _generation(problem, role)
    if problem is None or arch is None or generation is None:
        return
    sparse = any(isinstance(layer.ffn, MoeFfn) for layer, _ in arch.layer_groups())
    kind = "lora" if problem.options.get("task") == "lora" else "experts" if sparse else "dense"
    region = region_of(kind, MEGATRON.family, generation)
    runs = f"{region.layouts} measured layouts of {kind} models nearest to {generation}"
    values = {**role.parallelism.model_dump(), "micro_batch": data.get("micro_batch")}
    for degree, words in NAMES.items():
        value = values.get(degree)
        if isinstance(value, int):
            inside = region.holds(degree, value)
            what = f"{words} {value} lies {'near' if inside else 'beyond'} the {region.text(degree)} of {runs}"
            about = (degree, "evidence", "parallelism", role.name)
            yield Fact("evidence", what, about, figures={"inside": float(inside)})


def _generation(problem: Problem, role: Role) -> str | None:
    """Of the GPUs of a role; None where the catalog does not have them."""
    for index, pool in enumerate(problem.cluster.pools):
        if pool.label == role.pool:
            try:
                return machine_of(resolve_pool(pool, index, INPUTS).node).generation
            except PlannerError:
                return None
    return None


def _families(envelope: Envelope, role: Role) -> Iterator[Fact]:
    """What no plan of another tensor-parallel degree is below, from the groups of the search."""
    groups = envelope.certificate.proof.get("groups")
    metric = envelope.certificate.objective.metric
    families: dict[int, float] = {}
    for row in groups if isinstance(groups, list) else ():
        tp, least = (row.get(name) for name in ("tp", "least")) if isinstance(row, dict) else (None, None)
        if isinstance(tp, int) and isinstance(least, (int, float)) and tp != role.parallelism.tp:
            families[tp] = min(families.get(tp, float("inf")), float(least))
    for tp, least in sorted(families.items(), key=lambda family: family[1])[:_MOST_FAMILIES]:
        what = f"no plan with tp {tp} is below {figure(metric, least)}"
        yield Fact("alternative", what, ("objective", "parallelism", "tp"), figures={"least": least})
