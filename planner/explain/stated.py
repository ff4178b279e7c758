"""Facts that any plan states: limits and memory nearly used up, time by operator, next best plans, evidence."""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from planner.costs.rates.evidence import UNMEASURED
from planner.costs.training.config import USABLE_SHARE
from planner.documents.units import figure, format_si, significant
from planner.explain.facts import NEAR, TIGHT, Fact
from planner.plan.limited import limited_predictions
from planner.plan.schema import Certificate, Decision, Envelope, Expected, LimitMargins, Prediction, Role
from planner.problem.confidence import BY_ESTIMATE

_SHOWN_PARTS = 5  # of a step: the largest, the rest together


def limit_facts(envelope: Envelope) -> Iterator[Fact]:
    """How much of each limit on time is used up, by workload."""
    for workload, prediction, limit_s in limited_predictions(envelope):
        yield _used_limit(workload, prediction, limit_s, envelope.evidence.margins_of(workload))


def held_text(limit_s: float, held_to_s: float, margins: LimitMargins | None) -> str:
    """A limit on a time, what it is held to, and for which confidence."""
    if margins is None:
        return format_si(limit_s, "s")
    held = "" if held_to_s == limit_s else f", held to {format_si(held_to_s, 's')}"
    return f"{format_si(limit_s, 's')}{held} to be kept with {margins.confidence:.0%}"


def _used_limit(workload: str, prediction: Prediction, limit_s: float, margins: LimitMargins | None) -> Fact:
    """What a prediction uses of its limit, as the search compared the two."""
    held_to_s = limit_s if margins is None else limit_s / margins.of_time(prediction.metric)
    share = prediction.value / held_to_s
    name = prediction.metric.removesuffix("_s")
    state = "used up" if share >= TIGHT else "nearly used up" if share >= NEAR else f"{100 * share:.0f} % used"
    what = f"{prediction.statistic} {name} of `{workload}` {format_si(prediction.value, 's')}"
    what += f" of {held_text(limit_s, held_to_s, margins)}: {state}"
    figures = {"value_s": prediction.value, "limit_s": limit_s, "held_to_s": held_to_s}
    return Fact("binding" if share >= NEAR else "limit", what, (workload, name), figures=figures)


def memory_facts(decision: Decision) -> Iterator[Fact]:
    """What fills the fullest device of each role."""
    for role in decision.roles:
        if role.memory is not None:
            yield _memory(role)


def _memory(role: Role) -> Fact:
    memory = role.memory
    assert memory is not None
    parts = {
        name.removesuffix("_bytes"): float(value)
        for name, value in memory.model_dump().items()
        if name != "capacity_bytes" and value
    }
    used, capacity = memory.used_bytes, memory.capacity_bytes
    text = ", ".join(f"{name.replace('_', ' ')} {format_si(value, 'B')}" for name, value in parts.items())
    what = f"memory of `{role.name}` {format_si(used, 'B')} of {format_si(capacity, 'B')} a GPU"
    what += f" ({100 * used / capacity:.1f} %): {text}" if capacity else f": {text}"
    figures = {**{f"{name}_bytes": value for name, value in parts.items()}, "capacity_bytes": capacity}
    return Fact("binding" if used >= NEAR * capacity else "memory", what, (role.name, "memory"), figures=figures)


def time_facts(envelope: Envelope, decision: Decision) -> Iterator[Fact]:
    """The step that dominates each role, by operator, with what its time rests on."""
    steps = envelope.evidence.steps or {}
    for role in decision.roles:
        step = steps.get(role.name)
        if step is None or not step.seconds:
            continue
        parts = sorted(step.seconds.items(), key=lambda row: -row[1])
        total = sum(step.seconds.values())
        shown = [f"{name.replace('_', ' ')} {format_si(value, 's')}" for name, value in parts[:_SHOWN_PARTS]]
        rest = sum(value for _, value in parts[_SHOWN_PARTS:])
        shown += [f"other {format_si(rest, 's')}"] if rest else []
        basis = ", ".join(f"{name} {significant(100 * share)} %" for name, share in step.basis.items() if share)
        what = (
            f"a step of `{role.name}` {format_si(total, 's')} = {' + '.join(shown)}{f'   ({basis})' if basis else ''}"
        )
        yield Fact("time", what, (role.name, "step"), figures=dict(step.seconds))


def other_plans(envelope: Envelope) -> Iterator[dict[str, JsonValue]]:
    """The records of the next best plans evaluated: a kind states one of them, or several."""
    others = envelope.certificate.next_best
    yield from (other for other in (others if isinstance(others, list) else [others]) if isinstance(other, dict))


def next_best_facts(envelope: Envelope) -> Iterator[Fact]:
    """What the best plans of another make that were evaluated lose."""
    for other in other_plans(envelope):
        value, loss, name = other.get("objective"), other.get("loss"), other.get("plan", "another plan")
        metric = envelope.certificate.objective.metric
        if isinstance(value, (int, float)) and isinstance(loss, (int, float)):
            what, passed = f"{name}: {figure(metric, value)}{beside_text(metric, other)}", passed_text(other)
            what = f"{passed_title(envelope) if passed else 'next best evaluated'}, {what}, {loss_text(loss)}{passed}"
            yield Fact("alternative", what, ("objective",), figures={metric: float(value), "loss": float(loss)})
        else:
            yield Fact("alternative", f"no plan at all: {name}", ("objective",))


def passed_title(envelope: Envelope) -> str:
    """What a plan is that was passed for another."""
    return f"{'faster' if envelope.kind == 'train' else 'better'} by the costs alone"


def loss_text(loss: float) -> str:
    """Such as `1.7 % worse`."""
    return f"{100 * abs(loss):.1f} % {'better' if loss < 0.0 else 'worse'}"


