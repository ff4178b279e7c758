"""numba runs of `planner.estimate.closed_loop`, which describes the model; times in seconds, heaps in two arrays."""

import numpy as np
from numba import njit

from planner.estimate.compiled.colocated import colocated
from planner.estimate.compiled.disaggregated import disaggregated
from planner.estimate.compiled.quantiles import BINS, gap_quantiles, weighted_quantiles
from planner.estimate.compiled.sending import Requests
from planner.solvers.compilation.kept import kept
from planner.solvers.compilation.parts import inlined_part, owning_part

MOST_REQUESTS = 6000  # simulated of one run; those of later rounds count for the others
LEAST_ROUNDS = 3  # of all clients
LEAST_REQUESTS = 8
OPEN_REQUESTS, OPEN_TURNS = 6000, 10.0  # simulated of an open load, and of those that are there together
OPEN_FROM, OPEN_TO = 0.2, 0.8  # shares of them between which it is in its steady state


@inlined_part
def _mean(values, clients, asked, watch):
    """Of all requests asked for: the first of each client once, the others as the mean of those simulated.

    Of an open load: of those in its steady state.
    """
    if np.isfinite(watch[1]):
        return np.mean(values[int(watch[0]) : int(watch[1])])
    if len(values) >= asked or len(values) <= clients:
        return np.mean(values)
    share = clients / asked
    return share * np.mean(values[:clients]) + (1.0 - share) * np.mean(values[clients:])


@inlined_part
def _units(run):
    """In how many equal parts the run is, of which one is simulated."""
    return run.decode_ranks if run.disaggregated == 0.0 else 1.0


@owning_part
def _load(run, between):
    """Requests simulated, those of the first round, and those asked for; when the first begin; what is watched [2]."""
    units = _units(run)
    if run.rate_per_s > 0.0:
        in_flight = run.rate_per_s / units * run.osl * (run.base_s + run.slope_s * run.most_decoding)
        count = min(int(max(OPEN_REQUESTS, OPEN_TURNS * in_flight)), len(between))
        starts = np.cumsum(between[:count]) * units / run.rate_per_s
        return count, count, count, starts, np.array([OPEN_FROM * count, OPEN_TO * count])
    batch = min(run.clients / run.decode_ranks, run.most_decoding)
    here = int(np.ceil(run.clients / units))
    asked = int(max(run.requests_per_client * here, LEAST_REQUESTS))
    count = min(asked, max(MOST_REQUESTS, LEAST_ROUNDS * here))
    stagger = run.staggered * (run.osl * (run.base_s + run.slope_s * batch) + batch * run.token_s * run.isl)
    return count, here, asked, stagger * np.arange(min(here, count)) / here, np.array([0.0, np.inf])


@owning_part
def _requests(run, count, starts, prompts, answers, delays):
    """So many requests with what was drawn for them, those beyond all draws from the first on again."""
    isl, osl, delay = np.empty(count), np.empty(count), np.empty(count)
    for request in range(count):
        turn = request % len(prompts)
        isl[request] = run.isl * (1.0 - run.spread * prompts[turn])
        osl[request] = np.floor(run.osl * (1.0 - run.osl_spread * answers[turn]))
        delay[request] = run.arrival_s * delays[turn]
    together = run.tokenises_together > 0.0
    own = run.frontend_s + (0.0 if together else run.frontend_token_s) * isl
    front = own if together else own * _units(run)
    delay += run.frontend_s + run.frontend_token_s * isl - front
    sent, ready, first, ttft, tpot = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count)
    return Requests(starts, isl, osl, front, delay, sent, ready, np.zeros(count, np.int64), first, ttft, tpot)


@owning_part
def _write_quantiles(run, requests, gaps, watch, here, asked, levels, out):
    """Quantiles of one run [4, levels]."""
    count = len(requests.isl)
    begin, end = (int(watch[0]), int(watch[1])) if run.rate_per_s > 0.0 else (0, count)
    once = count if run.rate_per_s > 0.0 else min(here, count)
    later = (asked - once) / (count - once) if count > once else 1.0
    latency = requests.ttft + requests.tpot * np.maximum(requests.osl - 1.0, 0.0)
    gap_quantiles(gaps, np.sqrt(np.log(1.0 + run.jitter**2)), levels, out[1])
    weighted_quantiles(requests.ttft[begin:end], once, later, levels, out[0])
    weighted_quantiles(requests.tpot[begin:end], once, later, levels, out[2])
    weighted_quantiles(latency[begin:end], once, later, levels, out[3])


@kept
@njit
def simulate_all(runs, draws, levels, means, quantiles):
    """Means [3, N] of all runs [N], and quantiles [4, levels, N] where `levels` are any: TTFT, gaps, TPOT, latency."""
    prompts, answers, delays, between, noise = draws
    for place in range(len(runs)):
        run = runs[place]
        count, here, asked, starts, watch = _load(run, between)
        requests = _requests(run, count, starts, prompts, answers, delays)
        gaps = np.zeros(BINS if len(levels) > 0 else 0)
        if run.disaggregated == 0.0:
            elapsed_s = colocated(run, requests, watch, gaps, noise)
        else:
            elapsed_s = disaggregated(run, requests, watch, gaps, noise)
        if len(levels) > 0:
            _write_quantiles(run, requests, gaps, watch, here, asked, levels, quantiles[:, :, place])
        means[0, place] = _mean(requests.ttft, here, asked, watch)
        means[1, place] = _mean(requests.tpot, here, asked, watch)
        means[2, place] = count / max(elapsed_s, 1e-12)
