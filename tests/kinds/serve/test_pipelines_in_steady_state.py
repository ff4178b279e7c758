"""Formulas of pipelines: what they add to one stage, and a slow simulator of the same engine."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from tandem_simulator import Engine, Request, Rules, simulate

from planner.costs.operators.work import Shards, Work
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.kinds.serve.steady.steps.formulas import Costs, prefill_alone
from planner.kinds.serve.steady.steps.pipelines import Holds, decode_pace_s, prefill_in_stages
from planner.kinds.serve.steady.time_limits import MEAN, Queue, TimeLimit


def costs(fixed_s: float = 0.0, sequence_s: float = 0.0, *, slots: bool = False) -> Costs:
    """Steps of 1 ms a prompt token, so much more each, and each sequence."""

    def step(shards: Shards, work: Work) -> SimpleNamespace:
        return SimpleNamespace(seconds=fixed_s + 1e-3 * work.prefill_tokens + sequence_s * work.decode_sequences)

    return cast(Costs, SimpleNamespace(engine=EngineOverheads(prefill_first=float(slots)), step=step))


def stages(*pp: float) -> Shards:
    return Shards.of(1, np.array(pp), 1, 1, 1)


def test_one_stage_beside_several_keeps_its_times_and_its_waits_to_the_bit() -> None:
    isl, chunk, used = np.full(2, 1000.0), np.full(2, 4000.0), np.full(2, 0.7)
    plain = prefill_alone(costs(0.1), stages(1.0, 4.0), isl, chunk)
    staged, bubbles = prefill_in_stages(costs(0.1), stages(1.0, 4.0), isl, chunk, plain, 1.0)
    assert bubbles is not None
    assert (staged.latency_s[0], staged.queue_s[0]) == (plain.latency_s[0], plain.queue_s[0])
    for limit in (MEAN, TimeLimit("p99", 0.99, 1.0)):
        waits = limit.wait_s(used, staged.queue_s, Queue(1.0, 1.0), bubbles)
        assert waits[0] == limit.wait_s(used, plain.queue_s, Queue(1.0, 1.0))[0]
        assert waits[1] > limit.wait_s(used, staged.queue_s, Queue(1.0, 1.0))[1]
        room = np.array([5.0, 5.0])
        most = limit.utilisation(room, staged.queue_s, Queue(1.0, 1.0), bubbles)
        assert limit.wait_s(most, staged.queue_s, Queue(1.0, 1.0), bubbles)[1] <= 5.0
        assert limit.wait_s(most + 1.0 / 16_384, staged.queue_s, Queue(1.0, 1.0), bubbles)[1] > 5.0
        assert most[0] == limit.utilisation(room, plain.queue_s, Queue(1.0, 1.0))[0]


def test_prompts_of_all_lengths_wait_forever_before_servers_that_are_asked_for_more_than_they_do() -> None:
    limit, queue, service_s = TimeLimit("p99", 0.99, 1.0), Queue(1.0, 1.0), np.full(3, 0.1)
    waits_s = limit.wait_s(np.array([0.5, 1.0, 1.5]), service_s, queue, varied_s=service_s)
    assert 0.0 < waits_s[0] < np.inf
    assert np.all(np.isposinf(waits_s[1:]))


def test_a_lone_prompt_passes_the_stages_chunk_behind_chunk() -> None:
    isl, chunk = np.array([1000.0]), np.array([250.0])
    plain = prefill_alone(costs(), stages(4.0), isl, chunk)
    staged, _ = prefill_in_stages(costs(), stages(4.0), isl, chunk, plain, 0.0)
    request = Request(0, 0.0, 1000)
    rules = Rules(lambda part: [part.tokens * 1e-3 / 4.0] * 4, 4, role="prefill", token_budget=250)
    simulate([Engine(rules)], [request])
    assert staged.latency_s[0] == pytest.approx(request.first_s)
    assert plain.latency_s[0] == pytest.approx(1.0)


@pytest.mark.parametrize(("pp", "budget", "used"), [(4, 1000, 0.6), (2, 1500, 0.6), (8, 4000, 0.6)])
def test_mean_first_tokens_are_those_of_the_slow_simulator(pp: int, budget: int, used: float) -> None:
    rng = np.random.default_rng(2)
    isl, chunk = np.array([1000.0]), np.array([float(budget)])
    plain = prefill_alone(costs(), stages(float(pp)), isl, chunk)
    staged, bubbles = prefill_in_stages(costs(), stages(float(pp)), isl, chunk, plain, 0.0)
    arrivals = np.cumsum(rng.exponential(staged.queue_s[0] / used, 1500))
    requests = [Request(i, float(arrival), 1000) for i, arrival in enumerate(arrivals)]
    rules = Rules(lambda part: [part.tokens * 1e-3 / pp] * pp, pp, role="prefill", token_budget=budget)
    simulate([Engine(rules)], requests)
    simulated = np.mean([r.first_s - r.arrival_s for r in requests[100:]])
    steady = staged.latency_s[0] + MEAN.wait_s(np.array([used]), staged.queue_s, Queue(1.0, 0.0), bubbles)[0]
    assert steady == pytest.approx(simulated, rel=0.15)


def test_batches_of_what_is_free_grow_uneven_and_slots_do_not() -> None:
    shards, sequences, context = stages(1.0, 4.0), np.array([100.0, 100.0]), np.zeros(2)
    shared_s = np.array([0.1 + 100 * 0.01, 0.1 + 25 * 0.01])
    uneven_s = decode_pace_s(costs(0.1, 0.01), shards, sequences, context, shared_s)
    assert uneven_s == pytest.approx([1.1, 1.0])  # one batch has all that a step of 100 sequences adds
    assert decode_pace_s(costs(0.1, 0.01, slots=True), shards, sequences, context, shared_s) is shared_s
    light_s = np.array([1.1, 1.0 + 25 * 0.01])
    assert decode_pace_s(costs(1.0, 0.01), shards, sequences, context, light_s) == pytest.approx(light_s)


def test_few_prompts_hold_a_ring_for_their_longest_step_and_many_for_a_full_batch() -> None:
    ranks, wide, narrow = np.ones(1), np.full(1, 1e6), np.full(1, 0.5)
    few = Holds(np.array([0.4]), wide, 0.0).held_s(np.array([1.0]), 1e4, ranks, 4.0)
    assert few == pytest.approx(0.4 * (1.0 - 1.0 / 4.0) * 1e-4, rel=1e-3)  # one in all stages, a fourth of it counted
    chunked = Holds(np.array([0.4]), narrow, 0.0).held_s(np.array([1.0]), 1e4, ranks, 4.0)
    assert chunked == pytest.approx(few / 2.0, rel=1e-3)
    full = Holds(np.array([0.4]), narrow, 0.0).held_s(np.array([1e9]), 1e8, ranks, 4.0)
    assert full + 0.4 * 10.0 * 0.5 / 4.0 == pytest.approx(0.4 * 0.5, rel=1e-3)
    assert Holds(np.array([0.4]), wide, 1.0).held_s(np.array([30.0]), 10.0, ranks, 1.0) == 0.0
