"""Fits the parameters of serving costs to measured deployments: kernel efficiencies, and overheads of each engine.

Two fits, each of few named numbers (planner/costs/rates/calibration.py):
1. planner/calibrate/shared.py: efficiencies of the roofline and host times, alike for all engines, and where each group
   of runs lies beside them, on the measured time per output token.
2. `fit_first_tokens`: what each engine adds before the first token (`frontend_s`, `arrival_s`, `poll_steps`,
   `output_steps`, `launch_s`, `latent_launch_s`; `router_s` and `handover_s` of disaggregated ones), on both measured
   times where the one to first token is not queueing: coordinate descent over ordinary values on the mean relative
   errors, capped at CAP a row, of the replayed benchmark.
An engine with fewer than FEWEST rows of a kind keeps what it had; older releases (OLDER_RELEASES) are engines of their
own where they have as many, else they are as the newest. Before the first token, a release of fewer than FEWEST_ALONE
rows is fitted with its neighbour's.
"""

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from planner.arrays import Bools, Floats
from planner.calibrate.parameters import bounds
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import Calibration, Efficiencies, TableTrust, is_share
from planner.costs.rates.engine_overheads import EngineOverheads, neighbour_of, section_in
from planner.costs.rates.spread import SIDES, ErrorSpread
from planner.estimate.closed_loop import ClosedLoops, MeanTimes, simulate_loops
from planner.estimate.evaluate import run
from planner.estimate.frame import Added, Frame, Pace, launching_s, loop_of, pace_of, settled, taken

PRIOR_FILE = "planner/calibrate/prior.yaml"
PRIOR = 0.17  # of an efficiency, in logarithms: kernel tables put them within this of their start
GEMM_PRIOR = 0.1  # of the bandwidth of products
FLOP_PRIOR = 0.06  # of a share of a peak rate, on which the tables of all devices nearly agree
LOOSE_PRIOR = 0.5  # of what no table tells
WIDE_PRIOR = 0.25  # of a share of a peak rate on which tables disagree
FEWEST = 12  # rows of an engine from which it has parameters of its own
FEWEST_ALONE = 80  # rows of a release from which those of its neighbour count no more, before the first token
MOST_SHARE = 1.0  # of a rate of the data sheet
CAP = 1.5  # relative error from which a row counts no more
_LOOSE = (
    "step_s",
    "sequence_s",
    "prefill_s",
    "quantise_fp8_s",
    "quantise_block_s",
    "quantise_4bit_s",
    "experts_quantise_s",
    "experts_width",
    "experts_rows",
    "exchange_start_s",
    "wide_exchange_start_s",
)
_FIRST = {
    "frontend_s": (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016),
    "arrival_s": (0.001, 0.002, 0.005, 0.01, 0.02, 0.04),
    "poll_steps": (1.0, 2.0, 3.0, 5.0, 8.0),
    "output_steps": (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0),
    "launch_s": (0.0, 1e-5, 2e-5, 3e-5, 4.5e-5, 6e-5, 8e-5),
    "latent_launch_s": (0.0, 0.2e-3, 0.4e-3, 0.8e-3, 1.2e-3, 1.6e-3),
}
_APART = {
    "router_s": (0.0, 0.0002, 0.0005, 0.001, 0.002, 0.004),
    "handover_s": (0.0, 0.02, 0.05, 0.08, 0.12, 0.16, 0.24),
}
_SWEEPS = 2


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """What was measured of deployments [D]; `queued` are times to first token that are mostly queueing."""

    ttft_s: Floats
    tpot_s: Floats
    queued: Bools


@dataclass(frozen=True, slots=True)
class ServingParameters:
    """All that a fit decides."""

    efficiencies: Efficiencies
    engines: dict[str, EngineOverheads]
    trust: TableTrust

    @classmethod
    def of(cls, calibration: Calibration, engines: Sequence[str]) -> "ServingParameters":
        """Those of a calibration, with every section named."""
        known = {name: section_in(calibration.engines, name) for name in sorted({*engines, "default"})}
        return cls(calibration.efficiencies, known, calibration.tables)

    def engine(self, name: str) -> EngineOverheads:
        return section_in(self.engines, name)


