"""Operating point of a chosen instance at the load it gets, which is at most what its limits allow."""

from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.forward import ranks_in_step
from planner.costs.operators.work import Shards
from planner.kinds.serve.steady.attained import Pace
from planner.kinds.serve.steady.candidates import Candidate, Capacity
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.evaluate import gaps_of, shared_queues, varied
from planner.kinds.serve.steady.points import PoolCosts
from planner.kinds.serve.steady.steps.first_tokens import FirstTokens, first_tokens
from planner.kinds.serve.steady.steps.formulas import colocated_tpot_s, decode_step
from planner.kinds.serve.steady.steps.pipelines import Bubbles, decode_pace_s
from planner.kinds.serve.steady.time_limits import Queue, TimeLimit
from planner.kinds.serve.steady.units import JOINING_STEPS
from planner.solvers.stochastic.gap_averages import SteadySteps
from planner.solvers.stochastic.routed_queues import Routing
from planner.solvers.stochastic.token_gaps import TokenGaps

LEAST_LOAD = 1e-9


@dataclass(frozen=True, slots=True)
class Operation:
    """One instance at its load; prefill figures are 0 for decode roles, the time per output token for prefill ones."""

    service_s: float  # time to first token without waiting
    busy: float  # utilisation of its prefill
    queue_s: float  # time that one request occupies its prefill
    tpot_s: float  # mean time per output token
    bubbles: Bubbles | None = None  # of its prefill in stages
    servers: float = 1.0  # attention ranks of equal instances, which share the arrivals
    routing: Routing = Routing.POWER_OF_TWO
    varied_s: float = 0.0  # of the time to first token, what grows with a prompt
    pace: Pace | None = None  # at its load, and at the full batch that none is above; none of prefill
    gaps: TokenGaps | None = None  # at its load; none of prefill
    first: FirstTokens | None = None  # of roles that prefill and decode

    def tpot_quantile_s(self, quantile: float) -> float:
        """The time per output token that this share of requests does not exceed; 0 of prefill roles."""
        return 0.0 if self.pace is None else float(self.pace.quantile_s(quantile)[0])

    def tpot_share_within(self, limit_s: float) -> float:
        """The share of requests whose time per output token is no longer; 1 of prefill roles."""
        return 1.0 if self.pace is None else float(self.pace.share_within(limit_s)[0])

    def itl_s(self, quantile: float | None) -> float:
        """The gap between tokens that this share of gaps does not exceed, or the mean one; 0 of prefill roles."""
        if self.gaps is None:
            return 0.0
        return float((self.gaps.mean_s if quantile is None else self.gaps.quantile_s(quantile))[0])

    def wait_s(self, limit: TimeLimit, target: Target) -> float:
        """Waiting before a prompt's own steps at the statistic of `limit`."""
        if self.first is not None:
            return float(self.first.quantile_s(limit.quantile)[0]) - self.service_s
        queue = Queue(target.arrival_cv2, target.service_cv2, self.servers, self.routing)
        busy, queue_s, varied_s = (np.array([value]) for value in (self.busy, self.queue_s, self.varied_s))
        return float(limit.wait_s(busy, queue_s, queue, self.bubbles, varied_s)[0])


def operate(candidate: Candidate, target: Target, pool_costs: PoolCosts, load_per_s: float) -> Operation:
    """One instance of `candidate` serving `load_per_s` requests of `target` alone."""
    capacity = candidate.capacity(target)
    loaded = capacity.utilisation * load_per_s / max(capacity.rate_per_s, LEAST_LOAD)
    if candidate.function == "prefill":
        servers = float(shared_queues(pool_costs.costs.arch, *_degrees(candidate), candidate.together)[0])
        return Operation(
            capacity.service_s,
            loaded,
            capacity.queue_s,
            0.0,
            capacity.bubbles,
            servers,
            candidate.routing,
            capacity.varied_s,
        )
    tpot, pace, gaps = _decoding(candidate, capacity, target, pool_costs, load_per_s / candidate.shape.dp)
    if candidate.decodes:
        return Operation(0.0, 0.0, 0.0, tpot, pace=pace, gaps=gaps)
    assert capacity.engines is not None, "roles that do both have engines"
    full_per_s = float(capacity.engines.capacity_per_s(target.service_cv2)[0])
    filled = np.array([load_per_s / candidate.shape.dp / full_per_s])
    first = first_tokens(capacity.engines, filled, varied(target), waits_for_places=target.clients is None)
    return Operation(capacity.service_s, loaded, capacity.queue_s, tpot, pace=pace, gaps=gaps, first=first)


