"""Training plans written by hand in short, as emission takes them."""

import math
from dataclasses import dataclass, field
from typing import Any

from planner.kinds.train.decision import TrainDecision
from planner.plan.schema import Certificate, Digests, Envelope, Objective, Software

LLAMA_8B = "meta-llama/Llama-3.1-8B"
LLAMA_70B = "meta-llama/Llama-3.1-70B"
LLAMA_405B = "meta-llama/Llama-3.1-405B"
QWEN_MOE = "Qwen/Qwen3-30B-A3B"
DEEPSEEK = "deepseek-ai/DeepSeek-V3"
OVERLAP = ("grad_reduce", "param_gather", "p2p")


@dataclass(frozen=True)
class TrainCase:
    """A plan in short; `stages` are (stages, layers, parts), the micro-batches follow from the global batch."""

    model: str
    nodes: int
    degrees: dict[str, int]
    stages: tuple[tuple[int, int, tuple[str, ...]], ...]
    global_batch: int = 1024
    sequence_tokens: int = 4096
    micro_batch: int = 1
    schedule: str = "1f1b"
    recompute: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)  # of the decision
    options: dict[str, Any] = field(default_factory=dict)
    order: tuple[str, ...] = ("pp", "dp", "cp", "tp")
    node_names: tuple[str, ...] | None = None

    def build(self) -> tuple[Envelope, TrainDecision]:
        decision = TrainDecision.model_validate(self.decision())
        return self._envelope(decision), decision

    def decision(self) -> dict[str, Any]:
        sizes = [self.degrees.get(axis, 1) for axis in self.order]
        axes = [
            {"name": name, "size": size, "stride": math.prod(sizes[index + 1 :])}
            for index, (name, size) in enumerate(zip(self.order, sizes, strict=True))
        ]
        dp = self.degrees.get("dp", 1)
        return {
            "roles": [
                {
                    "name": "job",
                    "function": "train",
                    "model": "policy",
                    "pool": "h100",
                    "replicas": 1,
                    "parallelism": self.degrees,
                }
            ],
            "placement": [{"role": "job", "pool": "h100", "first_device": 0, "axes": axes}],
            "schedule": self.schedule,
            "stage_runs": [
                {"stages": count, "num_layers": layers, "parts": parts, "recompute": self.recompute if layers else {}}
                for count, layers, parts in self.stages
            ],
            "micro_batch": self.micro_batch,
            "num_micro_batches": self.global_batch // (dp * self.micro_batch),
            "overlap": OVERLAP,
            **self.more,
        }

    def _envelope(self, decision: TrainDecision) -> Envelope:
        pool: dict[str, Any] = {"gpu": "h100_sxm", "name": "h100", "nodes": self.nodes}
        if self.node_names is not None:
            pool["node_names"] = list(self.node_names)
        options = {"global_batch": self.global_batch, "sequence_tokens": self.sequence_tokens, **self.options}
        if "precision" in self.more:
            options["precision"] = self.more["precision"]
        return Envelope.model_validate(
            {
                "schema": "planner.plan/1",
                "kind": "train",
                "name": "training",
                "software": Software(planner="0.1.0"),
                "digests": Digests(problem="sha256:" + "0" * 64),
                "inputs": {
                    "schema": "planner.problem/1",
                    "kind": "train",
                    "name": "training",
                    "models": {"policy": {"name": self.model}},
                    "cluster": {"pools": [pool]},
                    "objective": {"minimize": "step_time"},
                    "options": options,
                },
                "decision": decision.model_dump(mode="json"),
                "certificate": Certificate(
                    claim="written by hand",
                    status="stated",
                    objective=Objective(metric="step_time_s", sense="minimize", value=None),
                ),
            }
        )


