"""Renders an explanation of a plan, as text and as JSON."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from planner.cli.errors import plain
from planner.cli.render.columns import wrapped

if TYPE_CHECKING:
    from planner.explain import Explanation, Fact
    from planner.plan.schema import Envelope

SCHEMA = "planner.explanation/1"


def explanation_document(envelope: "Envelope", explanation: "Explanation") -> dict[str, Any]:
    """The explanation as JSON data, figures in SI units."""
    facts = [{**asdict(fact), "about": list(fact.about), "figures": dict(fact.figures)} for fact in explanation.facts]
    return {
        "schema": SCHEMA,
        "plan": envelope.name,
        "field": explanation.field,
        "value": explanation.value,
        "facts": facts,
    }


def render_explanation(envelope: "Envelope", explanation: "Explanation") -> str:
    """The facts by topic; of one field its value first."""
    from planner.explain.facts import HEADINGS

    name = (
        f"{explanation.field} = {explanation.value}"
        if explanation.field is not None
        else f"{envelope.name}: {envelope.kind}"
    )
    lines = [name]
    for topic, heading in HEADINGS.items():
        facts = [fact for fact in explanation.facts if fact.topic == topic]
        if facts:
            lines += [f"{heading}:", *(wrapped(_line(fact)) for fact in facts)]
    if len(lines) == 1:
        lines.append("  nothing more is known of it from this plan")
    return plain("\n".join(lines))


def render_answer(explanation: "Explanation") -> str:
    """The answer to one question: each of its facts a paragraph."""
    return plain("\n".join(wrapped(fact.what, indent=0) for fact in explanation.facts))


def _line(fact: "Fact") -> str:
    return f"{fact.what}   ({fact.rule})" if fact.rule else fact.what
