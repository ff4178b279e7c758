"""A training plan on machines that fail: what `planner.reliability` asks, read off the plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.hardware.cluster import NodeType
from planner.hardware.library import find_node
from planner.kinds.train.decision import TrainDecision, TrainOptions
from planner.models.parameters import parameter_counts
from planner.plan.schema import Block, Envelope
from planner.problem.recorded import recorded_model, recorded_options, recorded_problem
from planner.reliability.effective import Job
from planner.reliability.faults import DEFAULT, FaultClass, Fleet, Stragglers, scaled
from planner.reliability.replan import Running
from planner.reliability.tiers import State, Storage

STATE_BYTES = {"adamw": 14.0, "lamb": 14.0, "sgd": 10.0}
"""Of a parameter in a checkpoint: the weight in bf16 and in fp32, and one or two moments in fp32."""
SLOW_FOUND_AFTER_S = 3600.0


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
