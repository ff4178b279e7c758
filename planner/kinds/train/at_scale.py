"""A training plan on machines that fail: what `planner.reliability` asks, read off the plan."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.hardware.cluster import NodeType
from planner.hardware.library import find_node
from planner.kinds.train.checkpointing import Checkpointing, Reliability
from planner.kinds.train.decision import TrainDecision, TrainOptions
from planner.models.parameters import parameter_counts
from planner.plan.findings import Finding
from planner.plan.schema import Block, Envelope, Prediction
from planner.problem.recorded import recorded_model, recorded_options, recorded_problem
from planner.reliability.effective import Job, at_scale
from planner.reliability.faults import DEFAULT, FaultClass, Fleet, Stragglers, scaled
from planner.reliability.replan import Running
from planner.reliability.tiers import TIERS, State, Storage

STATE_BYTES = {"adamw": 14.0, "lamb": 14.0, "sgd": 10.0}
"""Of a parameter in a checkpoint: the weight in bf16 and in fp32, and one or two moments in fp32."""
SLOW_FOUND_AFTER_S = 3600.0
NOTHING_FAILS = "nothing fails, and no checkpoint is written"
FAULTS_COME = "faults come without memory, and each stops the whole job"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a plan does not say of the place where it runs."""

    remote_write_bytes_per_s: float
    remote_read_bytes_per_s: float | None = None  # as fast as writes where none is given
    nodes_per_rack: int = 1
    mean_gap_s: float | None = None  # between faults of the job; else by the rates of published runs
    step_s: float | None = None  # else what the plan predicts
    slow_share: float = 0.0  # of nodes, at a time
    slow_speed: float = 0.9  # hosts 10 % slower than others were found and taken out (NSDI 2024, section 6.3)


def job_at_scale(envelope: Envelope, decision: TrainDecision, around: Surroundings) -> Job:
    """The run of a plan; raises PlannerError where the plan does not say what is needed."""
    options, block, node = _read(envelope, decision)
    shape = decision.roles[0].parallelism
    fleet = Fleet(shape.devices, min(node.num_gpus, shape.devices), around.nodes_per_rack)
    state = state_of(decision, _checkpoint_bytes(envelope, decision, options), block, fleet)
    read = around.remote_read_bytes_per_s or around.remote_write_bytes_per_s
    storage = Storage(
        around.remote_write_bytes_per_s, read, node.pcie_bandwidth_bytes_per_s, node.nic_bandwidth_bytes_per_s
    )
    faults: Sequence[FaultClass] = DEFAULT
    if around.mean_gap_s is not None:
        faults = scaled(DEFAULT, around.mean_gap_s, fleet)
    slow = None
    if around.slow_share:
        slow = Stragglers(around.slow_share / SLOW_FOUND_AFTER_S, around.slow_speed, SLOW_FOUND_AFTER_S)
    step_s = around.step_s or _step_s(envelope)
    return Job(fleet, state, storage, step_s, options.global_batch * options.sequence_tokens, tuple(faults), slow)


def with_checkpoints(envelope: Envelope, decision: TrainDecision) -> Envelope:
    """The plan with its checkpoints decided and its days corrected, where the problem says what may fail."""
    options = recorded_options(recorded_problem(envelope.inputs), TrainOptions)
    if options is None or options.reliability is None:
        return envelope
    wishes = options.reliability
    job = job_at_scale(envelope, decision, surroundings_of(wishes))
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
        job = job_at_scale(envelope, decision, surroundings_of(options.reliability))
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


def running_of(envelope: Envelope, decision: TrainDecision) -> Running:
    """What a re-plan needs of a plan."""
    options, block, node = _read(envelope, decision)
    shape = decision.roles[0].parallelism
    total = _checkpoint_bytes(envelope, decision, options)
    copies = _copies(decision)
    return Running(
        decision.roles[0],
        (block,),
        node.num_gpus,
        decision.num_micro_batches,
        shape.vpp,
        shape.dp * shape.cp // copies,
        total * copies / shape.devices,
    )


def state_of(decision: TrainDecision, total_bytes: float, block: Block, fleet: Fleet) -> State:
    """What a checkpoint of the plan holds, and which losses leave a live copy of each shard.

    Copies of a shard lie as many data-parallel ranks apart as there are shards.
    """
    copies = _copies(decision)
    shape = decision.roles[0].parallelism
    shards = max(1, shape.dp // copies)
    stride = min((axis.stride for axis in block.axes if axis.name == "dp" and axis.size > 1), default=0)
    reach = (copies - 1) * shards * stride  # devices between the first copy and the last
    rack_gpus = fleet.gpus_per_node * fleet.nodes_per_rack
    return State(
        total_bytes,
        total_bytes * copies / shape.devices,
        node_loss_kept=1.0 if copies > 1 and reach >= fleet.gpus_per_node else 0.0,
        rack_loss_kept=1.0 if copies > 1 and reach >= rack_gpus else 0.0,
        copies=copies,
    )


def _copies(decision: TrainDecision) -> int:
    """Ranks that hold the same states of the optimizer."""
    shape = decision.roles[0].parallelism
    ranks = shape.dp * shape.cp
    if decision.zero_stage == 0:
        return ranks
    return max(1, ranks // (decision.zero_shards or ranks))


def _read(envelope: Envelope, decision: TrainDecision) -> tuple[TrainOptions, Block, NodeType]:
    """The job, the block of its ranks, and the nodes that they lie on."""
    options = recorded_options(recorded_problem(envelope.inputs), TrainOptions)
    blocks = [block for block in decision.placement if block.role == decision.roles[0].name]
    if options is None or len(blocks) != 1:
        hint = "solve the problem with this version of planner"
        raise PlannerError("the plan does not say its job or its placement", where="plan", hint=hint)
    return options, blocks[0], _node(envelope, blocks[0].pool)


def _node(envelope: Envelope, pool: str) -> NodeType:
    problem = recorded_problem(envelope.inputs)
    assert problem is not None
    spec = next((one for one in problem.cluster.pools if one.label == pool), problem.cluster.pools[0])
    node = find_node(spec.gpu)
    return node.of_size(spec.gpus_per_node) if spec.gpus_per_node else node


def _checkpoint_bytes(envelope: Envelope, decision: TrainDecision, options: TrainOptions) -> float:
    """Bytes of a checkpoint of the whole model, each shard once."""
    problem = recorded_problem(envelope.inputs)
    assert problem is not None
    model = recorded_model(problem, decision.roles[0].model)
    if model is None:
        hint = "name a model of `planner models list`"
        raise PlannerError("the catalog does not know the plan's model", where="inputs.models", hint=hint)
    counts = parameter_counts(model)
    return (counts.total + counts.mtp) * STATE_BYTES[options.optimizer]


def _step_s(envelope: Envelope) -> float:
    for prediction in envelope.predictions:
        if prediction.metric == "step_time_s":
            return prediction.value
    raise PlannerError("the plan predicts no step time", where="predictions", hint="give one with `--step-time 6s`")
