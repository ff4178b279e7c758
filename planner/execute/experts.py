"""A mixture of experts on one shard: routing, the way of the tokens to the experts and back, grouped products.

Where all ranks of an expert group hold the same tokens (it lies within a tp group) each computes the copies that go to
its own experts, and one all-reduce sums the parts. Otherwise the tp ranks share a data-parallel rank's tokens out among
them, slices of one expert gather theirs, an all-to-all takes a copy of each token to each of its experts, and all of it
is undone on the way back. Ranks of an expert group bring equal numbers of tokens, as engines pad them.
"""

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from planner.execute.collectives import exchanged, gathered, joined, own_part, scattered, spread, summed
from planner.execute.groups import Group
from planner.execute.layers import DenseFeedForward, Norm, Shard, activated
from planner.execute.weights import Piece, part_of
from planner.models.architecture import MoeFfn


class Router(nn.Module):
    """The chosen experts and their shares, both [tokens, top_k].

    Softmax over the chosen logits; models with a selection bias score by sigmoid (arXiv:2412.19437, section 2.1.2).
    """

    def __init__(self, shard: Shard, ffn: MoeFfn, prefix: str) -> None:
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


class Experts(nn.Module):
    """The experts of one ep part, a moe_tp slice of each; rows sorted by expert, one grouped product each way."""

    holds_experts = True

    def __init__(self, shard: Shard, ffn: MoeFfn, prefix: str) -> None:
        super().__init__()
        groups, size = shard.groups, ffn.intermediate_size
        width = ffn.latent_size or shard.arch.hidden_size
        own = part_of(ffn.num_experts, groups.ep.index, groups.ep.size)
        part, ups = (groups.moe_tp.index, groups.moe_tp.size), ("gate", "up") if ffn.gated else ("up",)
        up = [
            Piece.by_outputs(f"{prefix}experts.{name}_proj.{expert}", size, width, *part)
            for expert in own
            for name in ups
        ]
        down = [Piece.by_inputs(f"{prefix}experts.down_proj.{expert}", width, size, *part) for expert in own]
        self.up = shard.weights.parameter(up, stack=len(own))  # [experts, slice x ups, width]
        self.down = shard.weights.parameter(down, stack=len(own))  # [experts, width, slice]
        self.gated = ffn.gated
        if shard.arch.precisions.experts not in ("bf16", "fp16", "fp32"):
            working = str(shard.weights.dtype).removeprefix("torch.")
            shard.notes.add(f"{shard.arch.precisions.experts} experts run in {working}")

    def forward(self, x: Tensor, expert: Tensor) -> Tensor:
        """Each row by its expert; rows of an expert that is not in [0, experts) come back as zeros."""
        count = len(self.up)
        known = (expert >= 0) & (expert < count)
        key = torch.where(known, expert, count)
        order = key.argsort(stable=True)
        rows = x[order]
        if x.device.type == "cuda" and x.dtype == torch.bfloat16:
            out = self._grouped(rows, key[order], count)
        else:
            out = self._one_by_one(rows, torch.bincount(key, minlength=count + 1)[:count].tolist())
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return out[back]

    def _grouped(self, rows: Tensor, key: Tensor, count: int) -> Tensor:
        """One kernel for all experts; sizes stay on the device, so that a CUDA graph can hold it."""
        ends = torch.searchsorted(key, torch.arange(count, device=key.device), right=True).to(torch.int32)
        held = (key < count)[:, None]
        inner = torch._grouped_mm(torch.where(held, rows, 0), self.up.transpose(1, 2), offs=ends)
        inner = torch.where(held, activated(inner, gated=self.gated), 0)
        return torch.where(held, torch._grouped_mm(inner, self.down.transpose(1, 2), offs=ends), 0)

    def _one_by_one(self, rows: Tensor, sizes: list[int]) -> Tensor:
        rest = len(rows) - sum(sizes)
        parts = [
            F.linear(activated(F.linear(part, self.up[index]), gated=self.gated), self.down[index])
            for index, part in enumerate(rows.split([*sizes, rest])[:-1])
        ]
        return torch.cat([*parts, rows.new_zeros(rest, rows.shape[1])])


class MixtureOfExperts(nn.Module):
    """Router, shared experts, routed experts; whole output on every tp rank."""

    def __init__(self, shard: Shard, ffn: MoeFfn, prefix: str) -> None:
        super().__init__()
        self.ffn, self.groups, self.operators = ffn, shard.groups, shard.operators
        hidden, precision = shard.arch.hidden_size, shard.arch.precisions.shared_experts
        self.router = Router(shard, ffn, prefix)
        self.experts = Experts(shard, ffn, prefix)
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
        chosen, shares = self.router(x)
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
        local = chosen - self.groups.ep.index * len(self.experts.up)
        partial = self._mixed(x, local, shares)
        with self.operators("moe_all_reduce"):
            return summed(partial, group, "moe_all_reduce")

    def _mixed(self, x: Tensor, local: Tensor, shares: Tensor) -> Tensor:
        top_k = local.shape[1]
        with self.operators("experts"):
            out = self.experts(x.repeat_interleave(top_k, dim=0), local.flatten())
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
            x, shares, chosen = (
                gathered(x, slices, name),
                gathered(shares, slices, name),
                gathered(chosen, slices, name),
            )
        mixed = self._through_parts(x, chosen, shares)
        with self.operators("moe_reduce_scatter"):
            own = scattered(mixed, slices, "moe_reduce_scatter")
        with self.operators("moe_all_gather"):
            return joined(own, tp, "moe_all_gather")[:num_tokens]

    def _through_parts(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """Copies of tokens to the ep ranks that hold their experts, and their outputs back."""
        ep, count, top_k = self.groups.ep, len(self.experts.up), chosen.shape[1]
        if ep.size == 1:
            return self._mixed(x, chosen, shares)
        if ep.absent:  # what leaves equals what comes: the copies stay here, spread over the experts of this rank
            ep.skipped["dispatch"] += 1
            ep.skipped["combine"] += 1
            return self._mixed(x, chosen % count, shares)
        expert = chosen.flatten()
        order = expert.argsort(stable=True)
        sent = torch.bincount(expert // count, minlength=ep.size)
        received = _swapped(sent, ep)
        to, from_ = sent.tolist(), received.tolist()
        with self.operators("dispatch"):
            copies = exchanged(x.repeat_interleave(top_k, dim=0)[order], to, from_, ep, "dispatch")
            local = exchanged(expert[order], to, from_, ep, "dispatch") - ep.index * count
        with self.operators("experts"):
            done = self.experts(copies, local)
        with self.operators("combine"):
            back = exchanged(done, from_, to, ep, "combine")
        place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        return self._combined(back[place], shares)


def _swapped(sent: Tensor, group: Group) -> Tensor:
    """How many rows each rank of the group sends here."""
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group.handle)
    return received
