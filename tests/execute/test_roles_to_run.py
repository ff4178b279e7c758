"""What is run of each role of a plan, and that a plan with strange values is refused; nothing here starts a rank."""

import copy
import importlib.util
import json
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from planner.costs.operators.kernels import Experts
from planner.errors import PlannerError
from planner.execute import execution
from planner.execute.execution import ExecutionOptions, execute_plan
from planner.execute.judge.predict import rank_operators, rank_weight_bytes
from planner.execute.ranks.launch import JobOutcome
from planner.execute.shards.cases import EXPERT_TOKENS, Cut, StepCase, parse_cut, role_steps
from planner.execute.shards.expert_layout import laid_out, slotted
from planner.execute.shards.spec import distinct_ranks, role_spec
from planner.plan.reader import read_plan

BenchPlan = Callable[..., Path]
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def steps_of(path: Path, role: str, cut: str | None = None) -> dict[str, StepCase]:
    plan = read_plan(path)
    return {step.kind: step for step in role_steps(plan, plan.role(role), parse_cut(cut))}


def edited(path: Path, edit: Callable[[dict[str, Any]], None]) -> Path:
    data = json.loads(path.read_text(encoding="utf-8"))
    edit(data)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_a_cut_only_makes_steps_smaller(bench_plan: BenchPlan) -> None:
    path = bench_plan("serve", {"decode": {}})
    whole, same = steps_of(path, "decode")["decode"], steps_of(path, "decode", "batch=999,context=9999")["decode"]
    small = steps_of(path, "decode", "batch=2,context=50")["decode"]
    assert same == whole
    assert (small.batch, small.decode_context) == (2, 50)
    assert whole.batch > 2
    assert whole.decode_context > 50


def test_a_cut_of_layers_keeps_the_ends_of_the_model(bench_plan: BenchPlan) -> None:
    role = role_spec(read_plan(bench_plan("serve", {"decode": {"pp": 2}})), "decode")
    first, last = (Cut(layers=1).of_rank(rank).stages[0] for rank in distinct_ranks(role))
    assert (list(first.layers), first.embeds, first.yields_logits) == ([0], True, False)
    assert (list(last.layers), last.embeds, last.yields_logits) == ([2], False, True)


def test_lengths_are_the_means_of_the_workloads_that_reach_the_role(bench_plan: BenchPlan) -> None:
    def mixed(plan: dict[str, Any]) -> None:
        load = plan["inputs"]["workloads"][0]
        long = {**load, "name": "long", "input_tokens": {"low": 200, "high": 400}, "output_tokens": {"mean": 10}}
        plan["inputs"]["workloads"] = [load, long]
        shares = ((load["name"], 1.0), ("long", 3.0))
        plan["decision"]["routing"] = [{"workload": name, "to": "prefill", "share": share} for name, share in shares]

    outcome = steps_of(edited(bench_plan("serve", {"prefill": {}}), mixed), "prefill")
    assert outcome["kv_transfer"].prefill_tokens == (96 + 3 * 300) // 4


def test_an_rl_actor_trains_on_prompts_with_their_answers(bench_plan: BenchPlan) -> None:
    path = bench_plan("rl", {"rollout": {}, "actor": {}, "reference": {}})
    generated = steps_of(path, "rollout")
    assert set(generated) >= {"prefill", "decode", "mixed"}
    trained = steps_of(path, "actor")["train"]
    limits = read_plan(path).role("rollout").limits
    assert trained.prefill_tokens == limits["max_context_tokens"]
    with pytest.raises(PlannerError, match="the function `reference` cannot be executed"):
        steps_of(path, "reference")


def test_an_expert_layer_takes_the_tokens_of_a_chunk_a_batch_or_its_default(bench_plan: BenchPlan) -> None:
    def limited(limits: dict[str, int]) -> StepCase:
        path = bench_plan("experts", {"prefill": {"dp": 2, "ep": 2}}, "tests/moe", decision=laid([*range(8), 0, 1]))
        return steps_of(edited(path, lambda plan: plan["decision"]["roles"][0].update(limits=limits)), "prefill")[
            "expert_layer"
        ]

    assert limited({"chunk_tokens": 64, "max_batch": 8}).prefill_tokens == 64
    assert limited({"max_batch": 8}).decode_sequences == 8
    assert limited({}).tokens == EXPERT_TOKENS


def laid(*layouts: list[int], slots: list[int] | None = None, quota: list[float] | None = None) -> dict[str, Any]:
    outcome = [{"first_layer": index, "expert_of_slot": layout} for index, layout in enumerate(layouts)]
    given = [{**layout, "quota": quota} for layout in outcome] if quota is not None else outcome
    return {"layouts": given, "slots_per_rank": slots or [5], "num_experts": 8, "num_layers": len(layouts)}


def test_the_fullest_rank_of_each_layout_stands_for_its_role(bench_plan: BenchPlan) -> None:
    first, second = [*range(8), 0, 7], [0, 1, 2, 3, 7, 7, 7, 4, 5, 6]
    path = bench_plan("experts", {"prefill": {"dp": 2, "ep": 2}}, "tests/moe", decision=laid(first, second, first))
    role = role_spec(read_plan(path), "prefill")
    loads = [[layout.load_of_rank(rank) for rank in range(2)] for layout in role.layouts]
    assert len(loads) == 2  # layouts that are alike run once
    assert loads[0] == pytest.approx([4.5 / 8, 3.5 / 8])
    assert loads[1] == pytest.approx([(4 + 1 / 3) / 8, (3 + 2 / 3) / 8])
    assert [rank.rank for rank in distinct_ranks(role)] == [0]
    assert [layer.mixer for layer in role.arch.layers] == [None, None]


