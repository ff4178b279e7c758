"""Arrivals of placed models replayed from a trace: its gaps, from another place of it on for each stream."""

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.simulate.requests.traces import read_trace


def gaps_of(path: str, where: str) -> Floats:
    """The gaps between arrivals of a trace in units of their mean, the mean gap last so that they go around.

    Raises PlannerError for traces of fewer than two arrivals, or of lengths alone.
    """
    arrival_s = read_trace(path).arrival_s
    gaps_s = np.diff(arrival_s)
    if not len(gaps_s) or gaps_s.sum() <= 0.0:
        what = f"the trace has no two times of arrival in {len(arrival_s)} requests"
        raise PlannerError(what, where=where, hint="give one with times, or leave `arrivals` out")
    return np.asarray(np.append(gaps_s / gaps_s.mean(), 1.0))


def replayed(gaps: Floats, rate_per_s: float, horizon_s: float, seed: int) -> Floats:
    """Times before the horizon at this mean rate: the gaps from a drawn one on, around as often as it takes."""
    first = int(np.random.default_rng(seed).integers(len(gaps)))
    around = np.roll(gaps, -first) / rate_per_s
    rounds = int(np.ceil(horizon_s / around.sum())) + 1
    times = np.cumsum(np.tile(around, rounds))
    return np.asarray(times[times < horizon_s])
