"""Of serving plans that predictions do not tell apart, the one with the fewest roles of a form that no run has."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from serve_problems import objective_of, small
from static_level import solve

from planner import api
from planner.check import check_plan
from planner.cli.render.plan import render_plan
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.forms import (
    ATTENTION,
    EXPERTS,
    FUNCTIONS,
    PARTS,
    PLAIN,
    STAGES,
    form_of,
    forms_document,
    text_of_form,
)
from planner.errors import PlannerError
from planner.estimate.case import Case, measured_forms
from planner.estimate.measured import cases_of_rows
from planner.kinds.serve.bounds.bound import proven_bound
from planner.kinds.serve.choice import most_gain
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.steady.allowed import UNMEASURED
from planner.kinds.serve.steady.search import prepare
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.problem.recorded import AtHand
from planner.verify import STATED, VERIFIED, judge

PIPED = {"colocated": [STAGES], "prefill": [STAGES], "decode": [STAGES]}
GOALS: list[dict[str, Any]] = [
    {"options.pp": [1, 2]},
    {
        "options.pp": [1, 2],
        "objective": {"minimize": "gpus"},
        "workloads.0.load": {"rate": "14/s"},
        "cluster.pools.0.gpus": 8,
    },
]
Written = Callable[..., str]


@pytest.fixture
def calibration(tmp_path: Path) -> Written:
    """Writes the shipped costs with forms, and so much between steps predicted and true of groups unseen."""

    def written(forms: Any, apart: float = 0.2) -> str:  # noqa: ANN401
        path = tmp_path / f"{abs(hash((str(forms), apart)))}.yaml"
        shipped = Path("planner/costs/rates/calibration.yaml")
        data = yaml.safe_load((Path(__file__).parents[3] / shipped).read_text(encoding="utf-8"))
        data["intervals"]["tpot"] = {"low": [-apart, 0.0, 0.0], "high": [apart, 0.0, 0.0], "between": [0.0, 0.0]}
        path.write_text(yaml.safe_dump(data | {"forms": forms}), encoding="utf-8")
        return str(path)

    return written


def planned(edits: dict[str, Any], costs: str, **options: Any) -> Envelope:  # noqa: ANN401
    return solve(
        small({**edits, "costs.calibration": costs, **{f"options.{name}": of for name, of in options.items()}})
    )


def sound(plan: Envelope, costs: str) -> bool:
    """Whether the static check passes with the calibration at hand, and the certificate holds by itself."""
    findings = check_plan(plan, ServeDecision.model_validate(plan.decision), hand=AtHand(calibration=costs))
    assert [finding for finding in findings if not finding.ok] == []
    return {line.verdict for line in judge(data_of(plan))} <= {VERIFIED, STATED}


def data_of(plan: Envelope) -> Any:  # noqa: ANN401
    return json.loads(plan_json(plan))


@pytest.mark.parametrize("edits", GOALS)
def test_the_plan_has_the_fewest_roles_of_unmeasured_forms_that_predictions_do_not_tell_a_better_one_from(
    edits: dict[str, Any], calibration: Written
) -> None:
    """From the definition, of the best of each part of the space alone, about every gain that decides."""
    steps = {(): 0, ("prefill",): 1, ("decode",): 1, FUNCTIONS: 2}
    plans: dict[tuple[str, ...], Envelope] = {}
    for free in steps:
        roles = {function: {"pp": [2]} for function in FUNCTIONS if function not in free}
        plans[free] = planned(edits, calibration(PIPED), choice="fastest", roles=roles)
    values = {free: objective_of(plan) for free, plan in plans.items()}
    best = values[FUNCTIONS]
    gains = {free: max(best / value, value / best) - 1.0 for free, value in values.items()}
    for most in [gain * more for gain in gains.values() if gain > 1e-6 for more in (0.999, 1.001)]:
        expected = min((free for free in plans if gains[free] <= most), key=lambda free: (steps[free], gains[free]))
        costs = calibration(PIPED, math.log1p(most) / math.sqrt(2.0))
        plan = planned(edits, costs)
        assert plan.roles == plans[expected].roles
        others: Any = plan.certificate.next_best
        told = {other["objective"] for other in others}
        assert {values[free] for free in ((), FUNCTIONS) if free != expected} <= told
        assert (plan.certificate.within is None) == (expected == FUNCTIONS)
        assert sound(plan, costs)


def test_a_plan_with_one_role_of_an_unmeasured_form_says_which(calibration: Written) -> None:
    plan = planned(GOALS[0], calibration(PIPED, math.log(1.1) / math.sqrt(2.0)))
    within = plan.certificate.within
    assert within is not None
    assert within.among == "plans where runs were measured, with decode in any form"
    passed, measured, *_ = data_of(plan)["certificate"]["next_best"]
    assert passed["no_measurement_near"] == ["plain prefill"]
    assert measured["plan"].startswith("where runs were measured, ")
    assert (passed["loss"] < 0.0, measured["loss"] > 0.0) == (True, True)


def test_measured_forms_that_cost_nothing_are_optimal(calibration: Written) -> None:
    costs = calibration(PIPED, 0.0)
    plan = planned({**GOALS[1], "workloads.0.load": {"rate": "9/s"}}, costs)
    assert {role.parallelism.pp for role in plan.roles} == {2}
    assert (plan.certificate.status, plan.certificate.within) == ("optimal", None)
    assert sound(plan, costs)


def test_what_was_proven_is_of_all_and_of_measured_forms(calibration: Written) -> None:
    costs = calibration(PIPED, 2.0)
    plan, fastest = planned(GOALS[0], costs), planned(GOALS[0], costs, choice="fastest")
    whole, within = plan.certificate, plan.certificate.within
    assert within is not None
    assert within.bound == pytest.approx(objective_of(plan))
    assert (within.status, whole.status, whole.stop_reason) == ("optimal", "feasible", "finished")
    assert whole.bound == pytest.approx(objective_of(fastest))
    assert whole.candidates == within.candidates == fastest.certificate.candidates
    assert UNMEASURED in within.pruned
    assert UNMEASURED not in whole.pruned
    text = " ".join(render_plan(plan, ServeDecision.model_validate(plan.decision)).split())
    assert (
        f"({100 * (objective_of(fastest) / objective_of(plan) - 1):.1f} % better); no measurement near: plain" in text
    )
    assert "better by the costs alone: " in text
    assert "`options.choice: fastest` takes it" in text
    assert not any("no measurement near" in note for note in plan.evidence.notes)
    assert any("no run has plain" in note for note in fastest.evidence.notes)
    alone = render_plan(fastest, ServeDecision.model_validate(fastest.decision))
    assert "no measurement near: no run has plain" in " ".join(alone.split())


def test_verification_is_of_measured_forms_with_the_bound_of_all(calibration: Written) -> None:
    costs = calibration(PIPED, 2.0)
    edits = {**GOALS[0], "options.modes": ["colocated"], "options.tp": [1], "options.max_batch": [8]}
    edits |= {"cluster.pools.0.gpus": 2, "workloads.0.input_tokens": 500, "workloads.0.output_tokens": 30}
    problem = small({**edits, "costs.calibration": costs})
    plan = api.solve(problem)
    assert [role.parallelism.pp for role in plan.roles] == [2]
    assert plan.certificate.bound == proven_bound(prepare(problem)).value
    (passed,) = data_of(plan)["certificate"]["next_best"]
    assert passed["loss"] == pytest.approx(1.0 - passed["objective"] / passed["beside"])
    assert sound(plan, costs)


@pytest.mark.parametrize("forms", [{}, {"colocated": [EXPERTS]}, {"prefill": [PLAIN]}])
def test_all_forms_compete_where_none_or_no_plan_of_one_was_measured(forms: Any, calibration: Written) -> None:  # noqa: ANN401
    costs = calibration(forms, 2.0)
    plan, fastest = planned(GOALS[0], costs), planned(GOALS[0], costs, choice="fastest")
    assert plan.decision == fastest.decision
    assert plan.certificate == fastest.certificate
    assert sound(plan, costs)


def test_stated_axes_of_no_measured_form_are_taken(calibration: Written) -> None:
    plan = planned({}, calibration(PIPED, 2.0))  # pp 1
    assert plan.decision == planned({}, calibration(PIPED, 2.0), choice="fastest").decision


def test_simulated_placements_are_compared_in_all_forms(calibration: Written) -> None:
    edits = {**GOALS[0], "options.modes": ["colocated"], "options.judged_by": "simulation"}
    edits |= {"options.simulated_requests": 200, "costs.calibration": calibration(PIPED, 2.0)}
    assert [role.parallelism.pp for role in api.solve(small(edits)).roles] == [1]


def test_predictions_tell_apart_what_differs_by_more_than_both_err() -> None:
    """Half of 80 % either side, of the shipped costs where no run of a group was seen."""
    sides = load_calibration().spreads["tpot"].elsewhere().sides
    assert most_gain(load_calibration()) == pytest.approx(math.exp((sides[0] ** 2 + sides[1] ** 2) ** 0.5) - 1.0)
    assert most_gain(load_calibration("none")) == 0.0


def test_forms_are_those_of_the_rows_that_costs_are_fitted_to() -> None:
    row = {"model": "Qwen/Qwen3-235B-A22B", "system": "h200_sxm", "backend": "vllm", "isl": "1000", "osl": "100"}
    row |= {"concurrency": "8", "id": "a"}

    def case(**columns: object) -> Case:
        (told,) = cases_of_rows([row | {name: str(value) for name, value in columns.items()}])
        assert isinstance(told, Case), told
        return told

    plain = {"tp": 4, "pp": 1, "dp": 1, "moe_tp": 1, "moe_ep": 4}
    apart = {f"{side}_{name}": size for side in ("prefill", "decode") for name, size in plain.items()}
    apart |= {"prefill_workers": 1, "decode_workers": 1}
    cases = [
        case(mode="agg", gpus=4, **plain),
        case(mode="agg", gpus=4, **plain | {"moe_tp": 2, "moe_ep": 2}),
        case(mode="disagg", gpus=12, **apart | {"decode_tp": 2, "decode_dp": 2, "decode_pp": 2}),
    ]
    assert forms_document(measured_forms(cases)) == {
        "colocated": [EXPERTS, PLAIN],
        "prefill": [PLAIN],
        "decode": [f"{STAGES} and {ATTENTION}"],
    }
    assert form_of(2, 1, 4, 2, 4) == {ATTENTION, EXPERTS}
    assert text_of_form(frozenset(PARTS)) == f"{STAGES} and {ATTENTION} and {EXPERTS}"


@pytest.mark.parametrize("forms", [{"colocated": ["staged"]}, {"attention": [PLAIN]}, {"decode": PLAIN}])
def test_forms_that_cannot_be_are_refused_with_their_place(forms: Any, calibration: Written) -> None:  # noqa: ANN401
    with pytest.raises(PlannerError, match=r"says no forms of runs") as refused:
        load_calibration(calibration(forms))
    assert "yaml:" in str(refused.value.where)
