"""Copies of a service by slot of a day: the fewest copy-slots that serve a share of the load, start-ups paid.

Sets        t in T slots, n in 0..M copies
Parameters  a_t requests of slot t;  c that a copy serves in a slot;  s in [0, 1] of a slot in which copies that arrive
            start up (they are paid meanwhile);  w >= 0 copy-slots that a change by one copy costs;  A = q sum_t a_t to
            be served;  n_0 copies before the day
Variables   n_t copies in slot t
Minimise    sum_t n_t + w |n_t - n_t-1|
(C1) sum_t s min(a_t, c min(n_t-1, n_t)) + (1 - s) min(a_t, c n_t) >= A
With (C1) priced at l a request, the least cost of a day is a shortest path, v_t(n) = min over m of v_t-1(m) + cost - l
served, and v + l A is a bound for every l >= 0: O(T M^2) each. Without start-ups and changes every copy-slot costs the
same, and the k-th copy of a slot serves min(c, a_t - (k - 1) c): taking them by what they serve, the most first, is
exact there, and a bound on every schedule whatever its start-up.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

SOLVER = "priced shortest paths"
HALVINGS = 40
DUST = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """A service over slots; raises PlannerError for numbers that are none of a service."""

    load_T: Floats  # requests of each slot
    capacity: float  # requests that a copy serves in a slot
    share: float  # of all requests, to be served
    start_up: float = 0.0  # of a slot
    change: float = 0.0  # copy-slots that one copy more or fewer costs
    before: int = 0

    def __post_init__(self) -> None:
        if not len(self.load_T) or not np.isfinite(self.load_T).all() or (self.load_T < 0.0).any():
            raise PlannerError("a load without slots, or with one below 0", where="load", hint="give requests by slot")
        if not self.capacity > 0.0 or not 0.0 <= self.share <= 1.0 or not 0.0 <= self.start_up <= 1.0:
            what = f"capacity {self.capacity:g}, share {self.share:g}, start-up {self.start_up:g} of a slot"
            hint = "a copy serves something, shares are 0 to 1, and slots are no shorter than a start-up"
            raise PlannerError(what, where="service", hint=hint)

    @property
    def wanted(self) -> float:
        """Requests to be served."""
        return self.share * float(self.load_T.sum())

    @property
    def most(self) -> int:
        """Copies beyond which none serves anything."""
        return max(int(np.ceil(float(self.load_T.max()) / self.capacity - DUST)), self.before, 1)

    def served(self, copies_T: Sequence[int]) -> float:
        """Requests that a schedule serves."""
        return float(self.served_by_slot(copies_T).sum())

    def served_by_slot(self, copies_T: Sequence[int]) -> Floats:
        """[T]"""
        now_T = np.array(copies_T, dtype=np.float64)
        early_T = np.minimum(np.array([self.before, *copies_T[:-1]], dtype=np.float64), now_T)
        early, late = (np.minimum(self.load_T, self.capacity * each) for each in (early_T, now_T))
        return np.asarray(self.start_up * early + (1.0 - self.start_up) * late)

    def cost(self, copies_T: Sequence[int]) -> float:
        """Copy-slots, changes included."""
        steps = np.abs(np.diff([self.before, *copies_T])).sum()
        return float(sum(copies_T)) + self.change * float(steps)


def fewest_copy_slots(service: Service) -> int:
    """Copy-slots that any schedule needs, by what the copies of every slot serve, the most first."""
    full_T, rest_T = np.divmod(service.load_T, service.capacity)
    left, full = service.wanted * (1.0 - DUST), int(full_T.sum())
    if left <= full * service.capacity:
        return int(np.ceil(left / service.capacity - DUST))
    reached = full * service.capacity + np.cumsum(np.sort(rest_T)[::-1])
    return full + min(int(np.searchsorted(reached, left)) + 1, len(rest_T))


def schedule(service: Service) -> SolveResult[tuple[int, ...]]:
    """Copies by slot and a bound; INFEASIBLE where start-ups leave too little time."""
    started_s = time.perf_counter()
    best, bound = None, float(fewest_copy_slots(service))
    low, high = 0.0, 4.0 * (1.0 + service.change) * len(service.load_T) / service.capacity
    for _ in range(HALVINGS):
        price = (low + high) / 2.0
        path, value = _priced(service, price)
        bound = max(bound, value + price * service.wanted)
        enough = service.served(path) >= service.wanted * (1.0 - DUST)
        low, high = (low, price) if enough else (price, high)
        if enough and (best is None or service.cost(path) < service.cost(best)):
            best = path
    took_s = time.perf_counter() - started_s
    if best is None:
        every = (service.most,) * len(service.load_T)
        if service.served(every) < service.wanted * (1.0 - DUST):
            return SolveResult(Status.INFEASIBLE, "finished", None, None, None, took_s, SOLVER)
        best = every
    best = _thinned(service, best)
    cost = service.cost(best)
    bound = min(bound, cost)
    status = Status.OPTIMAL if cost - bound <= DUST * max(cost, 1.0) else Status.FEASIBLE
    return SolveResult(status, "finished", best, cost, bound, time.perf_counter() - started_s, SOLVER)


def _priced(service: Service, price: float) -> tuple[tuple[int, ...], float]:
    """The shortest path at a price of a request, and its length."""
    number_N = np.arange(service.most + 1, dtype=np.float64)
    change_NN = service.change * np.abs(number_N[:, None] - number_N)
    held_NN = np.minimum(number_N[:, None], number_N)
    value_N = np.where(number_N == service.before, 0.0, np.inf)
    came = []
    for load in service.load_T:
        late_N = np.minimum(load, service.capacity * number_N)
        early_NN = np.minimum(load, service.capacity * held_NN)
        worth_NN = price * (service.start_up * early_NN + (1.0 - service.start_up) * late_N)
        through_NN = value_N[:, None] + number_N + change_NN - worth_NN
        came.append(through_NN.argmin(axis=0))
        value_N = through_NN.min(axis=0)
    path = [int(value_N.argmin())]
    for origin_N in reversed(came[1:]):
        path.append(int(origin_N[path[-1]]))
    return tuple(reversed(path)), float(value_N.min())


def _thinned(service: Service, copies_T: tuple[int, ...]) -> tuple[int, ...]:
    """The schedule without copies, slot by slot, that it serves enough without."""
    best = list(copies_T)
    for slot in sorted(range(len(best)), key=lambda t: service.load_T[t]):
        fewer = [*best[:slot], max(best[slot] - 1, 0), *best[slot + 1 :]]
        if service.served(fewer) >= service.wanted * (1.0 - DUST) and service.cost(fewer) < service.cost(best):
            best = fewer
    return tuple(best)
