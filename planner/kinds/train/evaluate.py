"""One plan priced: its layers laid out, its pipeline played pass by pass, and the memory of each rank.

Shape suffixes: S stage, R rank of the pipeline, K kind of layer, L layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.costs.training.config import Schedule, TrainingConfig
from planner.kinds.train.job import Job
from planner.kinds.train.layout import (
    Counts,
    Load,
    cut_layers,
    deal_layers,
    least_layers,
    spread_over_stages,
)
from planner.kinds.train.pipes import ROUNDS_TO_FILL, Pipe, pipe_of
from planner.kinds.train.tables import Mode, Sharing, Table
from planner.solvers.pipeline import StageTimes, orders, peak_held, play

Floats = NDArray[np.float64]
VALIDATED_LATER = ("zb_h1", "zb_h2", "zb_v")
"""Schedules whose ranks start the next step before all have ended this one (Qi et al., arXiv:2401.10241, section 4)."""
EXCHANGE_MULTIPROCESSORS = 20
"""Multiprocessors that DualPipe sets aside for the exchange between experts (arXiv:2412.19437, section 3.2.2)."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Every discrete decision but the layout; `full_layers`: layers of each stage computed again whole."""

    table: Table
    sharing: Sharing
    pp: int
    dp: int
    schedule: Schedule
    vpp: int
    zero_stage: int
    offload: frozenset[str]
    mode: Mode
    full_layers: int = 0
    shards: int = 0  # ranks that share out what ZeRO shards; 0 = all dp x cp of them

    @property
    def num_micro_batches(self) -> int:
        return self.table.job.options.global_batch // (self.dp * self.table.shape.micro_batch)

    @property
    def num_gpus(self) -> int:
        return self.table.shape.tp * self.table.shape.cp * self.pp * self.dp

    @property
    def config(self) -> TrainingConfig:
        """The choice as the costs know it, layers laid out evenly."""
        return replace(
            self.table.config,
            pp=self.pp,
            vpp=self.vpp,
            dp=self.dp,
            schedule=self.schedule,
            zero_stage=self.zero_stage,
            zero_ranks=self.shards,
            offload=self.offload,
            recompute=self.mode.recompute,
        )

    @property
    def pipe(self) -> Pipe:
        return pipe_of(self.schedule, self.pp, self.vpp, self.num_micro_batches)


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Bytes by rank [R]."""

    weights_R: Floats
    gradients_R: Floats
    optimizer_R: Floats
    activations_R: Floats
    workspace_R: Floats

    @property
    def total_R(self) -> Floats:
        parts = (self.weights_R, self.gradients_R, self.optimizer_R, self.activations_R, self.workspace_R)
        return np.asarray(sum(parts))


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A plan with its step time and what it is made of; seconds."""

    choice: Choice
    counts_S: Counts
    step_s: float
    pipeline_s: float
    exchange_s: float  # what shows of the exchange between data-parallel ranks
    optimizer_s: float
    pass_R3: Floats  # of one micro-batch on each rank
    busy_R: Floats
    peak_R: Floats  # micro-batches in flight
    memory: Memory


def room_of(choice: Choice) -> Floats:
    """Bytes of each unit left for its layers, fixed parts taken off."""
    table, job, pipe = choice.table, choice.table.job, choice.pipe
    room_U = np.full(len(pipe.units), job.capacity_bytes - _workspace(choice))
    state_2 = choice.sharing.state_2
    room_U[0] -= table.first.held_2 @ state_2
    room_U[pipe.last] -= table.last.held_2 @ state_2 + table.ends_bytes
    if pipe.num_stages == 1:
        room_U[0] += table.tied_2 @ state_2
    return room_U


def _workspace(choice: Choice) -> float:
    """What driver and libraries hold, layers gathered, and a layer at work again: on every rank."""
    table = choice.table
    size = table.job.rates.get("memory.context_bytes")
    if choice.zero_stage == 3:
        size += float(table.held_K2.sum(axis=1).max()) * (4.0 + table.job.framework.gradient_bytes)
    if choice.mode.recompute.granularity == "full" or choice.full_layers:
        size += max(kept.total_bytes for kept in table.kept)
    return size


