"""Evaluates one training plan: lays layers on stages, simulates the pipeline pass by pass, adds memory up.

Shape suffixes: S stage, R rank of the pipeline, K kind of layer, L layer.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from planner.arrays import Bools, Floats
from planner.costs.training import zero_overlap
from planner.costs.training.config import RecomputeConfig, Schedule, TrainingConfig
from planner.costs.training.host_idle import idle_s
from planner.costs.training.memory import RankBytes, WorkBytes, in_flight_bytes
from planner.costs.training.modalities.networks import NetworkCost
from planner.costs.training.pipeline import copies_of, exposed_share, pipeline_time
from planner.costs.training.step import joined_seconds, straggling
from planner.costs.training.zero_overlap import ExchangeSwitches, each_micro_batch
from planner.kinds.train.evaluation.layout import (
    Counts,
    LayoutProblem,
    cut_layers,
    deal_layers,
    least_layers,
    spread_over_stages,
)
from planner.kinds.train.evaluation.pipes import Pipe, pipe_of
from planner.kinds.train.figures import ROUNDING
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.tables import CostTable, RecomputeMode, Sharing
from planner.solvers.partition import SecondMemory


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """Every discrete decision but the layout; `full_layers`: layers of each stage computed again whole."""

    table: CostTable
    sharing: Sharing
    pp: int
    dp: int
    schedule: Schedule
    vpp: int
    zero_stage: int
    offload: frozenset[str]
    mode: RecomputeMode
    full_layers: int = 0
    shards: int = 0  # ranks that share out what ZeRO shards; 0 = all dp x cp of them
    moved_layers: int = 0  # whose activations the host holds, where these are offloaded; 0 = all but the last
    batches: int = 0  # micro-batches of a rank where these ranks do a part of the batch; 0 = they do all of it

    @property
    def num_micro_batches(self) -> int:
        return self.batches or self.table.job.options.global_batch // (self.dp * self.table.shape.micro_batch)

    @property
    def num_gpus(self) -> int:
        return self.table.shape.tp * self.table.shape.cp * self.pp * self.dp

    @property
    def config(self) -> TrainingConfig:
        """The choice as the costs know it, layers laid out evenly."""
        recompute = RecomputeConfig("full", num_layers=self.full_layers) if self.full_layers else self.mode.recompute
        return replace(
            self.table.config,
            pp=self.pp,
            vpp=self.vpp,
            dp=self.dp,
            schedule=self.schedule,
            zero_stage=self.zero_stage,
            zero_ranks=self.shards,
            offload=self.offload,
            moved_layers=self.moved_layers,
            recompute=recompute,
        )

    @property
    def idle_s(self) -> float:
        """Seconds of a step that the training code's GPUs wait for their hosts."""
        return idle_s(self.config, self.table.job.rates)

    def with_samples_s(self, step_s: float) -> float:
        """A step of so long with the samples of the next on their way."""
        job, own = self.table.job, self.num_micro_batches * self.table.shape.micro_batch
        return job.options.arriving.beside_s(step_s, own, job.options.global_batch, job.machine.fabric_bytes_per_s)

    @property
    def pipe(self) -> Pipe:
        return pipe_of(self.schedule, self.pp, self.vpp, self.num_micro_batches)


@dataclass(frozen=True, slots=True)
class Strategy:
    """How one layer runs, where layers differ: its stage's ranks are tp x cp x dp."""

    tp: int
    dp: int
    zero_stage: int
    recompute: RecomputeConfig


@dataclass(frozen=True, slots=True)
class PoolShare:
    """What one of several pools does: priced there, and which of the ranks of an evaluation lie on it."""

    choice: PlanChoice
    rows: range