def test_a_rank_with_more_of_the_tokens_is_predicted_to_compute_more(bench_plan: BenchPlan) -> None:
    path = bench_plan("experts", {"prefill": {"dp": 2, "ep": 2}}, "tests/moe", decision=laid([*range(8), 0, 7]))
    plan = read_plan(path)
    role = role_spec(plan, "prefill")
    (case,) = role_steps(plan, plan.role("prefill"))
    tokens, weights = [], []
    for rank in role.ranks():
        operators = laid_out(rank_operators(role.arch, rank, case), role.layouts, rank.expert_part)
        (experts,) = [op for op in operators if isinstance(op, Experts)]
        assert experts.num_experts == 10
        tokens.append(float(experts.tokens[0]))
        weights.append(rank_weight_bytes(slotted(role.arch, role.layouts, rank.expert_part), rank))
    assert tokens[0] / tokens[1] == pytest.approx(4.5 / 3.5)
    assert sum(tokens) / 2 == pytest.approx(2 * case.tokens)
    assert weights[0] == weights[1]
    assert weights[0] > rank_weight_bytes(role.arch, role.rank(0))


@pytest.mark.parametrize(
    ("decision", "words"),
    [
        (laid([*range(8), 0]), "each of 10 slots"),
        (laid([*range(7), 0, 1, 2]), "expert 7 has no slot"),
        (laid([*range(8), 8, 8]), "expert 8 of 8"),
        (laid([*range(8), 0, -1]), "each of 10 slots"),
        (laid([*range(8), 0, 1], slots=[5, 4, 1]), "3 slot counts for 2 ranks"),
        (laid([*range(8), 0, 1], slots=[0]), "whole numbers of at least 1"),
        (laid([*range(8), 0, 1], quota=[1.0] * 10), "the shares of expert 0 add up to 2"),
        (laid([*range(8), 0, 1], quota=[1.0] * 8), "`quota` must be 10 shares"),
        (laid(), "has no layout"),
        ({**laid(), "side_files": {"expert_of_slot": {"path": "x.npy", "digest": "sha256:0"}}}, "side file"),
    ],
)
def test_a_layout_that_is_no_layout_is_refused(decision: dict[str, Any], words: str, bench_plan: BenchPlan) -> None:
    path = bench_plan("experts", {"prefill": {"dp": 2, "ep": 2}}, "tests/moe", decision=decision)
    with pytest.raises(PlannerError, match=words):
        role_spec(read_plan(path), "prefill")


def test_a_layout_of_a_model_without_experts_is_refused(bench_plan: BenchPlan) -> None:
    path = bench_plan("experts", {"prefill": {"dp": 2, "ep": 2}}, decision=laid([*range(8), 0, 1]))
    with pytest.raises(PlannerError, match="has no experts"):
        role_spec(read_plan(path), "prefill")


def test_a_model_without_an_executor_is_refused_with_the_reason(bench_plan: BenchPlan) -> None:
    path = bench_plan("serve", {"decode": {}}, "deepseek-ai/DeepSeek-V3.2")
    with pytest.raises(PlannerError, match="sparse attention by an indexer"):
        role_spec(read_plan(path), "decode")


def places(value: object, *path: str | int) -> Iterator[tuple[str | int, ...]]:
    """Every place below `value`."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, below in value.items():
            yield from places(below, *path, key)
    elif isinstance(value, list):
        for index, below in enumerate(value[:2]):
            yield from places(below, *path, index)


@needs_torch
@pytest.mark.parametrize("kind", ["serve", "train", "experts", "rl"])
def test_strange_values_in_a_plan_are_one_error_or_none(
    kind: str, bench_plan: BenchPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(execution, "run_local", lambda *_args, **_more: JobOutcome({}, (), 0.0))
    roles = {"serve": ("prefill", "decode"), "train": ("job",), "experts": ("prefill",), "rl": ("rollout", "actor")}
    edits = {"experts": laid([*range(8), 0, 1])}.get(kind, {})
    edits |= {"stage_runs": [{"stages": 1, "num_layers": 4}], "side_files": {}} if kind == "train" else {}
    model = "tests/moe" if kind == "experts" else "tests/dense"
    degrees = {"dp": 2, "ep": 2} if kind == "experts" else {}
    whole = json.loads(bench_plan(kind, dict.fromkeys(roles[kind], degrees), model, decision=edits).read_text())
    refused = 0
    strange: Iterator[object] = cycle(["many", -3, None, [7], {"a": {}}, 1e300, 0])
    for path in [*places(whole["decision"], "decision"), *places(whole["inputs"], "inputs")]:
        if "memory" in path or "limits" in path[:2]:
            continue
        plan = copy.deepcopy(whole)
        holder: Any = plan
        for step in path[:-1]:
            holder = holder[step]
        holder[path[-1]] = next(strange)
        file = tmp_path / "strange.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        try:
            execute_plan(file, ExecutionOptions(device="cpu"))
        except PlannerError:
            refused += 1
    assert refused > 10