def _degrees(candidate: Candidate) -> tuple[Floats, Floats]:
    """Its attention ranks and stages, as arrays of one."""
    return np.array([float(candidate.shape.dp)]), np.array([float(candidate.shape.pp)])


def _decoding(
    candidate: Candidate, capacity: Capacity, target: Target, pool_costs: PoolCosts, rank_load_per_s: float
) -> tuple[float, Pace, TokenGaps]:
    """Time per output token at which a rank finishes as many requests as arrive, that of its requests, its gaps.

    A rank with N sequences on average finishes N / (osl TPOT) requests a second; this rate grows with N, which is where
    it meets the load, interpolated between whole batches. A request meets more than N (`Target.met_besides`).
    """
    batches = np.append(0.0, np.unique(np.geomspace(1, max(candidate.max_batch, 1), 32).round()))
    met = np.minimum(batches + target.met_besides, batches[-1])
    step, recalled_s = _steps(candidate, target, pool_costs, np.maximum(met, 1.0))
    ranks = ranks_in_step(pool_costs.costs.arch, np.full(len(batches), candidate.shape.dp))
    yielded = _yielded(candidate, pool_costs)
    steps = target.osl / yielded
    tpot = colocated_tpot_s(step, capacity.stretch_s, capacity.prefill_steps, batches, steps, ranks)
    if capacity.holds is not None:
        tpot = tpot + capacity.holds.held_s(batches, steps, ranks, float(candidate.shape.pp))
    tpot = tpot / yielded
    rate = np.maximum.accumulate(batches / (target.osl * tpot))
    places = np.array([np.interp(rank_load_per_s, rate, batches), batches[-1]])
    held_steps = SteadySteps(
        np.interp(places, batches, step),
        yielded * np.interp(places, batches, tpot),
        np.maximum(places, LEAST_LOAD),
        ranks[:1].repeat(2),
        np.full(2, yielded),
        pool_costs.costs.tokens_per_step_cv2(np.full(2, float(candidate.draft_tokens))),
        np.interp(places, batches, recalled_s),
        _joining_steps(candidate, target),
    )
    added_s = np.maximum(np.interp(places[:1], batches, np.gradient(step, batches)), 0.0)
    now = held_steps.take(np.array([0])).below_full_batch(target.answers, added_s)
    full = held_steps.take(np.array([1])).at_full_batch(target.answers)
    gaps = gaps_of(target, held_steps.take(np.array([0])), np.array([capacity.prefill_steps]), capacity.engines)
    return float(held_steps.step_s[0]) / yielded, Pace((now, full), target.answers), gaps


def _joining_steps(candidate: Candidate, target: Target) -> float:
    if not candidate.decodes:
        return 0.0
    return JOINING_STEPS if candidate.ffn is not None else target.joining_steps


def _yielded(candidate: Candidate, pool_costs: PoolCosts) -> float:
    """Expected tokens of a sequence in a step."""
    return float(pool_costs.costs.tokens_per_step(np.array([float(candidate.draft_tokens)]))[0])


def _steps(candidate: Candidate, target: Target, pool_costs: PoolCosts, batches: Floats) -> tuple[Floats, Floats]:
    """Decode steps of one instance, by the sequences of a rank that a request meets; of them, attention to prompts."""
    shape, ffn = candidate.shape, candidate.ffn
    if ffn is not None:
        sides = candidate.sides(pool_costs)
        units = sides.units(shape, ffn.shape, ffn.micro_batches, len(batches))
        return sides.tpot_s(units, batches, target.context), np.zeros(len(batches))
    shards = Shards.of(*(np.full(len(batches), degree) for degree in shape.degrees))
    context = np.full(len(batches), target.context)
    drafts = np.full(len(batches), float(candidate.draft_tokens))
    costs = pool_costs.costs.of_role(candidate.function)
    shared = decode_step(costs, shards, batches, context, drafts)
    return decode_pace_s(costs, shards, batches, context, shared.seconds, drafts), target.recalled_s(shared)
