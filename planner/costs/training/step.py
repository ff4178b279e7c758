"""Seconds of one optimizer step: pipeline stages and bubble, data-parallel communication, and the optimizer.

The pipeline is closed formulas of its schedule over the slowest rank and the sum of all ranks (arXiv:2104.04473,
section 2.2; arXiv:2401.10241, table 2; the DualPipe README), exact where ranks are equal. Shapes: N configurations,
K kinds of ranks (equal ranks together).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.costs.training.config import TrainingConfig, layer_runs, stage_layers
from planner.costs.training.layer_costs import LayerCost, Part, end_cost, layer_cost
from planner.costs.training.parameters import Parameters, rank_parameters
from planner.costs.training.rates import Rates, default_rates
from planner.costs.training.volumes import data_parallel_volume, message_volume
from planner.costs.training.zero_overlap import beside, exposed_s
from planner.models.architecture import Layer


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of one micro-batch on one pipeline rank, its vpp stages together; recomputation is in the backward."""

    forward_s: float = 0.0
    backward_input_s: float = 0.0
    backward_weight_s: float = 0.0

    def plus(self, cost: LayerCost, count: float, recompute_s: float = 0.0) -> "StageCost":
        """This and `count` layers more."""
        return StageCost(
            self.forward_s + count * cost.forward_s,
            self.backward_input_s + count * cost.backward_input_s + recompute_s,
            self.backward_weight_s + count * cost.backward_weight_s,
        )

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_input_s + self.backward_weight_s


@dataclass(frozen=True, slots=True)
class OptimizerStepTime:
    """Seconds of one optimizer step and what they are made of."""

    step_s: float
    pipeline_s: float  # all micro-batches, bubbles included
    bubble_s: float
    data_parallel_s: float  # what shows of it
    optimizer_s: float
    stages: tuple[StageCost, ...] = field(repr=False)  # by pipeline rank

    def tokens_per_s_per_gpu(self, config: TrainingConfig) -> float:
        return config.global_batch * config.sequence_tokens / self.step_s / config.num_gpus


def step_time(config: TrainingConfig, rates: Rates | None = None) -> OptimizerStepTime:
    """One optimizer step of this configuration by the closed formulas."""
    known = rates or default_rates()
    stages = tuple(stage_cost(config, rank, known) for rank in range(config.pp))
    exchange = [data_parallel(config, rank_parameters(config, rank), known) for rank in (0, config.pp - 1)]
    parts = StepParts.of([(config, stages, exchange)], known)
    return parts.step_times(known, [stages])[0]


def stage_cost(config: TrainingConfig, rank: int, rates: Rates) -> StageCost:
    """Seconds of one micro-batch on pipeline rank `rank`."""
    machine, shard, vocab = config.machine, config.shard, config.arch.vocab_size
    cost_of_rank = StageCost()
    for part, layer, count, full in rank_contents(config, rank):
        if layer is not None and part == "layer":
            cost = layer_cost(machine, layer, shard, rates)
            cost_of_rank = cost_of_rank.plus(cost, count, recompute_s(config, cost, full, count))
        else:
            cost_of_rank = cost_of_rank.plus(end_cost(part, machine, shard, vocab, rates, layer), count)
    return cost_of_rank


def rank_contents(config: TrainingConfig, rank: int) -> tuple[tuple[Part, Layer | None, float, float], ...]:
    """What pipeline rank `rank` holds: part ("layer", "embedding", "loss", "mtp"), layer, how often, and how many of
    these are recomputed whole."""
    runs = layer_runs(config.arch.layers, stage_layers(config))
    left = config.recompute.num_layers or config.arch.num_layers
    left = left if config.recompute.granularity == "full" else 0
    contents: list[tuple[Part, Layer | None, float, float]] = []
    for stage in range(rank, len(runs), config.pp):
        for layer, count in runs[stage]:
            contents.append(("layer", layer, float(count), float(min(count, max(left, 0)))))
            left -= count
    if rank == 0:
        contents.append(("embedding", None, 1.0, 0.0))
    if rank == (len(runs) - 1) % config.pp:
        contents.append(("loss", None, 1.0, 0.0))
        contents += [("mtp", layer, 1.0, 0.0) for layer in config.arch.mtp_layers]
    return tuple(contents)


