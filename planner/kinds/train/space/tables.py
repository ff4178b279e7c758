"""Cost tables: seconds and bytes of one micro-batch by kind of layer and parallel shape, cached.

Shape suffixes: K kind of layer.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.recompute import BY_OPERATOR
from planner.costs.training.activations import LayerActivations, layer_activations
from planner.costs.training.config import RecomputeConfig, Shard, TrainingConfig
from planner.costs.training.layer_costs import LayerCost, end_cost, layer_cost
from planner.costs.training.memory import WorkBytes, again_bytes, gathered_kv_bytes, work_bytes
from planner.costs.training.modalities.networks import NetworkCost
from planner.costs.training.parameters import (
    Parameters,
    embedding_parameters,
    host_state_bytes,
    layer_parameters,
    lora_state_bytes,
    mtp_parameters,
    output_parameters,
    state_bytes,
)
from planner.costs.training.stages import Part
from planner.costs.training.step import PASSES, data_parallel, message_seconds
from planner.kinds.train.figures import ROUNDING
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.states import ShardShape
from planner.models.architecture import Layer, MoeFfn


@dataclass(frozen=True, slots=True)
class ModelEnd:
    """Seconds of the three passes, and elements, of what stands at one end of the model."""

    pass_s: tuple[float, float, float]
    resident_2: Floats
    in_flight_bytes: float = 0.0  # of a micro-batch, of networks that run there
    frozen_bytes: float = 0.0  # of their weights that do not learn

    def beside(self, networks: Iterable[NetworkCost]) -> "ModelEnd":
        """The end with networks that run on its stage."""
        costs = tuple(networks)
        forward_s, input_s, weight_s = np.array([self.pass_s, *(cost.pass_s for cost in costs)]).sum(axis=0).tolist()
        learnt = Parameters(sum(cost.trained_elements for cost in costs))
        return ModelEnd(
            (forward_s, input_s, weight_s),
            self.resident_2 + elements(learnt),
            sum(cost.in_flight_bytes for cost in costs),
            sum(cost.frozen_bytes for cost in costs),
        )


@dataclass(frozen=True, slots=True)
class RecomputeMode:
    """A choice of what is computed again, with what it adds to a layer of each kind and what it leaves of its bytes."""

    recompute: RecomputeConfig  # `full` with num_layers 0: every layer
    extra_s: tuple[float, ...]  # [K] of a layer computed again
    in_flight_bytes: tuple[float, ...]  # [K] of such a layer


@dataclass(frozen=True)
class CostTable:
    """Costs of one shape."""

    job: TrainJob
    shape: ShardShape

    @cached_property
    def config(self) -> TrainingConfig:
        """A configuration of this shape; degrees that costs of layers do not hang on are 1."""
        job, shape, options = self.job, self.shape, self.job.options
        return TrainingConfig(
            arch=job.arch,
            machine=job.machine,
            sequence_tokens=options.sequence_tokens,
            global_batch=options.global_batch,
            micro_batch=shape.micro_batch,
            tp=shape.tp,
            cp=shape.cp,
            context_parallel=shape.context,
            ep=shape.ep,
            etp=shape.etp,
            precision=options.precision,
            task=options.task,
            optimizer=options.optimizer,
            expert_load=options.expert_load,
            document_tokens=options.document_tokens,
            in_network=options.in_network_reduction,
            step_spread=options.step_spread,
            loading=options.arriving,
            overlap=frozenset(options.overlap),
            lora_rank=options.lora_rank,
            framework=job.framework,
        )

    @cached_property
    def dense_shard(self) -> Shard:
        """The key of what has no experts: shapes that differ in their experts alone share it."""
        return self.config.dense_shard

    @cached_property
    def layers(self) -> tuple[LayerCost, ...]:
        """[K]"""
        job, whole = self.job, self.config.shard
        return tuple(
            layer_cost(job.machine, layer, whole if isinstance(layer.ffn, MoeFfn) else self.dense_shard, job.rates)
            for layer in job.kinds
        )

    @cached_property
    def pass_K3(self) -> Floats:
        """Seconds of forward, gradients of inputs and of weights of a layer of each kind."""
        return np.array([[getattr(cost, name) for name in PASSES] for cost in self.layers])

    @cached_property
    def exchange_K(self) -> Floats:
        """Seconds of the exchange between experts contained in the passes of a layer of each kind."""
        return np.array([cost.exchange_s.get("ep", 0.0) for cost in self.layers])

    def end(self, end: Part, layer: Layer | None = None) -> LayerCost:
        """An end of the model."""
        job, shard = self.job, self.config.shard if layer else self.dense_shard
        return end_cost(end, job.machine, shard, job.arch.vocab_size, job.rates, layer)

    def _end_s(self, end: Part, layer: Layer | None = None) -> tuple[float, float, float]:
        """The passes of an end of the model."""
        cost = self.end(end, layer)
        return (cost.forward_s, cost.backward_input_s, cost.backward_weight_s)

    @cached_property
    def table_shares(self) -> tuple[float, float]:
        """Of the passes of the whole model, what rests on tables that we measured, and on those of others."""
        heads = [self.end("mtp", layer) for layer in self.job.arch.mtp_layers]
        ends = [(1, cost) for cost in (self.end("embedding"), self.end("loss"), *heads)]
        parts = [*zip(self.job.count_of_kind, self.layers, strict=True), *ends]
        total_s = sum(count * cost.total_s for count, cost in parts)
        sums = [sum(count * getattr(cost, name) for count, cost in parts) for name in ("measured_s", "imported_s")]
        measured, imported = (min(seconds / total_s, 1.0) for seconds in sums)
        return measured, imported

    @cached_property
    def first(self) -> ModelEnd:
        """The embedding, and towers that run on its stage."""
        end = ModelEnd(self._end_s("embedding"), elements(embedding_parameters(self.config)))
        return end if self.networks_apart or not self.towers else end.beside(self.towers)

    @property
    def networks_apart(self) -> bool:
        """Whether towers and generators run on GPUs of their own."""
        return self.job.networks.apart

    @cached_property
    def towers(self) -> tuple[NetworkCost, ...]:
        """The towers of a micro-batch on the ranks of the first stage."""
        return self.job.networks.tower_costs(self.job.machine, self.dense_shard, self.job.rates)

    @cached_property
    def generators(self) -> tuple[NetworkCost, ...]:
        """The generators of a micro-batch on the ranks of the last stage."""
        return self.job.networks.generator_costs(self.job.machine, self.dense_shard, self.job.rates)

    @cached_property
    def loss_s(self) -> tuple[float, float, float]:
        """The passes of the loss without further heads."""
        return self._end_s("loss")

    @cached_property
    def last(self) -> ModelEnd:
        """The loss, heads of multi-token prediction, and generators that run on its stage."""
        heads = [self._end_s("mtp", layer) for layer in self.job.arch.mtp_layers]
        forward_s, input_s, weight_s = np.array([self.loss_s, *heads]).sum(axis=0).tolist()
        parameters = output_parameters(replace(self.config, pp=2)) + mtp_parameters(self.config)
        end = ModelEnd((forward_s, input_s, weight_s), elements(parameters))
        return end if self.networks_apart or not self.generators else end.beside(self.generators)

    @cached_property
    def tied_2(self) -> Floats:
        """Elements that the two ends share where one rank holds both."""
        return elements(output_parameters(replace(self.config, pp=2))) - elements(output_parameters(self.config))

    @cached_property
    def activations(self) -> tuple[LayerActivations, ...]:
        """Bytes of a micro-batch in a layer of each kind."""
        return tuple(layer_activations(layer, self.config.shard) for layer in self.job.kinds)

    @cached_property
    def gathered_kv_bytes(self) -> float:
        """Keys and values that a layer gathers over context-parallel ranks while it runs."""
        return max(gathered_kv_bytes(layer, self.dense_shard) for layer in self.job.kinds)

    @cached_property
    def resident_K2(self) -> Floats:
        """Elements of a layer of each kind on one rank."""
        shape, hidden = self.shape, self.job.arch.hidden_size
        parameters = [layer_parameters(layer, hidden, shape.tp, shape.ep, shape.etp) for layer in self.job.kinds]
        return np.array([elements(parameter) for parameter in parameters])

    @cached_property
    def model_2(self) -> Floats:
        """Elements of the whole model on the ranks of one pipeline."""
        layers_2 = np.array(self.job.count_of_kind) @ self.resident_K2
        return np.asarray(layers_2 + self.first.resident_2 + self.last.resident_2 - self.tied_2)

    @cached_property
    def _work(self) -> dict[tuple[int, RecomputeConfig, bool], WorkBytes]:
        """What is at work, found so far."""
        return {}

    def work(self, zero_stage: int, recompute: RecomputeConfig, offloaded: bool = False) -> WorkBytes:
        """What is at work on a rank: by what of a layer is exchanged whole, what is computed again, and whether
        activations are offloaded."""
        key = (max(zero_stage, 1), recompute, offloaded)
        if key not in self._work:
            offload = frozenset({"activations"}) if offloaded else frozenset()
            own = work_bytes(replace(self.config, zero_stage=zero_stage, recompute=recompute, offload=offload))
            layer, loss = [own.layer_bytes], [own.loss_bytes]
            if not self.networks_apart:
                layer += [cost.work_bytes for cost in self.towers]
                loss += [cost.work_bytes for cost in self.generators]
            self._work[key] = WorkBytes(max(layer), max(loss))
        return self._work[key]

    @cached_property
    def layers_3(self) -> Floats:
        """Seconds of the passes of all layers of the model, nothing computed again."""
        return np.asarray(np.array(self.job.count_of_kind) @ self.pass_K3)

    @cached_property
    def messages_s(self) -> dict[tuple[bool, int], float]:
        """Hand-overs between stages found so far, by whether there are several stages and dp."""
        return {}

    def message_s(self, pp: int, dp: int) -> float:
        """Seconds of one hand-over between stages."""
        key = (pp > 1, dp)
        if key not in self.messages_s:
            self.messages_s[key] = message_seconds(replace(self.config, pp=pp, dp=dp), self.job.rates)
        return self.messages_s[key]

    @cached_property
    def modes(self) -> tuple[RecomputeMode, ...]:
        """Ways to recompute that no other beats in both time and bytes, without those of some layers; fastest first."""
        allowed = self.job.recomputations
        counts = np.array(self.job.count_of_kind)
        modes = [mode for mode in self._all_modes() if mode.recompute.granularity in allowed]
        modes.sort(key=lambda mode: (float(counts @ mode.extra_s), float(counts @ mode.in_flight_bytes)))
        best: list[RecomputeMode] = []
        for mode in modes:
            if not best or counts @ mode.in_flight_bytes < counts @ best[-1].in_flight_bytes * (1.0 - ROUNDING):
                best.append(mode)
        return tuple(best)

    def mode(self, recompute: RecomputeConfig) -> RecomputeMode:
        """What a choice of what is computed again adds to each kind of layer, and leaves of its bytes."""
        kinds = range(len(self.job.kinds))
        if recompute.granularity == "full":
            extra = [self.layers[k].forward_s for k in kinds]
            kept = [self.activations[k].input_bytes for k in kinds]
        else:
            extra = [self.layers[k].again_s(recompute.modules) for k in kinds]
            kept = [self.activations[k].without(recompute.modules) for k in kinds]
        return RecomputeMode(recompute, tuple(extra), tuple(kept))

    def _all_modes(self) -> list[RecomputeMode]:
        if BY_OPERATOR in self.job.modules_again:
            policy = self.mode(RecomputeConfig("selective", (BY_OPERATOR,)))
            return [self.mode(RecomputeConfig()), policy, self.mode(RecomputeConfig("full"))]
        names = [name for name in self.job.modules_again if any(name in kept.of_module for kept in self.activations)]
        names = [name for name in names if any(cost.forward_of_module.get(name, 0.0) > 0.0 for cost in self.layers)]
        names = [name for name in names if not (self.job.cuda_graphs and name == "moe")]  # its router is captured
        some = [self.mode(RecomputeConfig("selective", chosen)) for chosen in self.job.sets_again(names)]
        return [self.mode(RecomputeConfig()), *some, self.mode(RecomputeConfig("full"))]


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """Every way to recompute of one shape and number of stages, fastest first [M]."""

    modes: tuple[
        tuple[RecomputeMode, int], ...
    ]  # with the layers of each stage that are computed again whole, beside the mode
    in_flight_MK: Floats  # bytes of a micro-batch in a layer of each kind
    whole_M: Floats
    again_M: Floats  # bytes of a layer at work, beside what is at work where nothing is computed again


def ways_of(table: CostTable, stages: int, stages_of_rank: int) -> Ways:
    """Modes for all layers, and `full` for some of the layers of each stage."""
    job = table.job
    allowed = job.recomputations
    counts = np.array(job.count_of_kind)
    ranks = stages / stages_of_rank
    asked = job.options.search.recompute_layers
    able = "full" in allowed and (job.engine.some_layers_again or not job.strict)
    some = _some_layers(asked, job.arch.num_layers // stages) if able else ()
    fixed = asked is not None and bool(some)
    modes = [mode for mode in table.modes if not (fixed and mode.recompute.granularity == "full")]
    ways = [(float(counts @ mode.extra_s) / ranks, mode, 0) for mode in modes]
    none = table.mode(RecomputeConfig())
    each = float(table.pass_K3[:, 0].max()) * stages_of_rank
    ways += [(each * whole, none, whole) for whole in some]
    ways.sort(key=lambda row: (row[0], row[2]))
    full = again_bytes(table.activations, RecomputeConfig("full"), offloaded=False)
    again = [
        full if whole else again_bytes(table.activations, mode.recompute, offloaded=False) for _, mode, whole in ways
    ]
    return Ways(
        tuple((mode, whole) for _, mode, whole in ways),
        np.array([mode.in_flight_bytes for _, mode, _ in ways]),
        np.array([float(whole) for _, _, whole in ways]),
        np.array(again),
    )


def _some_layers(asked: int | Literal["all"] | None, layers: int) -> Sequence[int]:
    """Numbers of layers of a stage of so many, fewer than all, that may be computed again whole."""
    if asked is None:
        return range(1, layers)
    return (asked,) if asked != "all" and asked < layers else ()


SHARED = ("reduce_s", "gather_s", "optimizer_s", "weights_bytes", "gradients_bytes", "optimizer_bytes", "host_bytes")
ON_DEVICE = slice(3, 6)
"""Of them, bytes of the device."""


@dataclass(frozen=True)
class Sharing:
    """What a rank pays and keeps for each dense element and for each element of experts it holds: rows of SHARED."""

    rate_F2: Floats

    @cached_property
    def state_2(self) -> Floats:
        """Bytes of an element on the device between two steps."""
        return np.asarray(self.rate_F2[ON_DEVICE].sum(axis=0))

    def of(self, name: str, resident_2: Floats) -> Floats:
        """The figure called `name` for so many elements [..., 2]."""
        return np.asarray(resident_2 @ self.rate_F2[SHARED.index(name)])

    def most(self, name: str, resident_R2: Floats) -> float:
        """The largest such figure of several ranks."""
        return float(self.of(name, resident_R2).max())


UNIT = 1e9  # elements; figures are linear in them


def sharing_of(table: CostTable, dp: int, zero_stage: int, offload: frozenset[str], shards: int = 0) -> Sharing:
    """Per element, for these data-parallel ranks, `shards` of which share out the sharded states; 0 = all."""
    config = replace(table.config, dp=dp, zero_stage=zero_stage, zero_ranks=shards, offload=offload)
    rows = []
    for unit in (Parameters(UNIT, 0.0), Parameters(0.0, UNIT)):
        exchange = data_parallel(config, unit, table.job.rates)
        state = state_bytes(config, unit) + lora_state_bytes(config, unit)
        seconds = (exchange.reduce_s, exchange.gather_s, exchange.optimizer_s)
        kept = (state.weights_bytes, state.gradients_bytes, state.optimizer_bytes, host_state_bytes(config, unit))
        rows.append((*seconds, *kept))
    return Sharing(np.array(rows).T / UNIT)


def elements(parameters: Parameters) -> Floats:
    """Dense elements and those of experts [2]."""
    return np.array([parameters.dense, parameters.expert])
