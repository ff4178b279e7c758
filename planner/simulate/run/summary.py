"""Summary statistics of a run: means and percentiles with intervals, SLO attainment, throughput, utilisation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats
from planner.problem.slo import SloSpec
from planner.problem.statistics import quantile_of
from planner.simulate.run.gaps import Gaps
from planner.simulate.run.result import SimulationResult

STATISTICS = ("mean", "p50", "p90", "p95", "p99")  # that a summary shows
BATCHES = 20
SHARES = np.linspace(0.0, 1.0, 51)  # of requests, that a summary says the times of
GAP_BATCHES = 8  # of gaps between tokens, which are known by parts of the run
STUDENT_95_GAPS = 2.365  # with 7 degrees of freedom
STUDENT_95 = 2.093  # two-sided 95 % of Student's t with 19 degrees of freedom
FEWEST_TOLD = 100  # requests of a run that tells whether more arrives than is served
GROWTH = 0.01  # seconds that waits grow per second of arrivals: beyond it the load is more than the fleet can take
GRID = 200  # times at which what is left to answer is looked at
UNDELAYED = 0.1  # of the requests: their prefill waits for nothing
SHORT_WAIT = 2.0  # times the mean service, below which growth is no sign of saturation


@dataclass(frozen=True, slots=True)
class Figure:
    """One statistic with its 95 % interval; None where there are too few requests for one."""

    value: float
    interval: tuple[float, float] | None


def statistic(values: Floats, name: str) -> float:
    """The mean or a quantile of values that are no NaN; NaN of none."""
    known = values[~np.isnan(values)]
    if not len(known):
        return math.nan
    quantile = quantile_of(name)
    return float(known.mean()) if quantile is None else float(np.quantile(known, quantile))


def figure(values: Floats, name: str) -> Figure:
    """A statistic of values in order of arrival, its interval by batch means.

    Neighbours are correlated, so that the spread of `BATCHES` long batches stands for that of the whole (Law,
    Simulation Modeling and Analysis, chapter 9).
    """
    value = statistic(values, name)
    batches = [statistic(batch, name) for batch in np.array_split(values, BATCHES)]
    if len(values) < 10 * BATCHES or any(math.isnan(mean) for mean in batches):
        return Figure(value, None)
    half = STUDENT_95 * float(np.std(batches, ddof=1)) / math.sqrt(BATCHES)
    return Figure(value, (max(value - half, 0.0), value + half))


def attained(result: SimulationResult, slos: Sequence[SloSpec]) -> Bools:
    """Which requests meet every percentile's limit of their workload at once [R]; rejected and unfinished ones do not.

    Requests of no workload are judged by the first.
    """
    meets, workload, times_s = result.complete.copy(), result.requests.workload, result.times_s
    for index, slo in enumerate(slos if workload is not None else slos[:1]):
        others = np.zeros(len(meets), dtype=np.bool_) if workload is None else workload != index
        for name, bound_s in slo.percentile_limits().items():
            values = times_s[name]
            meets &= others | np.isnan(values) | (values <= bound_s)
    return meets


def saturated(result: SimulationResult) -> bool:
    """Whether a whole run is sent more than it serves: waits grow with time, or what is left to answer does."""
    return waits_grow(result) or (_tells(result) and _answers_pile_up(result))


def waits_grow(result: SimulationResult) -> bool:
    """Whether requests, those of a workload alone too, wait the longer the later they come.

    A request waits until it is begun, and where it is decoded elsewhere for a place there before its first token.
    """
    if not _tells(result):
        return False
    known, complete = ~np.isnan(result.started_s), result.complete
    arrival_s, wait_s = result.arrival_s[known], np.fmax(result.started_s - result.arrival_s, result.ttft_s)[known]
    decoded_s = (result.e2e_s - result.ttft_s)[complete]
    return _grows(arrival_s, wait_s, float(decoded_s.mean()) + _undelayed_prefill_s(result))


def _answers_pile_up(result: SimulationResult) -> bool:
    """As they do where short ones overtake: few wait, and those that do are most of the work. Of whole runs alone.

    What is left is the tokens that requests which came have not had, in seconds of arriving tokens. Tokens had are
    those of gaps, whose parts end with known answers, and first ones. What service explains of it is a prefill and the
    half of each answer that is left on average where none is interrupted, at the median time of a token of its engine;
    the rest is held against service as waits are.
    """
    tokens, gaps = result.requests.output_tokens.astype(np.float64), result.gaps.by_part
    taken = ~result.rejected & ~np.isnan(result.arrival_s)
    arrival_s, finished_s = np.sort(result.arrival_s[taken]), np.sort(result.finished_s[result.complete])
    ends = np.ceil(np.arange(1, len(gaps) + 1) * len(tokens) / len(gaps)).astype(np.int64)
    ends = ends[ends <= len(finished_s)]
    if not gaps.sum() or not len(ends) or not arrival_s[-1] > arrival_s[0]:
        return False
    times_s = np.linspace(arrival_s[0], arrival_s[-1], GRID)
    decoded = np.cumsum(gaps[: len(ends)]) * (tokens - 1.0)[result.complete].sum() / gaps.sum()
    had = np.interp(times_s, [arrival_s[0], *finished_s[ends - 1]], [0.0, *decoded])
    had += np.searchsorted(np.sort(result.first_token_s[~np.isnan(result.first_token_s)]), times_s, side="right")
    order = np.argsort(result.arrival_s[taken], kind="stable")
    come = np.cumsum(tokens[taken][order])[np.searchsorted(arrival_s, times_s, side="right") - 1]
    left_s = (come - had) * (arrival_s[-1] - arrival_s[0]) / come[-1]
    decode_s = float((tokens * tokens * _token_s(result))[taken].sum() / come[-1])
    prefill_s = _undelayed_prefill_s(result)
    return _grows(times_s, left_s - (0.5 * decode_s + prefill_s), decode_s + prefill_s)


def _tells(result: SimulationResult) -> bool:
    return not result.requests.clients and len(result.requests) >= FEWEST_TOLD and bool(result.complete.any())


def _grows(arrival_s: Floats, values_s: Floats, service_s: float) -> bool:
    """Whether values grow over arrivals, and are in the end beyond what service itself explains."""
    if len(arrival_s) < FEWEST_TOLD or not arrival_s[-1] > arrival_s[0]:
        return False
    centred = arrival_s - arrival_s.mean()
    growth = float((centred * values_s).sum() / (centred * centred).sum())
    return growth > GROWTH and float(values_s[-len(values_s) // 10 :].mean()) > SHORT_WAIT * service_s


def _undelayed_prefill_s(result: SimulationResult) -> float:
    return float(np.quantile((result.first_token_s - result.started_s)[result.complete], UNDELAYED))


def _token_s(result: SimulationResult) -> Floats:
    """The median time per token of the engine that each request was on last [R]; 0 where none is known."""
    tpot_s, medians_s = result.tpot_s, np.zeros(len(result.requests))
    for home in np.unique(result.home):
        own = result.home == home
        known_s = tpot_s[own & ~np.isnan(tpot_s)]
        medians_s[own] = float(np.median(known_s)) if len(known_s) else 0.0
    return medians_s


def summarise(
    result: SimulationResult,
    slos: Sequence[SloSpec],
    *,
    gpus: int | None = None,
    roles: Sequence[str] = (),
    warm_up: int = 0,
) -> dict[str, object]:
    """The run as one document; the first `warm_up` requests are left out of times and attainment."""
    span_s = _span(result)
    tokens = float(result.requests.output_tokens[result.complete].sum())
    rate, attainment = float(result.complete.sum()) / span_s, float(attained(result, slos)[warm_up:].mean())
    document: dict[str, object] = {
        "requests": len(result.requests),
        "complete": int(result.complete.sum()),
        "rejected": int(result.rejected.sum()),
        "cut": int(result.cut.sum()),
        "unfinished": result.num_unfinished,
        "drained": result.drained,
        "saturated": saturated(result),
        "span_s": span_s,
        "requests_per_s": rate,
        "output_tokens_per_s": tokens / span_s,
        "attainment": attainment,
        "goodput_per_s": rate * attainment,
        "times": _times(result, warm_up),
        "quantiles": _quantiles(result, warm_up),
        "mean_s": _where_time_went(result, warm_up),
        "preemptions": int(result.preemptions.sum()),
        "migrations": int(result.migrations.sum()),
        "accepted_drafts_share": _share(result.accepted_tokens.sum(), result.decode_tokens.sum()),
        "adapter_loads": int(result.adapter_loads.sum()),
        "prefill_degree": _share(result.degree.sum(), (result.degree > 0).sum()),
        "up_share": _share(result.up_s.sum(), result.end_s * len(result.up_s)),
        "prefix_hit_share": _share(result.hit_tokens.sum(), result.hit_tokens.sum() + result.prefill_tokens.sum()),
        "roles": _roles(result, roles or ["all"] * len(result.busy_s), span_s),
        "steps": int(result.steps.sum()),
    }
    if gpus:
        document["output_tokens_per_s_per_gpu"] = tokens / span_s / gpus
    return document


def figures(result: SimulationResult, slo: SloSpec, warm_up: int) -> dict[str, object]:
    """What became of the requests of one workload."""
    return {
        "requests": len(result.requests),
        "complete": int(result.complete.sum()),
        "rejected": int(result.rejected.sum()),
        "cut": int(result.cut.sum()),
        "attainment": float(attained(result, (slo,))[warm_up:].mean()),
        "times": _times(result, warm_up),
        "quantiles": _quantiles(result, warm_up),
    }


def _times(result: SimulationResult, warm_up: int) -> dict[str, object]:
    times = {"ttft_s": result.ttft_s, "tpot_s": result.tpot_s, "latency_s": result.e2e_s}
    shown: dict[str, object] = {name: _figures(values[warm_up:]) for name, values in times.items()}
    gaps = result.gaps.within(warm_up / max(len(result.requests), 1), 1.0)
    return shown | {"itl_s": _figures_of_gaps(gaps)} if gaps.count else shown


def _quantiles(result: SimulationResult, warm_up: int) -> dict[str, list[float]]:
    """Of each time, the values that 0, 2, 4, ... and 100 % of the requests stay within; nothing of times of none."""
    times = {"ttft_s": result.ttft_s, "tpot_s": result.tpot_s, "latency_s": result.e2e_s}
    known = {name: values[warm_up:][~np.isnan(values[warm_up:])] for name, values in times.items()}
    return {name: np.quantile(values, SHARES).tolist() for name, values in known.items() if len(values)}


def _span(result: SimulationResult) -> float:
    """From the first arrival to the last answer."""
    known = result.arrival_s[~np.isnan(result.arrival_s)]
    return max(result.end_s - float(known.min()), 1e-12) if len(known) else 1e-12


def _figures(values: Floats) -> dict[str, object]:
    values_of = {name: figure(values, name) for name in STATISTICS}
    return {
        name: {"value": entry.value, "interval": None if entry.interval is None else list(entry.interval)}
        for name, entry in values_of.items()
        if not math.isnan(entry.value)
    }


def _figures_of_gaps(gaps: Gaps) -> dict[str, object]:
    """Statistics of gaps between tokens, their intervals by batches of neighbouring parts of the run."""
    rows: dict[str, object] = {}
    for name in STATISTICS:
        value, quantile = gaps.statistic_s(quantile_of(name)), quantile_of(name)
        values = np.array([batch.statistic_s(quantile) for batch in gaps.batches(GAP_BATCHES)])
        known = not np.isnan(values).any() and gaps.count >= 10 * BATCHES
        half = STUDENT_95_GAPS * float(np.std(values, ddof=1)) / math.sqrt(GAP_BATCHES) if known else 0.0
        rows[name] = {"value": value, "interval": [max(value - half, 0.0), value + half] if known else None}
    return rows


def _where_time_went(result: SimulationResult, warm_up: int) -> dict[str, float]:
    """Mean seconds of a complete request by what it did."""
    done = result.complete.copy()
    done[:warm_up] = False
    if not done.any():
        return {}
    stages = {
        "waiting": (result.arrival_s, result.started_s),
        "prefill": (result.started_s, result.prefilled_s),
        "hand_over": (result.prefilled_s, result.first_token_s),
        "decode": (result.first_token_s, result.finished_s),
    }
    return {name: float(np.mean((end - start)[done])) for name, (start, end) in stages.items()}


def _roles(result: SimulationResult, names: Sequence[str], span_s: float) -> dict[str, object]:
    role_of = np.array(names)
    rows: dict[str, object] = {}
    for name in dict.fromkeys(names):
        members = role_of == name
        busy_s, steps = float(result.busy_s[members].sum()), int(result.steps[members].sum())
        passes_s = float((result.busy_s * result.stages)[members].sum())
        rows[name] = {
            "instances": int(members.sum()),
            "busy_share": busy_s / span_s / int(members.sum()),
            "prefill_share_of_busy": _share(result.busy_prefill_s[members].sum(), busy_s),
            "mean_batch": _share(result.sequence_s[members].sum(), busy_s),
            "mean_step_s": _share(passes_s, steps),
            "peak_kv_share": float((result.peak_blocks[members] / result.capacity_blocks[members]).max()),
            "preemptions": int(result.preemptions[members].sum()),
        }
    return rows


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole else 0.0
