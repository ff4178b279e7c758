"""Why a plan is what it is, and what would change it: the facts of `planner explain` that no picture shows."""

from collections.abc import Iterator

from planner.alternatives.recipes.nearest import recipe_facts
from planner.errors import PlannerError
from planner.explain import explain_plan
from planner.explain.facts import HEADINGS
from planner.kinds.registry import Topic
from planner.plan.schema import Decision, Envelope
from planner.report.marks import prose
from planner.report.page import Section

_SHOWN: tuple[Topic, ...] = ("binding", "limit", "worth", "alternative", "change")


def reasons_section(envelope: Envelope, decision: Decision) -> Iterator[Section]:
    """Nothing of a plan that cannot be explained: one whose problem is not valid."""
    try:
        facts = [*explain_plan(envelope, decision).facts, *recipe_facts(envelope, decision, priced=False)]
    except PlannerError:
        return
    parts = []
    for topic in _SHOWN:
        lines = [f"<li>{prose(fact.what)}</li>" for fact in facts if fact.topic == topic]
        if lines:
            heading = HEADINGS[topic]
            parts.append(f"<h3>{heading[:1].upper()}{heading[1:]}</h3><ul>{''.join(lines)}</ul>")
    if parts:
        note = "`planner explain` says the same of one field; `--deep` moves each limit by a tenth."
        yield Section("Why, and what would change it", "".join(parts), note)
