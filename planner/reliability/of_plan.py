"""A training plan on failing machines: step time, checkpoint bytes, nodes and replicas read off the plan."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.hardware.cluster import NodeType
from planner.hardware.library import find_node
from planner.models.parameters import parameter_counts
from planner.plan.schema import Block, Decision, Envelope, Role
from planner.problem.recorded import recorded_problem, required_model
from planner.problem.schema import Problem
from planner.reliability.effective import Job
from planner.reliability.faults import DEFAULT, FaultClass, JobMachines, Stragglers, scaled
from planner.reliability.replan import RunningPlan
from planner.reliability.tiers import State, Storage

STATE_BYTES = {"adamw": 14.0, "lamb": 14.0, "sgd": 10.0}
"""Of a parameter in a checkpoint: the weight in bf16 and in fp32, and one or two moments in fp32."""
SLOW_FOUND_AFTER_S = 3600.0
_OWN = {"zero_stage", "zero_shards", "num_micro_batches", "stage_runs"}  # of a decision


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a plan does not say of the place where it runs."""

    remote_write_bytes_per_s: float
    remote_read_bytes_per_s: float | None = None  # as fast as writes where none is given
    nodes_per_rack: int = 1
    mean_gap_s: float | None = None  # between faults of the job; else by the rates of published runs
    step_s: float | None = None  # else what the plan predicts
    slow_share: float = 0.0  # of nodes, at a time
    save_slowdown: float = 0.0  # of steps while a checkpoint is on its way to the store
    slow_speed: float = 0.9  # hosts 10 % slower than others were found and taken out (NSDI 2024, section 6.3)


@dataclass(frozen=True, slots=True)
class TrainFacts:
    """What a training plan says of its job and its ranks."""

    role: Role
    block: Block
    node: NodeType
    checkpoint_bytes: float  # each shard once
    tokens_per_step: float
    num_micro_batches: int
    zero_stage: int
    zero_shards: int  # ranks that share out the sharded states

    @property
    def copies(self) -> int:
        """Ranks that hold the same states of the optimizer."""
        ranks = self.role.parallelism.dp * self.role.parallelism.cp
        return ranks if self.zero_stage == 0 else max(1, ranks // self.zero_shards)


def job_of_plan(envelope: Envelope, decision: Decision, around: Surroundings) -> Job:
    """The run of a plan; raises PlannerError where the plan does not say what is needed."""
    facts = facts_of(envelope, decision)
    devices = facts.role.parallelism.devices
    fleet = JobMachines(devices, min(facts.node.num_gpus, devices), around.nodes_per_rack)
    write, node = around.remote_write_bytes_per_s, facts.node
    read = around.remote_read_bytes_per_s or write
    pcie, nic = node.pcie_bandwidth_bytes_per_s, node.nic_bandwidth_bytes_per_s
    storage = Storage(write, read, pcie, nic, around.save_slowdown)
    faults: Sequence[FaultClass] = DEFAULT
    if around.mean_gap_s is not None:
        faults = scaled(DEFAULT, around.mean_gap_s, fleet)
    slow = None
    if around.slow_share:
        slow = Stragglers(around.slow_share / SLOW_FOUND_AFTER_S, around.slow_speed, SLOW_FOUND_AFTER_S)
    step_s = around.step_s or _step_s(envelope)
    return Job(fleet, state_of(facts, fleet), storage, step_s, facts.tokens_per_step, tuple(faults), slow)


def running_of(envelope: Envelope, decision: Decision) -> RunningPlan:
    """What a re-plan needs of a plan."""
    facts = facts_of(envelope, decision)
    shape = facts.role.parallelism
    return RunningPlan(
        facts.role,
        (facts.block,),
        facts.node.num_gpus,
        facts.num_micro_batches,
        shape.vpp,
        shape.dp * shape.cp // facts.copies,
        facts.checkpoint_bytes * facts.copies / shape.devices,
    )


def state_of(facts: TrainFacts, fleet: JobMachines) -> State:
    """What a checkpoint of the plan holds, and which losses leave a live copy of each shard.

    Copies of a shard lie as many data-parallel ranks apart as there are shards.
    """
    copies, shape = facts.copies, facts.role.parallelism
    shards = max(1, shape.dp // copies)
    stride = min((axis.stride for axis in facts.block.axes if axis.name == "dp" and axis.size > 1), default=0)
    reach = (copies - 1) * shards * stride  # devices between the first copy and the last
    rack_gpus = fleet.gpus_per_node * fleet.nodes_per_rack
    return State(
        facts.checkpoint_bytes,
        facts.checkpoint_bytes * copies / shape.devices,
        node_loss_kept=1.0 if copies > 1 and reach >= fleet.gpus_per_node else 0.0,
        rack_loss_kept=1.0 if copies > 1 and reach >= rack_gpus else 0.0,
        copies=copies,
    )


def facts_of(envelope: Envelope, decision: Decision) -> TrainFacts:
    """What a plan of kind `train` says; raises PlannerError for another plan."""
    hint = "give a plan of kind `train`, as `planner solve` writes it"
    if envelope.kind != "train":
        raise PlannerError(f"a plan of kind `{envelope.kind}`", where="plan", hint=hint)
    if len(decision.roles) > 1:
        raise PlannerError(
            f"the job runs on {len(decision.roles)} pools",
            where="plan",
            hint="write `search: {pools: one}` into its options and solve again",
        )
    problem = recorded_problem(envelope.inputs)
    role = decision.roles[0]
    blocks = [block for block in decision.placement if block.role == role.name]
    if problem is None or len(blocks) != 1:
        raise PlannerError("the plan does not say its job or its placement", where="plan", hint=hint)
    own = decision.model_dump(mode="json", include=_OWN)
    batch, length = (_count(problem, name) for name in ("global_batch", "sequence_tokens"))
    return TrainFacts(
        role,
        blocks[0],
        _node(problem, blocks[0].pool),
        _checkpoint_bytes(problem, role, heads=any("mtp" in run["parts"] for run in own["stage_runs"])),
        float(batch * length),
        int(own["num_micro_batches"]),
        int(own["zero_stage"]),
        int(own["zero_shards"] or role.parallelism.dp * role.parallelism.cp),
    )


def _count(problem: Problem, name: str) -> int:
    value = problem.options.get(name)
    if not isinstance(value, int):
        raise PlannerError(f"the plan's problem has no `{name}`", where=f"inputs.options.{name}", hint="solve it again")
    return value


def _node(problem: Problem, pool: str) -> NodeType:
    spec = next((pool_spec for pool_spec in problem.cluster.pools if pool_spec.label == pool), problem.cluster.pools[0])
    node = find_node(spec.gpu)
    return node.of_size(spec.gpus_per_node) if spec.gpus_per_node else node


def _checkpoint_bytes(problem: Problem, role: Role, *, heads: bool) -> float:
    """Bytes of a checkpoint of the whole model, its MTP heads where they are trained, each shard once."""
    counts = parameter_counts(required_model(problem, role.model or next(iter(problem.models))))
    return (counts.total + counts.mtp * heads) * STATE_BYTES[str(problem.options.get("optimizer", "adamw"))]


def _step_s(envelope: Envelope) -> float:
    for prediction in envelope.predictions:
        if prediction.metric == "step_time_s":
            return prediction.value
    raise PlannerError("the plan predicts no step time", where="predictions", hint="give one with `--step-time 6s`")
