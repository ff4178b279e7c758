"""What became of the candidates of a search, in groups: what a certificate states, and what its bound follows from."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf, isfinite

from pydantic import JsonValue

from planner.arrays import Floats, Ints
from planner.kinds.train.space.distinct import distinct

COMPUTING, EXCHANGE, RECOMPUTATION = "computing", "computing and exchange", "recomputation"
"""Bounds, by what they take into account."""
DOMINATED = "no better anywhere than another of its kind"
EVALUATED, MEMORY, BOUND = "evaluated", "memory", "bound: "
NOT_ON_RACKS = "racks: stages or groups fill no whole nodes of them"
"""Ends of candidates: `BOUND` with its name behind it."""
MOST_GROUPS = 160
"""That a certificate lists; more are put together over pp, then over tp."""

GroupKey = tuple[str, int, int]  # end, tp, pp


@dataclass(slots=True)
class Group:
    """Candidates that ended alike: `least` is no more than what any of them takes, infinite where none is a plan."""

    candidates: int = 0
    least: float = inf

    def add(self, candidates: int, least: float) -> None:
        """So many more, none of which takes less than `least`."""
        self.candidates += candidates
        self.least = min(self.least, least)


@dataclass(slots=True)
class CandidateTally:
    """What became of the candidates: a candidate is a combination of all axes but recomputation and layout."""

    candidates: int = 0
    illegal: Counter[str] = field(default_factory=Counter)
    groups: dict[GroupKey, Group] = field(default_factory=dict)

    @property
    def bounded(self) -> Counter[str]:
        """Candidates left out, by the bound that did."""
        counts = Counter[str]()
        for (end, _, _), group in self.groups.items():
            if end.startswith(BOUND):
                counts[end.removeprefix(BOUND)] += group.candidates
        return counts

    @property
    def unfit(self) -> int:
        """Candidates that memory does not hold."""
        return self._ended(MEMORY)

    @property
    def not_on_racks(self) -> int:
        """Candidates whose stages or groups stand on no whole nodes of the racks."""
        return self._ended(NOT_ON_RACKS)

    @property
    def evaluated(self) -> int:
        """Candidates laid out, simulated, and found to fit."""
        return self._ended(EVALUATED)

    def _ended(self, end: str) -> int:
        return sum(group.candidates for key, group in self.groups.items() if key[0] == end)

    def put(self, end: str, tp: int, pp: int, *, candidates: int = 1, least: float = inf) -> None:
        """Candidates of a tp and pp that ended so."""
        self.groups.setdefault((end, tp, pp), Group()).add(candidates, least)

    def put_nodes(self, end: str, tp_N: Ints, pp_N: Ints, candidates_N: Ints, least_N: Floats) -> None:
        """The candidates below nodes that ended so."""
        if not len(tp_N):
            return
        kinds, kind_N = distinct(tp_N, pp_N)
        for kind, (tp, pp) in enumerate(kinds.T.tolist()):
            rows = kind_N == kind
            if number := int(candidates_N[rows].sum()):
                self.put(end, tp, pp, candidates=number, least=float(least_N[rows].min()))

    def add(self, other: "CandidateTally") -> None:
        """The candidates of another search as well."""
        self.candidates += other.candidates
        self.illegal.update(other.illegal)
        for (end, tp, pp), group in other.groups.items():
            self.put(end, tp, pp, candidates=group.candidates, least=group.least)


def group_records(tally: CandidateTally) -> list[JsonValue]:
    """The groups as a certificate lists them, at most about `MOST_GROUPS`, those put together without their degrees."""
    for degrees in (("tp", "pp"), ("tp",), ()):
        merged: dict[tuple[str | int, ...], Group] = {}
        for (end, tp, pp), group in tally.groups.items():
            kept = {"tp": tp, "pp": pp}
            merged.setdefault((end, *(kept[name] for name in degrees)), Group()).add(group.candidates, group.least)
        if len(merged) <= MOST_GROUPS or not degrees:
            return list(_records(merged, degrees))
    raise AssertionError("the last way puts all together")


def _records(merged: dict[tuple[str | int, ...], Group], degrees: tuple[str, ...]) -> Iterator[JsonValue]:
    for (end, *values), group in sorted(merged.items()):
        record: dict[str, JsonValue] = {"end": end, **dict(zip(degrees, values, strict=True))}
        record["candidates"] = group.candidates
        if isfinite(group.least):
            record["least"] = group.least
        yield record
