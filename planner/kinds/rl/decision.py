"""Schema of RL post-training problems (options) and plans (decision)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.costs.training.config import Precision
from planner.documents.units import BYTES_PER_S, TIME_S
from planner.kinds.rl.agents.options import (
    MOST_STALENESS,
    AgentDispatch,
    AgentRollouts,
    Agents,
    Priority,
)
from planner.plan.records import Amount, Count, Index
from planner.plan.schema import Decision, Fraction
from planner.problem.schema import WeightFormat
from planner.problem.speculation import SpeculationSpec
from planner.schema.base import Spec, refuse
from planner.schema.formats import format_field

Algorithm = Literal["ppo", "grpo", "dapo", "gspo", "reinforce_pp", "rloo", "any"]
CRITIC_FREE: tuple[Algorithm, ...] = ("grpo", "dapo", "gspo", "reinforce_pp", "rloo", "any")
"""`any`: whatever trains or scores beside the actor is in its measured curves."""


Arrangement = Literal["colocated", "disaggregated", "hybrid"]
CriticGpus = Literal["actor", "own"]
EngineSleep = Literal["drop", "host"]
TrainingPrecision = Annotated[Precision, format_field(Precision, "precision")]
RolloutWeights = Annotated[WeightFormat, format_field(WeightFormat, "weight format")]
Scorer = Literal["reference", "reward", "teacher"]
Synchrony = Literal["synchronous", "stream", "asynchronous", "one_step"]
Positive = Annotated[float, Field(gt=0)]
Degrees = Annotated[tuple[Count, ...], Field(min_length=1)]
Key = Annotated[str, Field(min_length=1, max_length=200)]


class ToolCalls(Spec):
    """Calls that a sample waits for between its turns; other samples decode meanwhile, its KV cache stays."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"wait": ("wait_s", TIME_S)}
    calls: Positive = Field(description="mean number a sample, geometrically distributed from 0")
    wait_s: Amount = Field(description="mean of one call, exponentially distributed")
    observation_tokens: Index = Field(default=0, description="that a call adds to the context")
    priorities: Annotated[tuple[Priority, ...], Field(min_length=1)] = Field(
        default=("fifo",), description="who goes first of those that come back: the first, or the predicted longest"
    )
    move_thresholds: tuple[Annotated[float, Field(ge=1)], ...] = Field(
        default=(), description="a sample may move in a call to a replica whose step is so many times shorter"
    )


class GenerationCurve(Spec):
    """Measured: a decode step of b sequences holding S tokens takes step_s + sequence_s b + token_s S."""

    pool: Key
    tp: Count
    pp: Count = 1
    ep: Count = 1
    step_s: Amount
    sequence_s: Amount
    token_s: Amount
    prefill_tokens_per_s: Positive
    max_running: Count
    kv_tokens: Count = Field(description="that one replica holds")


class TrainingCurve(Spec):
    """Measured on one replica of tp x pp GPUs: tokens a second without bubbles, and what its parts take."""

    pool: Key
    tp: Count
    pp: Count = 1
    train_tokens_per_s: Positive = Field(description="forward, backward and what shows of communication")
    forward_tokens_per_s: Positive = Field(description="log-probabilities, references, rewards and values together")
    score_tokens_per_s: Positive | None = Field(
        default=None, description="references, rewards and values alone, part of `forward_tokens_per_s`"
    )
    micro_tokens: Count = Field(description="of one micro-batch")
    min_dp: Count = Field(default=1, description="fewer replicas do not fit in memory")
    optimizer_s: Amount = Field(default=0.0, description="an optimizer step, exchange of gradients included")
    offload_s: Amount = Field(default=0.0, description="per turn on shared GPUs, whatever the dp")
    offload_sharded_s: Amount = Field(default=0.0, description="per turn on shared GPUs with dp 1, falling as 1 / dp")


class MeasuredSync(Spec):
    """Measured: new weights from a training pool to a generating one; pools without one have no network in common."""

    generation: Key
    training: Key
    sync_s: Amount


