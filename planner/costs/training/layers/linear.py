"""Training kernels of one linear layer: its three GEMMs, quantisation around them, and LoRA adapters."""

from collections.abc import Iterable, Iterator

from planner.costs.operators.products import Projection, gradient_sizes
from planner.costs.training.config import Machine, Shard
from planner.costs.training.kernels import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, Kernel
from planner.costs.training.layers.sizes import VALUE_BYTES, memory_pass, product


def linear_kernels(
    machine: Machine, module: str, shard: Shard, k: float, n: float, *,
    rows: float = 0.0, precision: str = "", groups: float = 1.0, kind: str = "gemm", adapted: bool = False,
) -> Iterator[Kernel]:  # fmt: skip
    """Products [rows, k] x [k, n] of one linear layer and their gradients; `groups` of them with `rows` rows each.

    Under LoRA frozen weights have no gradient; an adapter adds two products of its rank in every pass.
    """
    m = rows or shard.tokens
    fmt = precision or shard.precision
    yield product(machine, kind, FORWARD, module, m, n, k, fmt, groups)
    of_input, of_weights = gradient_sizes(m, n, k)
    yield product(machine, kind, BACKWARD_INPUT, module, *of_input, fmt, groups)
    if shard.lora_rank:
        if adapted:
            yield from _adapter(machine, module, shard, m, k, n)
    else:
        yield product(machine, kind, BACKWARD_WEIGHT, module, *of_weights, fmt, groups)
    if fmt != "bf16":
        yield from _quantisation(machine, module, fmt, groups * m, k, n)


def products_kernels(
    machine: Machine, shard: Shard, products: Iterable[Projection], *, rows: float = 0.0, precision: str = ""
) -> Iterator[Kernel]:
    """The kernels of these products of a layer, each a linear layer of its own."""
    for projection in products:
        yield from linear_kernels(
            machine, projection.module, shard, float(projection.depth), float(projection.columns),
            rows=rows, precision=precision, adapted=projection.adapted,
        )  # fmt: skip


def _quantisation(machine: Machine, module: str, fmt: str, m: float, k: float, n: float) -> Iterator[Kernel]:
    """Inputs and gradients read in bf16 and written quantised, by rows and by columns."""
    each = 2.0 + 2.0 * VALUE_BYTES[fmt]
    yield memory_pass(machine, f"quantise.{fmt}", FORWARD, module, m * k * each, 1.0)
    yield memory_pass(machine, f"quantise.{fmt}", BACKWARD_INPUT, module, m * n * each, 1.0)


def _adapter(machine: Machine, module: str, shard: Shard, m: float, k: float, n: float) -> Iterator[Kernel]:
    """X A B beside X W, in bf16 (arXiv:2106.09685)."""
    rank = float(shard.lora_rank)
    for part, sizes in (
        (FORWARD, ((m, rank, k), (m, n, rank))),
        (BACKWARD_INPUT, ((m, rank, n), (m, k, rank))),
        (BACKWARD_WEIGHT, ((k, rank, m), (rank, n, m))),
    ):
        for rows, cols, depth in sizes:
            yield product(machine, "gemm", part, module, rows, cols, depth)
    yield memory_pass(machine, "elementwise", FORWARD, module, 2.0 * m * n * 2.0, 1.0)
    yield memory_pass(machine, "elementwise", BACKWARD_INPUT, module, 2.0 * m * k * 2.0, 1.0)
