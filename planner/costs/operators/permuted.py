"""Extra cost of routed experts where their kernel cannot read tokens in place: rows are sorted by expert, and back."""

from collections.abc import Iterable, Iterator

from planner.costs.operators.experts import routed_rows
from planner.costs.operators.kernels import Experts, MemoryPass, Operator

EXPERT_PERMUTE = "expert_permute"
_BYTES = 2.0  # of a value in bf16


def expert_permutes(operators: Iterable[Operator]) -> Iterator[Operator]:
    """Copies of the rows that go to experts [N], in front of the products and behind them, for each of `operators`.

    Gradients of weights use the rows that the forward pass has sorted.
    """
    for op in operators:
        if isinstance(op, Experts) and not op.name.endswith("_weight_gradient"):
            size_bytes = 2.0 * _BYTES * routed_rows(op.tokens, op.top_k, op.ep) * op.hidden
            name = EXPERT_PERMUTE + op.name.removeprefix("experts")
            yield MemoryPass(name, 2.0 * op.count, size_bytes, 2.0)
