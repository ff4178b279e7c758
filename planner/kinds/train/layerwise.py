"""Strategies mixed by layer on the GPUs of one stage: tp and dp, ZeRO stage and recomputation of each layer.

Neighbouring layers of different tp hand their activations over by an all-to-all, forwards and backwards, for every
micro-batch. Which layers differ is a chain of choices under a budget of bytes (`planner.solvers.chain`): what Galvatron
searches (Miao et al., VLDB 2023, arXiv:2211.13878), here exact in bytes and seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from planner.costs.training.sizes import scatter
from planner.infeasible import Conflict, Infeasible
from planner.kinds.train.job import Job
from planner.kinds.train.space import Shape, divisors, head_counts, kv_head_counts, powers, zero_stages
from planner.kinds.train.tables import Ends, Sharing, Table, sharing_of
from planner.solvers.chain import ChainProblem, chain_size, solve_chain
from planner.solvers.result import Status
from planner.units import format_si

Floats = NDArray[np.float64]
VALUE_BYTES = 2.0


@dataclass(frozen=True, slots=True)
class Strategy:
    """How one layer runs."""

    tp: int
    dp: int
    zero_stage: int
    recompute: tuple[str, ...]  # granularity, then the modules of `selective`


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """A strategy for each layer, with what a step takes; `uniform_step_s`: the best with one for all layers."""

    strategies: tuple[Strategy, ...]
    step_s: float
    memory_bytes: float
    sequences: int  # of a micro-batch, all GPUs together
    uniform_step_s: float | None
    num_strategies: int


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """A tp with its dp, and the strategies that it can run under."""

    table: Table
    dp: int
    options: tuple[tuple[int, Sharing, int], ...]  # ZeRO stage, its prices, mode


def plan_layers(job: Job) -> LayerPlan:
    """The fastest strategy of every layer over all sizes of micro-batch; Infeasible where none fits."""
    best: LayerPlan | None = None
    for sequences in _micro_batches(job):
        states = tuple(_states(job, sequences))
        found = _planned(job, sequences, states) if states else None
        if found is not None and (best is None or found.step_s < best.step_s):
            best = found
    if best is None:
        room: Conflict = {"limit": f"memory of a GPU = {format_si(job.capacity_bytes, 'B')}", "nearest": ""}
        raise Infeasible([room, {"limit": f"gpus = {job.num_gpus}", "nearest": ""}], proved=True)
    return best


def _micro_batches(job: Job) -> Iterator[int]:
    """Sequences of a micro-batch of all GPUs: divisors of the batch that at least one tp can share out."""
    least = job.num_gpus // max(_tensor_degrees(job))
    yield from (size for size in divisors(job.options.global_batch) if size % least == 0 and size <= 16 * job.num_gpus)


def _tensor_degrees(job: Job) -> tuple[int, ...]:
    heads, kv_heads = head_counts(job), kv_head_counts(job)
    found = job.options.search.tp or powers(job.machine.domain_gpus)
    return tuple(
        tp
        for tp in found
        if job.num_gpus % tp == 0
        and all(count % tp == 0 for count in heads)
        and all(count % tp == 0 or tp % count == 0 for count in kv_heads)
    )


def _states(job: Job, sequences: int) -> Iterator[_State]:
    for tp in _tensor_degrees(job):
        dp = job.num_gpus // tp
        if sequences % dp:
            continue
        table = Table(job, Shape(tp, 1, 1, 1, sequences // dp))
        shared = [(zero, sharing_of(table, dp, zero, frozenset())) for zero in zero_stages(job)]
        yield _State(table, dp, tuple((zero, each, mode) for zero, each in shared for mode in range(len(table.modes))))


def _planned(job: Job, sequences: int, states: tuple[_State, ...]) -> LayerPlan | None:
    """The best chain for one size of micro-batch."""
    problem = _problem(job, sequences, states)
    result = solve_chain(problem)
    if result.status is not Status.OPTIMAL or result.solution is None or result.objective is None:
        return None
    chain = result.solution
    fixed_s = job.rates.get("step_s")
    return LayerPlan(
        strategies=tuple(_strategy(states[g], o) for g, o in zip(chain.states, chain.options, strict=True)),
        step_s=result.objective + fixed_s,
        memory_bytes=job.capacity_bytes - problem.budget + chain_size(problem, chain),
        sequences=sequences,
        uniform_step_s=_uniform(problem, fixed_s),
        num_strategies=sum(len(state.options) for state in states),
    )


def _strategy(state: _State, option: int) -> Strategy:
    zero_stage, _, place = state.options[option]
    mode = state.table.modes[place].recompute
    return Strategy(state.table.shape.tp, state.dp, zero_stage, (mode.granularity, *mode.modules))


def _uniform(problem: ChainProblem, fixed_s: float) -> float | None:
    """The best step with one strategy for all layers."""
    fits_GO = problem.size_LGO.sum(axis=0) <= problem.budget
    time_GO = np.where(fits_GO, problem.time_LGO.sum(axis=0), np.inf)
    return float(time_GO.min()) + fixed_s if np.isfinite(time_GO).any() else None


def _problem(job: Job, sequences: int, states: tuple[_State, ...]) -> ChainProblem:
    batches = job.options.global_batch // sequences
    most = max(len(state.options) for state in states)
    L = job.arch.num_layers
    time_LGO, size_LGO = np.full((L, len(states), most), np.inf), np.zeros((L, len(states), most))
    kind_L = np.array(job.kind_of_layer)
    for g, state in enumerate(states):
        table = state.table
        for o, (zero_stage, sharing, place) in enumerate(state.options):
            second_K, byte_K = _layer(table, sharing, zero_stage, place, batches)
            time_LGO[:, g, o], size_LGO[:, g, o] = second_K[kind_L], byte_K[kind_L]
            for item, end in ((0, table.first), (L - 1, table.last)):
                time_LGO[item, g, o] += batches * sum(end.pass_s) + _once(table, sharing, end)
                size_LGO[item, g, o] += float(end.held_2 @ sharing.state_2)
            size_LGO[L - 1, g, o] += table.ends_bytes
    change_GG = np.array([[_handed_over(job, sequences, a, b) for b in states] for a in states]) * batches
    gathered = max(
        float(state.table.held_K2.sum(axis=1).max()) * (2.0 * VALUE_BYTES + job.framework.gradient_bytes)
        for state in states
    )
    room = job.capacity_bytes - job.rates.get("memory.context_bytes")
    budget = max(room - gathered - max(kept.total_bytes for state in states for kept in state.table.kept), 0.0)
    return ChainProblem(time_LGO, size_LGO, np.broadcast_to(change_GG, (L, *change_GG.shape)).copy(), budget)


def _layer(table: Table, sharing: Sharing, zero_stage: int, place: int, batches: int) -> tuple[Floats, Floats]:
    """Seconds of a step and bytes of a layer of each kind [K]."""
    mode, rates = table.modes[place], table.job.rates
    pass_K3 = table.pass_K3.copy()
    pass_K3[:, 1] += np.array(mode.extra_s)
    reduce_K, gather_K = sharing.of("reduce_s", table.held_K2), sharing.of("gather_s", table.held_K2)
    second_K = sharing.of("optimizer_s", table.held_K2)
    back_K = pass_K3[:, 1] + pass_K3[:, 2]
    tail, room, lost = rates.get("dp.tail"), rates.get("dp.room"), rates.get("contention.zero3")
    if zero_stage == 3 or (zero_stage == 2 and batches > 1):
        both_K = reduce_K + (gather_K if zero_stage == 3 else 0.0)
        forward_K = pass_K3[:, 0]
        if zero_stage == 3:
            forward_K = np.maximum(forward_K, gather_K) + lost * np.minimum(forward_K, gather_K)
        second_K = second_K + batches * (forward_K + np.maximum(back_K, both_K) + lost * np.minimum(back_K, both_K))
        if zero_stage == 2:
            second_K = second_K + _shown(gather_K, pass_K3[:, 0], tail, room)
    else:
        second_K = second_K + batches * pass_K3.sum(axis=1) + _shown(reduce_K, back_K, tail, room)
        second_K = second_K + _shown(gather_K, pass_K3[:, 0], tail, room)
    return second_K, table.held_K2 @ sharing.state_2 + np.array(mode.held_bytes)


def _shown(moved: Floats, beside: Floats, tail: float, room: float) -> Floats:
    return np.asarray(tail * moved + np.maximum((1.0 - tail) * moved - room * beside, 0.0))


def _once(table: Table, sharing: Sharing, end: Ends) -> float:
    """Exchange and update of an end of the model once a step, beside the layers but for its tail."""
    moved_s = float(sharing.of("reduce_s", end.held_2) + sharing.of("gather_s", end.held_2))
    return float(sharing.of("optimizer_s", end.held_2)) + table.job.rates.get("dp.tail") * moved_s


def _handed_over(job: Job, sequences: int, one: _State, other: _State) -> float:
    """Seconds for activations of a micro-batch to change between two tp, forwards and backwards."""
    tp, wide = sorted((one.table.shape.tp, other.table.shape.tp))
    if tp == wide:
        return 0.0
    tokens = sequences * job.options.sequence_tokens / job.num_gpus
    kernel = scatter(job.machine, "ep", 0, "", tokens * job.arch.hidden_size * VALUE_BYTES, wide, 1, 1.0)
    rates, generation = job.rates, job.machine.generation
    moved_s = kernel.inside_s / rates.get("link.ep", generation) + kernel.outside_s / rates.get("fabric.ep", generation)
    return 2.0 * (moved_s + rates.get("start.ep"))


def runs(plan: LayerPlan) -> tuple[tuple[int, Strategy], ...]:
    """Neighbouring layers of one strategy together."""
    found: list[tuple[int, Strategy]] = []
    for strategy in plan.strategies:
        if found and found[-1][1] == strategy:
            found[-1] = (found[-1][0] + 1, strategy)
        else:
            found.append((1, strategy))
    return tuple(found)