@dataclass(frozen=True, slots=True)
class SideRun:
    """A tower or generator on GPUs of its own, which follow one another from `first_rank`."""

    tp: int
    dp: int
    first_rank: int
    cost: NetworkCost

    @property
    def num_gpus(self) -> int:
        return self.tp * self.dp


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A plan with its step time and what it is made of; seconds.

    Across several pools `choice` is the whole job as priced on the first of them; R counts the ranks of the one
    pipeline, or those of the pipelines of each pool one after the other.
    """

    choice: PlanChoice
    counts_S: Counts
    pipeline_s: float
    exchange_s: float  # what shows of the exchange between data-parallel ranks
    optimizer_s: float
    pass_R3: Floats  # of one micro-batch on each rank
    busy_R: Floats
    peak_R: Floats  # micro-batches in flight
    memory: RankBytes
    strategies: tuple[Strategy, ...] = ()  # of each layer, where they have their own; `choice` is then the first one's
    across: tuple[PoolShare, ...] = ()  # the pools, where there are several
    mean_s: float | None = None  # the mean step over the lengths of inputs, where the goal is that
    uplinks_s: float = 0.0  # that the step waits for uplinks of racks
    sides: tuple[SideRun, ...] = ()  # towers, then generators, where they have GPUs of their own

    @property
    def num_gpus(self) -> int:
        """Of the whole plan."""
        return self.choice.num_gpus + sum(side.num_gpus for side in self.sides)

    @property
    def step_s(self) -> float:
        """The whole step."""
        return self.with_samples_s(self.alone_s)

    def with_samples_s(self, step_s: float) -> float:
        """A step of so long with the samples of the next on their way, those of the slowest pool's ranks."""
        return max(part.choice.with_samples_s(step_s) for part in self.parts)

    def with_span_s(self, span_s: float) -> float:
        """The step whose passes take so long in place of `pipeline_s`."""
        return self.with_samples_s(self.alone_s - self.pipeline_s + span_s)

    @property
    def alone_s(self) -> float:
        """The step where samples are there before they are needed."""
        moved_s = self.exchange_s + self.uplinks_s
        return self.pipeline_s + self.straggling_s + moved_s + self.optimizer_s + self.host_s

    @property
    def samples_s(self) -> float:
        """What the samples of the slowest pool's ranks add."""
        return self.step_s - self.alone_s

    @property
    def straggling_s(self) -> float:
        """What all wait for the slowest GPU, where GPUs are not as fast as each other."""
        spread = self.choice.table.job.options.step_spread
        return (straggling(spread, self.num_gpus) - 1.0) * self.pipeline_s

    @property
    def host_s(self) -> float:
        """What a step takes whatever it computes, and in which the slowest pool's GPUs wait for their hosts."""
        rates = self.choice.table.job.rates
        return rates.get("step_s") + max(part.choice.idle_s for part in self.parts)

    @property
    def config(self) -> TrainingConfig:
        """The plan as the costs know it, where all of its layers and ranks have the strategy of `choice`."""
        return replace(self.choice.config, layers_of_stage=self.counts_S)

    @property
    def objective(self) -> float:
        """What a search minimises: seconds, or seconds times GPUs where the goal counts time by GPU."""
        seconds = self.step_s if self.mean_s is None else self.mean_s + self.uplinks_s
        return seconds * self.num_gpus if self.choice.table.job.per_gpu else seconds

    @property
    def parts(self) -> tuple[PoolShare, ...]:
        """The pools, each with its ranks."""
        return self.across or (PoolShare(self.choice, range(len(self.busy_R))),)

    @property
    def capacity_R(self) -> Floats:
        """Bytes of each rank that a plan may be chosen to fill."""
        return np.concatenate([np.full(len(part.rows), part.choice.table.job.capacity_bytes) for part in self.parts])

    @property
    def host_capacity_R(self) -> Floats:
        """Bytes of host memory that each rank may fill; infinite where it is not known."""
        return np.concatenate([np.full(len(part.rows), part.choice.table.job.host_bytes) for part in self.parts])

    @property
    def device_R(self) -> Floats:
        """Bytes that each rank's GPU has."""
        jobs = [part.choice.table.job for part in self.parts]
        sizes = [np.full(len(part.rows), job.machine.memory_bytes) for part, job in zip(self.parts, jobs, strict=True)]
        return np.concatenate(sizes)


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