def paced(
    terms: DeploymentTerms, parameters: ServingParameters, *, tables: bool = False, longer: Floats | None = None
) -> tuple[Pace, Added]:
    """Step times [D] under given parameters, as much longer [D] as their groups have them.

    With `tables`, terms that hold table times count by their trust.
    """
    engines = {name: parameters.engine(name) for name in set(terms.engine_D)}
    trust = {table.name: getattr(parameters.trust, table.name) for table in fields(TableTrust)} if tables else None
    added = Added.of([engines[name] for name in terms.engine_D])
    seconds_DS = terms.device_s(parameters.efficiencies, engines, trust) + terms.host_s(added)
    if longer is not None:
        seconds_DS = seconds_DS * longer[:, None]
    return pace_of(terms.frame, list(seconds_DS.T), added), added


def settled_tpot_s(terms: DeploymentTerms, parameters: ServingParameters, *, tables: bool = False) -> Floats:
    """Time per output token [D] of each loop at rest, waiting in the mean."""
    return settled(terms.frame, *paced(terms, parameters, tables=tables)).tpot_s


@dataclass(frozen=True, slots=True)
class Fitted:
    """Parameters, and relative standard errors of those that all groups share."""

    parameters: ServingParameters
    standard_errors: dict[str, float]


def fit_first_tokens(
    terms: DeploymentTerms,
    measured: MeasuredTimes,
    start: ServingParameters,
    chosen: Bools,
    longer: Floats | None = None,
) -> ServingParameters:
    """What each engine adds before the first token; the default engine takes what fits all rows.

    Steps are as much `longer` [D] as their groups have them.
    """
    usable = chosen & ~measured.queued
    engine_D = np.array(terms.engine_D)
    loops = loop_of(terms.frame, *paced(terms, start, longer=longer))
    apart = loops.disaggregated > 0
    frame, engines = terms.frame, dict(start.engines)
    for name in ("default", *engines_with_rows(terms, usable & ~apart)):
        counted = usable if name == "default" else usable & (engine_D == name)
        if np.sum(counted & ~apart) < FEWEST_ALONE:
            counted = usable & np.isin(engine_D, (name, neighbour_of(name)))
        engines[name] = _descend(frame, loops, measured, engines[name], counted & ~apart, _FIRST)
        if np.sum(counted & apart) >= FEWEST:
            engines[name] = _descend(frame, loops, measured, engines[name], counted & apart, _APART)
    return replace(start, engines=engines)


def predict(
    terms: DeploymentTerms, parameters: ServingParameters, *, tables: bool = False, longer: Floats | None = None
) -> MeanTimes:
    """Times [D] of every deployment's benchmark under these parameters, steps as much `longer` [D]."""
    replayed = run(terms.frame, *paced(terms, parameters, tables=tables, longer=longer))
    return MeanTimes(replayed.ttft_s, replayed.tpot_s)


def _descend(
    frame: Frame,
    loops: ClosedLoops,
    measured: MeasuredTimes,
    engine: EngineOverheads,
    rows: Bools,
    grids: dict[str, tuple[float, ...]],
) -> EngineOverheads:
    """The least mean capped error over one grid after another."""
    if not rows.any():
        return engine
    ttft_s, tpot_s = measured.ttft_s[rows], measured.tpot_s[rows]
    own_loops, own_frame = taken(loops, rows), taken(frame, rows)
    polled = own_frame.poll_steps > 0  # stated
    handed = np.maximum(own_loops.moved_s - engine.handover_s, 0.0)

    def error(candidate: EngineOverheads) -> float:
        replayed = simulate_loops(
            replace(
                own_loops,
                frontend_s=np.where(own_loops.disaggregated > 0, candidate.router_s, candidate.frontend_s),
                arrival_s=np.full(len(ttft_s), candidate.arrival_s),
                poll_steps=np.where(polled, own_loops.poll_steps, candidate.poll_steps),
                output_steps=np.full(len(ttft_s), candidate.output_steps),
                least_s=launching_s(own_frame, candidate),
                moved_s=np.where(own_loops.disaggregated > 0, handed + candidate.handover_s, 0.0),
            )
        )
        ttft, tpot = np.abs(replayed.ttft_s / ttft_s - 1.0), np.abs(replayed.tpot_s / tpot_s - 1.0)
        return float(np.mean(np.minimum(ttft, CAP)) + np.mean(np.minimum(tpot, CAP)))

    best = error(engine)
    for _ in range(_SWEEPS):
        for name, values in grids.items():
            for value in values:
                other = replace(engine, **{name: value})
                if (candidate_error := error(other)) < best:
                    best, engine = candidate_error, other
    return engine


