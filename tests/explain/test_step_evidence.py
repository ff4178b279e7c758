"""The time by operator that a serving plan keeps is the time that its rates rest on."""

from collections.abc import Callable

import pytest

from planner.explain import explain_plan
from planner.explain.mix import read_mix
from planner.kinds.serve.options import ServeOptions
from planner.plan.schema import Decision, Envelope

FILLED = ServeOptions().max_decode_occupancy
Solved = Callable[..., tuple[Envelope, Decision]]


@pytest.mark.parametrize("name", ["serve-cost-two-pools", "serve-qwen3-32b-h200"])
def test_a_decode_step_gives_the_rate_of_its_instances(solved: Solved, name: str) -> None:
    envelope, decision = solved(name)
    steps, mix = envelope.evidence.steps, read_mix(envelope, decision)
    assert steps is not None
    assert mix is not None
    assert set(steps) == {role.name for role in decision.roles}
    decode = next(role for role in decision.roles if role.function == "decode")
    per_workload = {p.metric: p.value for p in envelope.predictions if p.of == "chat"}
    output_tokens = per_workload["output_tokens_per_s"] / per_workload["requests_per_s"]
    sequences = FILLED * int(decode.limits["max_batch"]) * decode.parallelism.dp
    rate = sequences / (output_tokens * sum(steps[decode.name].seconds.values()))
    assert mix.problem.shapes[mix.shape_of_role[decode.name]].rate_per_s[0] == pytest.approx(rate, rel=1e-4)
    assert sum(steps[decode.name].basis.values()) == pytest.approx(1.0)


def test_time_stands_in_the_explanation_largest_part_first(solved: Solved) -> None:
    (told,) = (
        fact for fact in explain_plan(*solved("serve-cost-two-pools"), "decode.step").facts if fact.topic == "time"
    )
    assert list(told.figures.values()) == sorted(told.figures.values(), reverse=True)
    assert "host" in told.figures


def test_neighbouring_batches_are_told_with_their_time_and_memory(solved: Solved) -> None:
    envelope, decision = solved("serve-qwen3-32b-h200", "workloads.0.slo.confidence=50%")
    decode = next(role for role in decision.roles if role.function == "decode")
    steps = (envelope.evidence.steps or {})[decode.name]
    batch = int(decode.limits["max_batch"])
    assert steps.tpot_s_by_batch is not None
    assert steps.tpot_s_by_batch[str(batch)] == pytest.approx(sum(steps.seconds.values()), rel=1e-4)
    times = [steps.tpot_s_by_batch[str(other)] for other in sorted(map(int, steps.tpot_s_by_batch))]
    assert times == sorted(times)
    facts = explain_plan(envelope, decision, f"{decode.name}.max_batch").facts
    told = [f for f in facts if f.what.startswith("with max_batch")]
    assert [f.figures["max_batch"] < batch for f in told] == [True, False]
    # The limit of 20 ms is what keeps the batch where it is: the next larger one breaks it.
    assert [f.figures["tpot_s"] > f.figures["limit_s"] for f in told] == [False, True]
    assert "breaks the limit of 20.0 ms to be kept with 50%" in told[1].what
