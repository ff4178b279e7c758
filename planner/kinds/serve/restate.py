"""States a serving plan again from its problem and its own decision.

The candidates of the search are priced again, the decision is read as a mix of them, and the plan of that mix is made
by the code that makes plans. What needs a search (the frontier, the next best plans) or a simulation is left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.kinds.serve.cached.again import beside_memory_again, bought_again, memory_findings
from planner.kinds.serve.choice import forms_among, passed_in, restricted, with_part
from planner.kinds.serve.options import ServeDecision, ServeOptions
from planner.kinds.serve.plan.certificate import METHOD, TOLERANCE, axes_of, certificate, objective
from planner.kinds.serve.plan.context import beyond_predictions
from planner.kinds.serve.plan.decode import envelope, steady_plan, whole_predictions
from planner.kinds.serve.proof.stated import shape_of
from planner.kinds.serve.proof.taken import Rates, mix_of, rates_of, searched_row, taken_roles
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import Target, relaxed
from planner.kinds.serve.steady.formulate import Formulated, formulate
from planner.kinds.serve.steady.points import Tally
from planner.kinds.serve.steady.search import Outcome, ServeSetting, list_candidates, prepare
from planner.kinds.serve.verified.neighbours import Axes
from planner.kinds.serve.verified.verifiable import estimated_again
from planner.plan.findings import Finding
from planner.plan.instance_types import name_of_role
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import Certificate, Envelope, Prediction, Proven
from planner.plan.sides import ffn_roles
from planner.problem.recorded import AtHand, NotAtHand, resolved_again
from planner.solvers.dualtree import DualTree
from planner.solvers.mix import MixObjective, MixSolution
from planner.solvers.mix_model import build
from planner.solvers.mix_solve import MixCertificate, reduce, used_shapes
from planner.solvers.result import SolveResult, Status
from planner.solvers.stochastic.routed_queues import Routing

NEXT_BEST = LeftOut("certificate.next_best", "what plans of another make lose")
EXPECTED = LeftOut("certificate.expected", "what is expected at other confidences")
CONFIDENCES = LeftOut("certificate.confidences", "what plans at other confidences are worth")
FRONTIER = LeftOut("decision.frontier", "the other points of the trade-off")
SIMULATED = LeftOut(
    "predictions", "times and shares that were simulated", hint="`planner check --level simulate`", proven=False
)
ANY_LIMIT = 1e3  # times the limits of a problem: all shapes that can run keep them
SOLVERS = ("ortools-gscip", "ortools-highs", "ortools-cp-sat", "pulp-cbc")


def restate(stated: Envelope, decision: ServeDecision, hand: AtHand) -> Restated:
    """The plan of this decision under the costs at hand.

    A plan with roles in the memory that a search leaves free is one of a search without a reserve; one that proves
    nothing may be of what runs, and break its limits.
    Raises NotAtHand for inputs and kernel tables that are missing, PlannerError for roles that the problem cannot have.
    """
    try:
        return _priced(stated, decision, hand, reserving=bool(stated.certificate.proof))
    except NotAtHand:
        raise
    except PlannerError:
        if stated.certificate.proof:
            return _priced(stated, decision, hand, reserving=False)
    return _priced(stated, decision, hand, reserving=False, limited=False)


def prove(envelope: Envelope, decision: ServeDecision, hand: AtHand) -> Iterator[Finding]:
    """What the search for memory said, searched again; what simulations said of other placements is not judged.

    Trees of duals are, at every level.
    """
    yield from memory_findings(envelope, hand)
    if envelope.certificate.proof.get("method") == "optimistic_simulation":
        what = "not judged: what simulations said of other placements"
        yield Finding("certificate.proof", True, what, "certificate.proof", skipped=True)


def _priced(
    stated: Envelope, decision: ServeDecision, hand: AtHand, *, reserving: bool, limited: bool = True
) -> Restated:
    digests, confidence = stated.digests, stated.certificate.confidence
    resolved = resolved_again(stated.inputs, ServeOptions, hand, digests.profiles, confidence)
    setting = prepare(bought_again(resolved, decision), reserving=reserving, spread_gpus=stated.evidence.spread_gpus)
    under = _proposed_under(stated, setting) if limited else relaxed(setting.targets, ANY_LIMIT)
    tally = Tally()
    candidates = list_candidates(setting, under, tally)
    if "verified" in stated.certificate.proof or not limited:
        candidates = [
            _routed(candidate, decision) for candidate in (*candidates, *_varied(setting, candidates, decision))
        ]
    if not set(stated.digests.profiles) <= setting.profile_digests:
        raise NotAtHand(
            "its kernel tables are not at hand", where="digests.profiles", hint="name them: `--profiles PATH`"
        )
    outcome = _outcome(setting, formulate(setting.resolved, setting.targets, candidates), tally, stated, decision)
    if _is_simulated(stated):
        return _simulated(stated, setting, outcome)
    left = [*([NEXT_BEST] if stated.certificate.proof else []), *([FRONTIER] if decision.frontier else [])]
    return Restated(_steady(stated, setting, outcome, decision), (*left, *_of_confidences(stated)))


def _of_confidences(stated: Envelope) -> Iterator[LeftOut]:
    """What is said of searches at other confidences."""
    if stated.certificate.expected is not None:
        yield EXPECTED
    if stated.certificate.confidences:
        yield CONFIDENCES


def _proposed_under(stated: Envelope, setting: ServeSetting) -> tuple[Target, ...]:
    """The limits under which the types of a plan were proposed: those of the problem, or relaxed."""
    verified = stated.certificate.proof.get("verified")
    factor = verified.get("limits_relaxed") if isinstance(verified, dict) else None
    return relaxed(setting.targets, float(factor)) if isinstance(factor, int | float) else setting.targets


def _varied(setting: ServeSetting, candidates: Sequence[Candidate], decision: ServeDecision) -> Iterator[Candidate]:
    """Types of a verified plan that its search did not propose: at another batch or chunk, or of fewer together."""
    axes, partners = Axes(setting), ffn_roles(decision)
    pools = [pool.name for pool in setting.resolved.pools]
    for role in decision.roles:
        name = name_of_role(role, partners.get(role.name))
        proposed = (each for each in candidates if each.name.partition("#")[0] == name)
        if role.function == "ffn" or any(each.together <= role.replicas for each in proposed):
            continue
        asked = role.function, role.model, role.pool, shape_of(role), int(role.limits.get("draft_tokens", 0))
        for each in list_candidates(setting, relaxed(setting.targets, ANY_LIMIT), Tally()):
            own = each.function, each.model, pools[each.pool], each.shape, each.draft_tokens
            if own == asked and each.together == 1 and each.ffn is None:
                batch, chunk = (int(role.limits.get(limit, 0)) for limit in ("max_batch", "chunk_tokens"))
                varied = axes.at(each, batch, chunk)
                yield from (() if varied is None else (varied,))


def _routed(candidate: Candidate, decision: ServeDecision) -> Candidate:
    """The type behind routers of the plan's policy, in engines that take requests in its order."""
    ordered = replace(candidate, queueing=decision.queueing or "fcfs", elastic=bool(decision.elastic))
    return ordered if decision.router_policy is None else replace(ordered, routing=Routing(decision.router_policy))


