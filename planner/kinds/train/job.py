"""A resolved training problem as input of the search: model, machine, batch, and fixed decisions."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations
from math import gcd
from typing import get_args

from planner.arrays import Ints
from planner.costs.operators.recompute import BY_OPERATOR
from planner.costs.rates.pricer import open_store, profile_paths
from planner.costs.training.config import Framework, GraphScope, Machine, computed_in, machine_of
from planner.costs.training.eras import captured, windowed
from planner.costs.training.optimizers.host import host_room_bytes
from planner.costs.training.rates import Rates, rates_on
from planner.engines.training import FORWARDING, TRAINING_ENGINES, Dispatcher, TrainingEngine
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.train.code import dropping, summing_in
from planner.kinds.train.engine import (
    CODES,
    dispatcher_of,
    engine_of,
    is_named,
    launched,
    require_dispatcher,
    require_expert_groups,
)
from planner.kinds.train.graphs import graphs_of
from planner.kinds.train.networks import Networks, networks_of
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.search_options import Module, RecomputeName
from planner.models.architecture import Architecture, DenseFfn, LatentAttention, Layer, MoeFfn
from planner.problem.resolve import Resolved
from planner.schema.base import Where


@dataclass(frozen=True)
class TrainJob:
    """Everything that stays as it is while plans are compared."""

    resolved: Resolved
    options: TrainOptions
    key: str  # of the problem's models
    arch: Architecture
    pool: Pool
    machine: Machine
    rates: Rates
    engine: TrainingEngine
    strict: bool  # the problem names the engine: nothing is planned that it does not launch
    framework: Framework
    devices: Ints  # at hand, in the order of ranks
    num_gpus: int
    per_gpu: bool  # the goal counts time by GPU used
    cuda_graphs: tuple[GraphScope, ...] = ()  # what the engine captures as CUDA graphs
    mean_of_lengths: bool = False  # the goal is the mean step over the lengths of inputs, not that of the longest
    networks: Networks = field(default_factory=Networks)  # towers and generators that the samples reach
    roomy_share: float | None = None  # of a device's memory, where plans are searched that leave more room than asked

    @cached_property
    def kinds(self) -> tuple[Layer, ...]:
        """Layers that differ, in order of first appearance."""
        return tuple(layer for layer, _ in self.arch.layer_groups())

    @cached_property
    def kind_of_layer(self) -> tuple[int, ...]:
        """The kind of each layer of the model."""
        return tuple(self.kinds.index(layer) for layer in self.arch.layers)

    @cached_property
    def count_of_kind(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return tuple(self.kind_of_layer.count(kind) for kind in range(len(self.kinds)))

    @cached_property
    def num_experts(self) -> int:
        """Of the layers that have experts, 0 where none has; of several numbers their greatest common divisor."""

        return gcd(*(layer.ffn.num_experts for layer in self.kinds if isinstance(layer.ffn, MoeFfn)))

    @property
    def mean_tokens(self) -> float:
        """Of a sequence of the batch that the goal is about."""
        lengths, longest = self.options.lengths, float(self.options.sequence_tokens)
        if not self.mean_of_lengths:
            return longest
        return sum(length.tokens * length.share for length in lengths) / sum(length.share for length in lengths)

    @property
    def recomputations(self) -> tuple[RecomputeName, ...]:
        """What passes may compute again; whole layers not where they are captured as graphs or hide exchanges."""
        allowed = self.options.search.recompute or get_args(RecomputeName)
        in_parts = bool(self.cuda_graphs) or self.hides_experts
        return tuple(name for name in allowed if not (in_parts and name == "full"))

    @property
    def modules_again(self) -> tuple[Module, ...]:
        """What `selective` may compute again: modules, or all that an engine's policy by operator does not save."""
        by_operator = self.strict and self.engine.again_by_operator
        return tuple(name for name in get_args(Module) if (name == BY_OPERATOR) == by_operator)

    def sets_again(self, able: Sequence[str]) -> list[tuple[str, ...]]:
        """Sets of these modules that `selective` may compute again: the one that is asked for, or any."""
        asked = self.options.search.recompute_modules
        if asked is not None:
            chosen = tuple(name for name in able if name in asked)
            return [chosen] if chosen else []
        return [chosen for size in range(1, len(able) + 1) for chosen in combinations(able, size)]

    @property
    def hides_experts(self) -> bool:
        """Whether what experts exchange runs beside the passes of other micro-batches, as the named engine has it:
        pipelines interleave, and no layer is computed again whole (megatron/core/transformer/transformer_config.py)."""
        asserted = self.strict and self.engine.strict_overlaps
        return asserted and bool(self.num_experts) and "ep_comm" in self.options.overlap

    @property
    def dispatcher(self) -> Dispatcher | None:
        """What sends tokens to their experts; None where the model has none."""
        return dispatcher_of(self.engine, self.pool, self.options) if self.num_experts else None

    @property
    def usable_share(self) -> float:
        """Of a device's memory, that a plan may be chosen to fill; more would fit, with less room for fragmentation."""
        return self.options.usable_share if self.roomy_share is None else self.roomy_share

    @property
    def capacity_bytes(self) -> float:
        """Of one GPU, that a plan may be chosen to fill."""
        return self.machine.memory_bytes * self.usable_share

    @property
    def host_bytes(self) -> float:
        """Of host memory, that the ranks of one GPU may hold; infinite where it is not known."""
        return host_room_bytes(self.machine.node)

    @property
    def room_bytes(self) -> float:
        """Of these, what driver and communication library leave for tensors."""
        return self.capacity_bytes - self.rates.get("memory.context_bytes")