def recompute_s(config: TrainingConfig, cost: LayerCost, full_layers: float, layers: float) -> float:
    """Seconds that the backward pass of `layers` layers computes again, `full_layers` of them at full granularity."""
    match config.recompute.granularity:
        case "full":
            return full_layers * cost.forward_s
        case "selective":
            return layers * sum(cost.forward_of_module.get(module, 0.0) for module in config.recompute.modules)
        case _:
            return 0.0


@dataclass(frozen=True, slots=True)
class DataParallel:
    """What data-parallel ranks of one pipeline rank exchange and update in a step, in seconds on its own.

    With ZeRO stages up to 2, once a step; with stage 3, gathers for every pass of every micro-batch.
    """

    reduce_s: float  # gradients scattered (and gathered again without a distributed optimizer)
    gather_s: float  # weights gathered
    optimizer_s: float


def data_parallel(config: TrainingConfig, parameters: Parameters, rates: Rates) -> DataParallel:
    """The exchange of a pipeline rank that holds these parameters."""
    volume, generation = data_parallel_volume(config, parameters), config.machine.generation
    link, fabric = rates.get("link.dp", generation), rates.get("fabric.dp", generation)
    return DataParallel(
        volume.reduce_inside_s / link + volume.reduce_outside_s / fabric,
        volume.gather_inside_s / link + volume.gather_outside_s / fabric,
        volume.update_s / rates.get("move.optimizer", generation) + volume.offload_s,
    )


def message_seconds(config: TrainingConfig, rates: Rates) -> float:
    """One hand-over between neighbouring pipeline stages, each tensor-parallel rank sending its part."""
    if config.pp == 1:
        return 0.0
    inside, outside = message_volume(config)
    generation = config.machine.generation
    moved = inside / rates.get("link.p2p", generation) + outside / rates.get("fabric.p2p", generation)
    return moved + rates.get("start.p2p")


SCHEDULES = ("1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe", "dualpipev")


