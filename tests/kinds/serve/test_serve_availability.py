"""Plans of which any instance, or any node, may be lost: what they cost, what is left, and what a check says of it."""

import json
from pathlib import Path
from typing import Any

import pytest
from serve_problems import broken_rules, objective_of, small
from static_level import solve

from planner.check import check_plan
from planner.errors import Infeasible, PlannerError
from planner.explain import explain_plan
from planner.kinds.serve.options import ServeDecision
from planner.load.problems import load_problem
from planner.plan.findings import FAILED, passed
from planner.plan.placement import role_devices
from planner.plan.schema import Decision, Envelope
from planner.simulate.plans.failures import failure_findings, without
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import PlanSimulation, judge_plan
from planner.verify import REFUSED, judge

EXAMPLE = Path(__file__).parents[3] / "examples" / "serve-spare-h200.yaml"
LEAST = {"objective": {"minimize": "gpus"}, "workloads.0.load": {"rate": "9/s"}, "cluster.pools.0.gpus": 8}
TWO_NODES = {"cluster.pools.0": {"gpu": "h100", "nodes": 4, "gpus_per_node": 2}}


def plan_of(**edits: object) -> tuple[Envelope, ServeDecision]:
    plan = solve(small({**LEAST, **{key.replace("__", "."): value for key, value in edits.items()}}))
    return plan, ServeDecision.model_validate(plan.decision)


@pytest.fixture(scope="module")
def spare() -> tuple[Envelope, ServeDecision]:
    return plan_of(availability="n+1", options__modes=["disaggregated"])


def test_every_role_has_an_instance_more_and_the_rest_is_within_its_limits(
    spare: tuple[Envelope, ServeDecision],
) -> None:
    plan, decision = spare
    single, _ = plan_of(options__modes=["disaggregated"])
    assert plan.certificate.status == "optimal"
    assert objective_of(plan) > objective_of(single)
    assert decision.availability is not None
    assert [failure.lost for failure in decision.availability.failures] == [
        {role.name: 1} for role in sorted(decision.roles, key=lambda role: -_busy(decision, role.name))
    ]
    rates = {shape["name"].partition("/")[0]: shape["rate_per_s"][0] for shape in _used(plan)}
    for role in decision.roles:
        assert _busy(decision, role.name) == pytest.approx(9.0 / (rates[role.name] * (role.replicas - 1)))
        assert _busy(decision, role.name) <= 1.0 + 1e-9


def _busy(decision: ServeDecision, role: str) -> float:
    assert decision.availability is not None
    return next(failure.busy for failure in decision.availability.failures if failure.lost == {role: 1})


def _used(plan: Envelope) -> list[dict[str, Any]]:
    """The instance types of the proof that the plan has."""
    proof: Any = plan.certificate.proof
    return [shape for shape, count in zip(proof["mix"]["shapes"], proof["values"], strict=False) if count]


def test_a_check_and_the_verifier_hold_what_failures_leave(spare: tuple[Envelope, ServeDecision]) -> None:
    plan, decision = spare
    findings = check_plan(plan, decision)
    assert passed(findings)
    assert [finding.rule for finding in findings].count("serve.availability") == 2
    assert REFUSED not in {line.verdict for line in judge(json.loads(plan.model_dump_json(by_alias=True)))}


def test_what_a_plan_must_not_say_of_failures_is_found(spare: tuple[Envelope, ServeDecision]) -> None:
    plan, _ = spare
    failures: Any = plan.decision["availability"]
    calmer = {**failures, "failures": [{**each, "busy": 0.5 * each["busy"]} for each in failures["failures"]]}
    assert "serve.availability" in _rules(plan, availability=calmer)
    assert "serve.availability" in _rules(plan, availability={**failures, "failures": failures["failures"][:1]})
    assert "serve.availability" in _rules(plan, availability=None)
    bare, _ = plan_of()
    assert "serve.availability" in _rules(bare, availability=failures)


def _rules(plan: Envelope, **decided: object) -> set[str]:
    """Rules that fail where the decision says something else."""
    altered = plan.model_copy(update={"decision": {**plan.decision, **decided}})
    findings = check_plan(altered, ServeDecision.model_validate(altered.decision))
    return {finding.rule for finding in findings if finding.verdict == FAILED}


