"""Serving plans against brute force, and what must not change or worsen an optimum."""

import contextlib
import itertools
from typing import Any

import pytest
from serve_oracle import brute_force
from serve_problems import broken_rules, objective_of, random_edits, small, value_of
from static_level import solve

from planner.errors import Infeasible
from planner.plan.schema import Envelope
from planner.plan.store import plan_json
from planner.problem.resolve import Resolved
from planner.progress import Limits

BACKENDS = ["mathopt-highs", "mathopt-gscip", "pulp-cbc"]

SEEDS = [*range(4), *range(5, 16), 52]  # 52 has what 4 has (stages apart, two pools, shares) in a fifth of its time

ORACLE: dict[str, dict[str, Any]] = {
    "both modes": {},
    "colocated": {"options.modes": ["colocated"]},
    "disaggregated": {"options.modes": ["disaggregated"]},
    "eight GPUs in nodes of two": {
        "cluster.pools.0": {"gpu": "h100", "nodes": 4, "gpus_per_node": 2},
        "options.max_batch": [64],
    },
    "a hole": {"cluster.pools.0": {"gpu": "h200", "nodes": 3, "gpus_per_node": 2, "out_of_service": [1]}},
    "a rate to serve": {"workloads.0.load": {"rate": "9/s"}, "objective": {"minimize": "gpus"}},
    "a rate at most": {"workloads.0.load": {"rate": "5/s"}},
    "least cost": {
        "workloads.0.load": {"rate": "14/s"},
        "cluster.pools.0.price": "3USD/h",
        "objective": {"minimize": "cost"},
    },
    "tokens": {"objective": {"maximize": "tokens_per_s_per_gpu"}},
    "capped": {"limits": {"gpus": 3}},
    "capped price": {"limits": {"price": "7USD/h"}, "cluster.pools.0.price": "3USD/h"},
    "clients": {"workloads.0.load": {"concurrency": 20}},
    "many clients": {"workloads.0.load": {"concurrency": 400}},
    "whole requests": {"workloads.0.slo": {"latency": "3s"}, "options.max_batch": [16], "options.tp": [1]},
    "percentiles of tpot": {
        "workloads.0.output_tokens": {"mean": 100, "cv": 1.0},
        "workloads.0.slo.tpot": {"p99": "17ms", "p50": "10ms"},
    },
    "sides apart": {
        "options.modes": ["disaggregated", "attention-ffn"],
        "options.tp": [1],
        "options.max_batch": [64],
        "options.attention_gpus": [1, 2],
        "options.ffn_gpus": [1, 2],
        "options.micro_batches": [2],
    },
    "sides apart for a rate": {
        "options.modes": ["attention-ffn"],
        "options.tp": [1],
        "options.max_batch": [8],
        "options.attention_gpus": [1],
        "workloads.0.load": {"rate": "2/s"},
        "objective": {"minimize": "gpus"},
    },
    "too much": {"workloads.0.load": {"rate": "900/s"}, "objective": {"minimize": "gpus"}},
}


@pytest.fixture(scope="module")
def optima() -> dict[str, float | None]:
    return {name: brute_force(small(edits)) for name, edits in ORACLE.items()}


def solved(resolved: Resolved, backend: str = "mathopt-gscip") -> Envelope:
    return solve(resolved, Limits(backend=backend, explain=False))