def layer_held_bytes(choice: Choice) -> tuple[float, ...]:
    """Bytes of a micro-batch in flight by kind of layer, where `full_layers` is 0."""
    if "activations" in choice.offload:
        return (0.0,) * len(choice.table.kept)
    return choice.mode.held_bytes


def lay_out(choice: Choice) -> Counts | None:
    """Layers of every stage; None where they do not fit."""
    table, job, pipe = choice.table, choice.table.job, choice.pipe
    kind_L = np.array(job.kind_of_layer)
    time_K = table.pass_K3.sum(axis=1) + np.array(choice.mode.extra_s)
    held_K = np.array(layer_held_bytes(choice))
    state_K = table.held_K2 @ choice.sharing.state_2
    more_U = np.zeros(len(pipe.units))
    more_U[0] += sum(table.first.pass_s)
    more_U[pipe.last] += sum(table.last.pass_s)
    room_U = room_of(choice)
    if choice.full_layers and "activations" not in choice.offload:
        saved = np.array([kept.total_bytes - kept.input_bytes for kept in table.kept]).min()
        room_U = room_U + choice.full_layers * np.array([len(stages) for stages in pipe.units]) * pipe.depth_U * saved
    load = Load(time_K[kind_L], held_K[kind_L], state_K[kind_L], more_U, room_U, pipe.depth_U)
    if job.options.search.layers == "even":
        return even_layers(len(kind_L), pipe.num_stages)
    if len(job.kinds) > 1 and all(len(stages) == 1 for stages in pipe.units):
        return cut_layers(load)
    dealt = deal_layers(load, least_layers(pipe.units))
    return None if dealt is None else spread_over_stages(dealt, pipe.units)


def even_layers(num_layers: int, num_stages: int) -> Counts | None:
    """Equally many layers in every stage; None where they cannot be."""
    each, over = divmod(num_layers, num_stages)
    return None if over or not each else (each,) * num_stages


def evaluate(choice: Choice, counts_S: Sequence[int]) -> Evaluation:
    """Step time and memory of a layout."""
    job, pipe = choice.table.job, choice.pipe
    held_S2 = _held(choice, counts_S)
    pass_S3, activations_S = _stages(choice, counts_S)
    pass_S3 = _with_exchange(choice, pass_S3, held_S2)
    pipeline_s, busy_R = _played(choice, pass_S3, counts_S)
    pass_R3 = np.array([pass_S3[list(stages)].sum(axis=0) / _copies(choice) for stages in pipe.stages_of_rank])
    held_R2 = np.array([held_S2[list(stages)].sum(axis=0) for stages in pipe.stages_of_rank])
    exchange_s = _shown(choice, held_R2, pass_R3)
    optimizer_s = choice.sharing.most("optimizer_s", held_R2)
    step_s = pipeline_s + exchange_s + optimizer_s + job.rates.get("step_s")
    filled = min(choice.num_micro_batches, ROUNDS_TO_FILL * choice.pp)
    order = orders(choice.schedule, choice.pp, choice.vpp, filled)
    kept_R = peak_held(order, activations_S, activations_S)
    memory = _memory(choice, held_R2, kept_R)
    return Evaluation(
        choice,
        tuple(counts_S),
        step_s,
        pipeline_s,
        exchange_s,
        optimizer_s,
        pass_R3,
        busy_R,
        pipe.peak_R,
        memory,
    )


def fits(found: Evaluation) -> bool:
    """Whether every rank stays within what the job may use."""
    return bool((found.memory.total_R <= found.choice.table.job.capacity_bytes * (1.0 + 1e-9)).all())


def _copies(choice: Choice) -> float:
    """Ranks that share the micro-batches of a stage."""
    return 2.0 if choice.schedule == "dualpipe" else 1.0


def _kinds_of_stages(job: Job, counts_S: Sequence[int]) -> Floats:
    """How many layers of each kind a stage has [S, K]."""
    kinds = np.array(job.kind_of_layer)
    edges = np.concatenate([[0], np.cumsum(counts_S)])
    one_LK = np.concatenate([np.zeros((1, len(job.kinds))), np.cumsum(np.eye(len(job.kinds))[kinds], axis=0)])
    return np.asarray(one_LK[edges[1:]] - one_LK[edges[:-1]])


