"""Parameter counts of networks beside the decoder (diffusion transformers, flow heads) where sizes fix every tensor."""

from planner.models.architecture import Module

TIMESTEP_WIDTH = 256
"""Sinusoidal features of the denoising time, before their MLP (DiT, arXiv:2212.09748, appendix A)."""


def module_parameters(module: Module) -> int:
    """All elements of `module`; 0 when no source fixes them."""
    count = {"flow_head": _flow_head, "diffusion_transformer": _diffusion_transformer}.get(module.kind)
    return module.parameters if module.parameters or count is None else count(module)


def linear(inputs: int, outputs: int) -> int:
    """Elements of a matrix with bias."""
    return inputs * outputs + outputs


def _time_embedding(width: int) -> int:
    return linear(TIMESTEP_WIDTH, width) + linear(width, width)


def _flow_head(module: Module) -> int:
    """An MLP of residual blocks with adaptive layer norm, as in NextStep-1 (arXiv:2508.10711) and MAR.

    Each block: a LayerNorm, two square matrices, and one to shift, scale and gate. Around them: projections of the
    latent, the condition and the time, and a final modulated projection back to the latent.
    """
    width = module.hidden_size
    block = 2 * width + linear(width, module.intermediate_size) + linear(module.intermediate_size, width)
    block += linear(width, 3 * width)
    ends = linear(module.latent_size, width) + linear(module.condition_size, width) + _time_embedding(width)
    return module.num_layers * block + ends + linear(width, module.latent_size) + linear(width, 2 * width)


def _diffusion_transformer(module: Module) -> int:
    """A DiT with cross-attention to text and one modulation shared by all blocks, as in Wan 2.1 (arXiv:2503.20314).

    Each block: self- and cross-attention with bias and a norm over all heads on queries and keys, a LayerNorm before
    the cross-attention, a plain FFN, and a learned offset of its six modulation vectors.
    """
    width = module.hidden_size
    attention = 4 * linear(width, width) + 2 * width
    ffn = linear(width, module.intermediate_size) + linear(module.intermediate_size, width)
    block = 2 * attention + 2 * width + ffn + 6 * width
    text = linear(module.condition_size, width) + linear(width, width)
    ends = linear(module.latent_size, width) + text + _time_embedding(width) + linear(width, 6 * width)
    return module.num_layers * block + ends + linear(width, module.latent_size) + 2 * width
