"""Puts together the explanation of a plan, or of one of its fields."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from planner.errors import PlannerError
from planner.explain.batches import batch_facts
from planner.explain.chances import chance_facts
from planner.explain.context import context_facts
from planner.explain.facts import Fact
from planner.explain.fields import Field, find_field
from planner.explain.formats import format_facts
from planner.explain.layouts import layout_facts, placement_facts
from planner.explain.meanings import meaning
from planner.explain.mix import Mix, read_mix
from planner.explain.moves import move_facts, replica_facts
from planner.explain.post_training import post_training_facts
from planner.explain.rows import row_facts, unused_shapes
from planner.explain.spare import spare_facts
from planner.explain.stated import (
    compared_facts,
    evidence_facts,
    limit_facts,
    memory_facts,
    next_best_facts,
    objective_facts,
    time_facts,
)
from planner.explain.training import training_facts
from planner.explain.worth import worth_facts
from planner.kinds.registry import find_kind
from planner.plan.schema import Decision, Envelope, Role


@dataclass(frozen=True, slots=True)
class Explanation:
    """What there is to say about a plan, or about one field of it."""

    field: str | None
    value: str
    facts: tuple[Fact, ...]

    def __str__(self) -> str:
        return "\n".join(f"{fact.topic}: {fact.what}" for fact in self.facts)

    def _repr_html_(self) -> str:
        lines = "".join(f"<li><b>{fact.topic}</b>: {escape(fact.what)}</li>" for fact in self.facts)
        return f"<ul>{lines}</ul>"


def explain_plan(
    envelope: Envelope,
    decision: Decision,
    field: str | None = None,
    *,
    deep: bool = False,
    profiles: Sequence[str] = (),
    base: Path = Path(),
    tell: Callable[[str], None] = lambda message: None,
) -> Explanation:
    """Why the plan, or its `field`, is what it is; `deep` also solves again with each limit moved by a tenth.

    `profiles` and `base` (the folder of traces) are for `deep`. Raises PlannerError for an unknown field.
    """
    wanted = None if field is None else find_field(field, envelope, decision)
    facts = list(_facts(envelope, decision, wanted))
    if deep:
        from planner.explain.deep import deep_facts

        facts += deep_facts(
            envelope, profiles=profiles, base=base, tell=tell, concerns=lambda about: _concerns(about, wanted)
        )
    facts = [fact for fact in facts if (fact.topic == "note" and not fact.about) or _concerns(fact.about, wanted)]
    says = "" if wanted is None else meaning(type(decision), wanted.path)
    meant = [Fact("meaning", says, (wanted.name,))] if wanted is not None and says else []
    return Explanation(field, "" if wanted is None else wanted.value, (*meant, *facts))


def _facts(envelope: Envelope, decision: Decision, wanted: Field | None) -> Iterator[Fact]:
    yield from objective_facts(envelope)
    yield from limit_facts(envelope)
    yield from chance_facts(envelope, decision)
    yield from memory_facts(decision)
    yield from context_facts(envelope, decision)
    for of_kind in (training_facts, post_training_facts, layout_facts, placement_facts):
        yield from of_kind(envelope, decision)
    for topic, what, about, figures in find_kind(envelope.kind).facts(envelope, decision):
        yield Fact(topic, what, about, figures=figures)
    yield from format_facts(envelope, decision)
    try:
        mix = read_mix(envelope, decision)
    except PlannerError as error:
        mix = None
        yield Fact("note", error.what)
    if mix is not None:
        yield from row_facts(mix)
        yield from worth_facts(mix)
    yield from next_best_facts(envelope)
    yield from compared_facts(envelope)
    yield from spare_facts(envelope, decision, mix)
    for reason in decision.reasons():
        yield Fact("alternative", reason, ("mode", "attention_ffn", *(role.name for role in decision.roles)))
    if mix is not None:
        yield from move_facts(mix)
        yield from _role_facts(mix, envelope, decision, wanted)
    elif envelope.certificate.status == "stated":
        yield Fact("note", "the plan was stated, not searched: nothing is known of what else could have been")
    yield from time_facts(envelope, decision)
    yield from evidence_facts(envelope)


def _role_facts(mix: Mix, envelope: Envelope, decision: Decision, wanted: Field | None) -> Iterator[Fact]:
    """What is worked out only for a role that is asked for."""
    role = _role(decision, wanted)
    if role is None or wanted is None:
        return
    yield from replica_facts(mix, role.name)
    yield from unused_shapes(mix, role.name)
    batch = role.limits.get("max_batch")
    if wanted.name.endswith("max_batch") and isinstance(batch, int):
        yield from batch_facts(envelope, role, batch)


def _role(decision: Decision, wanted: Field | None) -> Role | None:
    head = "" if wanted is None else wanted.name.partition(".")[0]
    return next((role for role in decision.roles if role.name == head), None)


def _concerns(about: Sequence[str], wanted: Field | None) -> bool:
    if wanted is None:
        return True
    return set(wanted.every) <= set(about) and (not wanted.some or bool(set(about) & set(wanted.some)))