def job_of(resolved: Resolved) -> TrainJob:
    """The job of a problem with one pool; raises PlannerError for what no plan of this kind can be made for."""
    jobs = jobs_of(resolved)
    if len(resolved.pools) != 1:
        raise PlannerError(
            f"{len(resolved.pools)} pools, where one is meant",
            where=resolved.where(("cluster", "pools")),
            hint="keep one of them",
        )
    return jobs[0]


def jobs_of(resolved: Resolved) -> tuple[TrainJob, ...]:
    """The job of a problem on each of its pools alone that computes in the precision asked for.

    Raises PlannerError for what no plan of this kind can be made for.
    """
    problem, where = resolved.problem, resolved.where
    options = TrainOptions.model_validate(problem.options)
    if len(problem.models) != 1:
        raise PlannerError(f"{len(problem.models)} models", where=where(("models",)), hint="train one model")
    goal = problem.objective
    if goal.minimize != "step_time" and goal.maximize != "tokens_per_s_per_gpu":
        raise PlannerError(
            "training has another goal",
            where=where(("objective",)),
            hint="write `minimize: step_time` or `maximize: tokens_per_s_per_gpu`",
        )
    if options.optimizer == "sgd":
        raise PlannerError(
            "the state and the step of `sgd` have no cost here",
            where=where(("options", "optimizer")),
            hint="write `optimizer: adamw`, whose plans need more memory than those of `sgd`",
        )
    (key,) = resolved.models
    engine = engine_of(resolved, options)
    options = launched(options) if is_named(problem) else options
    options = _narrowed(_consistent(options, resolved.models[key], where))
    asked = _of_one_pool(options)
    if asked and len(resolved.pools) > 1 and options.search.pools != ("one",):
        place, hint = where(("options", asked)), "write `search: {pools: one}`, or keep one pool"
        raise PlannerError(f"{asked.replace('_', ' ')} on several pools", where=place, hint=hint)
    resolved.require_priceable(key, trained=not options.samples)
    networks = networks_of(options, resolved.models[key], where)
    able = [pool for pool in resolved.pools if options.precision in computed_in(pool.node.accelerator)]
    if not able:
        raise _no_precision(options, resolved.pools, where(("options", "precision")))
    if len(able) == 1 and "one" not in options.search.pools:
        place, hint = where(("options", "search", "pools")), "leave `search.pools` away"
        raise PlannerError("one pool cannot be joined with others", where=place, hint=hint)
    _require_dispatchers(resolved, options, engine, able)
    if len(able) > 1 and options.samples and options.search.pools != ("one",):
        place, hint = where(("options", "samples")), "write `search: {pools: one}`, or keep one pool"
        raise PlannerError("`samples` with several pools", where=place, hint=hint)
    place = where(("options", "cuda_graphs"))
    graphs = graphs_of(engine, options, resolved.models[key], able, named=is_named(problem), where=place)
    if len(able) == 1:
        only = replace(_job(resolved, options, key, able[0], engine, graphs), networks=networks)
        return (replace(only, mean_of_lengths=bool(options.lengths)),)
    return tuple(replace(_job(resolved, options, key, pool, engine, graphs), networks=networks) for pool in able)


