"""Which quantisation an engine must be told: none where the checkpoint already is in the planned format."""

from planner.errors import PlannerError
from planner.problem.schema import ModelSpec

_FAMILIES = {"fp8_block": "fp8", "fp16": "bf16"}
"""Formats that differ in their scales only; which of them a quantised checkpoint holds is the checkpoint's matter."""


def load_quantisation(model: ModelSpec, methods: dict[str, str], engine: str, where: str) -> str | None:
    """The engine's name for quantising `model` while loading it, or None when nothing is to be said.

    `methods` maps the weight formats that the engine can make from a bf16 checkpoint to its names for them. Raises
    PlannerError for a format that only a checkpoint can bring.
    """
    if model.weights is None or model.weights in ("bf16", "fp16"):
        return None
    held = checkpoint_formats(model)
    if _family(model.weights) in {_family(precision) for precision in held}:
        return None
    if model.weights in methods:
        return methods[model.weights]
    able = ", ".join(f"`{name}`" for name in methods)
    raise PlannerError(
        f"{engine} cannot turn `{model.name or model.config}` into {model.weights} while loading it",
        where=where,
        hint=f"name a checkpoint published in {model.weights}, or plan with weights {able}",
    )


def checkpoint_formats(model: ModelSpec) -> frozenset[str]:
    """The weight formats inside the published checkpoint; empty where the model library does not know it."""
    from planner.models.library import find_model

    if model.name is None:
        return frozenset()
    try:
        precisions = find_model(model.name).precisions
    except PlannerError:
        return frozenset()
    return frozenset((precisions.attention, precisions.ffn, precisions.experts))


def _family(precision: str) -> str:
    return _FAMILIES.get(precision, precision)
