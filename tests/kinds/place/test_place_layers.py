"""`options.layers` of `kind: place`: layers on unequal nodes, their ways, memory, bound and bad problems."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.place.layers.plan import held_of
from planner.kinds.place.layers.setting import read_setting
from planner.load.problems import load_problem, resolve_document
from planner.plan.findings import FAILED
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand
from planner.problem.resolve import Resolved
from planner.solvers.placement.layers.flow import max_flow

HETERO = Path(__file__).parent.parent.parent.parent / "examples" / "place-hetero-70b.yaml"
SMALL: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "place",
    "models": {"m": {"name": "Qwen/Qwen3-32B"}},
    "cluster": {
        "pools": [
            {"gpu": "l4", "nodes": 3, "gpus_per_node": 2},
            {"gpu": "l40s", "nodes": 1, "gpus_per_node": 1},
        ]
    },
    "workloads": [{"name": "chat", "input_tokens": 500, "output_tokens": 100}],
    "objective": {"maximize": "tokens_per_s_per_gpu"},
    "options": {"layers": {"max_stages": 3, "max_batch": 8}},
}


def small(**changes: object) -> Resolved:
    return resolve_document(given_document(json.loads(json.dumps(SMALL | changes)), "problem"), Path())


@pytest.fixture(scope="module")
def plan() -> tuple[Envelope, PlaceDecision]:
    envelope = solve(load_problem(HETERO))
    return envelope, PlaceDecision.model_validate(envelope.decision)


def test_the_plan_is_checked_to_its_bound(plan: tuple[Envelope, PlaceDecision]) -> None:
    envelope, decision = plan
    findings = check_plan(envelope, decision, hand=AtHand(), proof=True)
    assert [finding for finding in findings if finding.verdict == FAILED] == []
    assert {"certificate.bound_again", "place.way"} <= {finding.rule for finding in findings}
    lower = envelope.certificate.model_copy(update={"bound": (envelope.certificate.bound or 0.0) / 2})
    wrong = check_plan(envelope.model_copy(update={"certificate": lower}), decision, hand=AtHand(), proof=True)
    assert "certificate.bound_again" in {finding.rule for finding in wrong if finding.verdict == FAILED}


def test_a_node_with_other_layers_breaks_the_way_of_its_requests(plan: tuple[Envelope, PlaceDecision]) -> None:
    envelope, decision = plan
    first, *others = decision.roles
    moved = first.model_copy(update={"limits": {**first.limits, "num_layers": 1}})
    edited = decision.model_copy(update={"roles": (moved, *others)})
    data = {**envelope.decision, "roles": json.loads(edited.model_dump_json(exclude_none=True))["roles"]}
    findings = check_plan(envelope.model_copy(update={"decision": data}), edited, hand=AtHand())
    assert "place.way" in {finding.rule for finding in findings if finding.verdict == FAILED}


def test_no_spans_of_few_nodes_are_better_or_above_the_bound() -> None:
    """All spans in eighths of the model on four nodes, for every number of stages, by maximum flow."""
    resolved = small()
    setting, plan = read_setting(resolved), solve(resolved)
    layers, count = setting.arch.num_layers, len(setting.nodes)
    cuts = [layers * part // 8 for part in range(9)]
    spans = [None, *((a, b) for a, b in itertools.combinations(cuts, 2))]
    best = 0.0
    for stages in (1, 2, 3):
        problem = setting.problem(stages)
        useful = [
            [span for span in spans if span is None or problem.nodes[i].tokens_per_s[span[1] - span[0] - 1] > 0.0]
            for i in range(count)
        ]
        l4s = itertools.combinations_with_replacement(useful[0], 3)
        for alike, other in itertools.product(l4s, useful[3]):
            held = (*alike, other)
            starts = {span[0] for span in held if span is not None}
            ends = {span[1] for span in held if span is not None}
            depth = len(starts)
            if 0 in starts and layers in ends and starts - {0} <= ends and depth <= stages:
                best = max(best, max_flow(problem, held)[0])
    value, bound = plan.certificate.objective.value, plan.certificate.bound
    assert best > 0.0
    assert value is not None
    assert bound is not None
    assert best / setting.gpus <= bound * (1 + 1e-9)
    assert value >= best / setting.gpus * 0.999


def test_the_caches_of_all_micro_batches_have_room(plan: tuple[Envelope, PlaceDecision]) -> None:
    envelope, decision = plan
    setting = read_setting(load_problem(HETERO))
    assert sum(span is not None for span in held_of(setting, decision)) == len(decision.roles)
    for role in decision.roles:
        assert role.memory is not None
        assert role.memory.used_bytes <= role.memory.capacity_bytes
    assert envelope.certificate.gap is not None
    assert envelope.certificate.gap < 0.2


def test_too_few_stages_are_proven_to_hold_no_model() -> None:
    with pytest.raises(Infeasible) as raised:
        solve(small(options={"layers": {"max_stages": 1, "max_batch": 8}}))
    assert raised.value.proved


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"workloads": [SMALL["workloads"][0] | {"load": {"rate": "1/s"}}]}, "whatever the load"),
        ({"objective": {"maximize": "attainment"}}, "placed for tokens a second"),
        ({"options": {"layers": {}, "tp": [2]}}, "has no effect with `layers`"),
        ({"options": {"layers": {}}, "limits": {"gpus": 2}}, "has no effect with `layers`"),
        ({"cluster": {"pools": [{"gpu": "l4", "nodes": 1, "gpus_per_node": 1}]}}, "together hold"),
    ],
)
def test_problems_without_such_a_placement_are_refused_with_what_to_do(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(PlannerError, match=told) as raised:
        solve(small(**changes))
    assert raised.value.hint
