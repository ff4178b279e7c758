"""States a training plan again from its problem and its own decision: every figure by the code that writes plans."""

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.job import TrainJob, jobs_of
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.plan.certificate import (
    ILLEGAL,
    METHOD,
    TOLERANCE,
    among_of,
    bounds_of,
    claim_of,
    gap_of,
    in_metric,
    objective,
    searched_axes,
)
from planner.kinds.train.plan.decode import envelope as plan_of
from planner.kinds.train.proof.reprice import priced_again
from planner.kinds.train.search.layerwise import MIXES_RULE
from planner.kinds.train.space.space import space_of
from planner.kinds.train.whole_run.at_scale import with_checkpoints
from planner.kinds.train.whole_run.lengths import with_lengths
from planner.kinds.train.whole_run.on_racks import with_racks
from planner.kinds.train.whole_run.ramp import with_ramp
from planner.kinds.train.whole_run.unlike import with_unlike
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import Certificate, Envelope, Preferred
from planner.problem.recorded import AtHand, resolved_again

COUNTS = LeftOut(
    "certificate.pruned", "counts of the search and floors of its groups, and the next best plan that it came by"
)
AXES = LeftOut("certificate.axes", "the axes of a search over several pools, or places of networks")


def restate(envelope: Envelope, decision: TrainDecision, hand: AtHand) -> Restated:
    """The plan of this decision under the costs at hand.

    Raises NotAtHand where an input is missing, PlannerError for a decision that the problem cannot have.
    """
    jobs = jobs_of(resolved_again(envelope.inputs, TrainOptions, hand, envelope.digests.profiles))
    best = priced_again(jobs, decision)
    if isinstance(best, str):
        raise PlannerError(best, where="decision")
    proven, left_out = _certificate(envelope.certificate, jobs, best)
    made = with_ramp(with_lengths(plan_of(jobs[0], best, proven), best), best)
    made = with_unlike(made, best, decision)
    chosen = {} if decision.checkpointing is None else {"checkpointing": decision.checkpointing}
    chosen_again = TrainDecision.model_validate(made.decision).model_copy(update=chosen)
    made = with_racks(with_checkpoints(made, chosen_again), best)
    asked = {**made.decision, "overlap": list(jobs[0].options.overlap)}
    return Restated(made.model_copy(update={"decision": asked}), left_out)


def _certificate(
    stated: Certificate, jobs: tuple[TrainJob, ...], best: Evaluation
) -> tuple[Certificate, tuple[LeftOut, ...]]:
    """What follows from the decision and the stated bound; counts of the search and the next best plan are left."""
    job = jobs[0]
    if not stated.proof:
        return unproven(objective(job, in_metric(job, best.objective))), ()
    value = in_metric(job, best.objective)
    closed = stated.bound is not None and gap_of(value, stated.bound) <= TOLERANCE
    within = stated.within and _again(stated.within, best)
    update: dict[str, object] = {
        "claim": claim_of(closed, within),
        "status": "optimal" if closed else "feasible",
        "within": within,
        "objective": objective(job, value),
        "tolerance": TOLERANCE,
    }
    proof: dict[str, JsonValue] = {**stated.proof, "method": METHOD, "least_bound_left": stated.bound}
    layerwise = job.options.search.layerwise
    one_search = len(jobs) == 1 and job.options.search.modules == ("colocated",)
    if one_search:
        space = space_of(job)
        update["axes"] = searched_axes(job, space.axes) | ({"strategies_by_layer": [MIXES_RULE]} if layerwise else {})
        proof["legal"] = space.legal
        counted = {name: count for name, count in stated.pruned.items() if not name.startswith(ILLEGAL)}
        update["pruned"] = {**counted, **{f"{ILLEGAL}{name}": count for name, count in space.illegal.items()}}
    proof["bounds"] = bounds_of(job, mixed=bool(layerwise))
    return stated.model_copy(update={**update, "proof": proof}), (COUNTS,) if one_search else (COUNTS, AXES)


def _again(stated: Preferred, best: Evaluation) -> Preferred:
    """What follows from the decision and the stated bound of the part of the space that the plan was preferred in."""
    job = best.choice.table.job
    value = in_metric(job, best.objective)
    closed = stated.bound is not None and gap_of(value, stated.bound) <= TOLERANCE
    return stated.model_copy(
        update={
            "claim": claim_of(closed),
            "status": "optimal" if closed else "feasible",
            "objective": objective(job, value),
            "tolerance": TOLERANCE,
            "among": among_of(best),
        }
    )
