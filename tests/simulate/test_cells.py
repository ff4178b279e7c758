"""The best partition of a fleet into cells, against simulating every partition whole."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import Fleet, Instance, RequestPath
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.goodput.cells import Cell, CellSearch
from planner.simulate.goodput.rate import TOLERANCE
from planner.simulate.run.attainment import Draws
from planner.simulate.run.mixture import Mixture

GRID = StepGrid.affine(5e-3, sequence_s=1e-4, context_s=1e-7, token_s=2e-5, most_sequences=64)
SLOS = (
    SloSpec.model_validate({"ttft": {"p90_s": 0.2}, "tpot": {"p90_s": 0.012}, "attainment": 0.9}),
    SloSpec.model_validate({"latency": {"p90_s": 3.0}}),
    SloSpec.model_validate({"ttft": {"p95_s": 1.0}}),
)
FRACTIONS, LONGEST = (0.5, 0.3, 0.2), (400, 1500, 3000)
GPUS = 5


def mixture(seed: int = 0) -> Mixture:
    """Three workloads in a fixed mix."""
    draws = []
    for index, (fraction, longest) in enumerate(zip(FRACTIONS, LONGEST, strict=True)):
        count = int(400 * fraction)
        rng = np.random.default_rng(seed + index)
        lengths = rng.integers(50, longest, count), rng.integers(5, 60, count)
        stream = Draws.renewal(*lengths, seed=seed + 10 + index, warm_up=count // 10)
        draws.append(Draws(stream.arrival_s / fraction, *lengths, stream.warm_up))
    return Mixture(tuple(draws), SLOS)


@cache
def engine(role: str, batch: int) -> Instance:
    """One engine; equal ones are one object, which is priced once."""
    return Instance(GRID, 50_000, role=role, token_budget=1024, most_sequences=batch)


def fleet(workloads: Sequence[int], first: int, last: int, batch: int) -> Fleet:
    """`first` engines that do both, or that hand over to `last` others."""
    roles = ["prefill" if last else "colocated"] * first + ["decode"] * last
    return Fleet(tuple(engine(role, batch) for role in roles), paths=((RequestPath(0, 0, 1.0),),) * len(workloads))


def cells() -> list[Cell]:
    """All sets of the workloads, on few GPUs; steady state is wrong about them on purpose."""
    listed: list[Cell] = []
    for size in (1, 2, 3):
        for workloads in itertools.combinations(range(3), size):
            for first, last, batch in ((1, 0, 8), (2, 0, 32), (1, 1, 32), (4, 0, 32)):
                if size > 1 or first + last < 3:
                    name = f"{workloads} {first} + {last} of {batch}"
                    make = partial(fleet, workloads, first, last, batch)
                    listed.append(Cell(name, make, workloads, first + last, float(1 + len(listed) % 7)))
    return listed


def whole(chosen: Sequence[Cell]) -> Fleet:
    """The fleets of cells as one."""
    fleets = [(number, cell, cell.fleet()) for number, cell in enumerate(chosen)]
    engines = [replace(each, model=number) for number, _, part in fleets for each in part.instances]
    paths = {workload: (RequestPath(number, number, 1.0),) for number, cell, _ in fleets for workload in cell.workloads}
    return Fleet(tuple(engines), paths=tuple(paths[workload] for workload in sorted(paths)))


def every_partition(all_cells: list[Cell]) -> list[tuple[Cell, ...]]:
    return [
        chosen
        for size in (1, 2, 3)
        for chosen in itertools.combinations(all_cells, size)
        if sorted(workload for cell in chosen for workload in cell.workloads) == [0, 1, 2]
        and sum(c.gpus for c in chosen) <= GPUS
    ]


def test_the_search_finds_what_simulating_every_partition_finds_and_no_run_exceeds_its_bound() -> None:
    load, all_cells = mixture(), cells()
    search = CellSearch(all_cells, load, GPUS)
    best = search.best()
    assert best is not None
    assert best.goodput_per_s is not None
    assert best.goodput_per_s <= search.bound
    assert load.keeps(whole([all_cells[index] for index in best.cells]), best.goodput_per_s)
    every = every_partition(all_cells)
    assert len(every) > 20
    for rate in (best.goodput_per_s * (1.0 + 2.0 * TOLERANCE), search.bound * 1.001):
        assert not any(load.keeps(whole(chosen), rate) for chosen in every)
    assert search.simulated < len(all_cells)


def test_a_preferred_partition_is_simulated_to_its_goodput_and_dominated_by_better_ones() -> None:
    load, all_cells = mixture(), cells()
    incumbent = tuple(index for index, cell in enumerate(all_cells) if cell.gpus == 1 and len(cell.workloads) == 1)
    search = CellSearch(all_cells, load, GPUS)
    best = search.best(incumbent)
    assert best is not None
    assert search.tried[0].cells == incumbent
    assert 0.0 < (search.tried[0].goodput_per_s or 0.0) < (best.goodput_per_s or 0.0)


def test_partitions_with_a_dropped_cell_are_out_and_the_bound_stays() -> None:
    search = CellSearch(cells(), mixture(), GPUS)
    best, bound = search.best(), search.bound
    assert best is not None
    search.dropped.add(best.cells[0])
    other = search.best()
    assert other is not None
    assert best.cells[0] not in other.cells
    assert (other.goodput_per_s or 0.0) <= (best.goodput_per_s or 0.0)
    assert search.bound == bound


def test_the_fewest_gpus_are_those_of_the_smallest_partition_that_keeps_the_limits() -> None:
    load, all_cells = mixture(), cells()
    search = CellSearch(all_cells, load, GPUS)
    best = search.best()
    assert best is not None
    assert best.goodput_per_s is not None
    for rate in (0.3 * best.goodput_per_s, 0.9 * best.goodput_per_s):
        chosen = search.cheapest(rate, lambda cell, rate=rate: search.keeps(cell, rate))  # type: ignore[misc]  # bound here
        allowed = search.fewest_allowed(rate)
        assert chosen is not None
        assert allowed is not None
        good = [partition for partition in every_partition(all_cells) if load.keeps(whole(partition), rate)]
        fewest = min(sum(cell.gpus for cell in partition) for partition in good)
        assert sum(all_cells[index].gpus for index in chosen) == fewest
        assert sum(all_cells[index].gpus for index in allowed) <= fewest


def test_limits_that_no_cell_keeps_leave_no_partition() -> None:
    load = mixture()
    never = SloSpec.model_validate({"ttft": {"p90_s": 1e-4}})
    search = CellSearch(cells(), Mixture(load.draws, (never, *load.slos[1:])), GPUS)
    assert search.bound == 0.0
    assert search.best() is None


def test_no_partition_fits_on_fewer_gpus_than_its_cells_have() -> None:
    search = CellSearch([cell for cell in cells() if cell.gpus > 2], mixture(), 2)
    assert search.best() is None
    assert search.cheapest(1e-3, lambda _: True) is None
    assert not math.isinf(search.bound)
