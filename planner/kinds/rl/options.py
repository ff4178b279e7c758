"""Schema of RL post-training problems (options)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.costs.training.config import Precision
from planner.documents.units import BYTES_PER_S, TIME_S
from planner.engines.rl_launchers import RlLauncherName, as_launched
from planner.kinds.rl.agents.options import (
    MOST_STALENESS,
    Agents,
    Priority,
)
from planner.plan.records import Amount, Count, Index
from planner.problem.schema import WeightFormat
from planner.problem.speculation import SpeculationSpec
from planner.schema.base import Spec, refuse
from planner.schema.fields import Positive
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
    launcher: RlLauncherName | None = Field(
        default=None,
        description="that runs the plan: what it does not run is left out or refused; any when absent",
    )

    @model_validator(mode="before")
    @classmethod
    def launched(cls, data: object) -> object:
        """What the problem leaves open and its launcher does in one way is as this one does it."""
        return as_launched(data) if isinstance(data, dict) else data

    @property
    def most_staleness(self) -> int:
        """Iterations by which generation may run ahead of training at most."""
        return self.max_staleness if self.agents is None else max(self.agents.staleness)
