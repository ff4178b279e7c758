"""One step's batch on a shard: tokens of each sequence, their positions, and the KV cache they attend to."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

ROTARY_BASE = 10000.0  # the wavelength base changes values, not work
BLOCK_TOKENS = 16  # of the KV cache: what vLLM takes where it is not told otherwise


@dataclass(frozen=True, slots=True)
class Segment:
    """Equal sequences: each brings `new_tokens` after `cached_tokens`, in cache rows from `first_sequence` on."""

    num_sequences: int
    new_tokens: int
    cached_tokens: int = 0
    first_sequence: int = 0

    @property
    def tokens(self) -> int:
        return self.num_sequences * self.new_tokens

    @property
    def decodes(self) -> bool:
        return self.new_tokens == 1 and self.cached_tokens > 0

    @property
    def rows(self) -> slice:
        return slice(self.first_sequence, self.first_sequence + self.num_sequences)


@dataclass(frozen=True, slots=True)
class Step:
    """Segments whose tokens stand one after the other, sequence by sequence, and the position of every token.

    With context parallelism the tokens are those of this rank, and segments count them.
    """

    segments: tuple[Segment, ...]
    positions: Tensor  # [tokens]
    last_only: bool = False  # logits of the last token of each sequence alone
    _angles: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, segments: Sequence[Segment], device: torch.device, *, last_only: bool = False) -> "Step":
        """Tokens that follow what is cached."""
        positions = [
            torch.arange(s.cached_tokens, s.cached_tokens + s.new_tokens, device=device).repeat(s.num_sequences)
            for s in segments
        ]
        return cls(tuple(segments), torch.cat(positions), last_only)

    @classmethod
    def of_context_part(cls, num_sequences: int, part: Tensor, *, last_only: bool = False) -> "Step":
        """The tokens of one context-parallel rank, at positions `part` of every sequence (`context_part`)."""
        segment = Segment(num_sequences, len(part))
        return cls((segment,), part.repeat(num_sequences), last_only)

    @property
    def tokens(self) -> int:
        return sum(segment.tokens for segment in self.segments)

    def sampled_rows(self) -> Tensor:
        """The row of the last token of each sequence."""
        rows, first = [], 0
        for segment in self.segments:
            ends = torch.arange(1, segment.num_sequences + 1, device=self.positions.device) * segment.new_tokens
            rows.append(first + ends - 1)
            first += segment.tokens
        return torch.cat(rows)

    def angles(self, width: int) -> tuple[Tensor, Tensor]:
        """Cosine and sine [tokens, 1, width / 2] of the rotary embedding (arXiv:2104.09864)."""
        if width not in self._angles:
            exponents = torch.arange(0, width, 2, device=self.positions.device, dtype=torch.float32) / width
            angle = self.positions[:, None].float() * ROTARY_BASE**-exponents
            self._angles[width] = angle.cos()[:, None], angle.sin()[:, None]
        return self._angles[width]


def context_part(num_tokens: int, part: int, parts: int) -> Tensor:
    """Positions of a context-parallel rank: of 2 x parts chunks the part-th from both ends, which evens causal work."""
    if parts == 1:
        return torch.arange(num_tokens)
    chunks = torch.arange(num_tokens).chunk(2 * parts)
    return torch.cat([chunks[part], chunks[2 * parts - 1 - part]])


def context_chunks(part_tokens: int, parts: int) -> list[tuple[int, int]]:
    """First and last position of the chunks, in the order in which gathered parts of `part_tokens` tokens hold them."""
    each = part_tokens // 2
    firsts = [chunk * each for part in range(parts) for chunk in (part, 2 * parts - 1 - part)]
    return [(first, first + each) for first in firsts]


def rotated(value: Tensor, step: Step) -> Tensor:
    """`value` [tokens, heads, width] with its halves turned by the positions of the tokens."""
    cosine, sine = step.angles(value.shape[-1])
    first, second = value.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(value.dtype)


class KvCache:
    """What attention layers keep of past tokens, in blocks that lie anywhere, as paged attention keeps them.

    Source: arXiv:2309.06180, section 4.2. By layer, tensors [blocks, tokens of a block, heads, width]; `table`: the
    blocks of each sequence in the order of its tokens [sequences, blocks of a sequence].
    """

    def __init__(
        self, num_sequences: int, max_tokens: int, device: torch.device, dtype: torch.dtype,
        *, block_tokens: int = BLOCK_TOKENS,
    ) -> None:  # fmt: skip
        self.num_sequences, self.block_tokens = num_sequences, block_tokens
        self.device, self.dtype = device, dtype
        each = -(-max_tokens // block_tokens)
        order = torch.randperm(num_sequences * each, generator=torch.Generator().manual_seed(0))
        self.table = order.to(device).view(num_sequences, each)
        self.of_layer: dict[int, tuple[Tensor, ...]] = {}
        self._slots: dict[Segment, Tensor] = {}

    def write(self, layer: int, segment: Segment, new: tuple[Tensor, ...]) -> None:
        """Keeps the new rows [sequences, heads, tokens, width] of the segment's sequences behind what they have."""
        if layer not in self.of_layer:
            self.of_layer[layer] = tuple(self._empty(value) for value in new)
        for store, value in zip(self.of_layer[layer], new, strict=True):
            rows = value.transpose(1, 2).flatten(0, 1).to(self.dtype)
            store.flatten(0, 1).index_copy_(0, self._new_slots(segment), rows)

    def gathered(self, layer: int, segment: Segment, *, whole_blocks: bool = False) -> tuple[Tensor, ...]:
        """All rows of the segment's sequences, the new ones included: [sequences, heads, tokens, width].

        whole_blocks: with what lies behind the last token in its block.
        """
        stop = segment.cached_tokens + segment.new_tokens
        stop += -stop % self.block_tokens if whole_blocks else 0
        blocks = self.table[segment.rows, : -(-stop // self.block_tokens)]
        return tuple(store[blocks].flatten(1, 2)[:, :stop].transpose(1, 2) for store in self.of_layer[layer])

    def _new_slots(self, segment: Segment) -> Tensor:
        """Where the new tokens go [tokens]: made once, so that a CUDA graph finds them in place."""
        if segment not in self._slots:
            first = segment.cached_tokens
            places = torch.arange(first, first + segment.new_tokens, device=self.device)
            blocks = self.table[segment.rows][:, places // self.block_tokens]
            self._slots[segment] = (blocks * self.block_tokens + places % self.block_tokens).flatten()
        return self._slots[segment]

    def _empty(self, like: Tensor) -> Tensor:
        size = (self.table.numel(), self.block_tokens, like.shape[1], like.shape[3])
        return torch.zeros(size, device=self.device, dtype=self.dtype)


class Recorder(Protocol):
    """Is told of every operator that runs."""

    def __call__(self, name: str) -> AbstractContextManager[object]:
        """Around an operator."""

    def watch(self, out: Tensor) -> None:
        """Before the backward pass from `out`."""


@dataclass(slots=True)
class Operators:
    """Marks where each operator runs, by its name in `planner.costs.operators.forward`; `recorder` may time it."""

    recorder: Recorder | None = None
    suffix: str = ""  # of all names: what the backward pass computes again has names of its own

    def __call__(self, name: str) -> AbstractContextManager[object]:
        return nullcontext() if self.recorder is None else self.recorder(name + self.suffix)

    def watch(self, out: Tensor) -> Tensor:
        """`out`, from which the backward pass is going to start."""
        if self.recorder is not None and out.grad_fn is not None:
            self.recorder.watch(out)
        return out

    @contextmanager
    def renamed(self, suffix: str) -> Iterator[None]:
        """Operators have `suffix` behind their names meanwhile."""
        before, self.suffix = self.suffix, suffix
        try:
            yield
        finally:
            self.suffix = before
