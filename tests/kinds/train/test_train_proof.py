"""Certificates of training plans are held against a search made again: forgeries fail by name."""

from collections.abc import Callable
from typing import Any

import pytest
from train_problems import problem

from planner.api import solve
from planner.check import check_plan
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.plan.certificate import OPEN
from planner.plan.findings import Finding
from planner.plan.schema import Envelope
from planner.progress import Limits
from planner.verify import checksum

SEARCH = {"cp": 1, "vpp": [1, 2], "zero_stage": [0, 1]}
GOALS = {"step": {"minimize": "step_time"}, "gpu": {"maximize": "tokens_per_s_per_gpu"}}
Plan = dict[str, Any]


def _problem(goal: str = "step", **search: Any) -> Plan:  # noqa: ANN401
    return problem(global_batch=16, objective=GOALS[goal], search=SEARCH | search)


def _dumped(envelope: Envelope) -> Plan:
    return envelope.model_dump(mode="json", by_alias=True)


def _judged(plan: Plan) -> list[Finding]:
    envelope = Envelope.model_validate(plan)
    return check_plan(envelope, TrainDecision.model_validate(envelope.decision), proof=True)


def _failing(plan: Plan) -> set[str]:
    """Rules that a plan breaks whose checksum was written anew."""
    plan["certificate"]["proof"]["checksum"] = checksum(plan["certificate"])
    return {finding.rule for finding in _judged(plan) if not finding.ok}


@pytest.fixture(scope="module", params=GOALS)
def plan(request: pytest.FixtureRequest) -> Plan:
    return _dumped(solve(_problem(request.param)))


@pytest.fixture(scope="module")
def slower() -> Plan:
    """A plan of the same problem that is not the best: the best of some of its values, in the place of the best."""
    best = _dumped(solve(_problem()))
    some = _dumped(solve(_problem(tp=8)))
    assert some["certificate"]["objective"]["value"] > 1.01 * best["certificate"]["objective"]["value"]
    own = some["certificate"]
    claimed = {key: own[key] for key in ("objective", "bound", "gap", "status")}
    return {**best, **some, "inputs": best["inputs"], "digests": best["digests"]} | {
        "certificate": {**best["certificate"], **claimed}
    }


def test_a_true_certificate_is_judged_and_holds(plan: Plan) -> None:
    findings = _judged(plan)
    assert all(finding.ok for finding in findings)
    assert not [finding for finding in findings if finding.skipped]
    assert "certificate.search" in {finding.rule for finding in findings}


def _weaken(plan: Plan) -> None:
    """A bound farther off, with the gap and status that go with it."""
    certificate = plan["certificate"]
    certificate["bound"] *= 0.9 if certificate["objective"]["sense"] == "minimize" else 1.1
    value = certificate["objective"]["value"]
    certificate["gap"] = abs(value - certificate["bound"]) / value
    certificate["status"], certificate["claim"] = "feasible", OPEN
    certificate["proof"]["least_bound_left"] = certificate["bound"]


def _claim(plan: Plan) -> None:
    """Optimal by a bound that is off."""
    _weaken(plan)
    plan["certificate"]["status"] = "optimal"


def _objective(plan: Plan, factor: float) -> None:
    """The certificate says another objective than the decision has, and all figures beside it agree."""
    certificate = plan["certificate"]
    certificate["objective"]["value"] *= factor
    certificate["bound"] *= factor


def _move(plan: Plan) -> None:
    """One candidate counted under another bound."""
    pruned = plan["certificate"]["pruned"]
    first, second, *_ = (name for name in pruned if name.startswith("bound: "))
    pruned[first], pruned[second] = pruned[first] - 1, pruned[second] + 1


EDITS: dict[str, tuple[Callable[[Plan], None], str]] = {
    "an objective that the decision does not have": (lambda p: _objective(p, 1.001), "restated.certificate"),
    "another gap": (lambda p: p["certificate"].update(gap=0.01), "certificate.gap"),
    "optimal with a gap": (_claim, "certificate.status"),
    "another plan next best": (lambda p: p["certificate"].update(next_best={"plan": "tp 64"}), "certificate.next_best"),
    "other counts": (_move, "certificate.pruned"),
    "other candidates": (lambda p: p["certificate"].update(candidates=7), "certificate.candidates"),
    "an axis with a value less": (lambda p: p["certificate"]["axes"]["tp"].pop(), "certificate.axes"),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_certificate_that_says_something_else_fails_by_name(plan: Plan, name: str) -> None:
    edit, rule = EDITS[name]
    copy = _dumped(Envelope.model_validate(plan))
    edit(copy)
    assert rule in _failing(copy)


def test_a_weaker_bound_is_still_one(plan: Plan) -> None:
    copy = _dumped(Envelope.model_validate(plan))
    _weaken(copy)
    assert not _failing(copy)


def test_a_slower_plan_cannot_claim_to_be_the_best(slower: Plan) -> None:
    assert "certificate.search" in _failing(slower)


def test_a_search_that_stopped_early_proves_the_bound_that_it_states() -> None:
    loose = _dumped(solve(_problem(), Limits(gap=0.3)))
    assert not _failing(loose)


def test_a_mix_of_strategies_cannot_claim_a_bound_that_its_chains_do_not_give() -> None:
    tight = {"nodes": 2, "global_batch": 64, "sequence_tokens": 8192, "memory_utilisation": 0.18}
    mixed = _dumped(
        solve(
            problem(
                "Qwen/Qwen2.5-7B", **tight, search={"layerwise": True, "zero_stage": [0, 1, 2, 3], "micro_batch": [1]}
            )
        )
    )
    assert len(mixed["decision"]["layer_runs"]) > 1
    assert not _failing(mixed)
    certificate = mixed["certificate"]
    certificate |= {"bound": certificate["objective"]["value"], "gap": 0.0, "status": "optimal"}
    assert "certificate.search" in _failing(mixed)
