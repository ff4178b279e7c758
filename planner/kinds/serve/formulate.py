"""Candidates, pools, targets and the objective as an instance-mix problem (`planner.solvers.mix`)."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.serve.candidates import Candidate
from planner.kinds.serve.demand import Target, link_bytes_per_s
from planner.kinds.serve.shapes import group_devices, placement_domain
from planner.problem.resolve import Resolved
from planner.solvers import mix

_ROLES = {"colocated": mix.Role.WHOLE, "prefill": mix.Role.FIRST, "decode": mix.Role.SECOND}


@dataclass(frozen=True, slots=True)
class Formulated:
    """The mix problem, the candidates in the order of its shapes, and what its objective means."""

    problem: mix.MixProblem
    candidates: tuple[Candidate, ...]
    metric: str
    factor: float  # objective of the mix x factor = metric


def formulate(resolved: Resolved, targets: Sequence[Target], found: Sequence[Candidate]) -> Formulated:
    """The mix of `found` that is best in the problem's objective.

    Throughput objectives serve the targets in the proportion of their shares, as much as fits, and count requests (or
    tokens) per second over all GPUs in service; the others serve the required rates at the least GPUs or cost.
    """
    problem = resolved.problem
    objective, metric = _objective(resolved)
    factor = _factor(metric, resolved, targets)
    capped = objective is mix.Objective.SCALE
    demands = tuple(
        mix.Demand(
            name=target.name,
            share=target.share,
            rate_per_s=_rate(target, needed=not capped),
            transfer_bytes=target.transfer_bytes,
        )
        for target in targets
    )
    limits = mix.MixLimits(devices=problem.limits.gpus, price_per_hour=problem.limits.usd_per_hour)
    built = mix.MixProblem(
        shapes=tuple(_shape(candidate, resolved.pools[candidate.pool]) for candidate in found),
        pools=tuple(_pool(pool) for pool in resolved.pools),
        demands=demands,
        objective=objective,
        links=_links(resolved),
        limits=limits,
    )
    return Formulated(built, tuple(found), metric, factor)


def _objective(resolved: Resolved) -> tuple[mix.Objective, str]:
    wanted = resolved.problem.objective
    if wanted.pareto is not None:
        return mix.Objective.SCALE, "tokens_per_s_per_gpu"
    if wanted.maximize in ("goodput_per_gpu", "tokens_per_s_per_gpu"):
        return mix.Objective.SCALE, wanted.maximize
    if wanted.minimize == "gpus":
        return mix.Objective.DEVICES, "gpus"
    if wanted.minimize == "cost":
        _require_prices(resolved)
        return mix.Objective.PRICE, "usd_per_hour"
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


def _factor(metric: str, resolved: Resolved, targets: Sequence[Target]) -> float:
    gpus = sum(pool.num_gpus for pool in resolved.pools)
    if metric == "goodput_per_gpu":
        return sum(target.share for target in targets) / gpus
    if metric == "tokens_per_s_per_gpu":
        return sum(target.share * target.osl for target in targets) / gpus
    return 1.0


def _rate(target: Target, *, needed: bool) -> float | None:
    rate = target.required_rate_per_s()
    if needed and rate is None:
        raise PlannerError(
            f"workload `{target.name}` has no rate to serve at the least cost",
            where="workloads",
            hint='add `load: {rate: "10/s"}`; a `concurrency` also needs limits on ttft and tpot',
        )
    return rate


def _shape(candidate: Candidate, pool: Pool) -> mix.Shape:
    devices = candidate.shape.devices
    port = devices * link_bytes_per_s(pool)
    return mix.Shape(
        name=f"{candidate.function}/{candidate.model}/{candidate.shape.label}/{candidate.max_batch}/{candidate.chunk_tokens}",
        role=_ROLES[candidate.function],
        pool=candidate.pool,
        devices=devices,
        group_devices=min(devices, group_devices(pool)),
        rate_per_s=tuple(served.rate_per_s if served is not None else 0.0 for served in candidate.served),
        price_per_hour=devices * (pool.usd_per_gpu_hour or 0.0),
        egress_bytes_per_s=port,
        ingress_bytes_per_s=port,
    )


def _pool(pool: Pool) -> mix.Pool:
    """Free devices by scale-up domain, as (free devices, number of domains with so many)."""
    counts: dict[int, int] = {}
    for free in free_devices(pool):
        counts[len(free)] = counts.get(len(free), 0) + 1
    return mix.Pool(pool.name, tuple(sorted((free, count) for free, count in counts.items() if free)))


def free_devices(pool: Pool) -> list[list[int]]:
    """Devices in service by placement domain, in order; a domain is a node, or a rack of one NVLink domain."""
    domain, per_node = placement_domain(pool), pool.node.num_gpus
    healthy = set(pool.healthy_nodes)
    total = pool.num_nodes * per_node
    return [
        [device for device in range(start, min(start + domain, total)) if device // per_node in healthy]
        for start in range(0, total, domain)
    ]


def _links(resolved: Resolved) -> tuple[tuple[float | None, ...], ...] | None:
    """Bandwidth between pools where the problem states it; instances' own ports limit the rest."""
    stated = resolved.problem.cluster.links
    if not stated:
        return None
    names = [pool.name for pool in resolved.pools]
    labels = [spec.name or spec.gpu for spec in resolved.problem.cluster.pools]
    capacity: dict[tuple[int, int], float] = {}
    for link in stated:
        one, other = (labels.index(name) if name in labels else names.index(name) for name in link.pools)
        capacity[one, other] = capacity[other, one] = link.bandwidth_bytes_per_s
    count = range(len(names))
    return tuple(tuple(capacity.get((a, b)) for b in count) for a in count)
