"""`solve` for every plan kind: a problem from a file, as data or already resolved goes in, a plan comes out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.errors import PlannerError, require_known
from planner.progress import Limits

if TYPE_CHECKING:
    from pydantic import JsonValue

    from planner.kinds.registry import Kind
    from planner.plan.schema import Envelope
    from planner.problem.reads import Reads
    from planner.problem.resolve import Resolved


def solve(
    problem: "str | Path | Mapping[str, Any] | Resolved",
    limits: Limits | None = None,
    *,
    overrides: Sequence[str] = (),
    profiles: Sequence[str] = (),
    level: str | None = None,
) -> "Envelope":
    """The best plan for `problem`, with its certificate.

    `problem` is the path of a YAML or JSON file (`-` is standard input), the same as a mapping (whose paths are
    relative to the working directory), or what `load_problem` returned. `overrides` are `path=value` texts as of
    `planner solve --set`, `profiles` paths of kernel tables; neither goes with a problem already resolved. `level` says
    what judges plans where the problem does not: `static`, formulas alone, or one that the kind knows besides; absent,
    serving plans are verified by simulation where they can be.

    Raises planner.Infeasible when no plan meets all limits, planner.Stopped when a limit of the solve came first, and
    planner.PlannerError for a problem that is not valid, or of a kind whose plans are read but not made.
    """
    from planner.kinds.registry import find_kind, kind_names

    resolved = _resolved(problem, overrides, profiles)
    kind = find_kind(resolved.problem.kind, where=resolved.where(("kind",)))
    if not kind.solvable:
        solved = ", ".join(f"`{name}`" for name in kind_names() if find_kind(name).solvable)
        raise PlannerError(
            f"plans of kind `{kind.name}` can be checked but not solved",
            where=resolved.where(("kind",)),
            hint=f"the kinds that can be solved are {solved}",
        )
    if level is not None and all(resolved.problem.options.get(name) is None for name in _options_of(level, kind)):
        resolved = at_level(resolved, level)
    return kind.solve(*_limited(resolved, limits if limits is not None else Limits(), kind.reads))


def at_level(resolved: "Resolved", level: str) -> "Resolved":
    """The problem with the options of a level in place of its own.

    Raises PlannerError for an unknown level, and for one that does not judge what the problem asks for.
    """
    from planner.kinds.registry import find_kind

    kind = find_kind(resolved.problem.kind)
    return with_options(resolved, {**resolved.problem.options, **_options_of(level, kind)})


def with_options(resolved: "Resolved", options: "Mapping[str, JsonValue]") -> "Resolved":
    """The problem with these options in place of its own; raises PlannerError for those that its kind refuses."""
    from pydantic import ValidationError

    from planner.kinds.registry import find_kind
    from planner.schema.base import planner_error

    kind = find_kind(resolved.problem.kind)
    try:
        kind.options.model_validate(options)
    except ValidationError as error:
        raise planner_error(error, lambda path: resolved.where(("options", *path))) from None
    return replace(resolved, problem=resolved.problem.model_copy(update={"options": dict(options)}))


def _options_of(level: str, kind: "Kind") -> Mapping[str, str]:
    """The options that a level stands for: none of `static` where formulas are all that judges plans of the kind."""
    if not kind.levels and level == "static":
        return {}
    if not kind.levels:
        raise PlannerError(
            f"plans of kind `{kind.name}` are judged by formulas alone", where="--level", hint="leave the level out"
        )
    require_known("level", level, kind.levels, listing="levels are", where="--level")
    return kind.levels[level]


def _limited(resolved: "Resolved", limits: Limits, reads: "Reads") -> "tuple[Resolved, Limits]":
    """The problem with the seed of the limits, and the limits; raises PlannerError for those without effect."""
    from planner.problem.reads import FLAGS, refuse_unread_limits
    from planner.solvers.backends.solve import BACKENDS

    if limits.backend is not None:
        require_known("backend", limits.backend, BACKENDS, listing="the backends are", where=FLAGS["backend"])
    refuse_unread_limits(reads, resolved.problem, limits)
    if limits.seed is None:
        return resolved, replace(limits, seed=resolved.problem.seed)
    return replace(resolved, problem=resolved.problem.model_copy(update={"seed": limits.seed})), limits


def _resolved(
    problem: "str | Path | Mapping[str, Any] | Resolved", overrides: Sequence[str], profiles: Sequence[str]
) -> "Resolved":
    from planner.documents.read import given_document
    from planner.load.problems import load_problem, resolve_document

    if isinstance(problem, (str, Path)):
        return load_problem(problem, overrides=overrides, profiles=profiles)
    if isinstance(problem, Mapping):
        document = given_document(dict(problem), "problem")
        return resolve_document(document, Path(), overrides=overrides, profiles=profiles)
    if overrides or profiles:
        raise PlannerError(
            "a problem already resolved takes neither overrides nor profiles", hint="give them to `load_problem`"
        )
    return problem
