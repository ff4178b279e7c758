"""Formulas of steady state against numbers worked out by hand: rates and waits of roles, paths and hand-overs."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from planner.costs.operators.work import Shards, Work
from planner.costs.rates.spread import ErrorSpread, features_of
from planner.errors import PlannerError
from planner.kinds.serve.steady.attained import Pace
from planner.kinds.serve.steady.demand import Channel, Margins, Target, TransferPath, channels_of
from planner.kinds.serve.steady.evaluate import StepTimes, judge_colocated, judge_decode, judge_prefill, varied
from planner.kinds.serve.steady.operate import Operation
from planner.kinds.serve.steady.points import Points, Tally
from planner.kinds.serve.steady.predict import in_flight, most_scale, paths_of, resting_scale, times
from planner.kinds.serve.steady.roles_in_use import RoleInUse
from planner.kinds.serve.steady.steps.first_tokens import Engines, first_tokens
from planner.kinds.serve.steady.steps.formulas import Costs, colocated_tpot_s, prefill_alone, prefill_mixed
from planner.kinds.serve.steady.time_limits import ATTAINMENT, TimeLimit
from planner.models.library import find_model
from planner.solvers.stochastic.gap_averages import Answers, GapAverages

NO_LIMIT = TimeLimit("p95", 0.95, math.inf)
TARGET = Target(
    name="chat",
    index=0,
    isl=1000.0,
    osl=101.0,
    context=1050.0,
    resident_tokens=1101.0,
    context_tokens=1101,
    ttft_limits=(NO_LIMIT,),
    tpot_limits=(TimeLimit("mean", None, 0.05),),
    itl_limits=(),
    latency_limits=(),
    attainment=None,
    answers=Answers((101.0,), 0.0, 0.0, 1.0),
    joining_steps=1.0,
    arrival_cv2=1.0,
    service_cv2=0.0,
    transfer_bytes=1e9,
    draft_bytes=2e8,
    rate_per_s=None,
    clients=None,
    share=1.0,
    margins=Margins(),
)
NONE = np.zeros(1)


def mean_limit(limit_s: float) -> TimeLimit:
    return TimeLimit("mean", None, limit_s)


def points(batch: float = 8.0, dp: float = 2.0, tp: float = 4.0) -> Points:
    """One instance of dp attention ranks that hold `batch` sequences each."""
    zero = np.zeros(1)
    shards = Shards.of(np.array([tp]), 1, np.array([dp]), 1, 1)
    return Points(np.zeros(1, dtype=np.intp), shards, np.array([batch]), zero, zero, zero, zero, (), ())


def step_times(**seconds: float) -> StepTimes:
    fields = ("service_s", "queue_s", "stretch_s", "prefill_steps", "tpot_s")
    arrays: dict[str, Any] = {name: np.array([seconds.get(name, 0.0)]) for name in fields}
    return StepTimes(**arrays, step=cast(Any, None))


FITS = np.array([True])


def test_a_decode_instance_finishes_its_sequences_once_an_output() -> None:
    rates = judge_decode(TARGET, points(), FITS, step_times(tpot_s=0.05), 0.9, Tally())
    assert rates.rate_per_s == pytest.approx(0.9 * 8 * 2 / (101 * 0.05))
    assert rates.stay_s == pytest.approx(100 * 0.05)
    assert rates.utilisation == 0.0
    assert rates.good.all()  # a limit that is met exactly is kept


@pytest.mark.parametrize("fits", [True, False])
def test_a_decode_instance_slower_than_the_limit_is_counted_once_and_only_where_it_fits(fits: bool) -> None:
    tally = Tally()
    assert not judge_decode(TARGET, points(), np.array([fits]), step_times(tpot_s=0.0501), 1.0, tally).good.any()
    assert dict(tally.pruned) == ({"slo.tpot": 1} if fits else {})


def test_prefill_is_as_busy_as_the_mean_wait_allows() -> None:
    """A wait of rho s / (2 (1 - rho)) on average: 0.3 s of room behind 0.2 s of service give rho = 0.75."""
    target = replace(TARGET, ttft_limits=(mean_limit(1.0),))
    path = TransferPath(bandwidth_bytes_per_s=2e9, shared_bytes_per_s=math.inf, latency_s=0.075)
    times_of_step = step_times(service_s=0.5, queue_s=0.2)  # 1 GB from four ranks: 0.125 s and 0.075 s of latency
    alone = replace(points(), shards=replace(points().shards, dp=np.ones(1)))
    rates = judge_prefill(target, alone, FITS, times_of_step, path, 0.95, Tally())
    assert rates.utilisation == pytest.approx(0.75)
    assert rates.rate_per_s == pytest.approx(0.75 / 0.2)
    assert rates.stay_s == pytest.approx(0.7 + 0.3)
    assert rates.good.all()
    busiest = judge_prefill(target, alone, FITS, times_of_step, path, 0.5, Tally())
    assert busiest.utilisation == pytest.approx(0.5)
    assert busiest.stay_s == pytest.approx(0.7 + 0.1)


def test_prefill_without_time_to_wait_serves_nothing() -> None:
    target = replace(TARGET, ttft_limits=(mean_limit(0.6),))
    path, tally = TransferPath(2e9, math.inf, 0.075), Tally()
    rates = judge_prefill(target, points(), FITS, step_times(service_s=0.5, queue_s=0.2), path, 0.9, tally)
    assert not rates.good.any()
    assert dict(tally.pruned) == {"slo.ttft": 1}


def engines(**other: float) -> Engines:
    """Two ranks of one stage and 8 places; a prompt takes a step of 280 ms alone, an answer 101 of 40 ms."""
    values = {
        "stages": 1.0, "places": 8.0, "room": 4.0, "pace_s": 0.03, "step_s": 0.04, "prompt_s": 0.25, "steps": 101.0,
        "pace_slope_s": 0.0, "step_slope_s": 0.0, "sequence_room": 0.0, "later_s": 0.02,
        "front_s": 0.0, "front_ranks": 2.0,
    } | other  # fmt: skip
    return Engines(**{name: np.array([value]) for name, value in values.items()})


def colocated(
    target: Target, *, most_busy: float = 0.9, front_s: float = 0.0, **seconds: float
) -> tuple[Any, dict[str, int]]:
    tally = Tally()
    given = step_times(**({"service_s": 0.3, "queue_s": 0.1, "tpot_s": 0.04} | seconds))
    given = replace(given, engines=engines(front_s=front_s))
    return judge_colocated(target, points(), FITS, given, most_busy, 0.5, tally), dict(tally.pruned)


FULL_PER_S = 8 / (101 * 0.04 + 0.28)


def first_token_s(filled: float) -> float:
    return float(first_tokens(engines(), np.array([filled]), varied(TARGET)).mean_s[0])


def test_a_colocated_instance_waits_and_decodes_at_the_load_it_finishes() -> None:
    rate = 0.5 * FULL_PER_S
    rates, dropped = colocated(TARGET)
    assert rates.rate_per_s == pytest.approx(2 * rate)
    assert rates.utilisation == pytest.approx(rate * 0.1)
    assert rates.stay_s == pytest.approx(first_token_s(0.5) + 100 * 0.04)
    assert rates.good.all()
    assert not dropped


def test_a_front_end_that_is_busy_most_of_the_time_limits_the_rate() -> None:
    rates, _ = colocated(TARGET, front_s=1.5)
    assert rates.rate_per_s == pytest.approx(0.9 / 1.5)


def test_a_colocated_instance_is_filled_as_far_as_first_tokens_and_requests_are_in_time() -> None:
    limit_s = first_token_s(0.3)
    soon = replace(TARGET, ttft_limits=(mean_limit(limit_s),))
    whole = replace(TARGET, latency_limits=(mean_limit(limit_s + 4.0),))
    for target in (soon, whole):
        rates, _ = colocated(target)
        assert 0.297 * 2 * FULL_PER_S < rates.rate_per_s[0] <= 0.3 * 2 * FULL_PER_S
        assert rates.good.all()


@pytest.mark.parametrize(
    ("change", "seconds", "rule"),
    [
        ({}, {"queue_s": 1.0}, "prefill cannot keep up with the batch"),
        ({}, {"tpot_s": 0.051}, "slo.tpot"),
        ({"ttft_limits": (mean_limit(0.29),)}, {}, "slo.ttft"),
        ({"latency_limits": (mean_limit(4.29),)}, {}, "slo.latency"),
        ({"ttft_limits": (mean_limit(0.5),), "latency_limits": (mean_limit(4.5),)}, {}, None),
    ],
)
def test_a_colocated_instance_is_dropped_by_the_first_limit_that_it_breaks(
    change: dict[str, Any], seconds: dict[str, float], rule: str | None
) -> None:
    rates, dropped = colocated(replace(TARGET, **change), **seconds)
    assert rates.good.all() == (rule is None)
    assert dropped == ({} if rule is None else {rule: 1})


class LinearCosts:
    """A step takes 10 ms and 10 us a token; `work` is what was priced last."""

    arch: Any = SimpleNamespace(layers=())  # no experts: every attention rank steps by itself
    work: Work

    def step(self, shards: Shards, work: Work) -> Any:  # noqa: ANN401 - as much of a step as is read
        self.work = work
        return SimpleNamespace(seconds=0.01 + 1e-5 * work.tokens)


def row(*values: float) -> tuple[np.ndarray[Any, np.dtype[np.float64]], ...]:
    return tuple(np.array([value]) for value in values)


def test_prompts_share_a_step_of_prefill_alone_and_long_ones_take_several() -> None:
    costs = LinearCosts()
    shards = Shards.of(1, 2, 1, 1, 1)
    short = prefill_alone(cast(Costs, costs), shards, *row(1000.0, 4096.0))  # four prompts a step of 4000 tokens
    assert short.latency_s == pytest.approx(0.05)
    assert short.queue_s == pytest.approx(0.05 / 4 / 2)
    assert short.steps == pytest.approx(1 / 4 / 2)
    assert short.stretch_s == 0.0
    long = prefill_alone(cast(Costs, costs), shards, *row(10000.0, 4096.0))  # three steps of 3333 tokens
    assert long.latency_s == pytest.approx(3 * (0.01 + 1e-5 * 10000 / 3))
    assert long.queue_s == pytest.approx(long.latency_s / 2)
    assert long.steps == pytest.approx(3 / 2)
    assert costs.work.prefill_context == pytest.approx((10000 - 10000 / 3) / 2)


def test_prefill_rides_on_steps_of_the_decoding_sequences() -> None:
    costs = LinearCosts()
    shards, decode_s = Shards.of(1, 1, 1, 1, 1), np.array([0.0101])
    isl, osl, chunk, decoding, context = row(3000.0, 100.0, 2048.0, 48.0, 1000.0)
    mixed = prefill_mixed(cast(Costs, costs), shards, isl, osl, chunk, decoding, context, decode_s)
    step_s = 0.01 + 1e-5 * (1500 + 48)  # 2000 tokens of room: two steps of 1500
    assert mixed.steps == pytest.approx(2.0)
    assert mixed.latency_s == pytest.approx(2 * step_s)
    full_s = 0.0101 + (step_s - 0.0101) * 2000 / 1500  # where prompts wait, the next one fills the step
    assert mixed.queue_s == pytest.approx(full_s * 3000 / 2000)
    assert mixed.stretch_s == pytest.approx(2 * (step_s - 0.0101))
    assert costs.work.prefill_context == pytest.approx(750.0)
    assert costs.work.decode_sequences == pytest.approx(48.0)


def test_short_outputs_put_several_prompts_into_a_step() -> None:
    costs = LinearCosts()
    isl, osl, chunk, decoding, context = row(100.0, 10.0, 2048.0, 48.0, 1000.0)
    mixed = prefill_mixed(
        cast(Costs, costs), Shards.of(1, 1, 1, 1, 1), isl, osl, chunk, decoding, context, np.array([0.0101])
    )
    prompts = 48 / 10 / 0.8  # end in a step and arrive, so many that eight steps in ten carry them
    assert mixed.steps == pytest.approx(1 / prompts)
    assert costs.work.prefill_tokens == pytest.approx(prompts * 100)
    crowded = prefill_mixed(
        cast(Costs, costs), Shards.of(1, 1, 1, 1, 1), isl, osl, np.array([348.0]), decoding, context, np.array([0.0101])
    )
    assert crowded.steps == pytest.approx(1 / 3)  # of 300 tokens of room


def test_experts_get_the_prompts_of_the_ranks_that_prefill_in_the_same_step() -> None:
    costs = LinearCosts()
    costs.arch = find_model("Qwen/Qwen3-30B-A3B")
    isl, osl, chunk, decoding, context = row(1000.0, 100.0, 2048.0, 20.0, 1000.0)
    prefill_mixed(cast(Costs, costs), Shards.of(1, 1, 4, 4, 1), isl, osl, chunk, decoding, context, np.array([0.0102]))
    busy = 1 + 3 * 20 / 100  # of four ranks: this one, and each other with a request that arrives in one step of five
    assert costs.work.rank_tokens == pytest.approx(20 + 1000 * busy / 4)
    assert costs.work.prefill_tokens == pytest.approx(1000.0)


def test_no_more_ranks_prefill_in_a_step_than_there_are() -> None:
    costs = LinearCosts()
    costs.arch = find_model("Qwen/Qwen3-30B-A3B")
    isl, osl, chunk, decoding, context = row(6000.0, 50.0, 1020.0, 20.0, 1000.0)
    prefill_mixed(cast(Costs, costs), Shards.of(1, 1, 4, 4, 1), isl, osl, chunk, decoding, context, np.array([0.0102]))
    assert costs.work.rank_tokens == pytest.approx(20 + 1000)  # 20 / 50 x 6 steps a prompt: all ranks, all the time


def test_a_step_keeps_a_tenth_of_its_chunk_for_prefill() -> None:
    costs = LinearCosts()
    isl, osl, chunk, decoding, context = row(1000.0, 1000.0, 1000.0, 950.0, 10.0)
    mixed = prefill_mixed(
        cast(Costs, costs), Shards.of(1, 1, 1, 1, 1), isl, osl, chunk, decoding, context, np.array([0.0195])
    )
    assert mixed.steps == pytest.approx(10.0)  # of a prompt of 1000 tokens, 100 at a time


def test_ranks_that_step_together_wait_for_each_others_prompts() -> None:
    alone = colocated_tpot_s(*row(0.02, 0.03, 0.5, 20.0, 100.0, 1.0))
    assert alone == pytest.approx(0.02 + 20 / 100 * 0.03)
    joined = colocated_tpot_s(*row(0.02, 0.03, 0.5, 20.0, 100.0, 4.0))
    assert joined == pytest.approx(0.02 + (1 - 0.9**4) * 0.03 / 0.5)  # a tenth of the steps of a rank prefill


def test_limits_on_whole_requests_are_split_between_the_stages() -> None:
    target = replace(TARGET, latency_limits=(mean_limit(10.0), TimeLimit("p95", 0.95, 20.0)))
    first = target.for_first_stage(0.2)
    assert [limit.limit_s for limit in first.ttft_limits] == [math.inf, pytest.approx(2.0), pytest.approx(4.0)]
    assert target.for_second_stage(0.2).tpot_limit_s == pytest.approx(0.05)  # its own is stricter than 8 s / 100
    assert target.for_second_stage(0.6).tpot_limit_s == pytest.approx(0.04)


def test_limits_of_stages_give_an_attainment_in_their_product() -> None:
    share = TimeLimit(ATTAINMENT, 0.9, 1.0)
    for ttft, tpot in ((0.5, 0.5), (0.95, 0.5), (0.95, 0.95), (0.99, 0.5)):
        target = replace(
            TARGET,
            ttft_limits=(share, TimeLimit("p", ttft, 1.0)),
            tpot_limits=(replace(share, limit_s=0.05), TimeLimit("p", tpot, 0.05)),
        )
        first = max(limit.quantile or 0.0 for limit in target.for_first_stage(1.0).ttft_limits)
        second = max(limit.quantile or 0.0 for limit in target.for_second_stage(1.0).tpot_limits)
        assert first * second >= 0.9 - 1e-12
        assert second <= max(tpot, 0.99) + 1e-12


def test_channels_are_every_pool_with_every_split_and_every_cache_of_a_drafter() -> None:
    assert [(c.index, c.target_pool, c.share, c.drafted) for c in channels_of([TARGET], 2, (False, True))] == [
        (0, 0, 1.0, False), (1, 1, 1.0, False), (2, 0, 1.0, True), (3, 1, 1.0, True),
    ]  # fmt: skip
    coupled = channels_of([TARGET, replace(TARGET, latency_limits=(NO_LIMIT,))], 3)
    assert len(coupled) == 30
    assert {c.share for c in coupled if c.target_pool == 2} == {0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8}
    assert Channel(0, 0, 1.0, drafted=True).moved_bytes(TARGET) == 1.2e9
    assert Channel(0, 0, 1.0).moved_bytes(TARGET) == 1e9


def test_a_transfer_is_as_fast_as_its_ranks_or_the_shared_network() -> None:
    four = Shards.of(4)
    assert TransferPath(1e9, math.inf, 0.5).transfer_s(2e9, four) == pytest.approx(1.0)
    assert TransferPath(1e9, 2e9, 0.5).transfer_s(2e9, four) == pytest.approx(1.5)


def test_margins_follow_the_interval_by_a_gaussian() -> None:
    spreads: Any = {"ttft": ErrorSpread((0.0, 0.0), (0.3, 0.0)), "tpot": ErrorSpread((0.0, 0.0), (-0.1, 0.0))}
    nine = Margins.of(0.9, spreads)
    assert nine.ttft == pytest.approx(math.exp(0.3))
    assert nine.tpot == 1.0  # never below
    assert Margins.of(0.99, spreads).ttft == pytest.approx(math.exp(0.3 * 2.3263478740 / 1.2815515655))
    assert Margins.of(None, {}) == Margins(1.0, 1.0)
    with pytest.raises(PlannerError, match="no intervals"):
        Margins.of(0.9, {"ttft": spreads["ttft"]})


def test_intervals_widen_with_the_logarithm_of_the_queue_and_hold_the_estimate() -> None:
    features = features_of(np.array([0.5, 1.0, np.e, 1000.0]), np.ones(4))
    queue = [0.0, 0.0, 1.0, math.log(20.0)]  # of 20 times the idle time at most
    assert features == pytest.approx(np.array([[1.0, q, q * q] for q in queue]))
    low, high = ErrorSpread((-0.1, -0.2, 0.0), (0.1, 0.0, 0.3)).bounds(np.full(4, 2.0), features)
    assert low == pytest.approx(np.array([2 * math.exp(-0.1 - 0.2 * q) for q in queue]))
    assert high == pytest.approx(np.array([2 * math.exp(0.1 + 0.3 * q * q) for q in queue]))
    wide, narrow = ErrorSpread((-9.0, 0.0, 0.0), (9.0, 0.0, 0.0)), ErrorSpread((9.0, 0.0, 0.0), (-9.0, 0.0, 0.0))
    estimate = np.ones(1)
    assert [float(bound[0]) for bound in wide.bounds(estimate, features[:1])] == pytest.approx(
        [math.exp(-4), math.exp(4)]
    )
    assert [float(bound[0]) for bound in narrow.bounds(estimate, features[:1])] == [1.0, 1.0]


class Role:
    """A role whose prefill takes 0.1 s of a request and whose token takes 20 ms, more under load."""

    def __init__(self, function: str, load_per_s: float, *, busy: float, tpot_s: float = 0.02) -> None:
        channel = None if function == "colocated" else Channel(0, 0, 1.0)
        self.candidate = SimpleNamespace(
            model="llama", pool=0, channel=channel, decodes=function == "decode", function=function
        )
        self.load_per_s, self.busy, self.tpot_s = (load_per_s,), busy, tpot_s

    def operation(self, target: Target, pool_costs: object, scale: float = 1.0) -> Operation:
        if self.candidate.decodes:
            return Operation(0.0, 0.0, 0.0, self.tpot_s * (1.0 + scale))
        pace = Pace((GapAverages(np.full((1, 1), self.tpot_s), np.full((1, 1), 1e-12)),), target.answers)
        return Operation(0.5, 0.5 * scale, 0.1, self.tpot_s * (self.candidate.function == "colocated"), pace=pace)


COSTS_OF_POOL: Any = {("llama", 0): None}


def used(*roles: Role) -> list[RoleInUse]:
    return cast(list[RoleInUse], list(roles))


@pytest.mark.parametrize(
    ("load_per_s", "most"),
    [((1.0, 1.0), 0), ((1.0 - 2**-53, 1.0), 0), ((1.0, 1.0 - 2**-53), 0), ((0.99, 1.0), 1), ((0.0, 1e-3, 1e-3), 1)],
)
def test_loads_alike_but_for_rounding_are_not_told_apart(load_per_s: tuple[float, ...], most: int) -> None:
    assert RoleInUse("decode", cast(Any, None), 1, load_per_s).most_of == most


def test_a_path_takes_the_slowest_decode_role_of_its_channel() -> None:
    roles = used(
        Role("prefill", 2.0, busy=0.5), Role("decode", 1.0, busy=0.5), Role("decode", 1.0, busy=0.5, tpot_s=0.03),
        Role("decode", 0.0, busy=0.0, tpot_s=0.9),
    )  # fmt: skip
    (path,) = paths_of(roles, TARGET, COSTS_OF_POOL)
    assert path.tpot_s == pytest.approx(0.06)
    mean = mean_limit(math.inf)
    assert path.ttft_s(mean, TARGET) == pytest.approx(0.5 + 0.05)  # 0.5 x 0.1 / (2 x 0.5)
    assert path.latency_s(mean, TARGET) == pytest.approx(0.55 + 100 * 0.06)


def test_requests_in_flight_are_loads_times_stays() -> None:
    roles = used(Role("colocated", 2.0, busy=0.8), Role("colocated", 0.0, busy=0.0, tpot_s=9.0))
    assert in_flight(roles, TARGET, COSTS_OF_POOL, 1.0) == pytest.approx(2.0 * (0.5 + 0.05 + 100 * 0.02))
    wait = 0.25 * 0.1 / (2 * 0.75)
    assert in_flight(roles, TARGET, COSTS_OF_POOL, 0.5) == pytest.approx(1.0 * (0.5 + wait + 100 * 0.02))


def test_a_closed_loop_rests_where_its_clients_are_all_in_flight_or_at_the_limits() -> None:
    roles = used(Role("colocated", 2.0, busy=0.8))
    assert most_scale(roles, TARGET) == pytest.approx(1.25)
    few = replace(TARGET, clients=2)
    scale = resting_scale(roles, few, COSTS_OF_POOL)
    assert in_flight(roles, few, COSTS_OF_POOL, scale) == pytest.approx(2.0, rel=1e-6)
    assert scale < 1.0
    assert resting_scale(roles, replace(TARGET, clients=1000), COSTS_OF_POOL) == pytest.approx(1.25)
    assert most_scale(used(Role("colocated", 0.0, busy=0.8)), TARGET) == 1.0


def test_predictions_are_of_every_statistic_that_is_limited_and_of_the_slowest_path() -> None:
    limits = (TimeLimit("attainment", 0.9, 1.0), TimeLimit("p90", 0.9, 1.0), mean_limit(2.0))
    target = replace(TARGET, ttft_limits=limits, latency_limits=limits, attainment=0.9)
    roles = used(Role("colocated", 2.0, busy=0.5), Role("colocated", 1.0, busy=0.5, tpot_s=0.03))
    predicted = {(p.metric, p.statistic): p.value for p in times(roles, target, COSTS_OF_POOL, 1.0)}
    assert set(predicted) == {
        ("ttft_s", "p90"), ("ttft_s", "mean"), ("tpot_s", "mean"), ("latency_s", "mean"), ("latency_s", "p90"),
        ("attainment", "mean"),
    }  # fmt: skip
    assert predicted["tpot_s", "mean"] == pytest.approx(0.03)
    assert predicted["latency_s", "mean"] == pytest.approx(predicted["ttft_s", "mean"] + 100 * 0.03)
    assert predicted["attainment", "mean"] == 0.0  # every request takes longer than the limit on its whole
    kept = replace(target, latency_limits=(), ttft_limits=(TimeLimit("p90", 0.9, 0.6),))
    share = {(p.metric): p.value for p in times(roles, kept, COSTS_OF_POOL, 1.0)}["attainment"]
    at_share = TimeLimit("p", share, 0.6)
    (path, _) = paths_of(roles, kept, COSTS_OF_POOL)
    assert path.ttft_s(at_share, kept) == pytest.approx(0.6, rel=1e-6)