class MeasuredCurves(Spec):
    """Costs that were measured, in place of modelled ones of the same part."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"switch": ("switch_s", TIME_S)}
    generation: tuple[GenerationCurve, ...] = ()
    training: tuple[TrainingCurve, ...] = ()
    weight_sync: tuple[MeasuredSync, ...] = Field(default=(), description="by pools; modelled when absent")
    switch_s: Amount | None = Field(
        default=None, description="per turn on shared GPUs beyond offloading; modelled when absent"
    )


class RecordedSamples(Spec):
    """The samples of one iteration, one by one, in place of drawn ones."""

    input_tokens: Annotated[tuple[Index, ...], Field(min_length=1)] = Field(description="one figure for all, or each")
    output_tokens: Annotated[tuple[Count, ...], Field(min_length=1)]
    predicted: tuple[float, ...] | None = Field(
        default=None, description="larger is longer; the true lengths when absent"
    )

    @model_validator(mode="after")
    def aligned(self) -> "RecordedSamples":
        size = len(self.output_tokens)
        for name in ("input_tokens", "predicted"):
            given = getattr(self, name)
            if given is not None and len(given) not in ((1, size) if name == "input_tokens" else (size,)):
                raise refuse(f"{len(given)} figures for {size} samples", "give one a sample", name)
        return self


class HorizonPeriod(Spec):
    """Iterations of a training run with lengths of their own."""

    iterations: Count
    output_scale: Positive = Field(default=1.0, description="output lengths of the workload, times this")
    records: tuple[RecordedSamples, ...] = Field(default=(), description="its lengths, where they were recorded")


class Running(Spec):
    """A plan in words that no other plan of its problem has."""

    mode: str
    generation: str
    training: str


class Horizon(Spec):
    """A training run whose lengths drift, and what changing the plan on the way takes."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "generation_change": ("generation_change_s", TIME_S),
        "training_change": ("training_change_s", TIME_S),
        "circuit_change": ("circuit_change_s", TIME_S),
    }
    periods: Annotated[tuple[HorizonPeriod, ...], Field(min_length=1, max_length=1000)]
    generation_change_s: Amount = Field(description="going to other replicas")
    training_change_s: Amount = Field(description="going to another parallelism, pool, dp or mode of training")
    circuit_change_s: Amount = Field(
        default=0.0, description="in addition where a role has another number of GPUs or another pool"
    )
    running: Running | None = Field(
        default=None, description="what runs before, in the words of a plan; `current` names a plan instead"
    )


class ServedModel(Spec):
    """Engines on GPUs of their own that score samples of the job, in batches."""

    part: Scorer
    pool: Key | None = Field(default=None, description="that they stand on; any when absent")
    tp: Degrees | None = Field(
        default=None,
        description="tensor parallel sizes of an engine; the smallest that fits and the next two if absent",
    )
    servers: Degrees | None = Field(default=None, description="numbers of engines; powers of two when absent")
    batch_samples: Degrees = Field(default=(8, 32), description="the most samples of a batch, numbers to try")
    shared_by: Count = Field(
        default=1, description="jobs that send samples as this one does, and share the price of the engines"
    )
    or_beside: bool = Field(default=False, description="it may score on the training GPUs instead, as without this")
    takes: Literal["samples", "batches"] | None = Field(
        default=None,
        description="samples as they are generated, or whole batches once training takes them up and waits for the"
        " scores; what launchers do when absent: batches of a reference, samples of others",
    )

    @model_validator(mode="before")
    @classmethod
    def untrained(cls, data: object) -> object:
        """A critic is trained by every minibatch, and engines hold weights alone."""
        if isinstance(data, dict) and data.get("part") == "critic":
            what = "a critic is trained, and engines hold no gradients or optimizer states"
            raise refuse(what, "leave it out: `critic_gpus: [own]` has it train on GPUs of its own", "part")
        return data

    @property
    def whole(self) -> bool:
        """Whether its engines are handed whole batches by training, as AReaL's and OpenRLHF's are."""
        return self.takes == "batches" or (self.takes is None and self.part == "reference")


