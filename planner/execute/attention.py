"""Attention layers of one shard: heads over tp ranks, context over cp ranks, the cache of what came before.

With context parallelism every rank gathers the keys and values of all parts (as in arXiv:2407.21783, section 3.3.2) and
attends with its own queries; ring and Ulysses orders of the same sums move the same bytes and are not built.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from planner.errors import PlannerError
from planner.execute.collectives import gathered, spread, summed, summed_both_ways
from planner.execute.groups import Group
from planner.execute.kernels import causal_attention, masked_attention, position_mask
from planner.execute.layers import NORM_EPSILON, Norm, Shard
from planner.execute.step import KvCache, Segment, Step, rotated
from planner.execute.weights import Piece
from planner.models.architecture import GroupedQueryAttention, LatentAttention


class GroupedQuery(nn.Module):
    """MHA, GQA and MQA, full, windowed or chunked."""

    def __init__(self, shard: Shard, mixer: GroupedQueryAttention, prefix: str, layer: int) -> None:
        super().__init__()
        self.mixer, self.layer, self.shard = mixer, layer, shard
        groups, hidden, tp = shard.groups, shard.arch.hidden_size, shard.groups.tp
        self.copies = max(tp.size // mixer.num_kv_heads, 1)
        self.heads, self.kv_heads = mixer.num_heads // tp.size, max(mixer.num_kv_heads // tp.size, 1)
        self.kv_group = groups.kv_replicas[mixer.num_kv_heads]
        width = mixer.head_dim + (mixer.v_head_dim if mixer.output_gate else 0)
        own, kv_own = (tp.index, tp.size), (tp.index // self.copies, tp.size // self.copies)
        sizes = [("q", mixer.num_heads * width, own), ("k", mixer.num_kv_heads * mixer.head_dim, kv_own)]
        if not mixer.values_are_keys:
            sizes.append(("v", mixer.num_kv_heads * mixer.v_head_dim, kv_own))
        precision = shard.arch.precisions.attention
        pieces = [Piece.by_outputs(f"{prefix}{name}_proj", size, hidden, *part) for name, size, part in sizes]
        biases = [Piece.by_inputs(f"{prefix}{name}_bias", 1, size, *part) for name, size, part in sizes]
        self.q = shard.linear(pieces[:1], precision, biases[: mixer.qkv_bias]) if self.copies > 1 else None
        rest = pieces[1:] if self.copies > 1 else pieces
        self.qkv = shard.linear(rest, precision, (biases[1:] if self.copies > 1 else biases) if mixer.qkv_bias else ())
        outputs = mixer.num_heads * mixer.v_head_dim
        self.output = shard.linear([Piece.by_inputs(f"{prefix}o_proj", hidden, outputs, *own)], precision)
        whole = [Piece.whole(f"{prefix}o_bias", 1, hidden)]
        self.output_bias = shard.weights.parameter(whole) if mixer.output_bias else None
        sinks = [Piece.by_inputs(f"{prefix}sinks", 1, mixer.num_heads, *own)]
        self.sinks = shard.weights.parameter(sinks) if mixer.sinks else None
        self.q_norm = self.k_norm = None
        if mixer.qk_norm or mixer.qk_norm_full:
            self.q_norm = HeadNorm(shard, f"{prefix}q_norm", mixer, mixer.num_heads, own, tp)
            self.k_norm = HeadNorm(shard, f"{prefix}k_norm", mixer, mixer.num_kv_heads, kv_own, self.kv_group)

    def forward(self, x: Tensor, step: Step, cache: KvCache | None) -> Tensor:
        tp, operators = self.shard.groups.tp, self.shard.operators
        x = spread(x, tp, "attention_all_reduce")
        with operators("qkv"):
            query, gate, key, value = self._projected(x)
        with operators("rotary_and_cache"):
            query = rotated(query if self.q_norm is None else self.q_norm(query), step)
            key = rotated(key if self.k_norm is None else self.k_norm(key), step)
        mixed = torch.cat([self._attend(*part, step, cache) for part in _segments(step, query, key, value)])
        if gate is not None:
            mixed = mixed * gate.sigmoid()
        with operators("attention_output"):
            partial = self.output(mixed.flatten(1))
        with operators("attention_all_reduce"):
            whole = summed(partial, tp, "attention_all_reduce")
        return whole if self.output_bias is None else whole + self.output_bias[0]

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
        """Query, output gate, key and value, each [tokens, heads, width]."""
        mixer = self.mixer
        width = mixer.head_dim + (mixer.v_head_dim if mixer.output_gate else 0)
        kv = self.kv_heads * mixer.head_dim
        if self.q is not None:
            wide, rest = self.q(x), self._replicated(x)
        else:
            wide, rest = self.qkv(x).split([self.heads * width, kv + self._value_width], dim=1)
        query = wide.unflatten(1, (self.heads, width))
        gate = query[..., mixer.head_dim :] if mixer.output_gate else None
        key = rest[:, :kv].unflatten(1, (self.kv_heads, mixer.head_dim))
        value = rest[:, kv:].unflatten(1, (self.kv_heads, mixer.v_head_dim)) if self._value_width else key
        return query[..., : mixer.head_dim], gate, key, value

    @property
    def _value_width(self) -> int:
        return 0 if self.mixer.values_are_keys else self.kv_heads * self.mixer.v_head_dim

    def _replicated(self, x: Tensor) -> Tensor:
        """Key and value of a head that several ranks hold: its weights get the gradients of all of them."""
        if not torch.is_grad_enabled():
            rest: Tensor = self.qkv(x)
            return rest
        spread_out = {
            name: spread(weight, self.kv_group, "kv_gradients") for name, weight in self.qkv.named_parameters()
        }
        called: Tensor = torch.func.functional_call(self.qkv, spread_out, (x,))
        return called

    def _attend(
        self, segment: Segment, positions: Tensor, query: Tensor, key: Tensor, value: Tensor, step: Step,
        cache: KvCache | None,
    ) -> Tensor:  # fmt: skip
        mixer, cp = self.mixer, self.shard.groups.cp
        (key, value), order = _context(segment, positions, (key, value), cp, cache, self.layer, self.shard)
        scale = mixer.head_dim**-0.5
        sinks = None if self.sinks is None else self.sinks[0]
        with self.shard.operators("decode_attention" if segment.decodes else "prefill_attention"):
            if order is None:
                out = causal_attention(
                    query, key, value, scale, window=mixer.window_tokens, chunked=mixer.chunked, sinks=sinks
                )
            else:
                mask = position_mask(positions, order, mixer.window_tokens, chunked=mixer.chunked)
                out = masked_attention(query, key, value, scale, mask, sinks)
        return out.transpose(1, 2).flatten(0, 1)


class HeadNorm(nn.Module):
    """RMS norm of each head's query or key, or over all heads of all ranks together."""

    def __init__(
        self, shard: Shard, name: str, mixer: GroupedQueryAttention, heads: int, part: tuple[int, int], copies: Group
    ) -> None:
        super().__init__()
        self.tp, self.whole, self.copies = shard.groups.tp, mixer.qk_norm_full, copies
        self.width = heads * mixer.head_dim
        piece = Piece.by_inputs(name, 1, self.width, *part) if self.whole else Piece.whole(name, 1, mixer.head_dim)
        self.weight = shard.weights.parameter([piece])
        self.times = self.tp.size // part[1]  # how many ranks hold each head

    def forward(self, heads: Tensor) -> Tensor:
        if not self.whole:
            weight = spread(self.weight, self.tp, "qk_norm_gradients")
            return nn.functional.rms_norm(heads, (heads.shape[-1],), weight[0], NORM_EPSILON)
        weight = spread(self.weight, self.copies, "qk_norm_gradients") if self.times > 1 else self.weight
        flat = heads.flatten(1).float()
        squares = summed_both_ways(flat.square().sum(dim=1, keepdim=True), self.tp, "qk_norm") / self.times
        normed = flat * torch.rsqrt(squares / self.width + NORM_EPSILON) * weight
        return normed.to(heads.dtype).view_as(heads)


