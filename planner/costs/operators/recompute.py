"""Activation recomputation (checkpointing): operators that the backward pass runs again, whole layers or modules.

Modules have Megatron-LM's names (arXiv:2205.05198, section 5, and its option `recompute-modules`): `core_attention` is
the softmax attention alone, with what context-parallel ranks exchange for it, `mlp` the dense feed-forward part with
the exchange of its sum, `moe` the experts with router, communication and activation, `moe_activation` the last alone,
`layernorm` the norms in front of the two parts of a layer, `mla_up_projection` the up-projections of latent attention.
Every operator states the module that it is of.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from planner.costs.operators.elementwise import SERVING, activation
from planner.costs.operators.experts import routed_rows
from planner.costs.operators.forward import forward
from planner.costs.operators.kernels import Experts, Operator, run_of
from planner.costs.operators.work import Shards, Work
from planner.models.architecture import Architecture

SUFFIX = "_recompute"
ENDS = ("embedding", "project_in", "logits", "sampling", "project_out", "cross_entropy", "loss_all_reduce", "flow_head")
"""Operators of the ends of the model, which no layer holds."""

BY_OPERATOR: Final = "operators"
"""The policy of torchtitan and NeMo AutoModel in place of modules (torchtitan/distributed/activation_checkpoint.py,
`SelectiveAC`; nemo_automodel/components/distributed/activation_checkpointing.py): outputs of attention, of exchanges
and of every second product of a layer are saved, and the rest is computed again."""
AGAIN_BY_OPERATOR = {
    "layernorm": 1.0,
    "attention": 1 / 2,
    "mla_up_projection": 1 / 2,
    "mlp": 1 / 3,
    "moe_activation": 1.0,
}
"""Share of the forward pass of each part that it computes again: the output projection of attention, of a gated
feed-forward part one product of three. Products of experts are taken to be saved."""

MODULES = ("core_attention", "mlp", "moe", "moe_activation", "layernorm", "mla_up_projection")


def recomputed_layers(arch: Architecture, shards: Shards, work: Work) -> list[Operator]:
    """All operators of the layers of `arch`, run a second time."""
    layers = (op for op in forward(arch, shards, work) if not op.name.startswith((*ENDS, "stage_handover")))
    return list(again(layers))


def recomputed_modules(arch: Architecture, shards: Shards, work: Work, modules: Collection[str]) -> list[Operator]:
    """The operators of these modules of every layer of `arch`, run a second time.

    Raises KeyError for a module that is not known.
    """
    if unknown := set(modules) - set(MODULES):
        raise KeyError(*unknown)
    operators = forward(arch, shards, work)
    chosen = set(modules) - (set() if "moe" not in modules else {"moe_activation"})  # which its experts hold
    return list(again(op for module in MODULES if module in chosen for op in _of_module(operators, arch, module)))


def held(modules: Collection[str]) -> frozenset[str]:
    """These modules with those that are parts of them."""
    return frozenset(modules) | ({"moe_activation"} if "moe" in modules else frozenset())


def shares_again(modules: Collection[str]) -> Mapping[str, float]:
    """Share of the forward pass of each module that is computed again: all of what is held, or that of the policy."""
    return AGAIN_BY_OPERATOR if BY_OPERATOR in modules else dict.fromkeys(sorted(held(modules)), 1.0)


def again(operators: Iterable[Operator]) -> Iterator[Operator]:
    """The operators under the names of their second run."""
    return (replace(op, name=op.name + SUFFIX) for op in operators)


def _of_module(operators: Sequence[Operator], arch: Architecture, module: str) -> Iterator[Operator]:
    if module == "layernorm":
        parts = sum((layer.mixer is not None) + (layer.ffn is not None) for layer in arch.layers)
        before = next(op for op in operators if op.module == module)
        yield replace(before, count=float(parts))
    elif module == "moe_activation":
        yield from (_activation(op) for op in operators if isinstance(op, Experts))
    else:
        yield from (op for op in operators if op.module == module)


def _activation(op: Experts) -> Operator:
    """The pass between the products of the experts."""
    values = routed_rows(op.tokens, op.top_k, op.ep) * op.intermediate / op.moe_tp
    passed = activation("expert_activation", "moe_activation", values, gated=op.gated, code=SERVING)
    return run_of(passed, op.count)
