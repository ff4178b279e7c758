"""Turns pydantic's validation errors into our own: the one that matters, what is wrong, and how to fix it."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.errors import did_you_mean

Place = tuple[str | int, ...]
LABEL = r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$"
"""Of names that clusters take."""

_WANTED = {  # by the error's type: what was wanted, for errors that mean "another type"
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "list_type": "a list",
    "tuple_type": "a list",
    "finite_number": "a finite number",
}
_BOUNDS = {  # by the error's type: the words and the key of its context that holds the bound
    "greater_than": ("above", "gt"),
    "greater_than_equal": ("at least", "ge"),
    "less_than": ("below", "lt"),
    "less_than_equal": ("at most", "le"),
}
_SIZES = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}


def pick(errors: Sequence[Mapping[str, Any]], is_internal: Callable[[str | int], bool]) -> list[Mapping[str, Any]]:
    """The error to tell; several where one value fits no form of a union, one error a form.

    Of a union, the form that the user meant is the one whose type fits and that has the fewest errors.
    """
    groups: dict[tuple[Place, Place], list[Mapping[str, Any]]] = {}
    for error in _with_causes(errors):
        loc: Place = error["loc"]
        cut = next((index for index, part in enumerate(loc) if is_internal(part)), None)
        key = (loc, ()) if cut is None else (loc[:cut], loc[cut : cut + 1])
        groups.setdefault(key, []).append(error)
    place = min(groups, key=lambda key: (all(e["type"] == "missing" for e in groups[key]), len(key[0]) == 0))[0]
    forms = [group for key, group in groups.items() if key[0] == place]
    fitting = [group for group in forms if not any(_is_other_type(error, place, is_internal) for error in group)]
    if not fitting:
        return [group[0] for group in forms]
    best = min(fitting, key=len)
    return [min(best, key=lambda error: error["type"] == "missing")]


def _with_causes(errors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The errors without those of a list that is too short only because an entry of it is wrong."""
    places = [error["loc"] for error in errors]
    return [
        error
        for error in errors
        if error["type"] != "too_short"
        or not any(len(place) > len(error["loc"]) and place[: len(error["loc"])] == error["loc"] for place in places)
    ]


def _is_other_type(error: Mapping[str, Any], place: Place, is_internal: Callable[[str | int], bool]) -> bool:
    """Whether the value as a whole is of another type than this form of the union."""
    below = [part for part in error["loc"][len(place) :] if not is_internal(part)]
    return error["type"] in _WANTED and not below and len(error["loc"]) > len(place)


def describe(errors: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """What is wrong and how to fix it, of the errors that `pick` chose."""
    error = errors[0]
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    shown = f", found {value!r}" if _is_short(value) else ""
    wanted = sorted(
        {_WANTED[error_of_form["type"]] for error_of_form in errors if error_of_form["type"] in _WANTED}, reverse=True
    )
    if wanted:
        words = " or ".join(wanted)
        if wanted == ["text"] and isinstance(value, int | float):
            return f"must be text{shown}", f'write text, in quotes: "{value}"'
        return f"must be {words}{shown}", f"write {words}"
    if kind in _BOUNDS:
        words, key = _BOUNDS[kind]
        bound = str(context[key]) if isinstance(context[key], int) else f"{context[key]:g}"
        return f"must be {words} {bound}{shown}", f"write a value {words} {bound}"
    if kind in _SIZES:
        words, key = _SIZES[kind]
        size = f"{words} {context[key]} {'entry' if context[key] == 1 else 'entries'}"
        return f"needs {size}, has {context['actual_length']}", f"give {size}"
    if kind in ("literal_error", "enum"):
        return _one_of(str(context["expected"]), value, shown)
    if kind in ("string_too_short", "string_too_long"):
        size = context.get("min_length", context.get("max_length"))
        words = "at least" if kind == "string_too_short" else "at most"
        return f"must have {words} {size} characters", f"write text of {words} {size} characters"
    if kind == "string_pattern_mismatch" and context["pattern"] == LABEL:
        label = re.sub(r"[^a-z0-9]+", "-", str(value).lower()).strip("-")[:40].strip("-")
        return f"must be lower-case letters, digits and `-`, at most 40{shown}", f"write for example `{label or 'a'}`"
    message = error["msg"].removeprefix("Value error, ").removeprefix("Input should ")
    return f"must {message}{shown}" if error["msg"].startswith("Input should ") else f"{message}{shown}", "correct it"


def _one_of(expected: str, value: object, shown: str) -> tuple[str, str]:
    known = [part.strip().strip("'") for part in expected.replace(" or ", ", ").split(",")]
    listing = ", ".join(f"`{name}`" for name in known)
    otherwise = f"write {'one of ' if len(known) > 1 else ''}{listing}"
    what = f"must be {'one of ' if len(known) > 1 else ''}{listing}{shown}"
    return what, did_you_mean(str(value), known, otherwise=otherwise) if isinstance(value, str) else otherwise


def _is_short(value: object) -> bool:
    return isinstance(value, (str, int, float, bool)) and len(str(value)) <= 80
