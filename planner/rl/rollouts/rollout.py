"""Exact simulation of a rollout: continuous batching on unequal workers, tool calls, priorities, migration.

Every worker decodes as `planner.rl.curves.DecodeCurve` says. A trajectory is turns of output tokens, each but the last
followed by a tool call and by observation tokens that are prefilled on return. On admission the KV of its final context
is reserved; a worker with nothing reserved admits anything. Workers admit when a turn ends on them and when a returning
trajectory can enter, at the end of the running step: those that wait, then new ones from their queue, nobody skipped.
Events at the same time: workers by index, then arrivals by trajectory.

Array suffixes: N trajectories, T turns of all trajectories, W workers.
"""

from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.rl.curves import DecodeCurve
from planner.rl.trajectories import Trajectories


@dataclass(frozen=True, slots=True)
class RolloutWorker:
    """A generating replica; workers of the same `queue` share its new trajectories."""

    curve: DecodeCurve
    queue: int = 0


@dataclass(frozen=True, slots=True)
class RolloutPolicy:
    """`keep_kv`: a tool call keeps the reservation; else the whole context is prefilled on return.

    `longest_first`: of those that wait, the one with most predicted tokens left goes first, else the first to come.
    At a tool call a trajectory moves to the worker v with the shortest step for one more, step_s + sequence_s (n_v + 1)
    with n_v trajectories there, if its reservation fits there and the step of its own worker, step_s + sequence_s n, is
    more than `move_threshold` times as long. It is back after its tool call and after move_s + move_token_s * context,
    whichever is later; without `keep_kv` nothing is sent.
    """

    keep_kv: bool = True
    longest_first: bool = False
    move_threshold: float = inf
    move_s: float = 0.0
    move_token_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Trajectories under way: when each comes [N] (infinite: from its queue), to which worker, and what it is.

    `context_N` tokens of context are there already, `prefill_N` of them must be prefilled again, `made_N` tokens of its
    turn `turn_N` are made. With `holds_N` its KV is reserved there from the start on. No worker starts before
    `busy_until_s_W`.
    """

    time_s_N: Floats
    worker_N: Ints
    context_N: Ints
    prefill_N: Ints
    turn_N: Ints
    made_N: Ints
    holds_N: Bools
    busy_until_s_W: Floats


@dataclass(frozen=True, slots=True, eq=False)
class TurnRecord:
    """On which worker each turn ran (-1: on none) and from when to when; not a number where it did not start or end."""

    worker_T: Ints
    started_s_T: Floats
    ended_s_T: Floats


@dataclass(frozen=True, slots=True, eq=False)
class RolloutResult:
    """When each trajectory was done, infinite where the rollout ended before; what those under way had made.

    `turn_N`, `made_N`, `context_N` and `worker_N` (-1: not started, or done) say where each trajectory stood.
    `ready_s_N` is from when on it can go on: the end of its last whole decode step or prefill, or of its tool call.
    """

    done_s_N: Floats
    end_s: float
    busy_s_W: Floats
    moved: int
    turn_N: Ints
    made_N: Ints
    context_N: Ints
    worker_N: Ints
    ready_s_N: Floats
    prefill_N: Ints  # tokens of context_N that are not prefilled
    running_N: Bools  # decoding, or being prefilled, when the rollout ended
    busy_until_s_W: Floats  # the end of a prefill under way
    turns: TurnRecord


def simulate(
    workers: tuple[RolloutWorker, ...],
    trajectories: Trajectories,
    queues: list[Ints],
    policy: RolloutPolicy | None = None,
    *,
    stop_after: int | None = None,
    until_s: float = inf,
    arrivals: Arrivals | None = None,
) -> RolloutResult:
    """Simulates the rollout until `stop_after` trajectories are done, or all, and no longer than `until_s`.

    `queues` hold the trajectories that start, in order, by the queue numbers of workers; missing ones are empty. Raises
    PlannerError for a trajectory that does not fit a worker of its queue.
    """
    from planner.rl.compiled import trajectories as program

    policy = policy if policy is not None else RolloutPolicy()
    missing = max(worker.queue for worker in workers) + 1 - len(queues)
    queues = [*queues, *([np.zeros(0, np.int64)] * missing)]
    _require_fit(workers, trajectories, queues)
    state = _state(workers, trajectories, queues, policy, arrivals)
    time_s_N = arrivals.time_s_N if arrivals is not None else np.full(trajectories.size, inf)
    count = trajectories.size if stop_after is None else stop_after
    end_s = float(program.run_trajectories(state, count, float(until_s), time_s_N))
    rows = state.trajectory
    return RolloutResult(
        done_s_N=state.done_s,
        end_s=end_s,
        busy_s_W=state.time_W[:, program.BUSY_S].copy(),
        moved=int(state.counters[program.MOVED]),
        turn_N=rows[:, program.NOW] - trajectories.first_N[:-1],
        made_N=rows[:, program.MADE].copy(),
        context_N=rows[:, program.CONTEXT_TOKENS].copy(),
        worker_N=rows[:, program.AT].copy(),
        ready_s_N=state.key,
        prefill_N=rows[:, program.TO_PREFILL].copy(),
        running_N=rows[:, program.NEXT] == program.DECODING,
        busy_until_s_W=state.time_W[:, program.SEGMENT_S].copy(),
        turns=TurnRecord(
            state.record_T[:, program.WORKER].astype(np.int64),
            state.record_T[:, program.STARTED_S].copy(),
            state.record_T[:, program.ENDED_S].copy(),
        ),
    )


def _require_fit(workers: tuple[RolloutWorker, ...], trajectories: Trajectories, queues: list[Ints]) -> None:
    need_N = trajectories.final_context_N
    for number, queue in enumerate(queues):
        served = [worker.curve.kv_tokens for worker in workers if worker.queue == number]
        if len(queue) and not served:
            raise PlannerError(f"no worker serves queue {number}", where="queues", hint="give each queue a worker")
        if len(queue) and need_N[queue].max() > min(served):
            raise PlannerError(
                f"a trajectory of {need_N[queue].max()} tokens exceeds the {min(served)} of a worker of its queue",
                where="queues",
                hint="send it to a worker with more KV capacity",
            )


def _state(
    workers: tuple[RolloutWorker, ...],
    trajectories: Trajectories,
    queues: list[Ints],
    policy: RolloutPolicy,
    arrivals: Arrivals | None,
) -> Any:  # noqa: ANN401 - a named tuple of the compiled program
    from planner.rl.compiled import trajectories as program

    num, turns = trajectories.size, len(trajectories.output_T)
    slots = max(1, min(num, max(worker.curve.max_running for worker in workers)))
    ends = np.cumsum([len(queue) for queue in queues])
    posts = len(workers) + 6 * turns + num + 16  # each arrival posts itself and at most two events of its worker
    curve_W = [
        (worker.curve.step_s, worker.curve.sequence_s, worker.curve.token_s, 1 / worker.curve.prefill_tokens_per_s)
        for worker in workers
    ]
    count_W = np.zeros((len(workers), 6), np.int64)
    count_W[:, program.HEAD] = program.NONE
    count_W[:, program.QUEUE] = [worker.queue for worker in workers]
    time_W = np.zeros((len(workers), 6))
    rows = _rows(trajectories, arrivals)
    if arrivals is not None:
        time_W[:, program.SEGMENT_S] = arrivals.busy_until_s_W
        context_N = rows[:, program.NEED] * rows[:, program.HOLDS]
        np.add.at(count_W[:, program.RESERVED], arrivals.worker_N, context_N)
    return program.State(
        curve_W=np.array(curve_W, float),
        limit_W=np.array([(worker.curve.max_running, worker.curve.kv_tokens) for worker in workers], np.int64),
        time_W=time_W,
        count_W=count_W,
        trajectory=rows,
        turn_tokens=np.column_stack([trajectories.output_T, trajectories.observation_T]).astype(np.int64),
        turn_s=np.column_stack([trajectories.tool_s_T, trajectories.predicted_T]).astype(float),
        queue=np.concatenate([np.zeros(0, np.int64), *queues]).astype(np.int64),
        queue_end=ends.astype(np.int64),
        queue_head=(ends - [len(queue) for queue in queues]).astype(np.int64),
        done_s=np.full(num, inf),
        key=np.zeros(num),
        finish=np.zeros(len(workers) * slots),
        running=np.zeros(len(workers) * slots, np.int64),
        event_s=np.zeros(posts),
        event=np.zeros(posts, np.int64),
        counters=np.zeros(3, np.int64),
        flags=np.array([policy.keep_kv, policy.longest_first], np.int64),
        moves=np.array([policy.move_threshold, policy.move_s, policy.move_token_s], float),
        record_T=np.column_stack([np.full(turns, -1.0), np.full((turns, 2), np.nan)]),
    )


def _rows(trajectories: Trajectories, arrivals: Arrivals | None) -> Ints:
    from planner.rl.compiled import trajectories as program

    rows = np.zeros((trajectories.size, 10), np.int64)
    rows[:, program.FIRST] = rows[:, program.NOW] = trajectories.first_N[:-1]
    rows[:, program.LAST] = trajectories.first_N[1:] - 1
    rows[:, program.NEED] = trajectories.final_context_N
    rows[:, program.CONTEXT_TOKENS] = rows[:, program.TO_PREFILL] = trajectories.prompt_N
    rows[:, program.AT] = rows[:, program.NEXT] = program.NONE
    if arrivals is not None:
        rows[:, program.NOW] += arrivals.turn_N
        rows[:, program.CONTEXT_TOKENS], rows[:, program.TO_PREFILL] = arrivals.context_N, arrivals.prefill_N
        rows[:, program.AT], rows[:, program.MADE] = arrivals.worker_N, arrivals.made_N
        rows[:, program.HOLDS] = arrivals.holds_N
    return rows
