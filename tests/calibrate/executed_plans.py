"""Executions made up from known efficiencies: what the executor would write if the device were just like that."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from emit_plans import Case

from planner.costs.rates.calibration import Efficiencies
from planner.costs.rates.roofline import Roofline
from planner.execute.judge.judging import judge
from planner.execute.judge.predict import predict, rank_operators
from planner.execute.judge.pricing import plan_pool
from planner.execute.judge.verdict import Execution, Measured
from planner.execute.shards.cases import StepCase
from planner.execute.shards.spec import distinct_ranks, role_spec
from planner.plan.reader import read_plan
from planner.plan.store import checks_path, plan_digest, plan_json, write_checks

STEPS = (
    StepCase("prefill", 1, 2048),
    StepCase("prefill", 4, 4096),
    StepCase("decode", decode_sequences=1, decode_context=4096),
    StepCase("decode", decode_sequences=32, decode_context=4096),
    StepCase("decode", decode_sequences=256, decode_context=8192),
    StepCase("mixed", 1, 1024, 0, 64, 4096),
)


def write_executed(
    folder: Path,
    case: Case,
    truth: Efficiencies,
    *,
    name: str = "plan",
    steps: Sequence[StepCase] = STEPS,
    noise: float = 0.0,
    outliers: int = 0,
    device: dict[str, Any] | None = None,
) -> Path:
    """A plan and its checks; every operator takes what the roofline with `truth` says, off by a log-normal `noise`.

    The first `outliers` steps took three times as long as they should.
    """
    envelope, _ = case.build()
    objective = envelope.certificate.objective.model_copy(update={"value": 1.0})
    envelope = envelope.model_copy(
        update={"certificate": envelope.certificate.model_copy(update={"objective": objective})}
    )
    path = folder / f"{name}.json"
    path.write_text(plan_json(envelope), encoding="utf-8")
    plan = read_plan(path)
    random = np.random.default_rng(7)
    verdicts = []
    for role in (role_spec(plan, stated.name) for stated in plan.roles):
        pool = plan_pool(plan, plan.role(role.name).pool)
        pricer = Roofline(pool.node.accelerator, pool.topology(), truth)
        rank = distinct_ranks(role)[0]
        arch = replace(role.arch, precisions=replace(role.arch.precisions, kv_cache="bf16"))
        for number, step in enumerate(steps):
            factor = 3.0 if number < outliers else 1.0
            times = {
                operator: (time.seconds * float(np.exp(noise * random.standard_normal())) * factor, int(time.count))
                for operator, time in predict(rank_operators(arch, rank, step), pricer).items()
            }
            total = sum(seconds for seconds, _ in times.values())
            measured = Measured(role.name, rank.rank, step.kind, total, total, total, times, tuple(times))
            verdicts.append(judge(role, rank, step, measured, pricer))
    execution = Execution(
        plan_digest(path.read_text(encoding="utf-8")), "roofline", 0.15, device or {"kind": "cuda"}, tuple(verdicts)
    )
    document = json.loads(json.dumps(execution.as_json())) | {"date": "2026-02-03"}
    write_checks(path, execution.plan, "execute", execution.findings(), document)
    return checks_path(path)
