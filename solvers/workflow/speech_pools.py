"""Pools of stages that answer speech with speech: the least cost with first audio in time and playing without breaks.

Source      the question of Step-Audio 2 (arXiv:2507.16632) and vLLM-Omni's stages; no deployment split is published
Sets        r in R requests in the order of arrival;  s in encode, prefill, decode, vocode;  o in O_s options
Parameters  t_r [s] arrival, n_r tokens of the reply;  c_so cost of a replica;  N_s numbers of replicas
            f_so in (0, 1] share of a GPU of some type that a replica takes, where it is not alone on what it stands on
            encode, prefill: e_so,r [s] of a request;  decode: m_o slots a replica, h_o [s] a step
            vocode: a_o + b_o (tokens + context, none for the first chunk) [s] a chunk
            F lengths of the first chunk, l tokens of later ones;  v tokens played a second, w [s] of slack
            q quantile of first audio within L [s];  at most a share e of later chunks late
Variables   o_s in O_s, k_s in N_s;  f in F
Minimise    sum_s c_s,o_s k_s, of shares the price of the fewest GPUs that hold them (shared_gpus)
(C1) pools take jobs first come, first served: encode, prefill, a slot for n_r h, then chunks as they are ready
(C2) quantile q over R of first chunk's end - t_r <= L
(C3) |{later chunks: end > end of first chunk + tokens before / v + w}| <= e |{later chunks}|

Method      stages are decided in order, the cheapest completion first; a pool is simulated once for what is before it.
            Left out are pools that cannot do in the time there is the work that must be on time, and prefixes whose
            requests cannot be in time even with the fastest of every later stage and no wait. The first answer that
            keeps the limits is then the cheapest. Shares count as such until all stages are decided.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult
from planner.solvers.workflow.cover import LATE, Cover
from planner.solvers.workflow.pool_search import Node, Pools, PoolSearch
from planner.solvers.workflow.shared_gpus import Part, cost_of

WHERE = "stages"
STAGES = ("encode", "prefill", "decode", "vocode")
TOO_FEW = "too few"  # replicas for the work that must be on time


@dataclass(frozen=True, slots=True, eq=False)
class RequestPool:
    """An option of encode or prefill: price of a replica and seconds of each request [R]."""

    cost: float
    service_s_R: Floats
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class DecodePool:
    """An option of decode: price, requests that a replica runs at once, seconds a token of each of them."""

    cost: float
    slots: int
    step_s: float
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class VocodePool:
    """An option of vocode: price, seconds of a chunk and of each of its tokens."""

    cost: float
    base_s: float
    per_token_s: float
    part: Part | None = None


@dataclass(frozen=True, slots=True)
class Speech:
    """What a listener hears: limits on first audio and on late chunks, and how chunks are cut."""

    first_audio_s: float
    quantile: float
    late_share: float
    first_chunks: tuple[int, ...]
    chunk_tokens: int
    context_tokens: int  # that vocode takes in again with each later chunk
    tokens_per_s: float  # that are played
    slack_s: float


@dataclass(frozen=True, slots=True, eq=False)
class SpeechPools:
    """The problem; `replicas` to choose from by stage, rising.

    Raises PlannerError for stages without options and impossible chunks.
    """

    arrival_s_R: Floats
    reply_tokens_R: Ints
    encode: tuple[RequestPool, ...]
    prefill: tuple[RequestPool, ...]
    decode: tuple[DecodePool, ...]
    vocode: tuple[VocodePool, ...]
    replicas: tuple[tuple[int, ...], ...]
    speech: Speech

    def __post_init__(self) -> None:
        for name, options, replicas in zip(STAGES, self.options, self.replicas, strict=True):
            if not options or min(replicas, default=0) < 1:
                what = f"stage {name} has {len(options)} options and {max(replicas, default=0)} replicas at most"
                raise PlannerError(what, where=WHERE, hint="give at least one of each")
        if not len(self.arrival_s_R) or len(self.arrival_s_R) != len(self.reply_tokens_R):
            what = f"{len(self.arrival_s_R)} arrivals and {len(self.reply_tokens_R)} replies"
            raise PlannerError(what, where=WHERE, hint="give every request both")
        longest, first = int(self.reply_tokens_R.max()), max(self.speech.first_chunks, default=0)
        if not 0 < first <= longest or self.reply_tokens_R.min() < 1:
            what = f"a first chunk of {first} tokens where the longest answer has {longest}"
            raise PlannerError(what, where=WHERE, hint=f"give first chunks of 1 to {longest} tokens")

    @property
    def options(self) -> tuple[tuple[RequestPool | DecodePool | VocodePool, ...], ...]:
        return (self.encode, self.prefill, self.decode, self.vocode)

    @property
    def in_time(self) -> int:
        """Requests that must have first audio in time, by the quantile between order statistics."""
        return math.floor((len(self.arrival_s_R) - 1) * self.speech.quantile) + 1


@dataclass(frozen=True, slots=True)
class SpeechPlan:
    """Option and replicas of each stage, in the order of `STAGES`, and tokens of the first chunk, 0 where open."""

    pools: Pools
    first_chunk: int


@dataclass(frozen=True, slots=True)
class Heard:
    """What a plan reaches: the quantile of first audio [s], and the share of later chunks that are late."""

    first_audio_s: float
    late_share: float


def cost(problem: SpeechPools, pools: Pools) -> float:
    """Of the replicas of these stages; shares of GPUs as such until all stages are there."""
    chosen = [(options[o], k) for (o, k), options in zip(pools, problem.options, strict=False)]
    return cost_of(chosen, whole=len(pools) == len(STAGES))


def heard(problem: SpeechPools, plan: SpeechPlan) -> Heard:
    """The plan simulated from its first stage on."""
    ready_s_R = problem.arrival_s_R
    for stage, pool in enumerate(plan.pools[:-1]):
        ready_s_R = _after(problem, stage, pool, ready_s_R)
    return _vocoded(problem, ready_s_R, plan)


def _after(problem: SpeechPools, stage: int, pool: tuple[int, int], ready_s_R: Floats) -> Floats:
    """Ends of encode or prefill, or starts of decode, of requests that are ready at these times [R]."""
    from planner.solvers.compiled.tandem import starts

    option, replicas = pool
    if stage == STAGES.index("decode"):
        decode = problem.decode[option]
        return np.asarray(starts(ready_s_R, problem.reply_tokens_R * decode.step_s, replicas * decode.slots))
    service_s_R = (problem.encode, problem.prefill)[stage][option].service_s_R
    return np.asarray(starts(ready_s_R, service_s_R, replicas) + service_s_R)


def _vocoded(problem: SpeechPools, begin_s_R: Floats, plan: SpeechPlan) -> Heard:
    from planner.solvers.compiled.tandem import chunks, starts

    speech, (option, replicas) = problem.speech, plan.pools[-1]
    step_s = problem.decode[plan.pools[-2][0]].step_s
    ready_s_J, owner_J, tokens_J, before_J = chunks(
        begin_s_R, problem.reply_tokens_R, step_s, plan.first_chunk, speech.chunk_tokens
    )
    vocode, later_J = problem.vocode[option], before_J > 0
    service_s_J = vocode.base_s + vocode.per_token_s * (tokens_J + speech.context_tokens * later_J)
    end_s_J = starts(ready_s_J, service_s_J, replicas) + service_s_J
    first_s_R = np.zeros(len(begin_s_R))
    first_s_R[owner_J[~later_J]] = end_s_J[~later_J]
    due_s_J = first_s_R[owner_J] + before_J / speech.tokens_per_s + speech.slack_s
    late = float(np.mean(end_s_J[later_J] > due_s_J[later_J])) if later_J.any() else 0.0
    return Heard(float(np.quantile(first_s_R - problem.arrival_s_R, speech.quantile)), late)


def least_replicas(problem: SpeechPools) -> tuple[tuple[int, ...], ...]:
    """By stage and option, what no plan that keeps the limits has less of: work that must be done, over the time.

    At least `in_time` requests have first audio within its limit: the least work of as many must be begun (decode) or
    done by then. Of their later chunks all but the share that may be late must be done by the last time due.
    """
    speech, tokens_R = problem.speech, np.sort(problem.reply_tokens_R)[: problem.in_time]
    span_s = float(np.ptp(problem.arrival_s_R)) + speech.first_audio_s
    rows: list[tuple[int, ...]] = []
    for options in (problem.encode, problem.prefill):
        work_s = (float(np.sort(option.service_s_R)[: problem.in_time].sum()) for option in options)
        rows.append(tuple(max(1, math.ceil(work / span_s - 1e-9)) for work in work_s))
    held = []
    for decode in problem.decode:
        longest_s = float(problem.reply_tokens_R.max()) * decode.step_s
        slots = float(tokens_R.sum()) * decode.step_s / (span_s + longest_s)
        held.append(max(1, math.ceil(slots / decode.slots - 1e-9)))
    rows.append(tuple(held))
    rows.append(tuple(_least_vocoders(problem, option, span_s) for option in problem.vocode))
    return tuple(rows)


def _least_vocoders(problem: SpeechPools, option: VocodePool, span_s: float) -> int:
    """Of all lengths of the first chunk; requests with the least work, without the largest chunks that may be late."""
    speech, tokens_R = problem.speech, problem.reply_tokens_R
    last_s = span_s + float(tokens_R.max()) / speech.tokens_per_s + speech.slack_s
    least_s = math.inf
    for first in speech.first_chunks:
        later_R = np.maximum(0, -(-(tokens_R - first) // speech.chunk_tokens))
        work_s_R = option.base_s * (1 + later_R)
        work_s_R = work_s_R + option.per_token_s * (tokens_R + speech.context_tokens * later_R)
        largest_s = option.base_s + option.per_token_s * (speech.chunk_tokens + speech.context_tokens)
        dropped_s = speech.late_share * float(later_R.sum()) * largest_s
        least_s = min(least_s, float(np.sort(work_s_R)[: problem.in_time].sum()) - dropped_s)
    return max(1, math.ceil(least_s / last_s - 1e-9))


class _Search(PoolSearch[SpeechPlan]):
    """Later stages cost their least replicas of the cheapest option at least; a first chunk of 0 is not decided."""

    def __init__(self, problem: SpeechPools, cover: Cover) -> None:
        super().__init__(len(STAGES), cover)
        self.problem = problem
        self.least = least_replicas(problem)
        self.rest = [0.0] * (len(STAGES) + 1)
        self.below = [1] * (len(STAGES) + 1)  # combinations with so many stages decided, of one first chunk
        for stage in range(len(STAGES) - 1, -1, -1):
            options = problem.options[stage]
            prices = (k * o.cost for o, k in zip(options, self.least[stage], strict=True))
            self.rest[stage] = self.rest[stage + 1] + min(prices)
            self.below[stage] = self.below[stage + 1] * len(options) * len(problem.replicas[stage])
        self.bound = self.rest[0]

    def begin(self) -> None:
        self._push_children(SpeechPlan((), 0), self.problem.arrival_s_R)

    def open(self, node: Node[SpeechPlan]) -> None:
        pools = node.plan.pools
        ready_s_R = _after(self.problem, len(pools) - 1, pools[-1], node.ready_s_R)
        for first in self._first_chunks(pools, ready_s_R):
            self._push_children(SpeechPlan(pools, first), ready_s_R)

    def keeps(self, node: Node[SpeechPlan]) -> bool:
        return keeps(self.problem, _vocoded(self.problem, node.ready_s_R, node.plan))

    def cost(self, plan: SpeechPlan) -> float:
        return cost(self.problem, plan.pools)

    def combinations(self, plan: SpeechPlan) -> int:
        return self.below[len(plan.pools)] * (1 if plan.first_chunk else len(self.problem.speech.first_chunks))

    def _push_children(self, plan: SpeechPlan, ready_s_R: Floats) -> None:
        stage = len(plan.pools)
        for option, least in enumerate(self.least[stage]):
            for replicas in self.problem.replicas[stage]:
                further = SpeechPlan((*plan.pools, (option, replicas)), plan.first_chunk)
                if replicas < least:
                    self.cover.add(TOO_FEW, self.combinations(further))
                else:
                    self.push(further, self.rest[stage + 1], ready_s_R)

    def _first_chunks(self, pools: Pools, ready_s_R: Floats) -> Iterator[int]:
        """First chunks with which enough requests can still be in time; 0 stands for any, before decode is decided."""
        firsts = self.problem.speech.first_chunks
        kept = [first for first in firsts if self._in_time(pools, first, ready_s_R)]
        if len(pools) < len(STAGES) - 1:
            kept = [0] if kept else []
        late = 0 if kept == [0] else len(firsts) - len(kept)
        if late:
            self.cover.add(LATE, late * self.below[len(pools)])
        return iter(kept)

    def _in_time(self, pools: Pools, first: int, ready_s_R: Floats) -> bool:
        problem, heads_R = self.problem, np.minimum(first, self.problem.reply_tokens_R)
        decodes = [problem.decode[pools[2][0]]] if len(pools) > STAGES.index("decode") else problem.decode
        earliest_s_R = ready_s_R + heads_R * min(decode.step_s for decode in decodes)
        if len(pools) == 1:
            earliest_s_R = earliest_s_R + np.min([option.service_s_R for option in problem.prefill], axis=0)
        vocoded = [option.base_s + option.per_token_s * heads_R for option in problem.vocode]
        in_time_R: Bools = earliest_s_R + np.min(vocoded, axis=0) - problem.arrival_s_R <= problem.speech.first_audio_s
        return int(np.count_nonzero(in_time_R)) >= problem.in_time


def keeps(problem: SpeechPools, reached: Heard) -> bool:
    """Whether both limits hold."""
    in_time = reached.first_audio_s <= problem.speech.first_audio_s
    return in_time and reached.late_share <= problem.speech.late_share


def cheapest_pools(
    problem: SpeechPools, *, time_limit_s: float = 600.0, cover: Cover | None = None
) -> SolveResult[SpeechPlan]:
    """The cheapest pools that keep both limits, proven; UNKNOWN with the cost below which none do at the time limit.

    A search that finishes leaves in `cover` what became of all combinations.
    """
    return _Search(problem, cover if cover is not None else Cover()).cheapest(time_limit_s)