@dataclass(frozen=True, slots=True, eq=False)
class StepParts:
    """Configurations as columns; every field is [N] or [N, K]."""

    stage_NK3: Floats  # forward, backward-input, backward-weight of each kind of rank
    ranks_NK: Floats  # how many ranks are of each kind; 0 pads
    micro_batches: Floats
    vpp: Floats
    schedule: Ints  # index into SCHEDULES
    message_s: Floats
    p2p_overlapped: Bools
    reduce_s: Floats
    gather_s: Floats
    reduce_overlapped: Bools
    gather_overlapped: Bools
    zero_3: Bools
    optimizer_s: Floats

    @classmethod
    def of(
        cls, rows: Sequence[tuple[TrainingConfig, Sequence[StageCost], Sequence[DataParallel]]], rates: Rates
    ) -> "StepParts":
        """Columns of configurations with the costs of their pipeline ranks and of the exchanges of the end ranks."""
        kinds = [_kinds(stages) for _, stages, _ in rows]
        width = max(len(kinds_of_row) for kinds_of_row in kinds)
        stage = np.zeros((len(rows), width, 3))
        ranks = np.zeros((len(rows), width))
        for row, kinds_of_row in enumerate(kinds):
            for kind, (cost, count) in enumerate(kinds_of_row):
                stage[row, kind] = (cost.forward_s, cost.backward_input_s, cost.backward_weight_s)
                ranks[row, kind] = count
        configs = [config for config, _, _ in rows]
        return cls(
            stage,
            ranks,
            np.array([c.num_micro_batches for c in configs], dtype=np.float64),
            np.array([c.vpp for c in configs], dtype=np.float64),
            np.array([SCHEDULES.index(c.schedule) for c in configs]),
            np.array([message_seconds(c, rates) for c in configs]),
            np.array(["p2p" in c.overlap and c.vpp > 1 for c in configs]),
            np.array([max(d.reduce_s for d in dp) for _, _, dp in rows]),
            np.array([max(d.gather_s for d in dp) for _, _, dp in rows]),
            np.array(["grad_reduce" in c.overlap for c in configs]),
            np.array(["param_gather" in c.overlap for c in configs]),
            np.array([c.zero_stage == 3 for c in configs]),
            np.array([max(d.optimizer_s for d in dp) for _, _, dp in rows]),
        )

    def step_times(self, rates: Rates, stages: Sequence[Sequence[StageCost]]) -> list[OptimizerStepTime]:
        """The steps of all configurations."""
        pipeline, bubble, shown = self.parts(rates)
        total = pipeline + shown + self.optimizer_s + rates.get("step_s")
        columns = np.stack([total, pipeline, bubble, shown, self.optimizer_s], axis=1).tolist()
        return [
            OptimizerStepTime(a, b, c, d, e, tuple(of)) for (a, b, c, d, e), of in zip(columns, stages, strict=True)
        ]

    def parts(self, rates: Rates) -> tuple[Floats, Floats, Floats]:
        """Pipeline, its bubbles, and what shows of the data-parallel exchange [N]."""
        stage_NK3 = np.where(self.zero_3[:, None, None], self._gathered(rates), self.stage_NK3)
        total_NK = stage_NK3.sum(axis=2)
        slowest = total_NK.max(axis=1)
        rest = (total_NK * self.ranks_NK).sum(axis=1) - slowest
        slowest_kind = total_NK.argmax(axis=1)
        forward, backward, weight = (stage_NK3[np.arange(len(slowest_kind)), slowest_kind, p] for p in range(3))
        share = self._bubble_share(forward, backward, weight)
        hops = self.ranks_NK.sum(axis=1) - 1.0
        exposed = np.where(self.p2p_overlapped, rates.get("exposed.p2p.overlapped"), rates.get("exposed.p2p"))
        message = self.message_s * (2.0 * hops + 2.0 * exposed * self.micro_batches * self.vpp)
        bubble = rest * share
        pipeline = self.micro_batches * slowest + bubble + message
        return pipeline, bubble, self._shown(forward, backward + weight, rates)

    def _bubble_share(self, forward: Floats, backward: Floats, weight: Floats) -> Floats:
        """Bubble of the schedule over that of 1F1B, (p - 1)(F + B + W); DualPipe's is (PP/2 - 1)(F&B + B - 3W), where
        B is the whole backward pass and F&B is taken as their sum."""
        whole, ranks = forward + backward + weight, self.ranks_NK.sum(axis=1)
        chunk = np.maximum(2.0 * whole - forward - 3.0 * weight, 0.0) / whole
        shares = [
            np.ones_like(whole),
            1.0 / self.vpp,
            np.maximum(whole - 2.0 * weight, 0.0) / whole,
            np.maximum(whole - 3.0 * weight, 0.0) / whole,
            np.maximum(whole - 3.0 * weight, 0.0) / whole / 2.0,
            chunk * np.maximum(ranks / 2.0 - 1.0, 0.0) / np.maximum(ranks - 1.0, 1.0),
            chunk / 2.0,  # of 2 p stages, each half as long as what a rank holds: (p - 1) chunk / 2
        ]
        return np.choose(self.schedule, shares)

    def _gathered(self, rates: Rates) -> Floats:
        """Stages under ZeRO-3."""
        hidden = self.reduce_overlapped & self.gather_overlapped
        lost_N1 = np.where(hidden, rates.get("contention.zero3"), 1.0)[:, None]
        return beside(self.stage_NK3, self.gather_s[:, None], self.reduce_s[:, None], lost_N1)

    def _shown(self, forward: Floats, backward: Floats, rates: Rates) -> Floats:
        """What shows of reductions beside the last backward, and of gathers beside the first forward."""
        reduced = np.where(self.reduce_overlapped, exposed_s(self.reduce_s, backward, rates), self.reduce_s)
        gathered = np.where(self.gather_overlapped, exposed_s(self.gather_s, forward, rates), self.gather_s)
        return np.where(self.zero_3, 0.0, reduced + gathered)


def _kinds(stages: Sequence[StageCost]) -> list[tuple[StageCost, int]]:
    counts: dict[StageCost, int] = {}
    for cost in stages:
        counts[cost] = counts.get(cost, 0) + 1
    return list(counts.items())
