"""Prices and bounds of single plans worked out by hand, where bounds are tight."""

from dataclasses import replace

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.rl.curves import NEVER_FITS, CurvePool, Curves, DecodeCurve, GenerationOption, TrainingOption
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem, validate
from planner.rl.search.bounds import generation_bound_s, work_bound_s
from planner.rl.search.enumeration import build_space
from planner.rl.search.pricing import Pricing, pricing_of
from planner.rl.search.verify import derive_bound
from planner.rl.training import TrainingTable
from planner.rl.trajectories import SampleBatch

GENERATION_S = 10 / 10 + 4 * (0.5 + 0.25)
"""A prompt of 10 tokens at 10 a second, then 4 steps of one sequence."""
TRAINING_S = 14 / 10 + 14 / 20 + 0.5
"""Forward, update and optimizer of its 14 tokens: less than generation."""
TURNS_S, SYNC_S = 0.75 + 0.25 + 0.5, 2.0
TRAINER = TrainingOption("a", 2, 20.0, 10.0, 100, 2, optimizer_s=0.5, offload_s=0.25, offload_sharded_s=0.5)


def one_sample(mode: RlMode, *, overlapped: bool = False, cap: float | None = None, cost: bool = True) -> RlProblem:
    """One sample on one or two replicas of 2 GPUs, one training replica of 2; a GPU costs a dollar a second."""
    curve = DecodeCurve(0.5, 0.25, 0.0, 10.0, 4, 1000)
    return RlProblem(
        (CurvePool("a", 4, 3600.0),),
        (GenerationOption("a", 2, curve, 2),),
        (TRAINER,),
        (SampleBatch(np.array([10]), np.array([4])),),
        1,
        (mode,),
        weight_sync_s={("a", "a"): SYNC_S},
        weight_sync_overlapped=overlapped,
        switch_s=0.75,
        objective="cost_per_iter" if cost else "iteration_time",
        max_iteration_s=cap,
    )


BOTH_S = GENERATION_S + TRAINING_S
MODES = [
    (RlMode("colocated", "sync"), False, BOTH_S + TURNS_S, BOTH_S + TURNS_S, 2),
    (RlMode("hybrid", "sync"), False, BOTH_S + TURNS_S + SYNC_S, BOTH_S + TURNS_S + SYNC_S, 2),
    (RlMode("disaggregated", "sync"), False, BOTH_S + SYNC_S, BOTH_S + SYNC_S, 4),
    (RlMode("disaggregated", "sync"), True, BOTH_S + SYNC_S, BOTH_S + SYNC_S, 4),
    (RlMode("disaggregated", "stream_sync"), False, GENERATION_S + SYNC_S, BOTH_S + SYNC_S, 4),
    (RlMode("disaggregated", "one_step_async", 1), False, GENERATION_S + SYNC_S, GENERATION_S + SYNC_S, 4),
    (RlMode("disaggregated", "one_step_async", 1), True, GENERATION_S, TRAINING_S + SYNC_S, 4),
    (RlMode("disaggregated", "k_step_async", 2), False, GENERATION_S, TRAINING_S + SYNC_S, 4),
    (RlMode("disaggregated", "k_step_async", 2), True, GENERATION_S, GENERATION_S, 4),
]


@pytest.mark.parametrize(("mode", "overlapped", "quick_s", "exact_s", "gpus"), MODES)
def test_one_sample_costs_what_its_phases_take_on_the_gpus_of_the_plan(
    mode: RlMode, overlapped: bool, quick_s: float, exact_s: float, gpus: int
) -> None:
    problem = one_sample(mode, overlapped=overlapped)
    pricing = pricing_of(build_space(problem))
    assert pricing.quick_C == pytest.approx([quick_s * gpus, quick_s * (gpus + 2)])
    assert pricing.bound_MT(0) == pytest.approx(exact_s * gpus)
    plan = RlPlan(mode, (GenerationGroup(problem.generation[0], 1),), TrainingChoice(TRAINER, 1))
    evaluation = evaluate(problem, plan)
    assert evaluation.feasible
    assert (evaluation.iteration_s, evaluation.cost_usd) == pytest.approx((exact_s, exact_s * gpus))
    quickest = pricing_of(build_space(one_sample(mode, overlapped=overlapped, cost=False)))
    assert quickest.quick_C == pytest.approx([quick_s, quick_s])


@pytest.mark.parametrize(("mode", "overlapped", "quick_s", "exact_s", "gpus"), MODES[:5])
def test_a_cap_below_a_bound_leaves_no_plan(
    mode: RlMode, overlapped: bool, quick_s: float, exact_s: float, gpus: int
) -> None:
    def pricing(cap: float) -> Pricing:
        return pricing_of(build_space(one_sample(mode, overlapped=overlapped, cap=cap)))

    assert np.isfinite(pricing(quick_s * (1 + 1e-9)).quick_C).all()
    assert np.isinf(pricing(quick_s * (1 - 1e-9)).quick_C).all()
    assert pricing(exact_s * (1 + 1e-9)).bound_MT(0) == pytest.approx(exact_s * gpus)
    assert np.isinf(pricing(exact_s * (1 - 1e-9)).bound_MT(0)).all()


