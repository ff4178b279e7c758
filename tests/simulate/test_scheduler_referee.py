"""The compiled loop against vLLM's own scheduler and KV-cache manager, step for step on streams of one engine.

benchmarks/data/scheduler_referee.json holds streams with what vLLM's scheduler made of them, written by
`python benchmarks/scheduler_referee.py --freeze` where $VALIDATORS_HOME/vllm is installed.
"""

import json
from dataclasses import replace
from functools import cache

import pytest

pytest.importorskip("numba", reason="the loop is compiled by numba")
from scheduler_referee import (
    CASES,
    FROZEN,
    SMALL_CASES,
    Case,
    Outcome,
    Stream,
    draw,
    first_difference,
    frozen_streams,
    interpreter,
    judged,
    scheduled,
)


@cache
def frozen() -> dict[tuple[str, bool], tuple[Stream, Outcome]]:
    """Streams and vLLM's outcomes by name, and whether steps are formed ahead."""
    pairs = frozen_streams(json.loads(FROZEN.read_text()))
    return {(pair[0].name, pair[0].fleet.instances[0].asynchronous): pair for pair in pairs}


@pytest.mark.parametrize("ahead", [True, False], ids=["one step ahead", "step by step"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_step_has_the_requests_and_tokens_that_vllm_schedules(case: Case, *, ahead: bool) -> None:
    stream, theirs = frozen()[case.name, ahead]
    ours = Outcome.simulated(stream)
    assert first_difference(ours, theirs) is None
    assert (ours.preempted, ours.cached) == (theirs.preempted, theirs.cached)
    assert ours.ttft_s(stream.requests) == pytest.approx(theirs.ttft_s(stream.requests), rel=1e-9)
    assert ours.itl_s() == pytest.approx(theirs.itl_s(), rel=1e-6)


@pytest.mark.parametrize("ahead", [True, False], ids=["one step ahead", "step by step"])
def test_frozen_streams_preempt_cache_and_cut_prompts(*, ahead: bool) -> None:
    pairs = {name: pair for (name, formed_ahead), pair in frozen().items() if formed_ahead == ahead}
    outcomes = {name: outcome for name, (_, outcome) in pairs.items()}
    assert sum(sum(outcome.preempted) for outcome in outcomes.values()) > 10
    assert sum(sum(outcome.cached) for outcome in outcomes.values()) > 1000
    chunked = [
        tokens
        for stream, outcome in pairs.values()
        for _, tokens in outcome.steps
        if sum(tokens.values()) == stream.fleet.instances[0].token_budget
    ]
    assert len(chunked) > 20


def test_a_difference_in_one_step_is_seen() -> None:
    stream, theirs = frozen()["chunks of 512", True]
    end_s, tokens = theirs.steps[7]
    other = dict.fromkeys(tokens, 2)
    steps = [*theirs.steps[:7], (end_s, other), *theirs.steps[8:]]
    assert first_difference(Outcome.simulated(stream), replace(theirs, steps=steps)) == 7


@pytest.mark.slow
def test_vllm_itself_schedules_the_same() -> None:
    if interpreter() is None:
        pytest.skip("no vLLM under $VALIDATORS_HOME: run ../shared/validators/setup.sh vllm")
    streams = [draw(case, 100 + number, 24) for number, case in enumerate(SMALL_CASES[4:])]
    streams += [scheduled(stream, asynchronous=True) for stream in streams]
    _, outcomes = judged(streams)
    for stream, outcome in zip(streams, outcomes, strict=True):
        assert first_difference(Outcome.simulated(stream), outcome) is None