class RewardCalls(Spec):
    """Rewards that CPUs find: a rule that is applied, or a sandbox that is started for each sample."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "time": ("time_s", TIME_S),
        "start": ("start_s", TIME_S),
    }
    by: Literal["rule", "sandbox"]
    time_s: Amount = Field(description="of one sample on one worker")
    start_s: Amount = Field(default=0.0, description="of a sandbox, before its sample")
    workers: Count = Field(description="that work at the same time")


class RlOptions(Spec):
    """The job of one iteration, and what the search may choose."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "max_iteration": ("max_iteration_s", TIME_S),
        "weight_sync": ("weight_sync_s", TIME_S),
        "late_change": ("late_change_s", TIME_S),
        "host_bandwidth": ("host_bandwidth_bytes_per_s", BYTES_PER_S),
    }
    algorithm: Algorithm
    prompts: Count = Field(description="per iteration")
    samples_per_prompt: Count = 1
    minibatches: Count = Field(default=1, description="optimizer steps per iteration")
    max_staleness: Annotated[int, Field(ge=0, le=MOST_STALENESS)] = Field(
        default=0, description="iterations by which generation may run ahead of training"
    )
    actor: Key | None = Field(default=None, description="key of `models`; `actor`, `policy`, or the only one if absent")
    critic: Key | None = Field(default=None, description="key of `models`; `critic` for PPO when absent")
    reference: Key | None = Field(default=None, description="key of `models`; no reference when absent")
    reward: Key | None = Field(default=None, description="key of `models`; rewards come by rule when absent")
    teacher: Key | None = Field(
        default=None, description="key of `models`, whose log-probabilities are learned from; no teacher when absent"
    )
    served: tuple[ServedModel, ...] = Field(
        default=(), description="models that score with engines of their own; on the training GPUs when absent"
    )
    reward_calls: RewardCalls | None = Field(
        default=None, description="rewards that CPUs find; they take no time when absent"
    )
    arrangements: Annotated[tuple[Arrangement, ...], Field(min_length=1)] = ("colocated", "disaggregated")
    synchrony: Annotated[tuple[Synchrony, ...], Field(min_length=1)] | None = Field(
        default=None, description="every one that `max_staleness` allows when absent"
    )
    over_sampling: Annotated[float, Field(ge=1, le=4)] = Field(
        default=1.0, description="samples generated for each one trained on; the first to finish are taken"
    )
    useful_share: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0,
        description="share of the prompts whose samples differ in reward; others are dropped, whole prompts trained on",
    )
    partial_rollouts: bool = Field(
        default=False, description="samples generated that are not trained on go on in the next iteration"
    )
    max_output_tokens: Count | None = Field(default=None, description="where longer samples are cut off")
    records: tuple[RecordedSamples, ...] = Field(
        default=(), description="lengths of successive iterations, sample by sample; drawn when absent"
    )
    dispatch: Literal["fifo", "longest_first"] | None = Field(
        default=None, description="order in which records are handed out; as recorded when absent"
    )
    generation_only: bool = Field(default=False, description="plans generation alone; nothing is trained")
    equal_shares: bool = Field(
        default=True, description="data-parallel ranks divide the samples of a minibatch, as most training codes ask"
    )
    iterations: Annotated[int, Field(ge=1, le=64)] = Field(default=2, description="batches of lengths drawn")
    length_error: Amount | None = Field(
        default=None, description="deviation of the logarithm of predicted lengths; not predicted when absent"
    )
    tail_fractions: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(), description="shares of the longest samples that a group of their own may generate"
    )
    fusion_thresholds: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(),
        description="shares of the samples left when these may go on on fewer replicas, and the others score",
    )
    late_thresholds: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(
        default=(), description="shares of the samples left when other replicas of the same GPUs may go on with them"
    )
    late_change_s: Amount = Field(default=5.0, description="until these decode; their weights are cut anew")
    fused_training: bool = Field(default=False, description="actor and critic may train at the same time")
    critic_gpus: Annotated[tuple[CriticGpus, ...], Field(min_length=1)] = Field(
        default=("actor",),
        description="whose GPUs the critic trains on, to try: the actor's, in turn with it, or its own, meanwhile",
    )
    tools: ToolCalls | None = None
    agents: Agents | None = Field(
        default=None, description="trajectories of several turns, one by one, in place of `records`"
    )
    speculation: SpeculationSpec | None = Field(
        default=None, description="drafts that generators verify; `draft_tokens` is one number"
    )
    max_running: Count = Field(default=256, description="sequences of a replica at once")
    whole_nodes: bool = Field(
        default=False,
        description="every role has all GPUs of its nodes, or all roles lie on one node, as every launcher starts them",
    )
    generation_tp: Degrees | None = Field(default=None, description="tensor parallel sizes of generating replicas")
    training_tp: Degrees | None = None
    training_pp: Degrees | None = None
    training_cp: Degrees | None = Field(default=None, description="context parallel sizes of training replicas")
    training_ep: Degrees | None = Field(default=None, description="ranks over which experts are spread in training")
    recompute: Literal["none", "full"] | None = Field(
        default=None, description="what training computes again; nothing where that fits when absent"
    )
    training_precision: Annotated[tuple[TrainingPrecision, ...], Field(min_length=1)] = Field(
        default=("bf16",),
        description="formats in which training computes, to try; weights and gradients stay in 16 bits",
    )
    rollout_weights: tuple[RolloutWeights, ...] = Field(
        default=(), description="weight formats of generating replicas, to try; that of the model when absent"
    )
    engine_sleep: Annotated[tuple[EngineSleep, ...], Field(min_length=1)] = Field(
        default=("drop",),
        description="where weights of engines lie, to try, while training is in turn on the same GPUs: nowhere, or on"
        " the host",
    )
    host_bandwidth_bytes_per_s: Positive | None = Field(
        default=None, description="of host memory of a node, which its GPUs share; that of their links when absent"
    )
    in_flight_updates: bool = Field(
        default=False,
        description="generators that run ahead take new weights while samples are under way, and end no rollout",
    )
    weight_sync_s: Amount | None = Field(default=None, description="measured; else from tensors, bytes and bandwidths")
    weight_sync_overlapped: bool = False
    simulated_rollouts: bool = Field(
        default=False, description="decode curves are scaled to what engines take in simulation for the samples"
    )
    max_iteration_s: Positive | None = Field(default=None, description="deadline of an iteration")
    horizon: Horizon | None = Field(default=None, description="plans over training time; one plan when absent")
    costs: MeasuredCurves = MeasuredCurves()

    @property
    def most_staleness(self) -> int:
        """Iterations by which generation may run ahead of training at most."""
        return self.max_staleness if self.agents is None else max(self.agents.staleness)


