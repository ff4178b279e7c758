"""Facts on towers and generators of training plans: what each adds to the language model, operator by operator."""

from collections.abc import Iterator
from typing import Any

from planner.documents.units import format_si
from planner.explain.facts import Fact


def module_facts(data: dict[str, Any]) -> Iterator[Fact]:
    """What each takes of a micro-batch beside the rank that it runs on, then each of its operators, longest first."""
    ranks = data.get("pipeline_ranks") or []
    for module in data.get("modules") or ():
        name = module["name"]
        whole_s = sum(row["forward_s"] + row["backward_s"] for row in module["operators"])
        about = ("modules", name, "step_time_s", "objective", "operators")
        yield Fact("time", _told(module, ranks, whole_s), about, figures={"work_s": whole_s})
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


def _told(module: dict[str, Any], ranks: list[dict[str, Any]], whole_s: float) -> str:
    """Its time, and its share of the rank that it runs on, which would take as much less for text alone."""
    what = f"the {module['name']} takes {format_si(whole_s, 's')} of a micro-batch"
    if module["place"] != "colocated" or not ranks:
        return f"{what} on {module['tp'] * module['dp']} GPUs of its own"
    rank = ranks[-1] if module["name"] == "generator" else ranks[0]
    held_s = rank["forward_s"] + rank["backward_input_s"] + rank["backward_weight_s"]
    end = "last" if module["name"] == "generator" else "first"
    what += f", {100 * whole_s / held_s:.1f} % of the {format_si(held_s, 's')} of the {end} rank of the pipeline"
    return f"{what}: with text alone that rank takes {format_si(held_s - whole_s, 's')}"
