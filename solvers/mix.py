"""Problems of the instance mix: how many instances of each shape, in which pools, under which load.

Shapes are instance types that take whole groups of slots on nodes. A demand is served end to end by `whole` shapes,
or in two stages, by `first` shapes whose output moves over links between pools to `second` shapes of their channel.
"""

import itertools
import math
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from planner.errors import PlannerError

LEAST_RATE = 1e-5  # of what the fastest instance serves of a demand; solvers cannot tell much less from none


class MixRole(StrEnum):
    """Which part of a request a shape serves."""

    WHOLE = "whole"
    FIRST = "first"
    SECOND = "second"


class MixObjective(StrEnum):
    """What a mix is best in; the second criterion is fewest devices (lowest price for DEVICES)."""

    SCALE = "scale"  # largest t with demand w served at share_w t
    VALUE = "value"  # largest sum of value_w x served rate of w
    DEVICES = "devices"  # fewest devices that serve every demand's rate
    PRICE = "price"  # lowest price that serves every demand's rate


class Slots(NamedTuple):
    """Slots that one instance takes in a pool, in groups that each lie inside one node."""

    pool: int
    devices: int
    group_devices: int


@dataclass(frozen=True, slots=True)
class MixShape:
    """An instance type: `devices` slots in groups of `group_devices` that each lie inside one node.

    Some of them may lie `aside`, in other pools than its own, in groups of their own.
    """

    name: str
    role: MixRole
    pool: int
    devices: int
    group_devices: int
    rate_per_s: tuple[float, ...]  # of each demand served alone by one instance; 0 where it cannot
    price_per_hour: float = 0.0
    egress_bytes_per_s: float | None = None  # of one `first` instance; None is unlimited
    ingress_bytes_per_s: float | None = None  # of one `second` instance; None is unlimited
    max_instances: int | None = None
    held_s: tuple[float, ...] = ()  # how long a request of each demand stays here; empty: none
    channel: int = 0  # first stages hand over to second stages of the same channel only
    aside: tuple[Slots, ...] = ()
    lost: int = 0  # instances that one failure takes of every `spread` in use; 0: none is reckoned with
    spread: int | None = None  # None: of any number in use
    least: int = 1  # instances in use, where any are

    @property
    def slots(self) -> tuple[Slots, ...]:
        """What it takes of each pool, its own first."""
        own = self.devices - sum(part.devices for part in self.aside)
        return (Slots(self.pool, own, self.group_devices), *self.aside)

    def losses(self, count: int) -> int:
        """How many times a failure takes `lost` of so many instances."""
        return min(count, 1) if self.spread is None else -(-count // self.spread)


@dataclass(frozen=True, slots=True)
class MixPool:
    """Nodes of one kind, as (free slots, number of nodes with that many)."""

    name: str
    nodes: tuple[tuple[int, int], ...]

    def groups(self, size: int) -> int:
        """How many groups of `size` slots fit when nothing else is placed."""
        return sum(free // size * count for free, count in self.nodes)


@dataclass(frozen=True, slots=True)
class MixDemand:
    """A stream of requests; `rate_per_s` caps it (SCALE, VALUE) or must be met (DEVICES, PRICE).

    Where `clients` wait for their answers instead, what is served keeps at most (SCALE, VALUE) or must keep at least
    (DEVICES, PRICE) so many requests in the system.
    """

    name: str
    share: float = 1.0
    rate_per_s: float | None = None
    value: float = 1.0
    transfer_bytes: float = 0.0  # moved from the first to the second stage per request
    clients: float | None = None


@dataclass(frozen=True, slots=True)
class MixLimits:
    """Limits on the whole mix; None is unlimited, and instance limits are (role, number) pairs."""

    devices: int | None = None
    price_per_hour: float | None = None
    min_instances: tuple[tuple[MixRole, int], ...] = ()
    max_instances: tuple[tuple[MixRole, int], ...] = ()
    shapes: int | None = None  # with an instance at all


@dataclass(frozen=True, slots=True)
class MixProblem:
    """Shapes, pools, demands, limits; `links[p][q]` [bytes/s] carries first-stage output of pool p to pool q."""

    shapes: tuple[MixShape, ...]
    pools: tuple[MixPool, ...]
    demands: tuple[MixDemand, ...]
    objective: MixObjective = MixObjective.SCALE
    links: tuple[tuple[float | None, ...], ...] | None = None  # None, whole or for a pair: unlimited
    limits: MixLimits = MixLimits()

    def link_bytes_per_s(self, source: int, target: int) -> float | None:
        """The capacity between two pools; None is unlimited."""
        return None if self.links is None else self.links[source][target]

    @property
    def maximising(self) -> bool:
        """Whether a larger objective is better."""
        return self.objective in (MixObjective.SCALE, MixObjective.VALUE)


@dataclass(frozen=True, slots=True)
class Flow:
    """First-stage output of one demand that moves from pool `source` to pool `target` in one channel."""

    source: int
    target: int
    demand: int
    channel: int
    rate_per_s: float


@dataclass(frozen=True, slots=True)
class MixSolution:
    """Instances and loads by the shape order of the problem, and what they serve, use and cost."""

    counts: tuple[int, ...]
    load_per_s: tuple[tuple[float, ...], ...]  # [shape][demand]
    flows: tuple[Flow, ...]
    served_per_s: tuple[float, ...]  # [demand]
    devices: int
    price_per_hour: float


def group_sizes(problem: MixProblem, pool: int) -> list[int]:
    """The group sizes of a pool's shapes, ascending; raises PlannerError unless each divides the next."""
    sizes = sorted({part.group_devices for shape in problem.shapes for part in shape.slots if part.pool == pool})
    for small, large in itertools.pairwise(sizes):
        if large % small:
            raise PlannerError(
                f"group sizes {small} and {large} share a pool and do not divide each other",
                where=f"pools.{problem.pools[pool].name}",
                hint="keep the sizes of a pool to a chain such as 1, 2, 4, 8",
            )
    return sizes


def port_bytes_per_s(shape: MixShape) -> float | None:
    """What one instance can send (first stage) or receive (second stage); None is unlimited."""
    if shape.role is MixRole.WHOLE:
        return None
    return shape.egress_bytes_per_s if shape.role is MixRole.FIRST else shape.ingress_bytes_per_s


def most_instances(problem: MixProblem, shape: MixShape) -> int:
    """An upper bound on the instances of a shape: slots, device and price limits, and its own and its role's limit.

    0 where that is less than the least that are in use together.
    """
    limits = problem.limits
    bounds = [
        problem.pools[part.pool].groups(part.group_devices) // (part.devices // part.group_devices)
        for part in shape.slots
    ]
    bounds.extend(number for role, number in limits.max_instances if role is shape.role)
    if shape.max_instances is not None:
        bounds.append(shape.max_instances)
    if limits.devices is not None:
        bounds.append(limits.devices // shape.devices)
    if limits.price_per_hour is not None and shape.price_per_hour > 0.0:
        # A quotient just below a whole number may be rounding of an exact fit; (C6) decides, this only bounds.
        bounds.append(math.floor(limits.price_per_hour / shape.price_per_hour * (1.0 + 1e-12)))
    most = max(0, min(bounds))
    return most if most >= shape.least else 0


def planned_rate(problem: MixProblem, w: int) -> float | None:
    """The rate [1/s] of a demand as the model has it: its own, or the least that can be told from none."""
    rate = problem.demands[w].rate_per_s
    if rate is None or problem.maximising:
        return rate
    return max(rate, LEAST_RATE * max((shape.rate_per_s[w] for shape in problem.shapes), default=0.0))


def part_of_planned(problem: MixProblem, w: int) -> float:
    """The rate of a demand over that of the model: 1, but where the model raises it."""
    rate, planned = problem.demands[w].rate_per_s, planned_rate(problem, w)
    return 1.0 if rate is None or not planned else rate / planned


def validate(problem: MixProblem) -> None:
    waiting = any(demand.clients is not None for demand in problem.demands)
    for index, shape in enumerate(problem.shapes):
        _validate_shape(problem, shape, f"shapes[{index}] {shape.name}", waiting=waiting)
    for demand in problem.demands:
        if demand.clients is not None and not (math.isfinite(demand.clients) and demand.clients > 0.0):
            raise PlannerError(f"clients must be positive, found {demand.clients}", where=f"demands {demand.name}")
        if not problem.maximising and demand.rate_per_s is None and demand.clients is None:
            raise PlannerError(f"objective `{problem.objective}` needs the rate of every demand", where="demands")
    if problem.objective is MixObjective.SCALE and not any(demand.share > 0.0 for demand in problem.demands):
        raise PlannerError("no demand has a share above 0", where="demands")


def _validate_shape(problem: MixProblem, shape: MixShape, where: str, *, waiting: bool) -> None:
    known = all(0 <= part.pool < len(problem.pools) for part in shape.slots)
    if not known or len(shape.rate_per_s) != len(problem.demands):
        raise PlannerError("a shape needs a known pool and one rate for every demand", where=where)
    if len({part.pool for part in shape.slots}) < len(shape.slots):
        raise PlannerError("a shape names a pool twice", where=where)
    if shape.least < 1 or (shape.least > 1 and shape.lost):
        what = f"at least {shape.least} in use together: it takes 1 or more, and no losses beside more than 1"
        raise PlannerError(what, where=where)
    for part in shape.slots:
        if min(part.devices, part.group_devices) < 1 or part.devices % part.group_devices:
            raise PlannerError(f"{part.devices} devices are not whole groups of {part.group_devices}", where=where)
    if not all(math.isfinite(rate) and rate >= 0.0 for rate in (*shape.rate_per_s, shape.price_per_hour)):
        raise PlannerError("rates and prices must be finite and not negative", where=where)
    if waiting and not (len(shape.held_s) == len(problem.demands) and all(map(math.isfinite, shape.held_s))):
        raise PlannerError("clients need how long requests stay in every shape", where=where)


def stage_of(problem: MixProblem, shape: MixShape) -> tuple[object, ...]:
    """What the instances of a shape can stand in for where others fail."""
    by_pool = problem.links is not None or shape.spread is not None
    return shape.role, shape.channel, shape.pool if by_pool else 0
