"""An RL post-training problem: pools, cost curves of replicas, lengths of successive iterations, modes allowed.

Array suffixes: N samples of one iteration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner.errors import PlannerError
from planner.rl.curves import NEVER_FITS, CurvePool, GenerationOption, Scoring, TrainingOption
from planner.rl.plan import RlMode, TrainingChoice
from planner.rl.rollouts.rollout import RolloutPolicy
from planner.rl.services import Services, apart
from planner.rl.trajectories import SampleBatch

Dispatch = Literal["fifo", "predicted_longest_first"]
Objective = Literal["iteration_time", "cost_per_iter"]


@dataclass(frozen=True, slots=True)
class RlProblem:
    """Choose replicas, training parallelism and mode so that the mean iteration is shortest or cheapest.

    `weight_sync_s` maps (generating pool, training pool) to seconds; a missing pair has no network. `samples` is how
    many an iteration trains on: fewer than a batch holds means over-sampling, the first to finish are taken; with
    `partial` the others go on in the next iteration, and no sample may begin more than `max_staleness` iterations
    before its training, synchrony included.
    An empty `training` means that only generation is planned. `max_groups` 2 allows a second group of replicas for the
    `tail_fractions` of samples with the largest predicted length. With `equal_shares` the data-parallel ranks divide
    the samples of a minibatch, as most training codes ask for. With `fusion_thresholds`, roles that take turns may
    score while the last of the samples, one of these shares of them, decode on fewer replicas: `scoring` by generating
    pool, with what may be apart. With `late_thresholds`, the last of the samples may go on on other replicas of the
    same GPUs, after `late_change_s` and with their context prefilled again. `policies` say how samples with turns may
    wait and move, the simulator's own where there are none. Modes whose weights are updated in flight hand samples out
    by prompts, of `samples_per_prompt` samples in a row. Every sample passes one of the `services` of each part before
    it is trained on; those with GPUs may be left out where a training scores beside them, or trains the critic, for a
    `Learner`.
    """

    pools: tuple[CurvePool, ...]
    generation: tuple[GenerationOption, ...]
    training: tuple[TrainingOption, ...]
    batches: tuple[SampleBatch, ...]
    minibatches: int
    modes: tuple[RlMode, ...]
    weight_sync_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    weight_sync_overlapped: bool = False
    switch_s: float = 0.0
    objective: Objective = "iteration_time"
    max_iteration_s: float | None = None
    dispatch: Dispatch = "fifo"
    max_groups: int = 1
    tail_fractions: tuple[float, ...] = ()
    samples: int | None = None
    equal_shares: bool = False
    scoring: Mapping[str, tuple[Scoring, ...]] = field(default_factory=dict)
    fusion_thresholds: tuple[float, ...] = ()
    policies: tuple[RolloutPolicy, ...] = ()
    samples_per_prompt: int = 1
    late_thresholds: tuple[float, ...] = ()
    late_change_s: float = 0.0
    partial: bool = False
    max_staleness: int | None = None
    bubbles: Mapping[TrainingChoice, float] = field(default_factory=dict)  # of updates, where not `update_bubble`
    services: Services = ()  # of which a plan has one a part

    @property
    def pool_of(self) -> dict[str, CurvePool]:
        return {pool.name: pool for pool in self.pools}

    def scoring_on(self, pool: str, services: Services) -> Scoring | None:
        """Of what these services leave to replicas of a pool that are set free; None where that is nothing."""
        return next((each for each in self.scoring.get(pool, ()) if each.apart == apart(services)), None)

    @property
    def trained_samples(self) -> int:
        """Samples an iteration trains on."""
        return self.samples if self.samples is not None else min(batch.size for batch in self.batches)


def validate(problem: RlProblem) -> None:
    """Raises PlannerError for the first thing in `problem` that no plan can fix, with the nearest value that works."""
    _counts(problem)
    _modes(problem)
    _partial(problem)
    _lengths(problem)
    _training_fits(problem)
    _networks(problem)


def _counts(problem: RlProblem) -> None:
    names = [pool.name for pool in problem.pools]
    used = {option.pool for option in problem.generation} | {option.pool for option in problem.training}
    for name in sorted(used - set(names)):
        raise PlannerError(f"no pool is called `{name}`", where="pools", hint=f"known: {', '.join(names)}")
    if not problem.batches or not all(batch.size for batch in problem.batches):
        raise PlannerError("needs at least one batch of at least one sample", where="batches", hint="give lengths")
    samples, parts = problem.trained_samples, problem.minibatches
    if not 1 <= samples <= min(batch.size for batch in problem.batches):
        smallest = min(batch.size for batch in problem.batches)
        raise PlannerError(
            f"{samples} samples to train on from batches of {smallest}", where="samples", hint=f"use 1 to {smallest}"
        )
    if problem.training and not 1 <= parts <= samples:
        raise PlannerError(
            f"{samples} samples cannot be split into {parts} minibatches",
            where="minibatches",
            hint=f"use 1 to {samples}",
        )


def _modes(problem: RlProblem) -> None:
    if not problem.modes:
        raise PlannerError("no placement and synchrony go together", where="modes", hint="allow `disaggregated`")
    for mode in problem.modes:
        shared = mode.placement != "disaggregated"
        if shared and mode.sync != "sync":
            raise PlannerError(
                f"`{mode.placement}` takes turns on the same GPUs and cannot be `{mode.sync}`",
                where="modes",
                hint="use `sync`, or `disaggregated`",
            )
        if mode.sync == "k_step_async" and mode.staleness < 1:
            raise PlannerError(
                f"asynchronous training with a staleness of {mode.staleness}",
                where="modes",
                hint="use a staleness of 1 or more, or `sync`",
            )


def _partial(problem: RlProblem) -> None:
    turns = any(batch.turns is not None for batch in problem.batches)
    flows = any(mode.in_flight for mode in problem.modes)
    if flows and (problem.partial or problem.samples is not None or problem.dispatch != "fifo" or turns):
        raise PlannerError(
            "with weights updated in flight every sample is trained on, in the order given, and has one turn",
            where="modes",
            hint="leave out over-sampling, partial rollouts, predicted lengths and turns, or updates in flight",
        )
    if problem.policies and (problem.partial or problem.fusion_thresholds or problem.late_thresholds):
        raise PlannerError(
            "samples that wait and move by policies are neither carried over nor fused",
            where="policies",
            hint="leave out partial rollouts, fusion and late thresholds",
        )
    if problem.partial and (problem.max_groups > 1 or problem.dispatch != "fifo" or problem.fusion_thresholds):
        raise PlannerError(
            "what is carried over goes first, to one group of replicas; nothing is ranked or fused",
            where="partial",
            hint="leave out tail fractions, predicted lengths and fusion",
        )


def _lengths(problem: RlProblem) -> None:
    if not problem.generation:
        raise PlannerError(
            "no replica of the model fits on any pool for generation",
            where="generation",
            hint="add a larger tp, or a GPU with more memory",
        )
    longest = max(int(batch.tokens_N.max()) for batch in problem.batches)
    pools = problem.pool_of
    fitting = [option for option in problem.generation if option.gpus <= pools[option.pool].gpus]
    if not fitting:
        smallest = min(option.gpus for option in problem.generation)
        raise PlannerError(
            f"a replica takes {smallest} GPUs, the largest pool has {max(pool.gpus for pool in problem.pools)}",
            where="pools",
            hint=f"give a pool at least {smallest} GPUs",
        )
    best = max(fitting, key=lambda option: option.curve.kv_tokens)
    if longest > best.curve.kv_tokens:
        what = f"a sample of {longest} tokens exceeds the KV capacity of every replica"
        capacity = best.curve.kv_tokens
        raise PlannerError(
            what,
            where="batches",
            hint=f"cap prompt and output at {capacity} tokens, what tp {best.tp} on `{best.pool}` holds",
        )


def _training_fits(problem: RlProblem) -> None:
    pools, limit = problem.pool_of, problem.trained_samples // problem.minibatches
    if problem.training and all(option.min_dp >= NEVER_FITS for option in problem.training):
        raise PlannerError(
            "training fits in the memory of no pool at any data parallelism",
            where="training",
            hint="add curves with larger tp and pp, or GPUs with more memory",
        )
    needed = [
        (option.gpus * option.min_dp - pools[option.pool].gpus, option)
        for option in problem.training
        if option.min_dp <= limit
    ]
    if problem.training and not needed:
        option = min(problem.training, key=lambda option: option.min_dp)
        raise PlannerError(
            f"training fits in memory from dp {option.min_dp} on, minibatches have {limit} samples",
            where="training",
            hint=f"use at most {problem.trained_samples // option.min_dp} minibatches",
        )
    if needed and min(short for short, _ in needed) > 0:
        short, option = min(needed, key=lambda pair: pair[0])
        count = option.gpus * option.min_dp
        raise PlannerError(
            f"training fits in memory from {count} GPUs on (tp {option.tp}, pp {option.pp}, dp {option.min_dp})",
            where="training",
            hint=f"give `{option.pool}` {short} more GPUs",
        )


def _networks(problem: RlProblem) -> None:
    if not problem.training or any(mode.placement != "disaggregated" for mode in problem.modes):
        return
    pairs = {(replica.pool, trainer.pool) for replica in problem.generation for trainer in problem.training}
    if not pairs & set(problem.weight_sync_s):
        generating, training = min(pairs)
        raise PlannerError(
            f"`{generating}` and `{training}` have no network in common, so new weights cannot reach the generators",
            where="weight_sync_s",
            hint="state what synchronisation takes, or allow `colocated`",
        )
