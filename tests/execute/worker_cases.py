"""Several plans in one start of the ranks: the entry of their job, and what comes of it."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rank_environment import ENVIRONMENT, free_port

from planner.execute.judge.judging import judge
from planner.execute.judge.pricing import plan_pricer
from planner.execute.judge.verdict import Measured, StepVerdict
from planner.execute.ranks.launch import TimeLimits, result_path, run_local
from planner.execute.shards.cases import Cut, role_steps
from planner.execute.shards.faults import RankProgress
from planner.execute.shards.spec import role_spec
from planner.plan.reader import read_plan

LEAST_REPEATS, PASSES = 2, 3  # of a step timed whole, half as often as ranks together do, and timed by operator


@dataclass(frozen=True)
class Verdicts:
    """What the ranks of a case measured."""

    steps: Mapping[tuple[str, int], StepVerdict]  # by step and rank
    meetings: tuple[int, ...]  # by rank, of all ranks before a run


@dataclass(frozen=True)
class WorkerCase:
    """A role of one plan, run by one rank alone or by all of its ranks."""

    name: str
    kind: str
    role: str
    degrees: Mapping[str, int]
    model: str = "tests/dense"
    decision: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = True
    partner: str = ""  # another role of the plan, with the same degrees

    def write(self, bench_plan: Callable[..., Path], path: Path) -> None:
        roles = {name: dict(self.degrees) for name in (self.role, self.partner) if name}
        options = {"options": {"sequence_tokens": 32}} if self.kind == "train" else {}
        shutil.copy(bench_plan(self.kind, roles, self.model, decision=dict(self.decision), **options), path)


def run(job: Mapping[str, Any], progress: RankProgress) -> None:
    """Every case in turn, each with a world of its own; how often its ranks met is kept beside its results."""
    from torch import distributed

    from planner.execute.ranks import recorder, timing
    from planner.execute.ranks.runner import run_rank

    timing._LEAST_REPEATS, recorder.PASSES = LEAST_REPEATS, PASSES
    barrier, meetings = distributed.barrier, Counter[str]()
    for case in job["cases"]:

        def counted(place: str = case["folder"], **options: Any) -> None:  # noqa: ANN401
            meetings[place] += 1
            barrier(**options)

        distributed.barrier = counted
        os.environ["MASTER_PORT"] = str(case["port"])
        run_rank({**job, **case}, progress)
        meetings_path(Path(case["folder"]), int(os.environ["RANK"])).write_text(str(meetings[case["folder"]]))


def meetings_path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.meetings"


def verdicts(
    cases: list[WorkerCase], num_ranks: int, bench_plan: Callable[..., Path], folder: Path
) -> dict[str, Verdicts]:
    """What every rank measured of every case; all of them share one start of the ranks."""
    entries = []
    for case in cases:
        place = folder / case.name
        place.mkdir(parents=True)
        case.write(bench_plan, place / "plan.json")
        entry = {"plan": str(place / "plan.json"), "role": case.role, "folder": str(place), "port": free_port()}
        entries.append({**entry, "alone": case.alone, "rank": 0})
    job = {"entry": "worker_cases:run", "cases": entries, "device": "cpu", "cut": {}, "step_budget_s": 0.02}
    outcome = run_local(job, num_ranks, folder, TimeLimits(total_s=600.0, stall_s=120.0), ENVIRONMENT)
    assert not outcome.faults, outcome.faults
    return {case.name: _judged(case, folder / case.name, num_ranks) for case in cases}


def _judged(case: WorkerCase, folder: Path, num_ranks: int) -> Verdicts:
    plan = read_plan(folder / "plan.json")
    role = role_spec(plan, case.role)
    pricer = plan_pricer(plan, plan.role(case.role), role.arch)
    steps = {step.kind: step for step in role_steps(plan, plan.role(case.role), Cut())}
    judged: dict[tuple[str, int], StepVerdict] = {}
    for rank in range(num_ranks):
        for data in json.loads(result_path(folder, rank).read_text(encoding="utf-8"))["steps"]:
            measured = Measured.from_json(data)
            judged[measured.step, rank] = judge(role, role.rank(rank), steps[measured.step], measured, pricer)
    return Verdicts(judged, tuple(int(meetings_path(folder, rank).read_text()) for rank in range(num_ranks)))
