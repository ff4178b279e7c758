"""Lays the layers of a choice on the stages of its pipeline, within the room of every unit.

Shape suffixes: U unit of the pipeline, K kind of layer, L layer.
"""

import math
from collections.abc import Iterator
from itertools import product

import numpy as np

from planner.arrays import Bools, Floats
from planner.costs.training.config import RecomputeConfig
from planner.costs.training.memory import WorkBytes
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.layout import (
    Counts,
    LayoutProblem,
    cut_layers,
    deal_layers,
    least_layers,
    spread_over_stages,
)
from planner.solvers.partition import SecondMemory


def room_of(choice: PlanChoice) -> Floats:
    """Bytes of each unit left for its layers and what is at work there, fixed parts taken off."""
    table, job, pipe = choice.table, choice.table.job, choice.pipe
    room_U = np.full(len(pipe.units), job.room_bytes)
    state_2 = choice.sharing.state_2
    room_U[0] -= table.first.resident_2 @ state_2
    room_U[pipe.last] -= table.last.resident_2 @ state_2
    if pipe.num_stages == 1:
        room_U[0] += table.tied_2 @ state_2
    room_U[0] -= table.first.frozen_bytes
    room_U[pipe.last] -= table.last.frozen_bytes
    return room_U


def work_of(choice: PlanChoice) -> WorkBytes:
    """What is at work on a rank while its passes run."""
    recompute = RecomputeConfig("full") if choice.full_layers else choice.mode.recompute
    return choice.table.work(choice.zero_stage, recompute, "activations" in choice.offload)


def layer_in_flight_bytes(choice: PlanChoice) -> tuple[float, ...]:
    """Bytes of a micro-batch in flight by kind of layer, where `full_layers` is 0."""
    if "activations" in choice.offload:
        return (0.0,) * len(choice.table.activations)
    return choice.mode.in_flight_bytes


def layout_problem(choice: PlanChoice) -> LayoutProblem:
    """What a layout of the choice's layers has to spread over the units of its pipeline."""
    table, job, pipe = choice.table, choice.table.job, choice.pipe
    kind_L = np.array(job.kind_of_layer)
    time_K = table.pass_K3.sum(axis=1) + np.array(choice.mode.extra_s)
    in_flight_K = np.array(layer_in_flight_bytes(choice))
    state_K = table.resident_K2 @ choice.sharing.state_2
    more_U = np.zeros(len(pipe.units))
    more_U[0] += sum(table.first.pass_s)
    more_U[pipe.last] += sum(table.last.pass_s)
    room_U = room_of(choice) - working_by(np.arange(len(pipe.units)) == pipe.last, work_of(choice))
    room_U[0] -= pipe.depth_U[0] * table.first.in_flight_bytes
    room_U[pipe.last] -= pipe.depth_U[pipe.last] * table.last.in_flight_bytes
    if "activations" not in choice.offload:
        room_U = room_U + _saved_by_whole_layers(choice)
    time_UL = np.broadcast_to(time_K[kind_L], (len(pipe.units), len(kind_L)))
    host = _host_of_layers(choice)
    return LayoutProblem(time_UL, in_flight_K[kind_L], state_K[kind_L], more_U, room_U, pipe.depth_U, host)


def _saved_by_whole_layers(choice: PlanChoice) -> Floats:
    """Bytes in flight of each unit that its layers which are computed again whole save, those of the least kind."""
    saved = min(kept.total_bytes - kept.input_bytes for kept in choice.table.activations)
    stages_U = np.array([len(stages) for stages in choice.pipe.units])
    return np.asarray(choice.full_layers * stages_U * choice.pipe.depth_U * saved)


def _host_of_layers(choice: PlanChoice) -> SecondMemory | None:
    """What layers take of the memory of each unit's host, and the room for them that the ends of the model leave."""
    table, job, pipe = choice.table, choice.table.job, choice.pipe
    if not choice.offload or math.isinf(job.host_bytes):
        return None
    kind_L, share = np.array(job.kind_of_layer), choice.config.moved_share
    room_U = np.full(len(pipe.units), job.host_bytes)
    first, last, tied = (
        float(choice.sharing.of("host_bytes", held_2))
        for held_2 in (table.first.resident_2, table.last.resident_2, table.tied_2)
    )
    room_U[0] -= first
    room_U[pipe.last] -= last - (tied if pipe.num_stages == 1 else 0.0)
    room_U += share * _saved_by_whole_layers(choice)
    state_K = choice.sharing.of("host_bytes", table.resident_K2)
    moved_K = share * np.array(choice.mode.in_flight_bytes)
    return SecondMemory(moved_K[kind_L], state_K[kind_L], room_U)


def lay_out(choice: PlanChoice, load: LayoutProblem | None = None) -> Counts | None:
    """The first of `layouts`; None where there is none."""
    return next(layouts(choice, load), None)


def layouts(choice: PlanChoice, load: LayoutProblem | None = None) -> Iterator[Counts]:
    """Layers of every stage, in every way in which the slowest rank is as fast as it can be and ranks that end at the
    same time, and stages of a rank, are told apart by their places; none where layers do not fit.

    `load` is given where it is not that of the choice alone.
    """
    job, pipe = choice.table.job, choice.pipe
    if job.options.search.layers == "even":
        even = even_layers(job.arch.num_layers, pipe.num_stages)
        yield from () if even is None else (even,)
        return
    load = load or layout_problem(choice)
    if len(job.kinds) > 1 and all(len(stages) == 1 for stages in pipe.units):
        cut = cut_layers(load)
        yield from () if cut is None else (cut,)
        return
    least, told = least_layers(pipe.units), set[Counts]()
    for late, early in product((False, True), repeat=2):
        dealt = deal_layers(load, least, late=late)
        if dealt is None:
            return
        counts = spread_over_stages(dealt, pipe.units, early=early)
        if counts not in told:
            told.add(counts)
            yield counts


def even_layers(num_layers: int, num_stages: int) -> Counts | None:
    """Equally many layers in every stage; None where they cannot be."""
    each, over = divmod(num_layers, num_stages)
    return None if over or not each else (each,) * num_stages


def working_by(last_X: Bools, work: WorkBytes) -> Floats:
    """What is at work on each of these, of which some hold the loss [X]."""
    return np.where(last_X, work.on_last_bytes, work.layer_bytes)
