"""Checkpoints of training plans: decided where the problem says what may fail, and derived again by the check."""

from collections.abc import Iterator

from planner.errors import PlannerError
from planner.kinds.train.checkpointing import Checkpointing, Reliability
from planner.kinds.train.decision import TrainDecision, TrainOptions
from planner.plan.findings import Finding
from planner.plan.schema import Envelope, Prediction
from planner.problem.recorded import recorded_options, recorded_problem
from planner.reliability.effective import at_scale
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
    best = max((at_scale(job, tier, spares=wishes.spare_nodes) for tier in tiers), key=lambda one: one.machine_yield)
    made = Checkpointing(tier=best.tier, interval_steps=best.interval, spare_nodes=best.spares)
    share = Prediction(metric="effective_share", value=best.effective_share)
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "checkpointing": made.model_dump(mode="json")},
            "predictions": (*(_slowed(one, best.effective_share) for one in envelope.predictions), share),
            "assumptions": (*(one for one in envelope.assumptions if one != NOTHING_FAILS), FAULTS_COME),
        }
    )


def check_checkpoints(envelope: Envelope, decision: TrainDecision) -> Iterator[Finding]:
    """Whether the effective share is what the plan's checkpoints give; nothing where the plan has none."""
    options = recorded_options(recorded_problem(envelope.inputs), TrainOptions)
    made = decision.checkpointing
    stated = next((one.value for one in envelope.predictions if one.metric == "effective_share"), None)
    if options is None or options.reliability is None or made is None or stated is None:
        return
    try:
        job = job_of_plan(envelope, decision, surroundings_of(options.reliability))
        found = at_scale(job, made.tier, interval=made.interval_steps, spares=made.spare_nodes).effective_share
    except PlannerError as error:
        yield Finding("train.checkpoints", False, error.what, "checkpointing", error.hint)
        return
    what = f"states an effective share of {stated:.4f}; its checkpoints give {found:.4f}"
    hint = "solve the problem again with this version"
    yield Finding("train.checkpoints", abs(stated - found) <= 1e-6, what, "predictions", hint)


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
    if prediction.metric != "train_days":
        return prediction
    interval = prediction.interval and (prediction.interval[0] / share, prediction.interval[1] / share)
    return prediction.model_copy(update={"value": prediction.value / share, "interval": interval})
