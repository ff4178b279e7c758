"""Engines with pipelines in the compiled loop equal a slow simulator written from the definition, to the bit."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tandem_simulator as slow
from hypothesis import given, settings
from hypothesis import strategies as st
from small_fleets import grids, mixed_loads, operated_fleets
from step_prices import decode_s, mixed_s
from tandem_simulator import Engine, Part, Request, Rules

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.simulate.fleet.instances import Fleet, Instance, Speculation
from planner.simulate.fleet.operation import ElasticEngines
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.loop import fields as f
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import initial_state, run_to_end, simulate
from planner.simulate.run.result import SimulationResult

ENGINES = {"mixed": "vllm", "prefill-first": "sglang"}
STAGES = (2, 3, 4, 8, 16)


def stage_seconds(grid: StepGrid, stages: int) -> Callable[[Part], Sequence[float]]:
    """Equal parts of the seconds of a whole step."""

    def seconds(part: Part) -> Sequence[float]:
        count = len(part.decodes)
        if not part.chunks:
            return [decode_s(grid, count, part.context / count) / stages] * stages
        mean = part.context / count if count else float(grid.contexts[0])
        whole_s = mixed_s(grid, (float(count), mean, float(part.tokens), part.pairs / part.tokens))
        return [whole_s / stages] * stages

    return seconds


def reference(
    instance: Instance,
    arrival_s: Floats,
    inputs: Ints,
    outputs: Ints,
    *,
    engines: int = 1,
    ranks: int = 1,
    role: str = "colocated",
) -> tuple[list[Request], list[Engine]]:
    """The same engines and requests in the slow simulator.

    There the batches of an engine that decodes for others share its limit; caches come to any of them (SGLang 0.5.23,
    `_get_new_prebuilt_batch` of srt/disaggregation/decode.py).
    """
    most = instance.most_sequences * (instance.stages if role == "decode" else 1)
    rules = Rules(
        stage_seconds(instance.grid, instance.stages),
        instance.stages,
        ENGINES[instance.policy],
        role,
        instance.token_budget,
        most,
        instance.kv_tokens,
        4,
        ranks,
    )
    rows = zip(arrival_s.tolist(), inputs.tolist(), outputs.tolist(), strict=True)
    requests = [Request(number, *row) for number, row in enumerate(rows)]
    fleet = [Engine(rules) for _ in range(engines)]
    slow.simulate(fleet, requests)
    return requests, fleet


def assert_equal(result: SimulationResult, requests: Sequence[Request]) -> None:
    """Every time and every preemption of every request."""
    assert result.started_s.tolist() == [r.started_s for r in requests]
    assert result.first_token_s.tolist() == [r.first_s for r in requests]
    assert result.finished_s.tolist() == [r.finished_s for r in requests]
    assert result.preempted.tolist() == [r.preempted for r in requests]


def stream(seed: int, count: int, cv: float, gap_s: float, most: int) -> tuple[Floats, Ints, Ints]:
    """Arrivals whose gaps vary by `cv`, prompts and answers of up to `most` tokens together."""
    rng = np.random.default_rng(seed)
    gaps = np.full(count, gap_s) if cv == 0.0 else rng.gamma(cv**-2, gap_s * cv**2, count)
    inputs = rng.integers(1, most // 2 + 1, count)
    return np.cumsum(gaps), inputs, rng.integers(1, most - inputs + 1)


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_the_loop_equals_the_slow_pipeline_to_the_bit(data: st.DataObject) -> None:
    grid = replace(data.draw(grids()), joint_s=np.zeros(1), rank_tokens=np.zeros(1), least_s=np.zeros(1))
    ranks = data.draw(st.sampled_from([1, 1, 2]))
    instance = Instance(
        grid,
        kv_tokens=data.draw(st.sampled_from([24, 32, 48, 200])),
        policy=data.draw(st.sampled_from(list(ENGINES))),
        token_budget=data.draw(st.sampled_from([3, 8, 20, 64])),
        most_sequences=data.draw(st.integers(1, 4)),
        stages=data.draw(st.sampled_from(STAGES)),
    )
    seed, cv = data.draw(st.integers(0, 2**16)), data.draw(st.sampled_from([0.0, 1.0, 2.0]))
    arrival_s, inputs, outputs = stream(seed, 40, cv, data.draw(st.sampled_from([0.2, 1.0, 3.0])), 24)
    if data.draw(st.booleans()):
        outputs = np.ones_like(outputs)  # as engines that prefill alone
    engines = data.draw(st.integers(1, 2))
    fleet = Fleet((instance,) * (ranks * engines), groups=(ranks,) * engines, block_tokens=4)
    result = simulate(fleet, Requests.open_stream(arrival_s, inputs, outputs))
    requests, _ = reference(instance, arrival_s, inputs, outputs, engines=engines, ranks=ranks)
    assert_equal(result, requests)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_decoding_of_caches_that_come_from_elsewhere_equals_the_slow_pipeline(data: st.DataObject) -> None:
    """The slow one is given the moments at which the loop has the caches: batches from then on are the same."""
    grid = StepGrid.affine(0.3, sequence_s=0.05, context_s=1e-3, token_s=0.02, most_sequences=40)
    stages, policy = data.draw(st.sampled_from(STAGES)), data.draw(st.sampled_from(list(ENGINES)))
    decode = Instance(grid, 10_000, role="decode", policy=policy, most_sequences=40, stages=stages)
    prefill = replace(decode, role="prefill", token_budget=20, link_tokens_per_s=9.0)
    arrival_s, inputs, outputs = stream(data.draw(st.integers(0, 2**16)), 40, 1.0, 1.0, 24)
    result = simulate(Fleet((prefill, decode), block_tokens=4), Requests.open_stream(arrival_s, inputs, outputs + 1))
    order = np.argsort(result.first_token_s, kind="stable")
    caches = result.first_token_s[order], inputs[order], outputs[order] + 1
    requests, _ = reference(decode, *caches, role="decode")
    assert result.finished_s[order].tolist() == [r.finished_s for r in requests]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_is_done_to_pipelines_every_request_ends_and_leaves_nothing(data: st.DataObject) -> None:
    fleet = data.draw(operated_fleets())
    stages = data.draw(st.sampled_from(STAGES))
    instances = tuple(replace(instance, stages=stages) for instance in fleet.instances)
    fleet = replace(fleet, instances=instances, migration_period_s=math.inf)
    requests = data.draw(mixed_loads(fleet))
    state = initial_state(fleet, requests, 7, math.inf, 100_000)
    run_to_end(fleet, requests, state)
    result = SimulationResult.of_state(requests, state)
    kept_back = int(np.sum(~(result.complete | result.rejected)))
    assert kept_back == 0 or fleet.changes or fleet.control is not None or not all(i.up for i in fleet.instances)
    assert np.all(result.peak_blocks <= result.capacity_blocks)
    if kept_back == 0:
        engines = state.instance[: len(instances)]
        assert (engines[:, f.FREE] + engines[:, f.EVICTABLE]).tolist() == engines[:, f.CAPACITY].tolist()
        for column in (f.LOAD_TOKENS, f.QUEUED, f.QUEUED_BLOCKS, f.RESERVED, f.SEQUENCES, f.CONTEXT):
            assert not state.instance[:, column].any()
        assert not state.residue.any()
        assert not state.outstanding.any()
    prompts = result.prefill_tokens.sum() + result.hit_tokens.sum()
    assert prompts >= result.requests.input_tokens[result.complete].sum()


def test_a_request_alone_takes_as_long_through_stages_as_through_one() -> None:
    grid = StepGrid.affine(1e-2, sequence_s=1e-3, context_s=1e-6, token_s=1e-4, pair_s=1e-7)
    grid = replace(grid, joint_s=np.array([0.0, 0.5]), rank_tokens=np.array([0.0, 500.0]), least_s=np.array([0.1, 0.1]))
    drafts = Speculation(2, 0.7, grid)
    requests = Requests.open_stream([0.0, 50.0], [300, 100], [20, 30])
    for groups, speculation in (((1, 1), None), ((2,), None), ((1, 1), drafts)):
        whole = Instance(grid, 10**4, speculation=speculation)
        runs = [simulate(Fleet((replace(whole, stages=stages),) * 2, groups=groups), requests) for stages in (1, 4)]
        assert runs[0].first_token_s == pytest.approx(runs[1].first_token_s, rel=1e-9)
        assert runs[0].finished_s == pytest.approx(runs[1].finished_s, rel=1e-9)
        assert runs[0].busy_s == pytest.approx(runs[1].busy_s * 4)


def test_batches_of_a_pipeline_share_queue_memory_and_limits() -> None:
    """Four prompts of 100 tokens, one a batch: the fourth waits until the first has gone, though a stage is free."""
    grid = StepGrid.affine(token_s=0.04)
    instance = Instance(grid, 320, token_budget=100, most_sequences=8, stages=4)
    result = simulate(Fleet((instance,)), Requests.open_stream([0.0, 0.0, 0.0, 0.0], [100] * 4, [1] * 4))
    assert result.started_s.tolist() == [0.0, 0.0, 4.0, 5.0]  # blocks of 16 tokens: two prompts fit
    few = simulate(
        Fleet((replace(instance, kv_tokens=10**4, most_sequences=3),)),
        Requests.open_stream([0.0, 0.0, 0.0, 0.0], [100] * 4, [1] * 4),
    )
    assert few.first_token_s.tolist() == [4.0, 5.0, 6.0, 8.0]
    assert few.busy_s.tolist() == [4.0]
    assert few.steps.tolist() == [4]


def test_sequences_decode_in_the_batch_of_their_prompt() -> None:
    grid = StepGrid.affine(0.4, token_s=0.01, most_sequences=8)
    instance = Instance(grid, 10**4, token_budget=64, most_sequences=8, stages=2)
    result = simulate(Fleet((instance,)), Requests.open_stream([0.0, 0.0, 0.1], [64, 64, 32], [5, 5, 5]))
    assert result.batch.tolist() == [0, 1, 0]
    assert result.home.tolist() == [0, 0, 0]
    assert result.stages.tolist() == [2]


def fleet_of_stages(stages: tuple[int, ...], **rules: Any) -> Fleet:  # noqa: ANN401 - of a fleet
    made = {count: Instance(StepGrid.affine(1.0), 100, stages=count) for count in stages}
    return Fleet(tuple(made[count] for count in stages), **rules)


@pytest.mark.parametrize(
    ("rules", "stages", "message"),
    [
        ({"migration_period_s": 1.0}, (2, 2), "cannot move"),
        ({"elastic": ElasticEngines()}, (2, 2), "pipelines with elastic"),
        ({"groups": (2,)}, (1, 2), "pipelines of 1, 2 stages step together"),
        ({}, (0, 1), "`stages` must be above 0"),
    ],
)
def test_what_pipelines_cannot_do_is_refused(rules: dict[str, Any], stages: tuple[int, ...], message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        fleet_of_stages(stages, **rules)
