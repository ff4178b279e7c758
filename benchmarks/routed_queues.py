"""How near formulas of routed queues are to a simulation of such queues, and the two constants fitted again.

python benchmarks/routed_queues.py            both policies, cells that the constants were not fitted to
python benchmarks/routed_queues.py --quick    shorter streams
python benchmarks/routed_queues.py --fit      the constants of power of two choices, fitted to the other half

Cells are all combinations of servers, utilisation, spread of services and of gaps; a cell is held out of the fit where
the last bit of the SHA-256 of its name is 1, or gaps are bursts. Errors are of the wait over one service and the wait.
Beside them stands the best trivial answer, every server as a queue alone, and that times the constant that suits best.
"""

import argparse
import hashlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from scipy.optimize import least_squares

from planner.arrays import Floats, Ints
from planner.solvers.stochastic import routed_queues
from planner.solvers.stochastic.queueing import mean_wait_s, wait_quantile_s
from planner.solvers.stochastic.routed_queues import Routing, routed_wait_quantile_s, routed_wait_s

SERVERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
UTILISATIONS = (0.6, 0.75, 0.85, 0.92)
SERVICE_CVS = (0.0, 0.25, 0.5, 1.0, 2.0)
GAP_CVS = (1.0, 2.0)
COUNT, QUICK_COUNT = 1_000_000, 200_000
QUANTILES = (0.9, 0.99)
KEPT = 4_096  # requests of a queue that are remembered


@dataclass(frozen=True, slots=True)
class Cell:
    """A combination of what waits depend on."""

    servers: int
    rho: float
    service_cv: float
    gap_cv: float

    @property
    def held_out(self) -> bool:
        """Whether the fit does not see it."""
        name = f"{self.servers}|{self.rho}|{self.service_cv}|{self.gap_cv}"
        return hashlib.sha256(name.encode()).digest()[-1] % 2 == 1


@dataclass(frozen=True, slots=True)
class Simulated:
    """The mean wait and its quantiles, in services."""

    mean: float
    quantiles: tuple[float, ...]


@njit(cache=True)
def waits_of(arrivals: Floats, services: Floats, first: Ints, second: Ints, servers: int) -> Floats:
    """Waits [N] where each request goes to the less crowded of two servers, the first of equal ones."""
    waits, free = np.empty(len(arrivals)), np.zeros(servers)
    ends, head, tail = np.zeros((servers, KEPT)), np.zeros(servers, np.int64), np.zeros(servers, np.int64)
    for i in range(len(arrivals)):
        now, best, least = arrivals[i], 0, KEPT + 1
        for server in (first[i], second[i]):
            while head[server] < tail[server] and ends[server, head[server] % KEPT] <= now:
                head[server] += 1
            waiting = tail[server] - head[server]
            if waiting < least:
                best, least = server, waiting
        start = max(now, free[best])
        waits[i] = start - now
        free[best] = start + services[i]
        ends[best, tail[best] % KEPT] = free[best]
        tail[best] += 1
    return waits


