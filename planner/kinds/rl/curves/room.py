"""What pools, prompts and modes of an RL problem must allow before its curves can be searched, refused otherwise."""

from dataclasses import replace

import numpy as np

from planner.documents.units import format_si
from planner.errors import Infeasible, PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.rl.curves.beside import modelled_trainers
from planner.kinds.rl.curves.generation import GeneratorCurve
from planner.kinds.rl.curves.shapes import Lengths
from planner.kinds.rl.curves.training import Trainer
from planner.kinds.rl.drawn import beside_output
from planner.kinds.rl.setting import RlSetting
from planner.kinds.rl.stated import modes
from planner.rl.curves import NEVER_FITS, Learner
from planner.rl.trajectories import SampleBatch

SHORTEST = 512  # tokens of a sample, below which length is not what keeps a model from being trained
MORE_NODES = (2, 4, 8, 16, 32)  # times those at hand: what is tried to say how many would do


def require_useful(setting: RlSetting, batches: list[SampleBatch]) -> None:
    """Refuses draws in which fewer prompts are useful than an iteration trains on."""
    options = setting.options
    useful = [len(np.unique(batch.prompt_N[batch.prompt_N >= 0])) for batch in batches if batch.prompt_N is not None]
    if useful and min(useful) < options.prompts:
        raise PlannerError(
            f"{min(useful)} of the prompts generated are useful, and an iteration trains on {options.prompts}",
            where=setting.resolved.where(("options", "over_sampling")),
            hint=f"write `over_sampling: {1.05 * options.over_sampling * options.prompts / max(min(useful), 1):.2f}`",
        )


def require_one_cap(setting: RlSetting) -> None:
    """Refuses one cap on GPUs where there are several pools."""
    if setting.resolved.problem.limits.gpus is not None and len(setting.pools) > 1:
        raise PlannerError(
            "a cap on GPUs over several pools",
            where=setting.resolved.where(("limits",)),
            hint="give each pool the `gpus` it may use",
        )


def require_pools(setting: RlSetting, named: set[str]) -> None:
    """Refuses names of pools that are not there."""
    names = [pool.name for pool in setting.pools]
    for name in sorted(named - set(names)):
        raise PlannerError(
            f"no pool is called `{name}`",
            where=setting.resolved.where(("options", "costs")),
            hint=f"the pools are {', '.join(names)}",
        )


def require_modes(setting: RlSetting) -> None:
    """Refuses arrangements that no synchrony goes with."""
    if not modes(setting.options):
        raise PlannerError(
            "no arrangement can be so synchronised",
            where=setting.resolved.where(("options",)),
            hint="add `disaggregated` to `arrangements`, or `synchronous` to `synchrony`",
        )


