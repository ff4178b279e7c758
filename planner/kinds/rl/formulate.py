"""Formulates an RL problem as the cost curves that `planner.rl` searches: pools, replicas, trainers, lengths, modes."""

from dataclasses import dataclass, field, replace

import numpy as np

from planner.errors import PlannerError
from planner.kinds.rl.curves.beside import modelled_trainers
from planner.kinds.rl.curves.critics import learners
from planner.kinds.rl.curves.generation import GeneratorCurve, measured_generators, modelled_generators
from planner.kinds.rl.curves.launched import launches_generator, launches_trainer
from planner.kinds.rl.curves.room import (
    require_learners,
    require_modes,
    require_network,
    require_one_cap,
    require_pools,
    require_replicas,
    require_trainers,
    require_useful,
)
from planner.kinds.rl.curves.serving import Server, servers
from planner.kinds.rl.curves.shapes import Lengths
from planner.kinds.rl.curves.training import Trainer, measured_trainers
from planner.kinds.rl.drawn import draw_periods, longest_sample, require_context
from planner.kinds.rl.handover import switch_s, unpinned_bytes_per_s, weight_sync_s
from planner.kinds.rl.refusals.launcher import launcher_of
from planner.kinds.rl.setting import RlSetting
from planner.kinds.rl.stated import stated_problem
from planner.rl.curves import NEVER_FITS, Critic, Curves, GenerationOption, Learner, Scoring, Service, TrainingOption
from planner.rl.problem import RlProblem
from planner.rl.trajectories import SampleBatch

MOVE_S = 0.1  # of a trajectory to another replica, beyond its KV (Heddle, arXiv:2603.28101: 0.1 to 0.35 s in all)


@dataclass(frozen=True, slots=True)
class FormulatedRl:
    """The problem as curves, and what each of its options was made from; lengths are those of the first period."""

    problem: RlProblem
    curves: Curves
    generators: dict[GenerationOption, GeneratorCurve]
    trainers: dict[TrainingOption, Trainer]
    lengths: Lengths
    servers: dict[Service, Server] = field(default_factory=dict)
    learners: dict[Learner, Trainer] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)  # of decode curves, by kind of replica, where not 1


def formulate(setting: RlSetting) -> FormulatedRl:
    """Raises PlannerError where no replica, no trainer or no network fits, with the nearest value that works."""
    if not setting.bare:
        require_network(setting)
    require_one_cap(setting)
    require_modes(setting)
    periods = draw_periods(setting.resolved.problem, setting.options)
    batches = [batch for period in periods for batch in period]
    require_useful(setting, batches)
    lengths = Lengths.of(batches, longest_sample(setting.resolved.problem, setting.options, batches))
    if setting.bare:
        generators, trainers, curves = _as_stated(setting)
        scoring = list[Server]()
        critics = dict[Learner, Trainer]()
    else:
        require_context(setting, batches, lengths.longest)
        scoring = servers(setting, lengths)
        generators, trainers, critics, curves = _priced(setting, batches, lengths, scoring)
    problem = stated_problem(setting.resolved.problem, setting.options, setting.pools, curves, periods[0])
    return FormulatedRl(
        problem,
        curves,
        {generator.option: generator for generator in generators},
        {trainer.option: trainer for trainer in trainers},
        lengths,
        {server.service: server for server in scoring},
        critics,
    )


def _priced(
    setting: RlSetting, batches: list[SampleBatch], lengths: Lengths, scoring: list[Server]
) -> tuple[list[GeneratorCurve], list[Trainer], dict[Learner, Trainer], Curves]:
    """Measured curves, and modelled ones of pools without a measurement."""
    context = float(np.mean([(b.prompt_tokens_N + b.output_tokens_N / 2).mean() for b in batches]))
    generators = _generators(setting, context)
    trainers = _trainers(setting, lengths)
    critics = learners(setting, lengths, batches)
    require_learners(setting, trainers, critics)
    _require_sizes(setting, generators, trainers, context, lengths)
    require_replicas(setting, generators, lengths, batches)
    generators = [curve for curve in generators if curve.option.curve.kv_tokens >= lengths.longest]
    require_trainers(setting, trainers, lengths, batches)
    trainers = _launched(setting, trainers, lengths)
    kv_token_bytes = _kv_token_bytes(setting, context)
    curves = Curves(
        generation=tuple(generator.option for generator in generators),
        training=tuple(trainer.option for trainer in trainers),
        weight_sync_s=weight_sync_s(setting),
        switch_s=switch_s(setting),
        move_s=MOVE_S,
        move_token_s=kv_token_bytes / min(pool.node.nic_bandwidth_bytes_per_s for pool in setting.pools),
        scoring=_scoring(setting, trainers, kv_token_bytes) if setting.options.fusion_thresholds else {},
        critics=_critics(setting, trainers) if setting.options.fused_training else {},
        services=tuple(server.service for server in scoring),
        learners=tuple(critics),
    )
    return generators, trainers, critics, curves


