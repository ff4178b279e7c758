"""What own runs tell of the plans of a solve and of estimates of them: closed and open loops, one and many instances.

Solved are problems of a model that the shipped costs were not fitted to, with a calibration of two runs of it. What is
compared are the multiples of the steps of the plan's roles and the width of what is believed of its time per output
token, as the plan was priced and as `planner estimate` takes them for the same deployment, load and calibration.
"""

import itertools
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from planner.calibrate.own_runs import believe, document_of
from planner.calibrate.serving import read_serving
from planner.costs.rates.calibration import Calibration, load_calibration
from planner.documents.read import given_document
from planner.errors import Infeasible
from planner.estimate.case import Case
from planner.estimate.own_runs import told_by_runs
from planner.estimate.requests import cases_of_lines
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.solve import solve_by_formulas
from planner.kinds.serve.steady.search import prepare
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope, Role
from planner.problem.resolve import Resolved
from planner.progress import Limits
from planner.simulate.plans.engines import shards_of

MODEL = "Qwen/Qwen2.5-7B-Instruct"
RUNS = (
    "id,model,weights,system,backend,mode,isl,osl,concurrency,rate_per_s,gpus,tp,pp,dp,moe_tp,moe_ep,ttft_ms,tpot_ms\n"
    f"closed,{MODEL},bf16,h100_sxm,vllm,agg,1000,200,16,,1,1,1,1,1,1,60,11\n"
    f"open,{MODEL},bf16,h100_sxm,vllm,agg,1000,200,,6,2,2,1,1,2,1,50,7\n"
)
GPUS = (1, 3, 8)
LOADS: tuple[dict[str, Any], ...] = ({"concurrency": 16}, {"concurrency": 100}, {"rate": "6/s"})
MODES = ("colocated", "disaggregated")
OBJECTIVES = ({"maximize": "goodput_per_gpu"}, {"minimize": "gpus"})


@dataclass(frozen=True, slots=True)
class Compared:
    """A plan with what own runs tell of it, by the solve and by the estimate: multiples of steps, and a width."""

    title: str
    instances: int  # that decode
    solve: tuple[float, float, float]
    estimate: tuple[float, float, float]

    @property
    def error(self) -> float:
        """The larger distance from what `solve` took."""
        return max(abs(own / other - 1.0) for own, other in zip(self.estimate, self.solve, strict=True))


def compared_runs() -> Iterator[Compared]:
    """Every plan that is there and that an estimate can state: one role, or one of prefill and one of decode."""
    with tempfile.TemporaryDirectory() as folder:
        path = _calibration(Path(folder))
        for gpus, load, mode, objective in itertools.product(GPUS, LOADS, MODES, OBJECTIVES):
            problem = _problem(gpus, load, mode, objective, path)
            resolved = resolve_document(given_document({"kind": "serve", **problem}, "problem"), Path(folder))
            try:
                plan = solve_by_formulas(resolved, Limits(explain=False))
            except Infeasible:
                continue
            decision = ServeDecision.model_validate(plan.decision)
            roles = {role.function: role for role in decision.roles}
            if len(roles) == len(decision.roles) == (1 if mode == "colocated" else 2):
                title = f"{gpus} GPUs, {mode}, {load}, {objective}"
                yield _compared(title, plan, roles, resolved, problem, load_calibration(path))


def _calibration(folder: Path) -> str:
    table, path = folder / "runs.csv", folder / "own.yaml"
    table.write_text(RUNS, encoding="utf-8")
    told = believe(read_serving([str(table)], {}).rows, "default", None)
    document = document_of(told, "default", date="2026-01-31", sources=["runs.csv"])
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


def _problem(gpus: int, load: dict[str, Any], mode: str, objective: dict[str, str], path: str) -> dict[str, Any]:
    slo = {"ttft": "2s", "tpot": "25ms"}
    return {
        "models": {"m": {"name": MODEL}},
        "cluster": {"pools": [{"gpu": "h100", "gpus": gpus}]},
        "workloads": [{"name": "chat", "input_tokens": 1000, "output_tokens": 200, "slo": slo, "load": load}],
        "objective": objective,
        "costs": {"calibration": path},
        "options": {"modes": [mode]},
    }


def _compared(
    title: str,
    plan: Envelope,
    roles: dict[str, Role],
    resolved: Resolved,
    problem: dict[str, Any],
    known: Calibration,
) -> Compared:
    decode, prefill = roles.get("colocated") or roles["decode"], roles.get("colocated") or roles["prefill"]
    costs = prepare(resolved, spread_gpus=plan.evidence.spread_gpus).costs_of_pool["m", 0].costs

    def longer(role: Role) -> float:
        return float(np.ravel(costs.of_role(role.function).pricer.slowdown_of(shards_of(role)))[0])

    (half,) = (belief.high for belief in plan.evidence.beliefs if belief.metric == "tpot_s")
    case = _case(problem, decode, None if decode is prefill else prefill)
    told, group = told_by_runs(known, [case]), known.slowdown(case.group)
    own = (float(told.decode_longer[0]) * group, float(told.prefill_longer[0]) * group, float(told.half[0]))
    return Compared(title, decode.replicas, (longer(decode), longer(prefill), half), own)


def _case(problem: dict[str, Any], decode: Role, prefill: Role | None) -> Case:
    """What an estimate is asked for."""
    parts = {"decode": _part(decode), "prefill": None if prefill is None else _part(prefill)}
    decision = parts["decode"] if prefill is None else {"mode": "disaggregated", **parts}
    (case,) = cases_of_lines([json.dumps({**problem, "decision": decision})])
    assert isinstance(case, Case), case
    return case


def _part(role: Role) -> dict[str, Any]:
    degrees = role.parallelism.model_dump(exclude_defaults=True)
    return {"replicas": role.replicas, "parallelism": degrees}
