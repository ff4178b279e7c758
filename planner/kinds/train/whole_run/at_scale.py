"""Checkpoint intervals of training plans where the problem states failure rates; derived again by the check."""

from planner.kinds.train.checkpointing import Checkpointing, Reliability
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.figures import scaled
from planner.kinds.train.options import TrainOptions
from planner.plan.schema import Envelope, Prediction
from planner.problem.recorded import recorded_options, recorded_problem
from planner.reliability.effective import AtScale, Job, at_scale, best_tier
from planner.reliability.of_plan import Surroundings, job_of_plan
from planner.reliability.tiers import TIERS, saving

NOTHING_FAILS = "nothing fails, and no checkpoint is written"
FAULTS_COME = "faults come without memory, and each stops the whole job"


def with_checkpoints(envelope: Envelope, decision: TrainDecision) -> Envelope:
    """The plan with its checkpoints decided and its days corrected, where the problem says what may fail.

    Checkpoints that `decision` has are kept.
    """
    options = recorded_options(recorded_problem(envelope.inputs), TrainOptions)
    if options is None or options.reliability is None:
        return envelope
    wishes = options.reliability
    job = job_of_plan(envelope, decision, surroundings_of(wishes))
    tiers = TIERS if wishes.tier is None else (wishes.tier,)
    given = decision.checkpointing
    if given is not None:
        best = at_scale(job, given.tier, interval=given.interval_steps, spares=given.spare_nodes)
    else:
        best = best_tier(job, tiers, spares=wishes.spare_nodes)
    made = Checkpointing(tier=best.tier, interval_steps=best.interval, spare_nodes=best.spares)
    share = Prediction(metric="effective_share", value=best.effective_share)
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "checkpointing": made.model_dump(mode="json")},
            "predictions": (*(_slowed(prediction, best.effective_share) for prediction in envelope.predictions), share),
            "assumptions": (
                *(line for line in envelope.assumptions if line != NOTHING_FAILS),
                FAULTS_COME,
                *_contention(job, best, wishes),
            ),
        }
    )


def _contention(job: Job, best: AtScale, wishes: Reliability) -> tuple[str, ...]:
    """How much of the time the store is written to behind training, where nothing is said of what that slows."""
    if best.tier == "synchronous" or wishes.save_slowdown:
        return ()
    share = min(saving(best.tier, job.state, job.storage, job.step_s).durable_after_s / best.interval_s, 1.0)
    return (
        f"checkpoints are on their way to the store for {share:.0%} of the time, and take the network from training "
        "but slow no host: `save_slowdown` says by how much they do, and the interval grows with it",
    )


def surroundings_of(wishes: Reliability) -> Surroundings:
    """The part of a problem that says where the job runs."""
    return Surroundings(
        wishes.remote_write_bytes_per_s,
        wishes.remote_read_bytes_per_s,
        wishes.nodes_per_rack,
        wishes.mtbf_s,
        None,
        wishes.slow_nodes,
        slow_speed=wishes.slow_speed,
        save_slowdown=wishes.save_slowdown,
    )


def _slowed(prediction: Prediction, share: float) -> Prediction:
    """Days of wall-clock time; every other figure is one of a step."""
    return scaled(prediction, prediction.value / share) if prediction.metric == "train_days" else prediction
