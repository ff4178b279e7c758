"""FLOPs of training a token by the model's own arithmetic: the numerator of model FLOP utilisation (MFU)."""

from planner.models.architecture import Architecture, GroupedQueryAttention, LatentAttention, Layer
from planner.models.parameters import parameter_counts

PASSES = 3.0  # a backward pass has two products for each of the forward pass (arXiv:2104.04473, appendix)
FROZEN_PASSES = 2.0  # weights that are not trained have no gradient: one product forwards, one for that of the inputs


def model_flop_per_token(arch: Architecture, sequence_tokens: float, *, frozen: bool = False) -> float:
    """Forward and backward pass of one token, nothing computed again.

    Two operations for each parameter that a token passes but the embedding table, and attention over whole sequences,
    causal or not, as published utilisations count it (Narayanan et al., arXiv:2104.04473, appendix). `frozen` weights
    take 4 operations for 6; the adapters beside them, which are less than a hundredth of them, are not counted.
    """
    counts = parameter_counts(arch)
    passed = counts.active if arch.tied_embeddings else counts.active_without_embedding
    scores = sum(_scores_flop(layer, sequence_tokens) for layer in arch.layers)
    return (FROZEN_PASSES if frozen else PASSES) * 2.0 * passed + PASSES * scores


def _scores_flop(layer: Layer, sequence_tokens: float) -> float:
    """Scores and their sum over values, of one token in one layer."""
    match layer.mixer:
        case GroupedQueryAttention() as mixer:
            length = min(sequence_tokens, mixer.window_tokens) if mixer.window_tokens else sequence_tokens
            return 2.0 * mixer.num_heads * (mixer.head_dim + mixer.v_head_dim) * length
        case LatentAttention() as mixer:
            width = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim
            return 2.0 * mixer.num_heads * width * sequence_tokens
        case _:
            return 0.0
