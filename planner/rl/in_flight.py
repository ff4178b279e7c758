"""Rollouts that flow: weights are updated while samples are under way, and no replica waits for the longest of a batch.

PipelineRL (arXiv:2509.19128) and AReaL (arXiv:2505.24298) begin samples of the next iterations as others end; NeMo-RL
does with `in_flight_weight_updates`, a prompt at a time, and at most as many prompts under way as `staleness`
iterations have. Caches of samples under way are kept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.compiled.window import run_window
from planner.rl.curves import DecodeCurve
from planner.rl.generation import busy_s
from planner.rl.plan import GenerationGroup, RlMode
from planner.rl.problem import RlProblem
from planner.rl.training import Flow


def flows(problem: RlProblem, groups: tuple[GenerationGroup, ...], modes: Sequence[RlMode]) -> Mapping[int, Flow]:
    """By the staleness of those `modes` whose weights are updated in flight; none for several groups."""
    wanted = {mode.staleness for mode in modes if mode.in_flight} if len(groups) == 1 else set()
    return {staleness: flow_of(problem, groups[0], staleness) for staleness in sorted(wanted)}


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Batches in turn as samples in the order in which they are handed out, simulated on a group of replicas.

    The first `ahead` batches are left out of what is told, and as many follow on those that are.
    """

    prompt_Q: Ints
    output_Q: Ints
    started_s_Q: Floats
    done_s_Q: Floats
    first_B: Ints  # sample of each batch
    ahead: int
    window: int  # prompts under way

    def ends_s(self, done_s_Q: Floats) -> Floats:
        """When each batch, and all before it, are done [B]."""
        return np.asarray(np.maximum.accumulate(np.maximum.reduceat(done_s_Q, self.first_B)))

    def period_s(self, done_s_Q: Floats) -> float:
        """From the end of one batch to that of the next, on average."""
        end_s_B = self.ends_s(done_s_Q)
        last = len(end_s_B) - 1 - self.ahead
        return float(end_s_B[last] - end_s_B[self.ahead]) / (last - self.ahead)

    @property
    def residence_s(self) -> float:
        """From when the first sample of a batch starts to when its last one is done, on average."""
        begun_s_B = np.minimum.reduceat(self.started_s_Q, self.first_B)
        steady = slice(self.ahead + 1, len(begun_s_B) - self.ahead)
        return float((self.ends_s(self.done_s_Q) - begun_s_B)[steady].mean())


def flow_of(problem: RlProblem, group: GenerationGroup, staleness: int) -> Flow:
    """Batches of `problem` in turn on one group of replicas.

    The period is no shorter than what replicas are busy for, however the few batches simulated end.
    """
    chain = chain_of(problem, group, staleness)
    least_s = mean_busy_s(problem, group.option.curve) / group.replicas
    return Flow(max(chain.period_s(chain.done_s_Q), least_s), chain.residence_s)


def chain_of(problem: RlProblem, group: GenerationGroup, staleness: int) -> Chain:
    """Every batch of `problem`, behind `staleness` + 1 and before as many more less one, simulated."""
    curve, count = group.option.curve, len(problem.batches)
    batches = [problem.batches[place % count] for place in range(2 * staleness + count + 1)]
    prompt_Q = np.concatenate([batch.prompt_tokens_N for batch in batches])
    output_Q = np.concatenate([batch.output_tokens_N for batch in batches])
    window = staleness * max(1, batches[0].size // problem.samples_per_prompt)
    started_s_Q, done_s_Q = run_window(prompt_Q, output_Q, problem.samples_per_prompt, window, group.replicas, curve)
    first_B = np.cumsum([0, *(batch.size for batch in batches[:-1])])
    return Chain(prompt_Q, output_Q, started_s_Q, done_s_Q, first_B, staleness, window)


def mean_busy_s(problem: RlProblem, curve: DecodeCurve) -> float:
    """Seconds of a mean iteration for which replicas are busy, together, at least."""
    busy = [busy_s(b.prompt_tokens_N, b.output_tokens_N, b.size, curve) for b in problem.batches]
    return sum(busy) / len(busy)
