"""MoE expert kernels in PyTorch: grouped GEMM over the routed experts of one rank, else one GEMM an expert."""

from typing import TYPE_CHECKING, Any

from planner.hardware.profiling.kernel import PreparedKernel, Run, UnsupportedShapeError, random_values
from planner.hardware.profiling.loads import expert_loads
from planner.hardware.profiling.shapes import ExpertsShape

if TYPE_CHECKING:
    import torch


def experts(shape: ExpertsShape, device: "torch.device", *, fp8: bool) -> PreparedKernel:
    """Grouped products up, the gate, grouped products down, over tokens already sorted by expert."""
    import torch

    loads = expert_loads(shape)
    tokens, inner = sum(loads), shape.local_intermediate
    if not tokens:
        raise UnsupportedShapeError("no token reaches the experts of this rank")
    up_width = inner * (2 if shape.gated else 1)
    inputs = random_values(device, tokens, shape.hidden)
    up = random_values(device, shape.local_experts, up_width, shape.hidden).transpose(1, 2)
    down = random_values(device, shape.local_experts, shape.hidden, inner).transpose(1, 2)
    multiply, source = _grouped(shape, loads, device, fp8=fp8)
    if shape.gradient == "weight":
        return PreparedKernel(_weight_gradient(shape, inputs, inner, up_width, multiply), f"{source} weight gradient")
    if shape.gradient == "input":
        return PreparedKernel(_input_gradient(shape, inputs, up, down, multiply), f"{source} input gradient")
    up_weights, down_weights = multiply.prepared(up), multiply.prepared(down)

    def run() -> object:
        between = multiply(inputs, up_weights)
        if shape.gated:
            gate, value = between.chunk(2, dim=-1)
            return multiply(torch.nn.functional.silu(gate) * value, down_weights)
        return multiply(torch.nn.functional.gelu(between), down_weights)

    return PreparedKernel(run, source)


def _input_gradient(
    shape: ExpertsShape, gradient: "torch.Tensor", up: "torch.Tensor", down: "torch.Tensor", multiply: "_GroupedProduct"
) -> Run:
    """From the gradient of the outputs [tokens, hidden] to that of the inputs: both products, the gate's between."""
    import torch

    saved = random_values(gradient.device, len(gradient), up.shape[2])
    up_back, down_back = up.transpose(1, 2), down.transpose(1, 2)

    def run() -> object:
        inner = multiply(gradient, down_back)
        if not shape.gated:
            return multiply(torch.ops.aten.gelu_backward(inner, saved), up_back)
        gate, value = saved.chunk(2, dim=-1)
        of_gate = torch.ops.aten.silu_backward(inner * value, gate)
        return multiply(torch.cat((of_gate, inner * torch.nn.functional.silu(gate)), dim=-1), up_back)

    return run


def _weight_gradient(
    shape: ExpertsShape, inputs: "torch.Tensor", inner: int, up_width: int, multiply: "_GroupedProduct"
) -> Run:
    """The gradients of both matrices of every expert: products over the tokens that came to it."""
    of_up = random_values(inputs.device, len(inputs), up_width)
    of_output = random_values(inputs.device, len(inputs), shape.hidden)
    between = random_values(inputs.device, len(inputs), inner)

    def run() -> object:
        return multiply.over_tokens(inputs, of_up), multiply.over_tokens(between, of_output)

    return run


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

    def over_tokens(self, inputs: "torch.Tensor", gradients: "torch.Tensor") -> "torch.Tensor":
        """inputs^T gradients of each expert [experts, width of inputs, width of gradients]."""
        import torch

        grouped: Any = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
        result: torch.Tensor = grouped(inputs.t(), gradients, offs=self.offsets)
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

    def over_tokens(self, inputs: "torch.Tensor", gradients: "torch.Tensor") -> "torch.Tensor":
        import torch

        pairs = zip(torch.split(inputs, self.loads), torch.split(gradients, self.loads), strict=True)
        return torch.stack([part.t() @ gradient for part, gradient in pairs])


def _grouped(
    shape: ExpertsShape, loads: list[int], device: "torch.device", *, fp8: bool
) -> tuple[_GroupedProduct, str]:
    import torch

    offsets = torch.tensor(loads, device=device).cumsum(0).to(torch.int32)
    if shape.precision == "fp8":
        if not fp8 or not hasattr(torch, "_scaled_grouped_mm"):
            raise UnsupportedShapeError("8-bit grouped products do not run here")
        return _Fp8GroupedProduct(offsets), "torch scaled_grouped_mm"
    if device.type == "cuda" and hasattr(torch, "_grouped_mm"):
        return _GroupedProduct(offsets), "torch grouped_mm"
    return _LoopedProduct(loads, offsets), "torch mm of each expert"
