"""Solved training plans against every plan of small problems, and bounds against what they bound."""

from dataclasses import replace
from math import inf
from typing import Any

import pytest
from train_problems import ALL_SCHEDULES, every_candidate, every_plan, job, problem

from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.search.bounds import Floor, floor_s
from planner.kinds.train.search.one_pool import OnePoolSearch
from planner.kinds.train.space.tables import sharing_of
from planner.progress import Limits

MOE, MIXED = "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V2-Lite"
SMALL: dict[str, dict[str, Any]] = {
    "dense": problem(
        global_batch=16,
        search={"cp": 1, "tp": [1, 2], "pp": [1, 2], "dp": [4, 8], "micro_batch": [1, 2], "vpp": [1, 2]},
    ),
    "all schedules": problem(
        global_batch=32,
        search={
            "cp": 1,
            "tp": 2,
            "pp": [2, 4],
            "micro_batch": 1,
            "vpp": [1, 2],
            "zero_stage": [1],
            "schedule": ALL_SCHEDULES,
            "recompute": ["none", "full"],
        },
    ),
    "little memory": problem(
        memory_utilisation=0.3, global_batch=8, search={"cp": 2, "tp": 4, "pp": [1, 2, 4], "vpp": [1, 2]}
    ),
    "experts": problem(
        MOE,
        nodes=4,
        global_batch=16,
        search={
            "cp": 1,
            "tp": 2,
            "ep": [4, 8],
            "pp": [1, 2],
            "micro_batch": 1,
            "vpp": [1, 2],
            "recompute": ["none", "full"],
        },
    ),
    "two kinds of layers": problem(
        MIXED,
        global_batch=16,
        search={"cp": 1, "tp": 1, "ep": [2, 8], "pp": [1, 2], "dp": [4, 8], "micro_batch": 1, "vpp": [1, 2]},
    ),
    "memory moves layers": problem(
        gpu="a100_sxm",
        nodes=1,
        global_batch=32,
        search={"cp": 1, "tp": 1, "pp": 2, "dp": 2, "micro_batch": 2, "vpp": 1, "zero_stage": 1, "recompute": "full"},
    ),
    "per GPU": problem(
        objective={"maximize": "tokens_per_s_per_gpu"},
        global_batch=16,
        search={"cp": 1, "tp": [1, 2], "pp": [1, 2], "micro_batch": 1, "vpp": 1, "zero_stage": [1, 3]},
    ),
    "a tower on the first stage": problem(
        "Qwen/Qwen3-VL-4B-Instruct",
        nodes=1,
        global_batch=16,
        samples=[{"share": 1, "images": [{"width": 1024, "height": 1024, "count": 2}]}, {"share": 1}],
        search={"cp": 1, "tp": [1, 2], "pp": [1, 2], "micro_batch": 1, "vpp": [1, 2], "zero_stage": 1},
    ),
    "hybrid sharding": problem(
        memory_utilisation=0.5,
        global_batch=32,
        nodes=4,
        search={"cp": [1, 2], "tp": 1, "pp": 1, "vpp": 1, "micro_batch": 1, "zero_shards": ["all", 8, 12, 16]},
    ),
    "offload": problem(  # the activations of some layers
        gpu="a100_sxm",
        nodes=1,
        memory_utilisation=0.7,
        sequence_tokens=8192,
        global_batch=16,
        search={
            "cp": 1,
            "tp": 1,
            "pp": [1, 2],
            "vpp": 1,
            "micro_batch": 2,
            "zero_stage": [0, 3],
            "recompute": "none",
            "offload": ["optimizer", "activations"],
        },
    ),
}


@pytest.mark.parametrize("case", SMALL)
def test_the_plan_is_the_best_of_all_plans_and_none_beats_its_bounds(case: str) -> None:
    small = job(SMALL[case])
    search = OnePoolSearch(small, Limits())
    result = search.run()
    plans = list(every_plan(small))
    best = min(plan.objective for plan in plans)
    assert result.value == pytest.approx(best, rel=1e-9)
    assert result.bound == pytest.approx(best, rel=1e-6)
    tally = result.tally
    assert tally.candidates == sum(1 for _ in every_candidate(small))
    assert tally.candidates == tally.evaluated + tally.unfit + sum(tally.bounded.values())
    for plan in plans:
        _bounds_hold(plan)


HOSTED = {"cp": 1, "tp": [1, 2], "pp": [2, 4], "vpp": 1, "micro_batch": 1, "zero_stage": [0, 1], "schedule": "1f1b",
          "recompute": ["none", "full"], "offload": ["optimizer", "activations"]}  # fmt: skip


@pytest.mark.parametrize(
    ("utilisation", "host_bytes", "offload"),
    [
        (0.13, 10e9, {"optimizer"}),
        (0.13, 5e9, None),
        (0.2, 10e9, {"activations"}),
        (0.2, 3e9, set()),
    ],
)
def test_what_is_offloaded_has_room_in_host_memory(
    utilisation: float, host_bytes: float, offload: set[str] | None
) -> None:
    """Best of all plans whose hosts have room: 16 bytes of each element that a rank updates, and the activations that
    the same plan would otherwise have on the device."""
    plain = job(problem(memory_utilisation=utilisation, global_batch=16, search=HOSTED))
    node = replace(plain.machine.node, host_memory_bytes=host_bytes * 8 * 1.5)
    small = replace(plain, machine=replace(plain.machine, node=node))
    result = OnePoolSearch(small, Limits()).run()
    plans = list(every_plan(small))
    assert all(_host_bytes(plan) <= host_bytes for plan in plans)
    assert result.value == min((plan.objective for plan in plans), default=None)
    of_devices = [plan.objective for plan in every_plan(plain) if _host_bytes(plan) <= host_bytes]
    assert len(of_devices) <= len(plans)  # layers lie otherwise where the hosts ask for it
    assert min((plan.objective for plan in plans), default=inf) <= min(of_devices, default=inf)
    assert (None if result.best is None else result.best.choice.offload) == offload
    if result.best is not None:
        assert float(result.best.memory.host_R.max()) == pytest.approx(_host_bytes(result.best))


def _host_bytes(plan: Evaluation) -> float:
    """Of the fullest rank, told from what the plan would have on its devices without offloading."""
    choice = plan.choice
    none = frozenset[str]()
    sharing = sharing_of(choice.table, choice.dp, choice.zero_stage, none)
    without = evaluate(replace(choice, offload=none, sharing=sharing), plan.counts_S).memory
    ranks = choice.dp if choice.zero_stage else 1
    updated_R = without.weights_R / 2.0 / ranks * ("optimizer" in choice.offload)
    return float((16.0 * updated_R + without.activations_R - plan.memory.activations_R).max())


def _bounds_hold(plan: Evaluation) -> None:
    choice = plan.choice
    most_s = plan.step_s * (1 + 1e-9)
    paired = choice.schedule == "dualpipe"
    computing_s = Floor(choice.table, choice.pp, further_heads=False, paired=paired).slowest_s
    assert choice.num_micro_batches * computing_s + choice.table.job.rates.get("step_s") <= most_s
    assert floor_s(choice, Floor(choice.table, choice.pp, paired=paired)) <= most_s
    mode = None if choice.full_layers else choice.mode
    again = Floor(choice.table, choice.pp, mode, choice.full_layers * choice.vpp, paired=paired)
    assert floor_s(choice, again) <= most_s
