"""`solve`, `load_plan`, `estimate_cases` and `sweep_axes` as functions of data; plans come back as objects."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.library.plans import Plan
from planner.progress import Limits

if TYPE_CHECKING:
    from planner.library.sweeps import Sweep
    from planner.problem.resolve import Resolved


def solve(
    problem: "str | Path | Mapping[str, Any] | Resolved",
    limits: Limits | None = None,
    *,
    overrides: Sequence[str] = (),
    profiles: Sequence[str] = (),
    level: str | None = None,
) -> Plan:
    """The best plan for a problem, as `planner.api.solve` finds it."""
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


def estimate_cases(
    cases: Iterable[Mapping[str, Any]], *, profiles: Sequence[str] = (), percentiles: bool = False
) -> list[dict[str, Any]]:
    """A prediction, or an `error`, for every case in order; cases are those of `planner estimate` as mappings."""
    from planner.documents.read import plain_json
    from planner.estimate import estimate_jsonl

    lines = (json.dumps(case, default=plain_json) for case in cases)
    return [json.loads(line) for line in estimate_jsonl(lines, profiles=tuple(profiles), percentiles=percentiles)]


def sweep_axes(
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
