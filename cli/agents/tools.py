"""What agents call: the functions of the library on plain data, with errors as one text each.

A tool returns the document that the verb of the same name prints with `--json`. No secret of an artifact is in any of
them, nor in the errors.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from planner.errors import Infeasible, PlannerError
from planner.importing.secrets import hidden

Document = dict[str, Any]


def error_text(error: PlannerError) -> str:
    """An error in one text, without secrets."""
    return hidden(str(error))


def solve(problem: Mapping[str, Any], level: str = "static") -> Document:
    """The best plan of a problem, or the limits in conflict; the level `verified` simulates, `static` is fast."""
    from planner.api import solve as solved

    try:
        plan = solved(dict(problem), level=level if problem.get("kind") == "serve" else None)
    except Infeasible as answer:
        return {"schema": "planner.infeasible/1", "proved": answer.proved, "conflict": answer.conflict}
    return plan.model_dump(mode="json", by_alias=True, exclude_none=True)


def audit(
    files: list[str] | None = None,
    text: str | None = None,
    workload: str | None = None,
    slo: str | None = None,
    cluster: str | None = None,
    model: str | None = None,
    variables: Mapping[str, str] | None = None,
    fields: Mapping[str, str] | None = None,
) -> Document:
    """What contradicts itself in artifacts (paths, or one text), what they do under a load, and what to change."""
    from planner.audit.audit import audit as audited
    from planner.importing.plans.question import Question

    question = Question.of(workload, slo, cluster, model)
    with _Artifacts(files, text) as paths:
        document = audited(paths.names, dict(variables or {}), dict(fields or {}), question).document()
        return paths.called(document)


def read(
    files: list[str] | None = None, text: str | None = None, variables: Mapping[str, str] | None = None
) -> Document:
    """What artifacts decide, and what they leave open."""
    from planner.importing.files import read_files

    with _Artifacts(files, text) as paths:
        return paths.called({"schema": "planner.import/1"} | read_files(paths.names, dict(variables or {})).summary())


def estimate(requests: list[Mapping[str, Any]]) -> Document:
    """Predicted times, throughput and memory of given deployments, as `planner estimate` takes them."""
    from planner.estimate import estimate_jsonl

    rows = estimate_jsonl([json.dumps(request) for request in requests], percentiles=True)
    return {"schema": "planner.estimates/1", "rows": [json.loads(row) for row in rows]}


def explain(plan: Mapping[str, Any], field: str | None = None) -> Document:
    """Why a plan, or a field of it, is what it is."""
    from planner.cli.render.explanation import explanation_document
    from planner.explain import explain_plan

    envelope, decision = _plan(plan)
    return dict(explanation_document(envelope, explain_plan(envelope, decision, field)))


def emit(plan: Mapping[str, Any], target: str) -> Document:
    """The files that launch a plan, by name."""
    from planner.emit.registry import emit as emitted

    envelope, decision = _plan(plan)
    return {"schema": "planner.files/1", "files": emitted(envelope, decision, target)}


def _plan(plan: Mapping[str, Any]) -> Any:  # noqa: ANN401 - an envelope and the decision of its kind
    from planner.load.problems import load_plan

    with TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps(plan), encoding="utf-8")
        return load_plan(file)


class _Artifacts:
    """The paths of artifacts; a text is a file while it is read, and called `artifact` in what is said of it."""

    def __init__(self, files: list[str] | None, text: str | None) -> None:
        if (files is None) == (text is None):
            raise PlannerError("needs either `files` or `text`", hint="give the paths of the artifacts, or one text")
        self.names, self._text = list(files or ()), text
        self._folder: TemporaryDirectory[str] | None = None

    def __enter__(self) -> "_Artifacts":
        if self._text is not None:
            self._folder = TemporaryDirectory()
            file = Path(self._folder.name) / "artifact"
            file.write_text(self._text, encoding="utf-8")
            self.names = [str(file)]
        return self

    def __exit__(self, *failure: object) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def called(self, document: Mapping[str, Any]) -> Document:
        """The document with the name that the caller knows."""
        if self._folder is None:
            return dict(document)
        named: Document = json.loads(json.dumps(document).replace(f"{self._folder.name}/", ""))
        return named
