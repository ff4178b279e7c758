"""The verbs of the command as functions of data; plans come back as objects."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.library.plans import Plan
from planner.progress import Limits

if TYPE_CHECKING:
    from planner.audit.records import Audit
    from planner.calibrate.refitted import Calibrated
    from planner.library.sweeps import Sweep
    from planner.problem.resolve import Resolved
    from planner.simulate.plans.simulation import PlanSimulation


def solve(
    problem: "str | Path | Mapping[str, Any] | Resolved",
    limits: Limits | None = None,
    *,
    overrides: Sequence[str] = (),
    profiles: Sequence[str] = (),
    level: str | None = None,
) -> Plan:
    """The best plan for a problem, with what is proven of it.

    The problem is a path, a mapping with what a problem file says, or what `load_problem` returned. `overrides` are
    `path=value` as `--set` takes them, `profiles` kernel tables in place of the problem's. `level` of serving plans is
    `static` (limits judged by means) or `verified` (the default: by simulation). Raises PlannerError for what can be
    fixed, Infeasible where limits cannot hold together, Stopped where a limit of the solve came first.
    """
    from planner import api
    from planner.kinds.registry import find_kind

    envelope = api.solve(problem, limits, overrides=overrides, profiles=profiles, level=level)
    decision = find_kind(envelope.kind).decision.model_validate(envelope.decision)
    folder = Path(problem).parent if isinstance(problem, (str, Path)) and str(problem) != "-" else Path()
    return Plan(envelope, decision, folder, tuple(profiles))


def load_plan(path: str | Path, *, profiles: Sequence[str] = ()) -> Plan:
    """The plan in a JSON file (`-` is standard input).

    Raises PlannerError, with file, line and hint, for what is no plan, no longer whole, or not valid.
    """
    from planner.load import problems

    envelope, decision = problems.load_plan(path)
    return Plan(envelope, decision, Path() if str(path) == "-" else Path(path).parent, tuple(profiles))


def estimate(
    cases: Iterable[Mapping[str, Any]], *, profiles: Sequence[str] = (), percentiles: bool = False
) -> list[dict[str, Any]]:
    """A prediction, or an `error`, for every case in order; cases are those of `planner estimate` as mappings.

    A case is an `id`, fields of a problem, and the `decision` to price. What is wrong with one stands in its own row.
    With `percentiles`, its requests are simulated too.
    """
    from planner.documents.read import plain_json
    from planner.estimate import estimate_jsonl

    lines = (json.dumps(case, default=plain_json) for case in cases)
    return [json.loads(line) for line in estimate_jsonl(lines, profiles=tuple(profiles), percentiles=percentiles)]


def simulate(
    plan: Plan | str | Path,
    trace: str | Path | None = None,
    *,
    rate_per_s: float | None = None,
    first: int | None = None,
    warm_up: int = 0,
    seed: int = 0,
) -> "PlanSimulation":
    """A serving plan, or that in a file, on the requests of a trace, or of its own workloads where none is given.

    `rate_per_s` scales the trace, `first` takes only so many requests, `warm_up` of them are not judged. Every step of
    every engine is simulated; `summary` has the figures in SI units, `result` the times of each request. Raises
    PlannerError for plans of other kinds.
    """
    plan = plan if isinstance(plan, Plan) else load_plan(plan)
    return plan.simulate(trace, rate_per_s=rate_per_s, first=first, warm_up=warm_up, seed=seed)


def sweep(
    problem: str | Path | Mapping[str, Any],
    axes: Mapping[str, Iterable[Any]],
    limits: Limits | None = None,
    *,
    profiles: Sequence[str] = (),
    workers: int = 0,
) -> "Sweep":
    """Every combination of the values of `axes`, by field as `--set` takes it or by short name, solved.

    With `workers` 0 points are solved in this process; nothing is kept on disk. Raises PlannerError for a problem or an
    axis that is wrong; a point without a plan has its reason in its row.
    """
    from planner.library.sweeps import swept

    return swept(problem, axes, limits, profiles=profiles, workers=workers)


def calibrate(
    measured: str | Path | Sequence[str | Path],
    *,
    base: str | Path = "default",
    facts: Mapping[str, object] | None = None,
    plan: str | Path | None = None,
    date: str | None = None,
    profiles: Sequence[str] = (),
    refit: bool = True,
) -> "Calibrated":
    """How far the cost model is from measured files, and the calibration refitted on them.

    `measured` are checks of executed plans, reports of load generators, and tables of measured deployments, told apart
    by content. `facts` say what reports leave out, such as `{"tp": 8}`, or `plan` the plan that they are of; `date` is
    the day of the data where they tell none. `save(path)` writes the file that `costs.calibration` of a problem names.
    With `refit` false, reports and tables are only compared. Raises PlannerError for what cannot be read, and for too
    few rows.
    """
    from planner.calibrate.refitted import calibrated

    paths = [measured] if isinstance(measured, (str, Path)) else measured
    return calibrated(
        [str(path) for path in paths],
        str(base),
        [f"{name}={value}" for name, value in (facts or {}).items()],
        None if plan is None else str(plan),
        day=date,
        profiles=tuple(profiles),
        refits=refit,
        tell=lambda _: None,
    )


def audit(
    artifacts: str | Path | Sequence[str | Path],
    *,
    workload: str | Mapping[str, Any] | None = None,
    slo: str | Mapping[str, Any] | None = None,
    cluster: str | Mapping[str, Any] | None = None,
    model: str | None = None,
    variables: Mapping[str, object] | None = None,
    fields: Mapping[str, object] | None = None,
    calibration: str | Path | None = None,
    limits: Limits | None = None,
) -> "Audit":
    """What launch scripts, manifests and recipes contradict, do under a load, and should change.

    `workload`, `slo` and `cluster` are fields of a problem, or text as the command takes it; without them artifacts are
    judged from their text alone. `variables` are those of the environment, `fields` what the artifacts leave open.
    `blocking` says what keeps them from running, `now`, `change` and `free` what they do, with few settings changed and
    with all free, `changed` the changed files by name. Raises PlannerError for what cannot be read.
    """
    from planner.audit.audit import audit as audited
    from planner.importing.plans.question import Question

    paths = [artifacts] if isinstance(artifacts, (str, Path)) else artifacts
    asked = Question.of(workload, slo, cluster, model, None if calibration is None else str(calibration))
    given, settings = ({name: str(value) for name, value in (each or {}).items()} for each in (variables, fields))
    return audited([str(path) for path in paths], given, settings, asked, limits)
