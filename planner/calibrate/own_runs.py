"""A few runs of one's own: where their groups lie against the costs, as a belief that the calibration carries.

Runs of a group (model, formats of its layers, GPU and engine) err together. Of a group that the costs were not fitted
to, the section `intervals` says what lies between groups and how far runs lie apart within one; normal-normal shrinkage
of both makes a mean, by which all its steps are longer, and a deviation, which takes the place of what lies between.
What each run told stays beside them: estimates of deployments near it take more from it (`planner.estimate.own_runs`).
A dozen rows are for a fit of the costs themselves (`planner.calibrate.refit`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import resources
from typing import Any

import numpy as np

from planner.calibrate.serving import ServingRow
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.forms import Form, forms_document, pairs_of
from planner.costs.rates.spread import GroupBias
from planner.documents.read import load_document, parse_document
from planner.errors import PlannerError
from planner.estimate.case import Case, measured_forms
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.own_runs import seen_runs
from planner.hardware.profiles.store import ProfileStore

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class OwnRuns:
    """What runs tell of their groups: beliefs before and after, and what none was told by."""

    before: Mapping[str, GroupBias]
    after: Mapping[str, GroupBias]
    left_out: tuple[str, ...]
    forms: tuple[tuple[str, Form], ...] = ()  # function and form of every instance that ran

    @property
    def lines(self) -> list[str]:
        """Each group, for people: how much longer its steps are, with the 80 % interval of that."""
        return [
            f"{group}: after {bias.runs} {'run' if bias.runs == 1 else 'runs'} its steps are "
            f"{_change(bias.mean)} ± {np.expm1(bias.deviation):.0%} ({_change(self.before[group].mean)} "
            f"± {np.expm1(self.before[group].deviation):.0%} was believed before)"
            for group, bias in self.after.items()
        ]


def _change(mean: float) -> str:
    return f"{abs(np.expm1(mean)):.0%} {'longer' if mean >= 0 else 'shorter'}"


def believe(rows: Sequence[ServingRow], calibration: str, store: ProfileStore | None) -> OwnRuns:
    """What rows tell of their groups, beyond what the calibration (a name or a file) holds.

    Raises PlannerError where none tells anything: of groups that were fitted to, or without a time per output token.
    """
    known = load_calibration(calibration)
    if "tpot" not in known.spreads:
        raise PlannerError(
            f"the calibration {known.name} does not tell how far estimates err", hint="start from `default`"
        )
    groups: dict[str, list[tuple[float, float]]] = {}
    cases: dict[str, list[Case]] = {}
    left_out: list[str] = []
    estimates = evaluate([replace(row.case, calibration=calibration) for row in rows], store, near=False)
    for row, estimate in zip(rows, estimates, strict=True):
        group = row.case.group
        if not isinstance(estimate, Estimate):
            left_out.append(f"{row.case.id}: {estimate.reason}")
        elif row.tpot_s is None or row.case.osl < 2:
            left_out.append(f"{row.case.id}: no time per output token is stated")
        elif not known.groups or group in known.groups:
            left_out.append(f"{row.case.id}: the costs were fitted to runs of its group ({group})")
        else:
            assert estimate.tpot_s_interval is not None
            low, high = (np.log(np.array([end / estimate.tpot_s])) for end in estimate.tpot_s_interval)
            spread = known.spreads_of((group,))["tpot"]
            error = float(np.log(row.tpot_s / estimate.tpot_s * known.slowdown(group)))
            groups.setdefault(group, []).append((error, float(spread.within(low, high)[0])))
            cases.setdefault(group, []).append(row.case)
    if not groups:
        raise PlannerError(
            f"no run tells more than the costs hold: {left_out[0]}" if left_out else "no run is given",
            where=rows[0].source if rows else "",
            hint="leave `-o` out to see how far the calibration is from them, or measure a dozen for a fit",
        )
    between = known.spreads["tpot"].between
    before = {group: known.runs.get(group) or GroupBias.unseen(between) for group in groups}
    after = {group: _after(before[group], cases[group], runs) for group, runs in groups.items()}
    forms = dict.fromkeys(measured_forms(case for told in cases.values() for case in told))
    return OwnRuns(before, after, tuple(left_out), tuple(forms))


def _after(before: GroupBias, cases: Sequence[Case], told: Sequence[tuple[float, float]]) -> GroupBias:
    """What is believed of a group after runs of these cases, which told errors with deviations within the group."""
    errors, deviations = zip(*told, strict=True)
    after = before.after(np.array(errors), np.array(deviations))
    known = len(before.seen) == before.runs  # runs of which nothing but their mean is left cannot be placed
    return replace(after, seen=(*before.seen, *seen_runs(cases, errors)) if known else ())


def document_of(told: OwnRuns, base: str, *, date: str, sources: Sequence[str]) -> dict[str, Any]:
    """The calibration file: that of `base`, with the beliefs and the forms of its runs and of these."""
    if base == "default":
        text = resources.files("planner.costs.rates").joinpath("calibration.yaml").read_text(encoding="utf-8")
        data = parse_document(text, "planner/costs/rates/calibration.yaml").data
    else:
        data = load_document(base).data
    assert isinstance(data, dict)
    known = load_calibration(base)
    runs = {**known.runs, **told.after}
    own = sum(bias.runs for group, bias in runs.items() if group not in known.groups)
    return {
        **data,
        "source": f"{known.name}, with {own} runs of {', '.join(sources)}",
        "date": date,
        "previous": {"calibration": known.name, "digest": known.digest},
        "runs": {group: rounded(bias) for group, bias in sorted(runs.items())},
        **({"forms": forms_document([*pairs_of(known.forms), *told.forms])} if known.forms else {}),
    }


def rounded(bias: GroupBias) -> dict[str, Any]:
    """A belief as calibration files hold it."""
    numbers = {"mean": round(bias.mean, _DIGITS), "deviation": round(bias.deviation, _DIGITS), "runs": bias.runs}
    seen = [asdict(replace(run, error=round(run.error, _DIGITS))) for run in bias.seen]
    lists = [{name: list(value) if isinstance(value, tuple) else value for name, value in run.items()} for run in seen]
    return numbers | ({"seen": lists} if lists else {})
