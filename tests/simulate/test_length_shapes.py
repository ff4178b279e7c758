"""Built-in lengths: what they are made of, how they are drawn and served, and what is refused."""

from pathlib import Path

import length_shapes
import numpy as np
import pytest

import planner
from planner.emit.loads.drive import TokenCounts, counts
from planner.errors import PlannerError
from planner.plan.schema import Envelope
from planner.problem.lengths import LengthFacts, end_of_samples, length_quantile, quantile_lengths, served_lengths
from planner.problem.schema import Problem, ShapeLengths, WorkloadSpec
from planner.problem.shapes import LENGTHS, SHARES, find_shape, known_shapes
from planner.simulate.plans.workload import drawn_lengths, own_requests

ROOT = Path(__file__).parents[2]
SIDES = ("input_tokens", "output_tokens")
PAIRS = [(name, side) for name in known_shapes() for side in SIDES]


def facts(name: str, side: str) -> LengthFacts:
    lengths = find_shape(name).lengths(side)
    return LengthFacts(float(np.mean(lengths)), float(np.std(lengths) / np.mean(lengths)), traced=lengths)


@pytest.mark.parametrize(("name", "side"), PAIRS)
def test_lengths_lie_between_the_quantiles_of_their_shares(name: str, side: str) -> None:
    shape = find_shape(name)
    lengths, given = np.array(shape.lengths(side)), getattr(shape, side)
    assert len(lengths) == LENGTHS
    assert len(given) == len(SHARES) <= 20
    assert list(given) == sorted(given)
    for share, tokens in zip(SHARES, given, strict=True):
        assert np.mean(lengths < tokens) <= share + 1.0 / LENGTHS
        assert np.mean(lengths <= tokens) >= share - 1.0 / LENGTHS


@pytest.mark.skipif(not (ROOT.parent / "shared/data/traces").exists(), reason="no traces at hand")
def test_shapes_are_those_of_their_traces() -> None:
    by_name = length_shapes.traces(None)
    assert set(by_name) == set(known_shapes()) - {"azure-code"}
    for name, trace in by_name.items():
        shape = find_shape(name)
        assert shape.requests == len(trace)
        for side in SIDES:
            tokens = getattr(trace, side)
            assert length_shapes.quantiles(tokens) == list(getattr(shape, side))
            assert facts(name, side).mean_tokens == pytest.approx(tokens.mean(), rel=0.025)
            assert np.quantile(shape.lengths(side), 0.99) == pytest.approx(np.quantile(tokens, 0.99), rel=0.02)


def test_prompts_and_answers_of_a_shape_are_served_as_if_independent() -> None:
    shape, name = ShapeLengths(shape="mooncake-conversation"), "mooncake-conversation"
    prompts, answers = (np.array(find_shape(name).lengths(side)) for side in SIDES)
    limit = 8192
    served = served_lengths(shape, shape, facts(name, SIDES[0]), facts(name, SIDES[1]), limit)
    taken = prompts < limit
    room = limit - prompts[taken]
    assert served.refused_share == pytest.approx(1.0 - taken.mean())
    assert served.cut_share == pytest.approx((answers[None, :] > room[:, None]).sum() / LENGTHS**2)
    assert served.input.mean_tokens == pytest.approx(prompts[taken].mean())
    assert served.output.mean_tokens == pytest.approx(np.minimum(answers[None, :], room[:, None]).mean())


@pytest.mark.parametrize(("name", "side"), PAIRS)
def test_draws_parts_and_quantiles_of_a_shape_agree(name: str, side: str) -> None:
    shape, of = ShapeLengths(shape=name), facts(name, side)
    workload = WorkloadSpec(input_tokens=shape, output_tokens=shape)
    drawn = drawn_lengths(workload, side, 40_000, np.random.default_rng(3))
    assert drawn.mean() == pytest.approx(of.mean_tokens, abs=5.0 * of.mean_tokens * of.cv / 200.0)
    assert set(drawn.tolist()) <= set(of.traced)
    assert drawn.max() == end_of_samples(workload, side) == length_quantile(shape, of, 1.0)
    assert quantile_lengths(shape, of, 64).mean() == pytest.approx(of.mean_tokens, rel=1e-9)
    assert counts(shape, side) == TokenCounts(round(of.mean_tokens), round(of.mean_tokens * of.cv))


def test_a_plan_for_a_shape_is_that_for_its_lengths_in_traces(tmp_path: Path) -> None:
    shape = find_shape("sharegpt")
    for side in SIDES:
        rows = "\n".join(str(length) for length in shape.lengths(side))
        (tmp_path / f"{side}.csv").write_text(f"{side}\n{rows}\n")
    named = _plan({side: {"shape": "sharegpt"} for side in SIDES})
    traced = _plan({side: {"trace": str(tmp_path / f"{side}.csv")} for side in SIDES})
    assert (named.decision, named.predictions) == (traced.decision, traced.predictions)
    assert named.digests.traces == traced.digests.traces


def test_check_and_simulation_draw_the_lengths_of_the_plan() -> None:
    plan = _plan({side: {"shape": "sharegpt"} for side in SIDES})
    problem = Problem.model_validate(plan.inputs)
    drawn = own_requests(plan, problem, 2000, 1)
    assert drawn.input_tokens.mean() == pytest.approx(facts("sharegpt", "input_tokens").mean_tokens, rel=0.15)


def test_unknown_shapes_are_refused_with_the_nearest() -> None:
    with pytest.raises(PlannerError) as refused:
        _plan({"input_tokens": {"shape": "azure-coed"}, "output_tokens": 64})
    assert "unknown length shape `azure-coed`" in str(refused.value)
    assert "workloads.0.input_tokens" in refused.value.where
    assert "`azure-code`" in refused.value.hint


def _plan(lengths: dict[str, object]) -> Envelope:
    """Of a small problem with such lengths, in steady state."""
    workload = {**lengths, "load": {"rate": "20/s"}, "slo": {"ttft": {"p99": "2s"}, "tpot": {"mean": "50ms"}}}
    problem = {
        "schema": "planner.problem/1",
        "kind": "serve",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "cluster": {"pools": [{"gpu": "h100_sxm", "gpus": 4}]},
        "workloads": [workload],
        "costs": {"profiles": ["none"]},
        "objective": {"minimize": "gpus"},
        "options": {"modes": ["colocated"]},
    }
    return planner.solve(problem, level="static").envelope
