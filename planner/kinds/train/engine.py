"""The engine of a training problem: the one that it names, or the usual one, and what it cannot be asked for."""

from collections.abc import Iterator
from dataclasses import replace

from planner.costs.training.config import FRAMEWORKS, MEGATRON, Framework, machine_of
from planner.engines.trained_models import towers_untrained, untrained
from planner.engines.training import (
    DEEPEP_RANKS,
    TRAINING_ENGINES,
    Dispatcher,
    TrainingEngine,
    training_engine,
    uneven_ramp,
    usual_engine,
)
from planner.errors import PlannerError, did_you_mean
from planner.hardware.cluster import Pool
from planner.kinds.train.code import summing_in
from planner.kinds.train.options import TrainOptions
from planner.problem.resolve import Resolved
from planner.problem.schema import Problem

_MEGATRON = summing_in(MEGATRON, TRAINING_ENGINES["megatron-lm"].reductions[0])
CODES: dict[str, Framework] = {
    "megatron-lm": _MEGATRON,
    "megatron-bridge": replace(_MEGATRON, fused_dispatch=True),  # `moe_permute_fusion` of its model providers
    "torchtitan": replace(FRAMEWORKS["torchtitan"], logit_bytes=4.0 / 8.0),  # compiled `ChunkedLossWrapper`, 8 chunks
    "deepspeed": FRAMEWORKS["deepspeed"],
    "nemo-automodel": FRAMEWORKS["torchtitan_eager"],
}
"""Training codes as the costs know them, by engine."""
FORWARDS = ("ampere", "hopper", "blackwell")
GPUS_OF_DEEPEP = 8  # that NVLink joins


def is_named(problem: Problem) -> bool:
    """Whether the problem names its engine: then nothing is planned that this one does not launch."""
    return problem.engine.name in TRAINING_ENGINES


def engine_of(resolved: Resolved, options: TrainOptions) -> TrainingEngine:
    """The engine; raises PlannerError for what the problem asks of a named one that it lacks."""
    problem, where = resolved.problem, resolved.where
    if not is_named(problem):
        return usual_engine(options.task, towers=bool(options.samples))
    engine = training_engine(problem.engine.name, problem.engine.version, where=where(("engine",)))
    if options.code is not None:
        raise PlannerError(
            f"{engine.name} {engine.release} has a code of its own",
            where=where(("options", "code")),
            hint="leave `code` out, or `engine`: then it is priced, and not emitted",
        )
    for key, model in resolved.models.items():
        beyond = untrained(engine.name, model, options.task) if not options.samples else None
        if options.samples and engine.towers and "colocated" in options.search.modules:
            beyond = towers_untrained(model, options.task)
        if beyond is not None:
            raise PlannerError(beyond[0], where=where(("models", key)), hint=beyond[1])
    for applies, what, place, hint in (*_beyond(engine, options), *_unlaunched(engine, options)):
        if applies:
            raise PlannerError(f"{engine.name} {engine.release} {what}", where=where(("options", place)), hint=hint)
    for path, asked, able in _asked(engine, options):
        lacking = [value for value in asked if value not in able]
        if lacking:
            known = [str(value) for value in able]
            raise PlannerError(
                f"{engine.name} {engine.release} has no {path[-1].replace('_', ' ')} `{lacking[0]}`",
                where=where(("options", *path)),
                hint=did_you_mean(str(lacking[0]), known, otherwise=f"it has {', '.join(known)}"),
            )
    return engine


