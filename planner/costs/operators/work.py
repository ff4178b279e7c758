"""Inputs of the cost model as arrays over points [N]: shards (parallelism) and work (tokens, contexts) of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Bools, Floats, Indices
from planner.plan.records import BY_NUMBER


@dataclass(frozen=True, slots=True)
class Shards:
    """Degrees of parallelism of one instance [N]: attention on tp x dp x pp ranks, experts on moe_tp x ep = tp x dp.

    With two micro-batches, a step is cut in halves, of which one computes while tokens of the other are exchanged.
    An instance in several pieces hands over between them through the fabric, and inside a piece as its ranks stand.
    Of each layer so many redundant experts are copied, all placed by load; BY_NUMBER where no load places them.
    """

    tp: Floats
    pp: Floats
    dp: Floats
    moe_tp: Floats
    ep: Floats
    micro_batches: Floats
    pieces: Floats
    redundant: Floats

    @classmethod
    def of(
        cls,
        tp: ArrayLike,
        pp: ArrayLike = 1,
        dp: ArrayLike = 1,
        moe_tp: ArrayLike = 1,
        ep: ArrayLike = 1,
        micro_batches: ArrayLike = 1,
        pieces: ArrayLike = 1,
        redundant: ArrayLike = BY_NUMBER,
    ) -> "Shards":
        """Broadcast the given degrees to one length."""
        given = (tp, pp, dp, moe_tp, ep, micro_batches, pieces, redundant)
        return cls(*np.broadcast_arrays(*(np.atleast_1d(np.asarray(each, dtype=np.float64)) for each in given)))

    @property
    def devices(self) -> Floats:
        return self.tp * self.pp * self.dp

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, index: Indices | Bools) -> "Shards":
        """The chosen points."""
        return Shards(*(getattr(self, field.name)[index] for field in fields(self)))

    def reshaped(self, *shape: int) -> "Shards":
        """The same points on other axes."""
        return Shards(*(getattr(self, field.name).reshape(shape) for field in fields(self)))

    @classmethod
    def joined(cls, several: Sequence["Shards"]) -> "Shards":
        """All points of several, one after the other."""
        return cls(*(np.concatenate([getattr(shards, field.name) for shards in several]) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class Work:
    """What one attention rank does in one step [N]; tokens are new ones, context is what the cache already holds."""

    prefill_tokens: Floats  # of all prefilling sequences together
    prefill_sequences: Floats
    prefill_context: Floats  # cached tokens in front of each prefilling sequence's chunk
    decode_sequences: Floats
    decode_context: Floats  # mean cached tokens of a decoding sequence
    rank_tokens: Floats | None = None  # new ones of the mean rank of those that share experts; own ones if None
    queries: Floats | None = None  # tokens of each decoding sequence, its drafts and one; 1 if None

    @classmethod
    def prefill(cls, tokens: ArrayLike, context: ArrayLike = 0.0, sequences: ArrayLike = 1.0) -> "Work":
        """Steps that only prefill."""
        return cls.of(tokens, sequences, context, 0.0, 0.0)

    @classmethod
    def decode(cls, sequences: ArrayLike, context: ArrayLike) -> "Work":
        """Steps that only decode."""
        return cls.of(0.0, 0.0, 0.0, sequences, context)

    @classmethod
    def of(cls, *arrays: ArrayLike) -> "Work":
        """Broadcast the five fields to one length."""
        return cls(*np.broadcast_arrays(*(np.atleast_1d(np.asarray(array, dtype=np.float64)) for array in arrays)))

    @classmethod
    def joined(cls, several: Sequence["Work"]) -> "Work":
        """All points of several, one after the other; what the first leaves out, none may state."""
        columns = {field.name: [getattr(work, field.name) for work in several] for field in fields(cls)}
        joined: dict[str, Any] = {
            name: None if parts[0] is None else np.concatenate(parts) for name, parts in columns.items()
        }
        return cls(**joined)

    def with_drafts(self, draft_tokens: ArrayLike) -> "Work":
        """The same steps, which verify so many drafts of every decoding sequence."""
        queries = np.asarray(draft_tokens, dtype=np.float64) + 1.0
        return replace(self, queries=np.broadcast_to(queries, self.decode_sequences.shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the points: [N], or more axes that the fields have apart."""
        stated = (getattr(self, field.name) for field in fields(self))
        return np.broadcast_shapes(*(values.shape for values in stated if values is not None))

    @property
    def tokens(self) -> Floats:
        """New tokens of the step on one attention rank."""
        return self.prefill_tokens + self.decode_tokens

    @property
    def decode_tokens(self) -> Floats:
        """New tokens of the decoding sequences."""
        return self.decode_sequences if self.queries is None else self.decode_sequences * self.queries

    @property
    def shared_tokens(self) -> Floats:
        """New tokens that each of the ranks that share experts brings to them on average."""
        return self.tokens if self.rank_tokens is None else self.rank_tokens

    @property
    def sequences(self) -> Floats:
        """Those that the step works on."""
        return self.prefill_sequences + self.decode_sequences

    @property
    def sampled(self) -> Floats:
        """Tokens whose logits are computed: one a prompt, and all of decoding sequences."""
        return self.prefill_sequences + self.decode_tokens
