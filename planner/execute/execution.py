"""Runs the shards of a plan on this machine's devices, and compares measured steps with their predictions.

With as many devices as a replica of a role has, the role runs whole; with fewer, one rank of each distinct job runs
alone, in turn and at full size, without the collectives that need the others.
"""

import importlib.util
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from planner.costs.rates.pricer import Pricer
from planner.documents.files import read_text
from planner.errors import PlannerError, extra_hint
from planner.execute.judge.judging import judge
from planner.execute.judge.pricing import plan_pricer, plan_trained_shards
from planner.execute.judge.trained import TrainedShards
from planner.execute.judge.verdict import Execution, Measured, StepVerdict
from planner.execute.ranks.launch import JobOutcome, Rendezvous, TimeLimits, run_local, run_torchrun
from planner.execute.shards.cases import OPTIMIZER, TRAIN, Cut, StepCase, left_out, role_steps
from planner.execute.shards.faults import FaultKind, RankFault, first_cause
from planner.execute.shards.spec import RankSpec, RoleSpec, distinct_ranks, role_spec
from planner.plan.reader import read_plan
from planner.plan.records import PlanDocument
from planner.plan.store import plan_digest

ENTRY = "planner.execute.ranks.runner:run_rank"


@dataclass(frozen=True, slots=True)
class ExecutionOptions:
    """How a plan's shards are run, and what they are compared with."""

    roles: tuple[str, ...] = ()  # all that can be executed
    device: str = ""  # `cpu` or `cuda`; that of the machine
    num_processes: int = 0  # on this machine; one a device
    tolerance: float = 0.15
    cut: Cut = field(default_factory=Cut)
    limits: TimeLimits = field(default_factory=TimeLimits)
    profiles: tuple[str, ...] = ()
    calibration: str | None = None
    step_budget_s: float = 2.0  # of repeats of one step
    meeting: Rendezvous | None = None  # under torchrun, over nodes


def execute_plan(path: str | Path, options: ExecutionOptions | None = None) -> Execution:
    """Runs the roles of the plan in the file `path`.

    Raises PlannerError without torch, for a plan none of whose roles can be executed, and for devices that are not
    there. What happens to ranks is a fault of the result.
    """
    options = _at_hand(options or ExecutionOptions())
    if str(path) == "-":
        raise PlannerError("ranks cannot read a plan from standard input", hint="write it to a file first")
    text = read_text(path)
    plan = read_plan(path)
    started = time.monotonic()
    roles, unexecuted = _executable(plan, options)
    steps: list[StepVerdict] = []
    faults: list[RankFault] = []
    device: dict[str, Any] = {}
    for ready in roles:
        for job, ranks in _jobs(ready.spec, options):
            left_s = options.limits.total_s - (time.monotonic() - started)
            if any(fault.kind in (FaultKind.HANG, FaultKind.TIME_LIMIT) for fault in faults) or left_s <= 0:
                unexecuted[ready.spec.name] = "the run had ended before"
                break
            outcome, logs = _run(job, plan, ready.spec, options, replace(options.limits, total_s=left_s))
            faults += _explaining_fault(outcome, logs, ready.spec, ranks[0].rank if job["alone"] else None)
            for rank in ranks:
                result = outcome.results.get(0 if job["alone"] else rank.rank, {})
                device.update(result.get("device", {}))
                steps += [_judged(ready, rank, data, options.cut) for data in result.get("steps", ())]
    return Execution(
        plan=plan_digest(text),
        pricer=", ".join(dict.fromkeys(ready.pricer.name for ready in roles)),
        tolerance=options.tolerance,
        device=device,
        steps=tuple(steps),
        faults=tuple(faults),
        unexecuted=unexecuted,
        cut={key: value for key, value in asdict(options.cut).items() if value},
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
    )


def _at_hand(options: ExecutionOptions) -> ExecutionOptions:
    """The options with device and number of processes filled in."""
    if importlib.util.find_spec("torch") is None:
        raise PlannerError("torch is not installed", hint=extra_hint("gpu"))
    devices = num_gpus()
    device = options.device or ("cuda" if devices else "cpu")
    if device not in ("cpu", "cuda"):
        raise PlannerError(f"unknown device `{device}`", where="--device", hint="use `cpu` or `cuda`")
    if device == "cuda" and not devices:
        raise PlannerError("there is no CUDA device on this machine", where="--device", hint="use `--device cpu`")
    most = devices if device == "cuda" else os.cpu_count() or 1
    asked = options.num_processes if options.meeting is None else options.meeting.ranks_per_node
    wanted = asked or (devices if device == "cuda" else 1)
    if device == "cuda" and wanted > most:
        raise PlannerError(f"{wanted} ranks on {most} devices", where="--nproc", hint=f"use `--nproc {most}` or fewer")
    return replace(options, device=device, num_processes=wanted)


