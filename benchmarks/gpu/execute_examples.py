"""Executes the prepared plans on the device at hand and holds their predictions, from the fresh profile, against it.

One role of a plan after the other, those with the smallest shards first, each within a limit of its own, so that no
plan spends the time of the others. What is done is kept at once, so that a run that was cut short goes on after it.
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Protocol

import numpy as np

from planner.costs.operators.work import Shards
from planner.costs.serving.memory import weight_bytes
from planner.documents.files import write_text_atomic
from planner.errors import PlannerError
from planner.execute.execution import ExecutionOptions, execute_plan
from planner.execute.judge.predict import rank_memory_bytes
from planner.execute.ranks.launch import TimeLimits
from planner.execute.shards.cases import DECODE, MIXED, PREFILL, Cut, role_steps
from planner.execute.shards.faults import FaultKind
from planner.execute.shards.spec import distinct_ranks, role_spec
from planner.hardware.profiling.writer import CARD
from planner.plan.reader import read_plan

SCHEMA = "planner.gpu_executed/1"
EACH_S = 60.0  # for one role of a plan
LEAST_S = 20.0  # left of the budget, to start another role
STEP_BUDGET_S = 1.0  # of repeats of one step
FILLED_SHARE = 0.85  # of the memory of the device: what PyTorch keeps beside the tensors of a step takes the rest
STATE_OVER_WEIGHTS = 8.0  # of training: 16 bytes a parameter of master weights, moments and gradients, over bf16's two
ERROR_LIMITS = {"median": 0.08, "worst": 0.20, "memory": 0.03}

Tell = Callable[[str], None]


class Executed(Protocol):
    """What an executor returns: `planner.execute.judge.verdict.Execution`."""

    def as_json(self) -> dict[str, Any]: ...


Execute = Callable[[Path, ExecutionOptions], Executed]


@dataclass(frozen=True, slots=True)
class Examples:
    """Plans by name in `folder`, and the roles of each that are executed."""

    folder: Path
    roles: Mapping[str, Sequence[str]]

    def cheapest_first(self) -> list[tuple[str, str]]:
        """(plan, role) by the bytes of the shards that are built for it; those that cannot be read last."""
        pairs = [(name, role) for name, roles in self.roles.items() for role in roles]
        return sorted(pairs, key=lambda pair: built_bytes(self.folder / f"{pair[0]}.json", pair[1]))


def fitting(path: Path, role_name: str, cut: Cut, room_bytes: float) -> Cut:
    """`cut` with as few sequences as a rank of the role has room for on this device: plans were made for another."""
    plan = read_plan(path)
    role = role_spec(plan, role_name)
    ranks = distinct_ranks(role)

    def needed_bytes(cut: Cut) -> float:
        cases = [case for case in role_steps(plan, plan.role(role_name), cut) if case.kind in (PREFILL, DECODE, MIXED)]
        return max(
            (rank_memory_bytes(role.arch, cut.of_rank(rank), case) for rank in ranks for case in cases), default=0.0
        )

    batch = max((case.batch for case in role_steps(plan, plan.role(role_name), cut)), default=1)
    while needed_bytes(cut) > room_bytes and batch > 1:
        batch = max(1, batch * 9 // 10)
        cut = replace(cut, batch=batch)
    return cut


def _room_bytes(card: Path) -> float:
    """What a step may take of the device that was profiled; without bounds where its card does not say."""
    if not card.is_file():
        return math.inf
    return FILLED_SHARE * float(json.loads(card.read_text(encoding="utf-8"))["device"].get("memory_bytes") or math.inf)


def built_bytes(path: Path, role_name: str) -> float:
    """Bytes of weights, of training also its state, on a rank of the role times the ranks that run alone in turn."""
    try:
        plan = read_plan(path)
        role = role_spec(plan, role_name)
        part = role.parallelism
        shards = Shards.of(*(np.array([float(n)]) for n in (part.tp, part.pp, part.dp, part.moe_tp, part.ep)))
        weights = float(weight_bytes(role.arch, shards)[0]) * len(distinct_ranks(role))
    except PlannerError:
        return math.inf
    return weights * (STATE_OVER_WEIGHTS if plan.kind == "train" else 1.0)


def execute_examples(
    examples: Examples, profile: Path, done: Path, *, device: str, accelerator: str, budget_s: float, cut: Cut,
    tell: Tell, each_s: float = EACH_S, execute: Execute | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Runs every role that `done` does not hold whole, until `budget_s` are spent, and returns what `done` holds.

    Plans are priced as for the hardware `accelerator`, from the tables in `profile`. A role that cannot run, or ran
    past its limit, is noted under `unexecuted` with the reason, and under `unfinished` where more time would help.
    """
    deadline_s, room_bytes = time.monotonic() + budget_s, _room_bytes(profile / CARD)
    runs: list[dict[str, Any]] = json.loads(done.read_text(encoding="utf-8"))["runs"] if done.is_file() else []
    runs = [run for run in runs if run["whole"]]
    known = {(run["plan"], run["role"]) for run in runs}
    missing: dict[str, str] = {}
    unfinished: list[str] = []
    for name, role in examples.cheapest_first():
        if (name, role) in known:
            continue
        left_s = deadline_s - time.monotonic()
        if left_s < LEAST_S:
            missing[f"{name}.{role}"] = "the time for executing was spent"
            unfinished.append(f"{name}.{role}")
            continue
        limit_s = min(left_s, each_s)
        plan = _for_hardware(examples.folder / f"{name}.json", accelerator, done.parent)
        options = ExecutionOptions(
            roles=(role,),
            device=device,
            num_processes=1,
            profiles=(str(profile),),
            cut=fitting(plan, role, cut, room_bytes) if math.isfinite(room_bytes) else cut,
            limits=TimeLimits(total_s=limit_s),
            step_budget_s=STEP_BUDGET_S,
        )
        try:
            result = (execute or execute_plan)(plan, options).as_json()
        except PlannerError as error:
            missing[f"{name}.{role}"] = error.what
            tell(f"{name} {role}: not executed: {error.what}")
            continue
        late = any(fault["kind"] == FaultKind.TIME_LIMIT for fault in result["faults"])
        runs.append({"plan": name, "role": role, "whole": not late, **_kept(result)})
        write_text_atomic(done, json.dumps({"schema": SCHEMA, "runs": runs}))
        for line in _lines(runs[-1]):
            tell(line)
        if late or not result["steps"]:
            why = f"ran past its limit of {limit_s:.0f} s" if late else "no step was executed"
            missing[f"{name}.{role}"] = f"{why}, with {len(result['steps'])} steps done" if late else why
            unfinished += [f"{name}.{role}"] if late else []
    asked = sum(map(len, examples.roles.values()))
    return {
        "schema": SCHEMA, "summary": {"roles": asked, **summary(runs)}, "unexecuted": missing, "unfinished": unfinished,
        "runs": runs,
    }  # fmt: skip