def _is_simulated(stated: Envelope) -> bool:
    """Whether times and rates of the plan are those of a simulation, by its certificate."""
    proof = stated.certificate.proof
    return "verified" in proof or proof.get("method") == "optimistic_simulation"


def _outcome(
    setting: ServeSetting, formulated: Formulated, tally: Tally, stated: Envelope, decision: ServeDecision
) -> Outcome:
    """The search as if it had come to this decision."""
    taken, roles = taken_roles(setting, formulated, stated, decision)
    reduced, _, _ = reduce(formulated.problem, keep={searched_row(taken, own.row) for own in roles})
    _, columns = build(reduced)
    values = stated.certificate.proof.get("values")
    rates = rates_of(reduced, columns, values) if isinstance(values, list) else None
    if _is_simulated(stated):
        rates = _claimed(stated, setting)
    solution = mix_of(setting, taken, roles, decision, rates)
    result = SolveResult(
        Status.FEASIBLE, stated.certificate.stop_reason, solution, _worth(taken, solution), None, 0.0, _solver(stated)
    )
    return Outcome(taken, taken.problem, result, tally)


def _claimed(stated: Envelope, setting: ServeSetting) -> Rates:
    """The rate of each workload that a simulated plan claims."""
    claimed = {p.of: p.value for p in stated.predictions if p.metric == "requests_per_s"}
    return tuple(claimed.get(target.name, 0.0) for target in setting.targets)


