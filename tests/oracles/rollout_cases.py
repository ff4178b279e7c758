"""Small random rollouts: as plain data for the oracle, and as the simulator takes them."""

from typing import Any

import numpy as np

from planner.rl.curves import DecodeCurve
from planner.rl.rollouts.rollout import RolloutWorker
from planner.rl.trajectories import Trajectories

Json = dict[str, Any]


def random_case(seed: int) -> tuple[list[Json], list[Json], list[list[int]], Json]:
    """Workers, trajectories, queues and policy, as `rollout_oracle.NaiveRollout` takes them."""
    draw = np.random.default_rng(seed)
    count, queues = int(draw.integers(1, 13)), int(draw.integers(1, 3))
    trajectories = [_trajectory(draw) for _ in range(count)]
    longest = max(
        trajectory["prompt"] + sum(turn[0] + turn[2] for turn in trajectory["turns"]) for trajectory in trajectories
    )
    kinds = [_curve(draw, longest) for _ in range(2)]
    workers = [
        {"curve": kinds[int(draw.integers(2))], "queue": index % queues}
        for index in range(max(queues, int(draw.integers(1, 5))))
    ]
    order = [int(index) for index in draw.permutation(count)]
    split = [order] if queues == 1 else [order[: count // 2], order[count // 2 :]]
    policy = {
        "keep_kv": bool(draw.integers(2)),
        "longest_first": bool(draw.integers(2)),
        "move_threshold": float(draw.choice([np.inf, 1.0, 1.3])),
        "move_s": float(draw.uniform(0.0, 0.5)),
        "move_token_s": float(draw.uniform(0.0, 0.01)),
    }
    return workers, trajectories, split, policy


def _trajectory(draw: np.random.Generator) -> Json:
    turns = [
        (int(draw.integers(1, 16)), float(draw.exponential(0.4)), int(draw.integers(0, 6)))
        for _ in range(int(draw.integers(1, 5)))
    ]
    predicted = [float(draw.uniform(1, 50)) for _ in turns]
    return {"prompt": int(draw.integers(1, 9)), "turns": turns, "predicted": predicted}


def _curve(draw: np.random.Generator, longest: int) -> Json:
    return {
        "step": float(draw.uniform(0.01, 0.05)),
        "sequence": float(draw.uniform(0.0005, 0.01)),
        "token": float(draw.choice([0.0, 1e-4, 5e-4])),
        "prefill": float(draw.uniform(20, 300)),
        "max_running": int(draw.integers(1, 5)),
        "kv_tokens": int(longest * draw.uniform(1.0, 2.5)),
    }


def as_workers(workers: list[Json]) -> tuple[RolloutWorker, ...]:
    """Workers of the oracle for the simulator."""
    names = ("step", "sequence", "token", "prefill", "max_running", "kv_tokens")
    return tuple(
        RolloutWorker(DecodeCurve(*(worker["curve"][name] for name in names)), worker["queue"]) for worker in workers
    )


def as_trajectories(given_: list[Json]) -> Trajectories:
    """Trajectories of the oracle for the simulator."""
    turns = [turn for trajectory in given_ for turn in trajectory["turns"]]
    first = np.cumsum([0, *(len(trajectory["turns"]) for trajectory in given_)])
    predicted = np.array([left for trajectory in given_ for left in trajectory["predicted"]], float)
    prompt = np.array([trajectory["prompt"] for trajectory in given_], np.int64)
    outputs, tools, observations = (np.array(column) for column in zip(*turns, strict=True))
    return Trajectories(prompt, first, outputs.astype(np.int64), tools, observations.astype(np.int64), predicted)