class WeightSync(Spec):
    """How new weights reach the generators."""

    method: Literal["reshard", "broadcast", "relay", "checkpoint"]
    duration_s: Amount = 0.0
    overlapped: bool = False


class Turns(Spec):
    """What moves between devices and host memory where generation and training take turns; bytes of one device.

    When generation ends, weights of engines go to the host, or are dropped; when training ends, its states go there,
    and what the engines had is loaded back, before new weights are sent into it.
    """

    engine_weights: EngineSleep
    engine_bytes: Amount = Field(description="weights of an engine that go to the host and back; 0 where dropped")
    training_bytes: Amount = Field(description="states of training that go to the host and back")
    moved_s: Amount = Field(description="of all these moves in an iteration")
    host_bytes: Amount = Field(description="of host memory, for each device: all that is ever there")
    host_capacity_bytes: Amount = Field(description="that a node has for each of its devices")


class FusedScoring(Spec):
    """References, rewards and values on replicas that are set free before the last samples are generated.

    Once `samples_left` are under way, those of all but the `kept` replicas with most left to do move there. Times are
    means from the start of generation; `unfused_s` is when scoring would end if it began after the last sample.
    """

    threshold: Annotated[float, Field(gt=0, lt=1)] = Field(description="share of the samples left, of those allowed")
    samples_left: Count
    kept: Count = Field(description="replicas that go on generating")
    free_s: Amount = Field(description="when the other replicas are set free")
    generated_s: Amount = Field(description="when the last sample is generated")
    scored_s: Amount
    unfused_s: Amount


class LateRollout(Spec):
    """Other replicas on the same GPUs end every rollout: role `rollout-late`; contexts are prefilled again.

    Times are means from the start of generation; `unchanged_s` is when it would end on the first replicas.
    """

    threshold: Annotated[float, Field(gt=0, lt=1)] = Field(description="share of the samples left, of those allowed")
    samples_left: Count
    changed_s: Amount = Field(description="when the first replicas stop")
    generated_s: Amount
    unchanged_s: Amount