def simulated(cell: Cell, routing: Routing, count: int) -> Simulated:
    """A stream of a cell: gamma gaps, log-normal services of mean 1; its first tenth is left out."""
    rng = np.random.default_rng(5)
    shape = 1.0 / cell.gap_cv**2
    arrivals = np.cumsum(rng.gamma(shape, 1.0 / shape / (cell.rho * cell.servers), count))
    deviation = math.sqrt(math.log1p(cell.service_cv**2))
    services = rng.lognormal(-(deviation**2) / 2.0, deviation, count)
    turns = np.arange(count) % cell.servers
    drawn = rng.integers(cell.servers, size=(2, count))
    first, second = (turns, turns) if routing is Routing.ROUND_ROBIN else drawn
    waits = waits_of(arrivals, services, first, second, cell.servers)[count // 10 :]
    return Simulated(float(waits.mean()), tuple(float(np.quantile(waits, q)) for q in QUANTILES))


def formula(cell: Cell, routing: Routing | None) -> Simulated:
    """What formulas say; without a policy those of one server alone."""
    cv2 = {"cv2_arrival": cell.gap_cv**2, "cv2_service": cell.service_cv**2}
    if routing is None:
        alone = [float(wait_quantile_s(cell.rho, 1, 1.0, q, **cv2)) for q in QUANTILES]
        return Simulated(float(mean_wait_s(cell.rho, 1, 1.0, **cv2)), tuple(alone))
    many = cell.servers
    quantiles = (float(routed_wait_quantile_s(routing, cell.rho, many, 1.0, q, **cv2)) for q in QUANTILES)
    return Simulated(float(routed_wait_s(routing, cell.rho, many, 1.0, **cv2)), tuple(quantiles))


def error(said: float, right: float) -> float:
    """Relative to a service and the wait."""
    return (said - right) / (1.0 + right)


def fitted(cells: Sequence[Cell], streams: Sequence[Simulated]) -> tuple[float, float]:
    """The constants of power of two choices that suit these cells best."""

    def errors(constants: Floats) -> list[float]:
        routed_queues.EQUAL_SERVICES, routed_queues.SPREAD_SERVICES = constants
        return [
            error(formula(cell, Routing.POWER_OF_TWO).mean, stream.mean)
            for cell, stream in zip(cells, streams, strict=True)
        ]

    shipped = routed_queues.EQUAL_SERVICES, routed_queues.SPREAD_SERVICES
    best = least_squares(errors, shipped).x
    routed_queues.EQUAL_SERVICES, routed_queues.SPREAD_SERVICES = shipped
    return float(best[0]), float(best[1])


def cells() -> Iterator[Cell]:
    """All combinations."""
    for row in itertools.product(SERVERS, UTILISATIONS, SERVICE_CVS, GAP_CVS):
        yield Cell(*row)


def _row(name: str, rows: Sequence[tuple[Simulated, Simulated]], factor: float = 1.0) -> str:
    means = [error(factor * said.mean, right.mean) for said, right in rows]
    cells_of = [f"{np.mean(np.abs(means)):7.1%} {np.mean(means):+7.1%}"]
    for i in range(len(QUANTILES)):
        errors = [error(factor * said.quantiles[i], right.quantiles[i]) for said, right in rows]
        cells_of.append(f"{np.mean(np.abs(errors)):7.1%} {np.mean(errors):+7.1%}")
    return f"{name:34s} {'   '.join(cells_of)}"


def main() -> int:
    """Prints mean absolute and signed errors of held-out cells, by policy and spread of gaps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter streams")
    parser.add_argument("--fit", action="store_true", help="fit the constants again")
    given = parser.parse_args()
    count = QUICK_COUNT if given.quick else COUNT
    if given.fit:
        seen = [cell for cell in cells() if not cell.held_out and cell.gap_cv == 1.0]
        streams = [simulated(cell, Routing.POWER_OF_TWO, count) for cell in seen]
        equal, spread = fitted(seen, streams)
        print(f"{len(seen)} cells: EQUAL_SERVICES {equal:.3f}, SPREAD_SERVICES {spread:.3f}")
        return 0
    print(f"{'held-out cells':34s} mean wait         p90               p99      (absolute, signed)")
    for routing, gap_cv in itertools.product(Routing, GAP_CVS):
        unseen = [cell for cell in cells() if cell.held_out and cell.gap_cv == gap_cv]
        streams = [simulated(cell, routing, count) for cell in unseen]
        ours = [(formula(cell, routing), stream) for cell, stream in zip(unseen, streams, strict=True)]
        alone = [(formula(cell, None), stream) for cell, stream in zip(unseen, streams, strict=True)]
        factor = min(
            np.geomspace(0.01, 1.0, 200).tolist(),
            key=lambda scale: sum(abs(error(scale * said.mean, right.mean)) for said, right in alone),
        )
        print(_row(f"{routing}, gaps of cv {gap_cv:g}, {len(unseen)}", ours))
        print(_row("  each server alone", alone))
        print(_row(f"  each alone, times {factor:.2f}", alone, factor))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
