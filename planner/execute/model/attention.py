"""Attention layers of one shard in PyTorch: heads split over tp ranks, context over cp ranks, with KV cache.

With context parallelism every rank gathers the keys and values of all parts (as in arXiv:2407.21783, section 3.3.2) and
attends with its own queries; ring and Ulysses orders of the same sums move the same bytes and are not built.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from planner.costs.operators.context import GATHER
from planner.costs.operators.copies import KV_GATHER
from planner.errors import PlannerError
from planner.execute.model.collectives import gathered, spread, summed, summed_both_ways
from planner.execute.model.groups import Communicator
from planner.execute.model.kernels import causal_attention
from planner.execute.model.layers import NORM_EPSILON, Norm, ShardContext
from planner.execute.model.recompute import again_if
from planner.execute.model.step import KvCache, Segment, Step, context_chunks, rotated
from planner.execute.model.weights import Piece
from planner.models.architecture import GroupedQueryAttention, LatentAttention

Attend = Callable[..., Tensor]


class GroupedQuery(nn.Module):
    """MHA, GQA and MQA, full, windowed or chunked."""

    def __init__(self, shard: ShardContext, mixer: GroupedQueryAttention, prefix: str, layer: int) -> None:
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
        mixed = torch.cat([self._attend(*part, cache) for part in _segments(step, query, key, value)])
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
        self, segment: Segment, query: Tensor, key: Tensor, value: Tensor, cache: KvCache | None
    ) -> Tensor:  # fmt: skip
        mixer, shard, cp = self.mixer, self.shard, self.shard.groups.cp
        sinks = None if self.sinks is None else self.sinks[0]
        name = "decode_attention" if segment.decodes else "prefill_attention"

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with shard.operators(name):
                return causal_attention(
                    query, key, value, mixer.head_dim**-0.5,
                    window=mixer.window_tokens, chunked=mixer.chunked, sinks=sinks,
                )  # fmt: skip

        def of_context(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            keys = _context(segment, (key, value), cp, cache, self.layer, shard)
            return _by_context_part(attend, query, keys, cp)

        out = again_if("core_attention" in shard.recompute, shard.operators, of_context)(query, key, value)
        return out.transpose(1, 2).flatten(0, 1)


class HeadNorm(nn.Module):
    """RMS norm of each head's query or key, or over all heads of all ranks together."""

    def __init__(
        self,
        shard: ShardContext,
        name: str,
        mixer: GroupedQueryAttention,
        heads: int,
        part: tuple[int, int],
        copies: Communicator,
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

    def __init__(self, shard: ShardContext, mixer: LatentAttention, prefix: str, layer: int) -> None:
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
            with operators("latent_norms"):
                compressed = self.q_norm(down[:, : mixer.q_lora_rank])
            narrow = spread(compressed, tp, "attention_all_reduce")
            wide = again_if("mla_up_projection" in self.shard.recompute, operators, self._wide_query)(narrow)
        assert wide is not None
        with operators("rotary_and_cache"):
            query = wide.unflatten(1, (self.heads, self.query_width))
            plain, turning = query.split([mixer.qk_nope_head_dim, mixer.qk_rope_head_dim], dim=-1)
            query = torch.cat([plain, rotated(turning, step)], dim=-1)
            latent, key = down[:, -kv_width:].split([mixer.kv_lora_rank, mixer.qk_rope_head_dim], dim=-1)
            with operators("latent_norms"):
                latent = self.kv_norm(latent)
            cached = torch.cat([latent, rotated(key[:, None], step)[:, 0]], dim=-1)
            cached = spread(cached, tp, "attention_all_reduce")[:, None]
        mixed = torch.cat([self._attend(*part, cache) for part in _segments(step, query, cached, cached)])
        mixed = mixed.flatten(1)
        if self.gate is not None:
            with operators("output_gate"):
                mixed = mixed * self.gate(apart).sigmoid()
        with operators("attention_output"):
            partial = self.output(mixed)
        with operators("attention_all_reduce"):
            return summed(partial, tp, "attention_all_reduce")

    def _wide_query(self, narrow: Tensor) -> Tensor:
        with self.shard.operators("q_up"):
            wide: Tensor = self.query(narrow)
            return wide

    def _attend(self, segment: Segment, query: Tensor, cached: Tensor, _: Tensor, cache: KvCache | None) -> Tensor:
        cp, shard = self.shard.groups.cp, self.shard
        if cache is not None:
            (cached,) = _context(segment, (cached,), cp, cache, self.layer, shard, whole_blocks=segment.decodes)
        cached = cached[:, 0]
        if segment.decodes:
            out = self._absorbed(query, cached, segment.cached_tokens + 1)
        else:
            out = self._expanded(query, cached, None if cache is not None else segment)
        return out.transpose(1, 2).flatten(0, 1)

    def _expanded(self, query: Tensor, cached: Tensor, own: Segment | None) -> Tensor:
        """Keys and values of all heads; `own`: they are those of this rank's tokens alone, and gathered as expanded."""
        mixer, shard, scale, cp = self.mixer, self.shard, self.query_width**-0.5, self.shard.groups.cp
        latent, turned = cached.split([mixer.kv_lora_rank, mixer.qk_rope_head_dim], dim=-1)

        def expand(latent: Tensor) -> Tensor:
            with shard.operators("kv_up"):
                return nn.functional.linear(latent, self.up)

        def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            with shard.operators("prefill_attention"):
                return causal_attention(query, key, value, scale)

        def of_context(query: Tensor, plain: Tensor, turned: Tensor, value: Tensor) -> Tensor:
            keys = torch.cat([plain, turned], dim=-1), value
            if own is not None:
                keys = _context(own, keys, cp, None, self.layer, shard)
            return _by_context_part(attend, query, keys, cp)

        both = again_if("mla_up_projection" in shard.recompute, shard.operators, expand)(latent)
        plain, value = (
            both.unflatten(-1, (self.heads, -1))
            .transpose(1, 2)
            .split([mixer.qk_nope_head_dim, mixer.v_head_dim], dim=-1)
        )
        turned = turned[:, None].expand(-1, self.heads, -1, -1)
        again = again_if("core_attention" in shard.recompute, shard.operators, of_context)
        return again(query, plain, turned, value)

    def _absorbed(self, query: Tensor, cached: Tensor, context: int) -> Tensor:
        """One query a sequence: scores against the latent, and the values out of the mixed latent.

        cached [sequences, rows of whole blocks, width], of which the first `context` are tokens: products of matrices
        take half as long again and more where sizes are odd.
        """
        mixer, operators, scale = self.mixer, self.shard.operators, self.query_width**-0.5
        keys_up, values_up = self.up.unflatten(0, (self.heads, -1)).split(
            [mixer.qk_nope_head_dim, mixer.v_head_dim], dim=1
        )
        plain, turning = query[:, :, 0].split([mixer.qk_nope_head_dim, mixer.qk_rope_head_dim], dim=-1)
        with operators("absorbed_query"):
            absorbed = torch.bmm(plain.transpose(0, 1), keys_up).transpose(0, 1)
        with operators("decode_attention"):
            whole = torch.cat([absorbed, turning], dim=-1) * scale
            scores = torch.bmm(whole, cached.transpose(1, 2))
            scores[..., context:] = float("-inf")
            mixed = torch.bmm(scores.softmax(dim=-1), cached[..., : mixer.kv_lora_rank])
        with operators("absorbed_value"):
            return torch.bmm(mixed.transpose(0, 1), values_up.transpose(1, 2)).transpose(0, 1)[:, :, None]


def _segments(
    step: Step, query: Tensor, key: Tensor, value: Tensor
) -> Iterator[tuple[Segment, Tensor, Tensor, Tensor]]:
    """Each segment with its tensors [sequences, heads, new tokens, width]."""
    first = 0
    for segment in step.segments:
        rows = slice(first, first + segment.tokens)
        shaped = [
            value[rows].unflatten(0, (segment.num_sequences, segment.new_tokens)).transpose(1, 2)
            for value in (query, key, value)
        ]
        yield segment, shaped[0], shaped[1], shaped[2]
        first += segment.tokens


def _context(
    segment: Segment, new: tuple[Tensor, ...], cp: Communicator, cache: KvCache | None, layer: int, shard: ShardContext,
    *, whole_blocks: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """All that the segment's queries may look at, in order of position."""
    if cp.size > 1:
        new = _gathered(segment, new, cp, shard)
        segment = replace(segment, new_tokens=new[0].shape[2])
    if cache is None:
        return new
    with shard.operators("rotary_and_cache"):
        cache.write(layer, segment, new)
    if not segment.cached_tokens:
        return new
    with shard.operators(KV_GATHER):
        return cache.gathered(layer, segment, whole_blocks=whole_blocks)


def _gathered(segment: Segment, new: tuple[Tensor, ...], cp: Communicator, shard: ShardContext) -> tuple[Tensor, ...]:
    """The tensors of all context-parallel ranks, their chunks put in order; each rank has one from either end."""
    if segment.cached_tokens:
        raise PlannerError(
            "a step after cached tokens has no context-parallel executor",
            hint="run decode and chunked prefill with cp 1",
        )
    with shard.operators(GATHER):
        parts = [gathered(value.movedim(2, 0), cp, GATHER) for value in new]
        chunks = context_chunks(segment.new_tokens, cp.size)
        order = sorted(range(len(chunks)), key=lambda place: chunks[place])
        cut = [value.unflatten(0, (len(chunks), -1)) for value in parts]
        return tuple(value[order].flatten(0, 1).movedim(0, 2) for value in cut)


def _by_context_part(attend: Attend, query: Tensor, keys: tuple[Tensor, ...], cp: Communicator) -> Tensor:
    """Attention of this rank's queries, which are a chunk from either end, each to all in front of it."""
    if cp.size == 1:
        return attend(query, *keys)
    each = query.shape[2] // 2
    parts = []
    for part, chunk in zip(query.split(each, dim=2), (cp.index, 2 * cp.size - 1 - cp.index), strict=True):
        parts.append(attend(part, *(value[:, :, : (chunk + 1) * each] for value in keys)))
    return torch.cat(parts, dim=2)