def _require_dispatchers(
    resolved: Resolved, options: TrainOptions, engine: TrainingEngine, pools: Sequence[Pool]
) -> None:
    """Raises PlannerError where what sends tokens does not run on a pool, or joins no group that is asked for."""
    where = resolved.where
    sparse = any(isinstance(layer.ffn, MoeFfn) for model in resolved.models.values() for layer in model.layers)
    for pool in pools:
        if options.experts is not None or options.dispatcher is not None:
            require_dispatcher(pool, options, where(("options", "dispatcher")))
        if sparse and is_named(resolved.problem):
            require_expert_groups(dispatcher_of(engine, pool, options), options, where(("options", "search", "ep")))


def _narrowed(options: TrainOptions) -> TrainOptions:
    """The options with what decisions on unlike documents and samples leave of the search."""
    search, less = options.search, dict[str, object]()
    if options.degrees_by_document or options.core_attention_apart is not None:
        less = {"pp": (1,), "zero_stage": tuple(stage for stage in search.zero_stage or (0, 1) if stage <= 1)}
    if options.core_attention_apart is not None:
        less["cp"] = (1,)
    if options.sparse_heads is not None:
        less = {"pp": (1,), "tp": (1,)}
    if options.schedule_by_modality:
        less = {"vpp": (1,), "schedule": ("1f1b",)}
    return options.model_copy(update={"search": search.model_copy(update=less)}) if less else options


def _by_rank(options: TrainOptions) -> dict[str, bool]:
    """Decisions that give ranks of a context unlike work, by option, and whether they are asked for."""
    return {
        "degrees_by_document": options.degrees_by_document,
        "core_attention_apart": options.core_attention_apart is not None,
        "sparse_heads": options.sparse_heads is not None,
    }


def _of_one_pool(options: TrainOptions) -> str:
    """The first option that is asked for and knows one pool alone."""
    asked = {**_by_rank(options), "schedule_by_modality": options.schedule_by_modality}
    return next((name for name, wanted in asked.items() if wanted), "")


def _lacking(arch: Architecture) -> set[str]:
    """Modules of recomputation that no layer of the model has."""
    parts = {
        "mlp": any(isinstance(layer.ffn, DenseFfn) for layer in arch.layers),
        "moe": any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers),
        "mla_up_projection": any(isinstance(layer.mixer, LatentAttention) for layer in arch.layers),
    }
    parts["moe_activation"] = parts["moe"]
    return {name for name, has in parts.items() if not has}


def _consistent(options: TrainOptions, arch: Architecture, where: Where) -> TrainOptions:
    """The options as the optimizer has them; raises PlannerError for what does not go with it or with the model.

    Megatron-LM asserts against Muon with gradients or weights exchanged beside passes (megatron/training/arguments.py).
    """
    muon, stages = options.optimizer == "muon", options.search.zero_stage
    experts = any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)
    problems = (
        *(
            (asked and experts, (name,), f"{name.replace('_', ' ')} with experts", "leave it out")
            for name, asked in _by_rank(options).items()
        ),
        *(
            (not experts and given is not None, (name,), f"`{arch.name}` has no experts", "leave it out")
            for name, given in (("experts", options.experts), ("dispatcher", options.dispatcher))
        ),
        *(
            (True, ("search", "recompute_modules"), f"`{arch.name}` has no `{name}`", "leave it out")
            for name in options.search.recompute_modules or ()
            if name in _lacking(arch)
        ),
        (
            options.search.recompute_layers is not None and bool(options.lengths),
            ("search", "recompute_layers"),
            "recomputation chosen anew for inputs of every length",
            "leave it out",
        ),
        (muon and options.task == "lora", ("optimizer",), "Muon with adapters", "write `optimizer: adamw`"),
        (muon and "optimizer" in options.search.offload, ("search", "offload"), "Muon on the host", "leave it out"),
        (muon and stages is not None and 1 not in stages, ("search", "zero_stage"), "Muon without ZeRO 1", "write 1"),
        (muon and options.search.layerwise, ("optimizer",), "Muon with strategies by layer", "write `adamw`"),
    )
    for applies, place, what, hint in problems:
        if applies:
            raise PlannerError(what, where=where(("options", *place)), hint=hint)
    if not muon:
        return options
    return options.model_copy(
        update={"overlap": tuple(name for name in options.overlap if name not in ("grad_reduce", "param_gather"))}
    )


