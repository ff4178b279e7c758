"""Attention kernels in PyTorch: the fastest fused one (SDPA backends such as FlashAttention), else unfused."""

import math
import warnings
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from planner.hardware.profiling.attention_shapes import (
    DecodeAttentionShape,
    LatentDecodeShape,
    LatentPrefillShape,
    PrefillAttentionShape,
)
from planner.hardware.profiling.kernel import PreparedKernel, Run, UnsupportedShapeError, device_event, random_values

if TYPE_CHECKING:
    import torch

_FUSED = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
_TRIALS = 3


def _sdpa(device: "torch.device", variant: str, *tensors: "torch.Tensor", **options: Any) -> tuple[Run, str]:  # noqa: ANN401 - options of the call
    """Scaled dot-product attention by a fused kernel, and which; a kernel that stores all scores is barred on a GPU."""
    import torch

    attend: Run = partial(cast(Any, torch.nn.functional.scaled_dot_product_attention), *tensors, **options)
    if device.type == "cpu":
        return attend, ""
    chosen = variant or fastest_fused(attend)
    return fused(attend, chosen), chosen


def fused(attend: Run, name: str) -> Run:
    """`attend`, a call of scaled dot-product attention, through the fused kernel of that name alone."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backend = getattr(SDPBackend, _FUSED[name])

    def run() -> object:
        with sdpa_kernel([backend]):
            return attend()

    return run


def fastest_fused(attend: Run) -> str:
    """The name of the fused kernel that is fastest for the call `attend`; UnsupportedShapeError where none takes it."""
    return _fastest({name: fused(attend, name) for name in _FUSED})


def _fastest(runs: dict[str, Run]) -> str:
    """The name of the fastest of `runs` by a few tries each; those that refuse the shape are passed over."""
    taken_s: dict[str, float] = {}
    for name, run in runs.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a kernel that refuses the shape says so at length
                run()
            start, end = device_event(), device_event()
            start.record()
            for _ in range(_TRIALS):
                run()
            end.record()
            end.synchronize()
            taken_s[name] = start.elapsed_time(end)
        except RuntimeError:
            continue
    if not taken_s:
        raise UnsupportedShapeError("no fused attention kernel takes this shape")
    return min(taken_s, key=lambda name: taken_s[name])


def prefill(shape: PrefillAttentionShape, device: "torch.device", variant: str) -> PreparedKernel:
    """Causal attention by torch's fused kernels; windows by compiled ones on CUDA."""
    import torch

    if shape.uneven:
        return _packed(shape, device)
    queries = random_values(device, shape.batch, shape.heads, shape.length, shape.head_dim)
    keys, values = (random_values(device, shape.batch, shape.kv_heads, shape.length, shape.head_dim) for _ in range(2))
    options: dict[str, Any] = {"enable_gqa": shape.heads != shape.kv_heads}
    if shape.window and shape.window < shape.length:
        token = torch.arange(shape.length, device=device)
        back = token[:, None] - token[None, :]
        options["attn_mask"] = (back >= 0) & (back < shape.window)
        if device.type == "cuda":
            return _flex_window(shape, queries, keys, values)
    else:
        options["is_causal"] = True
    if not shape.backward:
        forward, chosen = _sdpa(device, variant, queries, keys, values, **options)
        return PreparedKernel(forward, f"torch sdpa {chosen}".strip(), variant=chosen)
    inputs = [tensor.requires_grad_() for tensor in (queries, keys, values)]
    forward, chosen = _sdpa(device, variant, *inputs, **options)
    output: Any = forward()
    gradient = torch.randn_like(output)
    run = partial(torch.autograd.grad, output, inputs, gradient, retain_graph=True)
    return PreparedKernel(run, f"torch sdpa backward {chosen}".strip(), capturable=False, variant=chosen)


