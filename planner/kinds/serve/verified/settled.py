"""Which of the plans that are kept in the search is the answer: the first, the best before others, that is confirmed.

Loads that fresh streams confirm are below those of the search, of some plans far below: short streams do not show every
queue that grows. A plan whose verification falls below what another one keeps waits until that one is verified, and is
gone on with only as far as it may still be the better one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.steady.search import Outcome
from planner.kinds.serve.verified.budget import OutOfTime
from planner.kinds.serve.verified.climb import Climb
from planner.kinds.serve.verified.climb import Search as Climbing
from planner.kinds.serve.verified.confirm import Unconfirmed
from planner.kinds.serve.verified.kept import Kept
from planner.kinds.serve.verified.plan import Verified
from planner.progress import Limits

MOST_REFUTED = 3  # plans of a given load that fresh streams refute
GIVEN_UP = 0.97  # of what another plan keeps in the search: what a verified one must be worth to be gone on with


class Search(Climbing, Protocol):
    """What proposes and verifies plans."""

    def verify(self, best: Kept, least: float = 0.0, reached: Unconfirmed | None = None) -> Verified | Unconfirmed:
        """The plan at a load that fresh streams confirm, given up where it would be worth less than `least`."""

    def safer(self, refuted: Kept) -> Iterator[Kept]:
        """What is proposed where fresh streams refute a plan."""


S = TypeVar("S", bound=Search)


@dataclass(frozen=True, slots=True)
class _GivenUp(Generic[S]):
    """A plan whose verification was given up for others, and how far it was."""

    kept: Kept
    search: S
    reached: Unconfirmed

    @property
    def value(self) -> float:
        """What it would keep at most."""
        return self.kept.value / self.kept.load.scale * self.reached.scale


def best_confirmed(
    kept: list[tuple[Kept, S]], relaxed: tuple[Outcome, ...], bounds: ProblemBounds, limits: Limits
) -> tuple[Verified, S, int | None] | None:
    """The first of the plans that are kept in the search, the best first and varied, that fresh streams confirm, with
    the search that proposed it and how many cheaper mixes were not simulated.

    `relaxed` is what steady state makes of the problem under other limits. A plan of which fresh streams confirm less
    than others are kept at waits until those are verified.
    """
    refused: list[Kept] = []
    waiting: list[_GivenUp[S]] = []
    while kept:
        proposed_kept, proposing = kept.pop(min(range(len(kept)), key=lambda index: kept[index][0].cost))
        limits.tell("varying the best plan")
        climb = Climb(proposing, relaxed, bounds, tuple(refused))
        best_kept = climb.best(proposed_kept)
        others = [each.value for each, _ in kept] + ([] if best_kept is proposed_kept else [proposed_kept.value])
        verified = proposing.verify(best_kept, GIVEN_UP * max(others, default=0.0))
        if isinstance(verified, Verified):
            return *(_best_with(waiting, (verified, proposing)) or (verified, proposing)), climb.not_simulated
        waiting += [_GivenUp(best_kept, proposing, verified)] if verified.scale > 0.0 else []
        refused.append(best_kept)
        if best_kept is not proposed_kept and len(refused) <= MOST_REFUTED:
            kept.append((proposed_kept, proposing))
        else:
            kept += [(each, proposing) for each in proposing.safer(best_kept)]
    answer = _best_with(waiting, None)
    return None if answer is None else (*answer, None)


def _best_with(waiting: Sequence[_GivenUp[S]], best: tuple[Verified, S] | None) -> tuple[Verified, S] | None:
    """The best of a verified plan and of those that were given up for it, which are verified as far as they may be."""
    for each in sorted(waiting, key=lambda each: -each.value):
        least = 0.0 if best is None else best[0].value
        if each.value <= least:
            break
        try:
            again = each.search.verify(each.kept, least, each.reached)
        except OutOfTime:
            if best is None:
                raise
            break
        if isinstance(again, Verified) and again.value > least:
            best = again, each.search
    return best
