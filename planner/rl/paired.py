"""Actor and critic trained at once (RLHFuse): two pipelines fused on the same GPUs in opposite directions.

Source: RLHFuse (arXiv:2409.13221), section 5. A machine of `planner.solvers.schedules.fused_pipelines` is a stage of
the actor's
replica; on its GPUs critic replicas of fewer GPUs run side by side in step. A minibatch is cut into as many equal
micro-batches as the mean one of the problem needs; its bubble, in micro-batches, is taken for all minibatches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from planner.errors import PlannerError
from planner.rl.curves import Critic, TrainingOption
from planner.rl.plan import TrainingChoice
from planner.rl.problem import RlProblem
from planner.solvers.flow_shop import ShopSchedule, read_off
from planner.solvers.result import SolveResult
from planner.solvers.schedules.fused_pipelines import THREADS, FusedProblem, Pipeline, lower_bound, solve_fused

Order = tuple[tuple[int, ...], ...]


def pairs_with(critic_gpus: int, critic_pp: int, gpus: int, pp: int) -> bool:
    """Whether whole pipelines of a critic lie on the stages of an actor replica."""
    return pp % critic_pp == 0 and critic_gpus % critic_pp == 0 and (gpus // pp) % (critic_gpus // critic_pp) == 0


@dataclass(frozen=True, slots=True)
class Pair:
    """A training choice with its critic, cut into micro-batches for the mean minibatch."""

    option: TrainingOption
    critic: Critic
    tokens: float  # of the mean minibatch on one actor replica
    actor_jobs: int
    critic_jobs: int  # of each critic pipeline

    @classmethod
    def of(cls, problem: RlProblem, choice: TrainingChoice, critic: Critic) -> "Pair":
        sizes = [float(batch.tokens_N.mean()) for batch in problem.batches]
        mean = sum(sizes) / len(sizes) * problem.trained_samples / problem.minibatches / choice.dp
        replicas = choice.option.gpus // critic.gpus
        actor_jobs, critic_jobs = (
            max(1, ceil(mean / choice.option.micro_tokens)),
            max(1, ceil(mean / (replicas * critic.micro_tokens))),
        )
        return cls(choice.option, critic, mean, actor_jobs, critic_jobs)

    @property
    def work_s(self) -> float:
        """Seconds that every GPU computes for the mean minibatch."""
        critic = self.critic
        each = critic.actor_forward_gpu_s + critic.actor_backward_gpu_s + critic.forward_gpu_s + critic.backward_gpu_s
        return self.tokens * each / self.option.gpus

    def bubble(self, makespan_s: float) -> float:
        """Micro-batches of the actor that a GPU waits in an update of this makespan."""
        return max(0.0, makespan_s / self.work_s - 1.0) * self.actor_jobs

    def makespan_s(self, bubble: float) -> float:
        """The update that waits for `bubble` micro-batches."""
        return self.work_s * (1.0 + bubble / self.actor_jobs)

    def pipelines(self) -> FusedProblem:
        """The actor over all stages; over each block of them the critic, the other way."""
        critic, option = self.critic, self.option
        job_s = self.tokens / self.actor_jobs / option.gpus
        forward, backward = job_s * critic.actor_forward_gpu_s, job_s * critic.actor_backward_gpu_s
        stages = tuple(range(option.pp))
        pipelines = [_pipeline(stages, self.actor_jobs, forward, backward, critic.actor_in_flight_bytes)]
        side_by_side = option.gpus // option.pp // (critic.gpus // critic.pp)
        blocks = option.pp // critic.pp
        job_s = self.tokens / (blocks * side_by_side * self.critic_jobs) / critic.gpus
        forward, backward = job_s * critic.forward_gpu_s, job_s * critic.backward_gpu_s
        for block in range(blocks):
            first = block * critic.pp
            machines = tuple(range(first + critic.pp - 1, first - 1, -1))
            pipelines.append(_pipeline(machines, self.critic_jobs, forward, backward, critic.in_flight_bytes))
        return FusedProblem(tuple(pipelines), (critic.room_bytes,) * option.pp)


def _pipeline(machines: tuple[int, ...], jobs: int, forward: float, backward: float, job_bytes: float) -> Pipeline:
    return Pipeline(machines, jobs, (forward,) * len(machines), (backward,) * len(machines), job_bytes)


Critics = Mapping[TrainingOption, Critic]


def pairs(problem: RlProblem, choices: Sequence[TrainingChoice], critics: Critics) -> dict[TrainingChoice, Pair]:
    """Choices whose critic can run through their stages."""
    pair_of = {}
    for choice in choices:
        critic = critics.get(choice.option)
        if critic is not None and pairs_with(critic.gpus, critic.pp, choice.option.gpus, choice.option.pp):
            pair_of[choice] = Pair.of(problem, choice, critic)
    return pair_of


def least_bubble(pair: Pair) -> float:
    """A bubble that no schedule of the pair undercuts; that of training in turn where it is less."""
    return min(pair.option.update_bubble, pair.bubble(lower_bound(pair.pipelines()) * (1 - 1e-9)))


def solve_pair(pair: Pair, *, time_limit_s: float, seed: int, threads: int | None = None) -> SolveResult[ShopSchedule]:
    """A schedule of the pair; INFEASIBLE where one micro-batch does not fit."""
    return solve_fused(
        pair.pipelines(),
        time_limit_s=time_limit_s,
        seed=seed,
        threads=threads or THREADS,
        restarts=RESTARTS,
        replayed=REPLAYED,
    )


RESTARTS = 1  # of annealing: what the first leaves open, more rarely close, and each may take seconds
REPLAYED = 1e8  # passes by one annealing, a second or two
LETTERS = "AaCc"
"""Passes in an order as it is written: actor forward and backward, critic forward and backward."""


def written_order(pair: Pair, order: Order) -> list[str]:
    """One letter a pass and one text a stage, such as `AAAaCc`."""
    letter_of = _letters(pair)
    return ["".join(letter_of[stage][task] for task in tasks) for stage, tasks in enumerate(order)]


def read_order(pair: Pair, texts: Sequence[str]) -> ShopSchedule:
    """The schedule of a written order; raises PlannerError where it is none."""
    letter_of = _letters(pair)
    if len(texts) != len(letter_of):
        raise PlannerError(f"orders of {len(texts)} stages, the actor has {len(letter_of)}", where="order")
    order = []
    for stage, text in enumerate(texts):
        task_of = {letter: task for task, letter in letter_of[stage].items()}
        if not set(text) <= set(task_of):
            raise PlannerError(f"stage {stage} knows passes {LETTERS}, found `{text[:40]}`", where="order")
        order.append([task_of[letter] for letter in text])
    return read_off(pair.pipelines().shop, order)


def _letters(pair: Pair) -> list[dict[int, str]]:
    """By stage, the letter of each of its four types of passes."""
    problem = pair.pipelines()
    letter_of: list[dict[int, str]] = [{} for _ in range(pair.option.pp)]
    for task, (pipeline, machine, forward) in enumerate(
        zip(problem.pipeline_T.tolist(), problem.shop.machine_T.tolist(), problem.shop.forward_T.tolist(), strict=True)
    ):
        letter_of[machine][task] = LETTERS[2 * min(pipeline, 1) + (0 if forward else 1)]
    return letter_of
