"""Plans one step from a plan: what they change, and that their check knows their instance types."""

from dataclasses import replace

import pytest
from serve_problems import small

from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.plan.certificate import objective
from planner.kinds.serve.plan.decode import envelope
from planner.kinds.serve.steady.search import Outcome, ServeSetting, prepare, search
from planner.kinds.serve.verified.neighbours import Axes
from planner.plan.restated import unproven
from planner.progress import Limits
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.requests.stream import Requests


def solved(mode: str) -> tuple[ServeSetting, Outcome]:
    setting = prepare(small({"options.modes": [mode], "cluster.pools.0.gpus": 8, "options.chunk_tokens": [2048, 4096]}))
    return setting, search(setting, setting.targets, Limits())


def decision_of(setting: ServeSetting, outcome: Outcome) -> ServeDecision:
    assert outcome.objective is not None
    plan = envelope(setting, outcome, unproven(objective(outcome, outcome.objective)), (), ())
    decision = ServeDecision.model_validate(plan.decision)
    load = Requests.open_stream([0.0], [2000], [400])
    assert len(fleet_of_plan(plan, decision, load, Policies()).fleet.instances) >= 1
    return decision


@pytest.mark.parametrize("mode", ["colocated", "disaggregated"])
def test_every_direction_changes_one_axis_and_makes_a_plan_that_runs(mode: str) -> None:
    setting, outcome = solved(mode)
    own, axes = decision_of(setting, outcome), set()
    for direction in Axes(setting).directions(outcome):
        varied = decision_of(setting, direction[0])
        assert sum(role.replicas * role.parallelism.devices for role in varied.roles) <= 8
        changed = {
            name
            for a, b in zip(own.roles, varied.roles, strict=True)
            for name in ("max_batch", "chunk_tokens", "replicas")
            if (getattr(a, name, None) or a.limits.get(name)) != (getattr(b, name, None) or b.limits.get(name))
        }
        if varied.router_policy != own.router_policy:
            changed.add("router_policy")
        axes |= changed
        assert all(role.parallelism == other.parallelism for role, other in zip(own.roles, varied.roles, strict=True))
        assert changed
    assert {"max_batch", "chunk_tokens"} <= axes
    assert ("replicas" in axes) == (mode == "disaggregated")


def test_an_instance_less_costs_its_gpus_and_keeps_the_load() -> None:
    setting, outcome = solved("colocated")
    fewer = list(Axes(setting).fewer(outcome))
    for each in fewer:
        assert sum(each.solution.counts) < sum(item.count for item in outcome.roles)
        assert each.solution.devices < outcome.solution.devices
        assert each.solution.served_per_s == outcome.solution.served_per_s


def test_a_type_has_the_memory_of_its_batch_and_chunk_or_is_none() -> None:
    setting, outcome = solved("colocated")
    (item,) = outcome.roles
    candidate, axes = item.candidate, Axes(setting)
    assert axes.at(candidate, candidate.max_batch, candidate.chunk_tokens) == candidate
    assert axes.at(candidate, candidate.max_batch, 3) is None
    smaller = axes.at(candidate, 8, candidate.chunk_tokens)
    assert smaller is not None
    (own,), (less,) = candidate.capacities, smaller.capacities
    assert own is not None
    assert less is not None
    assert less.kv_bytes * candidate.max_batch == pytest.approx(8 * own.kv_bytes)
    assert smaller.memory_share < candidate.memory_share
    assert replace(less, kv_bytes=own.kv_bytes) == own