def objective(edits: dict[str, Any]) -> float:
    return objective_of(solved(small(edits)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", list(ORACLE))
def test_a_solve_finds_what_brute_force_finds(case: str, backend: str, optima: dict[str, float | None]) -> None:
    if optima[case] is None:
        with pytest.raises(Infeasible):
            solved(small(ORACLE[case]), backend)
        return
    plan = solved(small(ORACLE[case]), backend)
    assert objective_of(plan) == pytest.approx(optima[case], rel=1e-7)
    assert plan.certificate.status == "optimal"
    assert not broken_rules(plan)


def test_the_oracle_sees_feasible_and_infeasible_problems(optima: dict[str, float | None]) -> None:
    assert sum(optimum is None for optimum in optima.values()) == 1


@pytest.fixture(scope="module")
def random_plans() -> list[Envelope]:
    """Plans of random problems, those that have one."""
    plans = []
    for seed in SEEDS:
        with contextlib.suppress(Infeasible):
            plans.append(solved(small(random_edits(seed))))
    return plans


def test_a_plan_of_any_small_problem_passes_every_static_rule(random_plans: list[Envelope]) -> None:
    assert len(random_plans) > 8
    for plan in random_plans:
        assert not broken_rules(plan)
        assert plan.certificate.bound is not None


def test_the_counts_of_a_certificate_add_up(random_plans: list[Envelope]) -> None:
    for plan in random_plans:
        certificate = plan.certificate
        dropped = sum(count for rule, count in certificate.pruned.items() if not rule.startswith("shape: "))
        mix: Any = certificate.proof["mix"]
        left = sum(sum(rate > 0 for rate in shape["rate_per_s"]) for shape in mix["shapes"])
        assert certificate.candidates == dropped + left


LOOSER: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("a looser ttft", {}, {"workloads.0.slo.ttft": "800ms"}),
    ("a looser tpot", {}, {"workloads.0.slo.tpot": "30ms"}),
    ("no limits", {}, {"workloads.0.slo": ...}),
    ("more memory", {"engine": {"memory_utilisation": 0.3}}, {"engine": {"memory_utilisation": 0.9}}),
    ("a wider axis", {}, {"options.max_batch": [8, 16, 32, 64, 128]}),
    ("more clients", {"workloads.0.load": {"concurrency": 10}}, {"workloads.0.load": {"concurrency": 30}}),
    ("both modes", {"options.modes": ["disaggregated"]}, {}),
]


@pytest.mark.parametrize(("name", "tight", "loose"), LOOSER, ids=[row[0] for row in LOOSER])
def test_asking_for_less_never_worsens_the_objective(name: str, tight: dict[str, Any], loose: dict[str, Any]) -> None:
    assert objective(loose) >= objective(tight) * (1 - 1e-9), name


def test_more_gpus_never_serve_less() -> None:
    totals = [4, 5, 6, 8]
    rates = [value_of(solved(small({"cluster.pools.0.gpus": n})), "requests_per_s", "chat") for n in totals]
    assert all(more >= less * (1 - 1e-9) for less, more in itertools.pairwise(rates))


def test_cheaper_gpus_never_cost_more() -> None:
    goal = {"workloads.0.load": {"rate": "12/s"}, "objective": {"minimize": "cost"}}
    costs = [objective({**goal, "cluster.pools.0.price": f"{price}USD/h"}) for price in (4, 3, 1.5)]
    assert costs[0] > costs[1] > costs[2]


def test_a_second_pool_never_raises_the_cost() -> None:
    goal = {"workloads.0.load": {"rate": "12/s"}, "objective": {"minimize": "cost"}, "cluster.pools.0.price": "3USD/h"}
    second = {"cluster.pools.1": {"gpu": "l40s", "gpus": 4, "price": "0.5USD/h"}}
    assert objective({**goal, **second}) <= objective(goal) * (1 + 1e-9)


def test_the_order_of_pools_and_workloads_changes_nothing_but_order() -> None:
    pools = [{"gpu": "h100", "gpus": 2, "price": "3USD/h"}, {"gpu": "l40s", "gpus": 4, "price": "1USD/h"}]
    loads = [
        {"name": "chat", "input_tokens": 2000, "output_tokens": 300, "load": {"rate": "4/s"}},
        {"name": "short", "input_tokens": 300, "output_tokens": 60, "load": {"rate": "6/s"}, "slo": {"ttft": "300ms"}},
    ]
    goal = {"objective": {"minimize": "cost"}}
    forward = solved(small({**goal, "cluster.pools": pools, "workloads": loads}))
    backward = solved(small({**goal, "cluster.pools": pools[::-1], "workloads": loads[::-1]}))
    assert objective_of(forward) == pytest.approx(objective_of(backward), rel=1e-9)


def test_a_plan_is_the_same_bytes_again() -> None:
    edits = {"workloads.0.load": {"concurrency": 20}}
    assert plan_json(solved(small(edits))) == plan_json(solved(small(edits)))
