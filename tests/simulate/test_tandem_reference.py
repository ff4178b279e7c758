"""The slow simulator of pipelines against cases worked by hand, the recursion of a tandem, and engines of one stage."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from tandem_simulator import Engine, Part, Request, Rules, simulate

from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate as compiled


def run(rules: Rules, requests: Sequence[Request], engines: int = 1) -> list[Engine]:
    fleet = [Engine(rules) for _ in range(engines)]
    simulate(fleet, requests)
    return fleet


def by_tokens(pp: int) -> Rules:
    return Rules(lambda part: [part.tokens / 100.0] * pp, pp=pp, role="prefill", token_budget=100)


def test_chunks_of_a_prompt_follow_each_other_through_the_stages() -> None:
    requests = [Request(0, 0.0, 60), Request(1, 0.1, 140), Request(2, 0.2, 100)]
    (engine,) = run(by_tokens(2), requests)
    # The first, alone, takes .6 in each stage. The second's first chunk waits for stage 0. When the first leaves at
    # 1.2, the rest of the second and 60 tokens of the third go in behind it.
    assert [[chunk.tokens for chunk in batch.parts[0].chunks] for batch in engine.batches] == [
        [60],
        [100],
        [40, 60],
        [40],
    ]
    assert [batch.formed_s for batch in engine.batches] == pytest.approx([0.0, 0.1, 1.2, 2.6])
    assert [batch.starts_s for batch in engine.batches] == [
        pytest.approx(starts) for starts in ([0.0, 0.6], [0.6, 1.6], [1.6, 2.6], [2.6, 3.6])
    ]
    assert [r.first_s for r in requests] == pytest.approx([1.2, 3.6, 4.0])


def test_engines_that_look_as_batches_leave_take_later_arrivals_together() -> None:
    requests = [Request(0, 0.0, 60), Request(1, 0.1, 40), Request(2, 0.2, 40)]
    rules = Rules(lambda part: [part.tokens / 100.0] * 2, pp=2, role="prefill", looks_at_once=False)
    (engine,) = run(rules, requests)
    assert [batch.formed_s for batch in engine.batches] == pytest.approx([0.0, 1.2])
    assert [r.first_s for r in requests] == pytest.approx([1.2, 2.8, 2.8])


@pytest.mark.parametrize("pp", [1, 2, 5])
def test_equal_batches_follow_the_recursion_of_a_tandem(pp: int) -> None:
    """Batches of one prompt: each leaves stage k when it and the stage are ready; the pp-th next is formed by then."""
    rng = np.random.default_rng(pp)
    seconds = rng.exponential(1.0, (200, pp))
    arrivals = np.cumsum(rng.exponential(1.3, 200))
    requests = [Request(i, float(arrival), 64) for i, arrival in enumerate(arrivals)]

    def stage_s(part: Part) -> Sequence[float]:
        (chunk,) = part.chunks
        return [float(value) for value in seconds[chunk.request.id]]

    run(Rules(stage_s, pp=pp, role="prefill", token_budget=64), requests)
    left: list[list[float]] = []
    for arrival, own in zip(arrivals, seconds, strict=True):
        ready = max(arrival, left[-pp][-1] if len(left) >= pp else 0.0)
        ends = []
        for stage, value in enumerate(own):
            ready = max(ready, left[-1][stage] if left else 0.0) + value
            ends.append(ready)
        left.append(ends)
    assert [r.first_s for r in requests] == pytest.approx([ends[-1] for ends in left])


def test_sequences_of_a_batch_stay_together() -> None:
    requests = [Request(0, 0.0, 10, 4), Request(1, 0.0, 10, 4), Request(2, 0.5, 10, 4)]
    rules = Rules(lambda part: [1.0, 1.0], pp=2)
    (engine,) = run(rules, requests)
    decoded = [[r.id for r in batch.parts[0].decodes] for batch in engine.batches]
    assert decoded == [[], [], [0, 1], [2], [0, 1], [2], [0, 1], [2]]
    assert [r.finished_s for r in requests] == [8.0, 8.0, 9.0]


def test_slots_take_turns_and_prefill_before_they_decode() -> None:
    requests = [Request(0, 0.0, 150, 3), Request(1, 2.5, 50, 2), Request(2, 2.5, 50, 2)]
    rules = Rules(lambda part: [1.0, 1.0], pp=2, engine="sglang", token_budget=100, most_sequences=4)
    (engine,) = run(rules, requests)
    # The prompt goes through slots 0 and 1 and decodes in 1. At 2.0 slot 0 is free and nothing waits; at 2.5 it takes
    # both prompts, behind which slot 1, free at 3.0, decodes from 3.5 on.
    assert [(batch.slot, batch.formed_s) for batch in engine.batches] == [
        (0, 0.0),
        (1, 0.0),
        (0, 2.5),
        (1, 3.0),
        (0, 4.5),
        (1, 5.5),
    ]
    assert [r.first_s for r in requests] == [3.0, 4.5, 4.5]
    assert [r.finished_s for r in requests] == [7.5, 6.5, 6.5]


def test_ranks_that_step_together_wait_for_the_slowest_in_every_stage() -> None:
    requests = [Request(0, 0.0, 60), Request(1, 0.0, 100)]
    rules = Rules(lambda part: [part.tokens / 100.0] * 2, pp=2, role="prefill", ranks=2)
    run(rules, requests)
    assert [r.first_s for r in requests] == [2.0, 2.0]


def test_batches_keep_their_order_and_no_more_are_in_flight_than_stages() -> None:
    rng = np.random.default_rng(3)
    requests = [
        Request(i, float(arrival), int(length), int(output))
        for i, (arrival, length, output) in enumerate(
            zip(np.cumsum(rng.exponential(0.4, 150)), rng.integers(1, 300, 150), rng.integers(1, 6, 150), strict=True)
        )
    ]
    for engine_rules in ("vllm", "sglang"):
        fresh = [Request(r.id, r.arrival_s, r.input, r.output) for r in requests]
        rules = Rules(lambda part: [0.1 + part.tokens / 1e3] * 4, 4, engine_rules, token_budget=128, most_sequences=12)
        (engine,) = run(rules, fresh)
        for stage in range(4):
            assert all(b.starts_s[stage] >= a.ends_s[stage] for a, b in pairwise(engine.batches))
        for before, batch in zip(engine.batches, engine.batches[4:], strict=False):
            assert batch.formed_s >= before.ends_s[-1]
        assert all(
            batch.parts[0].tokens + (engine_rules == "vllm") * len(batch.parts[0].decodes) <= 128
            for batch in engine.batches
        )
        assert sum(chunk.tokens for b in engine.batches for chunk in b.parts[0].chunks) == sum(r.input for r in fresh)


@pytest.mark.parametrize(("engine", "policy"), [("vllm", "mixed"), ("sglang", "prefill-first")])
@pytest.mark.parametrize("kv_tokens", [10**6, 480])
def test_engines_of_one_stage_are_those_without_pipelines(engine: str, policy: str, kv_tokens: int) -> None:
    rng = np.random.default_rng(11)
    arrivals = np.cumsum(rng.exponential(0.05, 120))
    lengths, outputs = rng.integers(1, 120, 120), rng.integers(1, 60, 120)
    grid = StepGrid.affine(0.01, sequence_s=1e-3, context_s=1e-6, token_s=1e-4, pair_s=1e-7)

    def stage_s(part: Part) -> Sequence[float]:
        prompts = part.tokens * 1e-4 + part.pairs * 1e-7
        return [0.01 + len(part.decodes) * 1e-3 + part.context * 1e-6 + prompts]

    requests = [
        Request(i, float(a), int(n), int(m)) for i, (a, n, m) in enumerate(zip(arrivals, lengths, outputs, strict=True))
    ]
    run(Rules(stage_s, 1, engine, token_budget=64, most_sequences=8, kv_tokens=kv_tokens), requests)
    instance = Instance(grid, kv_tokens, policy=policy, token_budget=64, most_sequences=8)
    result = compiled(Fleet((instance,)), Requests.open_stream(arrivals, lengths, outputs))
    assert [r.first_s for r in requests] == pytest.approx(result.first_token_s)
    assert [r.finished_s for r in requests] == pytest.approx(result.finished_s)
    assert [r.preempted for r in requests] == result.preempted.tolist()
    assert (sum(r.preempted for r in requests) > 0) == (kv_tokens < 1000)
