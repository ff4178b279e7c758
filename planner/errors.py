"""Exceptions that users see: errors they can fix, and the two answers of a solve that are no plan."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self, TypedDict


class PlannerError(Exception):
    """Anything the user can fix; becomes `error: where: what` and an indented hint on stderr, exit code 2.

    `where` is `file:line` or a dotted path into a document; `hint` is one imperative sentence.
    """

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__("".join((f"{where}: " if where else "", what, f"\n  hint: {hint}" if hint else "")))
        self.what = what
        self.where = where
        self.hint = hint

    def at(self, where: str) -> Self:
        """The same error at another place."""
        return type(self)(self.what, where=where, hint=self.hint)


def extra_hint(extra: str) -> str:
    """The hint of what needs an extra: it is installed from the checkout, since no index has the distribution."""
    return f"install the extra in the checkout: `pip install -c constraints.txt '.[{extra}]'`"


class UnknownNameError(PlannerError):
    """A name that is in no catalog, schema or list of what may stand in its place."""


class UnknownKeyError(UnknownNameError):
    """A key that the schema of its mapping does not have, or an index or part that a document does not have."""


class Conflict(TypedDict):
    """One limit of a smallest set that cannot hold together, and its nearest value that works with the others."""

    limit: str  # as the problem says it, with its unit: `p95 ttft <= 120 ms`
    nearest: str  # such as `ttft 143 ms`; empty when no value of this limit alone would do


class Infeasible(Exception):
    """No plan meets all limits; `conflict` is a smallest set of them that cannot hold together.

    `proved` is False where a search found no plan and no bound says that there is none: the answer may be wrong.
    """

    def __init__(self, conflict: Sequence[Conflict], *, proved: bool) -> None:
        super().__init__("no plan meets all limits")
        self.conflict = list(conflict)
        self.proved = proved


class Stopped(Exception):
    """A limit of the solve was reached with neither a plan nor a proof that there is none."""

    def __init__(self, reason: str, *, bound: float | None = None) -> None:
        super().__init__(reason)
        self.reason = reason  # as `stop_reason` of a certificate: time_limit, interrupted, ...
        self.bound = bound


@contextmanager
def errors_at(where: str) -> Iterator[None]:
    """Errors that users see are told at `where`, whatever place they name themselves."""
    try:
        yield
    except PlannerError as error:
        raise error.at(where) from None


def in_one_line(error: PlannerError) -> str:
    """What is wrong, where, and what to do, without a line break."""
    place = f"{error.where}: " if error.where else ""
    return f"{place}{error.what}; {error.hint}" if error.hint else f"{place}{error.what}"


def unknown_name(what: str, name: str, known: Iterable[str], *, otherwise: str, where: str = "") -> UnknownNameError:
    """The error for `name`, which is no known `what`; the hint names the nearest of `known`, or says `otherwise`."""
    hint = did_you_mean(name, list(known), otherwise=otherwise)
    return UnknownNameError(f"unknown {what} `{name}`", where=where, hint=hint)


def nearest(name: str, known: list[str], *, count: int = 3) -> list[str]:
    """The known names closest to `name` (case-insensitive), best first, for `did you mean` hints."""
    import difflib

    folded = {candidate.casefold(): candidate for candidate in known}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=count, cutoff=0.5)
    contained = [folded[key] for key in folded if name.casefold() in key and key not in close]
    return [folded[key] for key in close] + contained[: count - len(close)]


def did_you_mean(name: str, known: list[str], *, otherwise: str) -> str:
    """A hint naming the nearest known names, or `otherwise` when nothing is near."""
    close = nearest(name, known)
    return f"did you mean {' or '.join(f'`{candidate}`' for candidate in close)}? {otherwise}" if close else otherwise


def require_known(what: str, name: str, known: Iterable[str], *, listing: str = "known are", where: str = "") -> None:
    """Raises UnknownNameError for a name that is not among those known, with the nearest, else all after `listing`."""
    names = sorted(known)
    if name not in names:
        raise unknown_name(what, name, names, otherwise=f"{listing} {', '.join(names)}", where=where)
