"""What a mix is made of: the types of instances that pools offer, by use and price, and the buckets that they serve.

A type is a pool in one use (whole requests, prefill or decode) at one price (the pool's, or that of its spot GPUs).
"""

import math
from collections.abc import Iterable, Iterator
from typing import Literal

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.place.decision import MixOptions, PlaceOptions, RatesSpec
from planner.kinds.place.left_out import pools_without
from planner.problem.resolve import Resolved
from planner.solvers.placement.gpu_mix import Bucket, GpuMix, GpuType

Use = Literal["whole", "prefill", "decode"]

MOST_CASES = 10_000  # ways in which instances fail together that one program holds


def mix_options(resolved: Resolved) -> MixOptions:
    """Those of a problem that has them."""
    options = PlaceOptions.model_validate(resolved.problem.options).mix
    assert options is not None
    return options


def problem_of(resolved: Resolved) -> GpuMix:
    """Raises PlannerError for pools without price or rates, and for rates of what is no pool or bucket."""
    options, where = mix_options(resolved), resolved.where
    if resolved.problem.objective.minimize != "cost":
        raise PlannerError(
            "mixes of GPU types are the cheapest", where=where(("objective",)), hint="write `minimize: cost`"
        )
    if resolved.workloads:
        hint = "remove it, and write `options.mix.buckets`"
        raise PlannerError("mixes serve buckets of requests", where=where(("workloads",)), hint=hint)
    _require_names(resolved, options)
    available, at_least, without = {}, {}, pools_without(resolved)
    for pool in resolved.pools:
        usable = 0 if pool.name in without else pool.num_gpus
        available[pool.name] = usable // size_of(options, pool.name)
        if pool.name in options.at_least:
            at_least[pool.name] = options.at_least[pool.name]
    for name, spot in options.spot.items():
        if spot.gpus is not None:
            available[market(name)] = spot.gpus // size_of(options, name)
    for name, count in at_least.items():
        if count > available[name]:
            what = f"{count} instances of `{name}` are asked for, and its GPUs make {available[name]}"
            raise PlannerError(what, where=where(("options", "mix", "at_least", name)), hint="ask for fewer")
    types = tuple(kind for pool in resolved.pools for kind in _types(resolved, options, pool))
    _require_few_cases(resolved, options, len(types))
    names = [kind.name for kind in types]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        what = f"`{twice[0]}` is a pool, and another pool in one of its uses"
        raise PlannerError(what, where=where(("cluster", "pools")), hint="name the pools otherwise")
    return GpuMix(types, _buckets(resolved, options, types), available, options.least, options.failures, at_least)


def _require_few_cases(resolved: Resolved, options: MixOptions, types: int) -> None:
    """Every way in which instances of the types may fail is a placement of its own in the program."""

    def cases(failures: int) -> int:
        return math.comb(types + failures - 1, failures)

    if types and cases(options.failures) > MOST_CASES:
        most = max(number for number in range(options.failures) if cases(number) <= MOST_CASES)
        what = f"{options.failures} instances of {types} types fail in {cases(options.failures):,} ways"
        place = resolved.where(("options", "mix", "failures"))
        raise PlannerError(what, where=place, hint=f"ask for at most {most}: {MOST_CASES:,} ways are solved")


def size_of(options: MixOptions, pool: str) -> int:
    """GPUs of an instance."""
    return options.gpus_per_instance.get(pool, 1)


def market(pool: str) -> str:
    """What the spot GPUs of a pool are counted under, a name that no pool has."""
    return f"{pool}\0spot"


def _tables(options: MixOptions) -> tuple[tuple[Use, RatesSpec], ...]:
    return (("whole", options.rates), ("prefill", options.prefill), ("decode", options.decode))


def _key(use: Use) -> str:
    """The option that has the rates of a use."""
    return "rates" if use == "whole" else use


