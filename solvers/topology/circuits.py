"""Circuits between pods for phases that repeat: integer links, and what it costs to switch them between phases.

Source      RFabric of OrchestrRL, arXiv:2601.01209; one phase alone is the one-hop optimum of ATRO, arXiv:2507.13717
Sets        i, j in N pods, p in P phases in a circle
Parameters  D_ijp [bytes] that pods i and j exchange in phase p, r [bytes/s] of a link, Q links that a pod has room for
            delta [s] that a change of circuits takes
Variables   x_ijp in {0, 1, ..} links between i and j in phase p;  T_p [s]
Objective   min sum_p T_p + delta * number of p with x_p != x_{p-1}   (around the circle; none where P = 1)
(C1) D_ijp <= r x_ijp T_p        for every pair and phase
(C2) sum_j x_ijp <= Q            for every pod and phase
Method      phases between two changes share one map. Given T_p, the least map that (C1) allows is
            x_ij = max over those phases of ceil(D_ijp / (r T_p)), and it only has to keep (C2); T_p is one of
            D_ijp / (r k), k = 1 .. Q. The least sum of times of a run of phases is found by depth first over these
            thresholds, phase by phase; a partial choice is cut off where it and the least time of each phase that is
            left, given the links so far, come to no less than the best. A circle is cut into runs by dynamic
            programming from every phase. A run that costs more than its phases apart is never needed.

Shapes: P phases, E pairs of pods that exchange in some phase, N pods.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE, SOLVER = "circuits", "circular runs of phases x thresholds"
DUST = 1e-12  # of a time

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Circuits:
    """The problem; raises PlannerError for demands between no pods, and for links without a rate."""

    pods: int
    ports: int  # links that a pod has room for
    link_bytes_per_s: float
    switching_s: float
    phases: tuple[dict[Pair, float], ...]  # bytes by pair i < j

    def __post_init__(self) -> None:
        if not (self.link_bytes_per_s > 0 and math.isfinite(self.link_bytes_per_s)):
            what = f"a link carries {self.link_bytes_per_s:g} bytes/s"
            raise PlannerError(what, where=WHERE, hint="give a rate above 0")
        if self.pods < 2 or self.ports < 1 or not self.switching_s >= 0.0 or not self.phases:
            what = (
                f"{self.pods} pods of {self.ports} ports, {self.switching_s:g} s to switch, {len(self.phases)} phases"
            )
            raise PlannerError(what, where=WHERE, hint="give two pods, a port, a phase, and a time of 0 or more")
        for number, demand in enumerate(self.phases):
            for (i, j), size in demand.items():
                if not (0 <= i < j < self.pods and size >= 0.0 and math.isfinite(size)):
                    what = f"phase {number} has {size:g} bytes between pods {i} and {j}"
                    hint = f"pods are 0 to {self.pods - 1}, the lower one first, and bytes 0 or more"
                    raise PlannerError(what, where=WHERE, hint=hint)

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Pairs that exchange in some phase, in order."""
        return tuple(sorted({pair for demand in self.phases for pair, size in demand.items() if size > 0.0}))

    def seconds(self, links: Sequence[dict[Pair, int]]) -> float:
        """The objective of links by phase; infinite where a pair that exchanges has none. Ports are not looked at."""
        total = 0.0
        for demand, linked in zip(self.phases, links, strict=True):
            times = [
                size / (linked[pair] * self.link_bytes_per_s) if linked.get(pair) else math.inf
                for pair, size in demand.items()
                if size > 0.0
            ]
            total += max(times, default=0.0)
        return total + self.switching_s * self.changes(links)

    @staticmethod
    def changes(links: Sequence[dict[Pair, int]]) -> int:
        """How often the circuits change in one round."""
        return sum(links[p] != links[p - 1] for p in range(len(links))) if len(links) > 1 else 0


@dataclass(frozen=True, slots=True)
class Circuit:
    """Links by pair for every phase, and how often they change in one round."""

    links: tuple[dict[Pair, int], ...]
    changes: int


def circuits(problem: Circuits, *, node_limit: int = 2_000_000) -> SolveResult[Circuit]:
    """The links of every phase with the shortest round; objective and bound in seconds.

    INFEASIBLE where a pod exchanges with more pods in one phase than it has ports. FEASIBLE where some run of phases
    needed more than `node_limit` choices; the bound holds then.
    """
    started_s = time.perf_counter()
    search = _Search(problem, node_limit)
    if any(math.isinf(search.alone_s(p)) for p in range(len(problem.phases))):
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, time.perf_counter() - started_s, SOLVER)
    runs = {run: search.best(run) for run in _runs(len(problem.phases))}
    _, chosen = _cheapest_circle({run: best.seconds for run, best in runs.items()}, problem)
    bound, _ = _cheapest_circle({run: best.bound_s for run, best in runs.items()}, problem)
    links: list[dict[Pair, int]] = [{} for _ in problem.phases]
    for run in chosen:
        for phase in run:
            links[phase] = runs[run].links
    circuit = Circuit(tuple(links), problem.changes(links))
    objective = problem.seconds(links)
    finished = all(best.finished for best in runs.values()) or bound >= objective * (1.0 - DUST)
    return SolveResult(
        Status.OPTIMAL if finished else Status.FEASIBLE,
        "finished" if finished else "node_limit",
        circuit,
        objective,
        objective if finished else min(bound, objective),
        time.perf_counter() - started_s,
        SOLVER,
    )


@dataclass(slots=True)
class _Run:
    """The best map of a run of phases as far as known: infinite where none was found that is worth its while."""

    seconds: float
    bound_s: float
    links: dict[Pair, int]
    finished: bool = True


