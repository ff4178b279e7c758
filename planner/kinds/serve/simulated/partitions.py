"""Serving plans by simulation for several workloads or models: GPUs partitioned into cells, each with its own.

The mix of the rates is fixed by the problem, and a plan keeps the limits where every cell keeps those of its workloads.
What is best over all partitions into cells is found by `planner.simulate.goodput.cells`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pydantic import JsonValue

from planner.kinds.serve.plan.place import Unplaceable
from planner.kinds.serve.simulated.cells import cell_name, cell_of, list_cells
from planner.kinds.serve.simulated.load_streams import LoadStreams
from planner.kinds.serve.simulated.placements import MOST_PLACEMENTS, Deployment
from planner.kinds.serve.simulated.plan import (
    ASSUMPTIONS,
    MOST_TRIED,
    SURE,
    SimulatedChoice,
    no_placement,
    plan_of,
    price_of,
)
from planner.kinds.serve.steady.search import Outcome
from planner.plan.schema import Envelope
from planner.simulate.fleet.instances import Fleet
from planner.simulate.goodput.cells import CellPartition, CellSearch
from planner.simulate.goodput.placements import Placement, PlacementOutcome, PlacementSearch
from planner.simulate.run.mixture import Mixture

SHARED = (
    "workloads are cut into cells that share no engine; in each one instance type does both, or one prefills and one "
    "decodes, for one workload or several of one model, each shape with the batch and chunk that steady state finds "
    f"best; the space is the {MOST_PLACEMENTS} cells or so that it ranks highest over all numbers of GPUs, and the mix "
    "that it prefers; runs that were measured are not preferred",
)
UNSIMULATED = "cells with which no partition could be better, or that were not reached"
ASSUMED = (*ASSUMPTIONS[:2], *SHARED, *ASSUMPTIONS[3:])


def best_partition(outcome: Outcome, streams: LoadStreams) -> Envelope:
    """The plan of the highest common scale of all rates at which every workload keeps its limits."""
    deployments, incumbent = list_cells(streams, outcome)
    streams.require_long_enough(deployments[: len(incumbent)])
    cells = [cell_of(streams, deployment) for deployment in deployments]
    search = CellSearch(cells, streams.mixture, streams.gpus, streams.asked_per_s, MOST_TRIED)
    while (best := search.best(incumbent)) is not None:
        fleets = {cell: search.known[cell].fleet for cell in best.cells}
        goods, goodput = (
            [_kept_by(stream, deployments, fleets) for stream in streams.replications],
            best.goodput_per_s or 0.0,
        )
        low, high = streams.goodput_interval(goods, goodput)
        claimed, bound = min(goodput, low) or goodput, search.bound * streams.factor
        choice = _finding(search, streams, deployments, best, claimed, (low, high), bound, claimed * streams.factor)
        try:
            return plan_of(streams, outcome, choice)
        except Unplaceable:
            search.dropped.add(_largest(search, best.cells))
    raise no_placement(streams, proved=search.bound == 0.0)


def cheapest_partition(outcome: Outcome, streams: LoadStreams) -> Envelope:
    """The plan of the fewest GPUs that keeps the limits at the rates asked for, and close to them on other draws."""
    deployments, _ = list_cells(streams, outcome)
    cells, rate = [cell_of(streams, deployment) for deployment in deployments], streams.asked_per_s
    search = CellSearch(cells, streams.mixture, streams.gpus)
    replications = [[stream.of(deployment.workloads) for stream in streams.replications] for deployment in deployments]

    def keeps(cell: int) -> bool:
        fleet = search.known[cell].fleet
        return search.keeps(cell, rate) and all(stream.keeps(fleet, SURE * rate) for stream in replications[cell])

    least = search.fewest_allowed(rate)
    while (chosen := search.cheapest(rate, keeps)) is not None:
        assert least is not None, "what is chosen is allowed"
        best = CellPartition(chosen, rate, min(search.known[cell].bound_per_s for cell in chosen))
        search.tried.append(best)
        price = price_of(outcome, tuple(deployments[cell] for cell in chosen))
        bound = price_of(outcome, tuple(deployments[cell] for cell in least))
        choice = _finding(search, streams, deployments, best, rate, None, bound, price)
        try:
            return plan_of(streams, outcome, choice)
        except Unplaceable:
            search.dropped.add(_largest(search, chosen))
    raise no_placement(streams, proved=least is None)


def _kept_by(
    stream: Mixture, deployments: Sequence[Deployment], fleets: Mapping[int, Fleet]
) -> Callable[[float], bool]:
    """Whether cells keep the limits of their workloads on a stream, at a rate."""
    cells = [(stream.of(deployments[cell].workloads), fleet) for cell, fleet in fleets.items()]
    return lambda rate: all(mixture.keeps(fleet, rate) for mixture, fleet in cells)


def _largest(search: CellSearch, chosen: Sequence[int]) -> int:
    """The cell that leaves most room when it is not used."""
    return max(chosen, key=lambda cell: search.cells[cell].gpus)


def _finding(
    search: CellSearch,
    streams: LoadStreams,
    deployments: Sequence[Deployment],
    best: CellPartition,
    claimed_per_s: float,
    interval_per_s: tuple[float, float] | None,
    bound: float,
    value: float,
) -> SimulatedChoice:
    """What the search found, with every partition that was simulated as a placement."""
    tried = tuple(
        PlacementOutcome(
            "dominated" if partition.goodput_per_s is None else "simulated",
            partition.bound_per_s,
            partition.goodput_per_s,
        )
        for partition in search.tried
    )
    incumbent = deployments[0].steady_per_s  # of the mix that steady state prefers over every other
    placements = tuple(
        _placement(streams, [deployments[cell] for cell in partition.cells], incumbent) for partition in search.tried
    )
    return SimulatedChoice(
        PlacementSearch(placements, tried, search.tried.index(best), search.runs),
        tuple(tuple(deployments[cell] for cell in partition.cells) for partition in search.tried),
        search.tried.index(best),
        claimed_per_s,
        interval_per_s,
        bound,
        value,
        {UNSIMULATED: left} if (left := len(search.cells) - search.simulated) else {},
        _effort(search),
        [{"end": "every partition", **({"bound": bound} if math.isfinite(bound) else {})}],
        ASSUMED,
    )


def _effort(search: CellSearch) -> dict[str, JsonValue]:
    return {
        "cells": len(search.cells),
        "cells_simulated": search.simulated,
        "partitions_simulated": len(search.tried),
        "runs": search.runs,
    }


def _placement(streams: LoadStreams, cells: Sequence[Deployment], most_per_s: float) -> Placement:
    name, steady = " | ".join(cell_name(streams, cell) for cell in cells), min(cell.steady_per_s for cell in cells)
    return Placement(name, partial(streams.builder.whole, cells), streams.factor, min(steady, most_per_s))
