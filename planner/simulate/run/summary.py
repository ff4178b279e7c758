"""Summary statistics of a run: means and percentiles with intervals, SLO attainment, throughput, utilisation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats
from planner.problem.schema import SloSpec
from planner.problem.statistics import quantile_of
from planner.simulate.run.gaps import Gaps
from planner.simulate.run.result import SimulationResult

STATISTICS = ("mean", "p50", "p90", "p95", "p99")  # that a summary shows
BATCHES = 20
SHARES = np.linspace(0.0, 1.0, 51)  # of requests, that a summary says the times of
GAP_BATCHES = 8  # of gaps between tokens, which are known by parts of the run
STUDENT_95_GAPS = 2.365  # with 7 degrees of freedom
STUDENT_95 = 2.093  # two-sided 95 % of Student's t with 19 degrees of freedom
GROWTH = 0.01  # seconds that waits grow per second of arrivals: beyond it the load is more than the fleet can take
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
    """Whether waits grow with time as they do when more arrives than can be served.

    A request waits until it is begun, and where it is decoded elsewhere for a place there before its first token.
    """
    known, complete = ~np.isnan(result.started_s), result.complete
    arrival, wait = result.arrival_s[known], np.fmax(result.started_s - result.arrival_s, result.ttft_s)[known]
    decoded_s, prefilled_s = (
        (result.e2e_s - result.ttft_s)[complete],
        (result.first_token_s - result.started_s)[complete],
    )
    if result.requests.clients or len(arrival) < 100 or not arrival[-1] > arrival[0] or not complete.any():
        return False
    centred = arrival - arrival.mean()
    growth = float((centred * wait).sum() / (centred * centred).sum())
    late = float(wait[-len(wait) // 10 :].mean())
    service = float(decoded_s.mean()) + float(np.quantile(prefilled_s, UNDELAYED))
    return growth > GROWTH and late > SHORT_WAIT * service


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