def _runs(phases: int) -> Iterator[tuple[int, ...]]:
    """Successive phases around the circle, the whole circle once."""
    for length in range(1, phases):
        for first in range(phases):
            yield tuple((first + step) % phases for step in range(length))
    yield tuple(range(phases))


def _cheapest_circle(
    seconds: dict[tuple[int, ...], float], problem: Circuits
) -> tuple[float, tuple[tuple[int, ...], ...]]:
    """The runs that a circle is best cut into, with their seconds and those of the changes between them."""
    phases, whole = len(problem.phases), tuple(range(len(problem.phases)))
    best: tuple[float, tuple[tuple[int, ...], ...]] = (seconds[whole], (whole,))
    for first in range(phases if phases > 1 else 0):
        ways: list[tuple[float, tuple[tuple[int, ...], ...]]] = [(0.0, ())]
        for end in range(1, phases + 1):
            options = []
            for length in range(1, min(end, phases - 1) + 1):
                before = ways[end - length]
                run = tuple((first + end - length + step) % phases for step in range(length))
                options.append((before[0] + seconds[run] + problem.switching_s, (*before[1], run)))
            ways.append(min(options))
        best = min(best, ways[-1])
    return best


class _Search:
    """Least sums of times of runs of phases that share one map."""

    def __init__(self, problem: Circuits, node_limit: int) -> None:
        self.problem, self.node_limit = problem, node_limit
        self.pairs = problem.pairs
        count = len(problem.phases), len(self.pairs)
        seconds_PE = np.zeros(count)  # of every pair over one link
        for phase, demand in enumerate(problem.phases):
            for column, pair in enumerate(self.pairs):
                seconds_PE[phase, column] = demand.get(pair, 0.0) / problem.link_bytes_per_s
        self.seconds_PE = seconds_PE
        self.ends_NE = np.zeros((problem.pods, len(self.pairs)))
        for column, (i, j) in enumerate(self.pairs):
            self.ends_NE[i, column] = self.ends_NE[j, column] = 1.0
        self.thresholds = [self._thresholds(row) for row in seconds_PE]
        self.none = np.zeros(len(self.pairs))
        self.nodes = 0

    def _thresholds(self, seconds_E: Floats) -> Floats:
        """The times that a phase can take, ascending: those at which some pair needs one link less."""
        active = seconds_E[seconds_E > 0.0]
        if not len(active):
            return np.zeros(1)
        return np.unique(active[:, None] / np.arange(1, self.problem.ports + 1))

    def needs(self, phase: int, threshold_s: float) -> Floats:
        """Links [E] of every pair for a phase to take no longer: (C1), rounded where a division is off by dust."""
        if threshold_s == 0.0:
            return self.none
        return np.asarray(np.ceil(self.seconds_PE[phase] / threshold_s * (1.0 - DUST)))

    def fits(self, links_E: Floats) -> bool:
        """(C2)."""
        return bool((self.ends_NE @ links_E).max(initial=0.0) <= self.problem.ports)

    def first(self, phase: int, links_E: Floats) -> int:
        """The place of the least threshold at which a phase fits beside the links; behind the last where none does."""
        times = self.thresholds[phase]
        low, high = 0, len(times)
        while low < high:
            middle = (low + high) // 2
            if self.fits(np.maximum(links_E, self.needs(phase, times[middle]))):
                high = middle
            else:
                low = middle + 1
        return low

    def least_s(self, phase: int, links_E: Floats) -> float:
        place = self.first(phase, links_E)
        return float(self.thresholds[phase][place]) if place < len(self.thresholds[phase]) else math.inf

    def alone_s(self, phase: int) -> float:
        return self.least_s(phase, self.none)

    def best(self, run: tuple[int, ...]) -> _Run:
        """The best map of a run, where one is no slower than its phases apart and switched each time."""
        alone = [self.alone_s(phase) for phase in run]
        worth = math.fsum(alone) + len(run) * self.problem.switching_s * (len(run) > 1)
        best = _Run(math.inf, math.inf, {})
        # The phase with the fewest thresholds that are worth its while comes first.
        room = worth - math.fsum(alone)
        order = sorted(run, key=lambda p: self._worth_trying(p, self.alone_s(p) + room))
        self.nodes = 0
        self._extend(order, 0.0, self.none, best, worth * (1.0 + DUST))
        if best.finished:
            best.bound_s = best.seconds
        else:
            best.bound_s = min(math.fsum(alone), best.seconds)
        return best

    def _worth_trying(self, phase: int, most_s: float) -> int:
        times = self.thresholds[phase]
        return int(np.searchsorted(times, most_s, "right") - np.searchsorted(times, self.alone_s(phase)))

    def _extend(self, left: Sequence[int], spent_s: float, links_E: Floats, best: _Run, most_s: float) -> None:
        """Depth first over the thresholds of the phases left, cut off by the least time of each."""
        phase, later = left[0], left[1:]
        times = self.thresholds[phase]
        for place in range(self.first(phase, links_E), len(times)):
            self.nodes += 1
            if self.nodes > self.node_limit:
                best.finished = False
                return
            threshold_s = float(times[place])
            limit_s = min(best.seconds * (1.0 - DUST), most_s)
            if spent_s + threshold_s + math.fsum(self.least_s(p, links_E) for p in later) >= limit_s:
                return
            links = np.maximum(links_E, self.needs(phase, threshold_s))
            if not later:
                best.seconds = spent_s + threshold_s
                best.links = {pair: int(n) for pair, n in zip(self.pairs, links, strict=True) if n}
                return
            if spent_s + threshold_s + math.fsum(self.least_s(p, links) for p in later) < limit_s:
                self._extend(later, spent_s + threshold_s, links, best, most_s)
