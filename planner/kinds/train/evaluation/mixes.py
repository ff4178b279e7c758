"""Evaluates plans with layer-wise strategies (Galvatron): tp, dp, ZeRO stage and recomputation layer by layer.

Every layer splits the ranks of its stage anew, tp x cp x dp of them with one cp for all. What data-parallel ranks
exchange for a layer runs beside the passes of that layer, where a plan with one strategy has those of the whole stage:
pricing never favours a mix. The embedding runs with the first layer and the loss with the last, under their strategies;
a tied matrix is resident at both ends. Neighbouring layers of different tp hand activations over by an all-to-all,
forwards and backwards, for every micro-batch.

Shape suffixes: S stage, one a rank of the pipeline; L layer; X any row of layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.costs.training.config import ContextParallel, RecomputeConfig
from planner.costs.training.layers.sizes import scatter
from planner.costs.training.memory import RankBytes, WorkBytes
from planner.kinds.train.evaluation.choice import PlanChoice, Strategy, handover
from planner.kinds.train.evaluation.evaluate import shown, simulated
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.evaluation.stages import StageCosts, with_exchange
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.states import ShardShape
from planner.kinds.train.space.tables import ON_DEVICE, CostTable, RecomputeMode, Sharing, sharing_of

VALUE_BYTES = 2.0


@dataclass(frozen=True)
class LayerwiseSpace:
    """What all strategies of a plan share: its ranks, and the sequences of a micro-batch on all ranks of a stage."""

    job: TrainJob
    pp: int
    cp: int
    context: ContextParallel
    ranks: int  # of a stage
    sequences: int
    tables: dict[ShardShape, CostTable] = field(default_factory=dict)  # kept, also by others

    @property
    def num_micro_batches(self) -> int:
        return self.job.options.global_batch // self.sequences

    def dp(self, tp: int) -> int:
        """Data-parallel ranks beside this tp."""
        return self.ranks // (tp * self.cp)

    def table(self, tp: int) -> CostTable:
        """Costs of layers under this tp."""
        shape = ShardShape(tp, self.cp, 1, 1, self.sequences // self.dp(tp), self.context)
        if shape not in self.tables:
            self.tables[shape] = CostTable(self.job, shape)
        return self.tables[shape]

    def sharing(self, tp: int, zero_stage: int) -> Sharing:
        """What data-parallel ranks exchange and keep."""
        return sharing_of(self.table(tp), self.dp(tp), zero_stage, frozenset())

    def work(self, strategy: Strategy) -> WorkBytes:
        """What is at work where layers run like this."""
        return self.table(strategy.tp).work(strategy.zero_stage, strategy.recompute)

    def change_s(self, tp: int, other: int) -> float:
        """Seconds for activations of a micro-batch to change between two tp, one way."""
        narrow, wide = sorted((tp, other))
        if narrow == wide:
            return 0.0
        job, rates, generation = self.job, self.job.rates, self.job.machine.generation
        tokens = self.sequences * job.options.sequence_tokens / self.ranks
        kernel = scatter(job.machine, "ep", 0, "", tokens * job.arch.hidden_size * VALUE_BYTES, wide, 1, 1.0)
        moved_s = kernel.inside_s / rates.get("link.ep", generation)
        moved_s += kernel.outside_s / rates.get("fabric.ep", generation)
        return moved_s + rates.get("start.ep")


@dataclass(frozen=True, slots=True, eq=False)
class LayerRows:
    """Layers by kind and by what stands at them of the ends of the model [X]."""

    kind_X: Ints
    first_X: Floats  # 1 with the embedding
    last_X: Floats  # 1 with the loss

    @classmethod
    def of_model(cls, job: TrainJob) -> "LayerRows":
        """All layers in order."""
        first_L, last_L = np.zeros(job.arch.num_layers), np.zeros(job.arch.num_layers)
        first_L[0], last_L[-1] = 1.0, 1.0
        return cls(np.array(job.kind_of_layer), first_L, last_L)

    def at(self, where: Bools | Ints) -> "LayerRows":
        """Some of them."""
        return LayerRows(self.kind_X[where], self.first_X[where], self.last_X[where])


@dataclass(frozen=True, slots=True, eq=False)
class StrategyCosts:
    """What layers cost and hold under one tp and ZeRO stage [X]."""

    pass_X3: Floats  # of a micro-batch, exchanges beside them
    shown_X: Floats  # of exchanges once a step
    optimizer_X: Floats
    state_X3: Floats  # bytes of weights, gradients and optimizer


def strategy_costs(
    space: LayerwiseSpace, tp: int, zero_stage: int, sharing: Sharing, rows: LayerRows, mode: RecomputeMode
) -> StrategyCosts:
    """Layers under one strategy."""
    table, job, batches = space.table(tp), space.job, space.num_micro_batches
    pass_X3 = table.pass_K3[rows.kind_X]
    pass_X3[:, 1] += np.array(mode.extra_s)[rows.kind_X]
    resident_X2 = table.resident_K2[rows.kind_X]
    for here_X, end in ((rows.first_X, table.first), (rows.last_X, table.last)):
        pass_X3 = pass_X3 + here_X[:, None] * np.array(end.pass_s)
        resident_X2 = resident_X2 + here_X[:, None] * end.resident_2
    pass_X3 = with_exchange(job, sharing, zero_stage, batches, pass_X3, resident_X2)
    gather_X, reduce_X = sharing.of("gather_s", resident_X2), sharing.of("reduce_s", resident_X2)
    return StrategyCosts(
        pass_X3,
        shown(job, zero_stage, batches, gather_X, reduce_X, pass_X3),
        sharing.of("optimizer_s", resident_X2),
        resident_X2 @ sharing.rate_F2[ON_DEVICE].T,
    )


def evaluate_mix(space: LayerwiseSpace, counts_S: Sequence[int], strategies: Sequence[Strategy]) -> Evaluation:
    """Step time and memory of layers cut into these stages, each layer under its strategy; 1F1B runs the pipeline."""
    job = space.job
    layers = _all_layers(space, strategies)
    stage_L = np.repeat(np.arange(len(counts_S)), counts_S)
    sum_SL = (stage_L[None, :] == np.arange(len(counts_S))[:, None]).astype(np.float64)
    pass_L3 = layers.priced.pass_X3
    half_L = np.array([0.0, *(space.change_s(a.tp, b.tp) for a, b in pairwise(strategies))])
    pass_L3 = pass_L3 + half_L[:, None] * np.array([1.0, 1.0, 0.0])
    choice = _first_choice(space, strategies[0])
    pass_S3 = sum_SL @ pass_L3
    none_S = np.zeros(len(counts_S))
    stages = StageCosts(pass_S3, np.zeros((len(counts_S), 2)), sum_SL @ layers.in_flight_L, none_S, none_S)
    message_s, exposed = handover(choice)
    pipeline_s, busy_R = simulated(choice, stages, np.full(space.pp - 1, message_s), exposed)
    exchange_s = float((sum_SL @ layers.priced.shown_X).max())
    optimizer_s = float((sum_SL @ layers.priced.optimizer_X).max())
    state_S3 = sum_SL @ layers.priced.state_X3
    peak_R = choice.pipe.peak_R
    work_S = np.array([layers.work_L[stage_L == stage].max() for stage in range(len(counts_S))])
    work_S[-1] = max(work_S[-1], space.work(strategies[-1]).loss_bytes)
    workspace_S = job.rates.get("memory.context_bytes") + work_S
    return Evaluation(
        choice=choice,
        counts_S=tuple(counts_S),
        pipeline_s=pipeline_s,
        exchange_s=exchange_s,
        optimizer_s=optimizer_s,
        pass_R3=pass_S3,
        busy_R=busy_R,
        peak_R=peak_R,
        memory=RankBytes(
            state_S3[:, 0],
            state_S3[:, 1],
            state_S3[:, 2],
            peak_R * stages.activations_S,
            workspace_S,
            none_S,
        ),
        strategies=tuple(strategies),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Layers:
    """All layers of a plan, each under its strategy [L]."""

    priced: StrategyCosts
    in_flight_L: Floats  # bytes of a micro-batch
    work_L: Floats  # bytes while a layer is at work


def _all_layers(space: LayerwiseSpace, strategies: Sequence[Strategy]) -> _Layers:
    rows, count = LayerRows.of_model(space.job), len(strategies)
    costs = StrategyCosts(np.zeros((count, 3)), np.zeros(count), np.zeros(count), np.zeros((count, 3)))
    in_flight_L, work_L = np.zeros(count), np.zeros(count)
    for strategy in dict.fromkeys(strategies):
        here = np.array([other == strategy for other in strategies])
        table = space.table(strategy.tp)
        mode = table.mode(strategy.recompute)
        sharing = space.sharing(strategy.tp, strategy.zero_stage)
        part = strategy_costs(space, strategy.tp, strategy.zero_stage, sharing, rows.at(here), mode)
        for name in StrategyCosts.__slots__:
            getattr(costs, name)[here] = getattr(part, name)
        in_flight_L[here] = np.array(mode.in_flight_bytes)[rows.kind_X[here]]
        work_L[here] = space.work(strategy).layer_bytes
    return _Layers(costs, in_flight_L, work_L)


def _first_choice(space: LayerwiseSpace, first: Strategy) -> PlanChoice:
    """The strategy of the first layer as if all layers had it, without recomputation."""
    table = space.table(first.tp)
    sharing = space.sharing(first.tp, first.zero_stage)
    mode = table.mode(RecomputeConfig())
    return PlanChoice(table, sharing, space.pp, first.dp, "1f1b", 1, first.zero_stage, frozenset(), mode)
