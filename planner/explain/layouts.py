"""Facts on expert layouts and on placements of models: what is balanced, what is scarce, who waits longest."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from planner.documents.units import figure, format_si
from planner.explain.facts import Fact
from planner.plan.schema import Decision, Envelope

_SHOWN = 3  # layers, experts or models that are named


def layout_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """Of expert layouts: before and after, the layers that bind, copies, and what moved. Nothing of other kinds."""
    if envelope.kind != "experts":
        return
    data: dict[str, Any] = decision.model_dump(mode="json")
    before = next(
        (other["objective"] for other in _others(envelope) if isinstance(other.get("objective"), float)), None
    )
    value = envelope.certificate.objective.value
    if before is not None and value is not None:
        what = f"imbalance {before:.4f} with experts in order, as engines start, and {value:.4f} with this layout"
        yield Fact("worth", what, ("layouts", "objective", "imbalance", "slots_per_rank"), figures={"before": before})
    yield from _layers(envelope)
    yield from _copies(data)
    moved = format_si(data["moved_bytes"], "B")
    what = f"policy {data['policy']}: {moved} of weights move to come to this layout"
    about: tuple[str, ...] = ("policy", "moved_bytes", "interval_s", "home_slots_per_rank")
    yield Fact("limit", what, about, figures={"moved_bytes": data["moved_bytes"]})
    of_model = f"{data['num_layers']} layers of {data['num_experts']} experts"
    about = ("num_experts", "num_layers", "layer_ids", "mtp_layer_ids", "num_model_layers", "layouts")
    among = f", of {data['num_model_layers']} layers of the model" if data["num_model_layers"] else ""
    yield Fact("limit", of_model + among, about)


def _others(envelope: Envelope) -> list[dict[str, Any]]:
    others = envelope.certificate.next_best
    return [other for other in others if isinstance(other, dict)] if isinstance(others, list) else []


def _layers(envelope: Envelope) -> Iterator[Fact]:
    """The layers that are balanced least, beside what none can be below."""
    proof = envelope.certificate.proof
    reached, bounds = proof.get("imbalance_by_layer"), proof.get("bound_by_layer")
    if not isinstance(reached, list) or not isinstance(bounds, list) or len(reached) != len(bounds):
        return
    rows = [
        (float(str(value)), float(str(bound)), layer)
        for layer, (value, bound) in enumerate(zip(reached, bounds, strict=True))
    ]
    for value, bound, layer in sorted(rows, reverse=True)[:_SHOWN]:
        what = f"layer {layer} of those with experts: imbalance {value:.4f}, no layout of its slots below {bound:.4f}"
        yield Fact("binding", what, ("imbalance", "objective", "layouts"), figures={"imbalance": value, "bound": bound})


def _copies(data: dict[str, Any]) -> Iterator[Fact]:
    """How many slots hold copies, and the most that one expert has."""
    layouts = data.get("layouts") or ()
    if not layouts:
        return
    counts = [Counter(layout["expert_of_slot"]) for layout in layouts]
    most = max(max(count.values()) for count in counts)
    spare = len(layouts[0]["expert_of_slot"]) - data["num_experts"]
    what = f"{spare} slots a layer hold second copies; an expert has {most} at most"
    mean = float(np.mean([sum(count > 1 for count in row.values()) for row in counts]))
    what += f", {mean:.3g} experts of a layer have more than one"
    yield Fact("memory", what, ("slots_per_rank", "layouts", "memory"), figures={"most_copies": float(most)})


def placement_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """Of placements: where each model lives, and who keeps its limits least; slices, stages. Nothing of other kinds."""
    if envelope.kind != "place":
        return
    data: dict[str, Any] = decision.model_dump(mode="json")
    yield from _hosts(envelope, data)
    for entry in data.get("slices") or ():
        what = f"{entry['slices']} slices of `{entry['bucket']}` go to `{entry['to']}`"
        yield Fact("limit", what, ("slices", entry["to"], entry["bucket"]))
    for route in data.get("routing") or ():
        start = f"from `{route['source']}`" if route.get("source") else "from the front door"
        what = f"{100 * route['share']:.3g} % of `{route['workload']}` goes {start} to `{route['to']}`"
        yield Fact("limit", what, ("routing", route["to"], route["workload"]), figures={"share": route["share"]})


def _hosts(envelope: Envelope, data: dict[str, Any]) -> Iterator[Fact]:
    shares = {row.of: row.value for row in envelope.predictions if row.metric == "attainment" and row.of}
    hosts = data.get("hosts") or ()
    by_model: dict[str, list[dict[str, Any]]] = {}
    for host in hosts:
        by_model.setdefault(host["model"], []).append(host)
    for model, rows in by_model.items():
        groups = sorted({host["group"] for host in rows})
        weights = format_si(rows[0]["weights_bytes"], "B")
        homes = f"{len(groups)} group{'s' if len(groups) > 1 else ''}"
        what = f"`{model}` lives on {homes}, {weights} of weights on a device"
        yield Fact("memory", what, ("hosts", model, "memory", *groups), figures={"groups": float(len(groups))})
    for of, share in sorted(shares.items(), key=lambda row: row[1])[:_SHOWN]:
        what = f"{figure('attainment', 100 * share)} % of the requests of `{of}` are on time"
        yield Fact("binding", what, ("attainment", "objective", of, "hosts"), figures={"attainment": share})
