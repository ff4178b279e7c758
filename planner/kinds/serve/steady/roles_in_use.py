"""Instance types that a solved mix uses, with the load that each carries, and how sure their times are."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner.costs.operators.work import Shards
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import Margins, Target
from planner.kinds.serve.steady.operate import Operation, operate
from planner.kinds.serve.steady.points import PoolCosts
from planner.solvers.mix import MixSolution

FUNCTIONS = ("colocated", "prefill", "decode", "attention")
Side = tuple[str, PoolCosts, Shards]
"""Function, costs of the pool and degrees of the instances of a role."""
ALIKE = 1.0 - 1e-6  # loads of a role this near to one another differ by what solvers round


@dataclass(frozen=True, slots=True)
class RoleInUse:
    """One instance type of the plan: its role's name, how many, and the load of all of them by target."""

    role: str
    candidate: Candidate
    count: int
    load_per_s: tuple[float, ...]

    @property
    def ffn_role(self) -> str:
        """The name of the role of its feed-forward side, where that stands on devices of its own."""
        return self.role.replace("attention", "ffn", 1)

    @property
    def busy(self) -> float:
        """The share of its time that its load takes, all workloads together."""
        return sum(
            load / (self.count * rate)
            for load, rate in zip(self.load_per_s, self.candidate.rates_per_s, strict=True)
            if load > 0.0 and rate > 0.0
        )

    @property
    def most_of(self) -> int:
        """The target that loads the role most; of loads alike but for rounding, the first."""
        least = max(self.load_per_s) * ALIKE
        return next(w for w, load in enumerate(self.load_per_s) if load >= least)

    def kv_bytes(self) -> float:
        """Cache on a device for the workload that needs most of those that it serves; of any, where it serves none."""
        pairs = [(c, load) for c, load in zip(self.candidate.capacities, self.load_per_s, strict=True) if c is not None]
        loaded = [capacity.kv_bytes for capacity, load in pairs if load > 0.0]
        return max(loaded or [capacity.kv_bytes for capacity, _ in pairs if capacity.rate_per_s > 0.0])

    def operation(self, target: Target, pool_costs: PoolCosts, scale: float = 1.0) -> Operation:
        """One of its instances on `target`, as loaded by all workloads together, at `scale` times that load."""
        rate_per_s = self.candidate.capacity(target).rate_per_s
        return operate(self.candidate, target, pool_costs, rate_per_s * self.busy * scale)


def roles_in_use(candidates: Sequence[Candidate], solution: MixSolution) -> list[RoleInUse]:
    """Instance types in use, largest role first inside each function, with names that say function and order."""
    rows = zip(candidates, solution.counts, solution.load_per_s, strict=True)
    chosen = [row for row in rows if row[1]]
    chosen.sort(
        key=lambda row: (
            FUNCTIONS.index(row[0].function),
            row[0].model,
            row[0].pool,
            -row[1],
            row[0].shape,
            row[0].name,
        )
    )
    totals = Counter(candidate.function for candidate, _, _ in chosen)
    numbers: Counter[str] = Counter()
    roles = []
    for candidate, count, load in chosen:
        function = candidate.function
        numbers[function] += 1
        name = function if totals[function] == 1 else f"{function}-{numbers[function]}"
        roles.append(RoleInUse(name, _as_many(candidate, count, candidates), count, load))
    return roles


def _as_many(candidate: Candidate, count: int, candidates: Sequence[Candidate]) -> Candidate:
    """The type with waits as of the most instances together that so many are, of those that keep the limits."""
    way = candidate.channel, candidate.routing
    alike = [c for c in candidates if c.together <= count and (c.channel, c.routing) == way and c.is_alike(candidate)]
    return max((candidate, *alike), key=lambda each: each.together)


def margins_in_use(target: Target, sides: Iterable[Side]) -> Margins:
    """By how much limits of a target are divided on these roles: as the one that decodes and is least sure asks."""
    at = target.margins.by_layout
    if at is None:
        return target.margins
    own = (float(costs.margin(of, shards, at)[0]) for of, costs, shards in sides if of != "prefill")
    return Margins(target.margins.ttft, max(own, default=1.0))
