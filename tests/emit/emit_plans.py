"""Plans written by hand from the schema classes, as emission takes them: an envelope and its validated decision."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from planner.kinds.serve.options import ServeDecision
from planner.plan.schema import (
    Axis,
    Block,
    Certificate,
    Digests,
    Envelope,
    Memory,
    Objective,
    Parallelism,
    Role,
    Route,
    Software,
)

QWEN = "Qwen/Qwen3-32B"
QWEN_MOE = "Qwen/Qwen3-235B-A22B"
LLAMA = "meta-llama/Meta-Llama-3.1-405B"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
GPU_BYTES = 141e9
_COLOCATED = {"max_batch": 64, "chunk_tokens": 8192, "max_context_tokens": 8192}


@dataclass(frozen=True)
class RolePlan:
    """A role in short; its ranks follow those of the role before it on the same pool unless `first` says where."""

    function: str = "colocated"
    replicas: int = 1
    degrees: dict[str, int] = field(default_factory=dict)
    limits: dict[str, int] = field(default_factory=lambda: dict(_COLOCATED))
    model: str = "default"
    pool: str = "h200"
    first: int | None = None
    name: str = ""
    memory: Memory | None = None
    order: tuple[str, ...] = ("pp", "dp", "cp", "tp")


@dataclass(frozen=True)
class Case:
    """A plan in short."""

    roles: tuple[RolePlan, ...]
    models: dict[str, dict[str, str]]
    nodes: int = 1
    node_names: tuple[str, ...] | None = None
    gpus_per_node: int = 8
    pools: tuple[dict[str, Any], ...] = ()
    name: str = "plan"
    kind: str = "serve"

    def build(self) -> tuple[Envelope, ServeDecision]:
        roles: list[Role] = []
        blocks: list[Block] = []
        used: dict[str, int] = {}
        for plan in self.roles:
            parallelism = Parallelism(**plan.degrees)
            roles.append(
                Role(
                    name=_name(plan),
                    function=plan.function,
                    model=plan.model,
                    pool=plan.pool,
                    replicas=plan.replicas,
                    parallelism=parallelism,
                    limits=dict(plan.limits),
                    memory=plan.memory,
                )
            )
            first = used.get(plan.pool, 0) if plan.first is None else plan.first
            blocks.append(_block(plan, parallelism, first))
            used[plan.pool] = first + plan.replicas * parallelism.devices
        mode = _mode({plan.function for plan in self.roles})
        decision = ServeDecision(roles=tuple(roles), placement=tuple(blocks), routing=_routing(self.roles), mode=mode)
        return _envelope(self, decision), decision

    def problem(self) -> dict[str, Any]:
        pool: dict[str, Any] = {"gpu": "h200_sxm", "name": "h200", "nodes": self.nodes}
        pool["gpus_per_node"] = self.gpus_per_node
        if self.node_names is not None:
            pool["node_names"] = list(self.node_names)
        return {
            "schema": "planner.problem/1",
            "kind": self.kind,
            "name": self.name,
            "models": self.models,
            "cluster": {"pools": list(self.pools) or [pool]},
        }


def _mode(functions: set[str]) -> Literal["colocated", "disaggregated", "mixed"]:
    if "colocated" not in functions:
        return "disaggregated"
    return "colocated" if functions == {"colocated"} else "mixed"


def _name(plan: RolePlan) -> str:
    return plan.name or plan.function


def _block(plan: RolePlan, parallelism: Parallelism, first: int) -> Block:
    """Ranks one device apart in the order of the role's axes, replicas outermost."""
    sizes = [plan.replicas, *(getattr(parallelism, axis) for axis in plan.order)]
    axes = [
        Axis(name=name, size=size, stride=math.prod(sizes[index + 1 :]))
        for index, (name, size) in enumerate(zip(("replica", *plan.order), sizes, strict=True))
    ]
    return Block(role=_name(plan), pool=plan.pool, first_device=first, axes=tuple(axes))


def _routing(plans: Sequence[RolePlan]) -> tuple[Route, ...]:
    fronts = [plan for plan in plans if plan.function != "decode"]
    return tuple(Route(workload="default", to=_name(plan), share=1 / len(fronts)) for plan in fronts)


def _envelope(case: Case, decision: ServeDecision) -> Envelope:
    return Envelope.model_validate(
        {
            "schema": "planner.plan/1",
            "kind": case.kind,
            "name": case.name,
            "software": Software(planner="0.1.0"),
            "digests": Digests(problem="sha256:" + "0" * 64),
            "inputs": case.problem(),
            "decision": decision.model_dump(mode="json"),
            "certificate": Certificate(
                claim="written by hand",
                status="stated",
                objective=Objective(metric="goodput_per_gpu", sense="maximize", value=None),
            ),
        }
    )


def colocated(
    replicas: int = 1, nodes: int = 1, model: str = QWEN, weights: str = "", kv_cache: str = "", **degrees: int
) -> Case:
    """One colocated role."""
    formats = {key: value for key, value in (("weights", weights), ("kv_cache", kv_cache)) if value}
    return Case((RolePlan(replicas=replicas, degrees=degrees),), {"default": {"name": model, **formats}}, nodes)


