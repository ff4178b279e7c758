"""Pools of stages for requests with images: the least cost with both limits kept, with an encode pool or without.

Source      Singh et al., "Efficiently Serving Large Multimodal Models Using EPD Disaggregation", ICML 2025
            (arXiv:2501.05460), section 3; images of a request encoded in parallel: section 3.2
Sets        r in R requests in the order of arrival;  s in encode, prefill, decode;  o in O_s options
Parameters  t_r [s] arrival, m_r images, n_r tokens of the answer;  c_so cost of a replica;  N_s numbers of replicas
            encode: E_o, F_o [s] of a call and of each image;  prefill: p_o,r [s], and what it takes to encode there
            decode: m_o slots a replica, h_o [s] a step;  a_r, b_r [s] to move features and caches
            quantile q of TTFT within L [s], quantile u of TPOT within T [s]
Variables   o_s in O_s, k_s in N_s, of encode 0 too: prefill encodes then;  images of a request split or not
Minimise    sum_s c_s,o_s k_s, of shares of GPUs the price of the fewest that hold them (shared_gpus)
(C1) pools take jobs first come, first served: requests' images or each of them, prompts, a slot for n_r h
(C2) quantile q over R of end of prefill - t_r <= L
(C3) quantile u over R of (end of decode - end of prefill) / n_r <= T

Method      stages are decided in order, the cheapest completion first; a pool is simulated once for what is before it.
            Left out are prefixes whose TTFT is beyond its limit even with the fastest prefill and no wait. The first
            answer that keeps the limits is then the cheapest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult
from planner.solvers.workflow.cover import LATE, Cover
from planner.solvers.workflow.encode_pools import encode_s, encoded_s
from planner.solvers.workflow.pool_search import Node, Pools, PoolSearch
from planner.solvers.workflow.shared_gpus import Part, Priced, cost_of
from planner.solvers.workflow.speech_pools import DecodePool

WHERE = "images"
STAGES = ("encode", "prefill", "decode")
MAY_BE_LEFT_OUT = frozenset({"encode"})
NO_POOL = (0, 0)
UNABLE = "unable"  # to encode, where no pool does


@dataclass(frozen=True, slots=True)
class EncodePool:
    """An option of encode: price of a replica, seconds of a call and of each image."""

    cost: float
    base_s: float
    image_s: float
    part: Part | None = None


@dataclass(frozen=True, slots=True, eq=False)
class PrefillPool:
    """An option of prefill: price of a replica, seconds of each request [R], and of encoding there (call, image)."""

    cost: float
    service_s_R: Floats
    encodes_s: tuple[float, float] | None
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """On a quantile of TTFT and on one of TPOT."""

    ttft_s: float
    ttft_quantile: float
    tpot_s: float
    tpot_quantile: float


@dataclass(frozen=True, slots=True, eq=False)
class ImagePools:
    """The problem; `replicas` to choose from by stage, and whether there may be no encode pool.

    Raises PlannerError for stages without options, and where no option encodes.
    """

    arrival_s_R: Floats
    images_R: Ints
    output_tokens_R: Ints
    feature_move_s_R: Floats
    cache_move_s_R: Floats
    encode: tuple[EncodePool, ...]
    prefill: tuple[PrefillPool, ...]
    decode: tuple[DecodePool, ...]
    replicas: tuple[tuple[int, ...], ...]
    split: tuple[bool, ...]
    limits: TokenLimits
    may_skip: bool = True

    def __post_init__(self) -> None:
        if not self.prefill or not self.decode or min(map(min, self.replicas)) < 1 or not self.split:
            raise PlannerError("prefill and decode need an option and a replica at least", where=WHERE)
        if not self.encode and all(option.encodes_s is None for option in self.prefill):
            raise PlannerError("no option encodes images", where=WHERE, hint="give one of encode or prefill")


@dataclass(frozen=True, slots=True)
class ImagePlan:
    """Option and replicas of each stage, in the order of `STAGES`; `NO_POOL` of encode where prefill encodes."""

    pools: Pools
    split_images: bool


def cost(problem: ImagePools, pools: Pools) -> float:
    """Of the replicas of these stages; shares of GPUs as such until all stages are there."""
    rows: tuple[Sequence[Priced], ...] = (problem.encode, problem.prefill, problem.decode)
    chosen = [(options[o], k) for (o, k), options in zip(pools, rows, strict=False) if k]
    return cost_of(chosen, whole=len(pools) == len(STAGES))


def served(problem: ImagePools, plan: ImagePlan) -> tuple[float, float]:
    """Quantiles of TTFT and TPOT [s] that a plan reaches."""
    ready_s_R = _encoded(problem, plan.pools[0], split=plan.split_images)
    first_s_R = _prefilled(problem, plan.pools[:2], ready_s_R)
    return _ttft(problem, first_s_R), _tpot(problem, plan.pools[2], first_s_R)


def _encoded(problem: ImagePools, pool: tuple[int, int], *, split: bool) -> Floats:
    """When features are where prefill is [R]; arrivals where prefill encodes."""
    if pool == NO_POOL:
        return problem.arrival_s_R
    option, replicas = problem.encode[pool[0]], pool[1]
    ends_s_R = encoded_s(problem.arrival_s_R, problem.images_R, option.base_s, option.image_s, replicas, split=split)
    return np.asarray(ends_s_R + problem.feature_move_s_R)


def _prefill_s(problem: ImagePools, option: PrefillPool, *, encodes: bool) -> Floats:
    """Seconds of prefill [R]."""
    if not encodes:
        return option.service_s_R
    assert option.encodes_s is not None
    return np.asarray(option.service_s_R + encode_s(problem.images_R, *option.encodes_s))


def _prefilled(problem: ImagePools, pools: Pools, ready_s_R: Floats) -> Floats:
    """Ends of prefill [R]."""
    from planner.solvers.compiled.tandem import starts

    service_s_R = _prefill_s(problem, problem.prefill[pools[1][0]], encodes=pools[0] == NO_POOL)
    return np.asarray(starts(ready_s_R, service_s_R, pools[1][1]) + service_s_R)


def _ttft(problem: ImagePools, first_s_R: Floats) -> float:
    return float(np.quantile(first_s_R - problem.arrival_s_R, problem.limits.ttft_quantile))


def _tpot(problem: ImagePools, pool: tuple[int, int], first_s_R: Floats) -> float:
    from planner.solvers.compiled.tandem import starts

    decode = problem.decode[pool[0]]
    held_s_R = problem.output_tokens_R * decode.step_s
    begin_s_R = starts(first_s_R + problem.cache_move_s_R, held_s_R, pool[1] * decode.slots)
    tpot_s_R = (begin_s_R + held_s_R - first_s_R) / problem.output_tokens_R
    return float(np.quantile(tpot_s_R, problem.limits.tpot_quantile))


class _Search(PoolSearch[ImagePlan]):
    """Later stages cost one replica of their cheapest option at least."""

    def __init__(self, problem: ImagePools, cover: Cover) -> None:
        super().__init__(len(STAGES), cover)
        self.problem = problem
        prefills, decodes = (
            len(rows) * len(problem.replicas[stage]) for stage, rows in ((1, problem.prefill), (2, problem.decode))
        )
        self.below = (0, prefills * decodes, decodes, 1)  # combinations with so many stages decided
        cheapest = [min(option.cost for option in rows) for rows in (problem.prefill, problem.decode)]
        self.rest = (sum(cheapest), cheapest[1], 0.0)  # behind encode, prefill, decode

    def begin(self) -> None:
        for pool, split in self._encodes():
            self._push(ImagePlan((pool,), split), self.problem.arrival_s_R)

    def keeps(self, node: Node[ImagePlan]) -> bool:
        return _tpot(self.problem, node.plan.pools[-1], node.ready_s_R) <= self.problem.limits.tpot_s

    def cost(self, plan: ImagePlan) -> float:
        return cost(self.problem, plan.pools)

    def combinations(self, plan: ImagePlan) -> int:
        return self.below[len(plan.pools)]

    def _encodes(self) -> Iterator[tuple[tuple[int, int], bool]]:
        """No encode pool first, where there may be none, then every other, with images split or not."""
        if self.problem.may_skip:
            yield NO_POOL, False
        for option in range(len(self.problem.encode)):
            for replicas in self.problem.replicas[0]:
                yield from (((option, replicas), split) for split in self.problem.split)

    def open(self, node: Node[ImagePlan]) -> None:
        problem, plan = self.problem, node.plan
        if len(plan.pools) == 1:
            ready_s_R = _encoded(problem, plan.pools[0], split=plan.split_images)
            encodes = plan.pools[0] == NO_POOL
            able = [o for o, row in enumerate(problem.prefill) if not encodes or row.encodes_s is not None]
            unable = len(problem.prefill) - len(able)
            if unable:
                self.cover.add(UNABLE, unable * len(problem.replicas[1]) * self.below[2])
            if not able:
                return
            fastest_s_R = np.min([_prefill_s(problem, problem.prefill[o], encodes=encodes) for o in able], axis=0)
            earliest_s_R = ready_s_R + fastest_s_R
        else:
            ready_s_R = earliest_s_R = _prefilled(problem, plan.pools, node.ready_s_R)
            able = list(range(len(problem.decode)))
        if _ttft(problem, earliest_s_R) > problem.limits.ttft_s:
            self.cover.add(LATE, len(able) * len(problem.replicas[len(plan.pools)]) * self.below[len(plan.pools) + 1])
            return
        for option in able:
            for replicas in problem.replicas[len(plan.pools)]:
                self._push(ImagePlan((*plan.pools, (option, replicas)), plan.split_images), ready_s_R)

    def _push(self, plan: ImagePlan, ready_s_R: Floats) -> None:
        self.push(plan, self.rest[len(plan.pools) - 1], ready_s_R)


def cheapest_pools(
    problem: ImagePools, *, time_limit_s: float = 600.0, cover: Cover | None = None
) -> SolveResult[ImagePlan]:
    """The cheapest pools that keep both limits, proven; UNKNOWN with the cost below which none do at the time limit.

    A search that finishes leaves in `cover` what became of all combinations.
    """
    return _Search(problem, cover if cover is not None else Cover()).cheapest(time_limit_s)
