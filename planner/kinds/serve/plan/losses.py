"""What each failure that a plan reckons with takes of its roles, and how busy that leaves the rest."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from planner.hardware.cluster import Pool
from planner.kinds.serve.options import FailureOutcome, SpareRoom
from planner.kinds.serve.steady.failures import domain_gpus
from planner.plan.placement import role_devices
from planner.plan.schema import Block, Role
from planner.plan.sides import FFN
from planner.problem.schema import AvailabilitySpec
from planner.solvers.mix import MixProblem
from planner.solvers.mix_lost import busy_after

MOST_BUSY = 1.0 + 1e-6

Lost = tuple[tuple[str, int], ...]
"""(role, instances) that one failure takes; of two sides apart the attention role stands for both."""


def spare_room(
    availability: AvailabilitySpec,
    losses: Sequence[Lost],
    problem: MixProblem,
    row_of: Mapping[str, int],
    counts: Sequence[int],
    load_per_s: Sequence[Sequence[float]],
) -> SpareRoom:
    """How busy each of `losses` leaves the rest of a mix, of which role r is shape `row_of[r]`."""
    outcomes = [
        FailureOutcome(
            lost=dict(lost), busy=busy_after(problem, counts, load_per_s, {row_of[role]: count for role, count in lost})
        )
        for lost in losses
    ]
    outcomes.sort(key=lambda outcome: -float(f"{outcome.busy:.6g}"))
    return SpareRoom(level=availability.level, per=availability.per, failures=tuple(outcomes))


def losses_of(
    roles: Sequence[Role], sides: Mapping[str, Role], placement: Sequence[Block], pools: Mapping[str, Pool], per: str
) -> list[Lost]:
    """Every failure that takes something else, in the order of roles, then of domains.

    `sides` are ffn roles by the attention role that they compute for.
    """
    own = [role for role in roles if role.function != FFN]
    if per == "role":
        return [((role.name, 1),) for role in own]
    hit: dict[tuple[str, int], Counter[str]] = {}
    for role in own:
        parts = (role, sides[role.name]) if role.name in sides else (role,)
        for touched in _domains(parts, placement, pools, per):
            for domain in touched:
                hit.setdefault(domain, Counter())[role.name] += 1
    return list(dict.fromkeys(tuple(lost.items()) for _, lost in sorted(hit.items())))


def _domains(
    parts: Sequence[Role], placement: Sequence[Block], pools: Mapping[str, Pool], per: str
) -> Iterator[set[tuple[str, int]]]:
    """The (pool, domain) pairs that each replica touches, all its parts together."""
    ranks = [(iter(role_devices(placement, part.name)), part.parallelism.devices) for part in parts]
    for _ in range(parts[0].replicas):
        yield {
            (pool, device // domain_gpus(pools[pool], per))
            for devices, size in ranks
            for pool, device in islice(devices, size)
        }
