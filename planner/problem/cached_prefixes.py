"""What a choice of memory for prefixes does to the prompts of a workload: computed less, and fetched from tiers."""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints


@dataclass(frozen=True, slots=True)
class BoughtTier:
    """Whole units of one tier, and the tokens of prompts that it holds when they come."""

    name: str
    units: int
    size_bytes: float
    usd_per_hour: float
    hit_share: float  # of the tokens of all prompts


@dataclass(frozen=True, slots=True, eq=False)
class CachedPrefixes:
    """The tiers of a choice, and what is left of the prompts of the trace with it."""

    tiers: tuple[BoughtTier, ...]
    computed_cv: float  # of the tokens of a prompt that are computed
    before_tokens: float  # before a mean number of them, of a prompt whose tokens attend to as many as those of all do
    fetch_s_R: Floats  # by request, ascending: from its arrival until what tiers have of it is there
    least_computed_R: Ints  # of each prompt of the trace, what is computed though all that came before is held
    digest: str  # of the blocks of the trace
    token_bytes: float  # of the cache of a token, all ranks together
    none_above: float | None = (
        None  # times the prices of memory from which on none would be bought, where that is known
    )

    @property
    def units(self) -> tuple[int, ...]:
        """Of every tier, in the order of the problem."""
        return tuple(tier.units for tier in self.tiers)

    @property
    def usd_per_hour(self) -> float:
        """Of all tiers."""
        return sum(tier.usd_per_hour for tier in self.tiers)

    @property
    def hit_share(self) -> float:
        """Of the tokens of all prompts, those that tiers have."""
        return sum(tier.hit_share for tier in self.tiers)

    def fetch_s(self, quantile: float | None) -> float:
        """The wait for tiers at a quantile of the requests, or in the mean."""
        if quantile is None:
            return float(self.fetch_s_R.mean())
        last = len(self.fetch_s_R) - 1
        return float(self.fetch_s_R[min(int(np.ceil(quantile * last)), last)])
