"""numba runs of `planner.estimate.closed_loop`, which describes the model; times in seconds, heaps in two arrays."""

import numpy as np
from numba import njit

from planner.estimate.compiled.colocated import colocated
from planner.estimate.compiled.disaggregated import disaggregated
from planner.estimate.compiled.quantiles import BINS, gap_quantiles, weighted_quantiles
from planner.solvers.compilation.parts import part

MOST_REQUESTS = 6000  # simulated of one run; those of later rounds count for the others
LEAST_ROUNDS = 3  # of all clients
LEAST_REQUESTS = 8
OPEN_REQUESTS, OPEN_TURNS = 6000, 10.0  # simulated of an open load, and of those that are there together
OPEN_FROM, OPEN_TO = 0.2, 0.8  # shares of them between which it is in its steady state


@part
def _mean(values, clients, asked):
    """Of all requests asked for: the first of each client once, the others as the mean of those simulated."""
    if len(values) >= asked or len(values) <= clients:
        return np.mean(values)
    share = clients / asked
    return share * np.mean(values[:clients]) + (1.0 - share) * np.mean(values[clients:])


@njit(cache=True)
def simulate_all(columns, draws_isl, draws_osl, draws_delay, draws_gap, noise, levels, means, quantiles):
    """Means [3, N] of all runs, and quantiles [4, levels, N] where `levels` are any: TTFT, gaps, TPOT, latency."""
    for run in range(columns.shape[1]):
        (clients, each, isl_top, osl_top, spread, osl_spread, apart, instances, ranks, servers, most, base, slope,
         start, token, moved, step_tokens, frontend, arrival, poll, output, hold, apart_steps, staggered, least, rate,
         cache, graph_batch, eager, jitter, frontend_token, together, members) = columns[:, run]  # fmt: skip
        units = ranks if apart == 0.0 else 1.0
        batch = min(clients / ranks, most)
        if rate > 0.0:
            in_flight = rate / units * osl_top * (base + slope * most)
            count = min(int(max(OPEN_REQUESTS, OPEN_TURNS * in_flight)), len(draws_gap))
            here = asked = count
            starts = np.cumsum(draws_gap[:count]) * units / rate
            watch = np.array([OPEN_FROM * count, OPEN_TO * count])
        else:
            here = int(np.ceil(clients / units))
            asked = int(max(each * here, LEAST_REQUESTS))
            count = min(asked, max(MOST_REQUESTS, LEAST_ROUNDS * here))
            stagger = staggered * (osl_top * (base + slope * batch) + batch * token * isl_top)
            starts = stagger * np.arange(min(here, count)) / here
            watch = np.array([0.0, np.inf])
        isl, osl, delay = np.empty(count), np.empty(count), np.empty(count)
        drawn = len(draws_isl)
        for request in range(count):
            turn = request if request < drawn else request % drawn
            isl[request] = isl_top * (1.0 - spread * draws_isl[turn])
            osl[request] = np.floor(osl_top * (1.0 - osl_spread * draws_osl[turn]))
            delay[request] = arrival * draws_delay[turn]
        own = frontend + (0.0 if together > 0.0 else frontend_token) * isl
        front = own if together > 0.0 else own * units
        delay += frontend + frontend_token * isl - front
        ttft, tpot, gaps = np.zeros(count), np.zeros(count), np.zeros(BINS if len(levels) > 0 else 0)
        if apart == 0.0:
            elapsed = colocated(
                starts, isl, osl, delay, int(most), base, slope, start, token, step_tokens, front, int(poll), output,
                int(hold), apart_steps > 0.0, least, osl_spread == 0.0 and cache == np.inf, cache, graph_batch, eager,
                jitter, noise, watch, gaps, ttft, tpot,
            )  # fmt: skip
        else:
            elapsed = disaggregated(
                starts, isl, osl, delay, int(instances), ranks, most, max(int(servers), 1), int(members), base,
                slope, start, token, step_tokens, moved, front, least, graph_batch, eager, jitter, noise, watch, gaps,
                ttft, tpot,
            )  # fmt: skip
        if len(levels) > 0:
            begin, end = (int(watch[0]), int(watch[1])) if rate > 0.0 else (0, count)
            once = count if rate > 0.0 else min(here, count)
            later = (asked - once) / (count - once) if count > once else 1.0
            latency = ttft + tpot * np.maximum(osl - 1.0, 0.0)
            gap_quantiles(gaps, np.sqrt(np.log(1.0 + jitter**2)), levels, quantiles[1, :, run])
            weighted_quantiles(ttft[begin:end], once, later, levels, quantiles[0, :, run])
            weighted_quantiles(tpot[begin:end], once, later, levels, quantiles[2, :, run])
            weighted_quantiles(latency[begin:end], once, later, levels, quantiles[3, :, run])
        means[0, run] = _mean(ttft, here, asked)
        means[1, run] = _mean(tpot, here, asked)
        means[2, run] = count / max(elapsed, 1e-12)
