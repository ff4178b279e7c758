"""How PyTorch runs each shape: inputs with random data, and a function that runs the kernel once.

Several sets of inputs can be prepared for one shape, so that a run does not find its inputs in the cache.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any, cast

from planner.errors import PlannerError
from planner.hardware.profiling.loads import expert_loads
from planner.hardware.profiling.shapes import (
    BatchedGemm,
    Copy,
    DecodeAttention,
    Experts,
    Gemm,
    LatentDecode,
    LatentPrefill,
    Launch,
    MemoryPass,
    PrefillAttention,
    Shape,
)

if TYPE_CHECKING:
    import torch

Run = Callable[[], object]
_BLOCK_VALUES = 2**20
_EMBEDDING_VALUES = 2**25  # of the table that rows are looked up in, 64 MiB


@dataclass(frozen=True, slots=True)
class Kernel:
    """One set of inputs with the function that runs over them; `capturable` in a CUDA graph."""

    run: Run
    source: str  # what ran, for the table's kernel sources
    capturable: bool = True
    variant: str = ""  # the implementation chosen among several; further input sets name it


class UnsupportedShapeError(PlannerError):
    """A shape that this device or this PyTorch cannot run."""


def prepare(shape: Shape, device: "torch.device", *, fp8: bool, variant: str = "") -> Kernel:
    """Random inputs of `shape` on `device`; raises UnsupportedShapeError for what cannot run there.

    Attention has several implementations on a GPU: without `variant` they are tried and the fastest is taken, as an
    engine's dispatch would.
    """
    match shape:
        case Gemm():
            return _gemm(shape, device, fp8=fp8)
        case BatchedGemm():
            return _batched(shape, device)
        case PrefillAttention():
            return _prefill(shape, device, variant)
        case DecodeAttention():
            return _decode(shape, device, variant)
        case LatentPrefill():
            return _latent_prefill(shape, device, variant)
        case LatentDecode():
            return _latent_decode(shape, device)
        case Experts():
            return _experts(shape, device, fp8=fp8)
        case MemoryPass():
            return _memory_pass(shape, device, fp8=fp8)
        case Copy():
            return _copy(shape, device)
        case Launch():
            return _launch(shape, device)
        case _:
            raise UnsupportedShapeError("a collective needs several devices")


def _random(device: "torch.device", *sizes: int, dtype: "torch.dtype | None" = None) -> "torch.Tensor":
    """Normal values; a processor, where drawing them takes long, repeats a block of a million."""
    import torch

    dtype, count = torch.bfloat16 if dtype is None else dtype, math.prod(sizes)
    if device.type == "cuda" or count <= _BLOCK_VALUES:
        return torch.randn(*sizes, device=device, dtype=dtype)
    block = torch.randn(_BLOCK_VALUES, dtype=dtype)
    return block.repeat(-(-count // _BLOCK_VALUES))[:count].view(*sizes)


def _gemm(shape: Gemm, device: "torch.device", *, fp8: bool) -> Kernel:
    import torch

    if shape.precision == "fp8":
        return _fp8_gemm(shape, device, fp8=fp8)
    dtype = torch.float32 if shape.precision == "fp32" else torch.bfloat16
    inputs, weights = (_random(device, rows, shape.k, dtype=dtype) for rows in (shape.m, shape.n))
    return Kernel(partial(torch.nn.functional.linear, inputs, weights), "torch linear")


def _fp8_gemm(shape: Gemm, device: "torch.device", *, fp8: bool) -> Kernel:
    """Activations are cast with one scale a tensor, as they arrive in bf16; sizes must be multiples of 16."""
    import torch

    if not fp8:
        raise UnsupportedShapeError("the device has no 8-bit floating-point tensor cores")
    if shape.n % 16 or shape.k % 16:
        raise UnsupportedShapeError("8-bit products need n and k that are multiples of 16")
    inputs = _random(device, shape.m, shape.k)
    weights = _random(device, shape.n, shape.k).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)

    def run() -> object:
        quantised = inputs.to(torch.float8_e4m3fn)
        return torch._scaled_mm(quantised, weights, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    return Kernel(run, "torch cast and scaled_mm")


def _batched(shape: BatchedGemm, device: "torch.device") -> Kernel:
    import torch

    inputs = _random(device, shape.heads, shape.tokens, shape.k)
    weights = _random(device, shape.heads, shape.k, shape.n)
    return Kernel(partial(torch.bmm, inputs, weights), "torch bmm")


_FUSED = {"flash": "FLASH_ATTENTION", "cudnn": "CUDNN_ATTENTION", "efficient": "EFFICIENT_ATTENTION"}
_TRIALS = 3


def _sdpa(device: "torch.device", variant: str, *tensors: "torch.Tensor", **options: Any) -> tuple[Run, str]:  # noqa: ANN401 - options of the call
    """Scaled dot-product attention by a fused kernel, and which; a kernel that stores all scores is barred on a GPU."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    attend: Run = partial(cast(Any, torch.nn.functional.scaled_dot_product_attention), *tensors, **options)
    if device.type == "cpu":
        return attend, ""

    def through(name: str) -> Run:
        backend = getattr(SDPBackend, _FUSED[name])

        def run() -> object:
            with sdpa_kernel([backend]):
                return attend()

        return run

    chosen = variant or _fastest({name: through(name) for name in _FUSED})
    return through(chosen), chosen