@dataclass(frozen=True, slots=True, eq=False)
class StageCosts:
    """What each stage of a layout takes of one micro-batch, and holds."""

    pass_S3: Floats  # seconds of forward, gradients of inputs and of weights
    resident_S2: Floats  # elements, dense and of experts
    activations_S: Floats  # bytes in flight on the device
    moved_S: Floats  # those on the host
    joined_S: Floats  # seconds saved where a forward pass runs beside a backward pass

    def by_rank(self, choice: PlanChoice) -> tuple[Floats, Floats]:
        """The passes [R, 3] and the elements [R, 2] of each rank of the pipeline."""
        stage_RC = choice.pipe.stage_RC
        return self.pass_S3[stage_RC].sum(axis=1) / copies_of(choice.schedule), self.resident_S2[stage_RC].sum(axis=1)


def stage_costs(choice: PlanChoice, counts_S: Sequence[int]) -> StageCosts:
    """What the stages of a layout take and hold."""
    resident_S2 = _resident(choice, counts_S)
    pass_S3, activations_S, moved_S = _stages(choice, counts_S)
    batches = choice.num_micro_batches
    pass_S3 = with_exchange(choice.table.job, choice.sharing, choice.zero_stage, batches, pass_S3, resident_S2)
    joins = choice.schedule.startswith("dualpipe")
    joined_S = _joined(choice, counts_S, pass_S3) if joins else np.zeros(len(pass_S3))
    return StageCosts(pass_S3, resident_S2, activations_S, moved_S, joined_S)


def evaluate(choice: PlanChoice, counts_S: Sequence[int]) -> Evaluation:
    """Step time and memory of a layout."""
    message_B = np.full(max(len(counts_S) - 1, 0), handover(choice)[0])
    return evaluate_stages(choice, counts_S, stage_costs(choice, counts_S), message_B)


def evaluate_stages(
    choice: PlanChoice,
    counts_S: Sequence[int],
    stages: StageCosts,
    message_B: Floats,
    across: tuple[PoolShare, ...] = (),
) -> Evaluation:
    """Step time and memory of stages that take and hold this, with hand-overs between each and the next of so many
    seconds; `across`: the pools that share the ranks, where there are several."""
    pipeline_s, busy_R = simulated(choice, stages, message_B, handover(choice)[1])
    pass_R3, resident_R2 = stages.by_rank(choice)
    shares = [(share.choice, list(share.rows)) for share in across] or [(choice, list(range(len(busy_R))))]
    return Evaluation(
        choice,
        tuple(counts_S),
        pipeline_s,
        exchange_s=max(shown_s(own, resident_R2[rows], pass_R3[rows]) for own, rows in shares),
        optimizer_s=max(own.sharing.most("optimizer_s", resident_R2[rows]) for own, rows in shares),
        pass_R3=pass_R3,
        busy_R=busy_R,
        peak_R=choice.pipe.peak_R,
        memory=memory_of(choice, stages),
        across=across,
    )


def with_fewest_moved(choice: PlanChoice, counts_S: Sequence[int]) -> PlanChoice:
    """The choice with as few layers' activations on the host as fit beside it; as it is where stages or lengths are
    several.

    Megatron-Core has one number of layers, the first of a model without a pipeline
    (megatron/core/model_parallel_config.py, `cpu_offloading_num_layers`).
    """
    offloaded = "activations" in choice.offload and len(counts_S) == 1 and not choice.table.job.options.lengths
    low, high = 1, sum(counts_S) - 1
    if not offloaded or high <= low:
        return choice
    while low < high:
        middle = (low + high) // 2
        if fits_devices(evaluate(replace(choice, moved_layers=middle), counts_S)):
            high = middle
        else:
            low = middle + 1
    return replace(choice, moved_layers=low)


def fits(evaluation: Evaluation) -> bool:
    """Whether every rank leaves the room that is to stay free, on its device and on its host."""
    return fits_devices(evaluation) and fits_hosts(evaluation)


