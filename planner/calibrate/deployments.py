"""Fits the parameters of serving costs to measured deployments: kernel efficiencies, and overheads of each engine.

Two fits, each of few named numbers (planner/costs/rates/calibration.py):
1. `fit_costs`: efficiencies of the roofline and each engine's `kernel_start` with the starts of experts, latent
   attention and quantising, `step_s`, `sequence_s`, `prefill_s`, on the measured time per output token. Minimise over
   x, logarithms,
       sum_r rho(log(tpot_r(x) / measured_r) / NOISE) + sum_p ((x_p - x0_p) / prior_p)^2,
   rho the soft-L1 loss: some rows ran with settings that tables do not state. Times are those of the loop at rest,
   corrected by how far those of the replayed benchmark were from them before.
2. `fit_first_tokens`: what each engine adds before the first token (`frontend_s`, `arrival_s`, `poll_steps`,
   `output_steps`, `launch_s`, `latent_launch_s`; `router_s` and `handover_s` of disaggregated ones), on both measured
   times where the one to first token is not queueing: coordinate descent over ordinary values on the mean relative
   errors, capped at CAP a row, of the replayed benchmark.
A fit to many groups, stiffer and alike for all engines: planner/calibrate/shared.py.
An engine with fewer than FEWEST rows of a kind keeps what it had; older releases (OLDER_RELEASES) are engines of their
own where they have as many, else they are as the newest. What an older release adds to steps is expected where that of
the newest is; before the first token, a release of fewer than FEWEST_ALONE rows is fitted with its neighbour's.
"""

import datetime
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from planner.arrays import Bools, Floats
from planner.calibrate.parameters import NAMES, bounds
from planner.calibrate.terms import DeploymentTerms
from planner.costs.rates.calibration import (
    Calibration,
    Efficiencies,
    EngineOverheads,
    TableTrust,
    is_share,
    neighbour_of,
    section_in,
)
from planner.costs.rates.spread import ErrorSpread
from planner.estimate.closed_loop import ClosedLoops, MeanTimes, simulate_loops
from planner.estimate.evaluate import run
from planner.estimate.frame import Added, Frame, Pace, launching_s, loop_of, pace_of, settled, taken

PRIOR_FILE = "planner/calibrate/prior.yaml"
NOISE = 0.12  # relative error of a time per output token that is taken as ordinary
PRIOR = 0.17  # of an efficiency, in logarithms: kernel tables put them within this of their start
GEMM_PRIOR = 0.1  # of the bandwidth of products
FLOP_PRIOR = 0.06  # of a share of a peak rate, on which the tables of all devices nearly agree
LOOSE_PRIOR = 0.5  # of what no table tells
WIDE_PRIOR = 0.25  # of a share of a peak rate on which tables disagree
KERNEL_PRIOR = 0.1  # of an engine's multiple of kernel starts
FEWEST = 12  # rows of an engine from which it has parameters of its own
FEWEST_ALONE = 80  # rows of a release from which those of its neighbour count no more, before the first token
FUSED_PRIOR = 0.25  # of the starts of kernels that engines fuse or do not
RELEASE_PRIOR = 0.25  # of what an older release adds to steps, from what the newest does
MOST_SHARE = 1.0  # of a rate of the data sheet
CAP = 1.5  # relative error from which a row counts no more
_STARTS = ("experts_start", "latent_start", "quantise_start")
_ENGINE = ("kernel_start", *_STARTS, "step_s", "sequence_s", "prefill_s")
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
MOST_STEPS = 30
_STEP = 1e-3  # of finite differences, in logarithms


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


def paced(terms: DeploymentTerms, parameters: ServingParameters, *, tables: bool = False) -> tuple[Pace, Added]:
    """Step times [D] under given parameters; with `tables`, terms that hold table times count by their trust."""
    engines = {name: parameters.engine(name) for name in set(terms.engine_D)}
    trust = {table.name: getattr(parameters.trust, table.name) for table in fields(TableTrust)} if tables else None
    added = Added.of([engines[name] for name in terms.engine_D])
    seconds_DS = terms.device_s(parameters.efficiencies, engines, trust) + terms.host_s(added)
    return pace_of(terms.frame, list(seconds_DS.T), added), added


