"""Why a plan is not another one that somebody names: what that would lose, or the rule that forbids it."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from planner.alternatives.axes import Wish, read_wishes, roles_by_name, stated_wishes, with_wishes
from planner.api import solve, with_options
from planner.documents.units import figure
from planner.errors import Infeasible, PlannerError, Stopped
from planner.explain.facts import Fact
from planner.kinds.registry import find_kind
from planner.plan.schema import Decision, Envelope
from planner.problem.recorded import INPUTS, recorded_problem, tables_at_hand
from planner.problem.resolve import Resolved, resolve
from planner.progress import Limits

FLAG = "--why-not"


def why_not(
    envelope: Envelope,
    decision: Decision,
    text: str,
    *,
    profiles: Sequence[str] = (),
    base: Path = Path(),
    tell: Callable[[str], None] = lambda message: None,
) -> Iterator[Fact]:
    """What the best plan with these values loses against the best of all, both by formulas; or why there is none.

    Raises PlannerError for unknown axes, and for a plan whose problem is not at hand.
    """
    wishes = read_wishes([text], envelope.kind, FLAG, roles_by_name(decision.roles))
    problem = recorded_problem(envelope.inputs)
    if problem is None:
        raise PlannerError("the problem in the plan is not valid", where="inputs", hint="run `planner check` on it")
    tables = tables_at_hand(envelope.digests.profiles, profiles)
    problem = problem.model_copy(update={"costs": problem.costs.model_copy(update={"profiles": tables})})
    resolved = resolve(problem, INPUTS, base=base)
    best = solve(resolved, Limits(tell=tell), level="static")
    yield _answer(resolved, best, wishes, tell)


def _answer(resolved: Resolved, best: Envelope, wishes: Sequence[Wish], tell: Callable[[str], None]) -> Fact:
    named = " with ".join(["the best plan", ", ".join(stated_wishes(wishes))])
    about = tuple(wish.axis for wish in wishes)
    try:
        there = solve(
            with_options(resolved, with_wishes(resolved.problem.options, wishes)), Limits(tell=tell), level="static"
        )
    except Infeasible as answer:
        rule = _rule(resolved, wishes) or ", ".join(entry["limit"] for entry in answer.conflict) or "its limits"
        nearest = ", ".join(entry["nearest"] for entry in answer.conflict if entry["nearest"])
        start = "no plan" if answer.proved else "no plan was found"
        what = f"{start} with {', '.join(stated_wishes(wishes))}: {rule}"
        return Fact("alternative", f"{what}{f'; nearest: {nearest}' if nearest else ''}", about, rule)
    except Stopped:
        return Fact("alternative", f"a limit of the solve came before {named}", about)
    except PlannerError as error:
        return Fact("alternative", f"no plan with {', '.join(stated_wishes(wishes))}: {error.what}", about, error.what)
    return _loss(best, there, named, about)


def _rule(resolved: Resolved, wishes: Sequence[Wish]) -> str:
    """The rules that forbid everything with these values; empty where something can run, or the kind does not say."""
    changed = with_options(resolved, with_wishes(resolved.problem.options, wishes))
    return ", ".join(find_kind(resolved.problem.kind).rules_against(changed))


def _loss(best: Envelope, there: Envelope, named: str, about: tuple[str, ...]) -> Fact:
    ours, theirs = best.certificate.objective, there.certificate.objective
    figures = {}
    what = f"{named}: {figure(theirs.metric, theirs.value)}"
    if ours.value and theirs.value is not None:
        worse = ours.value - theirs.value if ours.sense == "maximize" else theirs.value - ours.value
        loss = worse / abs(ours.value)
        figures = {"loss": loss, theirs.metric: theirs.value}
        judged = _judged(loss, best.certificate.tolerance)
        what += f" for {figure(ours.metric, ours.value)} of the best of all: {judged}"
    shapes = ", ".join(_shape(role) for role in there.decision["roles"][:4])  # type: ignore[index,union-attr]  # a list of records
    return Fact("alternative", f"{what}; {shapes}", about, figures=figures)


def _judged(loss: float, tolerance: float) -> str:
    if abs(loss) <= tolerance:
        return "as good"
    if loss < 0.0:
        return f"{-100 * loss:.2f} % better, with values that the problem's own axes leave out"
    return f"{100 * loss:.2f} % worse"


def _shape(role: object) -> str:
    from planner.plan.schema import Role

    own = Role.model_validate(role)
    degrees = " ".join(f"{axis}{size}" for axis, size in own.parallelism.model_dump().items() if size > 1) or "1 GPU"
    return f"{own.replicas} x {own.name} {degrees}"
