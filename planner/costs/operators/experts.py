"""Routed experts of one rank: the tokens they take in, the experts these touch, and where copies of a token go.

Sizes are arrays [N] over points of a serving step, or numbers of one training shard. Products of an expert are those of
a dense feed-forward part (`planner.costs.operators.products.dense_products`); each has the gradients of any product.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from planner.arrays import Floats

Sized = TypeVar("Sized", Floats, float)
TILE_ROWS = 128.0  # of a block of DeepGEMM's grouped products in contiguous layout


def routed_rows(tokens: Sized, top_k: float, ep: Sized) -> Sized:
    """Rows of all experts of a rank, where the ranks that share experts bring `tokens` together and load is even."""
    return tokens * top_k / ep


def tiled_rows(rows: Sized, experts: Sized) -> Sized:
    """Rows of a grouped product whose blocks of TILE_ROWS are of one expert each, as allocated before rows are counted.

    Every expert may fill its last block with a row alone, so that each has TILE_ROWS - 1 rows more than tokens bring;
    blocks that stay empty are computed too (`compute_aligned_M` of vLLM 0.12, fused_moe/deep_gemm_utils.py).
    """
    padded: Sized = rows + experts * (TILE_ROWS - 1.0)
    return padded


def touched_share(tokens: Floats, top_k: float, num_experts: Floats | float, concentration: float = math.inf) -> Floats:
    """Expected share of the experts, copies of one among them, that at least one of `tokens` chooses.

    Equally popular experts are each missed with (1 - k / E) by every token. Popularities spread as a gamma variable of
    shape c make the count of an expert negative binomial, which misses it with (1 + T k / (E c))^-c.
    """
    if np.all(top_k >= num_experts):
        return np.asarray(tokens > 0, dtype=np.float64)
    if math.isinf(concentration):
        return np.asarray(-np.expm1(tokens * np.log1p(-top_k / num_experts)))
    return np.asarray(1.0 - (1.0 + tokens * top_k / (num_experts * concentration)) ** -concentration)


def fullest_rank(spread: float, num_experts: int, ep: Sized) -> Sized:
    """Rows of the fullest of `ep` ranks over their mean, where loads of experts are independent and alike.

    `spread`: their standard deviation over the mean, so that a rank of E / ep experts has spread / sqrt(E / ep). The
    fullest of n lies q(n) = sqrt(2 ln n) deviations above the mean, which bounds the expected maximum of n normal
    variables from above and meets it as n grows. Of 4, 8 and 16 ranks with the 128 experts of Qwen3-235B that are 1.22,
    1.39 and 1.63 by the spread of DeepSeek-R1's loads, 0.76; two recordings of its own have 1.17 to 1.26, 1.35 to 1.52
    and 1.71 to 1.98. Experts of DeepSeek-R1 are chosen by groups, whose loads differ more (1.85 to 2.06 of 8 ranks).
    """
    full: Sized = 1.0 + spread * np.sqrt(2.0 * np.log(ep) * ep / num_experts)
    return full


def distinct_places(places: Sized, choices: float, among: int) -> Sized:
    """Expected places with at least one of `choices` different experts, `among` of them spread evenly over `places`.

    A place holds among / places experts and is missed by all choices with a hypergeometric probability. A mean of
    2.3 choices is taken as 3 of them for 30 % of the tokens, and 2 for the others.
    """
    whole = int(choices)
    missed = places * 0.0 + 1.0
    for chosen in range(whole):
        missed = missed * _missed_again(places, chosen, among)
    more = choices - whole
    if more:
        missed = missed * (1.0 - more + more * _missed_again(places, whole, among))
    return places * (1.0 - missed)


def _missed_again(places: Sized, chosen: int, among: int) -> Sized:
    """The chance that one more expert lies elsewhere, after `chosen` that did."""
    missed: Sized = np.maximum(among * (1.0 - 1.0 / places) - chosen, 0.0) / (among - chosen)
    return missed


def sent_copies(places: Sized, top_k: float, among: int, *, once: bool) -> Sized:
    """Copies of a token that leave for its experts on `places` ranks: one a place, or one an expert.

    DeepEP sends a token once to every rank that holds some of its experts (DeepSeek-V3, arXiv:2412.19437, section
    3.2.2); Megatron-LM's all-to-all sends what was permuted by expert, a row for each.
    """
    return distinct_places(places, top_k, among) if once else places * 0.0 + top_k


@dataclass(frozen=True, slots=True)
class ExpertLoad:
    """How unevenly tokens choose experts, and how many rows an expert takes at most; even and unlimited as it is made.

    `fullest`: rows of the fullest expert over the mean of all. `capacity`: the most of an expert's rows over that mean,
    the rest dropped (GShard, arXiv:2006.16668, section 2.2); `padded`: every expert computes so many, needed or not.
    """

    fullest: float = 1.0
    capacity: float | None = None
    padded: bool = False

    def of_rank(self, num_experts: int, ep: int) -> float:
        """Rows of the fullest of the `ep` ranks that share the experts, over those of an even load.

        The fullest of E experts lies q(E) standard deviations above their mean, which tells the deviation
        (`fullest_rank`).
        """
        if self.capacity is not None and self.padded:
            return self.capacity
        rank = 1.0
        if num_experts > 1:
            spread = (self.fullest - 1.0) / math.sqrt(2.0 * math.log(num_experts))
            rank = float(fullest_rank(spread, num_experts, float(ep)))
        return rank if self.capacity is None else min(rank, self.capacity)


EVEN = ExpertLoad()
