"""Nodes of 3, 5 and 6 GPUs: plans are searched by the rule on tensor-parallel groups that `check` judges."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.check.legality import placement_findings
from planner.documents.read import given_document
from planner.errors import Infeasible
from planner.kinds.rl.decision import RlDecision
from planner.kinds.rl.formulate import formulate
from planner.kinds.rl.plan.decode import decode
from planner.kinds.rl.plan.solved import Solved
from planner.kinds.rl.setting import RlSetting, read_setting
from planner.load.problems import resolve_document
from planner.problem.resolve import Resolved
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlPlan
from planner.rl.search.trainings import training_choices
from planner.rl.services import service_sets

DECODING = {"prefill_tokens_per_s": 1e5, "max_running": 16, "kv_tokens": 100_000, "sequence_s": 5e-4, "token_s": 1e-7}


def costs(widths: tuple[int, ...], pipelines: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """Measured replicas of these widths; wider ones decode faster, and train faster on each GPU."""
    return {
        "generation": [{"pool": "a", "tp": tp, "step_s": 0.03 / tp**1.2, **DECODING} for tp in widths],
        "training": [
            {"pool": "a", "tp": tp, "pp": pp, "train_tokens_per_s": 900 * tp**1.3 * pp}
            | {"forward_tokens_per_s": 3000 * tp**1.3 * pp, "micro_tokens": 4096}
            for tp, pp in itertools.product(widths, pipelines)
        ],
    }


def problem(node: int, nodes: int, widths: tuple[int, ...], **options: Any) -> Resolved:  # noqa: ANN401
    document = {
        "schema": "planner.problem/1",
        "kind": "rl",
        "models": {"policy": {"name": "Qwen/Qwen2.5-7B"}},
        "cluster": {"pools": [{"gpu": "h800_sxm", "name": "a", "nodes": nodes, "gpus_per_node": node}]},
        "workloads": [{"input_tokens": 200, "output_tokens": {"mean": 800, "cv": 1.0}}],
        "objective": {"minimize": "iteration_time"},
        "options": {
            "algorithm": "grpo",
            "prompts": 12,
            "samples_per_prompt": 2,
            "max_staleness": 1,
            "arrangements": ["colocated", "disaggregated", "hybrid"],
            "costs": costs(widths),
            **options,
        },
    }
    return resolve_document(given_document(document, "problem.yaml"), Path())


def every_plan(setting: RlSetting) -> Any:  # noqa: ANN401
    """Plans of one group, priced, that the GPUs of the pool are enough for."""
    formulated = formulate(setting)
    given = formulated.problem
    groups = [
        GenerationGroup(option, count)
        for option in given.generation
        for count in range(1, given.pools[0].gpus // option.gpus + 1)
    ]
    scored = service_sets(given.services, given.training)
    for mode, group, choice, services in itertools.product(given.modes, groups, training_choices(given), scored):
        plan = RlPlan(mode, (group,), choice, services=services)
        evaluation = evaluate(given, plan)
        if all("straddle" in rule for rule in evaluation.broken):
            yield Solved(setting, formulated, plan, evaluation)


def served() -> Resolved:
    """Engines of two GPUs beside roles of one, on nodes of four."""
    models = {"policy": {"name": "Qwen/Qwen3-0.6B"}, "judge": {"name": "Qwen/Qwen3-0.6B"}}
    document = {
        "schema": "planner.problem/1",
        "kind": "rl",
        "models": models,
        "cluster": {"pools": [{"gpu": "h100_sxm", "name": "a", "nodes": 2, "gpus_per_node": 4}]},
        "workloads": [{"model": "policy", "input_tokens": 100, "output_tokens": 300}],
        "objective": {"minimize": "iteration_time"},
        "options": {
            "algorithm": "grpo",
            "actor": "policy",
            "reward": "judge",
            "prompts": 6,
            "samples_per_prompt": 1,
            "minibatches": 1,
            "arrangements": ["colocated", "disaggregated", "hybrid"],
            "generation_tp": [1],
            **{f"training_{axis}": [1] for axis in ("tp", "pp", "cp")},
            "served": [{"part": "reward", "tp": [2], "servers": [1, 2], "batch_samples": [8]}],
        },
    }
    return resolve_document(given_document(document, "problem.yaml"), Path())


CASES = {
    "nodes of 3": lambda: problem(3, 2, (1, 2, 3)),
    "nodes of 5": lambda: problem(5, 2, (1, 2, 4)),
    "nodes of 6": lambda: problem(6, 2, (2, 3, 12)),
    "engines that score": served,
}


@pytest.mark.parametrize("case", CASES)
def test_the_rule_of_the_search_is_that_of_check_for_every_plan(case: str) -> None:
    setting = read_setting(CASES[case]())
    pools, told = {pool.name: pool for pool in setting.pools}, set()
    for solved in every_plan(setting):
        findings = [finding for finding in placement_findings(decode(solved), pools) if not finding.ok]
        assert {finding.rule for finding in findings} <= {"placement.tp_domain"}
        assert bool(findings) != solved.evaluation.feasible
        told.add(bool(findings))
    assert told == {False, True}


@pytest.mark.parametrize("node", [3, 5, 6])
@pytest.mark.parametrize("arrangement", ["colocated", "disaggregated", "hybrid"])
@pytest.mark.parametrize("tail", [(), (0.2,)])
def test_every_plan_passes_its_check(node: int, arrangement: str, tail: tuple[float, ...]) -> None:
    envelope = solve(problem(node, 2, (1, 2, 4), arrangements=[arrangement], tail_fractions=[*tail]))
    wrong = [f for f in check_plan(envelope, RlDecision.model_validate(envelope.decision), proof=True) if not f.ok]
    assert not wrong
    assert envelope.certificate.status == "optimal"


def test_replicas_that_lie_beside_each_other_on_no_node_are_refused_by_the_rule() -> None:
    with pytest.raises(Infeasible) as refused:
        solve(problem(3, 1, (2,), arrangements=["disaggregated"], costs=costs((2,), pipelines=(1,)), prompts=4))
    (conflict,) = refused.value.conflict
    assert conflict == {
        "limit": "GPUs of the pools: training takes 2 or more, generation 2 or more",
        "nearest": "",
    }
    with pytest.raises(Infeasible) as refused:
        solve(problem(3, 2, (2,), arrangements=["disaggregated"]))
    (conflict,) = refused.value.conflict
    assert conflict["limit"] == "tensor-parallel groups inside scale-up domains of 3 GPUs"
    assert conflict["nearest"] == "tp that divides 3"
