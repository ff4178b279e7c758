"""Renders what was proven of a plan: in a line with what else there is, or in full."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.cli.render.columns import wrapped
from planner.documents.units import figure, significant

if TYPE_CHECKING:
    from planner.plan.schema import Decision, Envelope


def render_proof(envelope: "Envelope", decision: "Decision") -> list[str]:
    """The objective and its bound, what the next best plans evaluated lose, what no run is like, what costs rest on."""
    from planner.explain.stated import unmeasured_notes

    lines = [wrapped(_objective(envelope)), *(wrapped(line) for line in _confidence(envelope))]
    lines += [wrapped(line) for line in next_best_lines(envelope)]
    lines += [wrapped(line) for line in quality_lines(envelope, decision)]
    lines += [wrapped(note) for note in unmeasured_notes(envelope)]
    more = "`--verbose` has the claim, the space, notes and assumptions"
    return [*lines, wrapped(f"{_basis(envelope)}; {more}")]


def proof_lines(envelope: "Envelope", decision: "Decision") -> list[str]:
    """The objective, the claim, the space with what was pruned, next best plans, evidence and assumptions."""
    certificate = envelope.certificate
    lines = [_objective(envelope), *_confidence(envelope), f"claim: {certificate.claim}"]
    if certificate.candidates:
        lines.append(f"space: {certificate.candidates} candidates")
        lines += [f"  pruned {count} by {name}" for name, count in certificate.pruned.items() if count]
    lines += [*next_best_lines(envelope), *quality_lines(envelope, decision), _basis(envelope)]
    lines += [f"note: {note}" for note in envelope.evidence.notes]
    lines += [f"assumes: {assumption}" for assumption in envelope.assumptions]
    return [wrapped(line.lstrip(), indent=2 + len(line) - len(line.lstrip())) for line in lines]


def _objective(envelope: "Envelope") -> str:
    certificate = envelope.certificate
    objective = certificate.objective
    bound = f", bound {figure(objective.metric, certificate.bound)}" if certificate.bound is not None else ""
    return f"{objective.sense} {objective.metric}: {figure(objective.metric, objective.value)}{bound}"


def _confidence(envelope: "Envelope") -> Iterator[str]:
    """How sure limits are kept of which the problem does not say."""
    from planner.explain.stated import confidence_text

    if envelope.certificate.confidence is not None:
        yield confidence_text(envelope.certificate, envelope.certificate.confidence)


def _basis(envelope: "Envelope") -> str:
    basis = {name: share for name, share in envelope.evidence.basis.items() if share}
    if not basis:
        return "costs rest on what the plan states"
    return f"costs rest on: {', '.join(f'{name} {significant(100 * share)} %' for name, share in basis.items())}"


def next_best_lines(envelope: "Envelope") -> Iterator[str]:
    """How much worse the best plans of other forms are that were evaluated."""
    from planner.explain.stated import beside_text, loss_text, other_plans, passed_text, passed_title

    metric = envelope.certificate.objective.metric
    for other in other_plans(envelope):
        value, loss, plan = other.get("objective"), other.get("loss"), other.get("plan", "another plan")
        if isinstance(value, (int, float)) and isinstance(loss, (int, float)):
            what, passed = f"{plan}: {figure(metric, value)}{beside_text(metric, other)}", passed_text(other)
            title = passed_title(envelope) if passed else "next best evaluated"
            yield f"{title}: {what} ({loss_text(loss)}){passed}"


def quality_lines(envelope: "Envelope", decision: "Decision") -> Iterator[str]:
    """What the plan does not judge of the number formats that it runs in."""
    from planner.explain.formats import format_facts

    yield from (fact.what for fact in format_facts(envelope, decision))