WHOLE = ("embedding", "loss")
MEGATRON: dict[str, TrainCase] = {
    "dense-interleaved": TrainCase(
        LLAMA_405B,
        128,
        {"tp": 8, "pp": 16, "dp": 8, "vpp": 8},
        ((1, 0, ("embedding",)), (126, 1, ()), (1, 0, ("loss",))),
        schedule="interleaved",
        more={"sequence_parallel": True, "zero_stage": 1},
    ),
    "dense-uneven-full-recompute": TrainCase(
        LLAMA_8B,
        2,
        {"tp": 2, "pp": 4, "dp": 2},
        ((1, 7, ("embedding",)), (2, 9, ()), (1, 7, ("loss",))),
        recompute={"granularity": "full", "num_layers": 3},
        more={"sequence_parallel": True, "zero_stage": 1, "zero_shards": 1, "overlap": ("grad_reduce", "tp_comm")},
        options={"train_tokens": 1e12},
    ),
    "dense-biased": TrainCase(
        "openai/gpt-3-175b",
        32,
        {"tp": 8, "pp": 8, "dp": 4, "vpp": 6},
        ((1, 2, ("embedding",)), (46, 2, ()), (1, 2, ("loss",))),
        global_batch=256,
        sequence_tokens=2048,
        schedule="interleaved",
        more={
            "sequence_parallel": True,
            "zero_stage": 1,
            "overlap": ("p2p", "tp_comm"),
            "checkpointing": {"tier": "asynchronous", "interval_steps": 40, "spare_nodes": 1},
        },
    ),
    "moe-latent-mtp": TrainCase(
        DEEPSEEK,
        64,
        {"pp": 16, "dp": 32, "ep": 32},
        ((1, 4, ("embedding",)), (14, 4, ()), (1, 1, ("mtp", "loss"))),
        recompute={"granularity": "selective", "modules": ["layernorm", "mla_up_projection", "moe_activation"]},
        more={"zero_stage": 1, "precision": "fp8_block", "dispatcher": "deepep"},
    ),
    "moe-context-ulysses": TrainCase(
        QWEN_MOE,
        4,
        {"tp": 2, "cp": 2, "dp": 8, "ep": 8},
        ((1, 48, WHOLE),),
        global_batch=64,
        sequence_tokens=32768,
        more={"sequence_parallel": True, "zero_stage": 1, "context_parallel": "ulysses", "precision": "mxfp8"},
    ),
    "dense-data-parallel-outside": TrainCase(
        LLAMA_8B,
        4,
        {"tp": 4, "pp": 2, "dp": 4},
        ((1, 16, ("embedding",)), (1, 16, ("loss",))),
        more={"sequence_parallel": True, "offload": ("optimizer",), "zero_stage": 1},
        order=("dp", "pp", "cp", "tp"),
        node_names=("gpu-a", "gpu-b", "gpu-c", "gpu-d"),
    ),
}
BRIDGE: dict[str, TrainCase] = {
    "tuned-context": TrainCase(
        LLAMA_8B,
        1,
        {"tp": 2, "cp": 2, "dp": 2},
        ((1, 32, WHOLE),),
        global_batch=16,
        sequence_tokens=16384,
        more={"sequence_parallel": True, "zero_stage": 1},
        options={"task": "sft"},
    ),
    "adapters": TrainCase(
        LLAMA_8B,
        1,
        {"dp": 8},
        ((1, 32, WHOLE),),
        global_batch=32,
        micro_batch=2,
        more={"zero_stage": 1},
        options={"task": "lora", "lora_rank": 8},
    ),
}
SHARDED = TrainCase(LLAMA_8B, 2, {"dp": 16}, ((1, 32, WHOLE),), global_batch=64, more={"zero_stage": 3})
TITAN: dict[str, TrainCase] = {
    "sharded": SHARDED,
    "hybrid-sharded-recompute": TrainCase(
        LLAMA_8B,
        2,
        {"dp": 8, "tp": 2},
        ((1, 32, WHOLE),),
        global_batch=64,
        recompute={"granularity": "full", "num_layers": 32},
        more={"zero_stage": 2, "zero_shards": 4, "sequence_parallel": True, "overlap": ("tp_comm",)},
    ),
    "pipeline-v": TrainCase(
        LLAMA_70B,
        64,
        {"tp": 8, "pp": 8, "dp": 8, "vpp": 2},
        ((1, 4, ("embedding",)), (14, 5, ()), (1, 6, ("loss",))),
        global_batch=256,
        schedule="zb_v",
        more={"zero_stage": 3, "sequence_parallel": True},
    ),
    "moe": TrainCase(QWEN_MOE, 4, {"dp": 32, "ep": 8}, ((1, 48, WHOLE),), global_batch=64, more={"zero_stage": 3}),
}
DEEPSPEED: dict[str, TrainCase] = {
    "sharded": SHARDED,
    "tensor-parallel-offload": TrainCase(
        LLAMA_8B,
        1,
        {"tp": 2, "dp": 4},
        ((1, 32, WHOLE),),
        global_batch=64,
        recompute={"granularity": "full", "num_layers": 32},
        more={"zero_stage": 1, "offload": ("optimizer",)},
    ),
    "ulysses": TrainCase(
        LLAMA_8B,
        1,
        {"cp": 4, "dp": 2},
        ((1, 32, WHOLE),),
        global_batch=16,
        sequence_tokens=32768,
        more={"zero_stage": 3, "context_parallel": "ulysses"},
    ),
}
TRAINING: dict[str, dict[str, TrainCase]] = {
    "megatron-lm": MEGATRON | {"tuned-context": BRIDGE["tuned-context"]},
    "megatron-bridge": MEGATRON | BRIDGE,
    "torchtitan": TITAN,
    "deepspeed": DEEPSPEED,
    "slurm": {name: MEGATRON[name] for name in ("dense-uneven-full-recompute", "dense-data-parallel-outside")},
    "torchrun": {"pipeline-v": TITAN["pipeline-v"], "dense-interleaved": MEGATRON["dense-interleaved"]},
}
ALL_TRAINING = [(target, name) for target, cases in TRAINING.items() for name in cases]
