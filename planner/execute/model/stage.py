"""One pipeline stage of one rank: embedding, layers, final norm and logits, as far as it holds them."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from planner.execute.model.attention import GroupedQuery, Latent
from planner.execute.model.collectives import all_reduce
from planner.execute.model.experts import MixtureOfExperts
from planner.execute.model.groups import Group, Groups
from planner.execute.model.layers import DenseBlock, Embedding, Logits, Norm, Shard
from planner.execute.model.recompute import again_if, output_dropped
from planner.execute.model.step import KvCache, Operators, Step
from planner.execute.model.weights import Piece, Weights
from planner.execute.shards.expert_layout import ExpertLayout
from planner.execute.shards.spec import StageSpec
from planner.execute.shards.supported import require_supported
from planner.models.architecture import Architecture, DenseFfn, GroupedQueryAttention, LatentAttention, Layer


class Block(nn.Module):
    """One residual block: token mixer and feed-forward part, each behind a norm, and before one where there are two."""

    def __init__(self, shard: Shard, layer: Layer, index: int) -> None:
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
            norms = self.norms[each * index : each * (index + 1)]
            with self.operators("norm"):
                normed = norms[0](x)
            with output_dropped(self.recomputed_norms, self.operators, "norm", norms[0], x, normed):
                out = part(normed, step, cache) if isinstance(part, GroupedQuery | Latent) else part(normed)
            for norm in norms[1:]:
                with self.operators("norm"):
                    out = norm(out)
            x = x + out
        return x


class Stage(nn.Module):
    """A chunk of the model on one rank. Tokens [tokens] or hidden [tokens, hidden] in, hidden or logits out."""

    def __init__(self, spec: StageSpec, shard: Shard) -> None:
        super().__init__()
        arch = shard.arch
        self.spec, self.shard = spec, shard
        self.embedding = Embedding(shard) if spec.embeds else None
        self.blocks = nn.ModuleList([Block(shard, arch.layers[index], index) for index in spec.layers])
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

    def pieces(self) -> Iterator[tuple[str, nn.Parameter, tuple[Piece, ...]]]:
        """Every parameter with what it is cut from."""
        for name, parameter in self.named_parameters():
            yield name, parameter, self.shard.weights.pieces.get(id(parameter), ())

    def reduce_gradients(self) -> None:
        """Sums the gradients of each parameter over the ranks that hold it and saw other tokens."""
        for module in self.modules():
            group = self.data_group(module)
            for parameter in module.parameters(recurse=False):
                if parameter.grad is not None and group.size > 1:
                    parameter.grad = all_reduce(parameter.grad, group, "gradients")

    def data_group(self, module: nn.Module) -> Group:
        """The ranks that hold the parameters of this module as well, and see other tokens."""
        groups = self.shard.groups
        return groups.expert_data if getattr(module, "holds_experts", False) else groups.data


def build_stage(
    spec: StageSpec, arch: Architecture, groups: Groups, *, device: torch.device, dtype: torch.dtype,
    full_init: bool = False, fp8: bool = False, layouts: Sequence[ExpertLayout] = (),
) -> Stage:  # fmt: skip
    """The stage with random weights; `full_init` cuts them from the tensors that all shardings share (small models).

    fp8: run matrices that the model stores in 8-bit floats so where the device can; such a stage has no backward.
    layouts: of the experts, one a layer of the model, or none.
    Raises PlannerError for layers that have no executor.
    """
    require_supported(arch)
    able = fp8 and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)
    weights = Weights(arch.name, device, dtype, full_init)
    shard = Shard(arch, groups, weights, Operators(), able, layouts=dict(enumerate(layouts)))
    shard.recompute = frozenset(spec.recompute.modules)
    if fp8 and not able:
        shard.notes.add(f"{device.type} multiplies no 8-bit floats")
    return Stage(spec, shard)


def reduce_tied_gradients(stages: list[Stage]) -> None:
    """Sums the gradients of embedding and output matrix that are one tensor on two pipeline ranks."""
    arch, groups = stages[0].shard.arch, stages[0].shard.groups
    held = [stage.embedding.weight for stage in stages if stage.embedding is not None]
    held += [stage.logits.weight for stage in stages if stage.logits is not None]
    if not arch.tied_embeddings or groups.ends.size == 1:
        return
    for parameter in held:
        if parameter.grad is not None:
            parameter.grad = all_reduce(parameter.grad, groups.ends, "tied_gradients")


def _mixer(shard: Shard, layer: Layer, prefix: str, index: int) -> nn.Module | None:
    if isinstance(layer.mixer, GroupedQueryAttention):
        return GroupedQuery(shard, layer.mixer, prefix, index)
    return Latent(shard, layer.mixer, prefix, index) if isinstance(layer.mixer, LatentAttention) else None


def _ffn(shard: Shard, layer: Layer, prefix: str, index: int) -> nn.Module | None:
    if isinstance(layer.ffn, DenseFfn):
        ffn = layer.ffn
        return DenseBlock(shard, prefix, ffn.intermediate_size, gated=ffn.gated, bias=ffn.bias)
    return None if layer.ffn is None else MixtureOfExperts(shard, layer.ffn, prefix, shard.layouts.get(index))
