"""CP-SAT for primitives in batches on engines; numbers as in `planner.solvers.workflow.engine_batches`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.solvers.backends.cpsat import timed_solver
from planner.solvers.backends.mathopt import version
from planner.solvers.backends.whole_units import units_per_one

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

MAX_HORIZON = 2**40  # units; finer times are not given to a solver of whole numbers


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The problem in arrays, queries in the order of release, nodes in topological order; seconds."""

    parents_N: tuple[tuple[int, ...], ...]
    type_N: tuple[int, ...]
    engine_K: tuple[int, ...]
    setup_s_K: tuple[float, ...]
    each_s_K: tuple[float, ...]
    most_members_K: tuple[int, ...]
    release_s_Q: tuple[float, ...]
    least_end_s_Q: tuple[float, ...]  # what the last end of each query is proven not to be below
    least_latency_s: float  # of any query


@dataclass(frozen=True, slots=True)
class StartedBatch:
    """A batch: its type, its start, and its members as (query in the order of release, node)."""

    type: int
    start_s: float
    members: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Improved:
    """Batches, or None where none were reached; what no mean latency is below [s]; why the search ended."""

    batches: tuple[StartedBatch, ...] | None
    bound_s: float
    stop_reason: str
    solver: str


@dataclass(frozen=True, slots=True, eq=False)
class _Times:
    """Times in whole units."""

    units: int
    release_Q: tuple[int, ...]
    setup_K: tuple[int, ...]
    each_K: tuple[int, ...]

    def batch(self, kind: int, members: int) -> int:
        return self.setup_K[kind] + self.each_K[kind] * members


@dataclass(slots=True)
class _Model:
    native: "cp_model.CpModel"
    start: "dict[tuple[int, int], cp_model.IntVar]"
    end: "dict[tuple[int, int], cp_model.IntVar]"
    leads: "dict[tuple[tuple[int, int], tuple[int, int]], cp_model.IntVar]"  # (member, leader)
    latency: "list[cp_model.IntVar]"


def improve(rows: BatchRows, hint: Sequence[StartedBatch], sum_s: float, *, time_limit_s: float, seed: int) -> Improved:
    """The best batches whose latencies sum to at most `sum_s`, from a hint; none where times have no common unit."""
    from ortools.sat.python import cp_model

    name, queries = f"ortools-cpsat {version()}", len(rows.release_s_Q)
    times = _in_units(rows)
    horizon_s = max(rows.release_s_Q) + sum_s  # every query is done by its release and the sum of all latencies
    if times is None or horizon_s * times.units > MAX_HORIZON:
        return Improved(None, -math.inf, "numerical", name)
    model = _build(rows, times, math.ceil(sum_s * times.units - 1e-6))
    for batch in hint:
        for member in batch.members:
            model.native.add_hint(model.start[member], round(batch.start_s * times.units))
    solver = timed_solver(time_limit_s, seed)
    status = solver.solve(model.native)
    bound_s = solver.best_objective_bound / times.units / queries
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Improved(None, bound_s, "time_limit", name)
    stop = "finished" if status == cp_model.OPTIMAL else "time_limit"
    return Improved(_read_off(rows, times, model, solver), bound_s, stop, name)


def _read_off(rows: BatchRows, times: _Times, model: _Model, solver: "cp_model.CpSolver") -> tuple[StartedBatch, ...]:
    members: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (member, leader), literal in model.leads.items():
        if solver.value(literal):
            members.setdefault(leader, []).append(member)
    started = sorted((solver.value(model.start[leader]), leader) for leader in members)
    return tuple(
        StartedBatch(rows.type_N[leader[1]], start / times.units, tuple(members[leader])) for start, leader in started
    )


def _in_units(rows: BatchRows) -> _Times | None:
    units = units_per_one([*rows.release_s_Q, *rows.setup_s_K, *rows.each_s_K])
    if units is None:
        return None
    release_Q, setup_K, each_K = (
        tuple(round(value * units) for value in row) for row in (rows.release_s_Q, rows.setup_s_K, rows.each_s_K)
    )
    return _Times(units, release_Q, setup_K, each_K)


