"""One pipeline stage of one rank in PyTorch: embedding, layers, final norm and logits, as far as it holds them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from planner.execute.model.attention import GroupedQuery, Latent
from planner.execute.model.experts import MixtureOfExperts
from planner.execute.model.groups import Communicator, Communicators
from planner.execute.model.layers import DenseBlock, Embedding, Logits, Norm, ShardContext
from planner.execute.model.recompute import again_if, output_dropped
from planner.execute.model.step import KvCache, Operators, Step
from planner.execute.model.weights import Weights
from planner.execute.shards.expert_layout import ExpertLayout
from planner.execute.shards.spec import StageSpec
from planner.execute.shards.supported import require_supported
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, LatentAttention, Layer


class ResidualBlock(nn.Module):
    """One residual block: token mixer and feed-forward part, each behind a norm, and before one where there are two."""

    def __init__(self, shard: ShardContext, layer: Layer, index: int) -> None:
        super().__init__()
        prefix, arch = f"layers.{index}.", shard.arch
        parts = (_mixer(shard, layer, prefix, index), _ffn(shard, layer, prefix, index))
        self.parts = nn.ModuleList([part for part in parts if part is not None])
        self.norms = nn.ModuleList(
            [Norm(shard, f"{prefix}norm_{n}", arch.hidden_size, bias=arch.norm_bias) for n in range(layer.num_norms)]
        )
        self.operators, self.recomputed_norms = shard.operators, "layernorm" in shard.recompute

    def forward(self, x: Tensor, step: Step, cache: KvCache | None) -> Tensor:
        each = len(self.norms) // len(self.parts)
        for index, part in enumerate(self.parts):
            before, *behind = self.norms[each * index : each * (index + 1)]
            with self.operators("norm"):
                normed = before(x)
            with output_dropped(self.recomputed_norms, self.operators, "norm", before, x, normed):
                out = part(normed, step, cache) if isinstance(part, GroupedQuery | Latent) else part(normed)
            for norm in behind:
                with self.operators("norm"):
                    out = norm(out)
            x = x + out
        return x


class Stage(nn.Module):
    """A chunk of the model on one rank. Tokens [tokens] or hidden [tokens, hidden] in, hidden or logits out."""

    def __init__(self, spec: StageSpec, shard: ShardContext) -> None:
        super().__init__()
        arch = shard.arch
        self.spec, self.shard = spec, shard
        self.embedding = Embedding(shard) if spec.embeds else None
        self.blocks = nn.ModuleList([ResidualBlock(shard, arch.layers[index], index) for index in spec.layers])
        self.final_norm = self.logits = None
        if spec.yields_logits:
            tied = self.embedding.weight if self.embedding is not None and arch.tied_embeddings else None
            norm = Norm(shard, "final_norm", arch.hidden_size, bias=arch.norm_bias) if arch.final_norm else None
            self.final_norm, self.logits = norm, Logits(shard, tied)

    def forward(self, x: Tensor, step: Step, cache: KvCache | None = None) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x, step.positions)
        for index, block in enumerate(self.blocks):
            x = again_if(index < self.spec.recompute.num_layers, self.shard.operators, block)(x, step, cache)
        if self.logits is None:
            return x
        if step.last_only:
            x = x[step.sampled_rows()]
        if self.final_norm is not None:
            with self.shard.operators("norm"):
                x = self.final_norm(x)
        out: Tensor = self.logits(x)
        return out

    def data_group(self, module: nn.Module) -> Communicator:
        """The ranks that hold the parameters of this module as well, and see other tokens."""
        groups = self.shard.groups
        return groups.expert_data if getattr(module, "holds_experts", False) else groups.data


def build_stage(
    spec: StageSpec, arch: Architecture, groups: Communicators, *, device: torch.device, dtype: torch.dtype,
    fp8: bool = False, layouts: Sequence[ExpertLayout] = (), weights: Weights | None = None,
) -> Stage:  # fmt: skip
    """The stage with the given weights, or random ones.

    fp8: run matrices that the model stores in 8-bit floats so where the device can; such a stage has no backward.
    layouts: of the experts, one a layer of the model, or none.
    Raises PlannerError for layers that have no executor.
    """
    require_supported(arch)
    able = fp8 and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
    weights, modules = weights or Weights(device, dtype), frozenset(spec.recompute.modules)
    shard = ShardContext(arch, groups, weights, Operators(), able, dict(enumerate(layouts)), modules)
    return Stage(spec, shard)


def _mixer(shard: ShardContext, layer: Layer, prefix: str, index: int) -> nn.Module | None:
    if isinstance(layer.mixer, GroupedQueryAttention):
        return GroupedQuery(shard, layer.mixer, prefix, index)
    return Latent(shard, layer.mixer, prefix, index) if isinstance(layer.mixer, LatentAttention) else None


def _ffn(shard: ShardContext, layer: Layer, prefix: str, index: int) -> nn.Module | None:
    if isinstance(layer.ffn, DenseFfn):
        ffn = layer.ffn
        return DenseBlock(shard, prefix, ffn.intermediate_size, gated=ffn.gated, bias=ffn.bias)
    return None if layer.ffn is None else MixtureOfExperts(shard, layer.ffn, prefix, shard.layouts.get(index))
