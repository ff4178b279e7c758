"""Capacities, formulations and predictions of serving candidates drawn by seed are as in tests/golden/serve.

What changes a formula on purpose writes the table anew with `pytest --update-golden`, and the difference is read.
"""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

from serve_problems import small

from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.formulate import formulate
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.predict import in_flight, most_scale, resting_scale, times
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.search import ServeSetting, list_candidates, prepare
from planner.solvers.mix import MixShape

TWO_POOLS = [
    {"name": "fast", "gpu": "h100", "gpus": 8, "price": "4USD/h"},
    {"name": "cheap", "gpu": "l40s", "gpus": 4, "price": "1USD/h"},
]
LINK = [{"pools": ["fast", "cheap"], "bandwidth": "50Gb/s", "latency": "20us"}]
BATCHY = {"name": "batch", "input_tokens": {"mean": 500, "cv": 0.5}, "output_tokens": 900, "share": 2,
          "slo": {"ttft": "3s", "latency": {"p90": "40s"}}}  # fmt: skip
EXPERTS = {
    "models.llama": {"name": "Qwen/Qwen3-30B-A3B"},
    "cluster.pools": [{"gpu": "h100", "nodes": 2}],
    "workloads.0.slo": {"ttft": {"p90": "2s"}, "tpot": "40ms"},
    "options": {"max_batch": [64, 256], "chunk_tokens": [4096], "pp": [1, 2], "overlap": ["off", "two-batch"]},
}
PROBLEMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "means": {"workloads.0.slo": {"ttft": {"mean": "400ms", "p99": "2s"}, "tpot": "15ms"}},
    "whole requests": {"workloads.0.slo": {"latency": {"p95": "6s"}, "ttft": "1s"}},
    "attainment": {"workloads.0.slo.attainment": 0.97, "workloads.0.load": {"rate": "6/s", "arrival_cv": 2.0}},
    "confidence": {"workloads.0.slo.confidence": 0.8, "options.pp": [1, 2]},
    "lengths": {"workloads.0.input_tokens": {"mean": 1500, "cv": 1.2},
                "workloads.0.output_tokens": {"mean": 300, "cv": 0.7}},
    "clients": {"workloads.0.load": {"concurrency": 40}, "objective": {"minimize": "gpus"},
                "options.max_batch": [16, 64]},
    "cost": {"workloads.0.load": {"rate": "8/s"}, "objective": {"minimize": "cost"}, "cluster.pools": TWO_POOLS},
    "linked": {"cluster.pools": TWO_POOLS, "cluster.links": LINK, "limits": {"gpus": 6, "usd_per_hour": 30},
               "objective": {"maximize": "tokens_per_s_per_gpu"}},
    "two workloads": {"workloads.1": BATCHY, "workloads.0.share": 3},
    "long prompts": {"workloads.0.input_tokens": 30000, "workloads.0.slo": {"ttft": "8s", "tpot": "30ms"},
                     "options.chunk_tokens": [2048, 8192], "options.max_prefill_utilisation": 0.8},
    "experts": EXPERTS,
    "sides": {**EXPERTS, "options": {"modes": ["attention-ffn", "disaggregated"], "max_batch": [64, 256], "pp": [1]}},
    "drafts": {"options.speculation": {"method": "stated", "acceptance": 0.7, "draft_step": "1ms",
                                       "draft_tokens": [0, 2]}},
}  # fmt: skip
CANDIDATES = 8


def _line(*values: object) -> str:
    return ",".join(f"{value:.8g}" if isinstance(value, float) else str(value) for value in values) + "\n"


def _capacities(candidate: Candidate) -> Iterator[object]:
    yield from (candidate.weights_bytes, candidate.activations_bytes, candidate.workspace_bytes)
    yield from (f"{share:.6f} {name}" for name, share in sorted(candidate.basis.items()))
    for capacity in candidate.capacities:
        if capacity is not None:
            yield from (capacity.rate_per_s, capacity.utilisation, capacity.service_s, capacity.queue_s)
            yield from (capacity.stretch_s, capacity.prefill_steps, capacity.tpot_s, capacity.stay_s, capacity.kv_bytes)


def _shape(shape: MixShape) -> tuple[object, ...]:
    ports = (shape.egress_bytes_per_s, shape.ingress_bytes_per_s, shape.price_per_hour)
    return (shape.role, shape.devices, shape.group_devices, shape.channel, *ports, *shape.held_s, *shape.aside)


def _used(setting: ServeSetting, candidates: list[Candidate], draw: random.Random) -> list[RoleInUse]:
    """Two instances that prefill, and two that decode behind them where the first hand over, all partly loaded."""
    first = draw.choice([candidate for candidate in candidates if not candidate.decodes])
    chosen = [first]
    if first.channel is not None:
        behind = [
            item for item in candidates if item.decodes and item.channel == first.channel and item.model == first.model
        ]
        chosen += draw.sample(behind, min(2, len(behind)))
    share = 2 * draw.choice((0.3, 0.7, 0.9)) / len(setting.targets)
    return [
        RoleInUse(f"{item.function}-{number}", item, 2, tuple(share * rate for rate in item.rates_per_s))
        for number, item in enumerate(chosen)
    ]


def _predictions(setting: ServeSetting, candidates: list[Candidate], draw: random.Random) -> Iterator[str]:
    used = _used(setting, candidates, draw)
    for target in setting.targets:
        if all(item.load_per_s[target.index] > 0.0 for item in used):
            predicted = [
                f"{item.metric} {item.statistic} {item.value:.8g}"
                for item in times(used, target, setting.costs_of_pool, 0.9)
            ]
            room = in_flight(used, target, setting.costs_of_pool, 0.8), most_scale(used, target)
            rest = resting_scale(used, target, setting.costs_of_pool) if target.clients else 0.0
            yield _line(
                target.name,
                *(item.candidate.name for item in used),
                used[0].busy,
                used[0].kv_bytes(),
                *room,
                rest,
                *predicted,
            )


def _lines() -> Iterator[str]:
    for name, edits in PROBLEMS.items():
        draw, setting, tally = random.Random(f"figures/{name}"), prepare(small(copy.deepcopy(edits))), Tally()
        candidates = list_candidates(setting, setting.targets, tally)
        formulated = formulate(setting.resolved, setting.targets, candidates)
        problem = formulated.problem
        yield _line(name, len(candidates), tally.evaluated, *sorted(tally.pruned.items()))
        yield _line(name, formulated.metric, formulated.factor, problem.objective, problem.limits, *problem.pools)
        yield _line(name, *problem.demands, problem.links)
        for index in draw.sample(range(len(candidates)), min(CANDIDATES, len(candidates))):
            yield _line(name, candidates[index].name, *_capacities(candidates[index]), *_shape(problem.shapes[index]))
        for _ in range(3):
            yield from _predictions(setting, candidates, draw)


def test_capacities_formulations_and_predictions_are_those_of_the_table(golden: Callable[[str, str], None]) -> None:
    golden("serve/candidates.csv", "".join(_lines()))
