"""Brute force for small mix problems: every vector of counts, placed by search, loads by SciPy's linear programs."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.solvers.mix import MixObjective, MixProblem, MixRole, MixShape

FloatArray = NDArray[np.float64]


def brute_force_mix(problem: MixProblem) -> float | None:
    """The optimal objective, or None when no mix is feasible; written in rates, without the model's scaling.

    Mixes are tried in order of the best that they could reach, up to the first that cannot beat the best so far.
    """
    best: float | None = None
    ranges = [range(_most_instances(problem, shape) + 1) for shape in problem.shapes]
    sign = 1.0 if problem.maximising else -1.0
    tried = [(sign * _at_best(problem, counts), counts) for counts in itertools.product(*ranges)]
    for at_best, counts in sorted(tried, reverse=True):
        if best is not None and at_best <= sign * best:
            break
        if not _within_limits(problem, counts) or not _placeable(problem, counts):
            continue
        value = _objective(problem, counts)
        if value is not None and (best is None or sign * value > sign * best):
            best = value
    return best


def _at_best(problem: MixProblem, counts: Sequence[int]) -> float:
    """The cost of a mix, or no less than the most that it gives: all its engines busy with what counts most."""
    pairs = [(shape, count) for shape, count in zip(problem.shapes, counts, strict=True) if count]
    if not problem.maximising:
        by_devices = problem.objective is MixObjective.DEVICES
        return float(sum((s.devices if by_devices else s.price_per_hour) * k for s, k in pairs))
    demands = range(len(problem.demands))
    served = [(shape, count) for shape, count in pairs if shape.role is not MixRole.FIRST]
    if problem.objective is MixObjective.SCALE:
        shares = [(w, problem.demands[w].share) for w in demands if problem.demands[w].share > 0.0]
        rates = (sum(s.rate_per_s[w] * k for s, k in served) / share for w, share in shares)
        return (1.0 + 1e-9) * min(rates, default=math.inf)
    worth = [max(problem.demands[w].value * s.rate_per_s[w] for w in demands) * k for s, k in served]
    return (1.0 + 1e-9) * sum(worth)


def _most_instances(problem: MixProblem, shape: MixShape) -> int:
    """By free slots, by devices, and by its own limit; what else limits it is tried."""
    bounds = [
        sum(free * number for free, number in problem.pools[part.pool].nodes) // part.devices for part in shape.slots
    ]
    bounds += [limit for limit in (shape.max_instances,) if limit is not None]
    bounds += [limit // shape.devices for limit in (problem.limits.devices,) if limit is not None]
    return min(bounds)


def can_place(free: Sequence[int], groups: Sequence[int]) -> bool:
    """Whether groups of slots fit on nodes, by exhaustive search over which node takes each."""
    if not groups:
        return True
    tried = set()
    for node, slots in enumerate(free):
        if slots >= groups[0] and slots not in tried:
            tried.add(slots)
            rest = [*free[:node], slots - groups[0], *free[node + 1 :]]
            if can_place(rest, groups[1:]):
                return True
    return False


def _within_limits(problem: MixProblem, counts: Sequence[int]) -> bool:
    limits = problem.limits
    pairs = list(zip(problem.shapes, counts, strict=True))

    def instances(role: MixRole) -> int:
        return sum(count for shape, count in pairs if shape.role is role)

    return (
        (limits.devices is None or sum(s.devices * k for s, k in pairs) <= limits.devices)
        and (limits.price_per_hour is None or sum(s.price_per_hour * k for s, k in pairs) <= limits.price_per_hour)
        and (limits.shapes is None or sum(count > 0 for count in counts) <= limits.shapes)
        and all(count == 0 or count >= shape.least for shape, count in pairs)
        and all(instances(role) >= number for role, number in limits.min_instances)
        and all(instances(role) <= number for role, number in limits.max_instances)
    )


def _placeable(problem: MixProblem, counts: Sequence[int]) -> bool:
    for index, pool in enumerate(problem.pools):
        free = [slots for slots, number in pool.nodes for _ in range(number)]
        groups = [
            part.group_devices
            for shape, count in zip(problem.shapes, counts, strict=True)
            for part in shape.slots
            if part.pool == index
            for _ in range(count * part.devices // part.group_devices)
        ]
        if sum(groups) > sum(free) or not can_place(free, sorted(groups, reverse=True)):
            return False
    return True


def role_groups(problem: MixProblem) -> list[set[int]]:
    """Shapes that stand in for one another: of one stage, channel and (with links) pool, joined by demands."""
    groups: list[set[int]] = []

    def joined(c: int, group: set[int]) -> bool:
        shape = problem.shapes[c]
        return any(
            (shape.role, shape.channel) == (near.role, near.channel)
            and (problem.links is None or shape.pool == near.pool)
            and any(a > 0.0 and b > 0.0 for a, b in zip(shape.rate_per_s, near.rate_per_s, strict=True))
            for near in (problem.shapes[k] for k in group)
        )

    for c in range(len(problem.shapes)):
        near = [group for group in groups if joined(c, group)]
        groups = [group for group in groups if group not in near] + [{c}.union(*near)]
    return groups


def failures_of(problem: MixProblem, counts: Sequence[int]) -> Iterator[dict[int, int]]:
    """Instances lost by shape: of each role those of one shape in use; none where no failure is reckoned with."""
    if not any(shape.lost for shape in problem.shapes):
        return
    used = [[c for c in sorted(group) if counts[c]] for group in role_groups(problem)]
    for hit in itertools.product(*filter(None, used)):
        yield {c: problem.shapes[c].lost for c in hit}


def survives_nodes(problem: MixProblem, counts: Sequence[int]) -> bool:
    """Whether shapes of one role and demand, whose rate must be met, can stand on nodes of which any may fail."""
    (rate,) = (demand.rate_per_s for demand in problem.demands)
    free = [slots for slots, number in problem.pools[0].nodes for _ in range(number)]
    instances = [c for c, count in enumerate(counts) for _ in range(count)]
    total = sum(problem.shapes[c].rate_per_s[0] for c in instances)
    for nodes in itertools.product(range(len(free)), repeat=len(instances)):
        held = [[c for c, node in zip(instances, nodes, strict=True) if node == k] for k in range(len(free))]
        fits = all(sum(problem.shapes[c].devices for c in on) <= room for on, room in zip(held, free, strict=True))
        worst = max(sum(problem.shapes[c].rate_per_s[0] for c in on) for on in held)
        if fits and total - worst >= (rate or 0.0):
            return True
    return False


@dataclass(slots=True)
class _Program:
    """A linear program over x[c, w], f[p, q, w, k] and t, in rows as they come."""

    problem: MixProblem
    failures: int = 0  # each with loads of its own
    upper_rows: list[tuple[FloatArray, float]] = field(default_factory=list)
    equal_rows: list[tuple[FloatArray, float]] = field(default_factory=list)

    @property
    def width(self) -> int:
        links = len(self.problem.pools) ** 2 * len(self.channels)
        shapes = len(self.problem.shapes) * (1 + self.failures)
        return len(self.problem.demands) * (shapes + links) + 1

    @property
    def channels(self) -> list[int]:
        return sorted({shape.channel for shape in self.problem.shapes})

    def x(self, c: int, w: int) -> int:
        return c * len(self.problem.demands) + w

    def f(self, p: int, q: int, w: int, k: int) -> int:
        pools, demands = len(self.problem.pools), len(self.problem.demands)
        link = (self.channels.index(k) * pools + p) * pools + q
        return len(self.problem.shapes) * demands + link * demands + w

    def y(self, failure: int, c: int, w: int) -> int:
        """The load of a shape after a failure."""
        return self.width - 2 - self.x(c, w) - failure * len(self.problem.shapes) * len(self.problem.demands)

    def row(self, entries: dict[int, float]) -> FloatArray:
        values = np.zeros(self.width)
        for column, value in entries.items():
            values[column] += value
        return values

    def served(self, w: int) -> dict[int, float]:
        return {self.x(c, w): 1.0 for c, shape in enumerate(self.problem.shapes) if shape.role is not MixRole.FIRST}

    def add_shapes(self, counts: Sequence[int]) -> None:
        W = range(len(self.problem.demands))
        for c, shape in enumerate(self.problem.shapes):
            for w in W:
                if shape.rate_per_s[w] == 0.0:
                    self.equal_rows.append((self.row({self.x(c, w): 1.0}), 0.0))
            busy = {self.x(c, w): 1.0 / shape.rate_per_s[w] for w in W if shape.rate_per_s[w] > 0.0}
            self.upper_rows.append((self.row(busy), counts[c]))
            port = {MixRole.FIRST: shape.egress_bytes_per_s, MixRole.SECOND: shape.ingress_bytes_per_s}.get(shape.role)
            if port is not None:
                sent = {self.x(c, w): self.problem.demands[w].transfer_bytes / 1e9 for w in W}
                self.upper_rows.append((self.row(sent), port / 1e9 * counts[c]))

    def add_flows(self) -> None:
        P, W = range(len(self.problem.pools)), range(len(self.problem.demands))
        for w, p, k in itertools.product(W, P, self.channels):
            for role in (MixRole.FIRST, MixRole.SECOND):
                flows = {self.f(p, q, w, k) if role is MixRole.FIRST else self.f(q, p, w, k): -1.0 for q in P}
                own = (role, p, k)
                members = (c for c, s in enumerate(self.problem.shapes) if (s.role, s.pool, s.channel) == own)
                self.equal_rows.append((self.row({self.x(c, w): 1.0 for c in members} | flows), 0.0))
        for p, q in itertools.product(P, P):
            capacity = None if self.problem.links is None else self.problem.links[p][q]
            if capacity is not None:
                moved = {
                    self.f(p, q, w, k): self.problem.demands[w].transfer_bytes / 1e9 for w in W for k in self.channels
                }
                self.upper_rows.append((self.row(moved), capacity / 1e9))

    def add_demands(self) -> None:
        for w, demand in enumerate(self.problem.demands):
            if self.problem.objective is MixObjective.SCALE:
                self.equal_rows.append((self.row(self.served(w) | {self.width - 1: -demand.share}), 0.0))
            if demand.rate_per_s is not None:
                rows = self.upper_rows if self.problem.maximising else self.equal_rows
                rows.append((self.row(self.served(w)), demand.rate_per_s))
            if demand.clients is not None:
                sign = 1.0 if self.problem.maximising else -1.0
                inside = {self.x(c, w): sign * shape.held_s[w] for c, shape in enumerate(self.problem.shapes)}
                self.upper_rows.append((self.row(inside), sign * demand.clients))

    def add_failures(self, counts: Sequence[int]) -> None:
        """What any failure leaves of every role at once carries the same loads, and no more or fewer clients."""
        W = range(len(self.problem.demands))
        for s, lost in enumerate(failures_of(self.problem, counts)):
            left = [count - lost.get(c, 0) for c, count in enumerate(counts)]
            for c, shape in enumerate(self.problem.shapes):
                for w in W:
                    if shape.rate_per_s[w] == 0.0:
                        self.equal_rows.append((self.row({self.y(s, c, w): 1.0}), 0.0))
                busy = {self.y(s, c, w): 1.0 / shape.rate_per_s[w] for w in W if shape.rate_per_s[w] > 0.0}
                self.upper_rows.append((self.row(busy), left[c]))
                port = {MixRole.FIRST: shape.egress_bytes_per_s, MixRole.SECOND: shape.ingress_bytes_per_s}
                most = port.get(shape.role)
                if most is not None:
                    sent = {self.y(s, c, w): self.problem.demands[w].transfer_bytes / 1e9 for w in W}
                    self.upper_rows.append((self.row(sent), most / 1e9 * left[c]))
            for members in role_groups(self.problem):
                for w in W:
                    same = {self.y(s, c, w): 1.0 for c in members} | {self.x(c, w): -1.0 for c in members}
                    self.equal_rows.append((self.row(same), 0.0))
            for w, demand in enumerate(self.problem.demands):
                if demand.clients is not None:
                    sign = 1.0 if self.problem.maximising else -1.0
                    inside = {self.y(s, c, w): sign * shape.held_s[w] for c, shape in enumerate(self.problem.shapes)}
                    self.upper_rows.append((self.row(inside), sign * demand.clients))

    def value(self) -> FloatArray:
        if self.problem.objective is MixObjective.SCALE:
            return self.row({self.width - 1: 1.0})
        if self.problem.objective is MixObjective.VALUE:
            pairs = ((w, demand.value) for w, demand in enumerate(self.problem.demands))
            return self.row({column: value for w, value in pairs for column in self.served(w)})
        return np.zeros(self.width)


def _objective(problem: MixProblem, counts: Sequence[int]) -> float | None:
    """The best objective with these counts, or None when they cannot serve."""
    from scipy.optimize import linprog

    program = _Program(problem, sum(1 for _ in failures_of(problem, counts)))
    program.add_shapes(counts)
    program.add_flows()
    program.add_demands()
    program.add_failures(counts)
    value = program.value()
    result = linprog(
        -value,
        A_ub=np.array([row for row, _ in program.upper_rows]),
        b_ub=np.array([side for _, side in program.upper_rows]),
        A_eq=np.array([row for row, _ in program.equal_rows]),
        b_eq=np.array([side for _, side in program.equal_rows]),
        bounds=(0.0, None),
    )
    if result.status != 0 or result.x is None:
        return None
    return float(value @ result.x) if problem.maximising else _at_best(problem, counts)
