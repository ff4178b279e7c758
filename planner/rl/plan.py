"""An RL plan (what is decided), and its evaluation (times, cost, broken rules)."""

from dataclasses import dataclass
from typing import Literal

from planner.rl.curves import GenerationOption, Learner, Service, TrainingOption
from planner.rl.rollouts.rollout import RolloutPolicy, RolloutWorker

Placement = Literal["colocated", "disaggregated", "hybrid"]
Sync = Literal["sync", "stream_sync", "one_step_async", "k_step_async"]


@dataclass(frozen=True, slots=True)
class RlMode:
    """Where generation runs relative to training, and when training may start; staleness > 1 only with k_step_async.

    `keeps`: engines sleep with their weights on the host where they share GPUs with training; else they drop them.
    `stops`: generators of k_step_async stop while they take new weights, as both sides of one_step_async do. With
    `in_flight` they take them while samples are under way, and begin samples of the next iterations before all of one
    are done; else they end a rollout first.
    """

    placement: Placement
    sync: Sync
    staleness: int = 0
    in_flight: bool = False
    stops: bool = False
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class GenerationGroup:
    """`replicas` of one kind."""

    option: GenerationOption
    replicas: int

    @property
    def gpus(self) -> int:
        return self.option.gpus * self.replicas

    @property
    def workers(self) -> tuple[RolloutWorker, ...]:
        """The replicas, all on one queue."""
        return (RolloutWorker(self.option.curve),) * self.replicas


@dataclass(frozen=True, slots=True)
class TrainingChoice:
    """`dp` replicas of one kind that train together."""

    option: TrainingOption
    dp: int

    @property
    def gpus(self) -> int:
        return self.option.gpus * self.dp

    @property
    def host_bytes(self) -> float:
        """Of host memory for each GPU, for states that leave the GPUs while generation is in turn."""
        return self.option.host_bytes + self.option.host_sharded_bytes / self.dp


@dataclass(frozen=True, slots=True)
class RolloutCut:
    """A rollout goes on otherwise from when a share `threshold` of the samples is left."""

    threshold: float

    def samples(self, size: int) -> int:
        """Samples of a batch that are left then."""
        return round(self.threshold * size)


@dataclass(frozen=True, slots=True)
class Fusion(RolloutCut):
    """From the cut on the samples left decode on `kept` replicas; the others begin to score."""

    kept: int


@dataclass(frozen=True, slots=True)
class LateReplicas(RolloutCut):
    """From the cut on `group` takes the place of the replicas on the same GPUs."""

    group: GenerationGroup


@dataclass(frozen=True, slots=True)
class RlPlan:
    """Who generates, who trains and how they overlap; a second group takes `tail_fraction` of the samples."""

    mode: RlMode
    groups: tuple[GenerationGroup, ...]
    training: TrainingChoice | None
    tail_fraction: float = 0.0
    fusion: Fusion | None = None
    late: LateReplicas | None = None
    policy: RolloutPolicy | None = None
    services: tuple[Service | Learner, ...] = ()


@dataclass(frozen=True, slots=True)
class Halves:
    """Seconds of a mean iteration for which actor and a critic on GPUs of its own work, each by itself."""

    forward_s: float
    update_s: float
    values_s: float
    learned_s: float


@dataclass(frozen=True, slots=True)
class RlEvaluation:
    """A plan priced: means over the iterations, in seconds, and every rule that it breaks."""

    objective: float
    iteration_s: float
    cost_usd: float
    generation_s: float  # scoring included where fused with it
    training_s: float
    handover_s: float  # weight synchronisation, or taking turns on the same GPUs
    gpus_of_pool: dict[str, int]
    broken: tuple[str, ...]
    generation_s_of_batch: tuple[float, ...]
    training_s_of_batch: tuple[float, ...]
    scored_s: float = 0.0  # from the start of generation until services have scored all that they were sent of it
    handed_s: float = 0.0  # of services that take the batch whole, before training
    halves: Halves | None = None  # where a critic has GPUs of its own
    moved: int = 0  # trajectories that went to another worker in a tool call, where plans of agents are priced

    @property
    def feasible(self) -> bool:
        return not self.broken
