"""Softmax attention of one segment through PyTorch's SDPA; masks are built only where a kernel needs one."""

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F


def causal_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, *, window: int = 0, chunked: bool = False,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The last tokens of each sequence attend to all up to themselves: [sequences, heads, new tokens, value width].

    query [sequences, heads, new, width], key and value [sequences, KV heads, context, width], in order of position.
    A window is that of the last `window` tokens, or, `chunked`, of the aligned chunk of that size.
    """
    new, context = query.shape[2], key.shape[2]
    if not window or (context <= window):
        return _all_past(query, key, value, scale, sinks)
    if chunked:
        return torch.cat(list(_by_chunk(query, key, value, scale, window, sinks)), dim=2)
    block = new if new <= window else window
    parts = []
    for first in range(0, new, block):
        last = min(first + block, new)
        stop = context - new + last
        start = max(context - new + first - window + 1, 0)
        mask = _mask(last - first, stop - start, window, query.device)
        part = query[:, :, first:last]
        parts.append(masked_attention(part, key[:, :, start:stop], value[:, :, start:stop], scale, mask, sinks))
    return torch.cat(parts, dim=2)


def _by_chunk(query: Tensor, key: Tensor, value: Tensor, scale: float, size: int, sinks: Tensor | None):  # type: ignore[no-untyped-def]  # noqa: ANN202
    new, context = query.shape[2], key.shape[2]
    first = context - new
    while first < context:
        start = first // size * size
        stop = min(start + size, context)
        part = query[:, :, first - context + new : stop - context + new]
        yield _all_past(part, key[:, :, start:stop], value[:, :, start:stop], scale, sinks)
        first = stop


def _all_past(query: Tensor, key: Tensor, value: Tensor, scale: float, sinks: Tensor | None) -> Tensor:
    new, context = query.shape[2], key.shape[2]
    if sinks is not None or (1 < new < context and query.device.type != "cuda"):
        mask = None if new == 1 else _mask(new, context, 0, query.device)
        return masked_attention(query, key, value, scale, mask, sinks)
    if 1 < new < context:
        from torch.nn.attention.bias import causal_lower_right

        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=causal_lower_right(new, context), scale=scale, enable_gqa=True
        )
    if new == 1:
        return _one_token(query, key, value, scale)
    return _fused(query, key, value, is_causal=True, scale=scale, enable_gqa=query.shape[1] != key.shape[1])


def _one_token(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """The query heads of one cached head stand along the query's length, since none is masked from another."""
    grouped = query.reshape(query.shape[0], key.shape[1], -1, query.shape[3])
    out = _fused(grouped, key, value, scale=scale)
    return out.reshape(*query.shape[:3], value.shape[3])


_fastest: dict[object, str] = {}  # fused kernel by shape of the call; empty where none takes it


def _fused(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:  # noqa: ANN401 - of the call
    """On a GPU by the fused kernel that is fastest there, as in a profile; tried at the first call of a shape."""
    attend: Any = partial(F.scaled_dot_product_attention, query, key, value, **options)
    if query.device.type != "cuda":
        return cast(Tensor, attend())
    from planner.hardware.profiling.attention_kernels import fastest_fused, fused
    from planner.hardware.profiling.kernel import UnsupportedShapeError

    call = (query.shape, key.shape, value.shape, query.requires_grad, *options.values())
    if call not in _fastest:
        try:
            _fastest[call] = fastest_fused(attend)
        except UnsupportedShapeError:
            _fastest[call] = ""
    name = _fastest[call]
    return cast(Tensor, fused(attend, name)() if name else attend())


def _mask(new: int, context: int, window: int, device: torch.device) -> Tensor:
    """True where a query may look: queries are the last `new` of `context` positions."""
    behind = torch.arange(context - new, context, device=device)[:, None] - torch.arange(context, device=device)
    return (behind >= 0) & (behind < window) if window else behind >= 0


def masked_attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Tensor | None, sinks: Tensor | None
) -> Tensor:
    """Attention under a mask [new, context]; a learned logit per head takes a share of each softmax."""
    gqa = query.shape[1] != key.shape[1]
    if sinks is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=gqa)
    times = query.shape[1] // key.shape[1]
    scores = query @ key.repeat_interleave(times, dim=1).transpose(2, 3) * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    sink = sinks[None, :, None, None].expand(*scores.shape[:3], 1)
    shares = torch.cat([scores, sink], dim=-1).float().softmax(dim=-1)[..., :-1]
    return shares.to(value.dtype) @ value.repeat_interleave(times, dim=1)
