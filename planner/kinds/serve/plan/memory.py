"""The memory for prefixes that a serving plan buys: as a part of its decision, its certificate and its assumptions."""

from collections.abc import Iterator, Mapping, Sequence

from pydantic import JsonValue

from planner.plan.schema import Certificate, PrefixMemory, PrefixTier, Role
from planner.problem.resolve import Resolved

MEMORY = "memory"  # of a proof: what the search for units of memory says


def prefix_memory(resolved: Resolved) -> PrefixMemory | None:
    """The tiers with what is bought of each; None where the problem offers none."""
    cached, spec = resolved.cached, resolved.problem.cache
    if cached is None or spec is None:
        return None
    return PrefixMemory(
        tiers=tuple(
            PrefixTier(
                name=tier.name,
                units=bought.units,
                size_bytes=bought.size_bytes,
                usd_per_hour=bought.usd_per_hour,
                hit_share=bought.hit_share,
                bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s,
                request_bandwidth_bytes_per_s=tier.to_a_request_bytes_per_s,
            )
            for tier, bought in zip(spec.tiers, cached.tiers, strict=True)
        ),
        token_bytes=cached.token_bytes,
        none_above=cached.none_above,
    )


UNCOUNTED = "what devices keep beside is not counted, nor are writes to tiers"


def memory_assumptions(resolved: Resolved, beside: str = UNCOUNTED) -> Iterator[str]:
    """What hit rates and waits for tiers take for granted; `beside`: of what else is kept."""
    cached = resolved.cached
    if cached is None or not any(cached.units):
        return
    yield (
        f"prompts share what those of the trace share, in its order: tiers have {cached.hit_share:.1%} of their "
        "tokens, least recently used blocks leave first, and what one tier evicts falls to the next"
    )
    yield (
        "all instances read all tiers; a request is queued once what tiers have of it is there, each tier serving one "
        f"after another; {beside}"
    )


def beside_memory(proven: Certificate, memory: Mapping[str, JsonValue] | None) -> Certificate:
    """The certificate of a mix beside chosen memory, with what the search for that memory proves: the lesser bound."""
    if memory is None:
        return proven
    value, floor = proven.objective.value, memory.get("bound")
    assert value is not None
    bound = proven.bound if not isinstance(floor, int | float) or proven.bound is None else min(proven.bound, floor)
    gap = None if bound is None else abs(value - bound) / max(abs(value), 1e-9)
    closed = gap is not None and gap <= proven.tolerance
    space = "memory in whole units and mixes of instances, over the stated axes, under the stated costs and assumptions"
    metric = proven.objective.metric
    claim = f"nothing has a better {metric} among {space}; limits on percentiles are judged by a queueing model"
    if not closed:
        claim = f"nothing is proven to beat the bound on {metric} among {space}"
    return proven.model_copy(
        update={
            "claim": claim,
            "status": "optimal" if closed else "feasible",
            "bound": bound,
            "gap": gap,
            "proof": {**proven.proof, MEMORY: dict(memory)},
            "within": None,  # which is of mixes beside this memory alone
        }
    )


def with_tiers(roles: Sequence[Role], memory: PrefixMemory | None) -> tuple[Role, ...]:
    """Roles that keep prefixes with the memory of each tier as a limit: of a GPU, but of a pool the whole.

    `prefix_store` says that engines share the tiers, where there is more than one.
    """
    readers = [role for role in roles if role.limits.get("prefix_caching") == "on"]
    if memory is None or not readers or memory.size_bytes <= 0.0:
        return tuple(roles)
    gpus = sum(role.replicas * role.parallelism.devices for role in readers)
    engines = sum(role.replicas * role.parallelism.dp for role in readers)
    sizes = {tier.name: tier.size_bytes for tier in memory.tiers if tier.units}
    limits: dict[str, float | int | str] = {
        f"{name}_cache_bytes": int(size if name == "pool" else size / gpus) for name, size in sizes.items()
    }
    if engines > 1:
        limits["prefix_store"] = "shared"
    return tuple(
        role.model_copy(update={"limits": {**role.limits, **limits}}) if role in readers else role for role in roles
    )
