"""Models of the catalog by the sizes that a training script states."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from planner.errors import PlannerError
from planner.models.architecture import Architecture, GroupedQueryAttention, LatentAttention
from planner.models.library import find_model, list_models


def model_entry(stated: object, given: str | None) -> dict[str, Any]:
    """An entry of a problem's `models`: the user's name or path, the artifact's name, or the one model of its sizes.

    Raises PlannerError where the sizes are of no model of the catalog, or nothing is said.
    """
    if given is not None:
        return {"config": given} if Path(given).exists() else {"name": given}
    if isinstance(stated, str):
        return {"name": stated}
    if isinstance(stated, Mapping) and all(isinstance(stated.get(key), int) for key in ("layers", "hidden", "heads")):
        names = models_of_sizes(stated["layers"], stated["hidden"], stated["heads"])
        if names:
            return {"name": names[0]}
        sizes = f"{stated['layers']} layers, hidden {stated['hidden']}, {stated['heads']} heads"
        raise PlannerError(
            f"no model of the catalog has {sizes}", where="model", hint="write `--model PATH` of its config.json"
        )
    raise PlannerError("the artifact does not say which model it is", where="model", hint="write `--model NAME`")


def models_of_sizes(layers: int, hidden: int, heads: int) -> list[str]:
    """The models of the catalog that have these sizes: those of text alone first, then in its order."""
    models = [find_model(entry.name) for entry in list_models() if not entry.name.startswith("nvidia/")]
    alike = [arch for arch in models if _sizes(arch) == (layers, hidden, heads)]
    return [arch.name for arch in sorted(alike, key=lambda arch: bool(arch.parts_beside(sized=True)))]


def _sizes(arch: Architecture) -> tuple[int, int, int]:
    heads = (
        layer.mixer.num_heads
        for layer in arch.layers
        if isinstance(layer.mixer, GroupedQueryAttention | LatentAttention)
    )
    return arch.num_layers, arch.hidden_size, next(heads, 0)
