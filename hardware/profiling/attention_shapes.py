"""Shapes of profiled attention: grouped and latent, of prompts and of single tokens over a cache."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from planner.errors import PlannerError
from planner.hardware.profiling.kernel_shape import KernelShape

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
