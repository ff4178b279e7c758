"""Parses one entry of a model file: written out, or `like` another with changes; errors name the line."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from planner.documents.read import Document, Key
from planner.errors import PlannerError
from planner.models.architecture import Architecture
from planner.models.layout import architecture_from_data, precisions_from_data
from planner.models.precision import with_precision

_STEP = re.compile(r"\.?([^.\[\]]+)|\[(\d+)\]")
_PLACE = "entry"

FindModel = Callable[[str], Architecture]
"""Gives the model that an entry is `like`; raises PlannerError when there is none."""


def entry_from_data(name: str, data: Mapping[str, object], find: FindModel, *, where: str) -> Architecture:
    """The model that an entry describes. Raises PlannerError naming `where` and the dotted path inside the entry."""
    entry = {key: value for key, value in data.items() if key != "aliases"}
    source = str(entry.pop("source", ""))
    like = entry.pop("like", None)
    if like is None:
        return architecture_from_data(name, entry, where=where, source=source)
    base = find(str(like))
    arch = with_precision(base, _text(entry, "weights"), _text(entry, "kv_cache"))
    if "precisions" in entry:
        arch = replace(arch, precisions=precisions_from_data(arch.precisions, entry.pop("precisions"), where))
    context = entry.pop("max_context_tokens", base.max_context_tokens)
    if entry or not isinstance(context, int):
        unknown = ", ".join(entry) or "max_context_tokens"
        raise PlannerError(f"field `{unknown}` cannot change", where=where, hint="write the whole entry out")
    return replace(arch, name=name, source=source, max_context_tokens=context)


def entry_of_document(document: Document, name: str, find: FindModel) -> Architecture:
    """The model called `name` in a user's file. Raises PlannerError with file and line."""
    data = document.data[name]
    if not isinstance(data, dict):
        what, hint = f"`{name}` must be a mapping, found {data!r}", "write the entry as `key: value` lines below it"
        raise PlannerError(what, where=document.where((name,)), hint=hint)
    try:
        return entry_from_data(name, data, find, where=_PLACE)
    except PlannerError as error:
        inside = error.where.removeprefix(_PLACE)
        path = (name, *_keys(inside))
        raise PlannerError(f"`{name}{inside}`: {error.what}", where=document.where(path), hint=error.hint) from None


def aliases_of(document: Document, name: str) -> tuple[str, ...]:
    """The other names that an entry of a user's file states. Raises PlannerError with file and line."""
    data = document.data[name]
    stated = data.get("aliases", []) if isinstance(data, dict) else []
    if not isinstance(stated, list) or not all(isinstance(alias, str) and alias.strip() for alias in stated):
        raise PlannerError(
            f"`{name}.aliases` must be a list of names, found {stated!r}",
            where=document.where((name, "aliases")),
            hint="write `[first, second]`",
        )
    return tuple(stated)


def _keys(dotted: str) -> tuple[Key, ...]:
    """The steps of a path such as `.layers[3].of`."""
    return tuple(key if key else int(index) for key, index in _STEP.findall(dotted))


def _text(entry: dict[str, object], key: str) -> str | None:
    value = entry.pop(key, None)
    return None if value is None else str(value)
