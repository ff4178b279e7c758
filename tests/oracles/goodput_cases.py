"""Random small fleets, draws and limits: what the optimistic model is compared with simulation on."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from planner.problem.slo import SloSpec
from planner.simulate.fleet.instances import QUEUEINGS, ROUTINGS, Fleet, Instance, RequestPath
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.run.attainment import Draws
from planner.simulate.run.mixture import Mixture

Draw = Callable[..., Any]  # what hypothesis hands to a composite strategy
AXES = ([0.0, 4.0], [1.0, 6.0, 20.0, 60.0], [0.0, 8.0, 64.0], [1.0, 9.0, 90.0])


@st.composite
def grids(chosen: Draw) -> StepGrid:
    """Step times that need not grow with anything, or that are sums of what a step does."""
    axes = [np.array(axis) for axis in AXES]
    if chosen(st.booleans()):
        rng = np.random.default_rng(chosen(st.integers(0, 2**16)))
        shape = tuple(len(axis) for axis in axes)
        grid = StepGrid(rng.uniform(0.5, 2.0, (5, 4)), rng.uniform(0.5, 2.0, shape), *axes)
        if chosen(st.booleans()):
            return grid
        joint = replace(
            grid, joint_s=rng.uniform(0.0, 2.0, 4), least_s=np.zeros(4), rank_tokens=np.array([0.0, 2.0, 9.0, 70.0])
        )
        return replace(joint, least_s=chosen(st.sampled_from([0.0, 1.5, 3.5])) * np.array([1.0, 1.0, 1.2, 1.4]))
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
    rate, stages = chosen(st.sampled_from([7.0, math.inf])), chosen(st.sampled_from([1, 1, 2, 5]))

    def instance(role: str) -> Instance:
        return Instance(
            grid, 1000, role=role, policy=policy, token_budget=budget, most_sequences=most, chunked=chunked,
            link_tokens_per_s=rate, link_latency_s=0.0 if rate > 7.0 else 0.5, stages=stages,
        )  # fmt: skip

    return Fleet(
        tuple(instance(role) for role in roles),
        routing=chosen(st.sampled_from(sorted(ROUTINGS))),
        decode_routing=chosen(st.sampled_from(sorted(ROUTINGS))),
        queueing=chosen(st.sampled_from(sorted(set(QUEUEINGS) - {"feedback"}))),
        request_overhead_s=chosen(st.sampled_from([0.0, 0.7])),
        frontend_s=chosen(st.sampled_from([0.0, 0.0, 0.9])),
        frontend_token_s=chosen(st.sampled_from([0.0, 0.0, 0.2])),
        tokenises_together=chosen(st.booleans()),
        handover_s=chosen(st.sampled_from([0.0, 1.1])),
        first_token_from=chosen(st.sampled_from(["decode", "prefill"])),
        groups=chosen(st.sampled_from([(), (len(roles),), (1,) * len(roles)])) if not apart else (),
    )


@st.composite
def streams(chosen: Draw) -> Draws:
    count = chosen(st.integers(1, 24))
    rng = np.random.default_rng(chosen(st.integers(0, 2**16)))
    arrival, size = np.cumsum(rng.exponential(1.0, count)), (count,)
    return Draws(arrival, rng.integers(1, 30, size), rng.integers(1, 12, size), warm_up=min(count - 1, count // 4))


LIMIT = st.sampled_from([None, 0.5, 2.0, 6.0, 20.0])


@st.composite
def limits(chosen: Draw) -> SloSpec:
    bounds: dict[str, object] = {}
    for name, factor in (("ttft", 1.0), ("tpot", 0.3), ("latency", 3.0)):
        bound = chosen(LIMIT)
        if bound is not None:
            statistic = chosen(st.sampled_from(["mean_s", "p50_s", "p90_s"]))
            bounds[name] = {statistic: bound * factor}
    bounds.setdefault("latency", {"p90_s": 15.0})
    return SloSpec.model_validate(bounds | {"attainment": chosen(st.sampled_from([None, 0.6, 0.9]))})


@st.composite
def mixtures(chosen: Draw) -> Mixture:
    """Two workloads with limits of their own, the second perhaps with none."""
    draws = [chosen(streams()), chosen(streams())]
    slos = [chosen(limits()), SloSpec() if chosen(st.integers(0, 3)) == 0 else chosen(limits())]
    return Mixture(tuple(draws), tuple(slos))


@st.composite
def mixed_fleets(chosen: Draw) -> Fleet:
    """Fleets of which two workloads share all instances, or some of them."""
    fleet: Fleet = chosen(fleets())
    both = chosen(st.booleans())
    numbered = tuple(replace(instance, model=0 if both else index) for index, instance in enumerate(fleet.instances))
    first = [instance.model for instance in numbered if instance.role != "decode"]
    last = [instance.model for instance in numbered if instance.role == "decode"]

    def path() -> RequestPath:
        entry = chosen(st.sampled_from(first))
        return RequestPath(entry, chosen(st.sampled_from(last)) if last else entry, 1.0)

    paths = tuple(tuple(path() for _ in range(chosen(st.integers(1, 2)))) for _ in range(2))
    return replace(fleet, instances=numbered, paths=paths)