def device_event() -> Any:  # noqa: ANN401 - PyTorch leaves the constructor untyped
    """An event on the current stream that knows its time."""
    import torch

    make: Any = torch.cuda.Event
    return make(enable_timing=True)


def _fastest(runs: dict[str, Run]) -> str:
    """The name of the fastest of `runs` by a few tries each; those that refuse the shape are passed over."""
    taken_s: dict[str, float] = {}
    for name, run in runs.items():
        try:
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


def _prefill(shape: PrefillAttention, device: "torch.device", variant: str) -> Kernel:
    import torch

    queries = _random(device, shape.batch, shape.heads, shape.length, shape.head_dim)
    keys, values = (_random(device, shape.batch, shape.kv_heads, shape.length, shape.head_dim) for _ in range(2))
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
        return Kernel(forward, f"torch sdpa {chosen}".strip(), variant=chosen)
    inputs = [tensor.requires_grad_() for tensor in (queries, keys, values)]
    forward, chosen = _sdpa(device, variant, *inputs, **options)
    output: Any = forward()
    gradient = torch.randn_like(output)
    run = partial(torch.autograd.grad, output, inputs, gradient, retain_graph=True)
    return Kernel(run, f"torch sdpa backward {chosen}".strip(), capturable=False, variant=chosen)


def _flex_window(
    shape: PrefillAttention, queries: "torch.Tensor", keys: "torch.Tensor", values: "torch.Tensor"
) -> Kernel:
    """FlexAttention skips the blocks outside the window, where SDPA with a mask would compute them."""
    from torch.nn.attention.flex_attention import create_block_mask

    if shape.backward:
        raise UnsupportedShapeError("the gradient of windowed attention is not measured on a GPU")

    def near(_batch: Any, _head: Any, query: Any, key: Any) -> Any:  # noqa: ANN401 - traced by the compiler
        return (query >= key) & (query - key < shape.window)

    mask = create_block_mask(near, None, None, shape.length, shape.length, device=queries.device)
    compiled = _compiled_flex_attention()
    grouped = shape.heads != shape.kv_heads
    return Kernel(partial(compiled, queries, keys, values, block_mask=mask, enable_gqa=grouped), "torch flex_attention")


