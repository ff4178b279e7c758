"""Plans of expert layouts back in the format of layout benchmarks: `phy2log` and, of free shares, `quota`."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from planner.documents.files import write_bytes_atomic
from planner.errors import PlannerError
from planner.experts.instance import ExpertsInstance, ExpertsPlacement, placement_of
from planner.experts.layout import Layout
from planner.kinds.experts.decision import ExpertsDecision
from planner.kinds.experts.restate import slots_of, stated_bounds
from planner.plan.schema import Decision, Envelope
from planner.solvers.result import Status

FILE = "placement.json"
CLOSED = 1.0 + 1e-9  # of a bound


def placement_of_plan(envelope: Envelope, instance: ExpertsInstance) -> ExpertsPlacement:
    """The layouts of a plan in the axes of its instance, with its figures by layer and what follows from both.

    Raises PlannerError for a plan that proves nothing, and so states no figures by layer.
    """
    decision = ExpertsDecision.model_validate(envelope.decision)
    expert_NP, share_NP = slots_of(decision)
    proof = envelope.certificate.proof
    imbalance_N = np.array(stated_bounds(proof, "imbalance_by_layer"))
    bound_N = np.array(stated_bounds(proof))
    closed = instance.kind != "affinity" and bool((imbalance_N <= bound_N * CLOSED).all())
    layout = Layout(
        expert_NP,
        share_NP if decision.layouts[0].quota is not None else None,
        imbalance_N,
        bound_N,
        Status.OPTIMAL if closed else Status.FEASIBLE,
        _moved(envelope, decision, instance),
    )
    return placement_of(instance, layout)


def _moved(envelope: Envelope, decision: ExpertsDecision, instance: ExpertsInstance) -> int | None:
    """Copies sent from the layout that runs; None where the problem names none."""
    options = envelope.inputs.get("options")
    if not isinstance(options, dict) or options.get("resident") is None:
        return None
    return round(decision.moved_bytes / instance.expert_bytes) if instance.expert_bytes > 0 else 0


def placement_files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """`placement.json`: experts by layer (and window, and micro-batch) and slot, as scorers of layouts read them.

    Raises PlannerError where the plan has its layout in a side file.
    """
    assert isinstance(decision, ExpertsDecision)
    if not decision.layouts:
        raise PlannerError(
            "the layout is in a side file", where="decision.layouts", hint="emit a plan with its layouts inline"
        )
    expert_NP, share_NP = slots_of(decision)
    shape = (decision.num_windows, decision.num_layers, expert_NP.shape[1])[decision.num_windows == 1 :]
    placement = {"phy2log": expert_NP.reshape(shape).tolist()}
    if decision.layouts[0].quota is not None:
        placement["quota"] = share_NP.reshape(shape).tolist()
    return {FILE: json.dumps(placement) + "\n"}


def write_placement(placement: ExpertsPlacement, path: str | Path) -> None:
    """`phy2log` (int32) and, where shares are free, `quota` as compressed `.npz`, whole or not at all."""
    arrays: dict[str, npt.NDArray[Any]] = {"phy2log": placement.expert_P.astype(np.int32)}
    if placement.quota_P is not None:
        arrays["quota"] = placement.quota_P
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # the stub takes keywords for the flag
    write_bytes_atomic(path, buffer.getvalue())
