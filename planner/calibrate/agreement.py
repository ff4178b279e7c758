"""Prediction errors of a calibration on rows of measured deployments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from planner.calibrate.fit import RelativeErrors
from planner.calibrate.serving import ServingRecords
from planner.estimate.case import Refused
from planner.estimate.evaluate import Estimate, evaluate
from planner.hardware.profiles.store import ProfileStore

SCHEMA = "planner.agreement/1"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Errors of predicted times to first token (of rows that do not queue) and times per output token."""

    calibration: str
    taken: Mapping[str, int]  # rows, by reader
    ttft: RelativeErrors | None  # None where no row tells that time
    tpot: RelativeErrors | None
    refused: tuple[str, ...]  # rows that have no prediction, and why

    @property
    def lines(self) -> list[str]:
        """Rows by reader and errors, for people."""
        lines = [f"{count} {'row' if count == 1 else 'rows'} read as {name}" for name, count in self.taken.items()]
        for name, errors in (("TTFT", self.ttft), ("TPOT", self.tpot)):
            if errors is not None:
                lines.append(f"{name} error by {self.calibration}   median {errors.median:.1%}, mean {errors.mean:.1%}")
        return lines

    def as_json(self) -> dict[str, Any]:
        """The document of a comparison."""
        return {
            "schema": SCHEMA,
            "calibration": self.calibration,
            "rows": dict(self.taken),
            "ttft_error": self.ttft.as_json() if self.ttft is not None else None,
            "tpot_error": self.tpot.as_json() if self.tpot is not None else None,
            "not_predicted": list(self.refused),
        }


def agreement(records: ServingRecords, calibration: str, store: ProfileStore | None) -> Agreement:
    """The errors of `calibration` (a name or a file) over all rows."""
    rows = records.rows
    results = evaluate([replace(row.case, calibration=calibration) for row in rows], store)
    pairs = [(row, result) for row, result in zip(rows, results, strict=True) if isinstance(result, Estimate)]
    refused = tuple(f"{result.id}: {result.reason}" for result in results if isinstance(result, Refused))
    ttft = [(result.ttft_s, row.ttft_s) for row, result in pairs if row.ttft_s is not None and not row.saturated]
    tpot = [(result.tpot_s, row.tpot_s) for row, result in pairs if row.tpot_s is not None]
    return Agreement(calibration, records.by_reader, _errors(ttft), _errors(tpot), refused)


def _errors(pairs: Sequence[tuple[float, float]]) -> RelativeErrors | None:
    return RelativeErrors.of(*zip(*pairs, strict=True)) if pairs else None
