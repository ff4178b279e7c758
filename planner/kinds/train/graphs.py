"""What of the layers a plan captures as CUDA graphs, as the engine launches it, and what does not go with it.

Megatron-Core asserts against graphs with whole layers recomputed and with activations moved to the host
(megatron/core/transformer/transformer_config.py), and graphs have one shape: inputs of one length, none packed. Experts
take in rows whose number changes from step to step, so that graphs of parts of layers end before them; only experts
that are padded to a capacity, or models without, are captured whole.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import get_args

from planner.costs.training.config import GraphScope
from planner.engines.training import TrainingEngine
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.train.options import TrainOptions
from planner.models.architecture import Architecture, DenseFfn, LinearAttention, MoeFfn

GPUS_OF_NODES = 8  # that NVLink joins, in what is no rack


def usual_scopes(arch: Architecture) -> tuple[GraphScope, ...]:
    """The parts of this model's layers that Transformer Engine captures: all of dense ones, of sparse ones what has one
    shape (`cuda_graph_scope` of Megatron Bridge's recipes of GB200 and GB300)."""
    layers = [layer for layer, _ in arch.layer_groups()]
    mixers, parts = [layer.mixer for layer in layers], [layer.ffn for layer in layers]
    has: dict[GraphScope, bool] = {
        "attn": any(mixer is not None and not isinstance(mixer, LinearAttention) for mixer in mixers),
        "mamba": any(isinstance(mixer, LinearAttention) for mixer in mixers),
        "mlp": any(isinstance(part, DenseFfn) for part in parts),
        "moe_router": any(isinstance(part, MoeFfn) for part in parts),
        "moe_preprocess": any(isinstance(part, MoeFfn) for part in parts),
    }
    return ordered(scope for scope, there in has.items() if there)


def ordered(scopes: Collection[GraphScope] | Iterator[GraphScope]) -> tuple[GraphScope, ...]:
    """These scopes in the order of the schema, each once."""
    held = set(scopes)
    return tuple(scope for scope in get_args(GraphScope) if scope in held)


def graphs_of(
    engine: TrainingEngine, options: TrainOptions, arch: Architecture, pools: Sequence[Pool], *, named: bool, where: str
) -> tuple[GraphScope, ...]:
    """What is captured: as asked, else the usual parts where the named engine usually does it, in racks of 72, whose
    hosts are slow beside their GPUs.

    Raises PlannerError where graphs are asked for beside what they do not go with.
    """
    against = [(what, hint) for applies, what, hint in _against(engine, options) if applies]
    asked = options.cuda_graphs
    if asked and against:
        raise PlannerError(f"CUDA graphs with {against[0][0]}", where=where, hint=against[0][1])
    if isinstance(asked, tuple):
        for applies, what, hint in _beyond(options, arch, asked):
            if applies:
                raise PlannerError(what, where=where, hint=hint)
        return ordered(asked)
    if asked is None:
        asked = named and not against and all(pool.node.scale_up_size > GPUS_OF_NODES for pool in pools)
    return usual_scopes(arch) if asked else ()


def _against(engine: TrainingEngine, options: TrainOptions) -> Iterator[tuple[bool, str, str]]:
    """(whether it applies, what graphs do not go with, hint)."""
    unable = options.code is None and not engine.graphs
    yield unable, f"{engine.name}, which captures none", "leave it out, or name `megatron-lm`"
    yield options.search.recompute == ("full",), "whole layers recomputed", "allow `none` or `selective`"
    experts = "moe" in (options.search.recompute_modules or ())
    yield experts, "`moe` recomputed, whose router is captured", "leave it out of `recompute_modules`"
    yield "activations" in options.search.offload, "activations moved to the host", "leave them on the device"
    yield bool(options.lengths), "inputs of several lengths", "leave `cuda_graphs` out"
    yield options.task != "pretrain", f"task `{options.task}`, whose inputs are packed", "leave `cuda_graphs` out"


def _beyond(
    options: TrainOptions, arch: Architecture, asked: Collection[GraphScope]
) -> Iterator[tuple[bool, str, str]]:
    """(whether it applies, what is wrong, hint) of scopes by name."""
    usual, sparse = usual_scopes(arch), any(isinstance(layer.ffn, MoeFfn) for layer, _ in arch.layer_groups())
    whole = [scope for scope in ("moe", "full_iteration") if scope in asked]
    padded = options.experts is not None and options.experts.padded
    hint = "pad experts to a capacity (`experts: {capacity: 1.0, padded: true}`), or capture " + ", ".join(usual)
    yield bool(whole) and sparse and not padded, f"`{(*whole, '')[0]}` captures experts, whose rows change", hint
    unknown = [scope for scope in asked if scope not in (*usual, "full_iteration", *["moe"] * sparse)]
    yield bool(unknown), f"`{arch.name}` has nothing that `{(*unknown, '')[0]}` captures", f"name some of {usual}"
    alone = "full_iteration" in asked and len(set(asked)) > 1
    yield alone, "`full_iteration` captures all of a step, and other scopes with it", "name it alone"
    both = "moe" in asked and "moe_router" in asked
    yield both, "`moe` captures the router too", "name one of `moe` and `moe_router`"
    early = "moe_preprocess" in asked and "moe_router" not in asked
    yield early, "`moe_preprocess` is captured with `moe_router` alone", "name both"
