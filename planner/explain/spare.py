"""Facts on failures: what the availability of a plan costs and which failure binds it, or which roles have no spare."""

from collections.abc import Iterator
from dataclasses import replace

from planner.documents.units import significant
from planner.explain.facts import NEAR, TIGHT, Fact
from planner.explain.mix import Mix
from planner.kinds.registry import Topic
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import recorded_problem


def spare_facts(envelope: Envelope, decision: Decision, mix: Mix | None) -> Iterator[Fact]:
    """Of a plan with an availability what it costs and what each failure leaves; of another, what stands alone."""
    problem = recorded_problem(envelope.inputs)
    if envelope.kind != "serve" or problem is None:
        return
    if problem.availability is None:
        single = [role.name for role in decision.roles if role.replicas == 1 and role.function != "ffn"]
        if single:
            names = " and ".join(f"`{name}`" for name in single)
            what = f"{names} {'stands' if len(single) == 1 else 'each stand'} on a single instance: nothing takes over"
            yield Fact(
                "alternative", f"{what} when it fails; `availability: n+1` asks for a spare", (*single, "availability")
            )
        return
    if mix is not None:
        yield from _cost(mix, problem.availability.text)
    yield from _failures(decision)


def _cost(mix: Mix, text: str) -> Iterator[Fact]:
    """The objective of the best plan of which nothing may be lost."""
    shapes = tuple(replace(shape, lost=0, spread=None) for shape in mix.problem.shapes)
    bare = mix.best(replace(mix.problem, shapes=shapes))
    if bare:
        unit, per_plan = mix.whole
        scale = mix.factor * per_plan
        relative = mix.objective / bare - 1.0
        what = f"availability {text} costs {significant(abs(mix.objective - bare) * scale)} {unit}: "
        what += f"{significant(mix.objective * scale)} in place of {significant(bare * scale)} without"
        yield Fact("worth", f"{what} ({100 * relative:+.1f} %)", ("availability",), "C8", {"relative": relative})


def _failures(decision: Decision) -> Iterator[Fact]:
    """How busy each failure leaves the rest."""
    stated = decision.model_dump(mode="json").get("availability") or {}
    for failure in stated.get("failures", ()):
        taken = " and ".join(f"{count} of `{role}`" for role, count in failure["lost"].items())
        share = failure["busy"]
        state = "used up" if share >= TIGHT else f"{100 * share:.0f} % used"
        what = f"with {taken} down, what their limits allow the rest: {state}"
        topic: Topic = "binding" if share >= NEAR else "limit"
        yield Fact(topic, what, ("availability", *failure["lost"]), "C8", {"busy": share})
