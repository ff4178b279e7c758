"""Training problems without a plan: a named conflict, and the nearest values that work do work."""

from typing import Any

import pytest
from train_problems import job, problem

from planner.api import solve
from planner.errors import Infeasible, PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.search.conflicts import has_candidates

MOE = "Qwen/Qwen3-30B-A3B"
CONFLICTS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "heads over tensor ranks": (problem(search={"tp": 3}), {"tp = 3": "tp 2"}),
    "a batch smaller than dp": (
        problem(global_batch=3, search={"dp": 4}),
        {"global_batch = 3": "global_batch 4", "dp = 4": "dp 3"},
    ),
    "a batch smaller than dp times micro-batch": (
        problem(global_batch=8, search={"dp": 8, "micro_batch": 2}),
        {"global_batch = 8": "global_batch 16", "dp = 8": "dp 4", "micro_batch = 2": "micro_batch 1"},
    ),
    "a sequence that cp does not divide": (
        problem(sequence_tokens=4098, search={"cp": 4}),
        {"sequence_tokens = 4098": "sequence_tokens 4096", "cp = 4": "cp 1"},
    ),
    "experts over expert ranks": (problem(MOE, search={"ep": 12}), {"ep = 12": "ep 8"}),
    "too many expert ranks": (problem(MOE, search={"ep": 32}), {"ep = 32": "ep 16"}),
    "experts of a dense model": (problem(search={"ep": 2}), {"ep = 2": "ep 1"}),
    "more ranks than GPUs": (
        problem(search={"tp": 8, "pp": 4}),
        {"gpus = 16": "32 GPUs", "tp = 8": "tp 4", "pp = 4": "pp 2"},
    ),
    "shards that divide no number of ranks": (
        problem(search={"zero_shards": 3}),
        {"zero_shards = 3": "zero_shards all"},
    ),
    "rounds of the interleaved schedule": (
        problem(global_batch=20, search={"pp": 8, "dp": 1, "micro_batch": 1, "schedule": "interleaved"}),
        {
            "global_batch = 20": "global_batch 16",
            "pp = 8": "pp 10",
            "schedule = interleaved": "1f1b",
        },
    ),
}


