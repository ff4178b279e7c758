"""Simulated latencies against limits: what share of the requests is answered within each time, and where time went."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from planner.documents.units import format_si, significant
from planner.errors import PlannerError
from planner.explain.limits import stated_limits
from planner.plan.schema import Envelope
from planner.report.charts import Bar, Curve, curves, stacked
from planner.report.page import Page, Section

WORDS = {"ttft_s": "time to first token", "tpot_s": "time per output token", "latency_s": "latency"}
Limits: TypeAlias = Mapping[tuple[str, str], list[tuple[str, float]]]
"""(statistic, seconds) of the limits on a metric of a workload."""


def limits_of(envelope: Envelope) -> Limits:
    """Those of a plan's problem, on times; without instances down."""
    limits: dict[tuple[str, str], list[tuple[str, float]]] = {}
    for each in stated_limits(envelope):
        if each.metric in WORDS and "down" not in each.of:
            limits.setdefault((each.metric, each.of), []).append((each.statistic, each.bound))
    return limits


def simulation_page(document: dict[str, Any], file: str) -> Page:
    """The page of a simulated run; raises PlannerError where it holds no times."""
    sections = list(simulated_sections(document, {}))
    if not sections:
        raise PlannerError(
            "holds no times of a simulated run",
            where=file,
            hint="write it with `planner simulate PLAN --json -o run.json`",
        )
    lead = f"{document.get('complete')} of {document.get('requests')} requests answered"
    tiles = [
        (name.replace("_per_s", " / s").replace("_", " "), significant(float(document[name])))
        for name in ("requests_per_s", "output_tokens_per_s", "goodput_per_s", "attainment")
        if isinstance(document.get(name), (int, float))
    ]
    return Page("simulation", file, f"{lead} in {significant(float(document.get('span_s', 0.0)))} s.", tiles, sections)


def simulated_sections(result: Mapping[str, Any], limits: Limits) -> Iterator[Section]:
    """A picture a time of a simulated run, and where the time of a request went; of runs without these, nothing."""
    runs = list(_runs(result))
    pictures = [
        f"<h3>{WORDS[metric][:1].upper()}{WORDS[metric][1:]}{f' of {name}' if name else ''}</h3>{picture}"
        for name, of in runs
        for metric in WORDS
        if (picture := _picture(of, metric, _limits(limits, metric, name, alone=len(runs) == 1)))
    ]
    if pictures:
        note = "Simulated, after the warm-up. Dashed: a limit, with a dot at the share that it asks for."
        yield Section("Latencies against limits", "".join(pictures), note)
    spent = result.get("mean_s")
    if isinstance(spent, dict) and spent:
        parts = [
            (name.replace("_", " "), float(size), f"{name} {format_si(float(size), 's')}")
            for name, size in spent.items()
        ]
        yield Section("Where the time of a request goes", stacked("a mean request", [Bar("a mean request", parts)]))


def _limits(limits: Limits, metric: str, name: str, *, alone: bool) -> list[tuple[str, float]]:
    """Those of a workload; of a run of one, those of the only workload."""
    of = [rows for (of_metric, workload), rows in limits.items() if of_metric == metric and (alone or workload == name)]
    return of[0] if of else []


def _runs(result: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    workloads = result.get("workloads")
    yield from workloads.items() if isinstance(workloads, dict) and workloads else (("", result),)


def _picture(of: Mapping[str, Any], metric: str, limits: list[tuple[str, float]]) -> str:
    quantiles = (of.get("quantiles") or {}).get(metric)
    if not isinstance(quantiles, list) or len(quantiles) < 2 or max(quantiles) <= 0.0:
        return ""
    points = []
    for place, value in enumerate(quantiles):
        share = place / (len(quantiles) - 1)
        points.append((float(value), share, f"{100 * share:.0f} % of requests within {format_si(float(value), 's')}"))
    marked = [(bound, _share(name), f"{name} <= {format_si(bound, 's')}") for name, bound in limits]
    return curves(f"requests within a {WORDS[metric]}", Curve(points), marked, "s")


def _share(statistic: str) -> float | None:
    return float(statistic[1:]) / 100.0 if statistic[:1] == "p" and statistic[1:].isdigit() else None