def _packed(shape: PrefillAttentionShape, device: "torch.device") -> PreparedKernel:
    """Sequences of unequal length one behind the other; on a processor one call a sequence."""
    import torch

    lengths = shape.lengths
    queries = random_values(device, sum(lengths), shape.heads, shape.head_dim)
    keys, values = (random_values(device, sum(lengths), shape.kv_heads, shape.head_dim) for _ in range(2))
    if device.type == "cuda":
        ends = torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
        attend = torch.ops.aten._flash_attention_forward
        arguments = (queries, keys, values, ends, ends, max(lengths), max(lengths), 0.0, True, False)
        return PreparedKernel(partial(attend, *arguments), "torch flash_attention, packed")
    sequences = [
        tuple(part.transpose(0, 1)[None] for part in parts)
        for parts in zip(*(torch.split(tensor, lengths) for tensor in (queries, keys, values)), strict=True)
    ]
    attention: Any = torch.nn.functional.scaled_dot_product_attention

    def run() -> None:
        for query, key, value in sequences:
            attention(query, key, value, is_causal=True, enable_gqa=shape.heads != shape.kv_heads)

    return PreparedKernel(run, "torch sdpa of each sequence")


def _flex_window(
    shape: PrefillAttentionShape, queries: "torch.Tensor", keys: "torch.Tensor", values: "torch.Tensor"
) -> PreparedKernel:
    """FlexAttention skips the blocks outside the window, where SDPA with a mask would compute them."""
    from torch.nn.attention.flex_attention import create_block_mask

    if shape.backward:
        raise UnsupportedShapeError("the gradient of windowed attention is not measured on a GPU")

    def near(_batch: Any, _head: Any, query: Any, key: Any) -> Any:  # noqa: ANN401 - traced by the compiler
        return (query >= key) & (query - key < shape.window)

    mask = create_block_mask(near, None, None, shape.length, shape.length, device=queries.device)
    compiled = _compiled_flex_attention()
    grouped = shape.heads != shape.kv_heads
    return PreparedKernel(
        partial(compiled, queries, keys, values, block_mask=mask, enable_gqa=grouped), "torch flex_attention"
    )


@cache
def _compiled_flex_attention() -> Any:  # noqa: ANN401 - PyTorch types compiled functions as any callable
    """Compiled once: later lengths reuse the code for any length."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def decode(shape: DecodeAttentionShape, device: "torch.device", variant: str) -> PreparedKernel:
    """The query heads that share a cached head are laid along the query's length: none is masked from another."""
    group = max(1, shape.heads // shape.kv_heads)
    queries = random_values(device, shape.batch, shape.kv_heads, group, shape.head_dim)
    cached = (shape.batch, shape.kv_heads, shape.attended, shape.head_dim)
    keys, values = (random_values(device, *cached) for _ in range(2))
    run, chosen = _sdpa(device, variant, queries, keys, values)
    return PreparedKernel(run, f"torch sdpa {chosen}".strip(), variant=chosen)


def latent_prefill(shape: LatentPrefillShape, device: "torch.device", variant: str) -> PreparedKernel:
    """Causal attention with values narrower than keys, by torch's fused kernels."""
    queries, keys = (random_values(device, shape.batch, shape.heads, shape.length, shape.head_dim) for _ in range(2))
    values = random_values(device, shape.batch, shape.heads, shape.length, shape.v_head_dim)
    run, chosen = _sdpa(device, variant, queries, keys, values, is_causal=True)
    return PreparedKernel(run, f"torch sdpa {chosen}".strip(), variant=chosen)


def latent_decode(shape: LatentDecodeShape, device: "torch.device") -> PreparedKernel:
    """Two batched products and a softmax over scores that are as wide as the context: no fused kernel is this wide."""
    import torch

    queries = random_values(device, shape.batch, shape.heads, shape.head_dim)
    cached = random_values(device, shape.batch, shape.context, shape.head_dim)
    scale = 1.0 / math.sqrt(shape.head_dim)

    def run() -> object:
        scores = torch.bmm(queries, cached.transpose(1, 2))
        return torch.bmm(torch.softmax(scores * scale, dim=-1), cached[..., : shape.rank])

    return PreparedKernel(run, "torch bmm and softmax")
