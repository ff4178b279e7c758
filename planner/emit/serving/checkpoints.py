"""Checkpoint flags of a serving engine: the published model name, and quantisation where needed."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from planner.engines.formats import as_stored, made_while_loading, stored_formats
from planner.errors import PlannerError
from planner.problem.schema import ModelSpec

if TYPE_CHECKING:
    from planner.engines.handover import CacheTraits
    from planner.models.architecture import Architecture


def written_name(model: ModelSpec) -> str:
    """The model's name as the problem has it; that of its folder where it came from a config.json."""
    from planner.models.library import name_of_config

    if model.name is not None:
        return model.name
    located = Path(str(model.config))
    return name_of_config(located) if located.is_absolute() else str(model.config)


def published_name(model: ModelSpec) -> str:
    """The name that engines download by: as written, the organisation added where the catalog knows it.

    Aliases of one architecture may be different checkpoints, so a full name is never replaced by its catalog entry.
    """
    from planner.models.library import list_models

    name = written_name(model)
    if "/" in name:
        return name
    entries = list_models()
    spellings = [spelling for entry in entries for spelling in (entry.name, *entry.aliases) if "/" in spelling]
    for spelling in spellings:
        if spelling.split("/", 1)[1].casefold() == name.casefold():
            return spelling
    by_alias = {alias.casefold(): entry.name for entry in entries for alias in entry.aliases}
    return by_alias.get(name.casefold(), name)


def load_quantisation(model: ModelSpec, methods: Mapping[str, str], engine: str, where: str) -> str | None:
    """The engine's name for quantising `model` while loading it, or None when nothing is to be said.

    `methods` maps the weight formats that the engine can make from a bf16 checkpoint to its names for them. Raises
    PlannerError for a format that only another checkpoint can bring.
    """
    if model.weights is None:
        return None
    architecture = _architecture(model)
    stored = frozenset[str]() if architecture is None else stored_formats(architecture)
    if as_stored(model.weights, stored):
        return None
    if made_while_loading(model.weights, stored, methods):
        return methods[model.weights]
    able = ", ".join(f"`{name}`" for name in methods)
    raise PlannerError(
        f"{engine} cannot turn the checkpoint `{written_name(model)}` into {model.weights} while loading it",
        where=where,
        hint=f"name a checkpoint published in {model.weights}"
        + (f"; of bf16 ones {engine} makes {able}" if able else ""),
    )


def cache_traits(model: ModelSpec) -> "CacheTraits":
    """What decides how the model's cache can be moved; of one that the model library does not know, as of any."""
    from planner.engines.handover import CacheTraits

    architecture = _architecture(model)
    return CacheTraits(None, False, False, False) if architecture is None else CacheTraits.of(architecture)


def _architecture(model: ModelSpec) -> "Architecture | None":
    from planner.models.library import find_model

    if model.name is None:
        return None
    try:
        return find_model(model.name)
    except PlannerError:
        return None
