"""Optimal assignment of trajectories to workers, so that the rollout of a batch ends first.

Without moves, workers that have queues of their own do not meet: how long a set of trajectories takes on a kind of
worker is simulated once for every set, and the best partition is a dynamic program over sets, O(3^N) a worker. With
moves every assignment is simulated, as long as there are few. Beyond, the assignment is a heuristic and said to be.

Array suffixes: N trajectories, S sets of trajectories (bit masks).
"""

from dataclasses import dataclass
from itertools import product

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.curves import DecodeCurve
from planner.rl.rollouts.dispatch import placed
from planner.rl.rollouts.resume import subset
from planner.rl.rollouts.rollout import RolloutPolicy, RolloutWorker, simulate
from planner.rl.trajectories import Trajectories

MOST_IN_SETS = 10  # 3^10 pairs of sets a worker
MOST_SIMULATED = 20_000


@dataclass(frozen=True, slots=True)
class Assigned:
    """When the rollout ends, who starts where, and whether no other assignment ends sooner."""

    end_s: float
    worker_N: tuple[int, ...]
    proven: bool


class Assignments:
    """Best assignments of one batch under one policy; sets are simulated once for all mixes of workers."""

    def __init__(self, trajectories: Trajectories, predicted_N: Floats, policy: RolloutPolicy) -> None:
        self._trajectories, self._policy = trajectories, policy
        self._predicted_N = predicted_N
        self._order = np.argsort(-predicted_N, kind="stable")
        self._ends: dict[DecodeCurve, Floats] = {}
        self._parts: dict[tuple[DecodeCurve, ...], Floats] = {}
        self._below_S: list[Ints] = []

    def best(self, curves: tuple[DecodeCurve, ...]) -> Assigned:
        """The assignment to workers of these curves whose rollout ends first; infinite where none fits."""
        moves = np.isfinite(self._policy.move_threshold)
        count = self._trajectories.size
        if not moves and count <= MOST_IN_SETS:
            return self._partition(curves)
        if moves and len(curves) ** count <= MOST_SIMULATED:
            every = product(range(len(curves)), repeat=count)
            assigned = (Assigned(self._end_s(curves, worker_N), worker_N, True) for worker_N in every)
            return min(assigned, key=lambda assignment: assignment.end_s)
        return self._heuristic(curves)

    def _end_s(self, curves: tuple[DecodeCurve, ...], worker_N: tuple[int, ...]) -> float:
        need_N = self._trajectories.final_context_N
        if any(need > curves[worker].kv_tokens for need, worker in zip(need_N, worker_N, strict=True)):
            return np.inf
        places = np.array(worker_N)[self._order]
        queues = [self._order[places == worker] for worker in range(len(curves))]
        workers = tuple(RolloutWorker(curve, index) for index, curve in enumerate(curves))
        return simulate(workers, self._trajectories, queues, self._policy).end_s

    def _heuristic(self, curves: tuple[DecodeCurve, ...]) -> Assigned:
        """Neighbours in predicted length together, the longest on the fastest: `dispatch.placed`."""
        prompt = float(self._trajectories.prompt_N.mean())
        queues = placed(curves, self._predicted_N, prompt=prompt).queues
        worker_N = np.zeros(self._trajectories.size, np.int64)
        for worker, queue in enumerate(queues):
            worker_N[queue] = worker
        chosen = tuple(int(worker) for worker in worker_N)
        return Assigned(self._end_s(curves, chosen), chosen, False)

    def _partition(self, curves: tuple[DecodeCurve, ...]) -> Assigned:
        chain = tuple(sorted(range(len(curves)), key=lambda worker: (repr(curves[worker]), worker)))
        kinds = tuple(curves[worker] for worker in chain)
        mask = (1 << self._trajectories.size) - 1
        end_s = float(self._best_S(kinds)[mask])
        worker_N = [0] * self._trajectories.size
        for last in range(len(kinds) - 1, -1, -1):
            chosen = mask
            if last:
                below = self._below(mask)
                before, own = self._best_S(kinds[:last]), self._ends_S(kinds[last])
                chosen = int(below[np.argmin(np.maximum(before[mask ^ below], own[below]))])
            for trajectory in range(len(worker_N)):
                if chosen >> trajectory & 1:
                    worker_N[trajectory] = chain[last]
            mask ^= chosen
        return Assigned(end_s, tuple(worker_N), True)

    def _best_S(self, kinds: tuple[DecodeCurve, ...]) -> Floats:
        """When every set of trajectories is done on workers of `kinds` that share it in the best way [S]."""
        if kinds in self._parts:
            return self._parts[kinds]
        own = self._ends_S(kinds[-1])
        best = own
        if len(kinds) > 1:
            before = self._best_S(kinds[:-1])
            best = np.array(
                [np.maximum(before[mask ^ self._below(mask)], own[self._below(mask)]).min() for mask in range(len(own))]
            )
        self._parts[kinds] = best
        return best

    def _below(self, mask: int) -> Ints:
        """The subsets of a set."""
        if not self._below_S:
            self._below_S = [np.zeros(1, np.int64)]
            for upper in range(1, 1 << self._trajectories.size):
                top = 1 << (upper.bit_length() - 1)
                rest = self._below_S[upper ^ top]
                self._below_S.append(np.concatenate([rest, rest | top]))
        return self._below_S[mask]

    def _ends_S(self, curve: DecodeCurve) -> Floats:
        """When every set of trajectories is done on one worker [S]; infinite where one does not fit."""
        if curve not in self._ends:
            count = self._trajectories.size
            need_N = self._trajectories.final_context_N
            ends = np.zeros(1 << count)
            for mask in range(1, 1 << count):
                members = np.array([trajectory for trajectory in self._order if mask >> int(trajectory) & 1])
                if need_N[members].max() > curve.kv_tokens:
                    ends[mask] = np.inf
                else:
                    chosen = subset(self._trajectories, np.sort(members))
                    queue = np.searchsorted(np.sort(members), members)
                    ends[mask] = simulate((RolloutWorker(curve),), chosen, [queue], self._policy).end_s
            self._ends[curve] = ends
        return self._ends[curve]
