"""Small serving problems, written as data, and what tests ask of their plans."""

import copy
import json
import random
from pathlib import Path
from typing import Any

from planner.check import check_plan
from planner.documents.read import parse_document
from planner.kinds.serve.options import ServeDecision
from planner.load.problems import resolve_document
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.problem.resolve import Resolved

SMALL: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "serve",
    "models": {"llama": {"name": "meta-llama/Llama-3.1-8B-Instruct", "weights": "fp8", "kv_cache": "fp8"}},
    "cluster": {"pools": [{"gpu": "h100", "gpus": 4}]},
    "workloads": [
        {"name": "chat", "input_tokens": 2000, "output_tokens": 300, "slo": {"ttft": "400ms", "tpot": "15ms"}}
    ],
    "objective": {"maximize": "goodput_per_gpu"},
    "options": {"tp": [1, 2], "pp": [1], "max_batch": [8, 64], "chunk_tokens": [4096]},
}
"""One workload of an 8B model on four H100, with few shapes, batches and chunks: solved in well under a second."""


def small(edits: dict[str, Any] | None = None) -> Resolved:
    """`SMALL` with values set at dotted paths (`...` removes); limits stand as they are unless `expected` is set."""
    data = copy.deepcopy(SMALL)
    for dotted, value in copy.deepcopy(edits or {}).items():
        *above, last = (int(step) if step.isdigit() else step for step in dotted.split("."))
        place: Any = data
        for step in above:
            place = place[step] if isinstance(step, int) else place.setdefault(step, {})
        if value is ...:
            place.pop(last)
        elif isinstance(place, list) and last == len(place):
            place.append(value)
        else:
            place[last] = value
    data["objective"].setdefault("expected", False)
    return resolve_document(parse_document(json.dumps(data), "problem.json"), Path())


def broken_rules(plan: Envelope) -> list[Finding]:
    """The findings of the static check that failed."""
    return [f for f in check_plan(plan, ServeDecision.model_validate(plan.decision)) if not f.ok]


def value_of(plan: Envelope, metric: str, of: str = "", statistic: str = "mean") -> float:
    """One prediction."""
    (predicted,) = (p.value for p in plan.predictions if (p.metric, p.of, p.statistic) == (metric, of, statistic))
    return predicted


def objective_of(plan: Envelope) -> float:
    """The objective of a plan."""
    assert plan.certificate.objective.value is not None
    return plan.certificate.objective.value


def random_edits(seed: int) -> dict[str, Any]:
    """Edits that make one of many small problems: loads, limits, pools with holes, objectives, two workloads."""
    draw = random.Random(seed)
    edits: dict[str, Any] = {
        "cluster.pools.0": draw.choice(
            [
                {"gpu": "h100", "gpus": 4, "price": "3USD/h"},
                {"gpu": "h100", "nodes": 2, "price": "3USD/h", "out_of_service": [0]},
                {"gpu": "h200", "nodes": 4, "gpus_per_node": 2, "price": "4USD/h", "out_of_service": [1]},
                {"gpu": "l40s", "gpus": 3, "price": "1USD/h"},
            ]
        ),
        "workloads.0.input_tokens": draw.choice([300, 2000, {"mean": 1000, "cv": 0.7}, {"low": 500, "high": 1500}]),
        "workloads.0.output_tokens": draw.choice([100, 400, {"mean": 200, "cv": 1.0}]),
        "workloads.0.slo": draw.choice(
            [
                {"ttft": "600ms", "tpot": "30ms"},
                {"ttft": {"mean": "500ms", "p99": "2s"}, "tpot": {"mean": "30ms"}},
                {"latency": {"p90": "12s"}},
                {"ttft": "2s", "tpot": "40ms", "latency": "15s", "attainment": "99%"},
            ]
        ),
        "options.modes": draw.choice([["colocated"], ["disaggregated"], ["colocated", "disaggregated"]]),
    }
    load = draw.choice([None, {"rate": "1/s"}, {"concurrency": 12}])
    goal = draw.choice([{"maximize": "goodput_per_gpu"}, {"maximize": "tokens_per_s_per_gpu"}])
    if load is not None:
        edits["workloads.0.load"] = load
        goal = draw.choice([goal, {"minimize": "gpus"}, {"minimize": "cost"}])
    edits["objective"] = goal
    if draw.random() < 0.3:
        edits["cluster.pools.1"] = {"gpu": "h100", "name": "spare", "gpus": 2, "price": "2.5USD/h"}
    if draw.random() < 0.4:
        edits["workloads.1"] = {"name": "batch", "input_tokens": 500, "output_tokens": 150, "share": 0.5}
        if load is not None:
            edits["workloads.1"]["load"] = {"rate": "1/s"}
    return edits
