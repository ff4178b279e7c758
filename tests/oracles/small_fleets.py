"""Random small fleets and loads, and what a run of the compiled loop must share with the slow simulator."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from step_simulator import StepSimulator

from planner.simulate.fleet.instances import (
    EVICTIONS,
    QUEUEINGS,
    ROUTINGS,
    UNLIMITED,
    Fleet,
    Instance,
    MemoryTier,
    RequestPath,
    Speculation,
)
from planner.simulate.fleet.operation import ACTIONS, Change, Control, ElasticEngines, PoolLink
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.result import SimulationResult

Draw = Callable[..., Any]  # what hypothesis hands to a composite strategy
MASK = 2**64 - 1


def draw(number: int, request: int, offset: int, seed: int = 7) -> float:
    """SplitMix64, as in the paper."""
    mixed = ((seed + number) * 0x9E3779B97F4A7C15 + 2 * request + offset + 1) & MASK
    mixed = mixed * 0x9E3779B97F4A7C15 & MASK
    mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & MASK
    mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & MASK
    return float(((mixed ^ mixed >> 31) >> 11) / 2**53)


@st.composite
def grids(chosen: Draw) -> StepGrid:
    """Random step times on a few values of each axis."""
    seed = chosen(st.integers(0, 2**16))
    rng = np.random.default_rng(seed)
    axes = [
        np.array([0.0, 4.0]),
        np.array([1.0, 6.0, 20.0, 60.0]),
        np.array([0.0, 8.0, 64.0]),
        np.array([1.0, 9.0, 90.0]),
    ]
    shape = tuple(len(axis) for axis in axes)
    round_numbers = chosen(st.booleans())
    values = rng.integers(1, 5, shape).astype(float) if round_numbers else rng.uniform(0.5, 2.0, shape)
    decode = rng.integers(1, 4, (5, 4)).astype(float) if round_numbers else rng.uniform(0.5, 2.0, (5, 4))
    plain = StepGrid(decode, values, *axes)
    if chosen(st.booleans()):
        return plain
    ranks = np.array([0.0, 3.0, 20.0, 80.0])
    joint = np.concatenate([[0.0], np.sort(rng.uniform(0.0, 1.0, 3))])
    least = chosen(st.sampled_from([0.0, 2.25])) * np.array([0.5, 0.5, 1.0, 1.5])
    return replace(plain, joint_s=joint, rank_tokens=ranks, least_s=least)


@st.composite
def instances(chosen: Draw, role: str, grid: StepGrid) -> Instance:
    return Instance(
        grid,
        kv_tokens=chosen(st.sampled_from([24, 32, 48, 200])),
        role=role,
        policy=chosen(st.sampled_from(["mixed", "prefill-first"])),
        token_budget=chosen(st.sampled_from([3, 8, 20, 64])),
        most_sequences=chosen(st.integers(1, 4)),
        chunked=chosen(st.booleans()),
        reserves=chosen(st.booleans()),
        preemption=chosen(st.sampled_from(["recompute", "swap"])),
        host_kv_tokens=chosen(st.sampled_from([0, 16, 100])),
        swap_tokens_per_s=chosen(st.sampled_from([2.0, 64.0])),
        watermark=chosen(st.sampled_from([0.0, 0.2])),
        link_tokens_per_s=chosen(st.sampled_from([1.0, 7.0, float("inf")])),
        link_latency_s=chosen(st.sampled_from([0.0, 0.5])),
        most_context=chosen(st.sampled_from([UNLIMITED, UNLIMITED, 9, 16, 25])),
        encode_s=chosen(st.sampled_from([(), (), ((0.5, 0.25),), ((0.0, 1.0),)])),
    )


@st.composite
def fleets(chosen: Draw) -> Fleet:
    grid = chosen(grids())
    apart = chosen(st.booleans())
    roles = ["prefill", "decode"] if apart else ["colocated"]
    roles += chosen(st.lists(st.sampled_from(roles), max_size=2))
    return Fleet(
        tuple(chosen(instances(role, grid)) for role in roles),
        routing=chosen(st.sampled_from(sorted(ROUTINGS))),
        decode_routing=chosen(st.sampled_from(sorted(ROUTINGS))),
        queueing=chosen(st.sampled_from(sorted(QUEUEINGS))),
        block_tokens=chosen(st.sampled_from([1, 4])),
        prefix_caching=chosen(st.booleans()),
        request_overhead_s=chosen(st.sampled_from([0.0, 0.25])),
        frontend_s=chosen(st.sampled_from([0.0, 0.0, 0.4])),
        frontend_token_s=chosen(st.sampled_from([0.0, 0.0, 0.1])),
        tokenises_together=chosen(st.booleans()),
        handover_s=chosen(st.sampled_from([0.0, 0.0, 0.3, 2.6])),
        migration_period_s=chosen(st.sampled_from([float("inf"), 1.7])),
        crowded_below=chosen(st.sampled_from([1.0, 50.0])),
        spare_above=chosen(st.sampled_from([-9.0, 2.0])),
        quantum_s=chosen(st.sampled_from([0.5, 1.3, 8.0])),
        first_token_from=chosen(st.sampled_from(["decode", "prefill"])),
    )


@st.composite
def tiers(chosen: Draw) -> tuple[MemoryTier, ...]:
    """None, one or two memory tiers."""
    rates = st.sampled_from([3.0, 8.0, math.inf])
    tier = st.builds(MemoryTier, st.sampled_from([1, 5, 16, 200]), rates, rates)
    return tuple(chosen(st.lists(tier, max_size=2)))


@st.composite
def ahead_fleets(chosen: Draw) -> Fleet:
    """Engines that form a step while the one before it runs, alone and in groups."""
    fleet: Fleet = chosen(fleets())
    engines = [
        replace(engine, asynchronous=True, policy="mixed", reserves=False, preemption="recompute")
        for engine in fleet.instances
    ]
    groups: tuple[int, ...] = ()
    if chosen(st.booleans()):
        engines, groups = [engine for engine in engines for _ in range(2)], (2,) * len(engines)
    queueing = fleet.queueing if fleet.queueing != "feedback" else "fcfs"
    return replace(
        fleet,
        instances=tuple(engines),
        groups=groups,
        queueing=queueing,
        migration_period_s=math.inf,
        skew=chosen(st.sampled_from([(), (1.0, 1.5)])),
        tiers=chosen(tiers()),
        eviction=chosen(st.sampled_from(sorted(EVICTIONS))),
    )


@st.composite
def loads(chosen: Draw) -> Requests:
    count = chosen(st.integers(1, 14))
    lengths = st.lists(st.integers(1, 18), min_size=count, max_size=count)
    inputs, outputs, predicted = (np.array(chosen(lengths)) for _ in range(3))
    if chosen(st.booleans()):
        think = chosen(st.sampled_from([0.0, 1.5]))
        base = Requests.closed_loop(inputs, outputs, clients=chosen(st.integers(1, 4)), think_s=think)
    else:
        arrivals = chosen(st.lists(st.integers(0, 60), min_size=count, max_size=count))
        base = Requests.open_stream(
            np.sort(np.array(arrivals)) / 2.0,
            inputs,
            outputs,
            predicted_tokens=predicted,
            priority=chosen(st.lists(st.integers(0, 2), min_size=count, max_size=count)),
        )
        if chosen(st.booleans()):
            base = _in_sessions(base, chosen(st.integers(1, count)), chosen(st.sampled_from([0.0, 0.75])))
    base = base.with_prefixes([_chain(chosen, int(tokens)) for tokens in inputs], block_tokens=4)
    if chosen(st.booleans()):
        base = replace(base, encoded=np.array(chosen(lengths)) * chosen(st.sampled_from([0.0, 0.5])))
    return base.with_hits(chosen(st.sampled_from([0.0, 0.0, 0.4, 1.0])))


def _in_sessions(requests: Requests, sessions: int, think_s: float) -> Requests:
    """The first requests come by themselves, each later one when the one `sessions` before it has been answered."""
    count = len(requests)
    after = np.arange(count) + sessions
    return replace(
        requests,
        successor=np.where(after < count, after, -1),
        think_s=np.full(count, think_s),
        num_open=sessions,
    )


def _chain(chosen: Draw, tokens: int) -> list[tuple[int, ...]]:
    """Names of the blocks of a prompt: each the whole prompt up to its end, in an alphabet of two."""
    blocks = -(-tokens // 4)
    letters = chosen(st.lists(st.integers(0, 1), min_size=blocks, max_size=blocks))
    names = [tuple(letters[: end + 1]) for end in range(blocks)]
    return [*names[:-1], (*names[-1], tokens % 4 + 10)] if names else []


@st.composite
def operated_fleets(chosen: Draw) -> Fleet:
    """Fleets with what is done to them, and with what their instances do beyond plain decoding."""
    fleet: Fleet = chosen(fleets())
    count = len(fleet.instances)
    slow = replace(fleet.instances[0].grid, decode_s=fleet.instances[0].grid.decode_s * 1.5)
    groups = chosen(st.sampled_from([(), (count,), (1,) * count]))
    apart = fleet.instances[0].role != "colocated"
    instances = [
        replace(
            instance,
            speculation=chosen(st.sampled_from([None, Speculation(chosen(st.integers(0, 3)), 0.6, slow)])),
            pool=chosen(st.integers(0, 1)),
            model=0 if apart or index == 0 else chosen(st.integers(0, 1)),
            adapter_slots=chosen(st.integers(1, 3)),
            adapter_load_s=chosen(st.sampled_from([0.0, 0.7])),
            up=chosen(st.booleans()) or index < 2,
        )
        for index, instance in enumerate(fleet.instances)
    ]
    changes = st.builds(
        Change,
        st.integers(0, 60).map(lambda half: half / 2),
        st.integers(0, count - 1),
        st.sampled_from(sorted(ACTIONS) if apart else ["start", "drain", "fail"]),
    )
    control = Control(
        chosen(st.sampled_from([2.5, 7.0])),
        crowded_above=chosen(st.sampled_from([1.0, 3.0])),
        idle_below=chosen(st.sampled_from([0.0, 1.0])),
        start_s=chosen(st.sampled_from([0.0, 3.0])),
        flip_above=chosen(st.sampled_from([0.5, float("inf")])),
    )
    pools = {instance.pool for instance in instances}
    link = PoolLink(0, 1, chosen(st.sampled_from([2.0, 9.0])), chosen(st.sampled_from([0.0, 0.25])))
    return replace(
        fleet,
        instances=tuple(instances),
        groups=groups if apart is False or len(set(groups)) == 1 else (),
        skew=chosen(st.sampled_from([(), (1.0, 1.5, 2.0)])),
        changes=tuple(chosen(st.lists(changes, max_size=4))) if chosen(st.booleans()) else (),
        control=chosen(st.sampled_from([None, control])),
        pool_links=(link,) if pools == {0, 1} else (),
        tiers=chosen(tiers()),
        eviction=chosen(st.sampled_from(sorted(EVICTIONS))),
    )


@st.composite
def pathed_fleets(chosen: Draw) -> Fleet:
    """Fleets of two workloads, whose requests are shared out over instances with numbers of their own."""
    fleet: Fleet = chosen(fleets())
    numbered = tuple(replace(instance, model=index) for index, instance in enumerate(fleet.instances))
    first = [instance.model for instance in numbered if instance.role != "decode"]
    last = [instance.model for instance in numbered if instance.role == "decode"]

    def path() -> RequestPath:
        entry = chosen(st.sampled_from(first))
        return RequestPath(
            entry, chosen(st.sampled_from(last)) if last else entry, chosen(st.sampled_from([0.25, 1.0]))
        )

    paths = tuple(tuple(path() for _ in range(chosen(st.integers(1, 3)))) for _ in range(2))
    return replace(fleet, instances=numbered, paths=paths)


@st.composite
def elastic_fleets(chosen: Draw) -> Fleet:
    """Equal instances that share one cache."""
    grid = replace(chosen(grids()), joint_s=np.zeros(1), rank_tokens=np.zeros(1), least_s=np.zeros(1))
    grid = replace(grid, tokens=np.array([0.0, 8.0, 256.0]), attended=np.array([1.0, 9.0, 129.0]))
    instance = Instance(
        grid,
        kv_tokens=chosen(st.sampled_from([12, 32, 48, 200])),
        token_budget=chosen(st.sampled_from([3, 20, 64])),
        most_sequences=chosen(st.integers(1, 4)),
        most_context=chosen(st.sampled_from([UNLIMITED, UNLIMITED, 9, 25])),
    )
    elastic = ElasticEngines(
        ring_tokens_per_s=chosen(st.sampled_from([5.0, math.inf])),
        exchange_s=chosen(st.sampled_from([0.0, 0.25])),
        borrows=chosen(st.booleans()),
        scale_up_above=chosen(st.sampled_from([None, 1, 1, 2])),
    )
    return Fleet(
        (instance,) * chosen(st.integers(1, 4)),
        queueing=chosen(st.sampled_from(["fcfs", "priority", "shortest-predicted"])),
        block_tokens=chosen(st.sampled_from([1, 4])),
        request_overhead_s=chosen(st.sampled_from([0.0, 0.25])),
        frontend_s=chosen(st.sampled_from([0.0, 0.0, 0.4])),
        frontend_token_s=chosen(st.sampled_from([0.0, 0.0, 0.1])),
        tokenises_together=chosen(st.booleans()),
        elastic=elastic,
    )


@st.composite
def workloads(chosen: Draw) -> Requests:
    """Loads of two workloads."""
    requests: Requests = chosen(loads())
    number = st.lists(st.integers(0, 1), min_size=len(requests), max_size=len(requests))
    return replace(requests, workload=np.array(chosen(number)))


@st.composite
def mixed_loads(chosen: Draw, fleet: Fleet) -> Requests:
    """Loads for the models of a fleet, with adapters."""
    requests: Requests = chosen(loads())
    models = sorted({instance.model for instance in fleet.instances})
    number = st.lists(st.sampled_from(models), min_size=len(requests), max_size=len(requests))
    adapter = st.lists(st.integers(-1, 2), min_size=len(requests), max_size=len(requests))
    return for_models(requests, chosen(number), chosen(adapter)) if chosen(st.booleans()) else requests


def for_models(requests: Requests, model: ArrayLike, adapter: ArrayLike = -1) -> Requests:
    """The same requests, each for a model (from 0), and with an adapter of it (from 0; -1 is none)."""
    numbers = [np.full(len(requests), given, dtype=np.int64) for given in (model, adapter)]
    return replace(requests, model=numbers[0], adapter=numbers[1])


def assert_same(result: SimulationResult, reference: StepSimulator) -> None:
    """Every time of every request, and every count of every instance."""
    slow = reference.requests
    assert [r.state == "complete" for r in slow] == result.complete.tolist()
    assert [r.state == "rejected" for r in slow] == result.rejected.tolist()
    given, answered = reference.load.output_tokens.tolist(), result.requests.output_tokens.tolist()
    assert [asked if r.refused else r.output for r, asked in zip(slow, given, strict=True)] == answered
    assert [not r.refused and r.output < asked for r, asked in zip(slow, given, strict=True)] == result.cut.tolist()
    for name, times in (
        ("started_s", result.started_s),
        ("prefilled_s", result.prefilled_s),
        ("first_s", result.first_token_s),
        ("finished_s", result.finished_s),
    ):
        wanted = [getattr(r, name) if getattr(r, name) >= 0 else None for r in slow]
        assert wanted == [None if np.isnan(value) else value for value in times.tolist()], name
    assert [r.preempted for r in slow] == result.preempted.tolist()
    assert [e.moved for e in reference.engines] == result.migrations.tolist()
    assert [r.cached for r in slow] == result.cached_tokens.tolist()
    assert [r.entry.id if r.entry else -1 for r in slow] == result.entry.tolist()
    assert [r.home.id if r.home else -1 for r in slow] == result.home.tolist()
    assert [e.steps for e in reference.engines] == result.steps.tolist()
    assert [e.peak for e in reference.engines] == result.peak_blocks.tolist()
    assert result.busy_s == pytest.approx([e.busy_s for e in reference.engines])
    assert [e.accepted for e in reference.engines] == result.accepted_tokens.tolist()
    assert [e.loads for e in reference.engines] == result.adapter_loads.tolist()
    assert_same_gaps(result, reference)


def assert_same_gaps(result: SimulationResult, reference: StepSimulator) -> None:
    """The gaps between tokens of each workload, as finely as they are counted, and their sum."""
    workloads = reference.load.workload
    for number in range(1 if workloads is None else int(workloads.max(initial=0)) + 1):
        own = [r for r in reference.requests if workloads is None or workloads[r.id] == number]
        wanted = np.sort(np.concatenate([np.zeros(0), *(np.diff(r.token_s) for r in own)]))
        counted = result.gaps.of_workload(number)
        assert counted.count == len(wanted)
        assert counted.sum_s == pytest.approx(wanted.sum())
        spread = np.sort(np.repeat(counted.middle_N, counted.count_N))
        assert np.allclose(spread, wanted, rtol=1.0 / 256, atol=2.0**-14), (spread.tolist(), wanted.tolist())