@cache
def _compiled_flex_attention() -> Any:  # noqa: ANN401 - PyTorch types compiled functions as any callable
    """Compiled once: later lengths reuse the code for any length."""
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def _decode(shape: DecodeAttention, device: "torch.device", variant: str) -> Kernel:
    """The query heads that share a cached head are laid along the query's length: none is masked from another."""
    group = max(1, shape.heads // shape.kv_heads)
    queries = _random(device, shape.batch, shape.kv_heads, group, shape.head_dim)
    keys, values = (_random(device, shape.batch, shape.kv_heads, shape.attended, shape.head_dim) for _ in range(2))
    run, chosen = _sdpa(device, variant, queries, keys, values)
    return Kernel(run, f"torch sdpa {chosen}".strip(), variant=chosen)


def _latent_prefill(shape: LatentPrefill, device: "torch.device", variant: str) -> Kernel:
    queries, keys = (_random(device, shape.batch, shape.heads, shape.length, shape.head_dim) for _ in range(2))
    values = _random(device, shape.batch, shape.heads, shape.length, shape.v_head_dim)
    run, chosen = _sdpa(device, variant, queries, keys, values, is_causal=True)
    return Kernel(run, f"torch sdpa {chosen}".strip(), variant=chosen)


def _latent_decode(shape: LatentDecode, device: "torch.device") -> Kernel:
    """Two batched products and a softmax over scores that are as wide as the context: no fused kernel is this wide."""
    import torch

    queries = _random(device, shape.batch, shape.heads, shape.head_dim)
    cached = _random(device, shape.batch, shape.context, shape.head_dim)
    scale = 1.0 / math.sqrt(shape.head_dim)

    def run() -> object:
        scores = torch.bmm(queries, cached.transpose(1, 2))
        return torch.bmm(torch.softmax(scores * scale, dim=-1), cached[..., : shape.rank])

    return Kernel(run, "torch bmm and softmax")


def _experts(shape: Experts, device: "torch.device", *, fp8: bool) -> Kernel:
    """Grouped products up, the gate, grouped products down, over tokens already sorted by expert."""
    import torch

    loads = expert_loads(shape)
    tokens, inner = sum(loads), shape.local_intermediate
    if not tokens:
        raise UnsupportedShapeError("no token reaches the experts of this rank")
    up_width = inner * (2 if shape.gated else 1)
    inputs = _random(device, tokens, shape.hidden)
    up = _random(device, shape.local_experts, shape.hidden, up_width)
    down = _random(device, shape.local_experts, inner, shape.hidden)
    multiply, source = _grouped(shape, loads, device, fp8=fp8)
    up_weights, down_weights = multiply.prepared(up), multiply.prepared(down)

    def run() -> object:
        between = multiply(inputs, up_weights)
        if shape.gated:
            gate, value = between.chunk(2, dim=-1)
            return multiply(torch.nn.functional.silu(gate) * value, down_weights)
        return multiply(torch.nn.functional.gelu(between), down_weights)

    return Kernel(run, source)


class _GroupedProduct:
    """Rows of `inputs` times the weight of their expert, by torch.nn.functional.grouped_mm."""

    def __init__(self, offsets: "torch.Tensor") -> None:
        self.offsets = offsets

    def prepared(self, weights: "torch.Tensor") -> Any:  # noqa: ANN401 - a tensor, or a tensor with its scales
        return weights

    def __call__(self, inputs: "torch.Tensor", weights: Any) -> "torch.Tensor":  # noqa: ANN401
        import torch

        grouped: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        result: torch.Tensor = grouped(inputs, weights, offs=self.offsets)
        return result


class _Fp8GroupedProduct(_GroupedProduct):
    """The same in 8 bits, with a scale a row of inputs and a column of weights."""

    def prepared(self, weights: "torch.Tensor") -> Any:  # noqa: ANN401
        import torch

        columns = weights.transpose(1, 2).contiguous().to(torch.float8_e4m3fn).transpose(1, 2)
        return columns, torch.ones(weights.shape[0], weights.shape[2], device=weights.device)

    def __call__(self, inputs: "torch.Tensor", weights: Any) -> "torch.Tensor":  # noqa: ANN401
        import torch

        columns, scales = weights
        rows = torch.ones(len(inputs), device=inputs.device)
        quantised = inputs.to(torch.float8_e4m3fn)
        result: torch.Tensor = torch._scaled_grouped_mm(
            quantised, columns, rows, scales, offs=self.offsets, out_dtype=torch.bfloat16
        )
        return result


class _LoopedProduct(_GroupedProduct):
    """One product an expert, where this PyTorch has no grouped one."""

    def __init__(self, loads: list[int], offsets: "torch.Tensor") -> None:
        super().__init__(offsets)
        self.loads = loads

    def __call__(self, inputs: "torch.Tensor", weights: Any) -> "torch.Tensor":  # noqa: ANN401
        import torch

        parts = torch.split(inputs, self.loads)
        return torch.cat([part @ weight for part, weight in zip(parts, weights, strict=True)])


def _grouped(shape: Experts, loads: list[int], device: "torch.device", *, fp8: bool) -> tuple[_GroupedProduct, str]:
    import torch

    offsets = torch.tensor(loads, device=device).cumsum(0).to(torch.int32)
    if shape.precision == "fp8":
        if not fp8 or not hasattr(torch, "_scaled_grouped_mm"):
            raise UnsupportedShapeError("8-bit grouped products do not run here")
        return _Fp8GroupedProduct(offsets), "torch scaled_grouped_mm"
    if device.type == "cuda" and hasattr(torch, "_grouped_mm"):
        return _GroupedProduct(offsets), "torch grouped_mm"
    return _LoopedProduct(loads, offsets), "torch mm of each expert"


def _memory_pass(shape: MemoryPass, device: "torch.device", *, fp8: bool) -> Kernel:
    """The elementwise kernels of a layer as PyTorch has them, without fusion by a compiler."""
    import torch

    functional, rows, width = torch.nn.functional, shape.rows, shape.width
    if shape.pass_kind == "norm":
        residual, inputs, gain = _random(device, rows, width), _random(device, rows, width), _random(device, width)
        return Kernel(lambda: functional.rms_norm(residual.add_(inputs, alpha=1e-3), (width,), gain), "torch rms_norm")
    if shape.pass_kind == "rotary":
        inputs, angles = _random(device, rows, width), _random(device, rows, width // 2)
        return Kernel(partial(_rotate, inputs, angles, angles), "torch rotary")
    if shape.pass_kind == "activation":
        inputs = _random(device, rows, width)
        gate, value = inputs.chunk(2, dim=-1)
        return Kernel(lambda: functional.silu(gate) * value, "torch silu and product")
    if shape.pass_kind == "embedding":
        table = _random(device, max(1024, _EMBEDDING_VALUES // width), width)
        tokens = torch.randint(0, len(table), (rows,), device=device)
        return Kernel(partial(functional.embedding, tokens, table), "torch embedding")
    if shape.pass_kind == "sampling":
        logits = _random(device, rows, width)
        return Kernel(
            lambda: torch.softmax(logits, dim=-1, dtype=torch.float32).argmax(dim=-1), "torch softmax, argmax"
        )
    if shape.pass_kind == "quantise":
        inputs = _random(device, rows, width)
        dtype = torch.float8_e4m3fn if fp8 else torch.int8
        return Kernel(partial(inputs.to, dtype), f"torch cast to {'fp8' if fp8 else 'int8'}")
    return _optimizer(rows * width, device)


def _rotate(inputs: "torch.Tensor", cosine: "torch.Tensor", sine: "torch.Tensor") -> "torch.Tensor":
    import torch

    left, right = inputs.chunk(2, dim=-1)
    return torch.cat((left * cosine - right * sine, right * cosine + left * sine), dim=-1)


def _optimizer(values: int, device: "torch.device") -> Kernel:
    """AdamW on fp32 master weights, and the cast back to bf16."""
    import torch

    master = torch.nn.Parameter(_random(device, values, dtype=torch.float32))
    master.grad = _random(device, values, dtype=torch.float32)
    weights = _random(device, values)
    optimizer = torch.optim.AdamW([master], lr=1e-4, fused=True)

    def run() -> None:
        optimizer.step()
        weights.copy_(master.detach())

    return Kernel(run, "torch fused AdamW", capturable=False)


def _copy(shape: Copy, device: "torch.device") -> Kernel:
    import torch

    if device.type == "cpu" and shape.direction != "device_to_device":
        raise UnsupportedShapeError("a processor has no copies between host and device")
    places = {"host": torch.device("cpu"), "device": device}
    origin, _, target = shape.direction.partition("_to_")
    pinned = device.type == "cuda"

    def buffer(place: str) -> "torch.Tensor":
        data = torch.randint(0, 256, (shape.moved_bytes,), dtype=torch.uint8, device=places[place])
        return data.pin_memory() if pinned and place == "host" else data

    source, destination = buffer(origin), buffer(target)
    return Kernel(lambda: destination.copy_(source, non_blocking=True), "torch copy")


def _launch(shape: Launch, device: "torch.device") -> Kernel:
    import torch

    value = torch.zeros(1, device=device)

    def run() -> None:
        for _ in range(shape.num_kernels):
            value.add_(1.0)

    return Kernel(run, f"torch add, {shape.mode}", capturable=shape.mode == "graph")
