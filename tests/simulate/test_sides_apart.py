"""Plans with attention and feed-forward apart in the simulator: engines, steps, times, and what is refused."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from serve_problems import objective_of, small, value_of
from static_level import solve

from planner.costs.operators.work import Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.roofline import Roofline
from planner.costs.serving.attention_ffn import Units, unit_step
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.options import ServeDecision
from planner.models.library import find_model
from planner.plan.schema import Envelope
from planner.plan.sides import ffn_roles, without_ffn
from planner.simulate.fleet.operation_spec import OperationSpec
from planner.simulate.fleet.unit_grid import unit_grid
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.plans.simulation import Traffic, findings, simulate_plan
from planner.simulate.requests.stream import Requests
from planner.simulate.run.engine import simulate

MOE: dict[str, Any] = {
    "models.llama": {"name": "Qwen/Qwen3-30B-A3B", "weights": "fp8", "kv_cache": "fp8"},
    "cluster.pools.0": {"gpu": "h100", "nodes": 2},
    "workloads.0.slo": {"ttft": "1s", "tpot": "20ms"},
    "workloads.0.load": {"rate": "12/s"},
    "options": {
        "modes": ["attention-ffn"], "tp": [1], "pp": [1], "max_batch": [16, 64, 256], "chunk_tokens": [4096],
        "attention_gpus": [6], "ffn_gpus": [2],
    },
}  # fmt: skip
FREE = {path: value for path, value in MOE.items() if path != "workloads.0.load"}  # as fast as can be served
ONE = Requests.open_stream([0.0], [500], [100])


@pytest.fixture(scope="module")
def plan() -> tuple[Envelope, ServeDecision]:
    envelope = solve(small(copy.deepcopy(MOE)))
    return envelope, ServeDecision.model_validate(envelope.decision)


def test_each_micro_batch_of_an_attention_rank_is_an_engine_and_feed_forward_is_none(
    plan: tuple[Envelope, ServeDecision],
) -> None:
    planned = fleet_of_plan(*plan, ONE, Policies())
    attention = next(role for role in plan[1].roles if role.function == "attention")
    turns, ranks = int(attention.limits["micro_batches"]), attention.parallelism.dp
    engines = [
        engine
        for engine, name in zip(planned.fleet.instances, planned.role_of_instance, strict=True)
        if name == attention.name
    ]
    assert len(engines) == attention.replicas * ranks * turns
    assert {engine.role for engine in engines} == {"decode"}
    assert all(engine.most_sequences * turns >= int(attention.limits["max_batch"]) for engine in engines)
    assert "ffn" not in planned.role_of_instance
    assert planned.gpus == sum(role.replicas * role.parallelism.devices for role in plan[1].roles)
    assert ranks > 1
    assert planned.fleet.groups.count(ranks) == attention.replicas * turns


def test_a_step_of_an_engine_is_that_of_its_unit() -> None:
    node, arch = find_node("h800"), find_model("stepfun-ai/step3-fp8")
    pricer = Roofline(node.accelerator, Pool("h800", node, 4).topology(), load_calibration().efficiencies)
    engine, unit = EngineOverheads(step_s=1e-3), Units.within(1, 16, 1, 16, 3, 8)
    grid = unit_grid(arch, pricer, engine, unit, most_sequences=64, longest_tokens=4096, chunk_tokens=512)
    for index in (0, 3, len(grid.contexts) - 1):
        work = Work.decode(np.array([64.0]), grid.contexts[index])
        wanted = float(unit_step(arch, pricer, engine, unit, work).seconds[0])
        assert grid.decode_s[64, index] == pytest.approx(wanted, rel=1e-9)
    crowded = grid.prefill_s(512.0, 256.0)
    alone = unit_grid(
        arch,
        pricer,
        engine,
        replace(unit, ranks=np.array([1.0])),
        most_sequences=64,
        longest_tokens=4096,
        chunk_tokens=512,
    ).prefill_s(512.0, 256.0)
    assert crowded < 16.0 * alone  # one rank computes a prompt again, not all of them


def test_a_plan_keeps_in_a_run_what_it_claims(plan: tuple[Envelope, ServeDecision]) -> None:
    simulated = simulate_plan(*plan, Traffic(first=3000), Policies())
    assert simulated.result.drained
    assert all(finding.ok for finding in findings(simulated))
    tpot_s = simulated.result.tpot_s[500:]
    assert float(np.mean(tpot_s)) <= value_of(plan[0], "tpot_s", "chat") * 1.05


def test_full_engines_step_as_fast_as_the_plan_says() -> None:
    """More than the unit can take at a time: every engine is full, as steady state has it at the full batch."""
    envelope = solve(small(copy.deepcopy(FREE)))
    decision = ServeDecision.model_validate(envelope.decision)
    attention = next(role for role in decision.roles if role.function == "attention")
    slots = int(attention.limits["max_batch"]) * attention.parallelism.dp * attention.replicas
    load = Requests.closed_loop([2000] * (4 * slots), [300] * (4 * slots), clients=2 * slots)
    planned = fleet_of_plan(envelope, decision, load, Policies())
    result = simulate(planned.fleet, load)
    steady = result.tpot_s[len(load) // 4 : -slots]
    by_batch = (envelope.evidence.steps or {})["attention"].tpot_s_by_batch or {}
    assert float(np.mean(steady)) == pytest.approx(by_batch[str(attention.limits["max_batch"])], rel=0.03)
    assert objective_of(envelope) > 0.0


def test_a_failed_feed_forward_side_takes_its_attention_side_along(plan: tuple[Envelope, ServeDecision]) -> None:
    leaders = []
    for role in ("attention", "ffn"):
        data = {
            "schema": "planner.operation/1",
            "changes": [{"time": "1s", "role": role, "replica": 0, "action": "fail"}],
        }
        operation = OperationSpec.model_validate(data)
        fleet = fleet_of_plan(*plan, ONE, Policies(operation=operation)).fleet
        leaders.append([change.instance for change in fleet.changes])
    assert leaders[0] == leaders[1]
    assert len(leaders[0]) > 0


def test_attention_without_feed_forward_cannot_be_simulated(plan: tuple[Envelope, ServeDecision]) -> None:
    lonely = plan[1].model_copy(update={"routing": tuple(r for r in plan[1].routing if r.to != "ffn")})
    with pytest.raises(PlannerError, match="no role with its feed-forward layers"):
        fleet_of_plan(plan[0], lonely, ONE, Policies())


def test_steps_are_those_of_the_hardware_that_each_side_stands_on() -> None:
    pools = {"cluster.pools.1": {"gpu": "h20", "name": "wide", "nodes": 1}, "options.ffn_gpus": [2]}
    envelope = solve(small(copy.deepcopy(MOE) | pools))
    decision = ServeDecision.model_validate(envelope.decision)
    seconds = []
    for pool in ("h100", "wide"):
        roles = tuple(
            role.model_copy(update={"pool": pool if role.function == "ffn" else "h100"}) for role in decision.roles
        )
        planned = fleet_of_plan(envelope, decision.model_copy(update={"roles": roles}), ONE, Policies())
        engine = planned.fleet.instances[planned.role_of_instance.index("attention")]
        seconds.append(float(engine.grid.decode_s[-1, -1]))
    assert seconds[1] != pytest.approx(seconds[0], rel=0.01)


def test_requests_see_no_feed_forward_roles(plan: tuple[Envelope, ServeDecision]) -> None:
    seen = without_ffn(plan[1])
    assert {role.function for role in seen.roles} == {"prefill", "attention"}
    assert all(route.to != "ffn" for route in seen.routing)
    assert list(ffn_roles(plan[1])) == ["attention"]
    assert without_ffn(seen) is seen


def test_units_are_judged_by_simulation_like_other_instances() -> None:
    judged = {"options.judged_by": "simulation", "options.simulated_requests": 1000}
    envelope = solve(small(copy.deepcopy(FREE) | judged))
    decision = ServeDecision.model_validate(envelope.decision)
    assert decision.mode == "attention-ffn"
    assert envelope.certificate.bound is not None
    assert objective_of(envelope) <= envelope.certificate.bound
