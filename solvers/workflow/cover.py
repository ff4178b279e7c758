"""What became of all combinations of options in a search: those that cannot be, and the least that any other is worth.

A bound of a minimisation follows: no combination is worth less than the least of all ends that have one.
"""

from dataclasses import dataclass, field

LATE, NO_ROOM, DEARER, CHOSEN = "late", "no room", "dearer", "chosen"


@dataclass(frozen=True, slots=True)
class End:
    """How many combinations ended so, and what none of them is worth less than; None where they break a limit."""

    combinations: int
    least: float | None


@dataclass(slots=True)
class Cover:
    """Ends by name; together they hold every combination once."""

    ends: dict[str, End] = field(default_factory=dict)

    def add(self, name: str, combinations: int, least: float | None = None) -> None:
        """So many combinations more that ended so, none of which is worth less than `least`."""
        before = self.ends.get(name)
        if before is not None:
            combinations += before.combinations
            least = before.least if least is None or before.least is None else min(before.least, least)
        self.ends[name] = End(combinations, least)

    @property
    def combinations(self) -> int:
        """Of all ends."""
        return sum(end.combinations for end in self.ends.values())
