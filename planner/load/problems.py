"""Loads problem files: parse, override, validate, and resolve models and hardware by name."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.documents.read import Document
from planner.documents.user_catalog import require_catalog
from planner.errors import PlannerError
from planner.interchange.formats import problem_document
from planner.load.overrides import Overridden, OverriddenWhere, apply_overrides
from planner.problem.schema import Problem, WorkloadSpec
from planner.schema.base import Path as Keys
from planner.schema.base import Spec, Where
from planner.schema.keys import short_names, validated, written_names

if TYPE_CHECKING:
    from planner.kinds.registry import Kind
    from planner.plan.schema import Decision, Envelope
    from planner.problem.resolve import Resolved


def load_problem(
    path: str | Path,
    *,
    overrides: Sequence[str] = (),
    profiles: Sequence[str] = (),
    seed: int | None = None,
) -> "Resolved":
    """The problem in a file (`-` is standard input), validated and with every name looked up.

    The file is a YAML or JSON problem, or one of the formats of `planner.interchange`.

    `overrides` are `path=value` texts; `profiles` and `seed` replace those of the file when given. Paths in the file
    are relative to its folder, `profiles` to the working directory. Raises PlannerError with file, line and hint.
    """
    base = Path() if str(path) == "-" else Path(path).parent
    return resolve_document(problem_document(path), base, overrides=overrides, profiles=profiles, seed=seed)


def resolve_document(
    document: Document,
    base: Path,
    *,
    overrides: Sequence[str] = (),
    profiles: Sequence[str] = (),
    seed: int | None = None,
) -> "Resolved":
    """`load_problem` of a document already read, whose paths are relative to `base`."""
    return _blaming_overrides(
        lambda texts: _resolved(document, base, texts, profiles=profiles, seed=seed, recorded=False), overrides
    )


def resolve_recorded(document: Document, *, profiles: Sequence[str] = ()) -> "Resolved":
    """The problem that a plan carries; fields of it that nobody reads are for `check` to name.

    Raises PlannerError as `load_problem` does.
    """
    return _resolved(document, Path(), (), profiles=profiles, seed=None, recorded=True)


def _blaming_overrides(load: "Callable[[Sequence[str]], Resolved]", overrides: Sequence[str]) -> "Resolved":
    """What `load` makes of the overrides; an error that goes away without one of them names it, whatever its place."""
    try:
        return load(overrides)
    except PlannerError as error:
        if error.where.startswith("--set"):
            raise
        for index, text in enumerate(overrides):
            try:
                load([*overrides[:index], *overrides[index + 1 :]])
            except PlannerError:
                continue
            place = f"--set {text.partition('=')[0].strip()}"
            raise type(error)(error.what, where=f"{place}: {error.where}".removesuffix(": "), hint=error.hint) from None
        raise


def _resolved(
    document: Document,
    base: Path,
    overrides: Sequence[str],
    *,
    profiles: Sequence[str],
    seed: int | None,
    recorded: bool,
) -> "Resolved":
    from planner.kinds.registry import find_kind
    from planner.problem.reads import refuse_unread
    from planner.problem.resolve import resolve

    require_catalog()
    overridden = override_problem(document, overrides)
    origins = {**overridden.origins, **flag_origins(profiles, seed)}
    where = OverriddenWhere(document, Overridden(overridden.data, origins), short_names(Problem))
    if not isinstance(overridden.data, dict):
        raise PlannerError(
            "a problem is a mapping of keys to values",
            where=where(()),
            hint="start it with `schema: planner.problem/1`",
        )
    problem = validated(Problem, overridden.data, where)
    kind = find_kind(problem.kind, where=where(("kind",)))
    if not kind.stated:
        _require_named(problem, kind, where)
    if not problem.cluster.pools and kind.reads.pools(problem):
        if "cluster" in problem.model_fields_set:
            raise PlannerError("needs at least 1 entry", where=where(("cluster", "pools")), hint="give at least 1 pool")
        raise PlannerError("`cluster` is missing", where=where(()), hint="add `cluster:` with a pool at least")
    validated(kind.options, problem.options, lambda path: where(("options", *path)))
    stated = kind.stated and not problem.models
    if list(profiles) == ["none"] and (stated or not kind.reads.reads("costs.profiles")):
        profiles = ()  # what plans of the kind do anyway
    if kind.solvable and not recorded:
        refuse_unread(kind.reads, _flagged(problem, profiles, seed), where)
    rooted = _rooted(problem, kind.options, base, profiles, seed)
    return resolve(_with_tables(rooted) if kind.tables_unasked and not recorded else rooted, where, base=base)


def _require_named(problem: Problem, kind: "Kind", where: Where) -> None:
    """Refuses a problem without models or GPUs, of a kind that prices them."""
    from planner.hardware.unspecified import UNSPECIFIED

    if not problem.models and kind.reads.reads("models.*.name") and kind.reads.models(problem):
        raise PlannerError("`models` is missing", where=where(()), hint="add `models:`")
    for index, pool in enumerate(problem.cluster.pools):
        if pool.gpu == UNSPECIFIED:
            place = where(("cluster", "pools", index, "gpu"))
            hint = "name one of `planner hardware list`"
            raise PlannerError(
                f"plans of kind `{kind.name}` price GPUs, and this pool names none", where=place, hint=hint
            )


def load_plan(path: str | Path) -> "tuple[Envelope, Decision]":
    """The plan in a JSON file (`-` is standard input): its envelope, and its decision by the schema of its kind.

    Raises PlannerError, with file, line and hint, for what is no plan, no longer whole, or not valid.
    """
    from planner.kinds.registry import find_kind, kind_names
    from planner.plan.reader import load_plan_document
    from planner.plan.schema import Envelope

    require_catalog()
    document = load_plan_document(path)
    place = Where(lambda: document.lines, document.source)
    envelope = validated(Envelope, document.data, place)
    known = envelope.kind in kind_names()
    kind = find_kind(envelope.kind, where="kind" if known else place(("kind",)))
    return envelope, validated(kind.decision, envelope.decision, lambda path: place(("decision", *path)))


def override_problem(document: Document, overrides: Sequence[str]) -> Overridden:
    """The document with `overrides` applied; fields of a workload may be named without `workloads.0`."""
    only_workload = set(written_names(WorkloadSpec)) - set(written_names(Problem))
    return apply_overrides(document, overrides, each_workload=only_workload, short_names=short_names(Problem))


def flag_origins(profiles: Sequence[str], seed: int | None) -> dict[Keys, str]:
    """The flags with a field of the problem of their own that are given, by its path."""
    flags: dict[Keys, str] = {("costs", "profiles"): "--profiles or PLANNER_PROFILES"} if profiles else {}
    return flags | ({("seed",): "--seed or PLANNER_SEED"} if seed is not None else {})


def _flagged(problem: Problem, profiles: Sequence[str], seed: int | None) -> Problem:
    """The problem with flags in place of its own values."""
    costs = problem.costs.model_copy(update={"profiles": tuple(profiles)}) if profiles else problem.costs
    flagged: dict[str, object] = {"costs": costs} if profiles else {}
    return problem.model_copy(update=flagged | ({"seed": seed} if seed is not None else {}))


def _rooted(problem: Problem, options: type[Spec], base: Path, profiles: Sequence[str], seed: int | None) -> Problem:
    """The problem with the paths of its file joined to the folder of the file, and flags in place of its own values."""
    costs = problem.costs
    paths = tuple(profiles) or tuple(path if path == "none" else str(base / path) for path in costs.profiles)
    calibration = costs.calibration if costs.calibration in ("default", "none") else str(base / costs.calibration)
    return problem.model_copy(
        update={
            "options": options.located(problem.options, base),
            "costs": costs.model_copy(update={"profiles": paths, "calibration": calibration}),
            "current": str(base / problem.current) if problem.current is not None else None,
            "seed": problem.seed if seed is None else seed,
        }
    )


def _with_tables(problem: Problem) -> Problem:
    """The problem with the kernel tables of the machine, where it names none."""
    from planner.costs.rates.pricer import serving_tables

    if problem.costs.profiles:
        return problem
    return problem.model_copy(update={"costs": problem.costs.model_copy(update={"profiles": serving_tables(())})})
