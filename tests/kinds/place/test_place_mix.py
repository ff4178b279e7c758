"""`options.mix` of `kind: place`: the cheapest mix against all counts, its check, and bad problems."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from broken_plans import failing_with_proof

from planner.api import solve
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.load.problems import load_problem, resolve_document
from planner.problem.resolve import Resolved
from planner.verify import STATED, VERIFIED, judge

MIX = Path(__file__).parent.parent.parent.parent / "examples" / "place-gpu-mix.yaml"
SMALL: dict[str, Any] = {
    "schema": "planner.problem/1",
    "kind": "place",
    "models": {"m": {"name": "Qwen/Qwen3-0.6B"}},
    "cluster": {
        "pools": [
            {"name": "small", "gpu": "l4", "gpus": 4, "price": "1USD/h"},
            {"name": "large", "gpu": "l40s", "gpus": 4, "price": "2.3USD/h"},
        ]
    },
    "objective": {"minimize": "cost"},
    "options": {
        "mix": {
            "buckets": {"long": {"rate": "2/s", "slices": 2}, "short": {"rate": "6/s", "slices": 3}},
            "rates": {"small": {"short": 2.0, "long": 0.5}, "large": {"short": 5.0, "long": 2.0}},
        }
    },
}


def small(mix: dict[str, Any] | None = None, **changes: object) -> Resolved:
    data = json.loads(json.dumps(SMALL | changes))
    data["options"]["mix"] |= mix or {}
    return resolve_document(given_document(data, "problem"), Path())


def least_cost(failures: int) -> float:
    """Over all counts: what is left of any failures serves whole slices, by the parts of time that they take."""
    rates = SMALL["options"]["mix"]["rates"]
    each = {"long": (2, 1.0), "short": (3, 2.0)}
    best = float("inf")
    for small_count, large_count in itertools.product(range(5), repeat=2):
        lost = [(k, failures - k) for k in range(failures + 1)]
        left = [(max(small_count - a, 0), max(large_count - b, 0)) for a, b in lost]
        if all(
            any(
                (2 - x) * each["long"][1] / rates["large"]["long"] + (3 - y) * 2.0 / rates["large"]["short"] <= b + 1e-9
                and x * each["long"][1] / rates["small"]["long"] + y * 2.0 / rates["small"]["short"] <= a + 1e-9
                for x, y in itertools.product(range(3), range(4))
            )
            for a, b in left
        ):
            best = min(best, small_count * 1.0 + large_count * 2.3)
    return best


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_the_mix_costs_what_the_cheapest_of_all_counts_does(failures: int) -> None:
    plan = solve(small({"failures": failures}))
    assert plan.certificate.objective.value == pytest.approx(least_cost(failures))
    assert plan.certificate.gap == pytest.approx(0.0, abs=1e-9)


def test_the_plan_is_checked_to_its_bound_and_an_instance_less_is_refused() -> None:
    plan = solve(load_problem(MIX))
    decision = PlaceDecision.model_validate(plan.decision)
    assert failing_with_proof(plan, decision) == set()
    assert plan.certificate.status == "optimal"
    assert {line.verdict for line in judge(plan.model_dump(mode="json"))} == {VERIFIED, STATED}
    first, *others = decision.slices
    fewer = decision.model_copy(update={"slices": tuple(others)})
    assert "restated.plan" in failing_with_proof(plan, fewer)  # a bucket of which slices go nowhere
    more = first.model_copy(update={"slices": first.slices + 100})
    assert "restated.plan" in failing_with_proof(plan, decision.model_copy(update={"slices": (more, *others)}))
    value = plan.certificate.objective.value
    assert value is not None
    low = plan.certificate.model_copy(update={"bound": 1.0, "gap": abs(1.0 / value - 1.0)})
    assert "certificate.bound_again" in failing_with_proof(plan.model_copy(update={"certificate": low}), decision)


@pytest.mark.parametrize(
    ("mix", "changes", "told"),
    [
        ({"rates": {"small": {"short": 1.0}}}, {}, "pool `large` has no rates"),
        ({"rates": {"tiny": {}}}, {}, "no pool is called `tiny`"),
        ({"rates": {"small": {"huge": 1.0}, "large": {}}}, {}, "no bucket is called `huge`"),
        ({"rates": {"small": {"short": 1.0}, "large": {"short": 1.0}}}, {}, "no pool serves bucket `long`"),
        ({"prefill": {"small": {"long": 1.0}}}, {}, "prefill alone have rates, and none that decode"),
        ({"decode": {"tiny": {}}}, {}, "no pool is called `tiny`"),
        ({"spot": {"small": {"price": "1USD/h", "lost": 0, "gpus": 9}}}, {}, "9 GPUs of `small` at spot prices"),
        ({"spot": {"tiny": {"price": "1USD/h", "lost": 0}}}, {}, "no pool is called `tiny`"),
        ({"at_least": {"small": 5}}, {}, "5 instances of `small` are asked for, and its GPUs make 4"),
        ({"failures": 20_000}, {}, "20000 instances of 2 types fail in 20,001 ways"),
        ({}, {"objective": {"minimize": "gpus"}}, "are the cheapest"),
        ({}, {"limits": {"gpus": 3}}, "has no effect with `mix`"),
    ],
)
def test_mixes_that_cannot_be_are_refused_with_what_to_do(
    mix: dict[str, Any], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(PlannerError, match=told) as raised:
        solve(small(mix, **changes))
    assert raised.value.hint


def test_pools_with_too_few_gpus_are_infeasible() -> None:
    with pytest.raises(Infeasible) as raised:
        solve(small({"buckets": {"short": {"rate": "500/s"}}, "rates": {"small": {"short": 1}, "large": {"short": 2}}}))
    assert raised.value.proved


def test_spot_instances_are_taken_as_far_as_the_rest_serves_all_when_their_part_is_gone() -> None:
    spot = {"price": "0.3USD/h", "lost": "50%"}
    plan = solve(small({"spot": {"small": spot}}))
    decision = PlaceDecision.model_validate(plan.decision)
    counts = {role.name: role.replicas for role in decision.roles}
    best = min(
        0.3 * spots + smalls + 2.3 * larges
        for spots, smalls, larges in itertools.product(range(5), repeat=3)
        if spots + smalls <= 4 and fits(spots + smalls, larges) and fits(spots - -(-spots // 2) + smalls, larges)
    )
    assert plan.certificate.objective.value == pytest.approx(best)
    assert counts["small-spot"] >= 1
    assert failing_with_proof(plan, decision) == set()
    bold = solve(small({"spot": {"small": spot | {"lost": 0}}})).decision
    assert "restated.plan" in failing_with_proof(plan, PlaceDecision.model_validate(bold))


def fits(smalls: int, larges: int) -> bool:
    """Whether whole slices have room: two long ones of 1/s each, three short ones of 2/s each."""
    return any(
        (2 - x) / 2.0 + (3 - y) * 2.0 / 5.0 <= larges + 1e-9 and x / 0.5 + y * 2.0 / 2.0 <= smalls + 1e-9
        for x, y in itertools.product(range(3), range(4))
    )


def test_phases_go_to_pools_of_their_own_and_a_slice_that_is_decoded_nowhere_is_refused() -> None:
    phases = {"prefill": {"large": {"long": 8.0, "short": 40.0}}, "decode": {"small": {"long": 2.0, "short": 6.0}}}
    plan = solve(small(phases))
    decision = PlaceDecision.model_validate(plan.decision)
    assert {role.name: role.replicas for role in decision.roles} == {"large-prefill": 1, "small-decode": 2}
    assert plan.certificate.objective.value == pytest.approx(4.3)  # 2/8 + 6/40 of one, 2/2 + 6/6 of the others
    assert failing_with_proof(plan, decision) == set()
    kept = tuple(row for row in decision.slices if row.to != "small-decode" or row.bucket != "long")
    assert "restated.plan" in failing_with_proof(plan, decision.model_copy(update={"slices": kept}))


def test_so_many_instances_of_a_pool_are_there_as_are_asked_for() -> None:
    plan = solve(small({"at_least": {"large": 3}}))
    counts = {role.name: role.replicas for role in PlaceDecision.model_validate(plan.decision).roles}
    assert counts["large"] >= 3


def test_rates_beyond_the_pools_are_told_with_about_the_most_that_they_serve() -> None:
    mix = {"buckets": {"a": {"rate": "300/s", "slices": 3}}, "rates": {"p": {"a": 1.0}}, "gpus_per_instance": {"p": 1}}
    problem = {
        "schema": "planner.problem/1",
        "kind": "place",
        "models": {"m": {"name": "Qwen/Qwen3-8B"}},
        "cluster": {"pools": [{"name": "p", "gpu": "l4", "gpus": 8, "price": "1USD/h"}]},
        "objective": {"minimize": "cost"},
        "options": {"mix": mix},
    }
    with pytest.raises(Infeasible) as none:
        solve(problem)
    assert 7.5 <= float(none.value.conflict[0]["nearest"].removesuffix("/s")) <= 8.0  # eight instances of 1/s each