def engines_with_rows(terms: DeploymentTerms, chosen: Bools) -> list[str]:
    """The engines that have enough of the chosen rows [D] for parameters of their own."""
    engine_D = np.array(terms.engine_D)
    return [str(name) for name in np.unique(engine_D) if np.sum(chosen & (engine_D == name)) >= FEWEST]


def log_of(parameters: ServingParameters, engine: str, name: str) -> float:
    """The logarithm of a parameter of an engine, or of an efficiency where `engine` is empty."""
    holder = parameters.engine(engine) if engine else parameters.efficiencies
    return math.log(max(getattr(holder, name), 1e-9))


def with_logs(start: ServingParameters, names: Sequence[tuple[str, str]], x: Floats) -> ServingParameters:
    """`start` with the parameters of these engines and names at the exponentials of `x`."""
    values = {name: math.exp(value) for name, value in zip(names, x, strict=True)}
    efficiencies = replace(start.efficiencies, **{name: v for (engine, name), v in values.items() if not engine})
    engines = {
        known: replace(overheads, **{name: v for (engine, name), v in values.items() if engine == known})
        for known, overheads in start.engines.items()
    }
    return replace(start, efficiencies=efficiencies, engines=engines)


def prior_of(name: str) -> float:
    """How far a parameter may well be from its start, in logarithms."""
    if name.startswith("gemm_bandwidth"):
        return GEMM_PRIOR
    if name.startswith("experts_flop"):
        return WIDE_PRIOR
    if "_flop" in name:
        return FLOP_PRIOR
    return LOOSE_PRIOR if name in _LOOSE else PRIOR


def log_limits(names: Sequence[tuple[str, str]]) -> tuple[Floats, Floats]:
    """The least and the most that the logarithms of parameters may be.

    A share of a rate is at most 1 here: the fit must not explain what is left out by kernels beyond the peak.
    """
    low, high = np.log(np.array([_limits(name) for _, name in names])).T
    return low, high


def _limits(name: str) -> tuple[float, float]:
    low, high = bounds(name)
    return low, min(high, MOST_SHARE) if is_share(name) else high


def document_of(
    fitted: Fitted, spreads: dict[str, ErrorSpread], groups: Iterable[str], *, rows: int, data: str
) -> dict[str, Any]:
    """The calibration file as plain data: values, what they rest on, and how sure they are.

    `groups` are those of the runs that were fitted to (`planner.costs.rates.spread.group_of_runs`).
    """
    parameters = fitted.parameters

    def numbers(of: Any) -> dict[str, float]:  # noqa: ANN401 - a dataclass of numbers
        return {parameter.name: float(f"{getattr(of, parameter.name):.4g}") for parameter in fields(of)}

    return {
        "schema": "planner.calibration/1",
        "source": f"fitted to {rows} measured deployments by benchmarks/serving.py --write, from {PRIOR_FILE}",
        "date": datetime.date.today().isoformat(),
        "data": data,
        "roofline": numbers(parameters.efficiencies),
        "tables": numbers(parameters.trust),
        "engines": {name: numbers(engine) for name, engine in sorted(parameters.engines.items())},
        "intervals": {
            "groups": sorted(groups),
            **{
                name: {side: [float(f"{v:.4g}") for v in getattr(spread, side)] for side in SIDES}
                for name, spread in spreads.items()
            },
        },
        "standard_errors": {name: float(f"{error:.2g}") for name, error in fitted.standard_errors.items()},
    }
