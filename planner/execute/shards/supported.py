"""Which architectures the executor can run, and why others are refused."""

from collections.abc import Iterator

from planner.errors import PlannerError
from planner.models.architecture import Architecture, GroupedQueryAttention, LatentAttention, Layer, MoeFfn


def require_supported(arch: Architecture, where: str = "") -> None:
    """Raises PlannerError, naming every reason, for a model that cannot be executed."""
    reasons = unsupported(arch)
    if reasons:
        raise PlannerError(
            f"{arch.name} cannot be executed: {'; '.join(reasons)}", where=where, hint="choose another model"
        )


def unsupported(arch: Architecture) -> list[str]:
    """Why the model cannot be executed; empty when it can."""
    reasons = list(arch.unsupported_parts())
    if arch.embedding_size not in (0, arch.hidden_size):
        reasons.append("an embedding of another width than the layers")
    if arch.layer_inputs > 1:
        reasons.append("several residual streams")
    for layer, _ in arch.layer_groups():
        reasons += _unsupported_layer(layer)
    return sorted(set(reasons))


def _unsupported_layer(layer: Layer) -> Iterator[str]:
    parts = (layer.mixer is not None) + (layer.ffn is not None)
    if layer.num_norms not in (parts, 2 * parts):
        yield f"{layer.num_norms} norms in a layer of {parts} parts"
    match layer.mixer:
        case GroupedQueryAttention(shares_kv=True):
            yield "attention to the cache of another layer"
        case GroupedQueryAttention(q_rank=rank) if rank:
            yield "compressed queries of grouped-query attention"
        case LatentAttention(indexer=indexer) if indexer is not None:
            yield "sparse attention by an indexer"
        case GroupedQueryAttention() | LatentAttention() | None:
            pass
        case other:
            yield f"{getattr(other, 'kind', 'unknown')} token mixers"
    if isinstance(layer.ffn, MoeFfn) and layer.ffn.bias:
        yield "biases of experts"