def _conflict(data: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(Infeasible) as raised:
        solve(data)
    assert raised.value.proved
    return {row["limit"]: row["nearest"] for row in raised.value.conflict}


@pytest.mark.parametrize("case", CONFLICTS)
def test_limits_in_conflict_are_named_with_the_nearest_value_of_each(case: str) -> None:
    data, wanted = CONFLICTS[case]
    assert _conflict(data) == wanted


@pytest.mark.parametrize("case", ["heads over tensor ranks", "a batch smaller than dp", "experts over expert ranks"])
def test_the_nearest_value_alone_fixes_the_problem(case: str) -> None:
    data, _ = CONFLICTS[case]
    for limit, nearest in _conflict(data).items():
        name, value = limit.split(" = ")[0], int(nearest.split()[-1])
        options = dict(data["options"])
        if name in options:
            options[name] = value
        else:
            options["search"] = {**options["search"], name: value}
        assert has_candidates(job({**data, "options": options}))


def test_memory_that_no_plan_fits_in_is_named_with_what_the_leanest_needs() -> None:
    data = problem("meta-llama/Llama-3.1-70B", nodes=1, memory_utilisation=0.5, search={"tp": 8, "pp": 1})
    conflict = _conflict(data)
    (memory,) = (nearest for limit, nearest in conflict.items() if limit.startswith("memory of a GPU"))
    needed = float(memory.removeprefix("about ").split()[0]) * 1e9
    assert needed > 0.5 * 85.5e9
    assert conflict["gpus = 8"] == "64 GPUs"
    assert conflict["no offload"] == ""  # which would not help


def test_host_memory_that_is_short_is_named_and_plans_state_what_they_take_of_it() -> None:
    """70.6e9 parameters of 16 bytes: 141 GB for each of 8 GPUs, of which nodes of 768 GB have 64 for training."""
    search = {"cp": 1, "tp": 1, "pp": 1, "micro_batch": 1, "zero_stage": 3, "offload": ["optimizer"]}
    options = {"gpu": "l40s", "global_batch": 32, "search": search}
    data = [
        {**problem("meta-llama/Llama-3.1-70B", nodes=n, **options), "engine": {"name": "torchtitan"}} for n in (1, 4)
    ]
    conflict = _conflict(data[0])
    assert conflict["host memory of a GPU for training = 64.0 GB"] == "about 141 GB"
    assert conflict["gpus = 8"] == "32 GPUs"
    blocked = {**data[0], "options": {**data[0]["options"], "search": {**search, "offload": []}}}
    assert _conflict(blocked)["no offload"] == "offload: [optimizer], with about 141 GB of host memory a GPU"
    plan = solve(data[1])
    (hosts,) = TrainDecision.model_validate(plan.decision).host_memory
    assert hosts.role == "job"
    assert hosts.used_bytes == pytest.approx(70.55e9 * 16 / 32, rel=1e-3)
    assert hosts.capacity_bytes == pytest.approx(768e9 / 8 / 1.5)


def test_a_precision_that_the_gpu_lacks_is_refused_with_one_that_it_has() -> None:
    with pytest.raises(PlannerError, match=r"does not compute in fp8(.|\n)*precision: bf16"):
        solve(problem(gpu="a100_sxm", precision="fp8"))
    with pytest.raises(PlannerError, match="does not compute in nvfp4"):
        solve(problem(precision="nvfp4"))


def test_shards_that_leave_no_whole_copies_of_the_experts_are_named() -> None:
    search = {"tp": 1, "cp": 1, "pp": 1, "dp": 16, "ep": 8, "zero_stage": 1, "zero_shards": 4}
    with pytest.raises(Infeasible) as raised:
        solve(problem(MOE, global_batch=16, search=search))
    assert {"limit": "zero_shards = 4", "nearest": "zero_shards all"} in raised.value.conflict


def test_goals_pools_and_models_of_other_kinds_are_refused() -> None:
    with pytest.raises(PlannerError, match="minimize: step_time"):
        solve(problem(objective={"minimize": "gpus"}))
    two = problem(search={"layerwise": True})
    two["cluster"] = {"pools": [{"gpu": "h100_sxm", "nodes": 1}, {"gpu": "a100_sxm", "nodes": 1}]}
    with pytest.raises(PlannerError, match=r"`layerwise` with several pools"):
        solve(two)
    with pytest.raises(PlannerError, match="cannot be joined"):
        solve(problem(search={"pools": "stages"}))


def test_a_length_that_context_parallelism_cannot_cut_names_the_nearest_that_it_can() -> None:
    lengths = [{"tokens": 8192, "share": 1}, {"tokens": 1023, "share": 1}]
    data = problem(nodes=1, global_batch=16, sequence_tokens=8192, lengths=lengths, search={"cp": 2, "tp": 1})
    with pytest.raises(Infeasible) as raised:
        solve(data)
    assert {"limit": "lengths = 8192, 1023", "nearest": "lengths 8192, 1024"} in raised.value.conflict


def test_a_batch_that_does_not_fill_rounds_is_named_with_the_nearest_that_does() -> None:
    search = {"pp": 4, "vpp": 2, "dp": 2, "tp": 2, "cp": 1, "micro_batch": 1, "schedule": "interleaved"}
    with pytest.raises(Infeasible) as raised:
        solve(problem(global_batch=18, search=search))
    assert {"limit": "global_batch = 18", "nearest": "global_batch 16"} in raised.value.conflict


def test_what_is_named_nearest_where_memory_is_short_has_been_found_to_fit() -> None:
    small: dict[str, Any] = {"search": {"cp": 1, "micro_batch": 1}, "global_batch": 16, "choice": "fastest"}
    with pytest.raises(Infeasible) as raised:
        solve(problem("meta-llama/Llama-3.1-70B", nodes=1, **small))
    nearest = {row["limit"]: row["nearest"] for row in raised.value.conflict}
    gpus = int(nearest["gpus = 8"].split()[0])
    assert solve(problem("meta-llama/Llama-3.1-70B", nodes=gpus // 8, **small)).certificate.status == "optimal"
    with pytest.raises(Infeasible):
        solve(problem("meta-llama/Llama-3.1-70B", nodes=gpus // 16, **small))
    assert nearest["no offload"] == "offload: [optimizer]"
    offloaded = {**small, "search": {**small["search"], "offload": ["optimizer"]}}
    assert solve(problem("meta-llama/Llama-3.1-70B", nodes=1, **offloaded)).certificate.status == "optimal"
    tight = {**small, "nodes": 2, "memory_utilisation": 0.05}
    with pytest.raises(Infeasible) as raised:
        solve(problem(**tight))
    share = {row["limit"]: row["nearest"] for row in raised.value.conflict}["memory_utilisation = 0.05"]
    fits = solve(problem(**{**tight, "memory_utilisation": float(share.split()[1])}))
    assert fits.certificate.status == "optimal"
