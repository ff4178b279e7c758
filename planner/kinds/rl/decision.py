"""What an RL post-training problem states beyond models and cluster, and what such a plan decides."""

from typing import Annotated, Literal

from pydantic import Field

from planner.plan.schema import Amount, Count, Decision, Fraction, Index
from planner.schema_base import Spec

Algorithm = Literal["ppo", "grpo", "dapo", "gspo", "reinforce_pp", "rloo"]
CRITIC_FREE: tuple[Algorithm, ...] = ("grpo", "dapo", "gspo", "reinforce_pp", "rloo")


class RlOptions(Spec):
    """The job of one iteration."""

    algorithm: Algorithm
    prompts: Count = Field(description="per iteration")
    samples_per_prompt: Count = 1
    minibatches: Count = Field(default=1, description="optimizer steps per iteration")
    max_staleness: Index = Field(default=0, description="iterations by which generation may run ahead of training")


class WeightSync(Spec):
    """How new weights reach the generators."""

    method: Literal["reshard", "broadcast", "relay", "checkpoint"]
    duration_s: Amount = 0.0
    overlapped: bool = False


class RlDecision(Decision):
    """Roles by function: rollout (one or more groups), actor (trains), critic, reference, reward.

    Roles that share devices take turns in `phases`; while a role is not in turn it keeps `resident_bytes` of a device.
    """

    algorithm: Algorithm
    arrangement: Literal["colocated", "disaggregated", "hybrid"]
    synchrony: Literal["synchronous", "stream", "asynchronous"]
    staleness: Index = Field(default=0, description="iterations by which generation runs ahead of training")
    minibatches: Count = 1
    dispatch: Literal["fifo", "longest_first"] = "fifo"
    tail_share: Fraction = Field(default=0.0, description="longest samples that go to the last rollout group")
    resident_bytes: dict[str, Amount] = Field(default_factory=dict, description="by role, 0 where absent")
    weight_sync: WeightSync
    shares: dict[str, Annotated[float, Field(gt=0, le=1)]] = Field(
        default_factory=dict, description="of the samples, by rollout role; all to the only one when absent"
    )
