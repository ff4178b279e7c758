"""Why a plan is not another one that somebody names: what that would lose, or the rule that forbids it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.alternatives.axes import Wish, read_wishes, roles_by_name, stated_wishes, wished
from planner.api import solve, with_options
from planner.documents.units import figure
from planner.errors import Infeasible, PlannerError, Stopped
from planner.explain.facts import Fact
from planner.kinds.registry import find_kind
from planner.plan.schema import Certificate, Decision, Envelope
from planner.problem.recorded import INPUTS, recorded_problem, tables_at_hand
from planner.problem.resolve import Resolved, resolve
from planner.progress import Limits

FLAG = "--why-not"
_CENT = 0.01  # of a US dollar: no difference between two days
MODES = {
    "colocated": "colocated",
    "prefill": "disaggregated",
    "decode": "disaggregated",
    "attention": "attention-ffn",
}
"""The mode of a serving plan that has roles of a function."""


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

    Raises PlannerError for unknown axes, for values that the kind refuses, and for a plan whose problem is not at hand.
    """
    problem = recorded_problem(envelope.inputs)
    if problem is None:
        raise PlannerError("the problem in the plan is not valid", where="inputs", hint="run `planner check` on it")
    wishes = read_wishes([text], problem, FLAG, roles_by_name(decision.roles))
    tables = tables_at_hand(envelope.digests.profiles, profiles)
    problem = problem.model_copy(update={"costs": problem.costs.model_copy(update={"profiles": tables})})
    resolved = replace(resolve(problem, INPUTS, base=base), confidence=envelope.certificate.confidence)
    changed = wished(resolved, wishes, f"{FLAG} {text}")
    best = solve(resolved, Limits(tell=tell), level="static")
    answer = _answer(changed, best, wishes, tell)
    yield replace(answer, what=answer.what + _simulated(envelope.certificate, best.certificate))


def _simulated(own: Certificate, best: Certificate) -> str:
    """What a plan that was chosen in simulation has, where that is not the best by formulas; else nothing."""
    stated, formulas = own.objective.value, best.objective.value
    if "verified" not in own.proof or stated is None or formulas is None:
        return ""
    if abs(stated - formulas) <= own.tolerance * abs(formulas):
        return ""
    kept = f"while this plan keeps its limits in simulation at {figure(own.objective.metric, stated)}"
    return f"; both by formulas alone, {kept}"


def _answer(changed: Resolved, best: Envelope, wishes: Sequence[Wish], tell: Callable[[str], None]) -> Fact:
    texts, about = ", ".join(stated_wishes(wishes)), tuple(wish.axis for wish in wishes)
    try:
        return _loss(best, _solved(changed, wishes, tell), f"the best plan with {texts}", about)
    except Infeasible as answer:
        rule = _rule(changed) or ", ".join(entry["limit"] for entry in answer.conflict) or "its limits"
        nearest = ", ".join(entry["nearest"] for entry in answer.conflict if entry["nearest"])
        what = f"{'no plan' if answer.proved else 'no plan was found'} with {texts}: {rule}"
        return Fact("alternative", f"{what}{f'; nearest: {nearest}' if nearest else ''}", about, rule)
    except Stopped:
        return Fact("alternative", f"a limit of the solve came before the best plan with {texts}", about)
    except PlannerError as error:
        return Fact("alternative", f"no plan with {texts}: {error.what}", about, error.what)


def _solved(changed: Resolved, wishes: Sequence[Wish], tell: Callable[[str], None]) -> Envelope:
    """The best plan of the problem with these values, in which the roles that they are of do something.

    Raises Infeasible or PlannerError where there is none.
    """
    there = solve(changed, Limits(tell=tell), level="static")
    wanted = {wish.path[1]: MODES[wish.path[1]] for wish in wishes if wish.path[0] == "roles"}
    functions = {role.function for role in there.roles}
    missing = {role: mode for role, mode in wanted.items() if role not in functions}
    if not missing:
        return there
    stated: Any = changed.problem.options.get("modes") or dict.fromkeys(MODES.values())
    able = [mode for mode in stated if mode in missing.values()]
    if not able or len(set(missing.values())) > 1:
        raise PlannerError(f"no mode of the problem has roles `{'`, `'.join(missing)}`")
    options = {**changed.problem.options, "modes": able}
    return solve(with_options(changed, options), Limits(tell=tell), level="static")


def _rule(changed: Resolved) -> str:
    """The rules that forbid everything with these values; empty where something can run, or the kind does not say."""
    return ", ".join(find_kind(changed.problem.kind).rules_against(changed))


def _loss(best: Envelope, there: Envelope, named: str, about: tuple[str, ...]) -> Fact:
    ours, theirs = best.certificate.objective, there.certificate.objective
    figures = {}
    within = there.certificate.within
    what = f"{named}{'' if within is None else f', among {within.among}'}: {figure(theirs.metric, theirs.value)}"
    if ours.value and theirs.value is not None:
        worse = ours.value - theirs.value if ours.sense == "maximize" else theirs.value - ours.value
        loss = worse / abs(ours.value)
        figures = {"loss": loss, theirs.metric: theirs.value}
        judged = _judged(loss, best.certificate)
        among = "of all" if best.certificate.within is None else f"among {best.certificate.within.among}"
        what += f" for {figure(ours.metric, ours.value)} of the best {among}: {judged}"
    told = _by_job(best, there) if best.kind == "fleet" else shapes_of(there)
    return Fact("alternative", f"{what}; {told}", about, figures=figures)


def _by_job(best: Envelope, there: Envelope) -> str:
    """What every job of a day is worth more or less, or nothing that counts."""
    own, other = _usd_of_jobs(best), _usd_of_jobs(there)
    parts = [f"`{job}` {other[job] - own[job]:+.4g} USD" for job in own if abs(other[job] - own[job]) > _CENT]
    return ", ".join(parts) or "every job is worth the same"


def _usd_of_jobs(plan: Envelope) -> dict[str, float]:
    """What every job of a day is worth."""
    days: Any = plan.decision["days"]
    return {row["job"]: row["usd"] for row in days}


def shapes_of(plan: Envelope) -> str:
    """What a plan is, in a line: its first roles, or the options of the stages of a workflow."""
    if plan.kind == "workflow":
        stages: Any = plan.decision["stages"]
        return ", ".join(map(_chosen, stages))
    return ", ".join(f"{role.replicas} x {role.name} {role.parallelism.text or '1 GPU'}" for role in plan.roles[:4])


def _chosen(stage: Mapping[str, Any]) -> str:
    """`search 2 x fast`."""
    servers = f"{stage['servers']} x " if stage.get("servers") else ""
    return f"{stage['stage']} {servers}{stage['option']}"


def _judged(loss: float, best: Certificate) -> str:
    if abs(loss) <= best.tolerance:
        return "as good"
    if loss < 0.0 and best.within is not None:
        return f"{-100 * loss:.2f} % better by the costs alone"
    if loss < 0.0:
        return f"{-100 * loss:.2f} % better, with values that the problem's own axes leave out"
    return f"{100 * loss:.2f} % worse"