def fits_devices(evaluation: Evaluation) -> bool:
    """Whether every rank leaves the room of its device that is to stay free."""
    return bool((evaluation.memory.total_R <= evaluation.capacity_R * (1.0 + ROUNDING)).all())


def fits_hosts(evaluation: Evaluation) -> bool:
    """Whether every rank's host has room for what lies there."""
    return bool((evaluation.memory.host_R <= evaluation.host_capacity_R * (1.0 + ROUNDING)).all())


def _kinds_of_stages(job: TrainJob, counts_S: Sequence[int]) -> Floats:
    """How many layers of each kind a stage has [S, K]."""
    kinds = np.array(job.kind_of_layer)
    edges = np.concatenate([[0], np.cumsum(counts_S)])
    one_LK = np.concatenate([np.zeros((1, len(job.kinds))), np.cumsum(np.eye(len(job.kinds))[kinds], axis=0)])
    return np.asarray(one_LK[edges[1:]] - one_LK[edges[:-1]])


def _stages(choice: PlanChoice, counts_S: Sequence[int]) -> tuple[Floats, Floats, Floats]:
    """Seconds of the three passes of every stage [S, 3], and its bytes of one micro-batch in flight [S]: those on the
    device, and those on the host."""
    table, job = choice.table, choice.table.job
    count_SK = _kinds_of_stages(job, counts_S)
    pass_S3 = count_SK @ table.pass_K3
    bytes_S = count_SK @ np.array(choice.mode.in_flight_bytes)
    again_SK = count_SK
    if choice.full_layers:
        first_SK = _first_layers(job, counts_S, choice.full_layers)
        pass_S3[:, 1] += first_SK @ np.array([cost.forward_s for cost in table.layers])
        bytes_S -= first_SK @ np.array([kept.total_bytes - kept.input_bytes for kept in table.activations])
    else:
        pass_S3[:, 1] += again_SK @ np.array(choice.mode.extra_s)
    pass_S3[0] += table.first.pass_s
    pass_S3[-1] += table.last.pass_s
    moved_S = np.zeros(len(counts_S))
    share = choice.config.moved_share if "activations" in choice.offload else 0.0
    if share:
        moved_S = share * bytes_S
        pass_S3[:, :2] = np.maximum(pass_S3[:, :2], (moved_S / job.machine.host_bytes_per_s)[:, None])
        bytes_S = (1.0 - share) * bytes_S
    bytes_S[0] += table.first.in_flight_bytes
    bytes_S[-1] += table.last.in_flight_bytes
    return pass_S3, bytes_S, moved_S


def _first_layers(job: TrainJob, counts_S: Sequence[int], most: int) -> Floats:
    """Of the first `most` layers of each stage, how many are of each kind [S, K]."""
    count_SK = np.zeros((len(counts_S), len(job.kinds)))
    first = 0
    for stage, count in enumerate(counts_S):
        for layer in range(first, first + min(count, most)):
            count_SK[stage, job.kind_of_layer[layer]] += 1.0
        first += count
    return count_SK


def _resident(choice: PlanChoice, counts_S: Sequence[int]) -> Floats:
    """Elements of every stage [S, 2]."""
    table = choice.table
    resident_S2 = _kinds_of_stages(table.job, counts_S) @ table.resident_K2
    resident_S2[0] += table.first.resident_2
    resident_S2[-1] += table.last.resident_2
    if len(resident_S2) == 1:
        resident_S2[0] -= table.tied_2
    return np.asarray(resident_S2)


def with_exchange(
    job: TrainJob, sharing: Sharing, zero_stage: int, num_micro_batches: int, pass_S3: Floats, resident_S2: Floats
) -> Floats:
    """Passes of stages that hold so many elements with what is exchanged every micro-batch beside them."""
    if not each_micro_batch(zero_stage, num_micro_batches):
        return pass_S3
    switches = ExchangeSwitches(job.options.overlap, zero_stage, num_micro_batches, job.rates)
    gather_S, reduce_S = (sharing.of(name, resident_S2) for name in ("gather_s", "reduce_s"))
    return zero_overlap.with_exchange(switches, pass_S3, gather_S, reduce_S)


