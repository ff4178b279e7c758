"""Combinations of level 1 across several pools as arrays: there may be a million of them.

Shape suffixes: N node, P pool, D way to divide, S row of a space.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from planner.arrays import Bools, Ints
from planner.kinds.train.space.distinct import distinct
from planner.kinds.train.space.space import Space
from planner.kinds.train.space.states import ShardShape, shard_shape


@dataclass(frozen=True, slots=True, eq=False)
class Nodes:
    """Combinations of level 1 [N] with what each pool takes [N, P]: ranks of the pipeline, or data-parallel ones."""

    shapes: tuple[ShardShape, ...]
    shape_N: Ints
    pp_N: Ints
    dp_N: Ints
    taken_NP: Ints

    def node(self, index: int) -> tuple[ShardShape, int, int, tuple[int, ...]]:
        """Shape, pp, dp and what each pool takes of one of them."""
        shape = self.shapes[self.shape_N[index]]
        return shape, int(self.pp_N[index]), int(self.dp_N[index]), tuple(self.taken_NP[index].tolist())


def columns_of(space: Space) -> tuple[Ints, ...]:
    """What the shapes of a space hang on, and pp."""
    return space.tp, space.cp, space.ep, space.etp, space.micro_batch, space.context, space.pp


def nodes_of_stages(space: Space, kept_S: Bools, gpus_P: Sequence[int]) -> Nodes:
    """Every way to give the stages of each kept combination to pools of so many GPUs, in order, at least one each."""
    rows = np.flatnonzero(kept_S)
    kinds, shape_S = distinct(*(column[rows] for column in columns_of(space)[:-1]))
    stage_gpus_S = (space.tp * space.cp * space.dp)[rows]
    most_SP = np.array(gpus_P)[None, :] // stage_gpus_S[:, None]
    pp_S = space.pp[rows]
    ways = [divisions(pp, tuple(most)) for pp, most in zip(pp_S.tolist(), most_SP.tolist(), strict=True)]
    row_N = np.repeat(np.arange(len(rows)), [len(way_DP) for way_DP in ways])
    taken_NP = np.concatenate([*ways, np.zeros((0, len(gpus_P)), np.int64)])
    shapes = tuple(shard_shape(*kind) for kind in kinds.T.tolist())
    return Nodes(shapes, shape_S[row_N], pp_S[row_N], space.dp[rows][row_N], taken_NP)


def nodes_of_replicas(spaces: Sequence[Space], kept: Sequence[Bools]) -> Nodes:
    """Every combination of numbers of replicas, one of the space of each pool, of the same shape and pp."""
    each = [_replicas_of_layouts(space, kept_S) for space, kept_S in zip(spaces, kept, strict=True)]
    layouts = [layout for layout in each[0] if all(layout in own for own in each)]
    shapes = list(dict.fromkeys(layout[:-1] for layout in layouts))
    ways = [_product([own[layout] for own in each]) for layout in layouts]
    place = {shape: index for index, shape in enumerate(shapes)}
    lengths = [len(way_DP) for way_DP in ways]
    shape_N = np.repeat(np.array([place[layout[:-1]] for layout in layouts], np.int64), lengths)
    pp_N = np.repeat(np.array([layout[-1] for layout in layouts], np.int64), lengths)
    taken_NP = np.concatenate([*ways, np.zeros((0, len(spaces)), np.int64)])
    return Nodes(tuple(shard_shape(*shape) for shape in shapes), shape_N, pp_N, taken_NP.sum(axis=1), taken_NP)


def chosen(nodes: Nodes, kept_N: Bools) -> Nodes:
    """Some of the nodes."""
    columns = (nodes.shape_N[kept_N], nodes.pp_N[kept_N], nodes.dp_N[kept_N], nodes.taken_NP[kept_N])
    return Nodes(nodes.shapes, *columns)


@lru_cache(maxsize=4096)
def divisions(total: int, most: tuple[int, ...]) -> Ints:
    """Every way to give `total` ranks to pools in order [D, P], at least one and at most so many each."""
    if len(most) == 1:
        return np.array([[total]] if 1 <= total <= most[0] else [], np.int64).reshape(-1, 1)
    free_DP = _product([np.arange(1, min(number, total) + 1) for number in most[:-1]])
    last_D = total - free_DP.sum(axis=1)
    legal_D = (last_D >= 1) & (last_D <= most[-1])
    return np.asarray(np.column_stack([free_DP, last_D])[legal_D])


def _replicas_of_layouts(space: Space, kept_S: Bools) -> dict[tuple[int, ...], Ints]:
    """The values of dp of every shape and pp, as they come in the space."""
    rows = np.flatnonzero(kept_S)
    kinds, kind_S = distinct(*(column[rows] for column in columns_of(space)))
    order = np.argsort(kind_S, kind="stable")
    edges = np.searchsorted(kind_S[order], np.arange(1, kinds.shape[1]))
    each = zip(np.split(order, edges), map(tuple, kinds.T.tolist()), strict=True)
    return {kind: space.dp[rows[places]] for places, kind in sorted(each, key=lambda pair: int(pair[0][0]))}


def _product(values: Sequence[Ints]) -> Ints:
    """Every combination of one value each, as rows; the last change first."""
    return np.stack(np.meshgrid(*values, indexing="ij"), axis=-1).reshape(-1, len(values))
