"""Serving plans of several workloads or models judged by simulation: the GPUs in cells, each with its own workloads.

The mix of the rates is fixed by the problem, and a plan keeps the limits where every cell keeps those of its workloads.
What is best over all partitions into cells is found by `planner.simulate.goodput.cells`.
"""

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
from planner.simulate.goodput.cells import CellSearch, Partition
from planner.simulate.goodput.placements import Placement, PlacementSearch, Tried
from planner.simulate.run.mixture import Mixture

SHARED = (
    "workloads are cut into cells that share no engine; in each one instance type does both, or one prefills and one "
    "decodes, for one workload or several of one model, each shape with the batch and chunk that steady state finds "
    f"best; the space is the {MOST_PLACEMENTS} cells or so that it ranks highest over all numbers of GPUs, and the mix "
    "that it prefers",
)
UNPLAYED = "cells with which no partition could be better, or that were not reached"
ASSUMED = (*ASSUMPTIONS[:2], *SHARED, *ASSUMPTIONS[3:])


def best_partition(outcome: Outcome, judge: LoadStreams) -> Envelope:
    """The plan of the highest common scale of all rates at which every workload keeps its limits."""
    parts, favourite = list_cells(judge, outcome)
    judge.require_long_enough(parts[: len(favourite)])
    cells = [cell_of(judge, one) for one in parts]
    search = CellSearch(cells, judge.mixture, judge.gpus, judge.asked_per_s, MOST_TRIED)
    while (best := search.best(favourite)) is not None:
        fleets = {at: search.known[at].fleet for at in best.cells}
        goods, goodput = [_kept_by(stream, parts, fleets) for stream in judge.streams], best.goodput_per_s or 0.0
        low, high = judge.goodput_interval(goods, goodput)
        claimed, bound = min(goodput, low) or goodput, search.bound * judge.factor
        found = _finding(search, judge, parts, best, claimed, (low, high), bound, claimed * judge.factor)
        try:
            return plan_of(judge, outcome, found)
        except Unplaceable:
            search.dropped.add(_largest(search, best.cells))
    raise no_placement(judge, proved=search.bound == 0.0)


def cheapest_partition(outcome: Outcome, judge: LoadStreams) -> Envelope:
    """The plan of the fewest GPUs that keeps the limits at the rates asked for, and close to them on other draws."""
    parts, _ = list_cells(judge, outcome)
    cells, rate = [cell_of(judge, one) for one in parts], judge.asked_per_s
    search = CellSearch(cells, judge.mixture, judge.gpus)
    streams = [[stream.of(one.workloads) for stream in judge.streams] for one in parts]

    def keeps(at: int) -> bool:
        fleet = search.known[at].fleet
        return search.keeps(at, rate) and all(one.keeps(fleet, SURE * rate) for one in streams[at])

    least = search.fewest_allowed(rate)
    while (chosen := search.cheapest(rate, keeps)) is not None:
        assert least is not None, "what is chosen is allowed"
        best = Partition(chosen, rate, min(search.known[at].bound_per_s for at in chosen))
        search.tried.append(best)
        price = price_of(outcome, tuple(parts[at] for at in chosen))
        bound = price_of(outcome, tuple(parts[at] for at in least))
        found = _finding(search, judge, parts, best, rate, None, bound, price)
        try:
            return plan_of(judge, outcome, found)
        except Unplaceable:
            search.dropped.add(_largest(search, chosen))
    raise no_placement(judge, proved=least is None)


def _kept_by(stream: Mixture, parts: Sequence[Deployment], fleets: Mapping[int, Fleet]) -> Callable[[float], bool]:
    """Whether cells keep the limits of their workloads on a stream, at a rate."""
    mine = [(stream.of(parts[at].workloads), fleet) for at, fleet in fleets.items()]
    return lambda rate: all(one.keeps(fleet, rate) for one, fleet in mine)


def _largest(search: CellSearch, chosen: Sequence[int]) -> int:
    """The cell that leaves most room when it is not used."""
    return max(chosen, key=lambda at: search.cells[at].gpus)


def _finding(
    search: CellSearch,
    judge: LoadStreams,
    parts: Sequence[Deployment],
    best: Partition,
    claimed_per_s: float,
    interval_per_s: tuple[float, float] | None,
    bound: float,
    value: float,
) -> SimulatedChoice:
    """What the search found, with every partition that was played as a placement."""
    tried = tuple(
        Tried("beaten" if one.goodput_per_s is None else "simulated", one.bound_per_s, one.goodput_per_s)
        for one in search.tried
    )
    favourite = parts[0].steady_per_s  # of the mix that steady state prefers over every other
    placements = tuple(_placement(judge, [parts[at] for at in one.cells], favourite) for one in search.tried)
    return SimulatedChoice(
        PlacementSearch(placements, tried, search.tried.index(best), search.runs),
        tuple(tuple(parts[at] for at in one.cells) for one in search.tried),
        search.tried.index(best),
        claimed_per_s,
        interval_per_s,
        bound,
        value,
        {UNPLAYED: unplayed} if (unplayed := len(search.cells) - search.played) else {},
        _effort(search),
        ASSUMED,
    )


def _effort(search: CellSearch) -> dict[str, JsonValue]:
    return {
        "cells": len(search.cells),
        "cells_played": search.played,
        "partitions_played": len(search.tried),
        "runs": search.runs,
    }


def _placement(judge: LoadStreams, cells: Sequence[Deployment], most_per_s: float) -> Placement:
    name, steady = " | ".join(cell_name(judge, one) for one in cells), min(one.steady_per_s for one in cells)
    return Placement(name, partial(judge.workshop.whole, cells), judge.factor, min(steady, most_per_s))
