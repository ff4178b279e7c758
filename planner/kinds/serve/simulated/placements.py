"""Placements of a serving problem to simulate: one colocated instance type, or one for prefill and one for decode.

Of each shape the batch and the chunk are those that steady state finds best. Instances of one type fill the GPUs at
hand; of two types every split is a placement, with as many of the second as the first leaves room for. A placement
serves one workload, or several of one model that share its engines; a rate is that of all workloads of the problem,
each of which has a fixed fraction of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from planner.costs.rates.pricer import profile_paths
from planner.errors import PlannerError
from planner.kinds.serve.plan.decode import roles_of
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import Channel
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.simulate.fleet.instances import Fleet, Instance, RequestPath
from planner.simulate.plans.engines import engines_of, together
from planner.simulate.plans.fleet import fleet_of_engines
from planner.simulate.plans.setting import FleetSetting, Policies
from planner.simulate.requests.stream import Requests
from planner.solvers.mix import Flow, MixSolution

MOST_PLACEMENTS = 400  # on a number of GPUs; on large clusters there are many thousands
MOST_WORKLOADS = 8


@dataclass(frozen=True, slots=True)
class Deployment:
    """Instance types by their place in the list of candidates, how many of each, and the workloads that they serve.

    `loads` [type][workload] says how types share the requests of each; without, those of a function share them by what
    steady state allows them.
    """

    counts: tuple[tuple[int, int], ...]  # candidate, instances
    steady_per_s: float  # rate that steady state allows
    workloads: tuple[int, ...] = (0,)
    loads: tuple[tuple[float, ...], ...] | None = None

    def gpus(self, candidates: Sequence[Candidate]) -> int:
        """GPUs of all its instances."""
        return sum(count * candidates[index].devices for index, count in self.counts)


@dataclass(frozen=True, slots=True)
class FleetBuilder:
    """Fleets of placements; the engines of a type are made once."""

    setting: ServeSetting
    candidates: tuple[Candidate, ...]
    fleet_settings: dict[str, FleetSetting]  # by model
    made: dict[int, tuple[list[Instance], int]]

    @classmethod
    def of(
        cls, setting: ServeSetting, candidates: tuple[Candidate, ...], requests: Mapping[str, Requests]
    ) -> "FleetBuilder":
        """For the models of a problem, each with requests as long as these."""
        problem = setting.resolved.problem
        pools, tables = {pool.name: pool for pool in setting.resolved.pools}, profile_paths(problem.costs.profiles)
        fleet_settings = {
            name: FleetSetting(problem, arch, pools, setting.calibration, tables, requests[name], Policies())
            for name, arch in setting.resolved.models.items()
            if name in requests
        }
        return cls(setting, candidates, fleet_settings, {})

    def fleet(self, deployment: Deployment) -> Fleet:
        """The fleet of a placement; its types share the requests by their size."""
        engines: list[Instance] = []
        groups: list[int] = []
        for index, count in deployment.counts:
            engines_of_type, size = self.engines(index)
            engines += engines_of_type * count
            groups += [size] * (len(engines_of_type) * count // size)
        paths = tuple(tuple(_paths(self.candidates, deployment, workload)) for workload in deployment.workloads)
        setting = self.fleet_settings[self.candidates[deployment.counts[0][0]].model]
        return fleet_of_engines(engines, (setting,), groups=groups, paths=paths)

    def whole(self, cells: Sequence[Deployment]) -> Fleet:
        """The fleet of placements that share no engine, for all their workloads; its types are numbered anew."""
        engines: list[Instance] = []
        groups: list[int] = []
        paths: dict[int, tuple[RequestPath, ...]] = {}
        for deployment in cells:
            number = {index: len(engines) + row for row, (index, _) in enumerate(deployment.counts)}
            fleet = self.fleet(deployment)
            for workload, own in zip(deployment.workloads, fleet.paths, strict=True):
                paths[workload] = tuple(RequestPath(number[path.first], number[path.last], path.share) for path in own)
            engines += [replace(engine, model=number[engine.model]) for engine in fleet.instances]
            groups += fleet.groups
        settings = tuple(self.fleet_settings.values())
        return fleet_of_engines(engines, settings, groups=groups, paths=tuple(paths[index] for index in sorted(paths)))

    def engines(self, index: int) -> tuple[list[Instance], int]:
        """The engines of one instance of a type, and how many of them make their steps together."""
        if index not in self.made:
            candidate = self.candidates[index]
            setting = self.fleet_settings[candidate.model]
            role, *others = roles_of(
                self.setting, RoleInUse("engine", candidate, 1, (0.0,) * len(candidate.capacities))
            )
            engines_of_type = [replace(engine, model=index) for engine in engines_of(role, setting, *others)]
            self.made[index] = engines_of_type, together(role, setting.arch)
        return self.made[index]


def require_simulable(setting: ServeSetting) -> None:
    """Refuses what no simulation of placements covers: several pools, and clients that wait."""
    where, hint = setting.resolved.where(("options", "judged_by")), "take `judged_by: queueing`"
    if len(setting.resolved.pools) != 1:
        raise PlannerError(
            f"simulation judges problems of one pool, found {len(setting.resolved.pools)}",
            where=where,
            hint=f"{hint}, or solve each pool by itself",
        )
    if len(setting.targets) > MOST_WORKLOADS:
        raise PlannerError(
            f"simulation judges at most {MOST_WORKLOADS} workloads, found {len(setting.targets)}",
            where=where,
            hint=f"{hint}, or put workloads alike into one",
        )
    waiting = [target.name for target in setting.targets if target.clients is not None]
    if waiting:
        raise PlannerError(
            f"simulation judges requests that come at a rate, not clients that wait for answers as in `{waiting[0]}`",
            where=where,
            hint=f"{hint}, or state a rate",
        )
    sure = [target.name for target in setting.targets if target.margins.by_layout is not None]
    if sure:
        raise PlannerError(
            f"simulation judges all placements by the same limits, and own runs divide those of `{sure[0]}` for its "
            "confidence by layout",
            where=where,
            hint=f"{hint}, or leave `confidence` out",
        )
    hit = [target.name for target in setting.targets if target.prefix_hits > 0.0]
    if hit:
        raise PlannerError(
            f"simulation judges placements that compute whole prompts, and `{hit[0]}` states `prefix_hits`",
            where=where,
            hint=f"{hint}; `planner simulate` simulates the plan with its hits",
        )
    if setting.resolved.problem.objective.pareto is not None:
        raise PlannerError("simulation judges one objective, not a trade-off", where=where, hint=hint)


def list_placements(candidates: Sequence[Candidate], gpus: int, outcome: Outcome) -> list[Deployment]:
    """The mix that steady state prefers, whatever it is made of, and placements on so many GPUs, its best first."""
    deployments = {(preferred := _preferred(candidates, outcome)).counts: preferred}
    for deployment in ranked(candidates, gpus, (0,), (1.0,))[:MOST_PLACEMENTS]:
        deployments.setdefault(deployment.counts, deployment)
    return list(deployments.values())


def ranked(
    candidates: Sequence[Candidate], gpus: int, workloads: tuple[int, ...], fractions: Sequence[float]
) -> list[Deployment]:
    """Placements on so many GPUs of types that serve all these workloads, those that steady state ranks highest first.

    `fractions` are those of all workloads of the problem.
    """
    rates = {
        index: rate
        for index, candidate in enumerate(candidates)
        if (rate := _together_rate(candidate, workloads, fractions)) > 0.0
    }
    deployments = (*_alone(candidates, rates, gpus, workloads), *_apart(candidates, rates, gpus, workloads))
    return sorted(deployments, key=lambda deployment: -deployment.steady_per_s)


def _alone(
    candidates: Sequence[Candidate], rates: Mapping[int, float], gpus: int, workloads: tuple[int, ...]
) -> Iterator[Deployment]:
    for index, rate in rates.items():
        count, most = gpus // candidates[index].devices, candidates[index].most_instances
        count = count if most is None else min(count, most)
        if candidates[index].function == "colocated" and count:
            yield Deployment(((index, count),), count * rate, workloads)


def _apart(
    candidates: Sequence[Candidate], rates: Mapping[int, float], gpus: int, workloads: tuple[int, ...]
) -> Iterator[Deployment]:
    seen = set()
    decoding: dict[Channel | None, list[int]] = {}
    for index in rates:
        if candidates[index].decodes:
            decoding.setdefault(candidates[index].channel, []).append(index)
    for a in (index for index in rates if candidates[index].function == "prefill"):
        for b in decoding.get(candidates[a].channel, []):
            first, second, rate, other = candidates[a], candidates[b], rates[a], rates[b]
            batches = first.chunk_tokens, first.max_batch, second.max_batch
            key = (first.shape, first.together, second.shape, second.ffn, *batches)
            if key in seen:
                continue
            seen.add(key)
            for count in range(first.together, (gpus - second.devices) // first.devices + 1):
                left = (gpus - count * first.devices) // second.devices
                yield Deployment(((a, count), (b, left)), min(count * rate, left * other), workloads)


def _preferred(candidates: Sequence[Candidate], outcome: Outcome) -> Deployment:
    index_of = {id(candidate): index for index, candidate in enumerate(candidates)}
    counts = tuple((index_of[id(item.candidate)], item.count) for item in outcome.roles)
    return Deployment(counts, outcome.solution.served_per_s[0])


def _together_rate(candidate: Candidate, workloads: tuple[int, ...], fractions: Sequence[float]) -> float:
    """The rate of all workloads of the problem at which one instance serves its part of these, shared in time."""
    rates = [candidate.rates_per_s[workload] for workload in workloads]
    if min(rates) <= 0.0:
        return 0.0
    if len(rates) == 1:
        return rates[0] / fractions[workloads[0]]
    return 1.0 / sum(fractions[workload] / rate for workload, rate in zip(workloads, rates, strict=True))


def with_placement(outcome: Outcome, cells: Sequence[Deployment], rates_per_s: Sequence[float]) -> Outcome:
    """The outcome with placements as its solution, each for its workloads, loaded at the rate of each workload.

    Types of a function share a workload by their size. A type that several placements have stands in the list of
    candidates once for each, so that its instances are of as many roles.
    """
    candidates, counts = list(outcome.formulated.candidates), [0] * len(outcome.formulated.candidates)
    loads = [[0.0] * len(rates_per_s) for _ in candidates]
    flows: dict[tuple[int, int], float] = {}
    devices, price = 0, 0.0
    for deployment in cells:
        row_of = {}
        for index, count in deployment.counts:
            row_of[index] = index
            if counts[index]:
                row_of[index] = len(candidates)
                candidates.append(replace(candidates[index]))
                counts.append(0)
                loads.append([0.0] * len(rates_per_s))
            counts[row_of[index]] = count
            devices += count * candidates[index].devices
            price += count * outcome.formulated.problem.shapes[index].price_per_hour
        for workload in deployment.workloads:
            for index, share in _shares(outcome.formulated.candidates, deployment, workload).items():
                loads[row_of[index]][workload] = share * rates_per_s[workload]
                channel = candidates[index].channel
                if candidates[index].function == "prefill" and channel is not None:
                    key = (workload, channel.index)
                    flows[key] = flows.get(key, 0.0) + share * rates_per_s[workload]
    solution = MixSolution(
        counts=tuple(counts),
        load_per_s=tuple(tuple(row) for row in loads),
        flows=tuple(Flow(0, 0, workload, channel, rate) for (workload, channel), rate in flows.items()),
        served_per_s=tuple(rates_per_s),
        devices=devices,
        price_per_hour=price,
    )
    result = replace(outcome.result, solution=solution, objective=sum(rates_per_s), bound=None)
    return replace(outcome, formulated=replace(outcome.formulated, candidates=tuple(candidates)), result=result)


def _shares(candidates: Sequence[Candidate], deployment: Deployment, workload: int) -> dict[int, float]:
    """The share of a workload of each type that serves it: those of a function by their rates, of first stages to 1."""
    rates = {index: rate for index, rate in _rates(candidates, deployment, workload) if rate > 0.0}
    first = sum(rate for index, rate in rates.items() if not candidates[index].decodes)
    shares = {index: rate / first for index, rate in rates.items() if not candidates[index].decodes}
    for index, rate in rates.items():
        if candidates[index].decodes:
            channel = candidates[index].channel
            through = sum(
                share for other, share in shares.items()
                if candidates[other].function == "prefill" and candidates[other].channel == channel
            )  # fmt: skip
            receivers = [o for o in rates if candidates[o].decodes and candidates[o].channel == channel]
            shares[index] = through * rate / sum(rates[o] for o in receivers)
    return shares


def _rates(candidates: Sequence[Candidate], deployment: Deployment, workload: int) -> Iterator[tuple[int, float]]:
    for row, (index, count) in enumerate(deployment.counts):
        if deployment.loads is None:
            yield index, count * candidates[index].rates_per_s[workload]
        else:
            yield index, deployment.loads[row][workload]


def _paths(candidates: Sequence[Candidate], deployment: Deployment, workload: int) -> Iterator[RequestPath]:
    """How requests go through a placement, as the routes of its plan say; the number of a type is its place."""
    shares = _shares(candidates, deployment, workload)
    for first, share in shares.items():
        if candidates[first].function == "colocated":
            yield RequestPath(first, first, share)
        receivers = [
            index
            for index in shares
            if candidates[index].decodes and candidates[index].channel == candidates[first].channel
        ]
        whole = sum(shares[index] for index in receivers)
        if candidates[first].function == "prefill":
            yield from (RequestPath(first, index, share * shares[index] / whole) for index in receivers)


def name_of(candidates: Sequence[Candidate], deployment: Deployment) -> str:
    """A placement in words, such as `6 x prefill tp2, chunk 8192 + 5 x decode tp4, batch 128`."""
    return " + ".join(f"{count} x {_type(candidates[index])}" for index, count in deployment.counts)


def _type(candidate: Candidate) -> str:
    limits = [f"batch {candidate.max_batch}"] if candidate.function != "prefill" else []
    limits += [f"chunk {candidate.chunk_tokens}"] if candidate.chunk_tokens else []
    return f"{candidate.function} {candidate.label}, {', '.join(limits)}"
