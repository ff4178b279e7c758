"""What an RL problem names as its launcher starts what solve answers with: solve refuses what emit would."""

import copy
from typing import Any

import pytest

from planner.api import solve
from planner.emit.registry import emit
from planner.engines.rl_launchers import RL_LAUNCHERS
from planner.errors import Infeasible, PlannerError
from planner.kinds.rl.decision import RlDecision

SMALL, MOE = "Qwen/Qwen2.5-7B", "Qwen/Qwen3-30B-A3B"
ALL, PPO = set(RL_LAUNCHERS), {"algorithm": "ppo", "critic": "policy"}
OWN = {**PPO, "critic_gpus": ["own"], "training_tp": [2], "training_cp": [1]}
JUDGED: dict[str, Any] = {"reward": "policy", "training_tp": [1], "training_cp": [1]}
ASKED: dict[str, tuple[dict[str, Any], set[str]]] = {
    "ahead": ({"max_staleness": 1, "reference": "policy"}, ALL),
    "ahead by more": ({"max_staleness": 3}, ALL - {"slime"}),
    "one step ahead": ({"max_staleness": 1, "synchrony": ["one_step"]}, ALL),
    "critic": (PPO, ALL - {"nemo-rl"}),
    "critic on GPUs of its own": (OWN, {"openrlhf"}),
    "critic on either": ({**PPO, "critic_gpus": ["actor", "own"]}, set()),
    "reward beside": ({"reward": "policy"}, {"verl", "openrlhf"}),
    "reward served": ({**JUDGED, "served": [{"part": "reward", "tp": [1]}]}, ALL - {"areal"}),
    "teacher served": ({"teacher": "policy", "served": [{"part": "teacher"}]}, {"verl", "areal", "slime"}),
    "teacher beside": ({"teacher": "policy"}, {"areal", "slime"}),
    "more samples": ({"over_sampling": 1.5, "partial_rollouts": True, "max_staleness": 1}, {"slime"}),
    "in flight": ({"in_flight_updates": True, "max_staleness": 1}, {"verl", "areal", "nemo-rl"}),
    "fp8": ({"training_precision": ["fp8_block"], "rollout_weights": ["fp8_block"]}, {"verl", "nemo-rl", "slime"}),
    "tools": ({"tools": {"calls": 2, "wait": "2s"}}, ALL),
    "tools overtaken": ({"tools": {"calls": 2, "wait": "2s", "priorities": ["longest_first"]}}, set()),
    "longest first": ({"length_error": 0.3}, set()),
    "any algorithm": ({"algorithm": "any"}, set()),
    "tail apart": ({"tail_fractions": [0.1]}, set()),
    "experts": ({"model": MOE, "generation_tp": [4]}, ALL - {"openrlhf"}),
    "uneven minibatches": ({"prompts": 33, "minibatches": 6}, ALL - {"verl"}),
    "parts of nodes": ({"whole_nodes": False}, set()),
}


def _problem(launcher: str, asked: dict[str, Any]) -> dict[str, Any]:
    options = {"algorithm": "grpo", "prompts": 32, "samples_per_prompt": 8, "minibatches": 2, "iterations": 2, **asked}
    return {
        "schema": "planner.problem/1",
        "kind": "rl",
        "models": {"policy": {"name": options.pop("model", SMALL)}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "nodes": 4}]},
        "workloads": [{"input_tokens": 512, "output_tokens": {"mean": 800, "cv": 0.5}}],
        "objective": {"minimize": "iteration_time"},
        "engine": {"name": RL_LAUNCHERS[launcher].engines[0]},
        "options": {**copy.deepcopy(options), "launcher": launcher},
    }


@pytest.mark.parametrize("name", ASKED)
def test_what_options_ask_for_is_emitted_or_refused_by_solve(name: str) -> None:
    asked, able = ASKED[name]
    launched = set()
    for launcher in RL_LAUNCHERS:
        try:
            plan = solve(_problem(launcher, asked))
        except (PlannerError, Infeasible):
            continue
        assert emit(plan, RlDecision.model_validate(plan.decision), launcher)
        launched.add(launcher)
    assert launched == able


def test_engines_sleep_as_the_launcher_has_them_sleep() -> None:
    plans = {name: solve(_problem(name, {"arrangements": ["colocated"]})) for name in ("nemo-rl", "verl")}
    decisions = {name: RlDecision.model_validate(plan.decision) for name, plan in plans.items()}
    kept = {name: decision.turns is not None and decision.turns.engine_weights for name, decision in decisions.items()}
    assert kept == {"nemo-rl": "host", "verl": False}
    with pytest.raises(PlannerError, match="keeps weights of engines that sleep"):
        solve(_problem("nemo-rl", {"engine_sleep": ["drop"]}))


def test_gradients_are_as_wide_as_the_launcher_keeps_them() -> None:
    asked = {"arrangements": ["colocated"], "training_tp": [2], "training_pp": [1], "training_cp": [1]}
    held = []
    for name in ("nemo-rl", "verl"):
        roles = RlDecision.model_validate(solve(_problem(name, asked)).decision).roles
        held += [role.memory.gradients_bytes for role in roles if role.function == "actor" and role.memory]
    assert 2 * held[0] == pytest.approx(held[1])


def test_an_engine_that_trains_generates_nothing() -> None:
    with pytest.raises(PlannerError, match="megatron-lm trains"):
        solve({**_problem("verl", {}), "engine": {"name": "megatron-lm"}})
