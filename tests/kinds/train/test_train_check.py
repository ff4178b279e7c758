"""Solved training plans pass every rule; a plan that says something else than its decision gives fails by name."""

from collections.abc import Callable
from typing import Any

import pytest
from broken_plans import failing
from train_problems import problem

from planner.api import solve
from planner.errors import Infeasible, Stopped
from planner.hardware.library import find_node
from planner.kinds.train.decision import TrainDecision
from planner.models.library import find_model
from planner.models.parameters import parameter_counts
from planner.plan.schema import Envelope
from planner.progress import Limits

SEARCH = {"cp": 1, "tp": 2, "pp": 2, "dp": 4, "vpp": 1, "micro_batch": 1, "recompute": ["none", "full"]}


@pytest.fixture(scope="module")
def plan() -> dict[str, Any]:
    return solve(problem(global_batch=16, train_tokens=1e9, search=SEARCH)).model_dump(mode="json", by_alias=True)


def test_states_are_shared_out_inside_nodes_where_gathers_between_them_show() -> None:
    search = {**SEARCH, "tp": 1, "pp": 1, "dp": 64, "zero_stage": 3}
    options: dict[str, Any] = {"nodes": 8, "global_batch": 64, "sequence_tokens": 2048, "reduce_gradients": "bf16"}
    whole = solve(problem(search={**search, "zero_shards": "all"}, **options))
    hybrid = solve(problem(search=search, **options))
    decision = TrainDecision.model_validate(hybrid.decision)
    assert decision.zero_shards == 8
    assert [(group.size, group.stride) for group in decision.groups if group.name == "zero"] == [(8, 1)]
    less, more = (solved.certificate.objective.value for solved in (hybrid, whole))
    assert less is not None
    assert more is not None
    assert less < more
    assert not failing(hybrid.model_dump(mode="json", by_alias=True))


def test_a_reserve_binds_what_is_chosen_and_not_what_is_possible() -> None:
    size = find_node("h100_sxm").accelerator.memory_bytes
    plans, used = [], []
    for share, micro_batch in ((0.35, 1), (1.0, 2)):
        data = problem(global_batch=16, memory_utilisation=share, search={**SEARCH, "micro_batch": micro_batch})
        plans.append(solve(data).model_dump(mode="json", by_alias=True))
        memory = dict(plans[-1]["decision"]["roles"][0]["memory"])
        assert memory.pop("capacity_bytes") == size
        used.append(sum(memory.values()))
    roomy, full = plans
    assert used[0] <= 0.35 * size < used[1]
    assert any("65% of each GPU's memory stays free" in line for line in roomy["assumptions"])
    tight = {**full, "inputs": {**full["inputs"], "options": {**full["inputs"]["options"], "memory_utilisation": 0.35}}}
    assert not {"memory.parts", "memory.capacity", "train.rank_memory", "train.memory"} & failing(tight)


@pytest.mark.parametrize(("stated", "held"), [({}, "on with tp"), ({"sequence_parallel": False}, "off")])
def test_a_certificate_says_how_sequence_parallelism_is_held(stated: dict[str, bool], held: str) -> None:
    search = {"tp": 2, "cp": 1, "pp": 1, "micro_batch": 1, "zero_stage": 1, **stated}
    assert solve(problem(global_batch=16, search=search)).certificate.axes["sequence_parallel"] == [held]


@pytest.mark.parametrize(
    ("model", "cp", "used"),
    [("meta-llama/Llama-3.1-8B", 4, "ring"), ("meta-llama/Llama-3.1-8B", 8, "ulysses"), ("Qwen/Qwen2.5-7B", 8, "ring")],
)
def test_context_parallelism_goes_by_the_fastest_method_that_suits(model: str, cp: int, used: str) -> None:
    search = {"tp": 1, "cp": cp, "pp": 1, "micro_batch": 1, "zero_stage": 1}
    data = problem(model, nodes=2, global_batch=8, sequence_tokens=32768, search=search)
    solved = solve(data)
    assert solved.decision["context_parallel"] == used
    assert solved.certificate.axes["context_parallel"] == ["ring", "all_gather", "ulysses"]
    assert not failing(solved.model_dump(mode="json", by_alias=True))
    for method in ("ring", "all_gather") if "Qwen" in model else ("ring", "all_gather", "ulysses"):
        own = {**data, "options": {**data["options"], "search": {**search, "context_parallel": method}}}
        alone, best = solve(own).certificate.objective.value, solved.certificate.objective.value
        assert alone is not None
        assert best is not None
        assert alone == best if method == used else alone > best


def test_heads_that_ulysses_cannot_share_out_leave_no_plan() -> None:
    search = {"tp": 4, "cp": 8, "pp": 1, "context_parallel": "ulysses"}
    with pytest.raises(Infeasible) as raised:
        solve(problem(nodes=8, global_batch=8, sequence_tokens=32768, search=search))
    assert {"limit": "cp = 8", "nearest": "cp 2"} in raised.value.conflict


