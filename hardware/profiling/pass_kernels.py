"""Elementwise (memory-bound) kernels of a layer in PyTorch, unfused, with gradients: norms, activations, casts."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from planner.hardware.profiling.kernel import PreparedKernel, Run, random_values
from planner.hardware.profiling.shapes import MemoryPassShape

if TYPE_CHECKING:
    import torch

_EMBEDDING_VALUES = 2**25  # of the table that rows are looked up in, 64 MiB
_HEAD_DIM = 128
_BLOCK_TOKENS = 16  # of a paged KV cache
_TOP_K = 8  # outputs of experts that are summed to one

_Pass = Callable[[MemoryPassShape, "torch.device"], PreparedKernel]
_Inputs = Callable[[MemoryPassShape, "torch.device"], tuple["torch.Tensor", ...]]


def memory_pass(shape: MemoryPassShape, device: "torch.device", *, fp8: bool) -> PreparedKernel:
    """Random inputs of one kind of pass."""
    if shape.pass_kind == "quantise":
        return _quantise(shape, device, fp8=fp8)
    return _PASSES[shape.pass_kind](shape, device)


def _quantise(shape: MemoryPassShape, device: "torch.device", *, fp8: bool) -> PreparedKernel:
    import torch

    inputs = random_values(device, shape.rows, shape.width)
    dtype = torch.float8_e4m3fn if fp8 else torch.int8
    return PreparedKernel(partial(inputs.to, dtype), f"torch cast to {'fp8' if fp8 else 'int8'}")


def _norm(shape: MemoryPassShape, device: "torch.device") -> PreparedKernel:
    """With the sum of the residual in front of it."""
    import torch

    residual, inputs = (random_values(device, shape.rows, shape.width) for _ in range(2))
    gain, normed = random_values(device, shape.width), (shape.width,)

    def run() -> object:
        return torch.nn.functional.rms_norm(residual.add_(inputs, alpha=1e-3), normed, gain)

    return PreparedKernel(run, "torch rms_norm")


def _norm_backward(shape: MemoryPassShape, device: "torch.device") -> PreparedKernel:
    """With the sum of the gradients of norm and residual."""
    import torch

    inputs, gain = random_values(device, shape.rows, shape.width), random_values(device, shape.width)
    residual = random_values(device, shape.rows, shape.width)
    leaves = [inputs.requires_grad_(), gain.requires_grad_()]
    back = _gradient(torch.nn.functional.rms_norm(inputs, (shape.width,), gain), leaves)

    def run() -> object:
        gradients: Any = back()
        return gradients[0] + residual

    return PreparedKernel(run, "torch rms_norm backward", capturable=False)


def _rotated(values: "torch.Tensor", angles: "torch.Tensor") -> "torch.Tensor":
    """In fp32; values [tokens, heads, width], angles [tokens, 1, width / 2] as cosine and sine alike."""
    import torch

    left, right = values.float().chunk(2, dim=-1)
    return torch.cat((left * angles - right * angles, right * angles + left * angles), dim=-1).to(values.dtype)


def _heads_and_angles(shape: MemoryPassShape, device: "torch.device") -> tuple["torch.Tensor", ...]:
    import torch

    width = min(_HEAD_DIM, shape.width)
    values = random_values(device, shape.rows, shape.width // width, width)
    return values, random_values(device, shape.rows, 1, width // 2, dtype=torch.float32)


def _gated(inputs: "torch.Tensor") -> "torch.Tensor":
    import torch

    gate, value = inputs.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * value


def _embedding(shape: MemoryPassShape, device: "torch.device") -> PreparedKernel:
    import torch

    table = random_values(device, max(1024, _EMBEDDING_VALUES // shape.width), shape.width)
    tokens = torch.randint(0, len(table), (shape.rows,), device=device)
    return PreparedKernel(partial(torch.nn.functional.embedding, tokens, table), "torch embedding")


def _sampling(shape: MemoryPassShape, device: "torch.device") -> PreparedKernel:
    """One token a row by its probability: the largest of probability over exponential noise."""
    import torch

    logits = random_values(device, shape.rows, shape.width)

    def run() -> object:
        probabilities = logits.float().softmax(dim=-1)
        return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(dim=-1)

    return PreparedKernel(run, "torch softmax, noise, argmax")


def _loss(logits: "torch.Tensor", targets: "torch.Tensor") -> "torch.Tensor":
    import torch

    return torch.nn.functional.cross_entropy(logits.float(), targets)


def _logits_and_targets(shape: MemoryPassShape, device: "torch.device") -> tuple["torch.Tensor", ...]:
    import torch

    targets = torch.randint(0, shape.width, (shape.rows,), device=device)
    return random_values(device, shape.rows, shape.width), targets


def _gather(shape: MemoryPassShape, device: "torch.device") -> PreparedKernel:
    """Keys, then values, out of blocks that lie anywhere."""
    import torch

    blocks = max(1, shape.rows // (2 * _BLOCK_TOKENS))
    stores = [random_values(device, blocks, _BLOCK_TOKENS, shape.width) for _ in range(2)]
    table = torch.randperm(blocks, device=device)
    return PreparedKernel(lambda: [store[table] for store in stores], "torch index")


def _combine(shape: MemoryPassShape, device: "torch.device") -> PreparedKernel:
    """The outputs of the chosen experts of each token by their shares."""
    copies = random_values(device, max(1, shape.rows // _TOP_K), _TOP_K, shape.width)
    shares = random_values(device, copies.shape[0], _TOP_K, 1)
    return PreparedKernel(lambda: (copies * shares).sum(dim=1), "torch product and sum")


def _optimizer(shape: MemoryPassShape, device: "torch.device") -> PreparedKernel:
    """AdamW on fp32 master weights, and the cast back to bf16."""
    import torch

    values = shape.rows * shape.width
    master = torch.nn.Parameter(random_values(device, values, dtype=torch.float32))
    master.grad = random_values(device, values, dtype=torch.float32)
    weights = random_values(device, values)
    optimizer = torch.optim.AdamW([master], lr=1e-4, fused=True)

    def run() -> None:
        optimizer.step()
        weights.copy_(master.detach())

    return PreparedKernel(run, "torch fused AdamW", capturable=False)


def _gradient(output: "torch.Tensor", leaves: "list[torch.Tensor]") -> Run:
    """Runs the backward pass from `output` to `leaves`."""
    import torch

    return partial(torch.autograd.grad, output, leaves, torch.randn_like(output), retain_graph=True)


def _forward(function: Callable[..., "torch.Tensor"], inputs: _Inputs, source: str) -> _Pass:
    """The pass that computes `function` of the inputs."""
    return lambda shape, device: PreparedKernel(partial(function, *inputs(shape, device)), source)


def _backward(function: Callable[..., "torch.Tensor"], inputs: _Inputs, source: str) -> _Pass:
    """The pass from the output of `function` to its first input."""

    def prepare(shape: MemoryPassShape, device: "torch.device") -> PreparedKernel:
        values, *others = inputs(shape, device)
        leaf = values.requires_grad_()
        return PreparedKernel(_gradient(function(leaf, *others), [leaf]), f"{source} backward", capturable=False)

    return prepare


def _gate_and_value(shape: MemoryPassShape, device: "torch.device") -> tuple["torch.Tensor", ...]:
    return (random_values(device, shape.rows, shape.width),)


_PASSES: dict[str, _Pass] = {
    "norm": _norm,
    "norm_backward": _norm_backward,
    "rotary": _forward(_rotated, _heads_and_angles, "torch rotary"),
    "rotary_backward": _backward(_rotated, _heads_and_angles, "torch rotary"),
    "activation": _forward(_gated, _gate_and_value, "torch silu and product"),
    "activation_backward": _backward(_gated, _gate_and_value, "torch silu and product"),
    "embedding": _embedding,
    "sampling": _sampling,
    "cross_entropy": _forward(_loss, _logits_and_targets, "torch cross_entropy"),
    "cross_entropy_backward": _backward(_loss, _logits_and_targets, "torch cross_entropy"),
    "gather": _gather,
    "combine": _combine,
    "optimizer": _optimizer,
}
