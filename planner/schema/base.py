"""The pydantic base class of everything users write: strict, frozen, quantities with units.

A field such as `ttft_s` is written by people as `ttft: 200ms` (a string with its unit) and by programs as
`ttft_s: 0.2` (an SI number). A bare number under the short name is refused, since its unit would be a guess.
"""

import re
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path as Folder
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from planner.documents.units import example_of, parse_quantity
from planner.errors import PlannerError, UnknownKeyError, did_you_mean
from planner.schema.errors import describe, pick
from planner.schema.meanings import meaning_of

Path = tuple[str | int, ...]

_LABEL = re.compile(r"constrained-\w+|\[key\]|(?:function-\w+|tuple|list|dict|literal|nullable|union)\[.*\]")


class Spec(BaseModel):
    """Base of all schemas; `quantities` maps the short name people write to (field, unit table)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {}
    paths: ClassVar[tuple[str, ...]] = ()  # fields of a kind's options that name files beside the problem

    @classmethod
    def located(cls, options: dict[str, Any], base: Folder) -> dict[str, Any]:
        """The options of a problem whose file lies in the folder `base`, with what they name found from anywhere."""
        return {**options, **{name: str(base / str(options[name])) for name in cls.paths if options.get(name)}}

    @model_validator(mode="before")
    @classmethod
    def parse_quantities(cls, data: Any) -> Any:  # noqa: ANN401 - pydantic hands over whatever was written
        if not isinstance(data, dict) or not cls.quantities:
            return data
        parsed = dict(data)
        for short, (field, units) in cls.quantities.items():
            if short in parsed:
                if short != field and field in parsed:
                    raise _at(short, f"`{short}` and `{field}` are both given", f"keep one of `{short}` and `{field}`")
                parsed[field] = _parse(parsed.pop(short), units, short)
        return parsed

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        required = set(schema.get("required", []))
        for short, (field, units) in cls.quantities.items():
            unit_names = ", ".join(unit for unit in units if unit)
            described = f"{field} with its unit, one of {unit_names}"
            written: JsonSchemaValue = {"type": "string", "description": described}
            schema["properties"][short] = (
                written if short != field else {"anyOf": [written, schema["properties"][field]]}
            )
            if short != field and field in required:
                required.discard(field)
                schema.setdefault("allOf", []).append({"anyOf": [{"required": [short]}, {"required": [field]}]})
        for name, about in cls.model_fields.items():
            said = meaning_of(cls, name)
            if said:
                schema["properties"][about.alias or name].setdefault("description", said)
        if "required" in schema:
            schema["required"] = sorted(required)
        return schema


def _parse(value: object, units: dict[str, float], key: str) -> float | None:
    if value is None:
        return None
    try:
        return parse_quantity(value, units, key=key)
    except PlannerError as error:
        raise _at(key, error.what, error.hint) from None


def _at(key: str | Path, what: str, hint: str) -> PydanticCustomError:
    path = key if isinstance(key, tuple) else (key,) if key else ()
    return PydanticCustomError("planner", "{what}", {"what": what, "hint": hint, "key": path})


def refuse(what: str, hint: str, key: str | Path = "") -> PydanticCustomError:
    """An error to raise from a validator, with its hint and the key below the validated model that it is about.

    A key of a key is a tuple of both.
    """
    return _at(key, what, hint)


def planner_error(
    error: ValidationError,
    where: Callable[[Path], str],
    known: dict[Path, list[str]] | None = None,
    keyed: dict[str, list[Path]] | None = None,
) -> PlannerError:
    """The first validation error as one PlannerError with place and fix; `where` makes a path `file:line: path`.

    Hints about unknown keys come from those `known` at each path, and from the mappings that each key is `keyed` in.
    """
    specs = _spec_names()
    chosen = pick(error.errors(include_url=False), lambda part: _is_internal(part, specs))
    first = chosen[0]
    loc, last = first["loc"], len(first["loc"]) - 1
    named = first["type"] in ("extra_forbidden", "missing")  # such a path ends in a key, whatever it is called
    path: Path = tuple(
        part for index, part in enumerate(loc) if (named and index == last) or not _is_internal(part, specs)
    )
    context: dict[str, Any] = first.get("ctx", {})
    if context.get("key"):
        path = (*path, *context["key"])
    kind = first["type"]
    if kind == "extra_forbidden":
        names = (known or {}).get(path[:-1], [])
        return UnknownKeyError(
            f"unknown key `{path[-1]}`",
            where=where(path),
            hint=_in_reach(path, keyed or {}) or did_you_mean(str(path[-1]), names, otherwise=_known_keys(names)),
        )
    if kind == "missing":
        return PlannerError(f"`{path[-1]}` is missing", where=where(path[:-1]), hint=f"add `{_written(path[-1])}`")
    if kind == "planner":
        return PlannerError(context["what"], where=where(path), hint=context["hint"])
    what, hint = describe(chosen)
    return PlannerError(what, where=where(path), hint=_keys_of(path, hint, keyed or {}))


def _written(key: str | int) -> str:
    """A key that is to be added, as people write it: a quantity under its short name, with a value in its unit."""
    names = {
        (short, id(units)): units for spec in _specs() for short, (si, units) in spec.quantities.items() if si == key
    }
    if len({short for short, _ in names}) != 1:
        return f"{key}:"
    ((short, _), units) = next(iter(names.items()))
    return f"{short}: {example_of(units)}"


def _in_reach(path: Path, keyed: dict[str, list[Path]]) -> str:
    """Where a key that was written at `path` belongs: a mapping in or around that one; empty where there is none."""
    here = _unnumbered(path[:-1])
    inside = [place for place in keyed.get(str(path[-1]), []) if place[: len(here)] == here]
    around = [place for place in keyed.get(str(path[-1]), []) if place == here[: len(place)]]
    if not inside + around:
        return ""
    place = min(inside, key=len) if inside else max(around, key=len)
    written = ".".join(map(str, place)).replace(".[]", "[]")
    return f"`{path[-1]}` belongs into `{written}`" if written else f"`{path[-1]}` belongs at the top"


def _keys_of(path: Path, hint: str, keyed: dict[str, list[Path]]) -> str:
    """The hint to write a mapping at `path`, with the keys that it takes; any other as it is."""
    keys = [f"`{key}`" for key, places in sorted(keyed.items()) if _unnumbered(path) in places]
    return f"{hint} of {', '.join(keys)}" if keys and hint.endswith("a mapping") else hint


def _unnumbered(path: Path) -> Path:
    """A path with `[]` in place of each entry's number."""
    return tuple("[]" if isinstance(part, int) else part for part in path)