def _memory(activations_bytes: float) -> Memory:
    return Memory(capacity_bytes=0.9 * GPU_BYTES, activations_bytes=activations_bytes)


_PREFILL = {"max_batch": 8, "chunk_tokens": 16384, "max_context_tokens": 8192}
_DECODE = {"max_batch": 192, "max_context_tokens": 8192}
_WIDE = {"dp": 16, "ep": 16}

CASES: dict[str, Case] = {
    "dense-tp1": colocated(8, tp=1),
    "dense-tp2": colocated(4, tp=2),
    "dense-tp4": colocated(3, 2, tp=4),
    "dense-tp8": colocated(1, tp=8),
    "dense-pp2": colocated(1, tp=4, pp=2),
    "dense-dp2": colocated(1, tp=4, dp=2),
    "dense-tp8-pp2-two-nodes": colocated(1, 2, LLAMA, tp=8, pp=2),
    "dense-tp16-two-nodes": colocated(1, 2, LLAMA, tp=16),
    "moe-tp4": colocated(1, 1, QWEN_MOE, tp=4, moe_tp=4),
    "moe-tep4": colocated(1, 1, QWEN_MOE, tp=4, ep=4),
    "moe-dep8": colocated(2, 2, DEEPSEEK, dp=8, ep=8),
    "moe-tp2-dp4-ep8": colocated(1, 1, DEEPSEEK, tp=2, dp=4, ep=8),
    "moe-tp2-dp4-moe-tp8": colocated(1, 1, DEEPSEEK, tp=2, dp=4, moe_tp=8),
    "moe-dep16-two-nodes": colocated(1, 2, DEEPSEEK, dp=16, ep=16),
    "moe-tp8-dp2-ep16-two-nodes": colocated(1, 2, DEEPSEEK, tp=8, dp=2, ep=16),
    "disaggregated-2p1d": Case(
        (
            RolePlan("prefill", 2, {"tp": 2}, _PREFILL, memory=_memory(4e9)),
            RolePlan("decode", 1, {"tp": 4}, _DECODE, memory=_memory(1e9)),
        ),
        {"default": {"name": QWEN}},
    ),
    "disaggregated-wide": Case(
        (
            RolePlan("prefill", 2, {"tp": 8, "ep": 8}, _PREFILL),
            RolePlan("decode", 1, _WIDE, _DECODE | {"max_batch": 96}),
        ),
        {"default": {"name": DEEPSEEK}},
        nodes=4,
        node_names=("gpu-a.example", "gpu-b.example", "gpu-c.example", "gpu-d.example"),
    ),
    "mixed-two-models": Case(
        (
            RolePlan("prefill", 1, {"tp": 2}, _PREFILL, model="big"),
            RolePlan("decode", 1, {"tp": 2}, _DECODE, model="big"),
            RolePlan("colocated", 2, {"tp": 1}, model="small", pool="other"),
        ),
        {"big": {"name": QWEN}, "small": {"name": "Qwen/Qwen3-8B"}},
        pools=(
            {"gpu": "h200_sxm", "name": "h200", "nodes": 1, "gpus_per_node": 4},
            {"gpu": "h100_sxm", "name": "other", "nodes": 1, "gpus_per_node": 2},
        ),
    ),
}
CASES |= {
    "dense-fp8-over-bf16": colocated(1, tp=1, weights="fp8", kv_cache="fp8"),
    "dense-fp8-checkpoint": colocated(1, model="Qwen/Qwen3-32B-FP8", tp=1, weights="fp8_block", kv_cache="bf16"),
    "two-models-one-instance-each": Case(
        (RolePlan(model="big", name="big", degrees={"tp": 2}), RolePlan(model="small", name="small")),
        {"big": {"name": QWEN}, "small": {"name": "Qwen/Qwen3-8B"}},
    ),
    "decode-large-batch": Case(
        (
            RolePlan("prefill", 1, {"tp": 8, "ep": 8}, _PREFILL | {"chunk_tokens": 32768}),
            RolePlan("decode", 1, _WIDE, _DECODE | {"max_batch": 640}, first=8),
        ),
        {"default": {"name": DEEPSEEK}},
        nodes=3,
    ),
}
_HALVES = {"micro_batches": 2}
CASES |= {
    "two-batches-one-node": Case(
        (RolePlan(degrees={"dp": 8, "ep": 8}, limits=_COLOCATED | _HALVES),), {"default": {"name": DEEPSEEK}}
    ),
    "two-batches-wide": Case(
        (
            RolePlan("prefill", 1, _WIDE, _PREFILL | _HALVES),
            RolePlan("decode", 1, _WIDE, _DECODE | _HALVES),
        ),
        {"default": {"name": DEEPSEEK}},
        nodes=4,
    ),
}
SGLANG_ONLY: dict[str, Case] = {"moe-tp8-moe-tp2-ep4": colocated(1, 1, DEEPSEEK, tp=8, moe_tp=2, ep=4)}
BY_TARGET: dict[str, dict[str, Case]] = {"vllm": CASES, "sglang": CASES | SGLANG_ONLY}
ALL = [(target, name) for target, cases in BY_TARGET.items() for name in cases]
