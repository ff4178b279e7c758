"""A mixture-of-experts layer on one shard: routing, dispatch and combine by all-to-all, grouped GEMM.

Where all ranks of an expert group hold the same tokens (it lies within a tp group) each computes the copies that go to
its own experts, and one all-reduce sums the parts. Otherwise the tp ranks share a data-parallel rank's tokens out among
them, slices of one expert gather theirs, an all-to-all takes a copy of each token to each of its experts, and all of it
is undone on the way back. Ranks of an expert group bring equal numbers of tokens, as engines pad them.

Experts lie in slots, one a slot and as many a rank, or as a layout says: then an expert may have copies, which share
its tokens by quota.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from planner.costs.operators.copies import EXPERT_PERMUTE
from planner.execute.model.collectives import exchanged, gathered, joined, own_part, scattered, spread, summed
from planner.execute.model.groups import Communicator
from planner.execute.model.layers import PLAIN_FORMATS, DenseFeedForward, Norm, ShardContext, activated, quantised
from planner.execute.model.recompute import again_if, output_dropped
from planner.execute.model.weights import Piece, Weights, part_of
from planner.execute.shards.expert_layout import ExpertLayout
from planner.models.architecture import MoeFfn


class Router(nn.Module):
    """The chosen experts and their shares, both [tokens, top_k].

    Softmax over the chosen logits; models with a selection bias score by sigmoid (arXiv:2412.19437, section 2.1.2).
    """

    def __init__(self, shard: ShardContext, ffn: MoeFfn, prefix: str) -> None:
        super().__init__()
        hidden, count = shard.arch.hidden_size, ffn.num_experts
        self.weight = shard.weights.parameter([Piece.whole(f"{prefix}router", count, hidden)])
        bias = [Piece.whole(f"{prefix}router_bias", 1, count)]
        self.bias = shard.weights.parameter(bias) if ffn.router_bias else None
        self.top_k, self.operators = ffn.top_k, shard.operators

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with self.operators("router"):
            logits = F.linear(x, self.weight).float()
        with self.operators("router_top_k"):
            if self.bias is None:
                best, chosen = logits.topk(self.top_k, dim=-1)
                return chosen, best.softmax(dim=-1).to(x.dtype)
            scores = logits.sigmoid()
            chosen = (scores + self.bias.detach()).topk(self.top_k, dim=-1).indices
            best = scores.gather(1, chosen)
            return chosen, (best / best.sum(dim=-1, keepdim=True)).to(x.dtype)


class SlotChooser:
    """Which slot serves each choice of an expert, and which rank holds a slot, under a layout.

    Of the n tokens here that chose an expert, the j-th lies at (j + 1/2) / n of its copies' quotas laid end to end.
    """

    def __init__(self, layout: ExpertLayout, device: torch.device) -> None:
        in_order = sorted(range(len(layout.quota)), key=lambda slot: layout.expert_of_slot[slot])
        self.num_experts = layout.num_experts
        self.slot = torch.tensor(in_order, device=device)
        self.ends = torch.tensor(list(_ends(layout, in_order)), dtype=torch.float64, device=device)
        self.rank_ends = torch.tensor(layout.first_slots[1:], device=device)

    def of(self, chosen: Tensor) -> Tensor:
        """SlotChooser [tokens, top_k] of the chosen experts [tokens, top_k]."""
        expert = chosen.flatten()
        order = expert.argsort(stable=True)
        count = torch.zeros(self.num_experts, dtype=torch.int64, device=expert.device)
        count.scatter_add_(0, expert, torch.ones_like(expert))
        place = _inverse(order)
        position = expert + (place - (count.cumsum(0) - count)[expert] + 0.5).double() / count[expert]
        return self.slot[torch.searchsorted(self.ends, position, right=True)].view_as(chosen)

    def rank(self, slot: Tensor) -> Tensor:
        """The expert-parallel rank of each slot."""
        return torch.bucketize(slot, self.rank_ends, right=True)


def _ends(layout: ExpertLayout, in_order: Sequence[int]) -> Iterator[float]:
    """Where the quota of each slot ends, those of expert e between e and e + 1; slots ordered by expert."""
    total, experts = 0.0, [layout.expert_of_slot[slot] for slot in in_order]
    for slot, expert, following in zip(in_order, experts, [*experts[1:], -1], strict=True):
        total = min(total + layout.quota[slot], 1.0) if following == expert else 1.0
        yield expert + total
        total = total if following == expert else 0.0


class Grouped(nn.Module):
    """One matrix an expert [experts, outputs, inputs]."""

    holds_experts = True

    def __init__(self, weights: Weights, pieces: Sequence[Piece], count: int) -> None:
        super().__init__()
        self.weight = weights.parameter(pieces, stack=count)
        self.count = count

    def times(self, rows: Tensor, ends: Tensor) -> Tensor:
        """Rows [tokens, inputs] by the matrix of their expert; `ends` of each expert's rows."""
        product: Tensor = torch._grouped_mm(rows, self.weight.transpose(1, 2), offs=ends)
        return product

    def of(self, index: int) -> Tensor:
        """The matrix of one expert."""
        return self.weight[index]


