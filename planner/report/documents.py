"""Which page a document gets: a plan, results of a sweep, or findings of a check."""

from pathlib import Path
from typing import Any

from planner.documents.read import load_document
from planner.errors import PlannerError
from planner.load.problems import load_plan
from planner.report.checks import check_page
from planner.report.page import html
from planner.report.plans import plan_page
from planner.report.sweeps import sweep_page

_HINT = "give a plan, the JSON of `planner sweep -o results.json`, or that of `planner check --json`"


def report(path: str) -> str:
    """The page of the document at a path.

    Raises PlannerError for a file that is missing, no JSON, or of another make.
    """
    document: Any = load_document(path).data
    schema = str(document.get("schema", "")) if isinstance(document, dict) else ""
    name = Path(path).name
    if schema.startswith("planner.plan/"):
        return html(plan_page(*load_plan(path), name))
    if schema.startswith(("planner.sweep_results/", "planner.sweep-results/")):
        return html(sweep_page(document, name))
    if schema.startswith("planner.checks"):
        return html(check_page(document, name))
    what = f"has the schema `{schema}`" if schema else "has no `schema` of planner"
    raise PlannerError(f"{what}: there is no page for it", where=path, hint=_HINT)
