"""What every choice of tiers does to the prompts of a trace: what is still computed, and the wait for what is fetched.

One pass gives the stack distance of every block; tiers nest, so that a tier gives the blocks whose distance lies
between where it begins and ends. Requests of a tier are served in turn at its bandwidth, and each no faster than a
request may go; several tiers serve a request side by side.
R request, A access, K tier.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.documents.files import digest
from planner.errors import PlannerError
from planner.problem.cached_prefixes import BoughtTier, CachedPrefixes
from planner.problem.prefix_tiers import PrefixCacheSpec
from planner.schema.base import Path
from planner.simulate.fleet.instances import BLOCK_TOKENS
from planner.simulate.prefixes.trace_blocks import block_requests
from planner.simulate.requests.traces import Trace
from planner.solvers.caches.block_requests import BlockRequests
from planner.solvers.caches.stack_distances import NEVER, stack_distances


@dataclass(frozen=True, slots=True, eq=False)
class PrefixChoices:
    """A trace as requests come to it, and the tiers that may be bought for it."""

    requests: BlockRequests
    spec: PrefixCacheSpec
    token_bytes: float
    block_tokens: int
    arrival_s_R: Floats
    input_R: Ints
    distance_A: Ints
    tokens_A: Ints  # that need not be computed where the block and those before it are held
    digest: str

    def unit_blocks(self, tier: int) -> int:
        """Whole blocks of a unit."""
        return int(self.spec.tiers[tier].unit_bytes // (self.token_bytes * self.block_tokens))

    def usd_per_hour(self, tier: int) -> float:
        """Of a unit."""
        spec = self.spec.tiers[tier]
        return spec.unit_bytes / 1e9 * spec.usd_per_gb_hour

    def of(self, units: Sequence[int]) -> CachedPrefixes | None:
        """What units of every tier do; None where a tier would give more in a window than its bandwidth."""
        tokens_RK = self._tokens(units)
        bytes_RK: Floats = tokens_RK * np.float64(self.token_bytes)
        window_R = (self.arrival_s_R // self.spec.window_s).astype(np.int64)
        for k, tier in enumerate(self.spec.tiers):
            most = float(np.bincount(window_R, bytes_RK[:, k]).max())
            if most > tier.bandwidth_bytes_per_s * self.spec.window_s:
                return None
        return self._cached(units, tokens_RK, self._waits(bytes_RK))

    def at_best(self, units: Sequence[int]) -> CachedPrefixes:
        """What no choice of these units or fewer does better: all that they hold spared, and nothing waited for."""
        tokens_RK = self._tokens(units)
        return self._cached(units, tokens_RK, np.zeros(len(tokens_RK)))

    def _tokens(self, units: Sequence[int]) -> Ints:
        """Tokens of each request that each tier gives. [R, K]"""
        ends = np.cumsum([self.unit_blocks(k) * count for k, count in enumerate(units)])
        tier_A = np.searchsorted(ends, self.distance_A, side="right")
        held = (self.distance_A != NEVER) & (tier_A < len(units))
        cell = self.requests.request_A[held] * len(units) + tier_A[held]
        counts = np.bincount(cell, self.tokens_A[held], minlength=len(self.input_R) * len(units))
        return counts.reshape(-1, len(units)).astype(np.int64)

    def _waits(self, bytes_RK: Floats) -> Floats:
        """From the arrival of each request until all that tiers have of it is there. [R]"""
        waits = np.zeros(len(bytes_RK))
        for k, tier in enumerate(self.spec.tiers):
            service = bytes_RK[:, k] / tier.bandwidth_bytes_per_s
            done = np.cumsum(service)
            free = done + np.maximum.accumulate(self.arrival_s_R - (done - service))
            own = np.maximum(free, free - service + bytes_RK[:, k] / tier.to_a_request_bytes_per_s)
            waits = np.maximum(waits, np.where(bytes_RK[:, k] > 0.0, own - self.arrival_s_R, 0.0))
        return waits

    def _least_computed(self) -> Ints:
        """Tokens of each prompt that are computed where everything is held that ever came before. [R]"""
        reused = self.distance_A != NEVER
        held_R = np.bincount(self.requests.request_A[reused], self.tokens_A[reused], minlength=len(self.input_R))
        return np.asarray(np.maximum(self.input_R - held_R.astype(np.int64), 1))

    def _cached(self, units: Sequence[int], tokens_RK: Ints, fetch_s_R: Floats) -> CachedPrefixes:
        whole = float(self.input_R.sum())
        computed_R = np.maximum(self.input_R - tokens_RK.sum(axis=1), 1)
        bought = zip(self.spec.tiers, units, strict=True)
        tiers = tuple(
            BoughtTier(
                tier.name,
                int(count),
                tier.unit_bytes * count,
                self.usd_per_hour(k) * count,
                float(tokens_RK[:, k].sum()) / whole,
            )
            for k, (tier, count) in enumerate(bought)
        )
        mean = float(computed_R.mean())
        pairs = float((computed_R * (self.input_R - computed_R / 2.0)).mean())
        return CachedPrefixes(
            tiers,
            float(computed_R.std()) / mean,
            pairs / mean - mean / 2.0,
            np.sort(fetch_s_R),
            self._least_computed(),
            self.digest,
            self.token_bytes,
        )


def prefix_choices(
    trace: Trace, spec: PrefixCacheSpec, token_bytes: float, arrival_s_R: Floats, where: Callable[[Path], str]
) -> PrefixChoices:
    """The choices for a trace whose requests come at these times.

    `token_bytes` is the cache of a token. Raises PlannerError for traces that say nothing of what prompts share, and
    for units that do not hold a block.
    """
    requests = block_requests(trace, spec.block_tokens)
    block_tokens = trace.block_tokens if trace.blocks else spec.block_tokens or trace.block_tokens
    block_bytes = token_bytes * block_tokens
    for index, tier in enumerate(spec.tiers):
        if tier.unit_bytes < block_bytes:
            raise PlannerError(
                f"a unit of `{tier.name}` has {tier.unit_bytes:g} bytes, and a block of {block_tokens} tokens "
                f"{block_bytes:g}",
                where=where(("cache", "tiers", index, "unit")),
                hint="give a unit that holds a block or more",
            )
    input_R = trace.input_tokens
    most_R = (input_R - 1) // BLOCK_TOKENS * BLOCK_TOKENS  # the block of the last token of a prompt is computed
    ends_A = np.minimum((requests.position_A + 1) * block_tokens, most_R[requests.request_A])
    starts_A = np.minimum(requests.position_A * block_tokens, most_R[requests.request_A])
    return PrefixChoices(
        requests,
        spec,
        token_bytes,
        block_tokens,
        arrival_s_R,
        input_R,
        stack_distances(requests),
        ends_A - starts_A,
        digest({"first": requests.first_R.tolist(), "block": requests.block_A.tolist()}),
    )