def _asked(
    engine: TrainingEngine, options: TrainOptions
) -> Iterator[tuple[tuple[str, ...], tuple[object, ...], tuple[object, ...]]]:
    """(place, values asked for, values that the engine has) of what the options fix."""
    search = options.search
    yield ("precision",), (options.precision,), engine.precisions
    yield ("task",), (options.task,), engine.tasks
    yield ("optimizer",), (options.optimizer,), engine.optimizers
    yield ("overlap",), options.overlap, engine.overlaps
    yield ("reduce_gradients",), (options.reduce_gradients,) if options.reduce_gradients else (), engine.reductions
    yield ("dispatcher",), (options.dispatcher,) if options.dispatcher else (), engine.dispatchers
    yield ("search", "schedule"), search.schedule or (), engine.schedules
    yield ("search", "zero_stage"), search.zero_stage or (), engine.zero_stages
    yield ("search", "context_parallel"), search.context_parallel or (), engine.context_methods
    yield ("search", "offload"), search.offload, engine.offloads
    for name, most in (
        ("pp", engine.most_pp),
        ("ep", engine.most_ep),
        ("moe_tp", None if engine.splits_experts else 1),
    ):
        if most is not None:
            yield ("search", name), getattr(search, name) or (), tuple(range(1, most + 1))


def _beyond(engine: TrainingEngine, options: TrainOptions) -> Iterator[tuple[bool, str, str, str]]:
    """(whether it applies, what the engine does not do, place, hint)."""
    load = options.experts
    able = f"name {' or '.join(name for name, each in TRAINING_ENGINES.items() if each.drops)}, or leave it out"
    drops = load is not None and load.capacity is not None and not engine.drops
    yield drops, "drops no tokens", "experts", able
    yield bool(options.documents) and not engine.packs, "packs no documents", "documents", "name `megatron-bridge`"
    fixed = options.degrees_by_document and not engine.degrees_by_document
    yield fixed, "has one context-parallel degree for all documents", "degrees_by_document", "name `megatron-lm`"
    for name, asked, what in (
        ("core_attention_apart", options.core_attention_apart, "computes core attention where its documents are"),
        ("sparse_heads", options.sparse_heads, "computes every score of softmax attention on even parts of the heads"),
        ("schedule_by_modality", options.schedule_by_modality, "has no orders of passes by modality"),
    ):
        yield bool(asked), what, name, "leave it out, or `engine`: then it is priced, and not emitted"
    hidden = [name for name in engine.always_overlaps if name not in options.overlap]
    for name in hidden:
        hint = f"write `overlap: [{', '.join((*options.overlap, *hidden))}]`"
        yield True, f"always runs `{name}` beside computing", "overlap", hint
    again = options.search.recompute == ("full",) and engine.strict_overlaps and "ep_comm" in options.overlap
    yield again, "hides no `ep_comm` where layers are computed again whole", "overlap", "leave one of them out"
    gathered = "tp_comm" in options.overlap and options.search.sequence_parallel == (False,)
    yield gathered, "overlaps no `tp_comm` without sequence parallelism", "overlap", "leave one of them out"
    yield bool(options.samples) and not engine.towers, "trains no towers", "samples", "name `megatron-bridge`"
    unable = options.in_network_reduction and not engine.in_network
    yield unable, "has no switch for reductions in the network", "in_network_reduction", able
    named = engine.again_by_operator and options.search.recompute_modules is not None
    yield named, "recomputes operators by its policy, and names no modules", "search", "leave `recompute_modules` out"
    some = options.search.recompute_layers not in (None, "all") and not engine.some_layers_again
    yield some, "recomputes all layers whole or none", "search", "write `recompute_layers: all`"
    drops = options.dropout is not None and not engine.dropout
    yield drops, "has no setting of how much is dropped", "dropout", able


