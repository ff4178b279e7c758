"""Which sequences each replica of a training plan takes in which order, where they are of several makes.

Source: DistTrain (arXiv:2408.04275, section 5), by `solvers.modalities.sample_orders`. The batch has sequences of each
make by their shares, largest remainders first. Of N micro-batches each takes every N-th sequence, dearest first, so
that they are as alike as they can be. Towers and generators differ in what they take of one: those on the stages of the
language model on its first and last rank, those apart on a rank in front of and behind its pipeline. Orders that a plan
has are kept when it is checked, and their figures derived again.
"""

from dataclasses import replace

import numpy as np

from planner.costs.training.modalities.networks import NetworkCost, generator_cost, tower_cost
from planner.errors import PlannerError
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.networks import Networks
from planner.kinds.train.samples import generated_pixels, tower_load
from planner.kinds.train.unlike import SampleOrder
from planner.kinds.train.whole_run.documents import apportioned
from planner.plan.schema import Envelope, Prediction
from planner.solvers.modalities.sample_orders import (
    Orders,
    SampleOrders,
    best_orders,
    dealt_orders,
    longest_span_s,
    work_bound_s,
)
from planner.solvers.result import Status

ORDERED = "every batch has samples in the shares of the problem, and a loader brings them in the stated order"
STARTS = 2
GOOD, PROVEN = 1e-3, 1e-9  # above the bound: not searched further, and the optimum


def with_sample_order(envelope: Envelope, best: Evaluation, given: SampleOrder | None = None) -> Envelope:
    """The plan with the order of its samples, where several makes of them meet 1F1B; `given`: an order to keep."""
    options = best.choice.table.job.options
    if len(options.samples) < 2 or best.choice.schedule != "1f1b":
        return envelope
    made_N = micro_batches(best)
    problem = order_problem(best, made_N)
    made = decided(problem, made_N) if given is None else judged(problem, made_N, given)
    step = Prediction(metric="ordered_step_time_s", value=best.with_span_s(made.span_s))
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "sample_order": made.model_dump(mode="json")},
            "predictions": (*envelope.predictions, step),
            "assumptions": (*envelope.assumptions, ORDERED),
        }
    )


Made = tuple[int, ...]
"""The samples of a micro-batch, each by its place among those of the problem, ascending."""


def micro_batches(best: Evaluation) -> tuple[Made, ...]:
    """Of a whole step, dearest first."""
    choice, options = best.choice, best.choice.table.job.options
    number = options.global_batch // choice.table.shape.micro_batch
    cost_K = [sum(map(sum, zip(*_ends(best, (kind,)), strict=True))) for kind in range(len(options.samples))]
    shares = [sample.share for sample in options.samples]
    counts = apportioned(shares, options.global_batch)
    dearest = sorted(range(len(counts)), key=lambda kind: -cost_K[kind])
    sequences = [kind for kind in dearest for _ in range(counts[kind])]
    return tuple(tuple(sorted(sequences[n::number])) for n in range(number))


def order_problem(best: Evaluation, made_N: tuple[Made, ...]) -> SampleOrders:
    """Passes of every micro-batch on every rank: [N, R]."""
    mean = np.array([_mean(best, place) for place in (0, 1)])  # in front and behind
    base_R2 = np.stack([best.pass_R3[:, 0], best.pass_R3[:, 1:].sum(axis=1)], axis=1)
    if not best.sides:
        base_R2[0] -= mean[0]
        base_R2[-1] -= mean[1]
    else:
        base_R2 = np.concatenate([np.zeros((1, 2)), base_R2, np.zeros((1, 2))])
    ends_of = {made: np.array(_ends(best, made)) for made in set(made_N)}
    pass_NR2 = np.repeat(base_R2[None], len(made_N), axis=0)
    for n, made in enumerate(made_N):
        pass_NR2[n, 0] += ends_of[made][0]
        pass_NR2[n, -1] += ends_of[made][1]
    pass_NR2 = np.maximum(pass_NR2, 0.0)
    forward_NR, backward_NR = (np.ascontiguousarray(pass_NR2[:, :, side]) for side in (0, 1))
    return SampleOrders(forward_NR, backward_NR, best.choice.dp)


def _mean(best: Evaluation, place: int) -> tuple[float, float]:
    """What the plan's mean micro-batch has in front (0) or behind (1), where networks share stages."""
    table = best.choice.table
    rows = [cost.pass_s for cost in (table.generators if place else table.towers)]
    return sum(row[0] for row in rows), sum(row[1] + row[2] for row in rows)


