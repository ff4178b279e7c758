"""Checks that a plan is about its problem: catalog names, and digests of all that it was computed from."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from planner.documents.files import digest
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import INPUTS, stands_somewhere
from planner.problem.resolve import resolve_model, resolve_pool
from planner.problem.schema import Problem
from planner.schema.base import Spec, planner_error
from planner.schema.keys import known_keys

_SOLVE_AGAIN = "solve again, or restore what the plan was made for"


def problem_findings(envelope: Envelope, options: type[Spec]) -> tuple[Problem | None, list[Finding]]:
    """The problem inside the plan (None if it is none), and whether it is valid, of this kind, and the one digested."""
    problem: Problem | None = None
    what = "`inputs` is a valid problem"
    try:
        problem = Problem.model_validate(envelope.inputs)
        options.model_validate(problem.options)
        if not stands_somewhere(problem):
            what, problem = "`cluster` has no pool for the models", None
    except ValidationError as error:
        what = planner_error(error, INPUTS, known_keys(Problem, envelope.inputs)).what
        problem = None
    findings = [Finding("schema.inputs", problem is not None, what, "inputs", _SOLVE_AGAIN)]
    if problem is not None:
        same = problem.kind == envelope.kind
        what = f"a plan of kind `{envelope.kind}` for a problem of kind `{problem.kind}`"
        findings.append(Finding("schema.kind", same, what, "kind", "make the two the same"))
    right = digest(envelope.inputs) == envelope.digests.problem
    what = "the digest is that of `inputs`" if right else "`inputs` is not the problem that the plan was made for"
    return problem, [*findings, Finding("digest.problem", right, what, "digests.problem", _SOLVE_AGAIN)]


def reference_findings(decision: Decision, problem: Problem) -> Iterator[Finding]:
    """Whether every pool, model and workload that the decision names is one of the problem's."""
    pools = {spec.label for spec in problem.cluster.pools}
    workloads = {workload.name for workload in problem.workloads}
    for role in decision.roles:
        where = f"roles.{role.name}"
        unknown = [f"pool `{role.pool}`"] if role.pool not in pools else []
        if role.model is not None and role.model not in problem.models:
            unknown.append(f"model `{role.model}`")
        what = f"{unknown[0]} is not in the problem" if unknown else "pool and model are in the problem"
        yield Finding("schema.references", not unknown, what, where, "name a pool and a model of `inputs`")
    strange = sorted({route.workload for route in decision.routing} - workloads)
    what = f"workload `{strange[0]}` is not in the problem" if strange else "workloads are in the problem"
    yield Finding("schema.references", not strange, what, "routing", "name a workload of `inputs`")


def pools_of(problem: Problem) -> dict[str, Pool]:
    """The pools of the problem by name, those whose hardware the catalog knows."""
    pools: dict[str, Pool] = {}
    for index, spec in enumerate(problem.cluster.pools):
        try:
            pool = resolve_pool(spec, index, INPUTS)
        except PlannerError:
            continue
        pools[pool.name] = pool
    return pools


def hardware_findings(envelope: Envelope, problem: Problem) -> Iterator[Finding]:
    """Whether the catalog still says of every pool's hardware what it said when the plan was made."""
    from planner.hardware.library import hardware_facts

    for index, spec in enumerate(problem.cluster.pools):
        place = f"digests.hardware.{spec.label}"
        try:
            pool = resolve_pool(spec, index, INPUTS)
        except PlannerError as error:
            yield _skipped("digest.hardware", f"not judged: {error.what}", place)
            continue
        right, stated = digest(hardware_facts(pool.node)), envelope.digests.hardware.get(spec.label)
        yield _same("digest.hardware", right, stated, place, spec.gpu)


def model_findings(envelope: Envelope) -> Iterator[Finding]:
    """Whether every model is still what it was when the plan, whose problem is valid, was made.

    By the catalog, or by what the plan carries of a config.json.
    """
    from planner.models.library import model_facts

    problem = Problem.model_validate(envelope.inputs)
    for key, spec in problem.models.items():
        place = f"digests.models.{key}"
        try:
            architecture = resolve_model(problem, key, INPUTS, Path())
        except PlannerError as error:
            yield _skipped("digest.models", f"not judged: {error.what}", place)
            continue
        right, stated = digest(model_facts(architecture)), envelope.digests.models.get(key)
        source = "the catalog" if spec.name is not None else "the config.json in the plan"
        yield _same("digest.models", right, stated, place, str(spec.name or spec.config), source)


def side_file_findings(decision: Decision, base: Path | None) -> Iterator[Finding]:
    """Whether every side file lies beside the plan and is the one that the plan was made with."""
    for name, side in decision.side_files.items():
        place = f"side_files.{name}"
        if base is None:
            yield _skipped("digest.side_files", "not judged: the folder of the plan is not known", place)
            continue
        try:
            digest_there = "sha256:" + hashlib.sha256((base / side.path).read_bytes()).hexdigest()
        except (OSError, ValueError) as error:
            what = f"cannot read `{side.path}`: {getattr(error, 'strerror', None) or error}"
            yield Finding("digest.side_files", False, what, place, "put the file beside the plan")
            continue
        right = digest_there == side.digest
        what = f"`{side.path}` is {'the file' if right else 'not the file'} that the plan was made with"
        yield Finding("digest.side_files", right, what, place, "restore that file, or solve again")


def _same(rule: str, right: str, stated: str | None, place: str, name: str, source: str = "the catalog") -> Finding:
    if stated is None:
        return Finding(rule, False, f"the plan has no digest of `{name}`", place, _SOLVE_AGAIN)
    what = f"{source} says of `{name}` {'what' if right == stated else 'something else than'} it said to the plan"
    return Finding(rule, right == stated, what, place, "solve again with the catalog of this version")


def _skipped(rule: str, what: str, place: str) -> Finding:
    return Finding(rule, True, what, place, skipped=True)