def _unlaunched(engine: TrainingEngine, options: TrainOptions) -> Iterator[tuple[bool, str, str, str]]:
    """The same of plans that no engine, or this one, is told by its settings."""
    alone = "leave it out, or `engine`: then it is priced, and not emitted"
    search, ramp = options.search, options.batch_ramp
    yield search.layerwise, "gives all layers one strategy", "search", alone
    replicas = search.pools == ("replicas",)
    yield replicas, "gives the replicas of all pools equally many micro-batches", "search", alone
    generated = any(sample.generated for sample in options.samples)
    yield generated, "trains no generator", "samples", alone
    interleaved = search.modules == ("apart",) and 1 not in (search.vpp or (1,))
    yield interleaved, "interleaves no stages beside towers on GPUs of their own", "search", "write `vpp: 1`"
    yield bool(ramp) and not engine.ramps, "has one batch for the whole run", "batch_ramp", "name `megatron-lm`"
    if ramp:
        batches = [*(stage.global_batch for stage in ramp), options.global_batch]
        uneven = uneven_ramp(batches, [round(stage.tokens / options.sequence_tokens) for stage in ramp])
        if uneven is not None:
            yield True, f"grows its batch evenly, and {uneven[0]}", "batch_ramp", uneven[1]


def launched(options: TrainOptions) -> TrainOptions:
    """The options with what of the search named engines launch: no replicas with unequal numbers of micro-batches."""
    pools = tuple(use for use in options.search.pools if use != "replicas")
    return options.model_copy(update={"search": options.search.model_copy(update={"pools": pools})})


def dispatcher_of(engine: TrainingEngine, pool: Pool, options: TrainOptions) -> Dispatcher:
    """The dispatcher asked for, else the engine's first that runs this job on the GPUs of a pool."""
    if options.wanted_dispatcher is not None:
        return options.wanted_dispatcher
    refused = {name for name, _, _ in _unable(pool, options)}
    return next(name for name in engine.dispatchers if name not in refused)


def require_dispatcher(pool: Pool, options: TrainOptions, where: str) -> None:
    """Raises PlannerError for a dispatcher that the problem names and that does not run on the GPUs of a pool."""
    for name, what, hint in _unable(pool, options):
        if name == options.dispatcher:
            raise PlannerError(f"`{name}` {what}", where=where, hint=hint)


def require_expert_groups(dispatcher: Dispatcher, options: TrainOptions, where: str) -> None:
    """Raises PlannerError where the degrees that the problem fixes make no group that the dispatcher joins."""
    ep, split = options.search.ep or (), options.search.moe_tp or (1,)
    if dispatcher == "deepep" and ep and not {each * parts for each in ep for parts in split} & set(DEEPEP_RANKS):
        ranks = ", ".join(map(str, DEEPEP_RANKS[1:]))
        raise PlannerError(
            f"`deepep` joins {ranks} ranks, and not ep {ep[0]} x moe_tp {split[0]}",
            where=where,
            hint="write `dispatcher: alltoall`, or another ep",
        )


def _unable(pool: Pool, options: TrainOptions) -> Iterator[tuple[Dispatcher, str, str]]:
    """Dispatchers that do not run this job on the GPUs of a pool, why, and what would.

    DeepEP runs on Ampere, Hopper, B200 and B300, HybridEP in racks of 72 (megatron/bridge/training/
    flex_dispatcher_backend.py); neither pads experts (megatron/core/transformer/moe/token_dispatcher.py).
    """
    gpu = pool.node.accelerator.display_name
    racks, able = pool.node.scale_up_size > GPUS_OF_DEEPEP, machine_of(pool.node).generation in FORWARDS
    padded = options.experts is not None and options.experts.padded
    places: tuple[tuple[Dispatcher, Dispatcher, bool], ...] = (
        ("deepep", "hybridep", not racks),
        ("hybridep", "deepep", racks),
    )
    for name, other, here in places:
        if padded:
            yield name, "pads no experts to their capacity", "write `dispatcher: alltoall`"
        elif not able:
            yield name, f"does not run on {gpu}", "write `dispatcher: alltoall`"
        elif not here:
            place = "in racks of 72" if name == "hybridep" else "on nodes of at most eight GPUs that NVLink joins"
            yield name, f"runs {place}, and pool `{pool.name}` has {gpu}", f"write `dispatcher: {other}`"