def _as_stated(setting: RlSetting) -> tuple[list[GeneratorCurve], list[Trainer], Curves]:
    """The curves of the problem alone, where no model is named; pools without one neither generate nor train."""
    costs = setting.options.costs
    generators, trainers = list(measured_generators(setting)), list(measured_trainers(setting))
    require_pools(setting, {curve.option.pool for curve in generators} | {t.option.pool for t in trainers})
    require_pools(setting, {name for row in costs.weight_sync for name in (row.generation, row.training)})
    options = setting.options
    generators = [curve for curve in generators if _asked(curve.option.tp, options.generation_tp)]
    trainers = [
        trainer
        for trainer in trainers
        if _asked(trainer.option.tp, options.training_tp) and _asked(trainer.option.pp, options.training_pp)
    ]
    for name, left, asked in (
        ("generation", generators, options.generation_tp),
        ("training", trainers, options.training_tp or options.training_pp),
    ):
        if not left and asked is not None:
            raise PlannerError(
                f"no curve of {name} has the degrees asked for",
                where=setting.resolved.where(("options", "costs", name)),
                hint="ask for degrees that have a curve",
            )
    curves = Curves(
        generation=tuple(generator.option for generator in generators),
        training=tuple(trainer.option for trainer in trainers),
        weight_sync_s={(row.generation, row.training): row.sync_s for row in costs.weight_sync},
        switch_s=costs.switch_s or 0.0,
    )
    return generators, trainers, curves


def _generators(setting: RlSetting, context: float) -> list[GeneratorCurve]:
    """Replicas of the sizes asked for: measured ones, and modelled ones of pools without a measurement."""
    measured, options = list(measured_generators(setting)), setting.options
    known = {curve.option.pool for curve in measured}
    require_pools(setting, known)
    pools = (pool for pool in setting.pools if pool.name not in known)
    every = [*measured, *(curve for pool in pools for curve in modelled_generators(setting, pool, context))]
    launcher, engine = launcher_of(options), setting.resolved.problem.engine.name
    started = [curve for curve in every if launches_generator(launcher, curve, engine)]
    return [curve for curve in started if _asked(curve.option.tp, options.generation_tp)]


def _trainers(setting: RlSetting, lengths: Lengths) -> list[Trainer]:
    """Replicas of the sizes asked for that fit in memory, as `_generators`."""
    measured, options = list(measured_trainers(setting)), setting.options
    taught = {trainer.option.pool for trainer in measured}
    require_pools(setting, taught)
    pools = (pool for pool in setting.pools if pool.name not in taught)
    every = [*measured, *(trainer for pool in pools for trainer in modelled_trainers(setting, pool, lengths))]
    return [
        trainer
        for trainer in every
        if trainer.option.min_dp < NEVER_FITS
        and _asked(trainer.option.tp, options.training_tp)
        and _asked(trainer.option.pp, options.training_pp)
    ]


def _launched(setting: RlSetting, trainers: list[Trainer], lengths: Lengths) -> list[Trainer]:
    """Trainers that the launcher starts. Raises PlannerError where it starts none of those that fit."""
    launcher, apart = launcher_of(setting.options), "disaggregated" in setting.options.arrangements
    started = [each for each in trainers if launches_trainer(launcher, each, lengths.longest, apart=apart)]
    if launcher is not None and not started:
        what = f"{launcher.title} starts training in none of the ways that fit, with the models beside it"
        hint = "write `arrangements: [colocated]`, name another `launcher`, or give training more GPUs"
        if not any(trainer.helpers for trainer in trainers):
            what = f"{launcher.title} trains on whole samples, and all micro-batches measured are shorter"
            hint = f"write `max_output_tokens`, or measure with `micro_tokens: {lengths.longest}`"
        raise PlannerError(what, where=setting.resolved.where(("options", "launcher")), hint=hint)
    return started


