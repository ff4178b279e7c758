"""Every rule of every kind: a hand-written plan broken in one way fails that rule and no other."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Failing = Callable[..., set[str]]

FIRST, LAST = "decision.stage_runs.0", "decision.stage_runs.2"
LAYOUT = "decision.layouts.1"


def _in_four(role: int, axis: str) -> dict[str, Any]:
    """The serving role in tensor-parallel groups of two, two of them by another axis."""
    axes = (("replica", 2, 8), (axis, 2, 2), ("tp", 2, 1))
    return {
        f"decision.roles.{role}.parallelism.tp": 2,
        f"decision.roles.{role}.parallelism.{axis}": 2,
        f"decision.placement.{role}.axes": [{"name": n, "size": size, "stride": stride} for n, size, stride in axes],
    }


SERVE: list[tuple[str, dict[str, Any]]] = [
    ("serve.mode", {"decision.mode": "colocated"}),
    ("serve.handover", {"decision.routing.1": ...}),
    ("serve.handover", {"decision.routing": [{"workload": "chat", "to": "decode", "share": 1.0}]}),
    ("serve.max_batch", {"decision.roles.1.limits": {}}),
    ("serve.max_batch", {"decision.roles.1.limits.max_batch": 0}),
    ("serve.models", {"decision.routing": []}),
    ("serve.models", {"decision.roles.0.model": ...}),
    (
        "serve.heads",
        {
            f"decision.{part}": 3
            for role in (0, 1)
            for part in (f"roles.{role}.parallelism.tp", f"placement.{role}.axes.1.size")
        },
    ),
    ("serve.experts", {"decision.roles.0.parallelism.ep": 8}),
    ("engine.release", {"inputs.engine.version": "nightly"}),
    ("engine.handover", {**_in_four(1, "pp"), "decision.placement.1.first_device": 4}),
    ("engine.shape", {**_in_four(0, "dp"), "inputs.engine.name": "trtllm"}),
]
THREE: dict[str, Any] = {
    "decision.roles.0.parallelism.tp": 3,
    "decision.placement.0.axes.2.size": 3,
    "decision.sequence_parallel": False,
}
PLAIN: dict[str, Any] = {
    "decision.roles.0.parallelism.vpp": 1,
    "decision.stage_runs": [
        {"stages": 1, "num_layers": 7, "parts": ["embedding"]},
        {"stages": 14, "num_layers": 8, "recompute": {"granularity": "full", "num_layers": 3}},
        {"stages": 1, "num_layers": 7, "parts": ["loss"]},
    ],
}
TWICE: dict[str, Any] = {
    "decision.stage_runs": [
        {"stages": 1, "num_layers": 3, "parts": ["embedding"]},
        {"stages": 30, "num_layers": 4},
        {"stages": 1, "num_layers": 3, "parts": ["loss"]},
    ],
}
TRAIN: list[tuple[str, dict[str, Any]]] = [
    ("train.role", {"decision.roles.0.function": "actor"}),
    ("train.stages", {f"{FIRST}.num_layers": 1, "decision.stage_runs.1.stages": 125}),
    ("train.ends", {f"{FIRST}.parts": []}),
    ("train.ends", {f"{LAST}.parts": ["embedding"]}),
    ("train.schedule", {"decision.schedule": "1f1b"}),
    ("train.schedule", {"decision.schedule": "zb_v"}),
    ("train.schedule", {"decision.num_micro_batches": 24, "inputs.options.global_batch": 3072}),
    ("train.sequence_parallel", {"decision.roles.0.parallelism.tp": 1, "decision.placement.0.axes.2.size": 1}),
    ("train.recompute", {"decision.stage_runs.1.recompute.granularity": "selective"}),
    ("train.recompute", {"decision.stage_runs.1.recompute": {"granularity": "full", "num_layers": 2}}),
    (
        "train.modules_again",
        {"decision.stage_runs.1.recompute": {"granularity": "selective", "modules": ["operators"]}},
    ),
    (
        "train.host_memory",
        {"decision.host_memory": [{"role": "job", "used_bytes": 2e9, "capacity_bytes": 1e9}]},
    ),
    ("train.batch", {"inputs.options.global_batch": 4096}),
    ("train.sequence", {"inputs.options.sequence_tokens": 8190}),
    ("train.precision", {"decision.precision": "fp8"}),
    ("train.layers", {"decision.stage_runs.1.num_layers": 2}),
    ("train.layers", {f"{LAST}.parts": ["mtp", "loss"]}),
    ("train.heads", THREE),
    ("train.experts", {"decision.roles.0.parallelism.ep": 8}),
]
ASIDE: dict[str, Any] = {
    "decision.layouts": [],
    "decision.side_files": {"expert_of_slot": {"path": "slots.npz", "digest": "sha256:" + "0" * 64}},
}
EXPERTS: list[tuple[str, dict[str, Any]]] = [
    ("experts.role", {"decision.roles.0.function": "decode"}),
    ("experts.ranks", {"decision.slots_per_rank": [9] * 31 + [5, 4]}),
    ("experts.slots", {"decision.slots_per_rank": [7], **ASIDE}),
    ("experts.layout", {"decision.layouts.0.expert_of_slot.288": 0}),
    ("experts.range", {"decision.layouts.0.expert_of_slot.8": 256}),
    ("experts.home", {"decision.home_slots_per_rank": 10}),
    ("experts.policy", {"decision.interval_s": ...}),
    ("experts.policy", {"decision.policy": "static", "decision.interval_s": ...}),
    ("experts.layers", {f"{LAYOUT}.first_layer": 28}),
    ("experts.layers", {f"{LAYOUT}.num_layers": 28}),
    ("experts.layers", {"decision.side_files": ASIDE["decision.side_files"]}),
    ("experts.placed", {"decision.layouts.0.expert_of_slot.1": 0}),
    ("experts.quota", {f"{LAYOUT}.quota.0": 0.9}),
    ("experts.asked", {"inputs.options.slots_per_rank": 8}),
    ("experts.asked", {"inputs.options.ep": 64}),
    ("experts.asked", {"inputs.options.ep": 31_000_000_000}),  # not as many figures in memory
    ("experts.model", {"decision.num_layers": 57, f"{LAYOUT}.num_layers": 28}),
]
DEEP: dict[str, Any] = {
    "inputs.cluster.pools.0.nodes": 6,
    "inputs.options.max_group_gpus": 40,
    "decision.roles.1.parallelism": {"pp": 40},
    "decision.placement.1.first_device": 8,
    "decision.placement.1.axes": [{"name": "pp", "size": 40, "stride": 1}],
}
PLACE: list[tuple[str, dict[str, Any]]] = [
    ("place.group", {"decision.roles.0.function": "decode"}),
    ("place.shares", {"decision.hosts.1.share": 0.4}),
    ("place.memory", {"decision.hosts.0.weights_bytes": 5e9}),
    ("place.memory", {"decision.roles.1.memory": ...}),
    ("place.replicas", {"inputs.options.min_replicas": 2}),
    ("place.hosts", {"decision.hosts.4": {"group": "group-9", "model": "llama", "weights_bytes": 0, "share": 0}}),
    ("place.once", {"decision.hosts.4": {"group": "group-0", "model": "llama", "weights_bytes": 0, "share": 0}}),
    ("place.models", {"decision.hosts.4": {"group": "group-0", "model": "ghost", "weights_bytes": 0, "share": 1}}),
    ("place.layers", DEEP),
    ("place.group_size", {"inputs.options.max_group_gpus": 2}),
]
APART: dict[str, Any] = {
    "inputs.cluster.pools.0.nodes": 8,
    "decision.placement.0.first_device": 32,
    "decision.arrangement": "disaggregated",
    "decision.synchrony": "asynchronous",
    "decision.staleness": 1,
}
ASTRIDE: dict[str, Any] = {"inputs.cluster.pools.0.nodes": 8, "decision.placement.2.first_device": 32}
RL_PLAN = Path(__file__).parents[1] / "plans" / "rl.json"
ITERATION: dict[str, Any] = {"metric": "iteration_time_s", "value": 224.8}
DOLLARS: dict[str, Any] = {"metric": "usd_per_iteration", "value": 2.0 * 32 * 224.8 / 3600}
ELSEWHERE: dict[str, Any] = {
    **APART,
    "inputs.cluster.pools": [
        {"name": "h800", "gpu": "h800_sxm", "nodes": 4, "out_of_service": [], "oversubscription": 1.0},
        {"name": "far", "gpu": "h800_sxm", "nodes": 4, "out_of_service": [], "oversubscription": 1.0},
    ],
    "decision.roles.0.pool": "far",
    "decision.placement.0.pool": "far",
    "decision.placement.0.first_device": 0,
    "digests.hardware.far": json.loads(RL_PLAN.read_text(encoding="utf-8"))["digests"]["hardware"]["h800"],
}
HALF_SHARED: dict[str, Any] = {"inputs.cluster.pools.0.nodes": 8, "decision.placement.0.first_device": 16}
LINK: dict[str, Any] = {"pools": ["far", "h800"], "bandwidth_bytes_per_s": 50e9, "latency_s": 1e-5}
FITTING_TOKENS = int(44e9 / (28 * 2 * 2 * 128 * 2))
"""In 44 GB: 28 layers, keys and values of 2 of the 4 KV heads of 128 numbers, 2 bytes each."""
RL: list[tuple[str, dict[str, Any]]] = [
    ("rl.roles", {"decision.roles.2.function": "judge"}),
    ("rl.critic", {"decision.roles.2.function": "critic"}),
    ("rl.staleness", {"decision.staleness": 1}),
    ("rl.synchrony", {"decision.synchrony": "stream"}),
    ("rl.phases", {"decision.phases.1": ..., **ASTRIDE}),
    ("rl.names", {"decision.resident_bytes.writer": 1e9}),
    ("rl.shares", {"decision.shares": {"rollout": 0.5}}),
    ("rl.arrangement", {"decision.arrangement": "hybrid"}),
    ("rl.residency", {"decision.resident_bytes.actor": 30e9}),
    ("rl.algorithm", {"decision.algorithm": "dapo"}),
    ("rl.batch", {"decision.minibatches": 8}),
    ("rl.batch", {"decision.minibatches": 3, "inputs.options.minibatches": 3}),
    ("rl.max_staleness", {**APART, "decision.staleness": 2}),
    ("rl.dp", {"inputs.options.prompts": 1}),
    ("rl.timeline", {"decision.phases.2.duration_s": 90.0}),
    ("rl.timeline", {**APART, "decision.phases.0.duration_s": 300.0}),
    ("rl.deadline", {"inputs.options.max_iteration_s": 100.0}),
    ("rl.network", ELSEWHERE),
    (
        "rl.cost",
        {"inputs.cluster.pools.0.usd_per_gpu_hour": 2.0, "predictions": [ITERATION, {**DOLLARS, "value": 5.0}]},
    ),
    ("rl.context", {"decision.roles.0.limits.max_context_tokens": 4_000_000}),
    ("rl.context", {"decision.roles.0.limits.max_context_tokens": FITTING_TOKENS + 1}),
    ("rl.roles", {"decision.roles.2.function": "actor"}),
    ("rl.critic", {"decision.algorithm": "ppo", "inputs.options.algorithm": "ppo"}),
    ("rl.staleness", {**APART, "decision.staleness": 0}),
    ("rl.shares", {"decision.shares": {"rollout": 0.5, "actor": 0.5}}),
    ("rl.arrangement", HALF_SHARED),
    ("rl.residency", {"decision.resident_bytes.reference": 10.4e9}),
    ("rl.dp", {"inputs.options.prompts": 7, "inputs.options.samples_per_prompt": 4}),
    ("rl.timeline", {"decision.phases.2.duration_s": 71.9}),
    ("rl.timeline", {"decision.phases.2.duration_s": 73.9}),
    ("rl.timeline", {**APART, "decision.phases.0.duration_s": 224.9}),
    ("schema.inputs", {"inputs.options.prompts": "many"}),
]
CASES = [
    (kind, rule, edits)
    for kind, cases in (("serve", SERVE), ("train", TRAIN), ("experts", EXPERTS), ("place", PLACE), ("rl", RL))
    for rule, edits in cases
]


@pytest.mark.parametrize(("kind", "rule", "edits"), CASES)
def test_a_plan_broken_in_one_way_fails_that_rule_alone(
    kind: str, rule: str, edits: dict[str, Any], failing_rules: Failing
) -> None:
    assert failing_rules(kind, edits) == {rule}


@pytest.mark.parametrize(
    ("kind", "edits"),
    [
        ("rl", APART),
        ("rl", {**APART, "decision.phases.0.duration_s": 224.8}),
        ("rl", {"decision.phases.2.duration_s": 73.8}),
        ("rl", {**HALF_SHARED, "decision.arrangement": "hybrid"}),
        ("rl", {**ELSEWHERE, "inputs.cluster.links": [LINK]}),
        ("rl", {"decision.shares": {"rollout": 1.0}}),
        ("rl", {"decision.resident_bytes.reference": 10.3e9}),
        ("rl", {"inputs.options.prompts": 2}),
        ("rl", {"inputs.options.max_iteration_s": 224.8}),
        ("rl", {"inputs.cluster.pools.0.usd_per_gpu_hour": 2.0, "predictions": [ITERATION, DOLLARS]}),
        ("rl", {"decision.roles.0.limits.max_context_tokens": FITTING_TOKENS}),
        ("experts", ASIDE),
        ("train", {"decision.schedule": "1f1b", **PLAIN}),
        ("train", {"decision.schedule": "zb_v", **PLAIN, "decision.roles.0.parallelism.vpp": 2, **TWICE}),
        ("serve", {"inputs.models": {"chat": {"config": "own"}}}),
        ("serve", {**_in_four(0, "pp"), "decision.placement.0.first_device": 0}),
        ("serve", {"inputs.engine.version": "0.10.2"}),
    ],
)
def test_other_sound_arrangements_pass(kind: str, edits: dict[str, Any], failing_rules: Failing) -> None:
    assert failing_rules(kind, edits) == set()
