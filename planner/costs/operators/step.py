"""What the operators of one step of a shard share: its sizes, its products of tokens and weights, its all-reduce."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.elementwise import ACTIVATION_BYTES
from planner.costs.operators.kernels import Collective, Gemm, Operator
from planner.costs.operators.products import Projection
from planner.costs.operators.work import Shards, Work
from planner.models.architecture import Architecture


@dataclass(frozen=True, slots=True)
class Step:
    """What every layer of one step shares."""

    arch: Architecture
    shards: Shards
    work: Work

    @property
    def tokens(self) -> Floats:
        return self.work.tokens

    @property
    def one(self) -> Floats:
        return np.ones_like(self.work.tokens)


def all_reduce(step: Step, name: str, count: float, module: str = "") -> Iterator[Operator]:
    """The hidden states of all tokens, summed over the tensor-parallel ranks; nothing where no point has several."""
    if np.any(step.shards.tp > 1):
        size = step.tokens * step.arch.hidden_size * ACTIVATION_BYTES
        yield Collective(name, count, "all_reduce", size, step.shards.tp, step.one, module=module)


def gemm(
    step: Step, name: str, count: float, n: Floats | float, k: Floats | float, precision: str, module: str = ""
) -> Operator:
    """The step's tokens [N, k] times weights [k, n]."""
    return Gemm(name, count, step.tokens, step.one * n, step.one * k, precision, module)


def product(step: Step, products: Iterable[Projection], name: str, count: float, precision: str) -> Operator:
    """All of these products of one name, which read the same input, as one."""
    alike = [projection for projection in products if projection.name == name]
    columns = sum((projection.columns for projection in alike[1:]), alike[0].columns)
    return gemm(step, name, count, columns, alike[0].depth, precision, alike[0].module)
