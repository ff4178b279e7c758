"""Errors of the solvers, which know items and bins, said in terms of experts and ranks."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from planner.errors import PlannerError

WORDS = {"item": "expert", "bin": "rank", "group": "node", "set": "token", "weight": "load"}
_WORD = re.compile(rf"\b({'|'.join(WORDS)})(s?)\b")


@contextmanager
def of_experts(where: str = "") -> Iterator[None]:
    """Says the solvers' words in the users' in every PlannerError from inside; `where` goes in front of its place."""
    try:
        yield
    except PlannerError as error:
        place = ": ".join(part for part in (where, _said(error.where)) if part)
        raise PlannerError(_said(error.what), where=place, hint=_said(error.hint)) from None


def _said(text: str) -> str:
    return _WORD.sub(lambda found: WORDS[found[1]] + found[2], text)
