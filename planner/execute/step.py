"""One step of a shard: which sequences bring how many tokens, where these stand, and the KV cache they meet."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor

ROTARY_BASE = 10000.0  # the wavelength base changes values, not work


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


def rotated(value: Tensor, step: Step) -> Tensor:
    """`value` [tokens, heads, width] with its halves turned by the positions of the tokens."""
    cosine, sine = step.angles(value.shape[-1])
    first, second = value.float().chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=-1).to(value.dtype)


class KvCache:
    """What attention layers keep of past tokens: by layer, tensors [sequences, heads, tokens, width], contiguous."""

    def __init__(self, num_sequences: int, max_tokens: int, device: torch.device, dtype: torch.dtype) -> None:
        self.num_sequences, self.max_tokens = num_sequences, max_tokens
        self.device, self.dtype = device, dtype
        self.of_layer: dict[int, tuple[Tensor, ...]] = {}

    def extended(self, layer: int, segment: Segment, new: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Cached and new rows of the segment's sequences, after writing the new [sequences, heads, tokens, width]."""
        start, stop = segment.cached_tokens, segment.cached_tokens + new[0].shape[2]
        if layer not in self.of_layer:
            self.of_layer[layer] = tuple(self._empty(value) for value in new)
        held = self.of_layer[layer]
        for store, value in zip(held, new, strict=True):
            store[segment.rows, :, start:stop] = value
        return tuple(store[segment.rows, :, :stop] for store in held)

    @property
    def used_bytes(self) -> int:
        """Bytes of all layers seen so far."""
        return sum(value.nbytes for held in self.of_layer.values() for value in held)

    def _empty(self, like: Tensor) -> Tensor:
        size = (self.num_sequences, like.shape[1], self.max_tokens, like.shape[3])
        return torch.zeros(size, device=self.device, dtype=self.dtype)


@dataclass(slots=True)
class Operators:
    """Marks where each operator runs, by its name in `planner.costs.forward`; `recorder` may time it."""

    recorder: Callable[[str], AbstractContextManager[object]] | None = None

    def __call__(self, name: str) -> AbstractContextManager[object]:
        return nullcontext() if self.recorder is None else self.recorder(name)
