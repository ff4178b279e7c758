"""Looks models up by name in the catalog and the user's files, or by path of a config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from planner.documents.read import Document, load_document
from planner.documents.user_catalog import MODELS, Stamp, catalog_stamps
from planner.errors import PlannerError, did_you_mean, unknown_name
from planner.models.architecture import Architecture
from planner.models.entries import aliases_of, entry_from_data, entry_of_document
from planner.models.layout import architecture_to_data
from planner.models.precision import with_precision

__all__ = [
    "CatalogModel",
    "find_model",
    "list_models",
    "load_model",
    "load_user_model",
    "model_facts",
    "model_of_config",
    "read_checkpoint",
    "read_user_models",
    "with_precision",
]

_CATALOG = Path(__file__).parent / "catalog"
_INDEX = "names.yaml"
_LIST_HINT = "list them with `planner models list`"


@dataclass(frozen=True, slots=True)
class CatalogModel:
    """The name of a model, its other names, and the family that holds it: a file of the catalog or of the user."""

    name: str
    aliases: tuple[str, ...]
    family: str
    users_own: bool = False


@dataclass(frozen=True, slots=True)
class UserModels:
    """The entries of users' files by name, and the document each stands in; later files win."""

    models: Mapping[str, CatalogModel]
    documents: Mapping[str, Document]


def find_model(name: str) -> Architecture:
    """The model called `name`: with or without organisation, by an alias, in any case; the user's own go first.

    Raises PlannerError with the nearest names when there is none.
    """
    user = _user_models(catalog_stamps(MODELS))
    spelling = name.strip().casefold()
    own = _spellings(tuple(user.models.values())).get(spelling)
    if own is not None:
        return load_user_model(own.name, user)
    entry = _names().get(spelling)
    if entry is None:
        listed = list_models()
        known = [model.name for model in listed] + [alias for model in listed for alias in model.aliases]
        raise unknown_name("model", name, known, otherwise=_LIST_HINT)
    return _load(entry.name, entry.family)


def load_model(path: str | Path) -> Architecture:
    """The model of a config.json, or of a folder that holds one, named after the folder (`org--model` is org/model).

    Raises PlannerError when it cannot be read or lacks a field.
    """
    name, contents = read_checkpoint(path)
    return _described(json.dumps(contents), name, str(path))


def read_checkpoint(path: str | Path) -> tuple[str, dict[str, Any]]:
    """What the model of a config.json is called, and what the file says; raises PlannerError as `load_model`."""
    from planner.models.config_json import config_of_checkpoint

    file = Path(path)
    if file.is_dir():
        file = file / "config.json"
    contents = config_of_checkpoint(file)
    return name_of_config(file), contents


def model_of_config(name: str, contents: Mapping[str, Any]) -> Architecture:
    """The model that a config.json with these contents describes; raises PlannerError for a field that it lacks."""
    return _described(json.dumps(contents), name, name)


@lru_cache(maxsize=64)
def _described(config: str, name: str, source: str) -> Architecture:
    """The model of the text of a config; kept: solve, check and emit each read it, and formats of layers take long."""
    from planner.models.config_json import architecture_from_config

    return architecture_from_config(json.loads(config), name=name, source=source)


def name_of_config(file: Path) -> str:
    """What the model of a config.json is called: as its folder, whose `org--model` is org/model."""
    return (file.resolve().parent.name or "model").replace("--", "/", 1)


def list_models() -> tuple[CatalogModel, ...]:
    """Every model, in the order of the catalog, the user's own last; theirs replace those of the same name."""
    own = _user_models(catalog_stamps(MODELS)).models
    return (*(model for model in _index() if model.name not in own), *own.values())


def model_facts(arch: Architecture) -> dict[str, object]:
    """Everything about `arch` that a plan can depend on, as plain data for digests; no path, no free text."""
    return {"name": arch.name, **architecture_to_data(arch, defaults=True)}


def read_user_models(documents: list[Document]) -> UserModels:
    """The entries of users' files. Raises PlannerError for a file that is no mapping of entries, and for bad names."""
    models: dict[str, CatalogModel] = {}
    origins: dict[str, Document] = {}
    for document in documents:
        if not isinstance(document.data, dict):
            raise PlannerError(
                "must map names to models",
                where=document.where(),
                hint="write `organisation/model:` and the entry below it",
            )
        for name in document.data:
            models[name] = CatalogModel(name, aliases_of(document, name), Path(document.source).stem, users_own=True)
            origins[name] = document
    return UserModels(models, origins)


def load_user_model(name: str, user: UserModels) -> Architecture:
    """The model called `name` of users' files, which may be `like` another of theirs or of the catalog.

    Raises PlannerError with file and line.
    """
    return _own(name, user, ())


@lru_cache(maxsize=4)
def _user_models(stamps: tuple[Stamp, ...]) -> UserModels:
    return read_user_models([load_document(path) for path, _, _ in stamps])


def _own(name: str, user: UserModels, above: tuple[str, ...]) -> Architecture:
    def find(other: str) -> Architecture:
        if other in above or other == name:
            raise PlannerError(f"is like `{other}`, which is like itself", hint="write one of them out")
        return _own(other, user, (*above, name)) if other in user.models else _catalog_model(other)

    return entry_of_document(user.documents[name], name, find)


def _catalog_model(name: str) -> Architecture:
    entry = _names().get(name.strip().casefold())
    if entry is None:
        known = [model.name for model in _index()]
        raise PlannerError(f"is like the unknown model `{name}`", hint=did_you_mean(name, known, otherwise=_LIST_HINT))
    return _load(entry.name, entry.family)


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
    return _spellings(_index())


def _spellings(models: tuple[CatalogModel, ...]) -> Mapping[str, CatalogModel]:
    """Every spelling, case-folded; a name without its organisation points at the first model that has it."""
    names: dict[str, CatalogModel] = {}
    for model in models:
        for spelling in (model.name, *model.aliases):
            names.setdefault(spelling.casefold(), model)
    for model in models:
        for spelling in (model.name, *model.aliases):
            names.setdefault(spelling.rpartition("/")[2].casefold(), model)
    return names


@cache
def _load(name: str, family: str) -> Architecture:
    return entry_from_data(
        name, _family(family)[name], lambda base: _load(base, family), where=f"{family}.yaml: {name}"
    )


@cache
def _family(family: str) -> Mapping[str, Mapping[str, object]]:
    data: Mapping[str, Mapping[str, object]] = load_document(_CATALOG / f"{family}.yaml").data
    return data