def _job(
    resolved: Resolved, options: TrainOptions, key: str, pool: Pool, engine: TrainingEngine,
    graphs: tuple[GraphScope, ...],
) -> TrainJob:  # fmt: skip
    problem, devices = resolved.problem, pool.job_devices[: resolved.problem.limits.gpus]
    node = replace(pool.node, nic_bandwidth_bytes_per_s=pool.node.nic_bandwidth_bytes_per_s / pool.oversubscription)
    code = CODES[engine.name] if options.code is None else options.code.framework(CODES[engine.name])
    code = captured(code, graphs) if graphs else code
    if options.reduce_gradients is not None:
        code = summing_in(code, options.reduce_gradients)
    if options.dropout is not None:
        code = dropping(code, hidden=options.dropout.hidden > 0, attention=options.dropout.attention > 0)
    sequence_parallel = options.search.sequence_parallel or (code.sequence_parallel,)
    store = open_store(profile_paths(problem.costs.profiles))
    model = _trained(resolved, options, key, engine)
    arch = windowed(model, options.window_tokens)
    if options.window_tokens is not None and arch == model:
        raise PlannerError(
            f"a window of {options.window_tokens} tokens changes nothing in `{arch.name}`",
            where=resolved.where(("options", "window_tokens")),
            hint="leave it out: no layer has softmax attention of another width",
        )
    return TrainJob(
        resolved=resolved,
        options=options,
        key=key,
        arch=arch,
        pool=pool,
        machine=machine_of(node),
        rates=rates_on(pool, arch, problem.costs.calibration, store),
        engine=engine,
        strict=is_named(problem),
        framework=replace(
            code,
            sequence_parallel=sequence_parallel[0],
            forwarded_experts=dispatcher_of(engine, pool, options) in FORWARDING,
        ),
        devices=devices,
        num_gpus=len(devices),
        cuda_graphs=graphs,
        per_gpu=problem.objective.maximize is not None,
    )


def _trained(resolved: Resolved, options: TrainOptions, key: str, engine: TrainingEngine) -> Architecture:
    """The model with the heads for further tokens that are trained; raises PlannerError for some that nothing has."""
    model, place = resolved.models[key], resolved.where(("options", "mtp"))
    if options.mtp is not None and not model.mtp_layers:
        raise PlannerError(f"`{model.name}` has no heads for further tokens", where=place, hint="leave `mtp` out")
    if options.mtp and not engine.mtp:
        able = " or ".join(f"`engine: {{name: {name}}}`" for name, each in TRAINING_ENGINES.items() if each.mtp)
        what = f"{engine.name} {engine.release} trains no heads for further tokens (MTP)"
        raise PlannerError(what, where=place, hint=f"leave `mtp` out, or write {able}")
    return model.without_mtp() if options.mtp is False or not engine.mtp else model


def _no_precision(options: TrainOptions, pools: tuple[Pool, ...], where: str) -> PlannerError:
    """No pool computes in the precision asked for."""
    pool = max(pools, key=lambda pool: len(computed_in(pool.node.accelerator)))
    known = computed_in(pool.node.accelerator)
    return PlannerError(
        f"{pool.node.accelerator.display_name} of pool `{pool.name}` does not compute in {options.precision}",
        where=where,
        hint=f"write `precision: {known[-1]}`; it computes in {', '.join(known)}",
    )
