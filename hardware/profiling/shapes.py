"""Shapes of all profiled kernels: sizes, FLOPs and bytes of each, and the table it is written to.

`row` gives the columns of the table in the layout of `planner.hardware.profiles.layout`; `flop` and `size_bytes` are
what any implementation must compute and move, and serve as yardstick of the interpolation and of utilisation.
Activations and caches are 2 bytes a value unless a precision says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from planner.errors import PlannerError

Row = dict[str, int | str]

DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp32": "float32", "int4": "int4_wo"}
"""Name of a precision in the tables."""
VALUE_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp32": 4.0, "int4": 0.5}
GRADIENTS = ("", "input", "weight")
BALANCED = "balanced"


def _check_precision(precision: str) -> None:
    if precision not in DTYPES:
        raise PlannerError(f"precision must be one of {', '.join(DTYPES)}, found `{precision}`")


@dataclass(frozen=True, slots=True)
class KernelShape:
    """A kernel with all its sizes: what is run once, and where its time stands in a table."""

    own_table: ClassVar[str]
    columns: ClassVar[Mapping[str, str]]  # of the table, by field
    constants: ClassVar[Mapping[str, str]] = {}  # further columns, the same for all shapes of the kind

    @property
    def table(self) -> str:
        """The table that holds its time."""
        return self.own_table

    @property
    def flop(self) -> float:
        """Floating-point operations of one run."""
        return 0.0

    @property
    def size_bytes(self) -> float:
        """Bytes that one run moves at least."""
        raise NotImplementedError

    @property
    def memory_bytes(self) -> float:
        """What one set of inputs takes of the device, outputs and what lies between included."""
        return self.size_bytes

    def row(self) -> Row:
        """Its columns in the table."""
        sizes = {column: getattr(self, name) for name, column in self.columns.items()}
        if "precision" in self.columns:
            sizes[self.columns["precision"]] = DTYPES[sizes[self.columns["precision"]]]
        return {**sizes, **self.constants}


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
        _check_precision(self.precision)

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


_OF_HEADS = {"batch": "batch_size", "heads": "num_heads"}
_OF_GROUPS = {**_OF_HEADS, "kv_heads": "num_key_value_heads"}
_OF_WINDOW = {"head_dim": "head_dim", "window": "window_size"}
_ATTENTION_FORMATS = {"attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}
_LATENT_FORMATS = {"mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"}


@dataclass(frozen=True, slots=True)
class PrefillAttentionShape(KernelShape):
    """Causal attention of `length` tokens over themselves; with `backward` the gradients of its three inputs.

    `uneven` sequences have half to one and a half times `length`, packed one behind the other.
    """

    own_table = "context_attention"
    columns: ClassVar[Mapping[str, str]] = {**_OF_GROUPS, "length": "isl", **_OF_WINDOW}
    constants: ClassVar[Mapping[str, str]] = _ATTENTION_FORMATS
    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    backward: int = 0
    uneven: int = 0

    def __post_init__(self) -> None:
        if self.uneven and (self.window or self.backward):
            raise PlannerError("uneven sequences are measured in the forward pass, without a window")

    @property
    def table(self) -> str:
        if self.uneven:
            return "context_attention_varlen"
        return "context_attention_backward" if self.backward else "context_attention"

    @property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        if not self.uneven or self.batch == 1:
            return [self.length] * self.batch
        return [max(1, round(self.length * (0.5 + place / (self.batch - 1)))) for place in range(self.batch)]

    @property
    def flop(self) -> float:
        products = 5.0 if self.backward else 2.0
        return products * 2.0 * self.heads * self.pairs * self.head_dim

    @property
    def pairs(self) -> float:
        """Pairs of a token and one it attends to, in all sequences."""
        return sum(self._pairs_of(length) for length in self.lengths)

    def _pairs_of(self, length: int) -> float:
        full = min(self.window or length, length)
        return full * (full + 1) / 2 + (length - full) * full

    @property
    def size_bytes(self) -> float:
        passes = 2.0 if self.backward else 1.0
        return passes * 4.0 * self.batch * self.length * (self.heads + self.kv_heads) * self.head_dim


@dataclass(frozen=True, slots=True)
class DecodeAttentionShape(KernelShape):
    """One new token a sequence over `context` cached ones."""

    own_table = "generation_attention"
    columns: ClassVar[Mapping[str, str]] = {**_OF_GROUPS, "context": "step", **_OF_WINDOW}
    constants: ClassVar[Mapping[str, str]] = _ATTENTION_FORMATS
    batch: int
    context: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0

    @property
    def attended(self) -> int:
        """Cached tokens that are read."""
        return min(self.context, self.window or self.context)

    @property
    def flop(self) -> float:
        return 4.0 * self.batch * self.heads * self.attended * self.head_dim

    @property
    def size_bytes(self) -> float:
        return 4.0 * self.batch * self.head_dim * (self.attended * self.kv_heads + self.heads)


@dataclass(frozen=True, slots=True)
class LatentPrefillShape(KernelShape):
    """Multi-head form of latent attention: causal, keys and values expanded, values narrower than keys."""

    own_table = "context_mla"
    columns: ClassVar[Mapping[str, str]] = {**_OF_HEADS, "length": "isl"}
    constants: ClassVar[Mapping[str, str]] = _LATENT_FORMATS
    batch: int
    length: int
    heads: int
    head_dim: int
    v_head_dim: int

    @property
    def flop(self) -> float:
        return self.batch * self.heads * self.length * (self.length + 1.0) * (self.head_dim + self.v_head_dim)

    @property
    def size_bytes(self) -> float:
        return 4.0 * self.batch * self.length * self.heads * (self.head_dim + self.v_head_dim)


@dataclass(frozen=True, slots=True)
class LatentDecodeShape(KernelShape):
    """Absorbed latent attention: all heads of a token read one cached vector of `head_dim`, the first `rank` of it
    as values."""

    own_table = "generation_mla"
    columns: ClassVar[Mapping[str, str]] = {**_OF_HEADS, "context": "step"}
    constants: ClassVar[Mapping[str, str]] = _LATENT_FORMATS
    batch: int
    context: int
    heads: int
    head_dim: int
    rank: int

    @property
    def flop(self) -> float:
        return 2.0 * self.batch * self.heads * self.context * (self.head_dim + self.rank)

    @property
    def size_bytes(self) -> float:
        return 2.0 * self.batch * (self.context * self.head_dim + self.heads * (self.head_dim + self.rank))

    @property
    def memory_bytes(self) -> float:
        """With the scores of all heads, scaled scores and their softmax, which kernels that are not fused write out."""
        return self.size_bytes + 3 * 2.0 * self.batch * self.heads * self.context


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
        _check_precision(self.precision)
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