class PartialRollouts(Spec):
    """Samples that are not done when an iteration has its samples go on in the next, under newer weights."""

    carried: Amount = Field(description="samples that an iteration leaves to the next, on average")
    stale_share: Fraction = Field(description="of the output tokens trained on, that older weights made")
    oldest: Index = Field(description="iterations since a sample trained on was begun, at most, synchrony aside")


class ServedScoring(Spec):
    """Samples that servers score: means over iterations, from the start of generation of a batch."""

    generated_s: Amount = Field(description="when the last sample is generated")
    scored_s: Amount = Field(description="when the last sample is scored by all that are sent samples")
    handed_s: Amount = Field(default=0.0, description="for which training waits for those that are handed its batches")
    busy_s: dict[str, Amount] = Field(
        description="by part, seconds that its servers work at least, and no iteration is shorter"
    )
    waited_s: dict[str, Amount] = Field(description="by part, from a sample sent to scored, on average")


class FusedTraining(Spec):
    """Actor and critic trained at the same time: their pipelines through the same stages, in opposite directions.

    Over the stages of an actor replica lie whole pipelines of the critic, whose first stage is on their last. Times are
    of the mean minibatch.
    """

    actor_micro_batches: Count
    critic_micro_batches: Count = Field(description="of each critic pipeline")
    order: tuple[str, ...] = Field(
        description="passes by stage, a letter each: A and a actor forward and backward, C and c critic"
    )
    makespan_s: Amount
    bound_s: Amount = Field(description="that no schedule of these micro-batches undercuts")
    in_turn_s: Amount = Field(description="one model after the other")


class InFlightUpdates(Spec):
    """Rollouts that never end: prompts are handed out as others are done, and replicas stop only to take weights.

    Means over iterations, of generators that never wait for training.
    """

    samples: Count = Field(description="under way at most")
    period_s: Amount = Field(description="from the end of one batch to that of the next")
    residence_s: Amount = Field(description="from when a batch may begin to when its last sample can be trained on")


class HorizonStep(Running):
    """What runs in a period; `changed` on entering it, before its first iteration."""

    iterations: Count
    output_scale: Positive
    iteration_s: Amount
    changed: tuple[Literal["generation", "training", "circuit"], ...] = ()


class RlDecision(Decision):
    """Roles by function: rollout (one or more groups), actor (trains), critic, reference, reward, teacher.

    Roles that share devices take turns in `phases`; while a role is not in turn it keeps `resident_bytes` of a device.
    """

    algorithm: Algorithm
    arrangement: Literal["colocated", "disaggregated", "hybrid"]
    synchrony: Synchrony
    staleness: Index = Field(default=0, description="iterations by which generation runs ahead of training")
    minibatches: Count = 1
    dispatch: AgentDispatch = "fifo"
    priority: Priority = Field(default="fifo", description="of samples that come back from a tool")
    move_threshold: Annotated[float, Field(ge=1)] | None = Field(
        default=None, description="a sample moves in a tool call to a replica whose step is so many times shorter"
    )
    tail_share: Fraction = Field(default=0.0, description="longest samples that go to the last rollout group")
    turns: Turns | None = Field(default=None, description="where `engine_sleep` or `host_bandwidth` is asked for")
    resident_bytes: dict[str, Amount] = Field(default_factory=dict, description="by role, 0 where absent")
    weight_sync: WeightSync
    partial_rollouts: PartialRollouts | None = None
    in_flight_updates: InFlightUpdates | None = None
    agents: AgentRollouts | None = None
    horizon: tuple[HorizonStep, ...] = Field(default=(), description="by period; roles and phases are the first one's")
    running: Running | None = Field(default=None, description="what ran before the first period, where known")
    late_rollout: LateRollout | None = None
    fused_scoring: FusedScoring | None = None
    fused_training: FusedTraining | None = None
    served_scoring: ServedScoring | None = None
    rollout_scales: dict[str, Positive] | None = Field(
        default=None,
        description="by kind of replica: seconds of simulated engines over those of its fitted curve",
    )
    shares: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default_factory=dict, description="of the samples, by rollout role; all to the only one when absent"
    )