def _ends(best: Evaluation, made: Made) -> tuple[tuple[float, float], tuple[float, float]]:
    """Seconds forward and backward of these samples, in front of the language model and behind it."""
    networks = best.choice.table.job.networks
    sums = [[0.0, 0.0], [0.0, 0.0]]
    for place in range(len(networks.names)):
        behind = int(place >= len(networks.towers))
        share = best.choice.dp / best.sides[place].dp if best.sides else 1.0
        for kind in made:
            cost = _cost(best, networks, place, kind)
            if cost is not None:
                forward_s, input_s, weight_s = cost.pass_s
                sums[behind][0] += share * forward_s
                sums[behind][1] += share * (input_s + weight_s)
    return (sums[0][0], sums[0][1]), (sums[1][0], sums[1][1])


def _cost(best: Evaluation, networks: Networks, place: int, kind: int) -> NetworkCost | None:
    """A network on one sample of this kind; None where it has nothing for it."""
    table = best.choice.table
    job, samples = table.job, (table.job.options.samples[kind],)
    shard = replace(table.dense_shard, sequences=1)
    if best.sides:
        tp = best.sides[place].tp
        shard = replace(shard, tp=tp, sequence_parallel=tp > 1, cp=1)
    if place < len(networks.towers):
        tower = networks.towers[place][0]
        load = tower_load(tower, samples)
        return tower_cost(job.machine, tower, shard, load, job.rates, networks.learns) if load.tokens else None
    pixels, largest = generated_pixels(samples)
    generator, learns = networks.generators[place - len(networks.towers)][0], networks.generator_learns
    return generator_cost(job.machine, generator, shard, pixels, largest, job.rates, learns=learns) if pixels else None


def decided(problem: SampleOrders, made_N: tuple[Made, ...]) -> SampleOrder:
    """The best order that the solver comes to, or that in turn where it is as good."""
    dealt = dealt_orders(problem)
    dealt_s, work_s = longest_span_s(problem, dealt), work_bound_s(problem)
    if dealt_s <= work_s * (1.0 + GOOD):
        return _stated(problem, made_N, dealt, min(work_s, dealt_s), proven=dealt_s <= work_s * (1.0 + PROVEN))
    result = best_orders(problem, starts=STARTS)
    assert result.solution is not None
    assert result.objective is not None
    assert result.bound is not None
    orders = result.solution if result.objective < dealt_s else dealt
    return _stated(problem, made_N, orders, min(result.bound, dealt_s), proven=result.status is Status.OPTIMAL)


def judged(problem: SampleOrders, made_N: tuple[Made, ...], given: SampleOrder) -> SampleOrder:
    """The order of a plan with its figures; a proven bound is taken over, as long as no work is above it."""
    kinds = [*dict.fromkeys(made_N)]
    left = {made: [n for n, own in enumerate(made_N) if own == made] for made in kinds}
    stated = [given.micro_batches[row] for order in given.orders for row in order if row < len(given.micro_batches)]
    each = {len(order) for order in given.orders}
    if sorted(stated) != sorted(made_N) or each != {problem.each} or len(given.orders) != problem.replicas:
        raise PlannerError(
            "the order of samples does not hold every micro-batch of the step once",
            where="decision.sample_order",
            hint=f"give each of {problem.replicas} replicas {problem.each} of them",
        )
    orders = tuple(tuple(left[given.micro_batches[row]].pop(0) for row in order) for order in given.orders)
    bound_s = max(work_bound_s(problem), given.bound_s) if given.proven else work_bound_s(problem)
    return _stated(problem, made_N, orders, min(bound_s, longest_span_s(problem, orders)), proven=given.proven)


def _stated(
    problem: SampleOrders, made_N: tuple[Made, ...], orders: Orders, bound_s: float, *, proven: bool
) -> SampleOrder:
    kinds = [*dict.fromkeys(made_N)]
    return SampleOrder(
        micro_batches=tuple(kinds),
        orders=tuple(tuple(kinds.index(made_N[n]) for n in order) for order in orders),
        span_s=longest_span_s(problem, orders),
        bound_s=bound_s,
        dealt_s=longest_span_s(problem, dealt_orders(problem)),
        proven=proven,
    )