class Fp8Grouped(Grouped):
    """The same in 8-bit floats, a scale for each output of an expert; inputs are cast on the way in. No backward."""

    def __init__(self, weights: Weights, pieces: Sequence[Piece], count: int) -> None:
        super().__init__(weights, pieces, count)
        values, self.scale = quantised(self.weight.data, by_row=True)
        self.weight = nn.Parameter(values, requires_grad=False)

    def times(self, rows: Tensor, ends: Tensor) -> Tensor:
        row_scale = torch.ones(len(rows), device=rows.device)
        product: Tensor = torch._scaled_grouped_mm(
            rows.to(torch.float8_e4m3fn), self.weight.transpose(1, 2), row_scale, self.scale,
            offs=ends, out_dtype=rows.dtype,
        )  # fmt: skip
        return product


class RoutedExperts(nn.Module):
    """The experts `own` of one ep part, a moe_tp slice of each; rows sorted by slot, one grouped product each way."""

    def __init__(self, shard: ShardContext, ffn: MoeFfn, prefix: str, own: Sequence[int]) -> None:
        super().__init__()
        groups, size = shard.groups, ffn.intermediate_size
        width = ffn.latent_size or shard.arch.hidden_size
        part, ups = (groups.moe_tp.index, groups.moe_tp.size), ("gate", "up") if ffn.gated else ("up",)
        up = [
            Piece.by_outputs(f"{prefix}experts.{name}_proj.{expert}", size, width, *part)
            for expert in own
            for name in ups
        ]
        down = [Piece.by_inputs(f"{prefix}experts.down_proj.{expert}", width, size, *part) for expert in own]
        precision = shard.arch.precisions.experts
        grouped = Fp8Grouped if shard.fp8 and precision.startswith("fp8") else Grouped
        if grouped is Grouped and precision not in PLAIN_FORMATS:
            shard.plain.add(precision)
        self.up = grouped(shard.weights, up, len(own))  # [experts, slice x ups, width]
        self.down = grouped(shard.weights, down, len(own))  # [experts, width, slice]
        self.gated, self.operators = ffn.gated, shard.operators
        self.recomputed = "moe_activation" in shard.recompute and "moe" not in shard.recompute

    def forward(self, x: Tensor, expert: Tensor, *, foreign: bool = False) -> Tensor:
        """Row i of the result is row i // copies of x by expert i, where `expert` has that many copies of every row.

        foreign: some experts are not in [0, experts); their rows come back as zeros.
        """
        count, copies = self.up.count, len(expert) // max(len(x), 1)
        with self.operators(EXPERT_PERMUTE):
            key = torch.where((expert >= 0) & (expert < count), expert, count) if foreign else expert
            order = key.argsort(stable=True)
            rows = x[order // copies] if copies > 1 else x[order]
        if x.device.type == "cuda" and x.dtype == torch.bfloat16:
            out = self._grouped(rows, key[order], count, foreign)
        else:
            out = self._one_by_one(rows, torch.bincount(key, minlength=count + 1)[:count].tolist())
        with self.operators(EXPERT_PERMUTE):
            return out[_inverse(order)]

    def _grouped(self, rows: Tensor, key: Tensor, count: int, foreign: bool) -> Tensor:
        """One kernel for all experts; sizes stay on the device, so that a CUDA graph can hold it."""
        ends = torch.searchsorted(key, torch.arange(count, device=key.device), right=True).to(torch.int32)
        local = (key < count)[:, None] if foreign else None
        inner = self.up.times(rows if local is None else torch.where(local, rows, 0), ends)
        active = self._activated(inner, local)
        with self._dropped(inner, active, local):
            out = self.down.times(active, ends)
            return out if local is None else torch.where(local, out, 0)

    def _activated(self, inner: Tensor, local: Tensor | None = None) -> Tensor:
        active = activated(inner, gated=self.gated)
        return active if local is None else torch.where(local, active, 0)

    def _dropped(self, inner: Tensor, active: Tensor, local: Tensor | None = None) -> AbstractContextManager[None]:
        activate = partial(self._activated, local=local)
        return output_dropped(self.recomputed, self.operators, "expert_activation", activate, inner, active)

    def _one_expert(self, rows: Tensor, index: int) -> Tensor:
        inner = F.linear(rows, self.up.of(index))
        active = self._activated(inner)
        with self._dropped(inner, active):
            return F.linear(active, self.down.of(index))

    def _one_by_one(self, rows: Tensor, sizes: list[int]) -> Tensor:
        rest = len(rows) - sum(sizes)
        parts = [self._one_expert(part, index) for index, part in enumerate(rows.split([*sizes, rest])[:-1])]
        return torch.cat([*parts, rows.new_zeros(rest, rows.shape[1])])


class MixtureOfExperts(nn.Module):
    """Router, shared experts, routed experts; whole output on every tp rank."""

    def __init__(self, shard: ShardContext, ffn: MoeFfn, prefix: str, layout: ExpertLayout | None = None) -> None:
        super().__init__()
        self.ffn, self.groups, self.operators, self.layout = ffn, shard.groups, shard.operators, layout
        self.recomputed = "moe" in shard.recompute
        ep = shard.groups.ep
        slots = layout.slots_of(ep.index) if layout else part_of(ffn.num_experts, ep.index, ep.size)
        own = [layout.expert_of_slot[slot] for slot in slots] if layout else list(slots)
        self.first_slot, self.num_slots = slots.start, len(slots)
        self.slots = SlotChooser(layout, shard.weights.device) if layout else None
        self._coming: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # by copies that leave
        hidden, precision = shard.arch.hidden_size, shard.arch.precisions.shared_experts
        self.router = Router(shard, ffn, prefix)
        self.experts = RoutedExperts(shard, ffn, prefix, own)
        self.shared: DenseFeedForward | None = None
        if ffn.shared_intermediate_size:
            name, size = f"{prefix}shared_experts", ffn.shared_intermediate_size
            self.shared = DenseFeedForward(shard, name, "shared_expert", size, precision, gated=ffn.gated)
        gate = [Piece.whole(f"{prefix}shared_gate", 1, hidden)]
        self.shared_gate = shard.weights.parameter(gate) if ffn.shared_gate else None
        self.latent_down = self.latent_up = self.latent_norm = None
        if ffn.latent_size:
            narrow = ffn.latent_size
            self.latent_down = shard.linear([Piece.whole(f"{prefix}latent_down_proj", narrow, hidden)], precision)
            self.latent_up = shard.linear([Piece.whole(f"{prefix}latent_up_proj", hidden, narrow)], precision)
            self.latent_norm = Norm(shard, f"{prefix}latent_norm", narrow) if ffn.latent_norm else None

    @property
    def same_tokens(self) -> bool:
        """Whether all ranks of the expert group hold the same tokens."""
        return self.groups.expert.size <= self.groups.tp.size

    def forward(self, x: Tensor) -> Tensor:
        return again_if(self.recomputed, self.operators, self._mixture)(x)

    def _mixture(self, x: Tensor) -> Tensor:
        chosen, shares = self.router(x)
        if self.slots is not None:
            with self.operators("router_top_k"):
                chosen = self.slots.of(chosen)
        routed = x if self.latent_down is None else self._narrowed(x)
        routed = self._summed(routed, chosen, shares) if self.same_tokens else self._exchanged(routed, chosen, shares)
        if self.latent_up is not None:
            with self.operators("latent_up"):
                routed = self.latent_up(routed)
        return routed if self.shared is None else routed + self._shared(x)

    def _narrowed(self, x: Tensor) -> Tensor:
        assert self.latent_down is not None
        with self.operators("latent_down"):
            narrow: Tensor = self.latent_down(x)
        return narrow if self.latent_norm is None else self.latent_norm(narrow)

    def _shared(self, x: Tensor) -> Tensor:
        assert self.shared is not None
        tp = self.groups.tp
        partial = self.shared(spread(x, tp, "moe_all_reduce"))
        if self.shared_gate is not None:
            partial = partial * spread(F.linear(x, self.shared_gate).sigmoid(), tp, "moe_all_reduce")
        with self.operators("moe_all_reduce"):
            return summed(partial, tp, "moe_all_reduce")

    def _summed(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Every rank of the group does its part for all tokens."""
        group = self.groups.expert
        x, shares = spread(x, group, "moe_all_reduce"), spread(shares, group, "moe_all_reduce")
        local = chosen - self.first_slot
        partial = self._mixed(x, local, shares, foreign=group.size > 1)
        with self.operators("moe_all_reduce"):
            return summed(partial, group, "moe_all_reduce")

    def _mixed(self, x: Tensor, local: Tensor, shares: Tensor, *, foreign: bool = False) -> Tensor:
        with self.operators("experts"):
            out = self.experts(x, local.flatten(), foreign=foreign)
        return self._combined(out, shares)

    def _combined(self, copies: Tensor, shares: Tensor) -> Tensor:
        with self.operators("expert_combine"):
            return (copies.unflatten(0, shares.shape) * shares[..., None]).sum(dim=1)

    def _exchanged(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Tokens go to their experts; see the head of this module."""
        tp, slices, num_tokens = self.groups.tp, self.groups.moe_tp, len(x)
        short = -num_tokens % tp.size
        x, shares, chosen = (F.pad(value, (0, 0, 0, short)) for value in (x, shares, chosen))
        x, shares = own_part(x, tp, "moe_all_gather"), own_part(shares, tp, "moe_all_gather")
        chosen = chosen.chunk(tp.size)[tp.index]
        with self.operators("moe_all_gather_tokens"):
            name = "moe_all_gather_tokens"
            x, shares, chosen = (gathered(value, slices, name) for value in (x, shares, chosen))
        mixed = self._through_parts(x, chosen, shares)
        with self.operators("moe_reduce_scatter"):
            own = scattered(mixed, slices, "moe_reduce_scatter")
        with self.operators("moe_all_gather"):
            return joined(own, tp, "moe_all_gather")[:num_tokens]

    def _through_parts(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Copies of tokens to the ep ranks that hold their experts, and their outputs back."""
        ep, top_k = self.groups.ep, chosen.shape[1]
        if ep.size == 1:
            return self._mixed(x, chosen, shares)
        if ep.absent:
            ep.skipped.update(("dispatch", "combine"))
            return self._alone(x, chosen, shares)
        expert = chosen.flatten()
        order = expert.argsort(stable=True)
        sent = torch.bincount(self._rank_of(expert), minlength=ep.size)
        received = _swapped(sent, ep)
        to, from_ = sent.tolist(), received.tolist()
        with self.operators("dispatch"):
            copies = exchanged(x.repeat_interleave(top_k, dim=0)[order], to, from_, ep, "dispatch")
            local = exchanged(expert[order], to, from_, ep, "dispatch") - self.first_slot
        with self.operators("experts"):
            done = self.experts(copies, local, foreign=True)
        with self.operators("combine"):
            back = exchanged(done, from_, to, ep, "combine")
        return self._combined(back[_inverse(order)], shares)

    def _rank_of(self, slot: Tensor) -> Tensor:
        return slot // self.num_slots if self.slots is None else self.slots.rank(slot)

    def _alone(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Without the other ranks own tokens stand for those that would come, as many for each slot."""
        if self.layout is None:  # what leaves equals what comes
            return self._mixed(x, chosen % self.num_slots, shares)
        if chosen.numel() not in self._coming:
            self._coming[chosen.numel()] = self._all_coming(chosen.numel(), len(x), x.device)
        token, slot, back = self._coming[chosen.numel()]
        with self.operators("experts"):
            done = self.experts(x[token], slot)
        return self._combined(done[back], shares) if len(done) else torch.zeros_like(x)

    def _all_coming(self, num_copies: int, num_tokens: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Of what comes to this rank when every rank sends so many copies: token, slot, and which result goes where."""
        assert self.layout is not None
        everywhere = num_copies * self.groups.ep.size
        slots = self.layout.slots_of(self.groups.ep.index)
        coming = [round(everywhere * self.layout.load_of_slot(slot)) for slot in slots]
        local = torch.arange(len(slots)).repeat_interleave(torch.tensor(coming))
        back = torch.arange(num_copies) % max(len(local), 1)
        return (torch.arange(len(local)) % num_tokens).to(device), local.to(device), back.to(device)


def _inverse(order: Tensor) -> Tensor:
    """Where each row went that a permutation put in `order`."""
    return torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))


def _swapped(sent: Tensor, group: Communicator) -> Tensor:
    """How many rows each rank of the group sends here."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group.handle)
    return received