def _worth(formulated: Formulated, solution: MixSolution) -> float:
    """The objective of the mix, before its factor."""
    if formulated.problem.objective is MixObjective.DEVICES:
        return float(solution.devices)
    if formulated.problem.objective is MixObjective.PRICE:
        return solution.price_per_hour
    shares = [demand.share for demand in formulated.problem.demands]
    return sum(solution.served_per_s) / sum(shares)


def _solver(stated: Envelope) -> str:
    """The solver that the plan names, if it is one: which one it was no figure tells."""
    name, _, version = stated.software.solver.partition(" ")
    known = name in SOLVERS and version.replace(".", "").isdigit()
    unsolved = name == "" and not stated.certificate.proof
    return stated.software.solver if known or unsolved else " or ".join(SOLVERS)


def _steady(stated: Envelope, setting: ServeSetting, outcome: Outcome, decision: ServeDecision) -> Envelope:
    """The plan as steady state judges it, with the proof that it states for the model built again."""
    proof = stated.certificate.proof
    if proof.get("method") != METHOD:
        proven = _priced_anew(outcome)
    else:
        proven = _of_all(stated.certificate, setting, outcome)
        proven = beside_memory_again(proven, stated.certificate)
    chosen = {"expected": stated.certificate.expected, "confidences": stated.certificate.confidences}
    proven = proven.model_copy(update=chosen)
    return estimated_again(steady_plan(setting, outcome, proven, decision.frontier), setting, stated.certificate)


def _of_all(stated: Certificate, setting: ServeSetting, outcome: Outcome) -> Certificate:
    """What is proven of all plans, and of those of measured forms where a better one of others was passed."""
    proven, passed = _proven_again(stated, setting, outcome), passed_in(stated)
    if passed is None:
        return proven
    part = stated.within
    forms = forms_among(part.among if part else "", setting.calibration.forms)
    own = part and _proven_again(part, replace(setting, forms=forms), restricted(outcome, forms))
    return with_part(proven, own, passed, forms)


def _proven_again(stated: Proven, setting: ServeSetting, outcome: Outcome) -> Certificate:
    """The certificate of a mix, with the stated proof for its model built again."""
    tree = stated.proof.get("tree")
    model, columns = build(reduce(outcome.formulated.problem, keep=used_shapes(outcome.solution))[0])
    made = MixCertificate(model, DualTree.from_dict(tree if isinstance(tree, dict) else {}), columns.objective_unit)
    own = replace(outcome, result=replace(outcome.result, stop_reason=stated.stop_reason))
    return certificate(setting, own, made, _listed(stated.next_best))


def _listed(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list) else ()


def _priced_anew(outcome: Outcome) -> Certificate:
    value = outcome.objective
    assert value is not None
    return unproven(objective(outcome, value))


def _simulated(stated: Envelope, setting: ServeSetting, outcome: Outcome) -> Restated:
    """What of a simulated plan no simulation says."""
    value, certified = outcome.objective, stated.certificate
    assert value is not None
    proven = certified.model_copy(
        update={
            "objective": objective(outcome, value),
            "tolerance": TOLERANCE,
            "axes": axes_of(setting),
            "candidates": outcome.tally.evaluated,
        }
    )
    rates = outcome.solution.served_per_s
    tokens = sum(rate * target.osl for rate, target in zip(rates, setting.targets, strict=True))
    derived = (
        *whole_predictions(setting, outcome.solution, sum(rates), tokens),
        *beyond_predictions(setting, outcome),
    )
    whole = {(p.metric, p.of): p for p in derived}
    again: list[Prediction] = [whole.get((p.metric, p.of), p) for p in stated.predictions]
    made = envelope(setting, outcome, proven, tuple(again), stated.assumptions)
    return Restated(made, (SIMULATED, *_of_confidences(stated)))