@pytest.mark.parametrize(
    ("needed", "slots", "kv_tokens", "beside_s", "expected"),
    [
        (3, 2, 50, 0.0, (42.25, 23.375)),  # 12 tokens in 6 steps; two replicas wait for the longest sample
        (3, 2, 20, 0.0, (46.15, 23.375)),  # 276 token steps of KV need 13.8 steps
        (3, 2, 50, 8.0, (50.25, 25.125)),
        (2, 2, 50, 0.0, (20.375, 12.125)),  # the first and the last sample, 6 tokens in 3 steps
        (0, 2, 50, 0.0, (0.0, 0.0)),
    ],
)
def test_the_bound_on_generation_adds_up_samples_and_steps(
    needed: int, slots: int, kv_tokens: int, beside_s: float, expected: tuple[float, float]
) -> None:
    # alone: 1 + 1 + 46 / 8, 2 + 1.5 + 135 / 8 and 3 + 0.5 + 61 / 8 seconds, and half a second for each of 4, 6, 2 steps
    curve = DecodeCurve(0.5, 0.25, 0.125, 10.0, slots, kv_tokens)
    bound = generation_bound_s(
        np.array([10, 20, 30]), np.array([4, 6, 2]), needed, curve, np.array([1.0, 2.0]), beside_s
    )
    assert bound == pytest.approx(expected)


@pytest.mark.parametrize(
    ("outputs", "whole", "part"),
    [
        ([[4, 0, 3, 1]], (10 * 0.3 + 2 * 1.4, 5 * 0.3 + 2 * 1.1), (2 * 0.3 + 1.4, 0.3 + 1.1)),
        ([[4, 0, 3, 1], [0] * 4], (6.5 * 0.3 + 2 * 1.4, 3.25 * 0.3 + 2 * 1.1), (2 * 0.3 + 1.4, 0.3 + 1.1)),
    ],
)
def test_the_bound_on_training_takes_the_shortest_samples(
    outputs: list[list[int]], whole: tuple[float, float], part: tuple[float, float]
) -> None:
    # prompts of two tokens; 0.1 s forward and 0.2 s update a token, half a second of optimizer; both wait two
    # micro-batches, of half their three tokens at least, or of all that a replica has of two
    option = TrainingOption("a", 1, 5.0, 10.0, 3, 1, pp=3, optimizer_s=0.5)
    table = TrainingTable.of((TrainingChoice(option, 1), TrainingChoice(option, 2)), ["a"])
    batches = [SampleBatch(np.full(4, 2), np.array(output)) for output in outputs]
    bounds = work_bound_s(table, batches, 3, 2)
    assert bounds[0] == pytest.approx(whole)
    assert bounds[1] == pytest.approx(part)


@pytest.mark.parametrize(
    ("share", "tolerance", "expected"),
    [(0.9, 1e-9, (0.9, 2, 0)), (1.0, 1e-9, (1.0, 2, 0)), (1.1, 1e-9, (1.0, 1, 1)), (1.1, 0.2, (1.1, 2, 0))],
)
def test_only_what_no_formula_closes_is_simulated(
    share: float, tolerance: float, expected: tuple[float, int, int]
) -> None:
    best = (BOTH_S + TURNS_S) * 2  # on one replica; the other configuration takes twice the GPUs
    derived = derive_bound(one_sample(RlMode("colocated", "sync")), share * best, tolerance)
    assert (derived.least / best, derived.closed, derived.simulated) == pytest.approx(expected)


def test_training_that_fits_at_no_data_parallelism_is_named_before_its_samples() -> None:
    problem = one_sample(RlMode("colocated", "sync"))
    never = TrainingOption("a", 2, 20.0, 10.0, 100, 2, min_dp=NEVER_FITS)
    with pytest.raises(PlannerError, match="of no pool at any data parallelism"):
        validate(replace(problem, training=(never,)))
    plan = RlPlan(problem.modes[0], (GenerationGroup(problem.generation[0], 1),), TrainingChoice(never, 1))
    assert "tp 2 pp 1 fits in memory at no data parallelism" in evaluate(problem, plan).broken


def test_what_no_cost_model_states_takes_no_time() -> None:
    curves = Curves((), ())
    assert (curves.switch_s, curves.move_s, curves.move_token_s) == (0.0, 0.0, 0.0)


def test_an_iteration_trains_on_as_many_samples_as_the_smallest_batch_has_unless_told() -> None:
    problem = one_sample(RlMode("colocated", "sync"))
    larger = SampleBatch(np.full(3, 10), np.full(3, 4))
    unequal = replace(problem, batches=(larger, *problem.batches))
    assert unequal.trained_samples == 1
    assert replace(unequal, batches=(larger,), samples=2).trained_samples == 2


def test_training_that_fits_nowhere_is_told_the_fewest_gpus_that_it_needs() -> None:
    base = one_sample(RlMode("disaggregated", "stream_sync"))
    many = SampleBatch(np.full(8, 10), np.full(8, 4))
    trainers = tuple(replace(TRAINER, min_dp=least) for least in (4, 3))
    pools = tuple(replace(pool, gpus=4) for pool in base.pools)
    problem = replace(base, pools=pools, batches=(many,), training=trainers)
    with pytest.raises(PlannerError, match="from 6 GPUs on") as raised:
        validate(problem)
    assert raised.value.hint == "give `a` 2 more GPUs"
