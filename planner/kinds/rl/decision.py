"""Schema of RL post-training plans (decision)."""

from typing import Annotated, Literal

from pydantic import Field

from planner.kinds.rl.agents.options import (
    AgentDispatch,
    AgentRollouts,
    Priority,
)
from planner.kinds.rl.options import Algorithm, EngineSleep, Running, Synchrony
from planner.plan.records import Amount, Count, Index
from planner.plan.schema import Decision, Fraction
from planner.schema.base import Spec
from planner.schema.fields import Positive


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
