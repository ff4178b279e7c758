"""Methods of context parallelism compared: which of them can be part of a fastest plan."""

from collections.abc import Callable, Sequence

import numpy as np

from planner.arrays import Bools, Floats
from planner.kinds.train.space.distinct import distinct
from planner.kinds.train.space.space import Space
from planner.kinds.train.space.states import ShardShape, shard_shape
from planner.kinds.train.space.tables import CostTable


def undominated(space: Space, tables_of: Callable[[ShardShape], Sequence[CostTable]]) -> Bools:
    """Combinations of a space whose method no other beats in every pass and byte, on all pools of `tables_of` [N]."""
    kinds, kind_N = distinct(space.tp, space.cp, space.ep, space.etp, space.micro_batch, space.context)
    alike: dict[tuple[int, ...], list[int]] = {}
    for kind, values in enumerate(kinds.T.tolist()):
        alike.setdefault(tuple(values[:-1]), []).append(kind)
    kept = np.ones(kinds.shape[1], np.bool_)
    for group in alike.values():
        if len(group) > 1:
            shapes = [shard_shape(*kinds[:, kind].tolist()) for kind in group]
            kept[group] = undominated_rows(
                [np.concatenate([method_costs(table) for table in tables_of(shape)]) for shape in shapes]
            )
    return np.asarray(kept[kind_N])


def undominated_rows(costs: Sequence[Floats]) -> list[bool]:
    """Whether each row is dominated by no other; the first of equal ones counts."""
    return [
        not any(
            (other <= cost).all() and ((other < cost).any() or rival < row)
            for rival, other in enumerate(costs)
            if rival != row
        )
        for row, cost in enumerate(costs)
    ]


def method_costs(table: CostTable) -> Floats:
    """What a method changes: seconds of the passes and of the attention alone, and what is gathered."""
    attention = [cost.forward_of_module.get("core_attention", 0.0) for cost in table.layers]
    return np.array([*table.pass_K3.ravel(), *attention, table.gathered_kv_bytes])
