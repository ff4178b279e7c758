"""Stages beyond GPU memory: the order in which their clusters are moved and computed, found once an option (Rummy)."""

from dataclasses import dataclass
from functools import cache

from planner.kinds.workflow.latency_options import TransfersSpec
from planner.solvers.workflow.transfer_order import Clusters, least_makespan, makespan_s

TIME_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Order:
    """Names of clusters in the order of least makespan [s], and what no order is below [s]."""

    names: tuple[str, ...]
    makespan_s: float
    bound_s: float

    @property
    def proven(self) -> bool:
        """Whether no order is shorter, within a millionth."""
        return self.bound_s >= self.makespan_s * (1.0 - 1e-6)


def clusters_of(transfers: TransfersSpec) -> Clusters:
    """As the solver has them."""
    rows = transfers.clusters
    return Clusters(
        tuple(row.transfer_s for row in rows),
        tuple(row.compute_s for row in rows),
        tuple(row.size_bytes for row in rows),
        transfers.buffer_bytes,
    )


@cache
def fastest_order(transfers: TransfersSpec) -> Order:
    """The order of least makespan that is found in `TIME_LIMIT_S`."""
    result = least_makespan(clusters_of(transfers), time_limit_s=TIME_LIMIT_S)
    assert result.solution is not None
    assert result.objective is not None
    names = tuple(transfers.clusters[index].name for index in result.solution)
    return Order(names, result.objective, result.bound or 0.0)


def stated_s(transfers: TransfersSpec, names: tuple[str, ...]) -> float:
    """The makespan of an order that a plan states, of every cluster once."""
    place = {row.name: index for index, row in enumerate(transfers.clusters)}
    return makespan_s(clusters_of(transfers), [place[name] for name in names])
