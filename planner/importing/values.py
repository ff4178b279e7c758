"""Flag texts as values, with a note of every variable that a value waits for.

What a text leaves to its environment is marked; a marked text is never a value.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

_MARK = re.compile("\x00([^\x00]*)\x00")
_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
_NOTHING = frozenset({"", "none", "null", "auto", "???"})
MOST_DIGITS = 10  # of a number of things
_SCALE = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def mark(names: Iterable[str]) -> str:
    """Text that stands for values nobody knows yet, by the names of the variables that hold them."""
    return "".join(f"\x00{name}\x00" for name in dict.fromkeys(names))


def unknown_names(text: str) -> list[str]:
    """The names of the variables that `text` waits for, in order."""
    return list(dict.fromkeys(_MARK.findall(text)))


def is_unknown(text: object) -> bool:
    """Whether `text` waits for a variable."""
    return isinstance(text, str) and "\x00" in text


def renamed(text: str, old: str, new: str) -> str:
    """`text` waiting for `new` where it waited for `old`."""
    return text.replace(mark([old]), mark([new]))


@dataclass
class Values:
    """Reads texts as numbers, names and switches; `unresolved` grows with each that waits for a variable."""

    unresolved: list[str] = field(default_factory=list)

    def _waits(self, value: object) -> bool:
        if not isinstance(value, str) or not is_unknown(value):
            return False
        self.unresolved += [name for name in unknown_names(value) if name not in self.unresolved and name != "$()"]
        return True

    def integer(self, value: object, default: int | None = None) -> int | None:
        """A whole number, with the suffixes k and K of engines; None where it waits for a variable."""
        if self._waits(value):
            return None
        if value is None or isinstance(value, bool):
            return default
        if isinstance(value, int):
            return value
        text = str(value).strip().strip("'\"")
        scale = 1
        if len(text) > 1 and text[-1] in _SCALE:
            text, scale = text[:-1], _SCALE[text[-1]]
        try:
            number = float(text) * scale
        except ValueError:
            return default
        return int(number) if number == int(number) else default

    def number(self, value: object) -> float | None:
        """A number; None where there is none or it waits for a variable."""
        if self._waits(value) or value is None or isinstance(value, bool):
            return None
        try:
            return float(str(value).strip())
        except ValueError:
            return None

    def text(self, value: object) -> str | None:
        """A name; None for nothing, `auto` and what waits for a variable."""
        if self._waits(value) or value is None:
            return None
        text = str(value).strip()
        return None if text.lower() in _NOTHING else text

    def switch(self, value: object) -> bool | None:
        """True or false; None for neither, and for what waits for a variable."""
        if self._waits(value) or value is None:
            return None
        if isinstance(value, bool):
            return value
        text = str(value).strip().lower()
        return True if text in _TRUE else False if text in _FALSE else None

    def mapping(self, value: object) -> dict[str, Any]:
        """A mapping, or one written as JSON; empty for everything else."""
        if isinstance(value, dict):
            return value
        if isinstance(value, str) and value.strip().startswith("{") and not self._waits(value):
            try:
                parsed = json.loads(value)
            except (json.JSONDecodeError, RecursionError):
                return {}
            return parsed if isinstance(parsed, dict) else {}
        return {}


def mapping_of(value: object) -> dict[str, Any]:
    """A mapping as it is; an empty one for everything else."""
    return value if isinstance(value, dict) else {}


def below(value: object, *keys: str) -> dict[str, Any]:
    """The mapping under these keys, one inside the other; an empty one where one is missing."""
    for key in keys:
        value = mapping_of(value).get(key)
    return mapping_of(value)


def list_of(value: object) -> list[Any]:
    """A list as it is; an empty one for everything else."""
    return value if isinstance(value, list) else []


def count_of(value: object, default: int) -> int:
    """A number of things, or a text of its digits; the default for everything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.isdigit() and len(value) < MOST_DIGITS else default
