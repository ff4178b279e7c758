"""Bounds and prices of candidates drawn by seed from many jobs are those of the table in tests/golden/train.

What changes costs or bounds on purpose writes the table anew with `pytest --update-golden`, and the difference is read.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from train_problems import ALL_SCHEDULES, job, jobs, problem

from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.pools.search import ReplicasSearch, StagesSearch
from planner.kinds.train.search.layerwise import plan_layers
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.search.search import JobCandidate, PlanSearch, ways_that_may_fit
from planner.kinds.train.space.tables import ways_of
from planner.progress import Limits

EXPERTS, LATENT = "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite"
OVERLAP = ["grad_reduce", "param_gather", "p2p", "tp_comm"]
MIXED = {"pools": [{"name": "new", "gpu": "h100_sxm", "nodes": 2}, {"name": "old", "gpu": "a100_sxm", "nodes": 2}]}
LINKED = {**MIXED, "links": [{"pools": ["new", "old"], "bandwidth": "4GB/s"}]}
PROBLEMS: dict[str, dict[str, Any]] = {
    "schedules": problem(nodes=4, search={"schedule": ALL_SCHEDULES, "vpp": [1, 2], "pp": [2, 4], "tp": [1, 2]}),
    "zero": problem(nodes=2, search={"zero_stage": [0, 1, 2, 3], "zero_shards": [8, "all"]}, overlap=[]),
    "overlapped": problem(nodes=2, overlap=OVERLAP, search={"zero_stage": [2, 3], "pp": [1, 2, 4]}),
    "offload": problem(nodes=1, search={"offload": ["optimizer", "activations"], "recompute": ["none", "full"]}),
    "contexts": problem(
        nodes=4, sequence_tokens=32768, search={"context_parallel": ["ring", "all_gather", "ulysses"], "cp": [2, 4]}
    ),
    "experts": problem(EXPERTS, nodes=4, search={"schedule": ALL_SCHEDULES, "moe_tp": [1, 2]}),
    "latent": problem(LATENT, nodes=2, search={"schedule": ALL_SCHEDULES}, precision="fp8"),
    "lora": problem(nodes=1, task="lora", lora_rank=16),
    "reserved": problem(nodes=2, objective={"maximize": "tokens_per_s_per_gpu"}, gpu="a100_sxm"),
}
ACROSS = {"dense": problem(cluster=MIXED, search={"zero_stage": [0, 1, 2, 3], "schedule": ALL_SCHEDULES, "tp": [2, 4]}),
          "experts": problem(EXPERTS, cluster=LINKED, search={"tp": [1, 2], "cp": [1, 2]})}  # fmt: skip
NODES, CANDIDATES = 10, 3


def _searches() -> Iterator[tuple[str, PlanSearch]]:
    yield from ((name, OnePoolSearch(job(data), Limits())) for name, data in PROBLEMS.items())
    for name, data in ACROSS.items():
        pools = jobs(data)
        yield f"{name} in stages", StagesSearch(pools, Limits())
        yield f"{name} in stages back", StagesSearch(pools[::-1], Limits())
        yield f"{name} in replicas", ReplicasSearch(pools, Limits())


def _line(*values: object) -> str:
    return ",".join(f"{value:.8g}" if isinstance(value, float) else str(value) for value in values) + "\n"


def _sums(evaluation: Evaluation | None) -> tuple[float, ...]:
    """Step and its parts, largest and summed bytes, passes and times at work; nothing where layers do not fit."""
    if evaluation is None:
        return ()
    memory = evaluation.memory
    parts = (memory.weights_R, memory.gradients_R, memory.optimizer_R, memory.activations_R, memory.workspace_R)
    return (
        evaluation.step_s,
        evaluation.pipeline_s,
        evaluation.exchange_s,
        evaluation.optimizer_s,
        *(float(part.max()) for part in parts),
        *(float(part @ np.arange(1, len(part) + 1)) for part in (*parts, evaluation.busy_R, evaluation.peak_R)),
        *(float(column) for column in evaluation.pass_R3.sum(axis=0)),
    )


def _candidate(draw: random.Random, candidate: JobCandidate) -> tuple[object, ...]:
    """One candidate under one way to recompute: its bound before and after, the ways that may fit, and its price."""
    whole = candidate.whole
    ways = ways_of(whole.table, whole.pp * whole.vpp, whole.vpp)
    may_M, least_bytes = ways_that_may_fit(whole, ways, candidate.room_U())
    mode, layers = draw.choice(ways.modes)
    priced = candidate.under(mode, layers).priced()
    return (
        f"{whole.schedule} pp{whole.pp} dp{whole.dp} zero{whole.zero_stage} {mode.recompute.granularity} {layers}",
        candidate.floor_s(None, 0),
        candidate.floor_s(None if layers else mode, layers * whole.vpp),
        int(may_M.sum()),
        least_bytes,
        "" if priced is None else " ".join(map(str, priced.counts_S)),
        *_sums(priced),
    )


def _lines() -> Iterator[str]:
    for name, search in _searches():
        draw = random.Random(f"figures/{name}")
        finite = [int(node) for node in search.queue if np.isfinite(search.bound_N[node])]
        yield _line(name, len(search.bound_N), len(finite), search.tally.candidates, *search.tally.illegal.values())
        for node in draw.sample(finite, min(NODES, len(finite))):
            yield _line(name, node, float(search.bound_N[node]), int(search.children_N[node]))
            candidates = list(search.candidates(node))
            for candidate in draw.sample(candidates, min(CANDIDATES, len(candidates))):
                yield _line(name, node, *_candidate(draw, candidate))


def test_bounds_and_prices_are_those_of_the_table(golden: Callable[[str, str], None]) -> None:
    golden("train/candidates.csv", "".join(_lines()))


@pytest.mark.parametrize("tokens", [4096, 16384])
def test_mixes_by_layer_are_those_of_the_table(tokens: int, golden: Callable[[str, str], None]) -> None:
    data = problem(nodes=1, sequence_tokens=tokens, global_batch=32, search={"layerwise": True, "pp": [1, 2]})
    mixes = plan_layers(job(data))
    best = mixes.best
    assert best is not None
    rows = [_line("mix", mixes.value, mixes.bound, mixes.cuts, mixes.solved, *_sums(best))]
    rows += [_line(s.tp, s.dp, s.zero_stage, s.recompute.granularity, *s.recompute.modules) for s in best.strategies]
    golden(f"train/mix-{tokens}.csv", "".join(rows))
