"""Roles of artifacts as instances of a plan, and back: what the degrees and limits of each engine mean.

A plan counts limits by attention rank, and of colocated instances the prompt tokens of a step beside its decoding ones.
vLLM counts limits by data-parallel rank and both sorts of tokens together (`vllm/v1/core/sched/scheduler.py`); SGLang
counts stated requests and all chunks of the ranks of data-parallel attention together, whose tp spans them
(`sglang/srt/server_args.py`), and requests that nobody states by rank (`srt/model_executor/pool_configurator.py`);
tp of TensorRT-LLM spans them with `enable_attention_dp`, limits are by rank (`llm_args.py`). In vLLM and SGLang data
parallelism of a model without experts is replicas beside each other.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.costs.operators.work import Shards
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.engines.settings import engine_setting
from planner.engines.static_share import static_share
from planner.errors import PlannerError
from planner.hardware.accelerator import Accelerator
from planner.kinds.serve.deployed.instances import Instances
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.models.architecture import Architecture, MoeFfn
from planner.plan.records import BY_NUMBER

MOST_REQUESTS = 4096  # of an attention rank of SGLang that nobody limits
LEAST_SHARE = 4  # of vLLM's budget, 1 in so many, that prompts have beside a full batch


@dataclass(frozen=True, slots=True)
class EngineRole:
    """A role with what its engine and model make of it."""

    engine: str
    role: Mapping[str, Any]
    arch: Architecture
    gpu: Accelerator
    version: str | None = None  # of the engine, the newest where nothing names it

    @property
    def experts(self) -> bool:
        """Whether the model has any."""
        return any(isinstance(layer.ffn, MoeFfn) for layer in self.arch.layers)

    def degree(self, name: str) -> int:
        """A degree; raises PlannerError for one that is open."""
        value = self.role[name]
        if not isinstance(value, int):
            raise PlannerError(
                f"{name} is open", where=self.role["role"], hint=f"give it: `--set {self.role['role']}.{name}=8`"
            )
        return value

    @property
    def shared(self) -> bool:
        """Whether data-parallel attention has the ranks of tensor parallelism."""
        tp, pp, dp, gpus = (self.role[name] for name in ("tp", "pp", "dp", "gpus_per_replica"))
        return self.engine != "vllm" and dp is not None and dp > 1 and (self.engine == "trtllm" or gpus == tp * pp)

    @property
    def copies(self) -> int:
        """Instances of a plan in one replica of the artifact."""
        return self.degree("dp") if not self.experts and not self.shared else 1

    def limit(self, field: str, setting: str, ranks: int) -> tuple[int, str | None]:
        """The limit of each attention rank, and what says so where it is the engine's.

        `ranks` share what an artifact states. An engine's defaults have a rule of their own (`engine_setting`).
        """
        value = self.role[field]
        if isinstance(value, int) and value > 0:
            return max(value // ranks, 1), None
        default = int(engine_setting(self.engine, setting, self.version, self.gpu, ranks))
        if self.engine == "sglang" and setting == "max_batch":
            default = self._requests(default)
        each = " for each attention rank" if ranks > 1 else ""
        return default, f"{self.role['role']}: {field} is left to {self.engine}, whose default here is {default}{each}"

    @property
    def memory_share(self) -> tuple[float, str | None]:
        """The engine's setting of memory, in its own terms, and what says so where it is the engine's default."""
        stated: float | None = self.role["memory_utilisation"]
        if stated is not None:
            return stated, None
        if self.engine == "sglang":
            own = self.shape()
            ranks = own.dp if self.experts else 1
            share = static_share(self.gpu, self.version, devices=own.tp * ranks, stages=own.pp, attention_ranks=ranks)
        else:
            setting = "free_memory_share" if self.engine == "trtllm" else "memory_utilisation"
            share = engine_setting(self.engine, setting, self.version, self.gpu)
        return share, f"{self.role['role']}: memory is left to {self.engine}, whose default share here is {share:g}"

    def _requests(self, least: int) -> int:
        """Running requests of an attention rank of SGLang: 512 for each longest request that its cache has room for, at
        least so many and at most `MOST_REQUESTS` (`_resolve_max_num_reqs` of srt/model_executor)."""
        longest = self.role["max_model_len"] or self.arch.max_context_tokens
        if not longest:
            return least
        shards = Shards.of(*self.shape().all_degrees)
        room = self.memory_share[0] * self.gpu.memory_bytes - float(np.max(weight_bytes(self.arch, shards)))
        longest_held = room / float(np.max(kv_cache_bytes(self.arch, shards, float(longest))))
        return max(least, min(int(512.0 * longest_held), MOST_REQUESTS))

    def shape(self) -> InstanceShape:
        """The degrees of one instance, and how its experts lie."""
        shape, copies = self._laid_out(), self.role.get("redundant_experts")
        return replace(shape, redundant=copies) if copies is not None and shape.ep > 1 else shape

    def _laid_out(self) -> InstanceShape:
        tp, pp, dp, ep = (self.degree(name) for name in ("tp", "pp", "dp", "ep"))
        if self.shared:
            if tp % dp:
                raise PlannerError(f"data-parallel attention {dp} does not divide tp {tp}", where=self.role["role"])
            return InstanceShape(
                tp // dp, pp, dp, tp // ep if self.experts and ep <= tp else 1 if self.experts else tp, ep
            )
        if not self.experts:
            return InstanceShape(tp, pp, 1, tp, 1)
        ranks = tp * dp
        ep = min(ep, ranks)
        return InstanceShape(tp, pp, dp, max(ranks // ep, 1), ep)

    def instances(self) -> tuple[Instances, list[str]]:
        """The instances, and the defaults of the engine that they rest on."""
        shape, replicas, function = self.shape(), self.degree("replicas"), self.role["role"]
        ranks = shape.dp if self.shared and self.engine == "sglang" else 1
        batch, said_batch = self.limit("max_num_seqs", "max_batch", ranks)
        tokens, said_tokens = self.limit("chunk_tokens", "chunk_tokens", ranks)
        if function == "colocated" and self.engine != "sglang":
            tokens = max(tokens - batch, tokens // LEAST_SHARE)
        chunk = 0 if function == "decode" else tokens
        held = 0 if function == "prefill" else batch
        _, said_share = self.memory_share
        said = ((said_batch, held), (said_tokens, chunk), (said_share, self.engine != "vllm"))
        notes = [text for text, counts in said if text and counts]
        return Instances(function, shape, replicas * self.copies, held, chunk), notes

    def role_of(self, before: Instances, after: Instances) -> dict[str, Any]:
        """The fields of the role that change where the instances do, as the artifact writes them."""
        changed: dict[str, Any] = {}
        if after.shape != before.shape:
            changed |= self._degrees(after.shape)
            if after.shape.redundant != before.shape.redundant:
                changed["redundant_experts"] = None if after.shape.redundant == BY_NUMBER else after.shape.redundant
        gpus = after.shape.devices * (self.copies if after.shape == before.shape else 1)
        if after.shape != before.shape or after.replicas != before.replicas:
            changed |= {"replicas": after.replicas * after.shape.devices // gpus, "gpus_per_replica": gpus}
        sequences, tokens = limits_of(self.engine, after)
        if after.max_batch != before.max_batch and after.function != "prefill":
            changed["max_num_seqs"] = sequences
        if after.function != "decode" and after.chunk_tokens != before.chunk_tokens:
            changed["chunk_tokens"] = tokens
        return {name: value for name, value in changed.items() if self.role.get(name) != value}

    def _degrees(self, shape: InstanceShape) -> dict[str, Any]:
        if self.engine == "vllm":
            return {"tp": shape.tp, "pp": shape.pp, "dp": shape.dp, "ep": shape.ep if self.experts else self.role["ep"]}
        return {"tp": shape.tp * shape.dp, "pp": shape.pp, "dp": shape.dp, "ep": shape.ep}


def limits_of(engine: str, part: Instances) -> tuple[int, int]:
    """Sequences and tokens of a step as the engine is given them."""
    ranks = part.shape.dp if engine == "sglang" and part.shape.dp > 1 else 1
    beside = part.max_batch if part.function == "colocated" and engine != "sglang" else 0
    return part.max_batch * ranks, (part.chunk_tokens + beside) * ranks


def usable_share(role: EngineRole, part: Instances, workspace_bytes: float) -> float | None:
    """The share of a device that the engine may use in all, where its setting is a share of something else; None for
    vLLM."""
    if role.engine == "vllm":
        return None
    stated, _ = role.memory_share
    shards, batch = Shards.of(*part.shape.all_degrees), float(part.max_batch or 1)
    tokens = max(float(part.chunk_tokens), batch)
    return share_of_device(role.engine, stated, role.arch, role.gpu, shards, (tokens, batch, workspace_bytes))


def share_of_device(
    engine: str,
    stated: float,
    arch: Architecture,
    gpu: Accelerator,
    shards: Shards,
    step: tuple[float, float, float],
) -> float:
    """What an engine may use of a device in all, by its own setting.

    `step` has the tokens of a step, its sequences, and the bytes of workspace. vLLM's setting is that share. SGLang's
    `mem_fraction_static` is for weights and caches (`profile_available_bytes` of srt/model_executor: what is free once
    weights are loaded, less what the rest of the share takes of what was free before); `free_gpu_memory_fraction` of
    TensorRT-LLM is of what weights and activations leave (`llm_args.py`).
    """
    if engine == "vllm":
        return stated
    tokens, batch, workspace_bytes = step
    device = gpu.memory_bytes
    beside = (float(np.max(activation_bytes(arch, shards, tokens, batch))) + workspace_bytes) / device
    if engine == "sglang":
        return min(math.ceil(1000.0 * (stated + beside)) / 1000.0, 1.0)
    used = beside + float(np.max(weight_bytes(arch, shards))) / device
    return min(used + stated * max(1.0 - used, 0.0), 1.0)


def with_batch(part: Instances, max_batch: int) -> Instances:
    """The instances with the sequences that their caches have room for."""
    return replace(part, max_batch=min(part.max_batch, max_batch)) if part.max_batch else part