def _require_names(resolved: Resolved, options: MixOptions) -> None:
    where, names = resolved.where, [pool.name for pool in resolved.pools]
    rates = [(_key(use), table) for use, table in _tables(options)]
    others: dict[str, Iterable[str]] = {
        "gpus_per_instance": options.gpus_per_instance,
        "spot": options.spot,
        "at_least": options.at_least,
    }
    for name, given in (*rates, *others.items()):
        unknown = sorted(set(given) - set(names))
        if unknown:
            place = where(("options", "mix", name, unknown[0]))
            raise PlannerError(f"no pool is called `{unknown[0]}`", where=place, hint=f"pools are {', '.join(names)}")
    for name, by_pool in rates:
        for priced, row in by_pool.items():
            foreign = sorted(set(row) - set(options.buckets))
            if foreign:
                place = where(("options", "mix", name, priced, foreign[0]))
                raise PlannerError(
                    f"no bucket is called `{foreign[0]}`", where=place, hint="name a bucket of `buckets`"
                )
    if bool(options.prefill) != bool(options.decode):
        has, lacks = ("prefill", "decode") if options.prefill else ("decode", "prefill")
        what = f"instances that {has} alone have rates, and none that {lacks}"
        raise PlannerError(what, where=where(("options", "mix", has)), hint=f"add `{lacks}:` with rates of pools")
    for name, spot in options.spot.items():
        size, pool = size_of(options, name), resolved.pools[names.index(name)]
        if spot.gpus is not None and not size <= spot.gpus <= pool.num_gpus:
            what = f"{spot.gpus} GPUs of `{name}` at spot prices, of {pool.num_gpus} and with instances of {size}"
            place = where(("options", "mix", "spot", name, "gpus"))
            raise PlannerError(what, where=place, hint=f"give {size} to {pool.num_gpus}, or leave it out for all")


def _types(resolved: Resolved, options: MixOptions, pool: Pool) -> Iterator[GpuType]:
    index = [each.name for each in resolved.pools].index(pool.name)
    if not any(pool.name in table for _, table in _tables(options)):
        place, hint = resolved.where(("options", "mix", "rates")), f"add `{pool.name}:` with a rate for every bucket"
        raise PlannerError(f"pool `{pool.name}` has no rates", where=place, hint=hint)
    if pool.usd_per_gpu_hour is None:
        place, hint = resolved.where(("cluster", "pools", index)), "add `price: 3USD/h`, of a GPU"
        raise PlannerError(f"pool `{pool.name}` has no price", where=place, hint=hint)
    size, spot = size_of(options, pool.name), options.spot.get(pool.name)
    for use, table in _tables(options):
        if pool.name not in table:
            continue
        rates = tuple(table[pool.name].get(name, 0.0) for name in sorted(options.buckets))
        end = "" if use == "whole" else f"-{use}"
        yield GpuType(f"{pool.name}{end}", size * pool.usd_per_gpu_hour, rates, pool.name, use)
        if spot is not None:
            cost, name = size * spot.usd_per_gpu_hour, f"{pool.name}-spot{end}"
            yield GpuType(name, cost, rates, pool.name, use, market(pool.name), spot.lost)


def _buckets(resolved: Resolved, options: MixOptions, types: tuple[GpuType, ...]) -> tuple[Bucket, ...]:
    """Raises PlannerError for a bucket that no pool serves, and where rates leave it out."""
    buckets = []
    for index, (name, bucket) in enumerate(sorted(options.buckets.items())):
        uses = {kind.use for kind in types if kind.rate_B[index] > 0.0}
        if "whole" not in uses and not {"prefill", "decode"} <= uses:
            place = resolved.where(("options", "mix", "buckets", name))
            hint = f"give a pool a rate above 0 for `{name}`, or for both its phases, or leave it out"
            raise PlannerError(f"no pool serves bucket `{name}`", where=place, hint=hint)
        buckets.append(Bucket(name, bucket.slices, bucket.rate_per_s / bucket.slices))
    return tuple(buckets)
