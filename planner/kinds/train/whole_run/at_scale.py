"""Checkpoint intervals of training plans where the problem states failure rates; derived again by the check."""

from collections.abc import Iterator

from planner.errors import PlannerError
from planner.kinds.train.checkpointing import Checkpointing, Reliability
from planner.kinds.train.decision import TrainDecision, TrainOptions
from planner.kinds.train.figures import agree, scaled, stated
from planner.plan.findings import Finding
from planner.plan.schema import Envelope, Prediction
from planner.problem.recorded import recorded_options, recorded_problem
from planner.reliability.effective import at_scale, best_tier
from planner.reliability.of_plan import Surroundings, job_of_plan
from planner.reliability.tiers import TIERS

NOTHING_FAILS = "nothing fails, and no checkpoint is written"
FAULTS_COME = "faults come without memory, and each stops the whole job"


def with_checkpoints(envelope: Envelope, decision: TrainDecision) -> Envelope:
    """The plan with its checkpoints decided and its days corrected, where the problem says what may fail."""
    options = recorded_options(recorded_problem(envelope.inputs), TrainOptions)
    if options is None or options.reliability is None:
        return envelope
    wishes = options.reliability
    job = job_of_plan(envelope, decision, surroundings_of(wishes))
    tiers = TIERS if wishes.tier is None else (wishes.tier,)
    best = best_tier(job, tiers, spares=wishes.spare_nodes)
    made = Checkpointing(tier=best.tier, interval_steps=best.interval, spare_nodes=best.spares)
    share = Prediction(metric="effective_share", value=best.effective_share)
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "checkpointing": made.model_dump(mode="json")},
            "predictions": (*(_slowed(prediction, best.effective_share) for prediction in envelope.predictions), share),
            "assumptions": (*(line for line in envelope.assumptions if line != NOTHING_FAILS), FAULTS_COME),
        }
    )


def check_checkpoints(envelope: Envelope, decision: TrainDecision) -> Iterator[Finding]:
    """Whether the effective share is what the plan's checkpoints give; nothing where the plan has none."""
    options = recorded_options(recorded_problem(envelope.inputs), TrainOptions)
    made = decision.checkpointing
    share = stated(envelope).get("effective_share")
    if options is None or options.reliability is None or made is None or share is None:
        return
    try:
        job = job_of_plan(envelope, decision, surroundings_of(options.reliability))
        derived = at_scale(job, made.tier, interval=made.interval_steps, spares=made.spare_nodes).effective_share
    except PlannerError as error:
        yield Finding("train.checkpoints", False, error.what, "checkpointing", error.hint)
        return
    what = f"states an effective share of {share:.4f}; its checkpoints give {derived:.4f}"
    hint = "solve the problem again with this version"
    yield Finding("train.checkpoints", agree(share, derived), what, "predictions", hint)


def surroundings_of(wishes: Reliability) -> Surroundings:
    """The part of a problem that says where the job runs."""
    return Surroundings(
        wishes.remote_write_bytes_per_s,
        wishes.remote_read_bytes_per_s,
        wishes.nodes_per_rack,
        wishes.mtbf_s,
        None,
        wishes.slow_nodes,
        wishes.slow_speed,
    )


def _slowed(prediction: Prediction, share: float) -> Prediction:
    """Days of wall-clock time; every other figure is one of a step."""
    return scaled(prediction, prediction.value / share) if prediction.metric == "train_days" else prediction
