"""Placements of a serving problem: one instance type that does both, or one for prefill and one for decode.

Of each shape the batch and the chunk are those that steady state finds best. Instances of one type fill the GPUs at
hand; of two types every split is a placement, with as many of the second as the first leaves room for. P pools.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planner.errors import PlannerError
from planner.kinds.serve.candidates import Candidate
from planner.kinds.serve.decode import roles_of
from planner.kinds.serve.solve import Outcome, Setting
from planner.kinds.serve.used import Used, list_used
from planner.simulate.fleet import Fleet, Instance, Path
from planner.simulate.plan_fleet import FleetSetting, Policies, engines_of, fleet_of_engines, together
from planner.simulate.requests import Requests
from planner.solvers.mix import Flow, MixSolution

MOST_PLACEMENTS = 400  # on a number of GPUs; on large clusters there are many thousands


@dataclass(frozen=True, slots=True)
class Parts:
    """Instance types by their place in the list of candidates, and how many of each."""

    counts: tuple[tuple[int, int], ...]  # candidate, instances
    steady_per_s: float  # rate that steady state allows


@dataclass(frozen=True, slots=True)
class Workshop:
    """Fleets of placements; the engines of a type are made once."""

    setting: Setting
    candidates: tuple[Candidate, ...]
    fleet_setting: FleetSetting
    made: dict[int, tuple[list[Instance], int]]

    @classmethod
    def of(cls, setting: Setting, candidates: tuple[Candidate, ...], requests: Requests) -> "Workshop":
        """For the one model of a problem and requests as long as these."""
        problem = setting.resolved.problem
        (model,) = setting.resolved.models.values()
        pools = {pool.name: pool for pool in setting.resolved.pools}
        found = FleetSetting(
            problem, model, pools, setting.calibration, tuple(problem.costs.profiles), requests, Policies()
        )
        return cls(setting, candidates, found, {})

    def fleet(self, parts: Parts) -> Fleet:
        """The fleet of a placement; its types share the requests by their size."""
        engines: list[Instance] = []
        groups: list[int] = []
        for at, count in parts.counts:
            found, size = self.engines(at)
            engines += found * count
            groups += [size] * (len(found) * count // size)
        paths = (tuple(_paths(self.candidates, parts)),)
        return fleet_of_engines(engines, (self.fleet_setting,), groups=groups, paths=paths)

    def engines(self, at: int) -> tuple[list[Instance], int]:
        """The engines of one instance of a type, and how many of them make their steps together."""
        if at not in self.made:
            role, *others = roles_of(self.setting, Used("engine", self.candidates[at], 1, (0.0,)))
            found = [replace(one, model=at) for one in engines_of(role, self.fleet_setting, *others)]
            self.made[at] = found, together(role, self.fleet_setting.arch)
        return self.made[at]


def require_playable(setting: Setting) -> None:
    """Refuses what no simulation of placements covers: several workloads or pools, and clients that wait."""
    where, hint = setting.resolved.where(("options", "judged_by")), "take `judged_by: queueing`"
    if len(setting.resolved.workloads) != 1 or len(setting.resolved.models) != 1:
        raise PlannerError("simulation judges problems of one workload and one model", where=where, hint=hint)
    if len(setting.resolved.pools) != 1:
        raise PlannerError("simulation judges problems of one pool", where=where, hint=hint)
    if setting.targets[0].clients is not None:
        what = "simulation judges requests that come at a rate, not clients that wait for answers"
        raise PlannerError(what, where=where, hint=hint)
    if setting.resolved.problem.objective.pareto is not None:
        raise PlannerError("simulation judges one objective, not a trade-off", where=where, hint=hint)


def list_placements(candidates: Sequence[Candidate], gpus: int, outcome: Outcome) -> list[Parts]:
    """The mix that steady state prefers, whatever it is made of, and placements on so many GPUs, its best first."""
    found = {(one := _preferred(candidates, outcome)).counts: one}
    ranked = sorted((*_alone(candidates, gpus), *_apart(candidates, gpus)), key=lambda parts: -parts.steady_per_s)
    for parts in ranked[:MOST_PLACEMENTS]:
        found.setdefault(parts.counts, parts)
    return list(found.values())


def _alone(candidates: Sequence[Candidate], gpus: int) -> Iterator[Parts]:
    for at, candidate in enumerate(candidates):
        count = gpus // candidate.devices
        if candidate.function == "colocated" and count:
            yield Parts(((at, count),), count * _rate(candidate))


def _apart(candidates: Sequence[Candidate], gpus: int) -> Iterator[Parts]:
    seen = set()
    for a, first in enumerate(candidates):
        for b, second in enumerate(candidates):
            if first.function != "prefill" or not second.decodes or first.channel != second.channel:
                continue
            key = (first.shape, first.chunk_tokens, first.max_batch, second.shape, second.ffn, second.max_batch)
            if key in seen:
                continue
            seen.add(key)
            for count in range(1, (gpus - second.devices) // first.devices + 1):
                left = (gpus - count * first.devices) // second.devices
                yield Parts(((a, count), (b, left)), min(count * _rate(first), left * _rate(second)))


def _preferred(candidates: Sequence[Candidate], outcome: Outcome) -> Parts:
    solution = outcome.result.solution
    assert solution is not None
    place = {id(candidate): at for at, candidate in enumerate(candidates)}
    used = list_used(candidates, solution)
    counts = tuple((place[id(item.candidate)], item.count) for item in used)
    return Parts(counts, solution.served_per_s[0])


def _rate(candidate: Candidate) -> float:
    served = candidate.served[0]
    return 0.0 if served is None else served.rate_per_s


def with_placement(outcome: Outcome, parts: Parts, rate_per_s: float) -> Outcome:
    """The outcome with this placement as its solution, loaded at a rate; types of a function share it by their size."""
    candidates = outcome.formulated.candidates
    counts, load = [0] * len(candidates), [(0.0,)] * len(candidates)
    for at, count in parts.counts:
        counts[at] = count
    flows: dict[int, float] = {}
    for at, share in _shares(candidates, parts).items():
        load[at] = (share * rate_per_s,)
        candidate = candidates[at]
        if candidate.function == "prefill" and candidate.channel is not None:
            flows[candidate.channel.index] = flows.get(candidate.channel.index, 0.0) + share * rate_per_s
    devices = sum(count * candidates[at].devices for at, count in parts.counts)
    price = sum(count * outcome.formulated.problem.shapes[at].price_per_hour for at, count in parts.counts)
    solution = MixSolution(
        counts=tuple(counts),
        load_per_s=tuple(load),
        flows=tuple(Flow(0, 0, 0, channel, rate) for channel, rate in flows.items()),
        served_per_s=(rate_per_s,),
        devices=devices,
        price_per_hour=price,
    )
    result = replace(outcome.result, solution=solution, objective=rate_per_s, bound=None)
    return replace(outcome, result=result)


def _shares(candidates: Sequence[Candidate], parts: Parts) -> dict[int, float]:
    """The share of the load of each type: those of a function by their steady rates, all of first stages to 1."""
    rates = {at: count * _rate(candidates[at]) for at, count in parts.counts}
    first = sum(rate for at, rate in rates.items() if not candidates[at].decodes)
    shares = {at: rate / first for at, rate in rates.items() if not candidates[at].decodes}
    for at, rate in rates.items():
        if candidates[at].decodes:
            channel = candidates[at].channel
            through = sum(
                share for other, share in shares.items()
                if candidates[other].function == "prefill" and candidates[other].channel == channel
            )  # fmt: skip
            mine = [o for o in rates if candidates[o].decodes and candidates[o].channel == channel]
            shares[at] = through * rate / sum(rates[o] for o in mine)
    return shares


def _paths(candidates: Sequence[Candidate], parts: Parts) -> Iterator[Path]:
    """How requests go through a placement, as the routes of its plan say; the number of a type is its place."""
    shares = _shares(candidates, parts)
    for first, share in shares.items():
        if candidates[first].function == "colocated":
            yield Path(first, first, share)
        mine = [at for at in shares if candidates[at].decodes and candidates[at].channel == candidates[first].channel]
        whole = sum(shares[at] for at in mine)
        if candidates[first].function == "prefill":
            yield from (Path(first, at, share * shares[at] / whole) for at in mine)


def name_of(candidates: Sequence[Candidate], parts: Parts) -> str:
    """A placement in words, such as `6 x prefill tp2, chunk 8192 + 5 x decode tp4, batch 128`."""
    return " + ".join(f"{count} x {_type(candidates[at])}" for at, count in parts.counts)


def _type(candidate: Candidate) -> str:
    limits = [f"batch {candidate.max_batch}"] if candidate.function != "prefill" else []
    limits += [f"chunk {candidate.chunk_tokens}"] if candidate.chunk_tokens else []
    return f"{candidate.function} {candidate.label}, {', '.join(limits)}"
