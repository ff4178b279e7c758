"""Shapes of all profiled kernels, and the families of them that are measured together."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from planner.errors import PlannerError
from planner.hardware.profiling.attention_shapes import (
    DecodeAttentionShape,
    LatentDecodeShape,
    LatentPrefillShape,
    PrefillAttentionShape,
)
from planner.hardware.profiling.kernel_shape import VALUE_BYTES, KernelShape, Row, check_precision

GRADIENTS = ("", "input", "weight")
BALANCED = "balanced"


@dataclass(frozen=True, slots=True)
class GemmShape(KernelShape):
    """[m, k] x [k, n] into bf16 (fp32 for fp32 inputs); an 8-bit one quantises its activations first, a 4-bit one has
    them in bf16."""

    own_table = "gemm"
    columns: ClassVar[Mapping[str, str]] = {"m": "m", "n": "n", "k": "k", "precision": "gemm_dtype"}
    m: int
    n: int
    k: int
    precision: str = "bf16"

    def __post_init__(self) -> None:
        check_precision(self.precision)

    @property
    def flop(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def size_bytes(self) -> float:
        value = VALUE_BYTES[self.precision]
        activation = 2.0 if self.precision == "int4" else value
        return value * self.n * self.k + activation * self.m * self.k + max(value, 2.0) * self.m * self.n


@dataclass(frozen=True, slots=True)
class BatchedGemmShape(KernelShape):
    """`heads` products [tokens, k] x [k, n] with a weight each: the absorbed projections of latent attention."""

    own_table = "mla_bmm"
    columns: ClassVar[Mapping[str, str]] = {"tokens": "num_tokens", "heads": "num_heads", "side": "op_name"}
    constants: ClassVar[Mapping[str, str]] = {"bmm_dtype": "bfloat16"}
    tokens: int
    heads: int
    n: int
    k: int
    side: str  # mla_gen_pre (queries), mla_gen_post (values)

    @property
    def flop(self) -> float:
        return 2.0 * self.heads * self.tokens * self.n * self.k

    @property
    def size_bytes(self) -> float:
        return 2.0 * self.heads * (self.n * self.k + self.tokens * (self.n + self.k))


@dataclass(frozen=True, slots=True)
class ExpertsShape(KernelShape):
    """The routed experts of one layer on the busiest of `ep` ranks; `tokens` are those of all ranks together.

    With `gradient` the backward pass: of the `input`, or of the `weight`.
    """

    own_table = "moe"
    columns: ClassVar[Mapping[str, str]] = {
        "tokens": "num_tokens",
        "moe_tp": "moe_tp_size",
        "ep": "moe_ep_size",
        "hidden": "hidden_size",
        "intermediate": "inter_size",
        "top_k": "topk",
        "num_experts": "num_experts",
        "distribution": "distribution",
        "precision": "moe_dtype",
    }
    tokens: int
    moe_tp: int
    ep: int
    hidden: int
    intermediate: int
    top_k: int
    num_experts: int
    gated: int = 1
    precision: str = "bf16"
    distribution: str = BALANCED  # or power_law_<exponent>
    gradient: str = ""  # one of GRADIENTS

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.gradient not in GRADIENTS or (self.gradient and self.precision != "bf16"):
            raise PlannerError(
                f"gradients of experts are those of `input` and `weight` in bf16, found `{self.gradient}`"
            )

    @property
    def table(self) -> str:
        return "moe_backward" if self.gradient else "moe"

    @property
    def local_experts(self) -> int:
        return self.num_experts // self.ep

    @property
    def local_intermediate(self) -> int:
        return self.intermediate // self.moe_tp

    @property
    def matrices(self) -> int:
        return 3 if self.gated else 2

    @property
    def _routed(self) -> float:
        return self.tokens * self.top_k / self.ep

    @property
    def flop(self) -> float:
        return 2.0 * self._routed * self.matrices * self.hidden * self.local_intermediate

    @property
    def size_bytes(self) -> float:
        touched = min(float(self.local_experts), self._routed)
        weights = touched * self.matrices * self.hidden * self.local_intermediate * VALUE_BYTES[self.precision]
        return weights + 2.0 * self._routed * (2 * self.hidden + 2 * (self.matrices - 1) * self.local_intermediate)

    def row(self) -> Row:
        row = KernelShape.row(self)
        return row | {"gradient": self.gradient} if self.gradient else row


@dataclass(frozen=True, slots=True)
class _MovingShape(KernelShape):
    """What moves `moved_bytes` and computes nothing that counts."""

    moved_bytes: int

    @property
    def size_bytes(self) -> float:
        return float(self.moved_bytes)


@dataclass(frozen=True, slots=True)
class MemoryPassShape(_MovingShape):
    """An elementwise kernel over rows of `width` bf16 values; `moved_bytes` as the cost model counts them."""

    own_table = "memory_pass"
    columns: ClassVar[Mapping[str, str]] = {"moved_bytes": "size_bytes", "pass_kind": "op_name"}
    pass_kind: str  # one of PASS_KINDS
    width: int = 4096

    def __post_init__(self) -> None:
        if self.pass_kind not in PASS_KINDS:
            raise PlannerError(f"pass must be one of {', '.join(PASS_KINDS)}, found `{self.pass_kind}`")

    @property
    def rows(self) -> int:
        """Rows whose pass moves about `moved_bytes`, at least one."""
        return max(1, round(self.moved_bytes / (self.width * PASS_KINDS[self.pass_kind])))


PASS_KINDS = {
    "norm": 8.0,  # residual and input read and written, 2 bytes each
    "rotary": 4.0,  # read and written
    "activation": 3.0,  # gate and up read, product written, over the width of both
    "embedding": 4.0,
    "sampling": 12.0,  # fp32 logits three times
    "cross_entropy": 4.0,  # bf16 logits read twice
    "gather": 4.0,  # cached keys and values read and written
    "combine": 2.25,  # eight outputs of experts read, their sum written
    "quantise": 3.0,  # bf16 read, 8 bits written
    "norm_backward": 12.0,  # three passes for two of the forward pass, as of all gradients
    "rotary_backward": 6.0,
    "activation_backward": 4.5,
    "cross_entropy_backward": 6.0,
    "optimizer": 34.0,  # fp32 weight and two moments read and written, gradient read: 28; cast to bf16: 6
}
"""Bytes that one value of a row moves, by kind of pass, as the cost model counts them."""


@dataclass(frozen=True, slots=True)
class CopyShape(_MovingShape):
    """A copy of `moved_bytes` in one direction, from or to pinned memory where the host takes part."""

    own_table = "copy"
    columns: ClassVar[Mapping[str, str]] = {"moved_bytes": "size_bytes", "direction": "op_name"}
    direction: str  # host_to_device, device_to_host, device_to_device

    @property
    def size_bytes(self) -> float:
        return (2.0 if self.direction == "device_to_device" else 1.0) * self.moved_bytes


@dataclass(frozen=True, slots=True)
class LaunchShape(KernelShape):
    """`num_kernels` empty kernels one behind the other, launched by the host or replayed from a graph."""

    own_table = "launch"
    columns: ClassVar[Mapping[str, str]] = {"num_kernels": "num_kernels", "mode": "mode"}
    num_kernels: int
    mode: str  # eager, graph

    @property
    def size_bytes(self) -> float:
        return 2.0 * self.num_kernels


@dataclass(frozen=True, slots=True)
class CollectiveShape(KernelShape):
    """A collective over `group` devices; `message_bytes` as docs/profiles.md defines them for each operation."""

    own_table = "nccl"
    columns: ClassVar[Mapping[str, str]] = {
        "group": "num_gpus",
        "message_bytes": "message_bytes",
        "operation": "op_name",
    }
    constants: ClassVar[Mapping[str, str]] = {"dtype": "half"}
    message_bytes: int
    group: int
    operation: str  # all_reduce, all_gather, reduce_scatter, alltoall, p2p

    @property
    def size_bytes(self) -> float:
        return float(self.message_bytes)


_KINDS: dict[str, type[KernelShape]] = {
    "gemm": GemmShape,
    "batched_gemm": BatchedGemmShape,
    "prefill_attention": PrefillAttentionShape,
    "decode_attention": DecodeAttentionShape,
    "latent_prefill": LatentPrefillShape,
    "latent_decode": LatentDecodeShape,
    "experts": ExpertsShape,
    "memory_pass": MemoryPassShape,
    "copy": CopyShape,
    "launch": LaunchShape,
    "collective": CollectiveShape,
}


@dataclass(frozen=True, slots=True)
class Family:
    """Shapes of one kind that differ in the axes of `sweep` alone; the unit in which points are chosen.

    `fixed` and `sweep` name fields of the kind's dataclass; every axis holds increasing positive sizes.
    """

    kind: str
    fixed: tuple[tuple[str, int | str], ...]
    sweep: tuple[tuple[str, tuple[int, ...]], ...]

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise PlannerError(f"kind must be one of {', '.join(_KINDS)}, found `{self.kind}`")
        known = {field.name for field in fields(_KINDS[self.kind])}
        named = [name for name, _ in self.fixed] + [name for name, _ in self.sweep]
        unknown = [name for name in named if name not in known]
        if unknown:
            raise PlannerError(f"a {self.kind} has no size `{unknown[0]}`, only {', '.join(sorted(known))}")
        for name, values in self.sweep:
            if not values or values[0] < 1 or list(values) != sorted(set(values)):
                raise PlannerError(f"sizes must be positive and increasing, found {values}", where=name)

    @property
    def name(self) -> str:
        """Identity within a profile: kind and fixed sizes."""
        return " ".join([self.kind, *(f"{name}={value}" for name, value in self.fixed)])

    def shape(self, point: tuple[int, ...]) -> KernelShape:
        """The shape at `point`, one value an axis of `sweep`."""
        names = (name for name, _ in self.sweep)
        return make_shape(self.kind, dict(self.fixed) | dict(zip(names, point, strict=True)))


def make_shape(kind: str, sizes: dict[str, int | str]) -> KernelShape:
    """The shape of a kind with the given sizes; raises PlannerError for sizes that the kind lacks or needs."""
    try:
        make: type[KernelShape] = _KINDS[kind]
        return make(**sizes)  # type: ignore[arg-type]  # names and values come as data; the dataclasses check names
    except (KeyError, TypeError) as error:
        raise PlannerError(f"not the sizes of a {kind}: {error}") from None
