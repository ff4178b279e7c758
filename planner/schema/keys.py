"""Validates data by a schema, and lists its keys at every place for hints about unknown ones."""

import types
from collections import deque
from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import ValidationError

from planner.schema.base import Path, Spec, field_names, planner_error

S = TypeVar("S", bound=Spec)


def validated(spec: type[S], data: object, where: Callable[[Path], str]) -> S:
    """`data` as `spec`; raises PlannerError for the first mistake, at the place that `where` makes of its path."""
    try:
        return spec.model_validate(data)
    except ValidationError as error:
        shorts = short_names(spec)
        known = known_keys(spec, data)
        raise planner_error(error, lambda path: where(written_path(path, data, shorts)), known, keyed(spec)) from None


def written_path(path: Path, data: object, short_names: Mapping[str, Collection[str]]) -> Path:
    """A path of fields under the names that `data` gives its keys, as far as it goes: SI names under the short ones."""
    here, names = data, list[str | int]()
    for position, key in enumerate(path):
        if not isinstance(here, (dict, list)):
            return (*names, *(rest for rest in path[position:] if rest != "p95_s"))  # `ttft: 200ms` is its p95
        name = key
        if isinstance(here, dict) and key not in here:
            name = next((s for s, fields in short_names.items() if key in fields and s in here), key)
        names.append(name)
        here = _part(here, name)
    return tuple(names)


def _part(here: Any, key: str | int) -> Any:  # noqa: ANN401 - a document holds whatever was written
    """What stands under `key`; None where nothing does."""
    try:
        return here[key]
    except (KeyError, IndexError, TypeError):
        return None


def known_keys(spec: type[Spec], data: object) -> dict[Path, list[str]]:
    """The keys that may be written at every mapping of `data`, by its path; of all forms where it takes several."""
    known: dict[Path, list[str]] = {}
    waiting: list[tuple[Path, object, object]] = [((), spec, data)]
    while waiting:
        path, wanted, given = waiting.pop()
        for form in forms_of(wanted):
            if isinstance(form, type) and issubclass(form, Spec) and isinstance(given, dict):
                known[path] = sorted({*known.get(path, []), *written_names(form)})
                fields = {field.alias or name: field.annotation for name, field in form.model_fields.items()}
                waiting += [((*path, key), fields[key], value) for key, value in given.items() if key in fields]
            elif get_origin(form) is dict and isinstance(given, dict):
                waiting += [((*path, key), get_args(form)[1], value) for key, value in given.items()]
            elif get_origin(form) in (tuple, list) and isinstance(given, list):
                waiting += [((*path, index), get_args(form)[0], value) for index, value in enumerate(given)]
    return known


@cache
def written_names(spec: type[Spec]) -> list[str]:
    """Every key that may be written into `spec`: short names with units, SI names, aliases in place of their fields."""
    aliases = {name: field.alias for name, field in spec.model_fields.items() if field.alias}
    return sorted({aliases.get(name, name) for name in field_names(spec)})


@cache
def keyed(spec: type[Spec]) -> dict[str, list[Path]]:
    """By key: the mappings of a document of this schema that it may be written into, nearest the root first.

    Entries of lists and mappings stand as `[]` in a path; a schema within itself is not entered again.
    """
    places: dict[str, list[Path]] = {}
    waiting: deque[tuple[Path, object, frozenset[type[Spec]]]] = deque([((), spec, frozenset())])
    while waiting:
        path, wanted, outer = waiting.popleft()
        for form in forms_of(wanted):
            if isinstance(form, type) and issubclass(form, Spec) and form not in outer:
                for name in written_names(form):
                    places.setdefault(name, []).append(path)
                fields = ((field.alias or name, field.annotation) for name, field in form.model_fields.items())
                waiting += [((*path, key), annotation, outer | {form}) for key, annotation in fields]
            elif get_origin(form) in (dict, tuple, list):
                entry = get_args(form)[1 if get_origin(form) is dict else 0]
                waiting.append(((*path, "[]"), entry, outer))
    return places


@cache
def short_names(spec: type[Spec]) -> dict[str, set[str]]:
    """The fields that each short name stands for, in `spec` and in everything below it."""
    shorts: dict[str, set[str]] = {}
    seen: set[type[Spec]] = set()
    waiting: list[object] = [spec]
    while waiting:
        form = waiting.pop()
        if isinstance(form, type) and issubclass(form, Spec) and form not in seen:
            seen.add(form)
            for short, (field, _) in form.quantities.items():
                shorts.setdefault(short, set()).add(field)
            waiting += [annotation for field in form.model_fields.values() for annotation in forms_of(field.annotation)]
        elif get_origin(form) in (dict, tuple, list):
            waiting += [inner for argument in get_args(form) for inner in forms_of(argument)]
    return shorts


def forms_of(annotation: object) -> list[Any]:
    """The members of a union, with `Annotated` taken off; anything else alone."""
    if get_origin(annotation) is Annotated:
        return forms_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return [form for member in get_args(annotation) for form in forms_of(member)]
    return [annotation]
