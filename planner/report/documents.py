"""Which page a document gets: a plan, results of a sweep, a line, a simulation, or findings of a check."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.documents.read import load_document
from planner.errors import PlannerError
from planner.load.problems import load_plan
from planner.plan.schema import Envelope
from planner.plan.store import checks_path, plan_digest
from planner.report.checks import check_page
from planner.report.latencies import Limits, limits_of, simulated_sections, simulation_page
from planner.report.lines import line_page
from planner.report.page import Page, Section, html
from planner.report.plans import plan_page
from planner.report.sweeps import sweep_page

_HINT = "give a plan, or the JSON that `planner sweep`, `planner simulate --json` or `planner check --json` wrote"
SIMULATION = "planner.simulation/1"


def report(path: str, *others: str) -> str:
    """The page of the document at a path, with sections of others below those of its own.

    What `planner check --level simulate` kept beside a plan is taken for one of them. Raises PlannerError for a file
    that is missing, no JSON, or of another make.
    """
    page = _page(path)
    added = [section for other in others for section in _sections(other, path)]
    return html(replace(page, sections=[*page.sections, *added]) if added else page)


def _page(path: str) -> Page:
    document, schema, name = _read(path)
    if schema.startswith("planner.plan/"):
        envelope, decision = load_plan(path)
        return plan_page(envelope, decision, Path(path), list(_simulated(path, envelope)))
    if schema.startswith(("planner.sweep_results/", "planner.sweep-results/")):
        return sweep_page(document, name)
    if schema.startswith("planner.checks"):
        return check_page(document, name)
    if schema.startswith("planner.parametric/"):
        return line_page(document, name)
    if schema == SIMULATION:
        return simulation_page(document, name)
    what = f"has the schema `{schema}`" if schema else "has no `schema` of planner"
    raise PlannerError(f"{what}: there is no page for it", where=path, hint=_HINT)


def _sections(path: str, first: str) -> Iterator[Section]:
    """What another document adds to the page of the first; raises PlannerError for a second plan."""
    document, schema, _ = _read(path)
    if schema.startswith("planner.plan/"):
        hint = "name the plan first; `planner diff` tells two of them apart"
        raise PlannerError("a page is of one plan", where=path, hint=hint)
    if schema == SIMULATION:
        yield from simulated_sections(document, _limits_of(first))
        return
    yield from _page(path).sections


def _read(path: str) -> tuple[Any, str, str]:
    document: Any = load_document(path).data
    return document, str(document.get("schema", "")) if isinstance(document, dict) else "", Path(path).name


def _simulated(path: str, envelope: Envelope) -> Iterator[Section]:
    """Latencies of the simulation that was kept beside the plan, where it is of this plan."""
    kept = checks_path(path)
    if path == "-" or not kept.exists():
        return
    document: Any = load_document(str(kept)).data
    levels = document.get("levels") if isinstance(document, dict) else None
    entry = levels.get("simulate") if isinstance(levels, dict) else None
    result = entry.get("result") if isinstance(entry, dict) else None
    if isinstance(result, dict) and document.get("plan") == plan_digest(Path(path).read_text(encoding="utf-8")):
        yield from simulated_sections(result, limits_of(envelope))


def _limits_of(path: str) -> Limits:
    schema = _read(path)[1]
    return limits_of(load_plan(path)[0]) if schema.startswith("planner.plan/") else {}