def _edited(data: dict[str, Any], edit: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    copy = Envelope.model_validate(data).model_dump(mode="json", by_alias=True)
    edit(copy)
    return copy


def _rank(data: dict[str, Any], **figures: float) -> None:
    data["decision"]["pipeline_ranks"][0]["memory"].update(figures)


def _prediction(data: dict[str, Any], value: float) -> None:
    for prediction in data["predictions"]:
        if prediction["metric"] == "step_time_s":
            prediction["value"] = value
    data["certificate"]["objective"]["value"] = value
    data["certificate"]["gap"] = abs(value - data["certificate"]["bound"]) / value
    data["certificate"]["status"] = "feasible"


EDITS: dict[str, tuple[Callable[[dict[str, Any]], None], set[str]]] = {
    "a step faster than the decision's": (lambda d: _prediction(d, 0.5), {"restated.predictions", "certificate.bound"}),
    "a step slower than the decision's": (lambda d: _prediction(d, 50.0), {"restated.predictions"}),
    "memory of another rank": (lambda d: _rank(d, activations_bytes=1.0, weights_bytes=1.0), {"train.role_memory"}),
    "a rank over its capacity": (lambda d: _rank(d, capacity_bytes=1e9), {"train.rank_memory"}),
    "a rank too few": (lambda d: d["decision"]["pipeline_ranks"].pop(), {"train.ranks"}),
    "a group of another stride": (lambda d: d["decision"]["groups"][0].update(stride=7), {"train.groups"}),
    "shards that do not divide the ranks": (lambda d: d["decision"].update(zero_shards=3), {"train.zero_shards"}),
}


def test_a_solved_plan_passes_every_rule(plan: dict[str, Any]) -> None:
    assert not failing(plan)
    predicted = {prediction["metric"]: prediction["value"] for prediction in plan["predictions"]}
    tokens_per_s = 16 * 4096 / predicted["step_time_s"]
    assert predicted["tokens_per_s"] == pytest.approx(tokens_per_s)
    assert predicted["train_days"] == pytest.approx(1e9 / tokens_per_s / 86400)
    assert 0.1 < predicted["mfu"] < 0.8


def test_utilisation_counts_what_is_done_of_what_the_precision_can() -> None:
    """Frozen weights take 4 operations a token for 6, and 8-bit products have a peak of their own."""
    search, arch = {**SEARCH, "tp": 1, "pp": 1, "dp": 8}, find_model("meta-llama/Llama-3.1-8B")
    counts = parameter_counts(arch)
    for task, precision, operations in (("lora", "fp8", 4), ("sft", "bf16", 6)):
        plan = solve(problem(global_batch=16, task=task, precision=precision, search=search, nodes=1))
        predicted = {prediction.metric: prediction.value for prediction in plan.predictions}
        scores = 3 * arch.num_layers * 4 * 32 * 128 * 4096
        flop = 16 * 4096 * (operations * counts.active_without_embedding + scores)
        peak = find_node("hgx_h100").accelerator.peak(precision)
        assert predicted["mfu"] == pytest.approx(flop / predicted["step_time_s"] / 8 / peak)
        assert 0.2 < predicted["mfu"] < 0.8


@pytest.mark.parametrize("name", EDITS)
def test_what_does_not_follow_from_the_decision_fails_by_name(plan: dict[str, Any], name: str) -> None:
    edit, wanted = EDITS[name]
    assert wanted <= failing(_edited(plan, edit))


def test_the_same_problem_gives_the_same_bytes(plan: dict[str, Any]) -> None:
    again = solve(problem(global_batch=16, train_tokens=1e9, search=SEARCH)).model_dump(mode="json", by_alias=True)
    assert again == plan


def test_a_search_that_stops_early_states_its_bound_or_says_that_it_found_nothing() -> None:
    data = problem(global_batch=16, search=SEARCH | {"pp": [1, 2], "recompute": None})
    with pytest.raises(Stopped) as stopped:
        solve(data, Limits(time_limit_s=0.0))
    assert stopped.value.reason == "time_limit"
    assert stopped.value.bound is not None
    loose = solve(data, Limits(gap=0.5)).certificate
    tight = solve(data).certificate
    assert loose.bound is not None
    assert tight.objective.value is not None
    assert loose.objective.value is not None
    assert loose.bound <= tight.objective.value * (1 + 1e-9)
    assert loose.objective.value <= loose.bound / (1 - 0.5) * (1 + 1e-9)
    assert stopped.value.bound <= tight.objective.value


def test_nodes_out_of_service_are_left_out_and_the_plan_says_so() -> None:
    data = problem(nodes=3, global_batch=16, search=SEARCH)
    data["cluster"]["pools"][0]["out_of_service"] = [0]
    solved = solve(data).model_dump(mode="json", by_alias=True)
    assert solved["decision"]["placement"][0]["first_device"] == 8
    assert not failing(solved)
    data["cluster"]["pools"][0]["out_of_service"] = [1]
    around = solve(data).model_dump(mode="json", by_alias=True)
    assert around["decision"]["placement"][0]["skipped"] == [{"first_device": 8, "devices": 8}]
    assert around["predictions"] == solved["predictions"]
    assert not failing(around)
    del around["decision"]["placement"][0]["skipped"]
    assert "placement.service" in failing(around)


def test_heads_for_further_tokens_are_those_that_the_problem_trains() -> None:
    data = problem("XiaomiMiMo/MiMo-7B-Base", global_batch=16, search={**SEARCH, "zero_stage": 1})
    solved = solve(data).model_dump(mode="json", by_alias=True)
    assert solved["decision"]["stage_runs"][-1]["parts"] == ["mtp", "loss"]
    solved["inputs"]["options"]["mtp"] = False
    assert "train.layers" in failing(solved)