def _stages(choice: Choice, counts_S: Sequence[int]) -> tuple[Floats, Floats]:
    """Seconds of the three passes of every stage [S, 3], and its bytes of one micro-batch in flight [S]."""
    table, job = choice.table, choice.table.job
    count_SK = _kinds_of_stages(job, counts_S)
    pass_S3 = count_SK @ table.pass_K3
    bytes_S = count_SK @ np.array(choice.mode.held_bytes)
    again_SK = count_SK
    if choice.full_layers:
        first_SK = _first_layers(job, counts_S, choice.full_layers)
        pass_S3[:, 1] += first_SK @ np.array([cost.forward_s for cost in table.layers])
        bytes_S -= first_SK @ np.array([kept.total_bytes - kept.input_bytes for kept in table.kept])
    else:
        pass_S3[:, 1] += again_SK @ np.array(choice.mode.extra_s)
    pass_S3[0] += table.first.pass_s
    pass_S3[-1] += table.last.pass_s
    if "activations" in choice.offload:
        moved_S = bytes_S / job.machine.host_bytes_per_s
        pass_S3[:, 0] = np.maximum(pass_S3[:, 0], moved_S)
        pass_S3[:, 1] = np.maximum(pass_S3[:, 1], moved_S)
        bytes_S = np.zeros_like(bytes_S)
    return pass_S3, bytes_S


def _first_layers(job: Job, counts_S: Sequence[int], most: int) -> Floats:
    """Of the first `most` layers of each stage, how many are of each kind [S, K]."""
    found = np.zeros((len(counts_S), len(job.kinds)))
    first = 0
    for stage, count in enumerate(counts_S):
        for layer in range(first, first + min(count, most)):
            found[stage, job.kind_of_layer[layer]] += 1.0
        first += count
    return found


def _held(choice: Choice, counts_S: Sequence[int]) -> Floats:
    """Elements of every stage [S, 2]."""
    table = choice.table
    held_S2 = _kinds_of_stages(table.job, counts_S) @ table.held_K2
    held_S2[0] += table.first.held_2
    held_S2[-1] += table.last.held_2
    if len(held_S2) == 1:
        held_S2[0] -= table.tied_2
    return np.asarray(held_S2)


def _with_exchange(choice: Choice, pass_S3: Floats, held_S2: Floats) -> Floats:
    """Passes that wait for weights to be gathered (ZeRO-3), or for gradients to be scattered each micro-batch (ZeRO-2).

    The shorter of the two is hidden but for what both lose by sharing the device.
    """
    if choice.zero_stage < 2 or (choice.zero_stage == 2 and choice.num_micro_batches == 1):
        return pass_S3
    options, rates = choice.table.job.options, choice.table.job.rates
    hidden = "grad_reduce" in options.overlap and ("param_gather" in options.overlap or choice.zero_stage == 2)
    lost = rates.get("contention.zero3") if hidden else 1.0
    reduce_S = choice.sharing.of("reduce_s", held_S2)
    gather_S = choice.sharing.of("gather_s", held_S2) if choice.zero_stage == 3 else np.zeros_like(reduce_S)
    return beside(pass_S3, gather_S, reduce_S, lost)


def beside(pass_S3: Floats, gather_S: Floats, reduce_S: Floats, lost: float) -> Floats:
    """Passes with gathers beside forward and backward, and reductions beside the backward pass."""
    forward, back, weight = pass_S3[:, 0], pass_S3[:, 1] + pass_S3[:, 2], pass_S3[:, 2]
    both_S = gather_S + reduce_S
    longer_f = np.maximum(forward, gather_S) + lost * np.minimum(forward, gather_S)
    longer_b = np.maximum(back, both_S) + lost * np.minimum(back, both_S)
    return np.stack([longer_f, longer_b - weight, weight], axis=1)