def require_replicas(
    setting: RlSetting, generators: list[GeneratorCurve], lengths: Lengths, batches: list[SampleBatch]
) -> None:
    """Refuses a model that no replica holds, and samples that no replica's KV cache holds."""
    where, asked = setting.resolved.where, setting.options.generation_tp
    if not generators and asked is not None:
        raise PlannerError(
            f"no replica of {setting.actor.name} of tp {', '.join(map(str, asked))} divides and fits on any pool",
            where=where(("options", "generation_tp")),
            hint="leave `generation_tp` out, or write degrees that divide its heads and that a pool has GPUs for",
        )
    if not generators:
        from planner.costs.operators.work import Shards
        from planner.costs.serving.memory import weight_bytes

        largest = max(setting.pools, key=lambda pool: pool.num_gpus * pool.node.accelerator.memory_bytes)
        size, memory = float(weight_bytes(setting.actor, Shards.of(1))[0]), largest.node.accelerator.memory_bytes
        what = f"{setting.actor.name}, {format_si(size, 'B')} of weights, fits no replica of any pool"
        gpus = -(-int(size / (0.8 * memory) + 1) // largest.node.num_gpus) * largest.node.num_gpus
        raise PlannerError(
            what,
            where=where(("models", setting.keys["actor"])),
            hint=f"give pool `{largest.name}` at least {gpus} GPUs, or choose a smaller model or format",
        )
    most = max(generator.option.curve.kv_tokens for generator in generators)
    if lengths.longest > most:
        what = f"the longest sample has {lengths.longest} tokens, the KV cache of any replica holds {most}"
        cut = max(1, int(most) - beside_output(setting.resolved.problem, batches))
        raise PlannerError(
            what,
            where=where(("workloads", 0, "output_tokens")),
            hint=f"write `max_output_tokens: {cut}`" if cut > 1 else "use GPUs with more memory",
        )


def require_learners(setting: RlSetting, trainers: list[Trainer], critics: dict[Learner, Trainer]) -> None:
    """Refuses a critic that nothing but GPUs of its own are asked for, where it fits on none beside an actor."""
    if trainers and not critics and set(setting.options.critic_gpus) == {"own"}:
        what = f"`{setting.keys['critic']}` fits on no pool beside one GPU of an actor at the least"
        where = setting.resolved.where(("options", "critic_gpus"))
        raise PlannerError(what, where=where, hint="give a pool more GPUs, or write `critic_gpus: [actor, own]`")


def require_trainers(setting: RlSetting, trainers: list[Trainer], lengths: Lengths, batches: list[SampleBatch]) -> None:
    """Raises Infeasible, with the nearest length or number of GPUs, where no trainer fits."""
    if trainers:
        return
    tokens = _trained_tokens(setting, lengths)
    if tokens is not None:
        output = max(1, tokens - beside_output(setting.resolved.problem, batches))
        limit = f"training on samples of {lengths.longest} tokens"
        raise Infeasible([{"limit": limit, "nearest": f"max_output_tokens {output}"}], proved=True)
    pool = max(setting.pools, key=lambda pool: pool.num_gpus)
    degrees = "any tp, pp, cp and ep of the space, with ZeRO 1 and all computed again"
    limit = f"memory of {pool.name} = {pool.num_gpus} x {_gib(pool)}, by {degrees}"
    raise Infeasible([{"limit": limit, "nearest": _enough_gpus(setting, pool, lengths)}], proved=True)


def _enough_gpus(setting: RlSetting, pool: Pool, lengths: Lengths) -> str:
    """The fewest nodes, in powers of two times those at hand, on which some trainer fits beside the other models."""
    for factor in MORE_NODES:
        larger = replace(pool, num_nodes=pool.num_nodes * factor)
        if any(trainer.option.min_dp < NEVER_FITS for trainer in modelled_trainers(setting, larger, lengths)):
            return f"{larger.num_gpus} GPUs"
    return "no number of these GPUs: a GPU with more memory, or a smaller model"


def _trained_tokens(setting: RlSetting, lengths: Lengths) -> int | None:
    """Tokens of a sample that some trainer fits in memory, by halving; None where no length does."""
    tokens = lengths.longest
    while (tokens := tokens // 2) >= SHORTEST:
        shorter = Lengths(tokens, min(lengths.typical, tokens))
        for pool in setting.pools:
            if any(trainer.option.min_dp < NEVER_FITS for trainer in modelled_trainers(setting, pool, shorter)):
                return tokens
    return None


def _gib(pool: Pool) -> str:
    return format_si(pool.node.accelerator.memory_bytes, "B")


def require_network(setting: RlSetting) -> None:
    """Refuses a pool that no link joins with another, where roles may lie apart: weights could not reach it."""
    names = [pool.name for pool in setting.pools]
    linked = {name for link in setting.resolved.problem.cluster.links for name in link.pools}
    alone = [name for name in names if name not in linked]
    if len(names) > 1 and alone and "disaggregated" in setting.options.arrangements:
        other = next(name for name in names if name != alone[0])
        raise PlannerError(
            f"pools `{alone[0]}` and `{other}` have no network in common: new weights cannot reach the generators",
            where=setting.resolved.where(("cluster",)),
            hint=f"add `links: [{{pools: [{alone[0]}, {other}], bandwidth: 10GB/s}}]` to `cluster`",
        )
