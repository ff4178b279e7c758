"""Cost tables of inputs of several lengths: seconds are means over their shares, bytes those of the longest.

A step's micro-batches come in these shares and are all as long as their mean, so that its pipeline is that of the mean
passes: bounds and layouts on such a table are those of the mean step. Memory must hold the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner.costs.training.layer_costs import LayerCost
from planner.costs.training.stages import Part
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import CostTable
from planner.models.architecture import Layer


def sized(table: CostTable, tokens: int) -> CostTable:
    """The costs of the same shape with sequences of this length."""
    if tokens == table.job.options.sequence_tokens:
        return table
    options = table.job.options.model_copy(update={"sequence_tokens": tokens})
    return CostTable(replace(table.job, options=options), table.shape)


@dataclass(frozen=True)
class MeanTable(CostTable):
    """The mean over the lengths of the job."""

    @cached_property
    def longest(self) -> CostTable:
        """Costs of sequences of the longest."""
        return CostTable(self.job, self.shape)

    @cached_property
    def by_length(self) -> tuple[tuple[float, CostTable], ...]:
        """The share of each length, of 1, and its costs."""
        lengths = self.job.options.lengths
        whole = sum(length.share for length in lengths)
        return tuple((length.share / whole, sized(self.longest, length.tokens)) for length in lengths)

    @cached_property
    def layers(self) -> tuple[LayerCost, ...]:
        """[K]"""
        kinds = range(len(self.job.kinds))
        return tuple(_mean([(share, table.layers[kind]) for share, table in self.by_length]) for kind in kinds)

    def end(self, end: Part, layer: Layer | None = None) -> LayerCost:
        """An end of the model."""
        return _mean([(share, table.end(end, layer)) for share, table in self.by_length])

    def message_s(self, pp: int, dp: int) -> float:
        """Seconds of one hand-over between stages."""
        return sum(share * table.message_s(pp, dp) for share, table in self.by_length)


def _mean(costs: Sequence[tuple[float, LayerCost]]) -> LayerCost:
    """The sum of costs by their shares."""

    def mean(name: str) -> float:
        return float(sum(share * getattr(cost, name) for share, cost in costs))

    def means(name: str) -> dict[str, float]:
        keys = {key: None for _, cost in costs for key in getattr(cost, name)}
        return {key: sum(share * getattr(cost, name).get(key, 0.0) for share, cost in costs) for key in keys}

    return LayerCost(
        mean("forward_s"),
        mean("backward_input_s"),
        mean("backward_weight_s"),
        means("exchange_s"),
        means("forward_of_module"),
        mean("measured_s"),
        mean("imported_s"),
    )


def table_of(job: TrainJob, shape: ShardShape) -> CostTable:
    """The costs that a search goes by: the mean over lengths where the goal is that."""
    return MeanTable(job, shape) if job.mean_of_lengths else CostTable(job, shape)