def _build(rows: BatchRows, times: _Times, most: int) -> _Model:
    """The formulation; latencies sum to at most `most` units."""
    from ortools.sat.python import cp_model

    native = cp_model.CpModel()
    model = _Model(native, {}, {}, {}, [])
    least = math.floor(rows.least_latency_s * times.units + 1e-6)
    longest = most - least * (len(times.release_Q) - 1)
    for query, release in enumerate(times.release_Q):
        least_end = math.floor(rows.least_end_s_Q[query] * times.units + 1e-6)
        latency = native.new_int_var(max(least, least_end - release), longest, f"latency[{query}]")
        model.latency.append(latency)
        for node, parents in enumerate(rows.parents_N):
            s = native.new_int_var(release, release + longest, f"s[{query},{node}]")
            f = native.new_int_var(release, release + longest, f"f[{query},{node}]")
            model.start[query, node], model.end[query, node] = s, f
            for parent in parents:
                native.add(s >= model.end[query, parent])  # C1
            native.add(latency >= f - release)
    _batches(rows, times, model)
    for earlier, later in pairwise(range(len(times.release_Q))):
        for node in range(len(rows.parents_N)):
            native.add(model.start[earlier, node] <= model.start[later, node])  # C4
    native.add(sum(model.latency) <= most)
    native.minimize(sum(model.latency))
    return model


def _batches(rows: BatchRows, times: _Times, model: _Model) -> None:
    """(C2) and (C3): a batch is led by the first of its members, in the order of release and then of nodes."""
    native, queries = model.native, range(len(times.release_Q))
    engines: dict[int, list[cp_model.IntervalVar]] = {}
    for kind, engine in enumerate(rows.engine_K):
        nodes = [node for node, of in enumerate(rows.type_N) if of == kind]
        members = [(query, node) for query in queries for node in nodes]
        for place, leader in enumerate(members):
            engines.setdefault(engine, []).append(_led(rows, times, model, kind, members[place:], leader))
        for place, member in enumerate(members):
            native.add_exactly_one([model.leads[member, leader] for leader in members[: place + 1]])
            native.add(model.end[member] >= model.start[member] + times.batch(kind, 1))
        for node in nodes:
            _neighbours(model, [(query, node) for query in queries])
    for intervals in engines.values():
        native.add_no_overlap(intervals)  # C2


def _led(
    rows: BatchRows,
    times: _Times,
    model: _Model,
    kind: int,
    members: Sequence[tuple[int, int]],
    leader: tuple[int, int],
) -> "cp_model.IntervalVar":
    """The batch of a leader, where it leads one: any of these members, of which it is the first."""
    native, most = model.native, rows.most_members_K[kind]
    led = []
    for member in members:
        literal = native.new_bool_var(f"leads[{leader},{member}]")
        model.leads[member, leader] = literal
        native.add(model.start[member] == model.start[leader]).only_enforce_if(literal)
        native.add(model.end[member] == model.end[leader]).only_enforce_if(literal)
        led.append(literal)
    runs = led[0]  # a leader is a member of its own batch
    for literal in led[1:]:
        native.add_implication(literal, runs)
    native.add(sum(led) <= most)  # C3
    lasts = times.setup_K[kind] + times.each_K[kind] * sum(led)
    size = native.new_int_var(0, times.batch(kind, most), "")
    native.add(model.end[leader] == model.start[leader] + lasts).only_enforce_if(runs)
    native.add(size == lasts).only_enforce_if(runs)
    return native.new_optional_interval_var(model.start[leader], size, model.end[leader], runs, "")


def _neighbours(model: _Model, row: Sequence[tuple[int, int]]) -> None:
    """What (C4) implies for a node: whoever follows a leader in the order of release does so without gaps."""
    for place, leader in enumerate(row):
        for near, far in pairwise(row[place:]):
            model.native.add_implication(model.leads[far, leader], model.leads[near, leader])