def simulated(choice: PlanChoice, stages: StageCosts, message_B: Floats, exposed: float) -> tuple[float, Floats]:
    """Seconds of all micro-batches, and of each rank at work.

    message_B: seconds of a hand-over between a stage and the next; ranks spend the share `exposed` of it on each pass.
    """
    joined_S = stages.joined_S if choice.schedule.startswith("dualpipe") else None
    ranks, batches = choice.pipe.stages_of_rank, choice.num_micro_batches
    return pipeline_time(choice.schedule, choice.vpp, batches, ranks, stages.pass_S3, message_B, exposed, joined_S)


def handover(choice: PlanChoice) -> tuple[float, float]:
    """Seconds of one hand-over between stages, and the share of it that a rank spends on each pass."""
    if choice.pp == 1:
        return 0.0, 0.0
    job = choice.table.job
    share = exposed_share(job.rates, job.options.overlap, choice.vpp)
    return choice.table.message_s(choice.pp, choice.dp), share


def _joined(choice: PlanChoice, counts_S: Sequence[int], pass_S3: Floats) -> Floats:
    """Seconds saved where a forward pass of each stage runs beside a backward pass [S]."""
    table, job = choice.table, choice.table.job
    exchange_S = _kinds_of_stages(job, counts_S) @ table.exchange_K
    return joined_seconds(pass_S3, exchange_S, job.machine.num_multiprocessors)


def shown_s(choice: PlanChoice, resident_R2: Floats, pass_R3: Floats) -> float:
    """What shows of the exchange between data-parallel ranks once a step, beside the slowest rank's passes."""
    slowest_13 = pass_R3[[pass_R3.sum(axis=1).argmax()]]
    gather_1, reduce_1 = (np.array([choice.sharing.most(name, resident_R2)]) for name in ("gather_s", "reduce_s"))
    shown_1 = shown(choice.table.job, choice.zero_stage, choice.num_micro_batches, gather_1, reduce_1, slowest_13)
    return float(shown_1[0])


def shown(
    job: TrainJob, zero_stage: int, num_micro_batches: int, gather_X: Floats, reduce_X: Floats, pass_X3: Floats
) -> Floats:
    """What shows of gathers and reductions once a step, each beside its passes [X]."""
    switches = ExchangeSwitches(job.options.overlap, zero_stage, num_micro_batches, job.rates)
    return zero_overlap.shown(switches, gather_X, reduce_X, pass_X3)


def memory_of(choice: PlanChoice, stages: StageCosts) -> RankBytes:
    """Bytes of each rank at its fullest moment."""
    resident_R2 = stages.by_rank(choice)[1]
    names = ("weights_bytes", "gradients_bytes", "optimizer_bytes")
    weights_R, gradients_R, optimizer_R = (choice.sharing.of(name, resident_R2) for name in names)
    frozen_S = np.zeros(choice.pipe.num_stages)
    frozen_S[0] += choice.table.first.frozen_bytes
    frozen_S[-1] += choice.table.last.frozen_bytes
    weights_R = weights_R + frozen_S[choice.pipe.stage_RC].sum(axis=1)
    sizes = (choice.schedule, choice.pp, choice.vpp, choice.num_micro_batches)
    last_R = np.array(choice.pipe.unit_of_rank) == choice.pipe.last
    workspace_R = choice.table.job.rates.get("memory.context_bytes") + working_by(last_R, work_of(choice))
    kept_R, moved_R = (in_flight_bytes(*sizes, own_S) for own_S in (stages.activations_S, stages.moved_S))
    host_R = choice.sharing.of("host_bytes", resident_R2) + moved_R
    return RankBytes(weights_R, gradients_R, optimizer_R, kept_R, workspace_R, host_R)


def working_by(last_X: Bools, work: WorkBytes) -> Floats:
    """What is at work on each of these, of which some hold the loss [X]."""
    return np.where(last_X, work.on_last_bytes, work.layer_bytes)