def settled_tpot_s(terms: DeploymentTerms, parameters: ServingParameters, *, tables: bool = False) -> Floats:
    """Time per output token [D] of each loop at rest, waiting in the mean."""
    return settled(terms.frame, *paced(terms, parameters, tables=tables)).tpot_s


@dataclass(frozen=True, slots=True)
class Fitted:
    """Parameters, and relative standard errors of those that the first fit found."""

    parameters: ServingParameters
    standard_errors: dict[str, float]


def fit_costs(
    terms: DeploymentTerms, measured: MeasuredTimes, start: ServingParameters, now: ServingParameters, chosen: Bools
) -> tuple[ServingParameters, dict[str, float]]:
    """What kernels reach and what engines add to steps, with relative standard errors.

    `start` is where the prior stands, `now` where the search begins: at rest, times are taken to differ from those
    simulated by the factor that they differ by there.
    """
    from scipy.optimize import least_squares

    engines = engines_with_rows(terms, chosen)
    names = [("", name) for name in NAMES] + [(engine, name) for engine in engines for name in _ENGINE]
    expected_start, begin = (np.array([log_of(given, *name) for name in names]) for given in (start, now))
    older = np.array([_newest(names, i) for i in range(len(names))])
    prior = np.array([prior_of(name) for _, name in names])
    release = np.array([LOOSE_PRIOR if name in _STARTS else min(prior_of(name), RELEASE_PRIOR) for _, name in names])
    prior = np.where(older >= 0, release, prior)
    low, high = log_limits(names)
    replayed = predict(terms, now).tpot_s / settled_tpot_s(terms, now)
    wanted = np.log(measured.tpot_s / replayed)[chosen]

    def residuals(x: Floats) -> Floats:
        tpot_s = settled_tpot_s(terms, with_logs(now, names, x))[chosen]
        expected = np.where(older >= 0, x[older], expected_start)
        return np.concatenate([soft_l1((np.log(tpot_s) - wanted) / NOISE), (x - expected) / prior])

    inside = np.clip(begin, low + 1e-6, high - 1e-6)
    solved = least_squares(
        residuals, inside, bounds=(low, high), x_scale=0.2, max_nfev=MOST_STEPS, diff_step=np.full(len(names), _STEP)
    )
    jacobian = np.asarray(solved.jac)
    spread = np.sqrt(np.diag(np.linalg.pinv(jacobian.T @ jacobian)))
    errors = {".".join(filter(None, name)): float(given) for name, given in zip(names, spread, strict=True)}
    return with_logs(now, names, solved.x), errors


def fit_first_tokens(
    terms: DeploymentTerms, measured: MeasuredTimes, start: ServingParameters, chosen: Bools
) -> ServingParameters:
    """What each engine adds before the first token; the default engine takes what fits all rows."""
    usable = chosen & ~measured.queued
    engine_D = np.array(terms.engine_D)
    loops = loop_of(terms.frame, *paced(terms, start))
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


def predict(terms: DeploymentTerms, parameters: ServingParameters, *, tables: bool = False) -> MeanTimes:
    """Times [D] of every deployment's benchmark under these parameters."""
    replayed = run(terms.frame, *paced(terms, parameters, tables=tables))
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


def _newest(names: Sequence[tuple[str, str]], i: int) -> int:
    """Where the same parameter of the engine's newest releases is; -1 for all but older ones."""
    engine, name = names[i]
    newest = (engine.partition("<")[0], name)
    return names.index(newest) if "<" in engine and newest in names else -1


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
    if name == "kernel_start":
        return KERNEL_PRIOR
    if name in _STARTS:
        return FUSED_PRIOR
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
    if name == "kernel_start" or name in _STARTS:
        return 0.3, 10.0
    low, high = bounds(name)
    return low, min(high, MOST_SHARE) if is_share(name) else high


def soft_l1(r: Floats) -> Floats:
    """Signed root of the soft-L1 loss of each residual."""
    return np.sign(r) * np.sqrt(2.0 * (np.sqrt(1.0 + r**2) - 1.0))


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
                name: {side: [float(f"{v:.4g}") for v in getattr(spread, side)] for side in ("low", "high", "between")}
                for name, spread in spreads.items()
            },
        },
        "standard_errors": {name: float(f"{error:.2g}") for name, error in fitted.standard_errors.items()},
    }