def _asked(size: int, wanted: tuple[int, ...] | None) -> bool:
    """Whether a size, measured or modelled, is among those that the problem asks for."""
    return wanted is None or size in wanted


def _require_sizes(
    setting: RlSetting, generators: list[GeneratorCurve], trainers: list[Trainer], context: float, lengths: Lengths
) -> None:
    """Refuses sizes that no replica has, where there are replicas of others."""
    free = {"generation_tp": None, "training_tp": None, "training_pp": None}
    launcher = launcher_of(setting.options)
    if launcher is not None and not launcher.stages:
        del free["training_pp"]
    anything = replace(setting, options=setting.options.model_copy(update=free))
    if not generators:
        _refuse_sizes(setting, ("generation_tp",), {(c.option.tp,) for c in _generators(anything, context)})
    if not trainers:
        able: set[tuple[int, ...]] = {(t.option.tp, t.option.pp) for t in _trainers(anything, lengths)}
        _refuse_sizes(setting, ("training_tp", "training_pp"), able)


def _refuse_sizes(setting: RlSetting, names: tuple[str, ...], able: set[tuple[int, ...]]) -> None:
    asked = {name: sizes for name in names if (sizes := getattr(setting.options, name)) is not None}
    if not asked or not able:
        return
    told = ", ".join(f"{name} {', '.join(map(str, sizes))}" for name, sizes in asked.items())
    short = [name.rpartition("_")[2] for name in names]
    some = "; ".join(" ".join(f"{n}{size}" for n, size in zip(short, row, strict=True)) for row in sorted(able))
    part = names[0].partition("_")[0]
    raise PlannerError(
        f"no replica of {part} that divides the model and fits has {told}",
        where=setting.resolved.where(("options", next(iter(asked)))),
        hint=f"take one of {some}",
    )


def _kv_token_bytes(setting: RlSetting, context: float) -> float:
    """KV cache of a token, of a sample at the mean context."""
    from planner.costs.operators.work import Shards
    from planner.costs.serving.memory import kv_cache_bytes

    return float(kv_cache_bytes(setting.actor, Shards.of(1), np.array([context]))[0]) / context


def _scoring(setting: RlSetting, trainers: list[Trainer], kv_token_bytes: float) -> dict[str, tuple[Scoring, ...]]:
    """By pool where something scores, and by what has GPUs of its own: as trainers there do, weights loaded from hosts,
    KV moved through one adapter.

    Raises PlannerError where nothing scores on any pool.
    """
    scoring: dict[str, tuple[Scoring, ...]] = {}
    for pool in setting.pools:
        here = [trainer for trainer in trainers if trainer.option.pool == pool.name and trainer.option.score_gpu_s > 0]
        for apart in dict.fromkeys(trainer.option.apart for trainer in here):
            beside = (trainer for trainer in here if trainer.option.apart == apart)
            best = min(beside, key=lambda trainer: trainer.option.score_gpu_s)
            loaded = sum(helper.weights_bytes for helper in best.helpers if helper.forward_gpu_s > 0)
            left = Scoring(
                gpu_s=best.option.score_gpu_s,
                load_s=loaded / unpinned_bytes_per_s(setting, pool),
                move_s=MOVE_S,
                move_token_s=kv_token_bytes / pool.node.nic_bandwidth_bytes_per_s,
                apart=apart,
            )
            scoring[pool.name] = (*scoring.get(pool.name, ()), left)
    if not scoring:
        raise PlannerError(
            "nothing scores that could be fused with generation",
            where=setting.resolved.where(("options", "fusion_thresholds")),
            hint="name a `reference` or `reward` model without engines of its own, or leave `fusion_thresholds` out",
        )
    return scoring


def _critics(setting: RlSetting, trainers: list[Trainer]) -> dict[TrainingOption, Critic]:
    """Critics that can train on the actor's GPUs at the same time, none where only critics apart leave it room.

    Raises PlannerError where all training is measured.
    """
    critics = {trainer.option: trainer.critic for trainer in trainers if trainer.critic is not None}
    if not critics and setting.options.costs.training:
        raise PlannerError(
            "measured training curves do not say what the critic takes of them",
            where=setting.resolved.where(("options", "fused_training")),
            hint="leave `fused_training` out, or the training curves of a pool",
        )
    return critics