def _played(choice: Choice, pass_S3: Floats, counts_S: Sequence[int]) -> tuple[float, Floats]:
    """Seconds of all micro-batches, and of each rank at work."""
    batches, stages = choice.num_micro_batches, len(pass_S3)
    if choice.pp == 1:
        busy_s = batches * float(pass_S3.sum())
        return busy_s, np.array([busy_s])
    message_s, exposed = handover(choice)
    rank_of_stage = {stage: rank for rank, held in enumerate(choice.pipe.stages_of_rank) for stage in held}
    apart_S = np.array([float(rank_of_stage[s] != rank_of_stage[s + 1]) for s in range(stages - 1)])
    if choice.schedule == "dualpipe":
        apart_S = np.ones(stages - 1)
    more = exposed * message_s
    joined_S = _joined(choice, counts_S, pass_S3) if choice.schedule.startswith("dualpipe") else None
    times = StageTimes(
        pass_S3[:, 0] + more, pass_S3[:, 1] + more, pass_S3[:, 2], (1.0 - exposed) * message_s * apart_S, joined_S
    )
    played = play(orders(choice.schedule, choice.pp, choice.vpp, batches), times)
    if choice.schedule in VALIDATED_LATER:
        return float((played.end_s_R - played.first_s_R).max()), played.busy_s_R
    return played.makespan_s, played.busy_s_R


def handover(choice: Choice) -> tuple[float, float]:
    """Seconds of one hand-over between stages, and the share of it that a rank spends on each pass."""
    if choice.pp == 1:
        return 0.0, 0.0
    job = choice.table.job
    overlapped = "p2p" in job.options.overlap and choice.vpp > 1
    share = job.rates.get("exposed.p2p.overlapped" if overlapped else "exposed.p2p")
    return choice.table.message_s(choice.pp, choice.dp), share


def _joined(choice: Choice, counts_S: Sequence[int], pass_S3: Floats) -> Floats:
    """Seconds saved where a forward pass of each stage runs beside a backward pass [S].

    The exchange between experts of both runs beside the products of both, which have fewer multiprocessors then.
    """
    table, job = choice.table, choice.table.job
    exchange_S = _kinds_of_stages(job, counts_S) @ table.exchange_K
    whole = job.machine.num_multiprocessors
    slowed = whole / (whole - EXCHANGE_MULTIPROCESSORS)
    total_S = pass_S3.sum(axis=1)
    together_S = np.maximum(exchange_S, (total_S - exchange_S) * slowed)
    return np.asarray(np.clip(total_S - together_S, 0.0, pass_S3[:, 0]))


def _shown(choice: Choice, held_R2: Floats, pass_R3: Floats) -> float:
    """What shows of the exchange between data-parallel ranks once a step, beside the slowest rank's passes."""
    if choice.zero_stage == 3:
        return 0.0
    options, rates = choice.table.job.options, choice.table.job.rates
    slowest = pass_R3[pass_R3.sum(axis=1).argmax()]
    gather_s, reduce_s = choice.sharing.most("gather_s", held_R2), choice.sharing.most("reduce_s", held_R2)
    if choice.zero_stage == 2 and choice.num_micro_batches > 1:
        reduce_s = 0.0
    tail, room = rates.get("dp.tail"), rates.get("dp.room")

    def exposed(moved_s: float, beside_s: float, name: str) -> float:
        if name not in options.overlap:
            return moved_s
        return tail * moved_s + max((1.0 - tail) * moved_s - room * beside_s, 0.0)

    back_s = float(slowest[1] + slowest[2])
    return exposed(reduce_s, back_s, "grad_reduce") + exposed(gather_s, float(slowest[0]), "param_gather")


def _memory(choice: Choice, held_R2: Floats, kept_R: Floats) -> Memory:
    names = ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    weights_R, gradients_R, optimizer_R = (choice.sharing.of(name, held_R2) for name in names)
    pipe = choice.pipe
    workspace_R = _workspace(choice) + np.where(np.array(pipe.unit_of_rank) == pipe.last, choice.table.ends_bytes, 0.0)
    return Memory(weights_R, gradients_R, optimizer_R, kept_R, workspace_R)