def _known_keys(names: list[str]) -> str:
    return f"the keys here are {', '.join(f'`{name}`' for name in sorted(names))}" if names else "remove it"


def _spec_names() -> set[str]:
    """Class names of all schemas, and of the scalars that pydantic names alike."""
    return {"int", "float", "str", "bool"} | {spec.__name__ for spec in _specs()}


def _specs() -> Iterator[type[Spec]]:
    waiting: list[type[Spec]] = [Spec]
    while waiting:
        below = waiting.pop().__subclasses__()
        yield from below
        waiting += below


def _is_internal(part: str | int, specs: set[str]) -> bool:
    """Pydantic puts the names of union members into the path; they are no keys of the document."""
    return isinstance(part, str) and (part in specs or _LABEL.fullmatch(part) is not None)


class Where:
    """Turns a path into a document into `file:line: dotted.path`; a callable, so that plans and tests pass theirs.

    Lines by path, or what finds them: of a large document that takes a second, and only errors ask.
    """

    def __init__(self, locate: "dict[Path, int] | Callable[[], dict[Path, int]]", source: str) -> None:
        self._locate = locate
        self._source = source

    @cached_property
    def _lines(self) -> "dict[Path, int]":
        return self._locate() if callable(self._locate) else self._locate

    def __call__(self, path: Path) -> str:
        dotted = ".".join(str(part) for part in path)
        for length in range(len(path), -1, -1):
            line = self._lines.get(path[:length])
            if line is not None:
                return f"{self._source}:{line}: {dotted}" if dotted else f"{self._source}:{line}"
        return f"{self._source}: {dotted}" if dotted else self._source


def field_names(spec: type[Spec]) -> list[str]:
    """Every key that may be written into `spec`, short names included."""
    return sorted(set(spec.model_fields) | set(spec.quantities))
