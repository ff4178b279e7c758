"""Executes the prepared plans on the device at hand and holds their predictions, from the fresh profile, against it.

One role of a plan after the other; what is done is kept at once, so that a run that was cut short goes on after it.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from planner.documents.files import write_text_atomic
from planner.errors import PlannerError
from planner.execute.execution import ExecutionOptions, execute_plan
from planner.execute.ranks.launch import TimeLimits
from planner.execute.shards.cases import Cut

SCHEMA = "planner.gpu-executed/1"
LEAST_S = 20.0  # left of the budget, to start another role
STEP_BUDGET_S = 1.0  # of repeats of one step
ERROR_LIMITS = {"median": 0.08, "worst": 0.20, "memory": 0.03}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Examples:
    """Plans by name in `folder`, and the roles of each that are executed."""

    folder: Path
    roles: Mapping[str, Sequence[str]]


def execute_examples(
    examples: Examples, profile: Path, done: Path, *, device: str, accelerator: str, budget_s: float, cut: Cut,
    tell: Tell,
) -> dict[str, Any]:  # fmt: skip
    """Runs every role that `done` does not hold, until `budget_s` is spent, and returns the document `done` holds.

    Plans are priced as for the hardware `accelerator`, from the tables in `profile`. A role that cannot run is noted.
    """
    deadline_s = time.monotonic() + budget_s
    runs: list[dict[str, Any]] = json.loads(done.read_text(encoding="utf-8"))["runs"] if done.is_file() else []
    known = {(run["plan"], run["role"]) for run in runs}
    missing: dict[str, str] = {}
    for name, role in ((name, role) for name, roles in examples.roles.items() for role in roles):
        if (name, role) in known:
            continue
        left_s = deadline_s - time.monotonic()
        if left_s < LEAST_S:
            missing[f"{name}.{role}"] = "the time for executing was spent"
            continue
        plan = _for_hardware(examples.folder / f"{name}.json", accelerator, done.parent)
        options = ExecutionOptions(
            roles=(role,), device=device, num_processes=1, cut=cut, profiles=(str(profile),),
            limits=TimeLimits(total_s=left_s), step_budget_s=STEP_BUDGET_S,
        )  # fmt: skip
        try:
            result = execute_plan(plan, options).as_json()
        except PlannerError as error:
            missing[f"{name}.{role}"] = error.what
            continue
        runs.append({"plan": name, "role": role, **_kept(result)})
        write_text_atomic(done, json.dumps({"schema": SCHEMA, "runs": runs}))
        for line in _lines(runs[-1]):
            tell(line)
    return {"schema": SCHEMA, "summary": summary(runs), "unexecuted": missing, "runs": runs}


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
