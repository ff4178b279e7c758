"""Pipelined serving roles: stages are predicted as they chose the plan, and run with all micro-batches in flight."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import planner
from planner.costs.operators.work import Shards
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.pricer import Pricer
from planner.costs.rates.step import step_time
from planner.execute.execution import ExecutionOptions, execute_plan
from planner.execute.judge.judging import judge
from planner.execute.judge.predict import executed_operators, predict, step_work
from planner.execute.judge.pricing import plan_pricer
from planner.execute.judge.verdict import PIPELINE, Measured
from planner.execute.shards.cases import DECODE, MIXED, PREFILL, StepCase, role_steps
from planner.execute.shards.spec import RoleSpec, role_spec
from planner.plan.reader import read_plan
from planner.simulate.fleet.step_grid import step_grid

SHIPPED = Path(__file__).parents[2] / "planner/costs/rates/calibration.yaml"
SERVING: dict[str, Any] = {
    "kind": "serve",
    "models": {"m": {"name": "meta-llama/Llama-3.1-8B-Instruct"}},
    "cluster": {"pools": [{"gpu": "h100_sxm", "gpus": 4}]},
    "workloads": [{"input_tokens": 1000, "output_tokens": 100, "load": {"concurrency": 64}}],
    "objective": {"maximize": "tokens_per_s_per_gpu"},
    "options": {"modes": ["colocated"], "pp": [4], "tp": [1]},
}


class Solved:
    """A pipelined plan, its role, and what prices it."""

    def __init__(self, folder: Path, factor: float) -> None:
        from planner.documents.read import load_document

        shipped: dict[str, Any] = load_document(str(SHIPPED)).data
        roofline = shipped["roofline"] | {"gemm_bandwidth": shipped["roofline"]["gemm_bandwidth"] * factor}
        calibration, path = folder / f"{factor}.json", folder / f"plan-{factor}.json"
        calibration.write_text(json.dumps({**shipped, "roofline": roofline}))
        planner.solve(SERVING | {"costs": {"calibration": str(calibration)}}, level="static").save(path)
        plan = read_plan(path)
        self.value = float(json.loads(path.read_text())["certificate"]["objective"]["value"])
        self.role: RoleSpec = role_spec(plan, plan.roles[0].name)
        self.cases = {case.kind: case for case in role_steps(plan, plan.roles[0])}
        self.pricer: Pricer = plan_pricer(plan, plan.roles[0], self.role.arch, calibration=str(calibration))

    @property
    def shards(self) -> Shards:
        return Shards.of(tp=1, pp=self.role.parallelism.pp)

    def stage_of_plan_s(self, kind: str) -> float:
        """As the verdict on a rank says it."""
        measured = Measured("colocated", 0, kind, 1.0, 1.0, 1.0, {}, ())
        verdict = judge(self.role, self.role.rank(0), self.cases[kind], measured, self.pricer)
        assert verdict.stage_of_plan_s is not None
        return verdict.stage_of_plan_s

    def stages_s(self, kind: str) -> list[float]:
        """What is predicted of each stage alone; copies out of cache blocks are no part of a plan."""
        case = self.cases[kind]
        times = [predict(executed_operators(self.role, rank, case), self.pricer) for rank in self.role.ranks()]
        return [sum(time.seconds for name, time in own.items() if name != "kv_gather") for own in times]

    def handovers_s(self, kind: str) -> float:
        """Of a micro-batch between all stages, in the step that chose the plan."""
        return float(self._step(kind).by_operator["stage_handover"][0])

    def _step(self, kind: str) -> Any:  # noqa: ANN401 - a StepTime
        work = step_work(self.cases[kind], self.role.rank(0))
        return step_time(self.role.arch, self.pricer, self.shards, work, EngineOverheads())

    def simulated_s(self, kind: str) -> float:
        """What the simulator takes for each stage, by its table of steps."""
        case, chunk = self.cases[kind], 4096
        grid = step_grid(
            self.role.arch,
            self.pricer,
            self.shards,
            EngineOverheads(),
            most_sequences=64,
            longest_tokens=2048,
            chunk_tokens=chunk,
        )
        if kind == DECODE:
            at_contexts = grid.decode_s[case.decode_sequences]
            return float(np.interp(case.decode_context, grid.contexts, at_contexts)) / self.role.parallelism.pp
        attended = case.prefill_context + (case.prefill_tokens + 1) / 2
        return grid.prefill_s(case.tokens, attended) / self.role.parallelism.pp


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Solved:
    return Solved(tmp_path_factory.mktemp("plans"), 1.0)


@pytest.mark.parametrize("kind", [PREFILL, DECODE, MIXED])
def test_stages_and_their_handovers_take_what_the_plan_takes_for_a_pass(solved: Solved, kind: str) -> None:
    pp = solved.role.parallelism.pp
    stages_s = solved.stages_s(kind)
    assert len(stages_s) == pp == 4
    assert sum(stages_s) + solved.handovers_s(kind) == pytest.approx(pp * solved.stage_of_plan_s(kind))
    assert max(stages_s) > min(stages_s)  # the ends of the model are at its ends


@pytest.mark.parametrize("kind", [PREFILL, DECODE])
def test_the_simulator_takes_the_same_for_a_stage(solved: Solved, kind: str) -> None:
    assert solved.simulated_s(kind) == pytest.approx(
        solved.stage_of_plan_s(kind), rel=0.02
    )  # between places of an axis


def test_one_wrong_rate_moves_plan_simulator_and_stages_alike(solved: Solved, tmp_path: Path) -> None:
    wrong = Solved(tmp_path, 0.5)
    assert wrong.value < 0.95 * solved.value  # the host's part of a step is as it was
    slower = [
        sum(wrong.stages_s(DECODE)) / sum(solved.stages_s(DECODE)),
        wrong.stage_of_plan_s(DECODE) / solved.stage_of_plan_s(DECODE),
        wrong.simulated_s(DECODE) / solved.simulated_s(DECODE),
    ]
    assert slower[0] > 1.2
    assert slower == pytest.approx([slower[0]] * 3, rel=0.05)


def test_where_layers_do_not_divide_the_plan_takes_the_fullest_stage(bench_plan: Callable[..., Path]) -> None:
    plan = read_plan(bench_plan("serve", {"decode": {"pp": 3}}))  # 4 layers: 2, 1, 1
    role = role_spec(plan, "decode")
    pricer = plan_pricer(plan, plan.roles[0], role.arch)
    case = next(case for case in role_steps(plan, plan.roles[0]) if case.kind == DECODE)
    measured = Measured("decode", 0, DECODE, 1.0, 1.0, 1.0, {}, ())
    verdict = judge(role, role.rank(0), case, measured, pricer)
    work = step_work(case, role.rank(0))
    even_s = step_time(role.arch, pricer, Shards.of(tp=1, pp=3), work, EngineOverheads()).device_s[0] / 3
    assert verdict.stage_of_plan_s == pytest.approx(even_s)
    own_s = [
        sum(t.seconds for t in predict(executed_operators(role, role.rank(r), case), pricer).values()) for r in (0, 1)
    ]
    assert own_s[0] > own_s[1]


def test_steps_that_pass_no_stages_say_nothing_of_them(solved: Solved) -> None:
    measured = Measured("colocated", 0, "kv_transfer", 1.0, 1.0, 1.0, {}, ())
    handed = judge(solved.role, solved.role.rank(0), StepCase("kv_transfer", 1, 1000), measured, solved.pricer)
    assert handed.stage_of_plan_s is None


@pytest.mark.usefixtures("forked_ranks")
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="the executor needs torch")
@pytest.mark.parametrize("function", ["prefill", "decode"])
def test_micro_batches_follow_each_other_through_all_stages(bench_plan: Callable[..., Path], function: str) -> None:
    plan = bench_plan("serve", {function: {"pp": 2}})
    options = ExecutionOptions(device="cpu", num_processes=2, step_budget_s=0.05)
    outcome = execute_plan(plan, options)
    assert not outcome.faults
    steps = [step for step in outcome.steps if step.step == function]
    assert [step.rank for step in steps] == [0, 1]
    for step in steps:
        own_s = sum(row.predicted_s for name, row in step.operators.items() if name != PIPELINE)
        assert step.micro_batches == step.work["micro_batches"] == 2
        assert PIPELINE in step.operators
        assert "gradient_accumulation" not in step.operators
        assert step.stage_of_plan_s is not None
        # two batches, one of which waits for the other stage before or behind
        assert step.predicted_step_s == pytest.approx(own_s * 1.5, rel=0.35)
    alone = execute_plan(plan, ExecutionOptions(device="cpu", step_budget_s=0.05))
    whole_s = 2.0 * sum(step.predicted_step_s for step in alone.steps if step.step == function)
    assert max(step.predicted_step_s for step in steps) < whole_s  # in turn they would take as long
    assert {step.micro_batches for step in alone.steps} == {0}
