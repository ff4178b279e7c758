"""Which tensor-parallel groups straddle scale-up domains: one of t GPUs lies inside one of d GPUs, or fills t / d."""

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

import numpy as np

from planner.arrays import Ints
from planner.rl.curves import CurvePool
from planner.rl.layout.roles import LaidRole


def straddling(pool: CurvePool, role: LaidRole) -> bool:
    """Whether a tensor-parallel group of a role straddles domains, of GPUs that the pool has."""
    if role.first + role.gpus > sum(pool.domains):
        return False
    return any(int(whole_groups(pool, width)[role.first]) * width < role.gpus for width in role.widths)


def whole_groups(pool: CurvePool, width: int) -> Ints:
    """How many groups of `width` follow each other from every GPU of a pool on, and after its last, before one
    straddles domains. The array is not writable."""
    return _whole_groups(pool.domains, pool.domain_gpus, width)


@lru_cache(maxsize=1024)
def _whole_groups(domains: tuple[int, ...], domain_gpus: int, width: int) -> Ints:
    domain_N = np.repeat(np.arange(len(domains)), domains)
    starts = max(len(domain_N) - width + 1, 0)
    spanned_S = domain_N[len(domain_N) - starts :] - domain_N[:starts] + 1
    whole_S = spanned_S * domain_gpus <= max(width, domain_gpus)
    groups = np.zeros(len(domain_N) + 1, np.int64)
    for start in np.flatnonzero(whole_S)[::-1].tolist():
        groups[start] = groups[start + width] + 1
    groups.flags.writeable = False
    return groups


def may_straddle(pool: CurvePool, widths: Iterable[int], last: Iterable[int] = ()) -> bool:
    """Whether groups of some of these widths may straddle domains, whatever roles there are; those of `last` come last.

    None does where each width divides the next and the domains: every role then begins at a multiple of its own.
    """
    rising = sorted({*widths, *last})
    chained = all(wide % narrow == 0 for narrow, wide in pairwise(rising))
    whole = {pool.domain_gpus} == set(pool.domains)
    fitting = all(all(d % w == 0 for d in pool.domains) or (whole and w % pool.domain_gpus == 0) for w in rising)
    in_order = all(width % narrow == 0 for narrow in last for width in widths)
    return bool(pool.domains) and not (chained and fitting and in_order)