def num_gpus() -> int:
    """CUDA devices of this machine that the process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = len([path for path in Path("/dev").glob("nvidia[0-9]*") if path.name.removeprefix("nvidia").isdigit()])
    return count if visible is None else min(count, len([name for name in visible.split(",") if name.strip()]))


@dataclass(frozen=True, slots=True)
class _ReadyRole:
    """A role with the steps that its ranks run, and what prices them."""

    spec: RoleSpec
    cases: list[StepCase]
    pricer: Pricer
    trained: TrainedShards | None  # prices its training steps


def _executable(plan: PlanDocument, options: ExecutionOptions) -> tuple[list[_ReadyRole], dict[str, str]]:
    """The roles to run, and why others, and some steps, are not; roles that were asked for by name must run."""
    problems: list[PlannerError] = []
    ready: list[_ReadyRole] = []
    unexecuted: dict[str, str] = {}
    for name in options.roles or tuple(role.name for role in plan.roles):
        try:
            ready.append(_ready(plan, name, options))
            unexecuted |= left_out(plan.role(name))
        except PlannerError as error:
            if options.roles:
                raise
            problems.append(error)
            unexecuted[name] = error.what
    if not ready:
        raise problems[0]
    return ready, unexecuted


def _ready(plan: PlanDocument, name: str, options: ExecutionOptions) -> _ReadyRole:
    """One role; PlannerError for one that cannot be run, and for values that a plan of its kind cannot have."""
    try:
        cases = role_steps(plan, plan.role(name), options.cut)
        least = min(case.tokens for case in cases if case.kind != OPTIMIZER)
        if least < 1:
            raise ValueError(f"a step of {least} tokens")
        role = role_spec(plan, name)
        _require_met(role, options.meeting)
        known = plan, plan.role(name), role.arch
        pricer = plan_pricer(*known, profiles=options.profiles, calibration=options.calibration)
        trains = any(case.kind == TRAIN for case in cases)
        trained = (
            plan_trained_shards(*known, profiles=options.profiles, calibration=options.calibration) if trains else None
        )
        return _ReadyRole(role, cases, pricer, trained)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise PlannerError(
            f"role `{name}` cannot be read: {type(error).__name__}, {error}",
            where=plan.source,
            hint="run `planner check PLAN`, which names what is wrong",
        ) from None


def _require_met(role: RoleSpec, meeting: Rendezvous | None) -> None:
    """Under torchrun a role runs whole or not at all."""
    if meeting is not None and meeting.num_ranks != role.num_ranks:
        raise PlannerError(
            f"role `{role.name}` has {role.num_ranks} ranks in a replica, torchrun starts {meeting.num_ranks}",
            where="--nnodes, --nproc-per-node",
            hint="start as many ranks, or give other `--roles`",
        )


def _jobs(role: RoleSpec, options: ExecutionOptions) -> Iterator[tuple[dict[str, Any], list[RankSpec]]]:
    """What to start, and the ranks to judge by it: the whole role together, or each distinct rank alone."""
    meeting, distinct = options.meeting, distinct_ranks(role)
    if meeting is not None or options.num_processes >= role.num_ranks:
        local = set(meeting.local_ranks) if meeting is not None else set(range(role.num_ranks))
        yield {"alone": False}, [rank for rank in distinct if rank.rank in local]
        return
    for rank in distinct:
        yield {"alone": True, "rank": rank.rank}, [rank]


def _run(
    job: Mapping[str, Any], plan: PlanDocument, role: RoleSpec, options: ExecutionOptions, limits: TimeLimits
) -> tuple[JobOutcome, Path | None]:
    """Runs one job in a folder of its own, which stays when something went wrong."""
    folder = Path(tempfile.mkdtemp(prefix="planner-execute-"))
    whole = {
        "entry": ENTRY,
        "plan": str(Path(plan.source).resolve()),
        "role": role.name,
        "device": options.device,
        "cut": asdict(options.cut),
        "step_budget_s": options.step_budget_s,
        **job,
    }
    if options.meeting is not None:
        outcome = run_torchrun(whole, options.meeting, folder, limits)
    else:
        outcome = run_local(whole, 1 if job["alone"] else role.num_ranks, folder, limits)
    if outcome.faults:
        return outcome, folder
    shutil.rmtree(folder, ignore_errors=True)
    return outcome, None


def _explaining_fault(outcome: JobOutcome, logs: Path | None, role: RoleSpec, alone: int | None) -> Iterator[RankFault]:
    """The fault that explains the others; `alone` is the rank that ran as the only process."""
    cause = first_cause(outcome.faults)
    if cause is not None:
        rank = cause.rank if alone is None else alone
        yield replace(cause, rank=rank, role=role.name, what=f"{cause.what} (logs in {logs})")


def _judged(ready: _ReadyRole, rank: RankSpec, data: Mapping[str, Any], cut: Cut) -> StepVerdict:
    """One step that a rank wrote down, against its prediction."""
    measured = Measured.from_json(data)
    case = next((case for case in ready.cases if case.kind == measured.step), None)
    return judge(ready.spec, cut.of_rank(rank), case, measured, ready.pricer, cut, ready.trained)