def executed_all(outcome: Mapping[str, Any]) -> bool:
    """Whether roles were executed, or there are none, and none was left for want of time."""
    asked = outcome["summary"]["roles"]
    return not outcome["unfinished"] and (not asked or outcome["summary"]["steps"] > 0)


def _for_hardware(path: Path, accelerator: str, folder: Path) -> Path:
    """The plan with its pools on nodes of `accelerator`, as a file of `folder`."""
    plan = json.loads(path.read_text(encoding="utf-8"))
    for pool in plan["inputs"]["cluster"]["pools"]:
        pool["gpu"] = accelerator
    for model in plan["inputs"]["models"].values():
        if "config" in model:
            model["config"] = str((path.parent / model["config"]).resolve())
    moved = folder / path.name
    write_text_atomic(moved, json.dumps(plan))
    return moved


def _kept(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in ("pricer", "device", "cut", "steps", "faults")}


def _lines(run: Mapping[str, Any]) -> Iterator[str]:
    """A line a step: predicted and measured time, and memory."""
    for step in run["steps"]:
        error, memory = step["error"], step["memory_error"]
        told = "no claim" if error is None else f"predicted {step['predicted_s']:.4g} s, off by {error:+.1%}"
        more = "" if memory is None else f", memory off by {memory:+.1%}"
        yield f"{run['plan']} {run['role']} {step['step']}: measured {step['measured_s']:.4g} s, {told}{more}"
    for fault in run["faults"]:
        yield f"{run['plan']} {run['role']}: {fault['what']}"


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Errors of step times and of memory over all steps with a claim, beside their limits."""
    steps = [step for run in runs for step in run["steps"]]
    times = [abs(step["error"]) for step in steps if step["error"] is not None]
    memory = [abs(step["memory_error"]) for step in steps if step["memory_error"] is not None]
    return {
        "steps": len(steps),
        "claimed": len(times),
        "median_error": median(times) if times else None,
        "worst_error": max(times, default=None),
        "median_memory_error": median(memory) if memory else None,
        "worst_memory_error": max(memory, default=None),
        "limits": ERROR_LIMITS,
        "faults": sum(len(run["faults"]) for run in runs),
    }
