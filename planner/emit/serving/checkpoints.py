"""Checkpoint flags of a serving engine: the published model name, and quantisation where needed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from planner.emit.model_paths import FLAG
from planner.engines.formats import as_stored, made_while_loading, stored_formats
from planner.errors import PlannerError
from planner.problem.schema import ModelSpec

if TYPE_CHECKING:
    from planner.engines.handover import CacheTraits
    from planner.models.architecture import Architecture


def written_name(model: ModelSpec) -> str:
    """The model's name as the problem has it; that of its folder where it came from a config.json."""
    return str(model.config) if model.name is None else model.name


def published_name(model: ModelSpec) -> str:
    """The name that engines download by: as written, the organisation added where the catalog knows it.

    Aliases of one architecture may be different checkpoints, so a full name is never replaced by its catalog entry, and
    the folder of a config.json is no catalog name.
    """
    from planner.models.library import list_models

    name = written_name(model)
    if "/" in name or model.name is None:
        return name
    entries = list_models()
    spellings = [spelling for entry in entries for spelling in (entry.name, *entry.aliases) if "/" in spelling]
    for spelling in spellings:
        if spelling.split("/", 1)[1].casefold() == name.casefold():
            return spelling
    by_alias = {alias.casefold(): entry.name for entry in entries for alias in entry.aliases}
    return by_alias.get(name.casefold(), name)


def loaded_name(model: ModelSpec) -> str:
    """What engines load the model by: its published name, or a path.

    Raises PlannerError for one of a config.json whose folder has the name of no repository.
    """
    name = published_name(model)
    if model.name is None and "/" not in name:
        raise PlannerError(
            f"engines cannot load `{name}`: it is the folder of a config.json and no repository, and plans carry no "
            "paths",
            where="inputs.models",
            hint=f"say where its weights lie on every node: `{FLAG} PATH`",
        )
    return name


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
    from planner.models.library import find_model, model_of_config

    try:
        if model.name is not None:
            return find_model(model.name)
        return None if model.contents is None else model_of_config(str(model.config), model.contents)
    except PlannerError:
        return None
