"""Parses YAML scalars by the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/, section 10.3.2).

PyYAML follows YAML 1.1, where `on` is true, `1:30` is ninety, `2024-01-01` is a date and `1e3` is text; here the first
three are text and the last is a float. One thing is kept from 1.1: `12_000` is the integer 12000.
"""

import re
from math import isinf

from planner.errors import PlannerError

Scalar = str | int | float | bool | None

_CONSTANTS: dict[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
}
_DIGITS = r"\d+(?:_\d+)*"
_INT = re.compile(rf"[-+]?{_DIGITS}|0x[0-9a-fA-F]+|0o[0-7]+", re.ASCII)
_FLOAT = re.compile(rf"[-+]?(?:{_DIGITS}(?:\.(?:{_DIGITS})?)?|\.{_DIGITS})(?:[eE][-+]?\d+)?", re.ASCII)
_NOT_FINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_NO_TEXT = re.compile("[\x00\ud800-\udfff]")
MAX_DIGITS = 308  # whole numbers of so many, and hexadecimal ones of `_MAX_HEX`, are within the range of floats
_MAX_HEX = 255
_YAML = "tag:yaml.org,2002:"
_TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "bool": bool, "null": type(None)}


def plain_scalar(text: str, source: str, line: int) -> Scalar:
    """The value of a scalar written without quotes; raises PlannerError for a number beyond the range of floats."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] not in "+-.0123456789":
        return text
    if _INT.fullmatch(text):
        if len(text) > (_MAX_HEX if text[1:2] == "x" else MAX_DIGITS):
            raise PlannerError(
                f"a number of {len(text)} digits is too large", where=f"{source}:{line}", hint="write a smaller number"
            )
        if text[1:2] in ("x", "o"):
            return int(text, 0)
        return int(text)
    if _FLOAT.fullmatch(text):
        return _finite(text, source, line)
    if _NOT_FINITE.fullmatch(text):
        raise PlannerError(
            f"`{text}` is not a finite number", where=f"{source}:{line}", hint="write a finite number or leave it out"
        )
    return text


def check_text(value: object, source: str, line: int) -> None:
    """Raises PlannerError for text that escapes made and no path or file can hold: U+0000, half of a surrogate pair."""
    bad = _NO_TEXT.search(value) if isinstance(value, str) else None
    if bad is None:
        return
    what = "character U+0000 is not allowed in text" if bad[0] == "\0" else "half of a surrogate pair is not text"
    raise PlannerError(what, where=f"{source}:{line}", hint="leave the escape out, or write the whole character")


def tagged_scalar(text: str, tag: str, source: str, line: int) -> Scalar:
    """The value of a scalar with a tag such as `!!str`; raises PlannerError for any tag outside the schema."""
    name = tag.removeprefix(_YAML)
    if tag == "!" or name == "str":
        return text
    if name not in _TYPES:
        raise _forbidden_tag(tag, source, line)
    value = plain_scalar(text, source, line)
    if not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and name != "bool"):
        raise PlannerError(f"`{text}` is not a value of tag `!!{name}`", where=f"{source}:{line}", hint="drop the tag")
    return float(value) if name == "float" and isinstance(value, int) else value


def check_collection_tag(tag: str | None, name: str, source: str, line: int) -> None:
    """Raises PlannerError unless a list (`seq`) or mapping (`map`) carries no tag or that of its own kind."""
    if tag not in (None, "!", _YAML + name):
        raise _forbidden_tag(str(tag), source, line)


def _forbidden_tag(tag: str, source: str, line: int) -> PlannerError:
    """The error for a tag that would build anything but plain data, such as `!!python/object`."""
    shown = tag.replace(_YAML, "!!")
    return PlannerError(
        f"tag `{shown}` is not allowed",
        where=f"{source}:{line}",
        hint="write text, numbers, true, false, null, lists and mappings only",
    )


def _finite(text: str, source: str, line: int) -> float:
    value = float(text)
    if isinf(value):
        raise PlannerError(
            f"`{text}` is too large for a number", where=f"{source}:{line}", hint="write a smaller number"
        )
    return value