class Latent(nn.Module):
    """Multi-head latent attention (arXiv:2405.04434, section 2.1): the latent and one rotary key are cached.

    Prefill expands keys and values of all heads; decode works in the latent space, the up-projections absorbed.
    """

    def __init__(self, shard: Shard, mixer: LatentAttention, prefix: str, layer: int) -> None:
        super().__init__()
        self.mixer, self.layer, self.shard = mixer, layer, shard
        hidden, tp, precision = shard.arch.hidden_size, shard.groups.tp, shard.arch.precisions.attention
        own, rank, self.heads = (tp.index, tp.size), mixer.kv_lora_rank, mixer.num_heads // tp.size
        self.query_width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
        queries, outputs = mixer.num_heads * self.query_width, mixer.num_heads * mixer.v_head_dim
        down = [Piece.whole(f"{prefix}kv_a_proj", rank + mixer.qk_rope_head_dim, hidden)]
        if mixer.q_lora_rank:
            down.insert(0, Piece.whole(f"{prefix}q_a_proj", mixer.q_lora_rank, hidden))
        self.down = shard.linear(down, precision)
        self.q_norm = Norm(shard, f"{prefix}q_a_norm", mixer.q_lora_rank) if mixer.q_lora_rank else None
        name = "q_b_proj" if mixer.q_lora_rank else "q_proj"
        q_piece = Piece.by_outputs(f"{prefix}{name}", queries, mixer.q_lora_rank or hidden, *own)
        self.query = shard.linear([q_piece], precision)
        self.kv_norm = Norm(shard, f"{prefix}kv_a_norm", rank)
        # Cut by heads, and kept in the working precision: decode multiplies it from both sides.
        up = Piece.by_outputs(
            f"{prefix}kv_b_proj", mixer.num_heads * (mixer.qk_nope_head_dim + mixer.v_head_dim), rank, *own
        )
        self.up = shard.weights.parameter([up])
        gate = [Piece.by_outputs(f"{prefix}gate_proj", outputs, hidden, *own)]
        self.gate = shard.linear(gate, precision) if mixer.output_gate else None
        self.output = shard.linear([Piece.by_inputs(f"{prefix}o_proj", hidden, outputs, *own)], precision)

    def forward(self, x: Tensor, step: Step, cache: KvCache | None) -> Tensor:
        mixer, tp, operators = self.mixer, self.shard.groups.tp, self.shard.operators
        apart = spread(x, tp, "attention_all_reduce") if self.q_norm is None or self.gate is not None else x
        with operators("q_and_kv_down"):
            down = self.down(x)
            wide = self.query(apart) if self.q_norm is None else None
        kv_width = mixer.kv_lora_rank + mixer.qk_rope_head_dim
        if self.q_norm is not None:
            with operators("q_up"):
                wide = self.query(spread(self.q_norm(down[:, : mixer.q_lora_rank]), tp, "attention_all_reduce"))
        assert wide is not None
        with operators("rotary_and_cache"):
            query = wide.unflatten(1, (self.heads, self.query_width))
            plain, turning = query.split([mixer.qk_nope_head_dim, mixer.qk_rope_head_dim], dim=-1)
            query = torch.cat([plain, rotated(turning, step)], dim=-1)
            latent, key = down[:, -kv_width:].split([mixer.kv_lora_rank, mixer.qk_rope_head_dim], dim=-1)
            kept = torch.cat([self.kv_norm(latent), rotated(key[:, None], step)[:, 0]], dim=-1)
            kept = spread(kept, tp, "attention_all_reduce")[:, None]
        mixed = torch.cat([self._attend(*part, step, cache) for part in _segments(step, query, kept, kept)])
        mixed = mixed.flatten(1)
        if self.gate is not None:
            with operators("output_gate"):
                mixed = mixed * self.gate(apart).sigmoid()
        with operators("attention_output"):
            partial = self.output(mixed)
        with operators("attention_all_reduce"):
            return summed(partial, tp, "attention_all_reduce")

    def _attend(
        self, segment: Segment, positions: Tensor, query: Tensor, kept: Tensor, _: Tensor, step: Step,
        cache: KvCache | None,
    ) -> Tensor:  # fmt: skip
        (kept,), order = _context(segment, positions, (kept,), self.shard.groups.cp, cache, self.layer, self.shard)
        kept = kept[:, 0]
        out = self._absorbed(query, kept) if segment.decodes else self._expanded(query, kept, positions, order)
        return out.transpose(1, 2).flatten(0, 1)

    def _expanded(self, query: Tensor, kept: Tensor, positions: Tensor, order: Tensor | None) -> Tensor:
        mixer, operators, scale = self.mixer, self.shard.operators, self.query_width**-0.5
        latent, turned = kept.split([mixer.kv_lora_rank, mixer.qk_rope_head_dim], dim=-1)
        with operators("kv_up"):
            both = nn.functional.linear(latent, self.up).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        plain, value = both.split([mixer.qk_nope_head_dim, mixer.v_head_dim], dim=-1)
        with operators("prefill_attention"):
            key = torch.cat([plain, turned[:, None].expand(-1, self.heads, -1, -1)], dim=-1)
            if order is None:
                return causal_attention(query, key, value, scale)
            return masked_attention(query, key, value, scale, position_mask(positions, order, 0, chunked=False), None)

    def _absorbed(self, query: Tensor, kept: Tensor) -> Tensor:
        """One query a sequence: scores against the latent, and the values out of the mixed latent."""
        mixer, operators, scale = self.mixer, self.shard.operators, self.query_width**-0.5
        keys_up, values_up = self.up.unflatten(0, (self.heads, -1)).split(
            [mixer.qk_nope_head_dim, mixer.v_head_dim], dim=1
        )
        plain, turning = query[:, :, 0].split([mixer.qk_nope_head_dim, mixer.qk_rope_head_dim], dim=-1)
        with operators("absorbed_query"):
            absorbed = torch.bmm(plain.transpose(0, 1), keys_up).transpose(0, 1)
        with operators("decode_attention"):
            whole = torch.cat([absorbed, turning], dim=-1)
            shares = (torch.bmm(whole, kept.transpose(1, 2)) * scale).float().softmax(dim=-1).to(kept.dtype)
            mixed = torch.bmm(shares, kept[..., : mixer.kv_lora_rank])
        with operators("absorbed_value"):
            return torch.bmm(mixed.transpose(0, 1), values_up.transpose(1, 2)).transpose(0, 1)[:, :, None]