def test_a_node_may_be_lost_with_all_that_stands_on_it() -> None:
    plan, decision = plan_of(**TWO_NODES, availability={"per": "node"})
    assert not broken_rules(plan)
    assert decision.availability is not None
    role = decision.roles[0]
    per_node = [0] * 4
    for _, device in role_devices(decision.placement, role.name):
        per_node[device // 2] += 1
    lost = max(per_node) // role.parallelism.devices
    assert max(failure.lost[role.name] for failure in decision.availability.failures) == lost
    assert max(failure.busy for failure in decision.availability.failures) <= 1.0 + 1e-6
    assert objective_of(plan) >= objective_of(plan_of(availability="n+1")[0])


def test_simulated_with_any_instance_down_the_plan_keeps_its_limits(spare: tuple[Envelope, ServeDecision]) -> None:
    plan, decision = spare
    simulated: list[Decision] = []

    def simulate(left: Decision) -> PlanSimulation:
        simulated.append(left)
        return judge_plan(plan, left, Policies(), most_requests=4000)

    told = list(failure_findings(decision, simulate))
    assert {finding.rule for finding in told} >= {"simulate.ttft", "simulate.tpot", "simulate.drains"}
    assert all(finding.ok and "down: " in finding.what for finding in told)
    sizes = {role.name: role.replicas for role in decision.roles}
    assert [{role.name: sizes[role.name] - role.replicas for role in left.roles} for left in simulated] == [
        {name: failure.lost.get(name, 0) for name in sizes}
        for failure in (decision.availability.failures if decision.availability else ())
    ]


def test_what_is_left_of_equal_roles_shares_their_load() -> None:
    _, decision = plan_of(availability="n+1", options__modes=["colocated"])
    (role,) = decision.roles
    twins = (role.model_copy(update={"name": "a", "replicas": 3}), role.model_copy(update={"name": "b", "replicas": 1}))
    (route,) = decision.routing
    shares = (("a", 0.6), ("b", 0.4))
    routes = tuple(route.model_copy(update={"to": name, "share": share}) for name, share in shares)
    both = decision.model_copy(update={"roles": twins, "routing": routes})
    assert [route.share for route in without(both, {"a": 1}).routing] == pytest.approx([0.5, 0.5])
    (left,) = without(both, {"b": 1}).routing
    assert left.to == "a"
    assert left.share == pytest.approx(1.0)
    assert [role.name for role in without(both, {"b": 1}).roles] == ["a"]


def test_an_explanation_tells_what_spares_cost_which_failure_binds_and_what_stands_alone(
    spare: tuple[Envelope, ServeDecision],
) -> None:
    plan, decision = spare
    single, alone = plan_of(options__modes=["disaggregated"])
    facts = {fact.what: fact for fact in explain_plan(plan, decision).facts}
    (cost,) = (fact for what, fact in facts.items() if what.startswith("availability n+1 per role costs"))
    assert cost.figures["relative"] == pytest.approx(objective_of(plan) / objective_of(single) - 1.0)
    assert sum(" down, what their limits allow the rest" in what for what in facts) == len(decision.roles)
    assert not any("single instance" in what for what in facts)
    told = [fact.what for fact in explain_plan(single, alone).facts if "single instance" in fact.what]
    assert len(told) == 1
    assert all((role.replicas == 1) == (f"`{role.name}`" in told[0]) for role in alone.roles)


def test_goodput_is_what_is_carried_with_instances_lost() -> None:
    edits = {"options.modes": ["colocated"], "options.tp": [1]}
    single, spare = solve(small(edits)), solve(small({**edits, "availability": "n+1"}))
    assert objective_of(spare) == pytest.approx(0.75 * objective_of(single))


def test_workloads_of_one_model_share_what_is_left() -> None:
    other = {
        "name": "code",
        "input_tokens": 500,
        "output_tokens": 200,
        "load": {"rate": "5/s"},
        "slo": {"tpot": "15ms"},
    }
    plan, decision = plan_of(workloads__1=other, availability="n+1", options__modes=["colocated"], options__tp=[1])
    assert not broken_rules(plan)
    assert decision.availability is not None
    wanted = sum(rate / most for rate, most in zip((9.0, 5.0), _used(plan)[0]["rate_per_s"], strict=True))
    (role,) = decision.roles
    assert _busy(decision, role.name) == pytest.approx(wanted / (role.replicas - 1))


def test_an_availability_that_the_pool_cannot_give_is_named_with_what_it_can() -> None:
    with pytest.raises(Infeasible) as raised:
        plan_of(availability={"per": "node"})
    rows = [(row["limit"], row["nearest"]) for row in raised.value.conflict]
    assert rows == [("gpus <= 8", "16 gpus"), ("availability n+1 per node", "availability n+1 per role")]


@pytest.mark.parametrize(
    ("edits", "text"),
    [
        ({"availability": "n+2"}, "must be `n\\+1`"),
        ({"availability": {"per": "rack"}}, "states no racks"),
        ({"availability": "n+1", "options.judged_by": "simulation"}, "every instance up"),
    ],
)
def test_what_no_plan_can_keep_is_refused(edits: dict[str, Any], text: str) -> None:
    with pytest.raises(PlannerError, match=text):
        solve(small({**LEAST, **edits}))


def test_the_example_costs_more_than_the_load_alone_and_keeps_it_with_any_instance_lost() -> None:
    plan, bare = solve(load_problem(EXAMPLE)), solve(load_problem(EXAMPLE, overrides=["availability=null"]))
    decision = ServeDecision.model_validate(plan.decision)
    assert plan.certificate.status == bare.certificate.status == "optimal"
    assert objective_of(plan) > objective_of(bare)
    assert decision.availability is not None
    assert {role.name for role in decision.roles} == {
        name for loss in decision.availability.failures for name in loss.lost
    }
    for failure in decision.availability.failures:
        ((name, lost),) = failure.lost.items()
        (role,) = (role for role in decision.roles if role.name == name)
        assert lost == 1 < role.replicas
        assert failure.busy <= 1.0 + 1e-9
    assert ServeDecision.model_validate(bare.decision).availability is None
    assert passed(check_plan(plan, decision))
