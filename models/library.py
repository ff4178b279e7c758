"""Models by name from the catalog, or by path from a config.json."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from planner.documents import load_document
from planner.errors import PlannerError, did_you_mean
from planner.models.architecture import Architecture
from planner.models.layout import architecture_from_data, architecture_to_data, precisions_from_data
from planner.models.precision import with_precision

__all__ = ["CatalogModel", "find_model", "list_models", "load_model", "model_facts", "with_precision"]

_CATALOG = Path(__file__).parent / "catalog"
_INDEX = "names.yaml"
_LIST_HINT = "list them with `planner models list`"


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """One line of the catalog's index: the name of a model, its other names, and the family file that holds it."""

    name: str
    aliases: tuple[str, ...]
    family: str


def find_model(name: str) -> Architecture:
    """The catalog's model called `name`: with or without organisation, by an alias, in any case.

    Raises PlannerError with the nearest names when there is none.
    """
    found = _names().get(name.strip().casefold())
    if found is None:
        known = [model.name for model in list_models()] + [alias for model in list_models() for alias in model.aliases]
        raise PlannerError(f"unknown model `{name}`", hint=did_you_mean(name, known, otherwise=_LIST_HINT))
    return _load(found.name, found.family)


def load_model(path: str | Path) -> Architecture:
    """The model of a config.json, or of a folder that holds one, named after the folder (`org--model` is org/model).

    Raises PlannerError when it cannot be read or lacks a field.
    """
    from planner.models.config_json import architecture_from_config, config_of_checkpoint

    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    config = config_of_checkpoint(file)
    folder = file.resolve().parent.name or "model"
    return architecture_from_config(config, name=folder.replace("--", "/", 1), source=str(path))


def list_models() -> tuple[CatalogModel, ...]:
    """Every model of the catalog, in the order of its index."""
    return _index()


def model_facts(arch: Architecture) -> dict[str, object]:
    """Everything about `arch` that a plan can depend on, as plain data for digests; no path, no free text."""
    return {"name": arch.name, **architecture_to_data(arch, defaults=True)}


@cache
def _index() -> tuple[CatalogModel, ...]:
    data = load_document(_CATALOG / _INDEX).data
    return tuple(
        CatalogModel(name, tuple(aliases or ()), family)
        for family, models in data.items()
        for name, aliases in models.items()
    )


@cache
def _names() -> Mapping[str, CatalogModel]:
    """Every spelling, case-folded; a name without its organisation points at the first model that has it."""
    names: dict[str, CatalogModel] = {}
    for model in _index():
        for spelling in (model.name, *model.aliases):
            names.setdefault(spelling.casefold(), model)
    for model in _index():
        for spelling in (model.name, *model.aliases):
            names.setdefault(spelling.rpartition("/")[2].casefold(), model)
    return names


@cache
def _load(name: str, family: str) -> Architecture:
    entries = _family(family)
    entry = dict(entries[name])
    where = f"{family}.yaml: {name}"
    source = str(entry.pop("source", ""))
    like = entry.pop("like", None)
    if like is None:
        return architecture_from_data(name, entry, where=where, source=source)
    base = _load(str(like), family)
    arch = with_precision(base, _text(entry, "weights"), _text(entry, "kv_cache"))
    if "precisions" in entry:
        arch = replace(arch, precisions=precisions_from_data(arch.precisions, entry.pop("precisions"), where))
    context = entry.pop("max_context_tokens", base.max_context_tokens)
    if entry or not isinstance(context, int):
        unknown = ", ".join(entry) or "max_context_tokens"
        raise PlannerError(f"field `{unknown}` cannot change", where=where, hint="write the whole entry out")
    return replace(arch, name=name, source=source, max_context_tokens=context)


def _text(entry: dict[str, object], key: str) -> str | None:
    value = entry.pop(key, None)
    return None if value is None else str(value)


@cache
def _family(family: str) -> Mapping[str, Mapping[str, object]]:
    data: Mapping[str, Mapping[str, object]] = load_document(_CATALOG / f"{family}.yaml").data
    return data