def _segments(
    step: Step, query: Tensor, key: Tensor, value: Tensor
) -> Iterator[tuple[Segment, Tensor, Tensor, Tensor, Tensor]]:
    """Each segment with its positions [new tokens] and its tensors [sequences, heads, new tokens, width]."""
    first = 0
    for segment in step.segments:
        rows = slice(first, first + segment.tokens)
        shaped = [
            value[rows].unflatten(0, (segment.num_sequences, segment.new_tokens)).transpose(1, 2)
            for value in (query, key, value)
        ]
        yield segment, step.positions[first : first + segment.new_tokens], shaped[0], shaped[1], shaped[2]
        first += segment.tokens


def _context(
    segment: Segment, positions: Tensor, new: tuple[Tensor, ...], cp: Group, cache: KvCache | None, layer: int,
    shard: Shard,
) -> tuple[tuple[Tensor, ...], Tensor | None]:  # fmt: skip
    """All that the segment's queries may look at, and its positions where these are out of order (else None)."""
    if cp.size == 1:
        if cache is None:
            return new, None
        with shard.operators("rotary_and_cache"):
            return cache.extended(layer, segment, new), None
    if segment.cached_tokens:
        what = "a step after cached tokens has no context-parallel executor"
        raise PlannerError(what, hint="run decode and chunked prefill with cp 1")
    with shard.operators("context_all_gather"):
        order = gathered(positions, cp, "context_all_gather")
        parts = [gathered(value.movedim(2, 0), cp, "context_all_gather").movedim(0, 2) for value in new]
    if cp.absent:  # the made-up parts stand at later positions, so that the work is that of the last rank
        order = torch.arange(len(order), device=order.device).roll(len(positions))
    if cache is not None:
        place = order.argsort()
        cache.extended(layer, segment, tuple(value[:, :, place] for value in parts))
    return tuple(parts), order
