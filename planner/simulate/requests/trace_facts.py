"""Statistics of a request trace (rates, burstiness, lengths), and samples drawn from it."""

import math
from dataclasses import replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.simulate.requests.arrivals import arrivals
from planner.simulate.requests.traces import Trace

QUANTILES = (0.5, 0.9, 0.99)
WINDOW_S = 60.0


def describe(trace: Trace) -> dict[str, object]:
    """Counts, rate, burstiness, lengths and prefix reuse.

    `dispersion_60s`: variance over mean of the requests per minute (1 is Poisson). `reused_blocks`: prompt blocks that
    an earlier prompt had too, as a cache without limit would find them.
    """
    facts: dict[str, object] = {"name": trace.name, "format": trace.format, "requests": len(trace)}
    if trace.dropped:
        facts["dropped"] = trace.dropped
    if trace.timed and len(trace) > 1:
        span_s, gaps = float(trace.arrival_s[-1]), np.diff(trace.arrival_s)
        facts |= {"span_s": span_s, "rate_per_s": (len(trace) - 1) / span_s if span_s > 0 else None}
        facts |= {"gap_cv": float(gaps.std() / gaps.mean()) if gaps.mean() > 0 else None}
        facts["dispersion_60s"] = _dispersion(trace)
    facts["input_tokens"], facts["output_tokens"] = lengths(trace.input_tokens), lengths(trace.output_tokens)
    if trace.blocks:
        total, distinct = reuse(trace)
        facts["prefix"] = {
            "block_tokens": trace.block_tokens,
            "blocks": total,
            "distinct_blocks": distinct,
            "reused_blocks": total - distinct,
            "reused_share": (total - distinct) / max(total, 1),
        }
    return facts


def lengths(tokens: Ints) -> dict[str, float]:
    """Mean, CV, quantiles and extremes of lengths."""
    mean = float(tokens.mean())
    values = {"mean": mean, "cv": float(tokens.std() / mean), "min": float(tokens.min()), "max": float(tokens.max())}
    return values | {f"p{100 * q:g}": float(np.quantile(tokens, q)) for q in QUANTILES}


def reuse(trace: Trace) -> tuple[int, int]:
    """Prompt blocks, and distinct ones."""
    return sum(len(names) for names in trace.blocks), len({name for names in trace.blocks for name in names})


def fit(trace: Trace) -> dict[str, object]:
    """The trace as fields of a workload: log-normal lengths by their first two moments, and its rate and CV of gaps.

    `gaps` compares gamma and Weibull gaps of that mean and CV with the trace: the greatest distance of the distribution
    functions (Kolmogorov and Smirnov).
    """
    workload: dict[str, object] = {
        f"{side}_tokens": {"mean": round(float(tokens.mean()), 3), "cv": round(float(tokens.std() / tokens.mean()), 4)}
        for side, tokens in (("input", trace.input_tokens), ("output", trace.output_tokens))
    }
    gaps = np.diff(trace.arrival_s)
    if not trace.timed or len(gaps) < 2 or gaps.mean() <= 0.0:
        return {"workload": workload}
    cv = float(gaps.std() / gaps.mean())
    workload["load"] = {"rate": f"{1.0 / float(gaps.mean()):.6g}/s", "arrival_cv": round(cv, 4)}
    if not 0.0 < cv < 20.0:
        return {"workload": workload}
    return {"workload": workload, "gaps": {name: distance(gaps, name, cv) for name in ("gamma", "poisson", "weibull")}}


def distance(gaps: Floats, process: str, cv: float) -> float:
    """Kolmogorov-Smirnov distance of gaps to a renewal process of their mean and this CV, by a large sample of it."""
    count = 200_000
    drawn = np.sort(np.diff(arrivals(process, 1.0 / float(gaps.mean()), count + 1, cv=cv)))
    observed = np.sort(gaps)
    points = np.concatenate([drawn, observed])
    drawn_share = np.searchsorted(drawn, points, side="right") / len(drawn)
    observed_share = np.searchsorted(observed, points, side="right") / len(observed)
    return float(np.abs(drawn_share - observed_share).max())


def sample(
    trace: Trace,
    count: int,
    *,
    rate_per_s: float | None = None,
    process: str = "poisson",
    cv: float = 1.0,
    seed: int = 0,
) -> Trace:
    """`count` requests drawn from the trace with replacement, on a renewal process of `rate_per_s` (the trace's own).

    Prompt blocks stay with their requests.
    """
    rng = np.random.default_rng(seed)
    span_s = float(trace.arrival_s[-1])
    own = (len(trace) - 1) / span_s if span_s > 0 else math.nan
    rate = own if rate_per_s is None else rate_per_s
    chosen = trace.take(rng.integers(0, len(trace), count))
    times = arrivals(process, rate, count, cv=cv, seed=seed + 1)
    return replace(chosen, arrival_s=times, format="plain" if not trace.blocks else trace.format)


def _dispersion(trace: Trace) -> float | None:
    minutes = int(float(trace.arrival_s[-1]) // WINDOW_S)
    if minutes < 2:
        return None
    counts = np.bincount((trace.arrival_s // WINDOW_S).astype(np.int64), minlength=minutes)[:minutes]
    return float(counts.var() / counts.mean()) if counts.mean() > 0 else None
