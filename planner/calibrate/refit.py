"""Refits the calibration to a user's own measured deployments, from any benchmark report or table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.calibrate.deployments import (
    FEWEST,
    Fitted,
    MeasuredTimes,
    ServingParameters,
    document_of,
    fit_first_tokens,
    predict,
)
from planner.calibrate.fit import RelativeErrors
from planner.calibrate.history import training_of
from planner.calibrate.own_runs import rounded
from planner.calibrate.serving import ServingRow
from planner.calibrate.shared import fit_shared
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import Calibration
from planner.costs.rates.forms import forms_document, pairs_of
from planner.costs.rates.spread import GroupBias
from planner.documents.files import digest
from planner.errors import PlannerError
from planner.estimate.case import Case, measured_forms
from planner.estimate.closed_loop import MeanTimes


@dataclass(frozen=True, slots=True)
class Refit:
    """Fitted parameters, and errors of both times before and after; a time that no row tells has none."""

    fitted: Fitted
    groups: Mapping[str, GroupBias]  # where those of the rows lie
    tpot: tuple[RelativeErrors, RelativeErrors]
    ttft: tuple[RelativeErrors, RelativeErrors] | None
    num_rows: int

    @property
    def worse(self) -> bool:
        """Whether the mean error of the time per output token did not fall."""
        return self.tpot[1].mean >= self.tpot[0].mean

    @property
    def lines(self) -> list[str]:
        """Errors before and after, for people."""
        pairs = [("TPOT", self.tpot)] + ([("TTFT", self.ttft)] if self.ttft is not None else [])
        return [
            f"{name} error of {self.num_rows} rows   before median {before.median:.1%}, mean {before.mean:.1%}"
            f"   after median {after.median:.1%}, mean {after.mean:.1%}"
            for name, (before, after) in pairs
        ]

    def document(self, base: Calibration, rows: Sequence[ServingRow], date: str) -> dict[str, Any]:
        """The calibration file; intervals, rates of training and what runs tell of other groups stay as in `base`."""
        data = digest({"rows": [[row.case.id, row.ttft_s, row.tpot_s] for row in rows]})
        document = document_of(
            self.fitted, base.spreads, self.groups.keys() | base.groups, rows=self.num_rows, data=data
        )
        runs = {group: rounded(bias) for group, bias in sorted({**base.runs, **self.groups}.items())}
        own = measured_forms(row.case for row in rows) if base.forms else ()
        sources = ", ".join(dict.fromkeys(row.source for row in rows))
        return (
            document
            | training_of(base)
            | {
                "runs": runs,
                "forms": forms_document([*pairs_of(base.forms), *own]),
                "source": f"fitted to {self.num_rows} measured deployments of {sources}; started from {base.name}",
                "date": date,
                "previous": {"calibration": base.name, "digest": base.digest},
            }
        )


def refit(rows: Sequence[ServingRow], base: Calibration) -> Refit:
    """What all groups share, where those of the rows lie, and what comes before first tokens.

    Of the rows that tell a time per output token. They are priced by the roofline, whose parameters are fitted.
    Raises PlannerError for fewer than FEWEST rows.
    """
    usable = [row for row in rows if row.tpot_s is not None and not row.case.arch.unsupported_parts()]
    if len(usable) < FEWEST:
        raise PlannerError(
            f"{len(usable)} measured deployments to fit, at least {FEWEST} are needed",
            where=rows[0].source if rows else "",
            hint="measure more shapes or loads; leave `-o` out to see how far the calibration is from these",
        )
    terms = DeploymentTerms.of([_case(row) for row in usable])
    measured = MeasuredTimes(
        ttft_s=np.array([row.ttft_s or 1.0 for row in usable]),
        tpot_s=np.array([row.tpot_s for row in usable], dtype=np.float64),
        queued=np.array([row.saturated or row.ttft_s is None for row in usable]),
    )
    start = ServingParameters.of(base, terms.engine_D)
    everything = np.ones(len(usable), dtype=bool)
    names, group = np.unique([row.case.group for row in usable], return_inverse=True)
    shared = fit_shared(terms, measured, start, group, everything)
    groups = {str(names[number]): bias for number, bias in shared.groups.items()}
    now = np.array([base.slowdown(row.case.group) for row in usable])  # by runs, whose place the refit takes
    later = np.exp([groups[row.case.group].mean for row in usable])
    fitted = fit_first_tokens(terms, measured, shared.parameters, everything, later)
    before, after = (
        _errors(predict(terms, parameters, longer=longer), measured)
        for parameters, longer in ((start, now), (fitted, later))
    )
    ttft = None if measured.queued.all() else (before[1], after[1])
    return Refit(Fitted(fitted, shared.standard_errors), groups, (before[0], after[0]), ttft, len(usable))


def _case(row: ServingRow) -> Case:
    """With the requests that the run sent, where it tells them."""
    told = row.requests_per_client
    return row.case if told is None else replace(row.case, requests_per_client=told)


def _errors(replayed: MeanTimes, measured: MeasuredTimes) -> tuple[RelativeErrors, RelativeErrors]:
    """Of the time per output token, and of the time to first token where it is not queueing (else of nothing: zero)."""
    told = ~measured.queued
    tpot = RelativeErrors.of(list(replayed.tpot_s), list(measured.tpot_s))
    ttft = (
        RelativeErrors.of(list(replayed.ttft_s[told]), list(measured.ttft_s[told]))
        if told.any()
        else RelativeErrors(0.0, 0.0)
    )
    return tpot, ttft
