"""Every field that may be written into a problem, read off its schema."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from planner.problem.schema import Problem
from planner.schema.base import Spec

HELD = ("schema", "kind", "options")
"""What makes a problem one of its kind; `options` are the kind's own."""


def forms(annotation: object) -> list[Any]:
    """The members of a union, with `Annotated` taken off."""
    if get_origin(annotation) is Annotated:
        return forms(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [form for member in get_args(annotation) for form in forms(member)]
    return [annotation]


def leaves(spec: type[Spec], above: tuple[str, ...] = ()) -> Iterator[str]:
    """Dotted paths of all that may be written below a schema, `*` for keys and indices."""
    for name, about in spec.model_fields.items():
        yield from _below(about.annotation, (*above, about.alias or name))


def _below(annotation: object, path: tuple[str, ...]) -> Iterator[str]:
    bare = False
    for form in forms(annotation):
        parts = get_args(form)
        inner = parts[-1] if get_origin(form) is dict else parts[0] if parts else None
        if _is_spec(form):
            yield from leaves(form, path)
        elif get_origin(form) in (dict, tuple) and any(map(_is_spec, forms(inner))):
            yield from _below(inner, (*path, "*"))
        else:
            bare = bare or form is not type(None)
    if bare:
        yield ".".join(path)


def _is_spec(form: object) -> bool:
    return isinstance(form, type) and issubclass(form, Spec)


FIELDS = tuple(name for name in leaves(Problem) if name not in HELD)
"""SI names, in the order of the schema."""