def beside_text(metric: str, other: Mapping[str, JsonValue]) -> str:
    """What formulas make of the best plan of the same forms, where what they make of another stands beside that."""
    beside = other.get("beside")
    if not isinstance(beside, int | float):
        return ""
    return f" by formulas, by which the best of this one's forms has {figure(metric, beside)}"


def passed_text(other: Mapping[str, JsonValue]) -> str:
    """Why a plan that is better by the costs was not taken, and what takes it; empty of any other plan."""
    far, filled = other.get("no_measurement_near"), other.get("memory_filled")
    if isinstance(far, list):
        why, takes = f"{UNMEASURED}: {', '.join(map(str, far))}", "choice: fastest"
    elif isinstance(filled, float):
        why, takes = f"{100.0 * filled:.0f} % of memory full", f"memory_utilisation: {USABLE_SHARE:g}"
    else:
        return ""
    return f"; {why}; `options.{takes}` takes it"


def unmeasured_notes(envelope: Envelope) -> Iterator[str]:
    """What of the plan no run is like, so that its times are from first principles alone."""
    yield from (note for note in envelope.evidence.notes if note.startswith(UNMEASURED))


def compared_facts(envelope: Envelope) -> Iterator[Fact]:
    """The plans that were weighed with what is decided beside a layout, best first."""
    rows = envelope.certificate.proof.get("compared")
    told = [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    for row in sorted(told, key=lambda row: (row["step_time_with_s"] is None, row["step_time_with_s"])):
        own_s, with_s = row["step_time_s"], row["step_time_with_s"]
        if isinstance(own_s, float):
            end = f"{format_si(with_s, 's')} with it" if isinstance(with_s, float) else "which cannot have it"
            what = f"weighed with what is decided beside layouts, {row['plan']}: a step {format_si(own_s, 's')}, {end}"
            yield Fact("alternative", what, ("objective",), figures={"step_time_s": own_s})


def objective_facts(envelope: Envelope) -> Iterator[Fact]:
    """The objective, its bound, and what is claimed."""
    certificate = envelope.certificate
    objective = certificate.objective
    bound = f", bound {figure(objective.metric, certificate.bound)}" if certificate.bound is not None else ""
    gap = f", gap {certificate.gap_text}" if certificate.gap is not None else ""
    what = f"{objective.sense} {objective.metric}: {figure(objective.metric, objective.value)}{bound}{gap}"
    figures = {"value": objective.value, "bound": certificate.bound, "gap": certificate.gap}
    stated = {name: value for name, value in figures.items() if value is not None}
    why = f": {certificate.gap_reason}" if certificate.gap_reason else ""
    yield Fact("evidence", f"{what}; {certificate.status}{why}", ("objective",), figures=stated)
    if certificate.within is not None:
        what = f"{certificate.within_text}, whose bound is {figure(objective.metric, certificate.within.bound)}"
        yield Fact("evidence", what, ("objective",))
    yield Fact("evidence", f"claim: {certificate.claim}", ("objective",))
    if certificate.confidence is not None:
        chosen = {"confidence": float(certificate.confidence)}
        chosen |= {} if certificate.expected is None else {"expected": float(certificate.expected.value)}
        about = ("objective", "confidence", "expected")
        yield Fact("evidence", confidence_text(certificate, certificate.confidence), about, figures=chosen)


def confidence_text(certificate: Certificate, confidence: float) -> str:
    """How sure limits are kept of which the problem does not say, and what other confidences leave."""
    if certificate.expected is not None:
        return _expected_text(certificate, confidence, certificate.expected)
    metric = certificate.objective.metric
    plans = {each.confidence: each for each in certificate.confidences}
    none = " or ".join(f"{at:.0%}" for at, each in plans.items() if each.objective is None)
    without = f"; no plan was found with {none}" if none else ""
    if confidence == BY_ESTIMATE:
        others = [f"{figure(metric, each.objective)} with {at:.0%}" for at, each in plans.items() if each.objective]
        instead = f", of which more is expected than of {', '.join(others)}" if others else ""
        return f"limits are kept by the estimate alone{instead}{without}"
    beside, by_estimate = "", plans.get(BY_ESTIMATE)
    if by_estimate is not None and by_estimate.objective is not None:
        judge = "simulation" if by_estimate.simulated else "formulas"
        beside = f"; {figure(metric, by_estimate.objective)} by {judge} and the estimate alone"
    return f"each limit is kept with {confidence:.0%}, as the problem states no `slo.confidence`{beside}{without}"


def _expected_text(certificate: Certificate, confidence: float, expected: Expected) -> str:
    """What is expected where a limit that breaks leaves nothing, and at which confidence; the same at others."""
    metric = certificate.objective.metric
    others = [
        f"{each.confidence:.0%} {'none' if each.objective is None else significant(each.confidence * each.objective)}"
        for each in certificate.confidences
        if each.confidence != confidence
    ]
    what = (
        f"expected: limits are kept with {confidence:.0%} at least, which leaves "
        f"{figure(metric, expected.value)} by formulas"
    )
    if expected.bound is not None:
        what += f", of at most {figure(metric, expected.bound)} at any confidence"
    return f"{what}; at {', '.join(others)}" if others else what


def evidence_facts(envelope: Envelope) -> Iterator[Fact]:
    """What the costs rest on."""
    shares = {str(name): share for name, share in envelope.evidence.basis.items() if share}
    if shares:
        text = ", ".join(f"{name} {significant(100 * share)} %" for name, share in shares.items())
        yield Fact("evidence", f"costs rest on: {text}", ("evidence",), figures=dict(shares))
    yield from (Fact("evidence", f"note: {note}", ("evidence",)) for note in envelope.evidence.notes)
