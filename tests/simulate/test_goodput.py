"""Goodput by bisection, and the optimistic model that no simulation exceeds."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.problem.schema import SloSpec
from planner.simulate.attainment import Draws, attainment, kept, required
from planner.simulate.engine import simulate
from planner.simulate.fleet import QUEUEINGS, ROUTINGS, Fleet, Instance
from planner.simulate.goodput import goodput, interval, keeps
from planner.simulate.optimistic import Optimist
from planner.simulate.step_grid import StepGrid

Draw = Callable[..., Any]  # what hypothesis hands to a composite strategy
AXES = ([0.0, 4.0], [1.0, 6.0, 20.0, 60.0], [0.0, 8.0, 64.0], [1.0, 9.0, 90.0])
SLO = SloSpec.model_validate({"ttft": {"p90_s": 0.4}, "tpot": {"p90_s": 0.02}, "attainment": 0.9})


@st.composite
def grids(chosen: Draw) -> StepGrid:
    """Step times that need not grow with anything, or that are sums of what a step does."""
    axes = [np.array(axis) for axis in AXES]
    if chosen(st.booleans()):
        rng = np.random.default_rng(chosen(st.integers(0, 2**16)))
        shape = tuple(len(axis) for axis in axes)
        return StepGrid(rng.uniform(0.5, 2.0, (5, 4)), rng.uniform(0.5, 2.0, shape), *axes)
    coefficients = [chosen(st.sampled_from([0.0, 0.01, 0.1, 1.0])) for _ in range(5)]
    base, sequence, context, token, pair = coefficients
    return StepGrid.affine(
        max(base, 0.01), sequence_s=sequence, context_s=context / 50, token_s=token, pair_s=pair / 50, most_sequences=4
    )


@st.composite
def fleets(chosen: Draw) -> Fleet:
    grid = chosen(grids())
    apart = chosen(st.booleans())
    roles = ["prefill", "decode"] if apart else ["colocated"]
    roles += chosen(st.lists(st.sampled_from(roles), max_size=2))
    policy, chunked = chosen(st.sampled_from(["mixed", "prefill-first"])), chosen(st.booleans())
    most, budget = chosen(st.integers(1, 4)), chosen(st.sampled_from([3, 8, 20, 64]))
    rate = chosen(st.sampled_from([7.0, math.inf]))

    def instance(role: str) -> Instance:
        return Instance(
            grid, 1000, role=role, policy=policy, token_budget=budget, most_sequences=most, chunked=chunked,
            link_tokens_per_s=rate, link_latency_s=0.0 if rate > 7.0 else 0.5,
        )  # fmt: skip

    return Fleet(
        tuple(instance(role) for role in roles),
        routing=chosen(st.sampled_from(sorted(ROUTINGS))),
        decode_routing=chosen(st.sampled_from(sorted(ROUTINGS))),
        queueing=chosen(st.sampled_from(sorted(set(QUEUEINGS) - {"feedback"}))),
        request_overhead_s=chosen(st.sampled_from([0.0, 0.7])),
        first_token_from=chosen(st.sampled_from(["decode", "prefill"])),
    )


@st.composite
def streams(chosen: Draw) -> Draws:
    count = chosen(st.integers(1, 24))
    rng = np.random.default_rng(chosen(st.integers(0, 2**16)))
    arrival = np.cumsum(rng.exponential(1.0, count))
    return Draws(arrival, rng.integers(1, 30, count), rng.integers(1, 12, count), warm_up=min(count - 1, count // 4))


LIMIT = st.sampled_from([None, 0.5, 2.0, 6.0, 20.0])


@st.composite
def limits(chosen: Draw) -> SloSpec:
    found: dict[str, object] = {}
    for name, factor in (("ttft", 1.0), ("tpot", 0.3), ("latency", 3.0)):
        bound = chosen(LIMIT)
        if bound is not None:
            statistic = chosen(st.sampled_from(["mean_s", "p50_s", "p90_s"]))
            found[name] = {statistic: bound * factor}
    found.setdefault("latency", {"p90_s": 15.0})
    return SloSpec.model_validate(found | {"attainment": chosen(st.sampled_from([None, 0.6, 0.9]))})


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(fleets(), streams(), limits(), st.integers(-6, 6))
def test_no_run_keeps_its_limits_beyond_the_optimistic_rate(
    fleet: Fleet, draws: Draws, slo: SloSpec, power: int
) -> None:
    most = Optimist(draws, required(slo)).most_rate(fleet)
    rates = [2.0**power] + ([most * 1.001 + 1e-9, most * 2.0 + 1e-9] if math.isfinite(most) else [])
    for rate in rates:
        if rate > most * (1.0 + 1e-6):
            assert not kept(simulate(fleet, draws.requests(rate)), slo, draws.warm_up)
