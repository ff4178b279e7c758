"""The calibration file that a fit writes: new values, those they replace, the data behind them, their uncertainty."""

import math
from dataclasses import asdict
from typing import Any

from planner.calibrate.fit import EfficiencyFit
from planner.costs.rates.calibration import Calibration, Efficiencies
from planner.costs.rates.forms import forms_document, pairs_of
from planner.costs.rates.spread import SIDES, ErrorSpread
from planner.documents.units import significant

SCHEMA = "planner.calibration/1"
_DIGITS = 5  # far below any standard error


def document_of(fit: EfficiencyFit, base: Calibration, *, date: str, sources: tuple[str, ...]) -> dict[str, Any]:
    """The file as plain data; `previous` holds the values that were replaced, and the digest of where they stood.

    Only `roofline`, `tables`, `engines`, `intervals` and `training` are costs; everything else says where they are
    from. The digest is of the first four.
    """
    values = _rounded(fit)
    before = asdict(base.efficiencies)
    replaced = {name: before[name] for name in fit.standard_errors}
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "source": f"fitted to {fit.num_steps} executed steps of {'; '.join(fit.groups)}; the rest as in {base.name}",
        "date": date,
        "records": {"steps": fit.num_steps, "operators": fit.num_operators, "files": list(sources)},
        "step_time_error": {"before": fit.before.as_json(), "after": fit.after.as_json()},
        "roofline": {name: value for name, value in {**before, **values}.items() if math.isfinite(value)},
        "tables": asdict(base.tables),
        "engines": {name: asdict(overheads) for name, overheads in sorted(base.engines.items())},
        "intervals": {
            "groups": sorted(base.groups),
            **{name: _ends(spread) for name, spread in sorted(base.spreads.items())},
        },
        "standard_errors": {name: float(f"{error:.3g}") for name, error in fit.standard_errors.items()},
        "previous": {"calibration": base.name, "digest": base.digest, "roofline": replaced},
    }
    if fit.held_out is not None:
        document["step_time_error"]["groups_left_out"] = fit.held_out.as_json()
    return document | {"forms": forms_document(pairs_of(base.forms))} | training_of(base)


def training_of(base: Calibration) -> dict[str, Any]:
    """Section `training` of the calibration that a fit began with, which no serving run tells about; none without."""
    return {} if base.training is None else {"training": base.training.document()}


def _ends(spread: ErrorSpread) -> dict[str, list[float]]:
    return {side: list(getattr(spread, side)) for side in SIDES}


def _rounded(fit: EfficiencyFit) -> dict[str, float]:
    values = asdict(fit.efficiencies)
    return {name: float(f"{values[name]:.{_DIGITS}g}") for name in fit.standard_errors}


def text_of(document: dict[str, Any]) -> str:
    """The file as YAML, one parameter a line."""
    import yaml

    return str(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120, default_flow_style=False))


def summary(fit: EfficiencyFit, base: Efficiencies) -> list[str]:
    """The fit in lines: errors before and after, then each fitted parameter with its relative standard error."""
    lines = [
        f"{fit.num_steps} steps and {fit.num_operators} operators of {len(fit.groups)} groups",
        f"step time error   before   median {fit.before.median:.1%}, mean {fit.before.mean:.1%}",
        f"                  after    median {fit.after.median:.1%}, mean {fit.after.mean:.1%}",
    ]
    if fit.held_out is not None:
        lines.append(f"       groups left out   median {fit.held_out.median:.1%}, mean {fit.held_out.mean:.1%}")
    width = max(len(name) for name in fit.standard_errors)
    for name, error in fit.standard_errors.items():
        old, new = getattr(base, name), getattr(fit.efficiencies, name)
        lines.append(f"{name:<{width}}  {significant(old)} -> {significant(new)}  (± {error:.1%})")
    return lines
