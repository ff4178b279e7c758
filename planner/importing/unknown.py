"""Marks for what a text leaves to its environment; a marked text is never a value."""

import re
from collections.abc import Iterable

_MARK = re.compile("\x00([^\x00]*)\x00")


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
