"""Rankings of small problems against lists of all their plans, and answers to named shapes against a judge.

`benchmarks/alternatives.py` and `benchmarks/why_not.py` do the same on many more.
"""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from named_shapes import SERVED, TRAINED, Named, wrong
from ranked_plans import KINDS, MAXIMISED, by_definition, resolved
from train_problems import problem as training

from planner.alternatives.ranking import alternatives
from planner.alternatives.why_not import why_not
from planner.api import solve
from planner.documents.units import figure
from planner.kinds.registry import find_kind
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.solvers.layouts.enumerated import best_of_all, is_small
from planner.solvers.layouts.spread import SpreadProblem, bin_times, require_layout

DEAR = ("place, layers", "train, pools")  # lists that are solved anew for each set of pools, or priced for seconds


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in DEAR])
def test_the_ranking_is_that_of_a_list_of_all_plans(kind: str, tmp_path: Path) -> None:
    make, plans_of = KINDS[kind]
    draw = random.Random(f"{kind} 1 0")
    data = make(draw, tmp_path) if kind == "experts" else make(draw)
    (goal,) = data["objective"].values()
    wanted = by_definition(plans_of(data), 20, maximised=goal in MAXIMISED)
    told = alternatives(resolved(data), 20, Limits())
    rel = 3e-4 if kind == "experts" else 1e-6
    assert [plan.certificate.objective.value for plan in told.plans] == pytest.approx(wanted, rel=rel)
    assert len(set(told.parts)) == len(told.plans) >= 2


def test_plans_across_pools_are_ranked_as_their_degrees_are_when_fixed() -> None:
    search = {"cp": 1, "micro_batch": 1, "vpp": 1, "zero_stage": 1, "recompute": "none", "tp": [2, 4], "pp": [1, 2]}
    pools = {"pools": [{"gpu": "h100_sxm", "nodes": 1}, {"gpu": "a100_sxm", "nodes": 1}]}
    data = training(cluster=pools, global_batch=8, search=search)
    told = alternatives(resolved(data), 20, Limits())
    assert any(plan.decision["pools"] != "one" for plan in told.plans)
    alone = []
    for tp, pp in [(2, 1), (2, 2), (4, 1), (4, 2)]:
        fixed = training(cluster=pools, global_batch=8, search={**search, "tp": tp, "pp": pp})
        alone.append(solve(resolved(fixed)).certificate.objective.value or 0.0)
    assert [plan.certificate.objective.value for plan in told.plans] == pytest.approx(sorted(alone))


@pytest.fixture(scope="module")
def best() -> dict[str, Envelope]:
    problems = (SERVED[2], SERVED[0], TRAINED[0])
    return {problem["models"]["m"]["name"]: solve(resolved(problem), level="static") for problem in problems}


@pytest.mark.parametrize(
    ("problem", "axes"),
    [
        (SERVED[0], {"ep": 2}),
        (SERVED[0], {"tp": 3}),
        (SERVED[0], {"role.decode.dp": 2}),
        (SERVED[0], {"mode": "disaggregated", "pp": 2}),
        (SERVED[0], {"role.prefill.tp": 2}),
        (SERVED[2], {"ep": 7}),
        (SERVED[2], {"role.decode.pp": 4}),
        (TRAINED[0], {"pp": 100}),
        (TRAINED[0], {"cp": 3, "pp": 2}),
        (TRAINED[0], {"micro_batch": 3}),
        (TRAINED[0], {"vpp": 2, "pp": 7, "tp": 2}),
        (TRAINED[0], {"ep": 4}),
        (TRAINED[0], {"tp": 2, "pp": 2}),
    ],
)
def test_a_named_shape_is_answered_with_the_true_rule_or_loss(
    problem: dict[str, Any], axes: dict[str, int | str], best: dict[str, Envelope]
) -> None:
    plan, named = best[problem["models"]["m"]["name"]], Named(problem, axes)
    (fact,) = why_not(plan, find_kind(plan.kind).decision.model_validate(plan.decision), named.text)
    assert wrong(named, plan, fact) == ""


def test_a_role_that_is_named_is_in_the_plan_that_it_is_weighed_by(best: dict[str, Envelope]) -> None:
    plan = best["Qwen/Qwen3-30B-A3B"]
    decision = find_kind("serve").decision.model_validate(plan.decision)
    (fact,) = why_not(plan, decision, "role.decode.tp=2")
    assert "decode tp2" in fact.what
    assert "simulation" not in fact.what


def test_a_simulated_plan_of_another_worth_is_told_beside_formulas(best: dict[str, Envelope]) -> None:
    plan = best["Qwen/Qwen3-30B-A3B"]
    own = plan.certificate
    assert own.objective.value is not None
    objective = own.objective.model_copy(update={"value": 1.5 * own.objective.value})
    simulated = own.model_copy(update={"objective": objective, "proof": {"verified": {}}})
    decision = find_kind("serve").decision.model_validate(plan.decision)
    (fact,) = why_not(plan.model_copy(update={"certificate": simulated}), decision, "tp=1")
    stated = figure(objective.metric, objective.value)
    assert fact.what.endswith(f"; both by formulas alone, while this plan keeps its limits in simulation at {stated}")


@pytest.mark.parametrize("seed", range(20))
def test_layouts_of_few_experts_on_few_ranks_are_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks, experts = (2, int(rng.integers(3, 7))) if seed % 2 else (3, 4)
    slots_R = rng.integers(-(-experts // ranks), experts + 1, ranks)
    problem = SpreadProblem(rng.lognormal(0, 1, experts), slots_R.astype(np.int64), rng.uniform(0.5, 1.0, ranks))
    assert is_small(problem)
    best = best_of_all(problem)
    assert best is not None
    require_layout(problem, best.item_P)
    fastest = min(_times(problem, sets) for sets in np.ndindex(*[2**ranks - 1] * experts))
    assert float(bin_times(problem, best.item_P).max()) == pytest.approx(fastest)


def _times(problem: SpreadProblem, sets: tuple[int, ...]) -> float:
    """The slowest bin where item e is in the bins of the bits of sets[e] + 1; infinite where slots are not filled."""
    slots, load = [0] * len(problem.slots_R), [0.0] * len(problem.slots_R)
    for item, chosen in enumerate(sets):
        bins = [bin_ for bin_ in range(len(slots)) if (chosen + 1) >> bin_ & 1]
        for bin_ in bins:
            slots[bin_] += 1
            load[bin_] += float(problem.weight_E[item]) / len(bins)
    if slots != problem.slots_R.tolist():
        return float("inf")
    return max(float(part / speed) for part, speed in zip(load, problem.speed_R.tolist(), strict=True))
