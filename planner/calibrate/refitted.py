"""From measured files to an answer: how far a calibration is from them, and the calibration refitted on them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from planner.calibrate.agreement import Agreement, agreement
from planner.calibrate.deployments import FEWEST
from planner.calibrate.facts import read_facts
from planner.calibrate.fit import fit
from planner.calibrate.history import document_of, summary, text_of
from planner.calibrate.own_runs import believe
from planner.calibrate.own_runs import document_of as document_of_runs
from planner.calibrate.planned import deploy_planned
from planner.calibrate.records import read_records
from planner.calibrate.refit import refit
from planner.calibrate.serving import ServingRecords, is_executed, read_serving
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.pricer import open_store, profile_paths, serving_tables
from planner.documents.files import write_text_atomic
from planner.errors import PlannerError

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Errors on measured deployments, and the calibration refitted; what was said on the way stands in `lines`."""

    agreement: Agreement | None  # None where only executed checks were given
    document: Mapping[str, Any] | None  # None where nothing was to be fitted, or predictions would get worse
    worse: bool = False  # whether predictions would get worse, so that the calibration stays
    lines: tuple[str, ...] = ()

    def text(self) -> str:
        """The calibration file as YAML; raises PlannerError where nothing was fitted."""
        if self.document is None:
            said = "predictions would not get better" if self.worse else "nothing was fitted"
            raise PlannerError(f"there is no new calibration: {said}", hint="keep the one that it started from")
        return text_of(dict(self.document))

    def save(self, path: str | Path) -> None:
        """Writes the calibration file, whole or not at all."""
        write_text_atomic(path, self.text())


def calibrated(
    measured: Sequence[str],
    base: str,
    facts: Sequence[str],
    plan: str | None,
    *,
    day: str | None,
    profiles: tuple[str, ...],
    refits: bool,
    tell: Tell,
) -> Calibrated:
    """Executed checks refitted; reports and tables compared, and refitted too where no check is given and `refits`.

    `facts` are NAME=VALUE, `plan` the file of the plan whose deployment the reports are of, `day` that of the data
    where the files tell none; `tell` hears of each line as it comes. Raises PlannerError for files that cannot be
    read, and for too few rows.
    """
    lines: list[str] = []

    def say(more: Iterable[str]) -> None:
        for line in more:
            lines.append(line)
            tell(line)

    load_calibration(base)  # refused before anything is read
    checks = [path for path in measured if is_executed(path)]
    serving = [path for path in measured if path not in checks]
    compared = None
    if serving:
        records = _records(serving, facts, plan, say)
        compared = agreement(records, base, open_store(profile_paths(profiles)))
        say(f"note: not predicted {line}" for line in compared.refused)
        if not checks:
            answer = _of_runs(records, base, day, profiles, say) if refits else Calibrated(None, None)
            return replace(answer, agreement=compared, lines=tuple(lines))
        say(compared.lines)
    elif facts or plan:
        raise PlannerError(
            "completes benchmark reports, and none is given",
            where="--fact" if facts else "--plan",
            hint="leave it out, or add a report",
        )
    return replace(_of_checks(checks, base, day, profiles, say), agreement=compared, lines=tuple(lines))


def _records(
    paths: Sequence[str], facts: Sequence[str], plan: str | None, say: Callable[[Iterable[str]], None]
) -> ServingRecords:
    """The rows of reports and tables; what was left out is said."""
    given = read_facts(facts)
    records = read_serving(paths, given, deploy_planned(plan, given) if plan is not None else None)
    say(f"note: left out {line}" for line in records.left_out)
    if not records.rows:
        hint = "see what was left out, and why" if records.left_out else "give rows below the header"
        raise PlannerError("no measured deployment is usable", where=paths[0], hint=hint)
    return records


def _of_checks(
    checks: Sequence[str],
    base: str,
    day: str | None,
    profiles: tuple[str, ...],
    say: Callable[[Iterable[str]], None],
) -> Calibrated:
    """The calibration file of executed checks, unless predictions would get worse."""
    start = load_calibration(base)
    records = read_records(checks, start, profiles=profiles)
    say(f"note: left out {line}" for line in records.left_out)
    fitted = fit(records.steps, start.efficiencies)
    say(summary(fitted, start.efficiencies))
    if fitted.worse:
        return Calibrated(None, None, worse=True)
    names = tuple(Path(path).name for path in checks)
    return Calibrated(None, document_of(fitted, start, date=day or records.date, sources=names))


def _of_runs(
    records: ServingRecords,
    base: str,
    day: str | None,
    profiles: tuple[str, ...],
    say: Callable[[Iterable[str]], None],
) -> Calibrated:
    """The calibration refitted on reports and tables; of fewer rows than a fit needs, the base with what they tell."""
    when = day or records.date or date.today().isoformat()
    if len(records.rows) < FEWEST:
        told = believe(records.rows, base, open_store(serving_tables(profiles)))
        say(f"note: left out {line}" for line in told.left_out)
        say(told.lines)
        sources = list(dict.fromkeys(row.source for row in records.rows))
        return Calibrated(None, document_of_runs(told, base, date=when, sources=sources))
    fitted = refit(records.rows, load_calibration(base))
    say(fitted.lines)
    if fitted.worse:
        return Calibrated(None, None, worse=True)
    return Calibrated(None, fitted.document(load_calibration(base), records.rows, when))
