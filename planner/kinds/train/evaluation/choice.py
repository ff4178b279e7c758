"""What a training plan decides: a choice for all of it, and what layers, pools and side networks have of their own."""

from dataclasses import dataclass, replace

from planner.costs.training.config import RecomputeConfig, Schedule, TrainingConfig
from planner.costs.training.host_idle import idle_s
from planner.costs.training.modalities.networks import NetworkCost
from planner.costs.training.pipeline import exposed_share
from planner.kinds.train.evaluation.pipes import Pipe, pipe_of
from planner.kinds.train.space.tables import CostTable, RecomputeMode, Sharing


@dataclass(frozen=True, slots=True)
class PlanChoice:
    """Every discrete decision but the layout; `full_layers`: layers of each stage computed again whole."""

    table: CostTable
    sharing: Sharing
    pp: int
    dp: int
    schedule: Schedule
    vpp: int
    zero_stage: int
    offload: frozenset[str]
    mode: RecomputeMode
    full_layers: int = 0
    shards: int = 0  # ranks that share out what ZeRO shards; 0 = all dp x cp of them
    moved_layers: int = 0  # whose activations the host holds, where these are offloaded; 0 = all but the last
    batches: int = 0  # micro-batches of a rank where these ranks do a part of the batch; 0 = they do all of it

    @property
    def num_micro_batches(self) -> int:
        return self.batches or self.table.job.options.global_batch // (self.dp * self.table.shape.micro_batch)

    @property
    def num_gpus(self) -> int:
        return self.table.shape.tp * self.table.shape.cp * self.pp * self.dp

    @property
    def config(self) -> TrainingConfig:
        """The choice as the costs know it, layers laid out evenly."""
        recompute = RecomputeConfig("full", num_layers=self.full_layers) if self.full_layers else self.mode.recompute
        return replace(
            self.table.config,
            pp=self.pp,
            vpp=self.vpp,
            dp=self.dp,
            schedule=self.schedule,
            zero_stage=self.zero_stage,
            zero_ranks=self.shards,
            offload=self.offload,
            moved_layers=self.moved_layers,
            recompute=recompute,
        )

    @property
    def idle_s(self) -> float:
        """Seconds of a step that the training code's GPUs wait for their hosts."""
        return idle_s(self.config, self.table.job.rates)

    def with_samples_s(self, step_s: float) -> float:
        """A step of so long with the samples of the next on their way."""
        job, own = self.table.job, self.num_micro_batches * self.table.shape.micro_batch
        return job.options.arriving.beside_s(step_s, own, job.options.global_batch, job.machine.fabric_bytes_per_s)

    @property
    def pipe(self) -> Pipe:
        return pipe_of(self.schedule, self.pp, self.vpp, self.num_micro_batches)


@dataclass(frozen=True, slots=True)
class Strategy:
    """How one layer runs, where layers differ: its stage's ranks are tp x cp x dp."""

    tp: int
    dp: int
    zero_stage: int
    recompute: RecomputeConfig


@dataclass(frozen=True, slots=True)
class PoolShare:
    """What one of several pools does: priced there, and which of the ranks of an evaluation lie on it."""

    choice: PlanChoice
    rows: range


@dataclass(frozen=True, slots=True)
class SideRun:
    """A tower or generator on GPUs of its own, which follow one another from `first_rank`."""

    tp: int
    dp: int
    first_rank: int
    cost: NetworkCost

    @property
    def num_gpus(self) -> int:
        return self.tp * self.dp


def handover(choice: PlanChoice) -> tuple[float, float]:
    """Seconds of one hand-over between stages, and the share of it that a rank spends on each pass."""
    if choice.pp == 1:
        return 0.0, 0.0
    job = choice.table.job
    share = exposed_share(job.rates, job.options.overlap, choice.vpp)
    return choice.table.message_s(choice.pp, choice.dp), share
