"""Formulates serving as an instance-mix MILP (`planner.solvers.mix`) from candidates, pools, targets and objective."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import Target, handover
from planner.kinds.serve.steady.failures import losses
from planner.kinds.serve.steady.shapes import group_devices
from planner.problem.resolve import Resolved
from planner.problem.schema import PER_GPU, Problem
from planner.solvers import mix

ROLES = {
    "colocated": mix.MixRole.WHOLE,
    "prefill": mix.MixRole.FIRST,
    "decode": mix.MixRole.SECOND,
    "attention": mix.MixRole.SECOND,
}


@dataclass(frozen=True, slots=True)
class Formulated:
    """The mix problem, the candidates in the order of its shapes, and what its objective means.

    A rate per GPU in use is most where the devices that serve it are fewest: its mix minimises them.
    """

    problem: mix.MixProblem
    candidates: tuple[Candidate, ...]
    metric: str
    factor: float  # objective of the mix x factor = metric; factor / objective of a rate per GPU in use
    offset: float = 0.0  # of the metric that no mix changes: what memory for prefixes costs

    @property
    def per_used(self) -> bool:
        """Whether the metric is a rate per GPU in use."""
        return self.problem.objective is mix.MixObjective.DEVICES and self.metric in PER_GPU

    @property
    def sense(self) -> Literal["maximize", "minimize"]:
        """Whether more of the metric is better."""
        return "maximize" if self.problem.maximising or self.per_used else "minimize"

    def in_metric(self, value: float) -> float:
        """The metric of a mix with that objective; the other way round too where it is a rate per GPU in use."""
        return self.factor / value if self.per_used else self.factor * value + self.offset

    def unit_in_metric(self, unit: float) -> float:
        """The metric of a unit of the objective, as `in_metric` is before its offset."""
        return self.factor / unit if self.per_used else self.factor * unit

    @property
    def fullness(self) -> list[float]:
        """The share of its memory that an instance of each shape fills on its fullest device; one more by hand-over.

        Room alone is no reason to cut a model into pipeline stages, whose bubbles these rates leave out.
        """
        return [candidate.memory_share + candidate.shape.pp - 1 for candidate in self.candidates]


def formulate(resolved: Resolved, targets: Sequence[Target], candidates: Sequence[Candidate]) -> Formulated:
    """The mix of `candidates` that is best in the problem's objective.

    Throughput objectives serve the targets in the proportion of their shares, as much as fits and is asked for, and
    count requests (or output tokens) per second over all GPUs at hand. Where every rate is stated they serve it with
    the fewest GPUs, and count those (`Problem.serves_rates`). The others serve the required rates, or hold the clients,
    at the least GPUs or cost. With an availability that is what a failure leaves (`steady.failures`).
    """
    problem = resolved.problem
    per = None if problem.availability is None else problem.availability.per
    objective, metric = _objective(resolved)
    factor = _factor(metric, gpus_at_hand(problem, resolved.pools), targets)
    if problem.serves_rates:
        objective, factor = mix.MixObjective.DEVICES, _per_second(metric, targets)
    capped = objective is mix.MixObjective.SCALE
    demands = tuple(
        mix.MixDemand(
            name=target.name,
            share=target.share,
            rate_per_s=_rate(target, needed=not capped),
            transfer_bytes=target.transfer_bytes + target.draft_bytes,
            clients=target.clients,
        )
        for target in targets
    )
    if problem.limits.usd_per_hour is not None:
        _require_prices(resolved)
    built = mix.MixProblem(
        shapes=tuple(_shape(candidate, resolved.pools, per) for candidate in candidates),
        pools=mix_pools(resolved.pools),
        demands=demands,
        objective=objective,
        links=mix_links(problem),
        limits=mix_limits(problem),
    )
    offset = resolved.cached.usd_per_hour if resolved.cached is not None and metric == "usd_per_hour" else 0.0
    return Formulated(built, tuple(candidates), metric, factor, offset)


def mix_limits(problem: Problem) -> mix.MixLimits:
    """Limits on all instances together; what is no number is refused where options are read."""
    stated: Any = problem.options.get("max_shapes")
    shapes: int | None = None
    with suppress(TypeError, ValueError):
        shapes = int(stated)
    return mix.MixLimits(devices=problem.limits.gpus, price_per_hour=problem.limits.usd_per_hour, shapes=shapes)


def _objective(resolved: Resolved) -> tuple[mix.MixObjective, str]:
    wanted = resolved.problem.objective
    if wanted.pareto is not None:
        return mix.MixObjective.SCALE, "tokens_per_s_per_gpu"
    if wanted.maximize in PER_GPU:
        return mix.MixObjective.SCALE, wanted.maximize
    if wanted.minimize == "gpus":
        return mix.MixObjective.DEVICES, "gpus"
    if wanted.minimize == "cost":
        _require_prices(resolved)
        return mix.MixObjective.PRICE, "usd_per_hour"
    goal = wanted.maximize or wanted.minimize
    sense = "maximize" if wanted.maximize else "minimize"
    raise PlannerError(
        f"a serving plan cannot {sense} `{goal}`",
        where=resolved.where(("objective", sense)),
        hint="maximize goodput_per_gpu or tokens_per_s_per_gpu, or minimize gpus or cost",
    )


def _require_prices(resolved: Resolved) -> None:
    for index, pool in enumerate(resolved.pools):
        if pool.usd_per_gpu_hour is None:
            raise PlannerError(
                f"the cost of pool `{pool.name}` is not known",
                where=resolved.where(("cluster", "pools", index)),
                hint='add its price per GPU, such as `price: "2.50USD/h"`',
            )


def _per_second(metric: str, targets: Sequence[Target]) -> float:
    """Requests or output tokens per second, all targets at their rates."""
    tokens = metric == "tokens_per_s_per_gpu"
    return sum((target.rate_per_s or 0.0) * (target.osl if tokens else 1.0) for target in targets)


def _factor(metric: str, gpus: int, targets: Sequence[Target]) -> float:
    if metric == "goodput_per_gpu":
        return sum(target.share for target in targets) / gpus
    if metric == "tokens_per_s_per_gpu":
        return sum(target.share * target.osl for target in targets) / gpus
    return 1.0


def gpus_at_hand(problem: Problem, pools: Sequence[Pool]) -> int:
    """GPUs in service, or as many of them as the problem allows to use."""
    total = sum(pool.num_gpus for pool in pools)
    return min(total, problem.limits.gpus or total)


def _rate(target: Target, *, needed: bool) -> float | None:
    if needed and target.rate_per_s is None and target.clients is None:
        raise PlannerError(
            f"workload `{target.name}` has no load to serve at the least cost",
            where="workloads",
            hint='add `load: {rate: "10/s"}` or `load: {concurrency: 64}`',
        )
    return target.rate_per_s


def _shape(candidate: Candidate, pools: tuple[Pool, ...], per: str | None) -> mix.MixShape:
    pool = pools[candidate.pool]
    lost, spread = losses(pool, per)
    own, *aside = (
        mix.Slots(index, devices, min(devices // candidate.shape.pieces, group_devices(pools[index])))
        for index, devices in candidate.devices_of_pool
    )
    port = candidate.shape.devices * min(
        handover(pool, other, None).bandwidth_bytes_per_s for other in _partners(candidate, pools)
    )
    return mix.MixShape(
        name=candidate.name,
        role=ROLES[candidate.function],
        pool=candidate.pool,
        devices=candidate.devices,
        group_devices=own.group_devices,
        rate_per_s=candidate.rates_per_s,
        price_per_hour=sum(part.devices * (pools[part.pool].usd_per_gpu_hour or 0.0) for part in (own, *aside)),
        egress_bytes_per_s=port,
        ingress_bytes_per_s=port,
        held_s=tuple(capacity.stay_s if capacity is not None else 0.0 for capacity in candidate.capacities),
        channel=0 if candidate.channel is None else candidate.channel.index,
        aside=tuple(aside),
        lost=lost,
        spread=spread,
        least=candidate.together,
        max_instances=candidate.most_instances,
    )


def _partners(candidate: Candidate, pools: Sequence[Pool]) -> Sequence[Pool]:
    """The pools that an instance exchanges caches with; decode receives from any."""
    if candidate.function == "prefill" and candidate.channel is not None:
        return (pools[candidate.channel.target_pool],)
    return pools if candidate.decodes else (pools[candidate.pool],)


def mix_pools(pools: Sequence[Pool]) -> tuple[mix.MixPool, ...]:
    """Free devices by domain, as (free devices, number of domains with so many)."""
    domains = (Counter(len(domain) for domain in pool.free_domains) for pool in pools)
    return tuple(
        mix.MixPool(pool.name, tuple(sorted(counts.items()))) for pool, counts in zip(pools, domains, strict=True)
    )


def mix_links(problem: Problem) -> tuple[tuple[float | None, ...], ...] | None:
    """Bandwidth between pools where the problem states it; instances' own ports limit the rest."""
    stated = problem.cluster.links
    if not stated:
        return None
    labels = [spec.label for spec in problem.cluster.pools]
    capacity: dict[tuple[int, int], float] = {}
    for link in stated:
        source, target = (labels.index(name) for name in link.pools)
        capacity[source, target] = capacity[target, source] = link.bandwidth_bytes_per_s
    return tuple(tuple(capacity.get((a, b)) for b in range(len(labels))) for a in range(len(labels)))
