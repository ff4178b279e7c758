"""The time by operator that a serving plan keeps is the time that its rates rest on."""

from collections.abc import Callable

import pytest

from planner.explain import explain_plan
from planner.explain.mix import read_mix
from planner.plan.schema import Decision, Envelope

Solved = Callable[[str], tuple[Envelope, Decision]]


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
    sequences = int(decode.limits["max_batch"]) * decode.parallelism.dp
    rate = sequences / (output_tokens * sum(steps[decode.name].seconds.values()))
    assert mix.problem.shapes[mix.shape_of_role[decode.name]].rate_per_s[0] == pytest.approx(rate, rel=1e-4)
    assert sum(steps[decode.name].basis.values()) == pytest.approx(1.0)


def test_time_stands_in_the_explanation_largest_part_first(solved: Solved) -> None:
    (told,) = (
        fact for fact in explain_plan(*solved("serve-cost-two-pools"), "decode.step").facts if fact.topic == "time"
    )
    assert list(told.figures.values()) == sorted(told.figures.values(), reverse=True)
    assert "host" in told.figures
