"""A rollout drawn sample by sample ends when a simulation token by token says, and no replica holds too many."""

import math

import pytest
from rl_oracle import finish_times, optimum
from rl_problems import Feature, random_problem

from planner.documents.read import given_document
from planner.interchange.rl_plan import plan_document
from planner.interchange.rl_problem import read_problem
from planner.rl.sample_spans import sample_spans
from planner.rl.search.search import solve


@pytest.mark.parametrize("feature", ["sync", "rollout", "tight"])
@pytest.mark.parametrize("seed", range(8))
def test_samples_end_when_they_do_token_by_token(seed: int, feature: Feature) -> None:
    document = random_problem(seed, feature)
    if math.isinf(optimum(document)):
        pytest.skip("no plan fits this draw")
    problem = read_problem(given_document(document, "problem"))
    plan = solve(problem).plan
    assert plan is not None
    for number, batch in enumerate(document["workload"]["batches"]):
        spans = sample_spans(problem, plan, number)
        ends_s = {span.sample: span.end_s for span in spans}
        oracle = finish_times(document, plan_document(plan), batch)
        assert [ends_s[sample] for sample in range(len(oracle))] == pytest.approx(oracle)
        for span in spans:
            group = plan.groups[span.group]
            beside = [other for other in spans if (other.group, other.replica) == (span.group, span.replica)]
            running = sum(other.start_s <= span.start_s < other.end_s for other in beside)
            assert running <= group.option.curve.max_running
            assert 0 <= span.replica < group.replicas
            assert span.finished
