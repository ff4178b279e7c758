"""Fields of a report by name, each with its place in it: what is missing or of another kind is one error."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.errors import PlannerError

_MOST = 1e15  # no count, time or rate of a benchmark comes near


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping inside a report of `generator`; `path` leads there, `source` is the file."""

    data: Mapping[str, Any]
    generator: str
    source: str
    path: str = ""

    def wrong(self, name: str, what: str) -> PlannerError:
        """The error about one field."""
        place = f"{self.path}.{name}" if self.path else name
        hint = "give the report as the load generator wrote it, or run it again"
        return PlannerError(f"is no whole report of {self.generator}: `{place}` {what}", where=self.source, hint=hint)

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def section(self, name: str) -> "Fields":
        """The mapping under `name`; an error where there is none."""
        if not self.has(name):
            raise self.wrong(name, "is missing")
        return self.part(name)

    def part(self, name: str) -> "Fields":
        """The mapping under `name`, an empty one where the report leaves it out (genai-perf writes an empty text)."""
        found = self.data.get(name)
        return self._child(name, found if found not in (None, "") else {})

    def parts(self, name: str) -> list["Fields"]:
        """The mappings of the list under `name`, none where the report leaves it out."""
        found = self.data.get(name)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self.wrong(name, "must be a list")
        return [self._child(f"{name}.{index}", one) for index, one in enumerate(found)]

    def _child(self, name: str, found: object) -> "Fields":
        if not isinstance(found, Mapping):
            raise self.wrong(name, f"must be a mapping, found {_short(found)}")
        return Fields(found, self.generator, self.source, f"{self.path}.{name}" if self.path else name)

    def number(self, name: str) -> float | None:
        """The number under `name`, None where it is absent or not finite; an error for text and below 0."""
        found = self.data.get(name)
        if found is None:
            return None
        if isinstance(found, float) and not math.isfinite(found):
            return None
        if not isinstance(found, int | float) or isinstance(found, bool) or abs(found) > _MOST:
            raise self.wrong(name, f"must be a number, found {_short(found)}")
        if found < 0:
            raise self.wrong(name, f"must be at least 0, found {_short(found)}")
        return float(found)

    def asked(self, *names: str) -> float | None:
        """The first positive number under `names`, alone or in a list of one; None for anything else.

        What a user asked a generator for has many forms (sweeps, ramps, empty texts); only one number is a load.
        """
        for name in names:
            found = self.data.get(name)
            one = found[0] if isinstance(found, list) and len(found) == 1 else found
            if isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < _MOST:
                return float(one)
        return None

    def amount(self, name: str) -> float:
        """The number under `name`; an error where there is none."""
        found = self.number(name)
        if found is None:
            raise self.wrong(name, "is missing")
        return found

    def text(self, name: str) -> str | None:
        """The text under `name`, None where it is absent, empty or something else."""
        found = self.data.get(name)
        return found if isinstance(found, str) and found.strip() else None

    def numbers(self, name: str) -> list[float]:
        """The finite numbers of the list under `name`, none where the report leaves it out."""
        found = self.data.get(name)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self.wrong(name, "must be a list")
        sound = [one for one in found if isinstance(one, int | float) and not isinstance(one, bool)]
        return [float(one) for one in sound if abs(one) <= _MOST]

    def statistics(self, names: Mapping[str, str], scale: float = 1.0) -> dict[str, float]:
        """Statistics by our names, of fields called by `names`; those that are absent are left out."""
        known = {ours: self.number(theirs) for ours, theirs in names.items()}
        return {ours: value * scale for ours, value in known.items() if value is not None}

    def scale(self, name: str, units: Mapping[str, float]) -> float:
        """Seconds (or tokens) of the unit that stands under `name`."""
        unit = self.text(name)
        if unit is None or unit not in units:
            found = f"is `{unit}`" if unit is not None else "is missing"
            raise self.wrong(name, f"{found}, and must be one of {', '.join(units)}")
        return units[unit]


def _short(found: object) -> str:
    if isinstance(found, Mapping | list):
        return "a mapping" if isinstance(found, Mapping) else "a list"
    text = repr(found) if not isinstance(found, int) or abs(found) < 10**20 else "a number without end"
    return text if len(text) <= 40 else f"{text[:37]}..."
