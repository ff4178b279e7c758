"""The training code of a problem: that of its engine, or of an era, with what differs from it."""

from dataclasses import replace
from typing import Literal, get_args

from pydantic import Field

from planner.costs.training.config import Framework
from planner.costs.training.eras import ERAS
from planner.engines.training import Dispatcher, Reduction
from planner.plan.records import Index
from planner.schema.base import Spec

EraName = Literal[
    "megatron",
    "megatron_graphs",
    "nemo",
    "megatron_2021",
    "megatron_2022",
    "megatron_2023",
    "megatron_deepspeed",
    "megascale",
    "composer",
    "torchtitan",
    "torchtitan_eager",
    "fsdp",
    "deepspeed",
]
assert set(get_args(EraName)) == set(ERAS)


_REDUCED_BYTES = {"bf16": 2.0, "fp32": 4.0}


def summing_in(code: Framework, reduction: Reduction) -> Framework:
    """The code with gradients in this format on their way between ranks.

    Codes with one buffer for all gradients of a layer add micro-batches up in it, and send it as it is
    (megatron/core/distributed/param_and_grad_buffer.py).
    """
    sent = _REDUCED_BYTES[reduction]
    return replace(code, reduce_bytes=sent, gradient_bytes=sent if code.whole_gradients else code.gradient_bytes)


def dropping(code: Framework, *, hidden: bool, attention: bool) -> Framework:
    """The code with or without dropout behind attention and feed-forward part, and in the softmax attention."""
    return replace(code, hidden_dropout=hidden, attention_dropout=attention)


class CodeSpec(Spec):
    """A training code that no launcher here starts: it is priced, and `emit` refuses it."""

    era: EraName | None = Field(default=None, description="the code by name; that of the engine when absent")
    attention: Literal["cudnn", "flash", "triton", "unfused"] | None = Field(
        default=None, description="kernel of the softmax attention; the era's when absent, as all below"
    )
    fused: bool | None = Field(default=None, description="fused norms, activations and rotary embeddings")
    host: Literal["graphs", "plain", "eager", "legacy"] | None = Field(
        default=None, description="how hosts launch kernels, as CUDA graphs of whole steps or one by one"
    )
    fused_experts: bool | None = Field(
        default=None, description="activation and quantisation run within the products of experts"
    )
    parallel_block: bool | None = Field(
        default=None, description="attention and feed-forward part read the output of one norm"
    )
    loaders_per_node: Index | None = Field(
        default=None, description="processes that read the same samples as a step begins; 0: read ahead"
    )
    blocking_hand_overs: bool | None = Field(
        default=None, description="hosts wait for their devices after each message between pipeline stages"
    )

    def framework(self, engine: Framework) -> Framework:
        """What it says on top of its era, or of the engine's own code."""
        stated = self.model_dump(exclude={"era"}, exclude_none=True)
        return replace(ERAS[self.era] if self.era else engine, **stated)

    def dispatcher(self) -> Dispatcher | None:
        """`alltoall` where the era's code forwards nothing; None: what the engine has."""
        return "alltoall" if self.era and not ERAS[self.era].forwarded_experts else None
