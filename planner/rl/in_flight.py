"""Rollouts that flow: weights are updated while samples are under way, and no replica waits for the longest of a batch.

PipelineRL (arXiv:2509.19128) and AReaL (arXiv:2505.24298) begin samples of the next iterations as others end; NeMo-RL
does with `in_flight_weight_updates`, a prompt at a time, and at most as many prompts under way as `staleness`
iterations have. Caches of samples under way are kept.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from planner.rl.curves import DecodeCurve
from planner.rl.generation import busy_s
from planner.rl.plan import GenerationGroup, RlMode
from planner.rl.problem import RlProblem
from planner.rl.training import Flow


def flows(problem: RlProblem, groups: tuple[GenerationGroup, ...], modes: Sequence[RlMode]) -> Mapping[int, Flow]:
    """By the staleness of those `modes` whose weights are updated in flight; none for several groups."""
    wanted = {mode.staleness for mode in modes if mode.in_flight} if len(groups) == 1 else set()
    return {staleness: flow_of(problem, groups[0], staleness) for staleness in sorted(wanted)}


def flow_of(problem: RlProblem, group: GenerationGroup, staleness: int) -> Flow:
    """Batches of `problem` in turn on one group of replicas, simulated past the first `staleness` of them.

    The period is no shorter than what replicas are busy for, however the few batches simulated end.
    """
    from planner.rl.compiled.window import run_window

    curve, count = group.option.curve, len(problem.batches)
    batches = [problem.batches[place % count] for place in range(2 * staleness + count + 1)]
    started_s_Q, done_s_Q = run_window(
        np.concatenate([batch.prompt_tokens_N for batch in batches]),
        np.concatenate([batch.output_tokens_N for batch in batches]),
        problem.samples_per_prompt,
        staleness * max(1, batches[0].size // problem.samples_per_prompt),
        group.replicas,
        curve.step_s,
        curve.sequence_s,
        curve.token_s,
        float(curve.prefill_tokens_per_s),
        curve.max_running,
        curve.kv_tokens,
    )
    first = np.cumsum([0, *(batch.size for batch in batches[:-1])])
    end_s = np.maximum.accumulate(np.maximum.reduceat(done_s_Q, first))
    steady = slice(staleness + 1, staleness + 1 + count)
    period_s = (end_s[staleness + count] - end_s[staleness]) / count
    least_s = mean_busy_s(problem, curve) / group.replicas
    begun_s = np.minimum.reduceat(started_s_Q, first)
    return Flow(max(float(period_s), least_s), float((end_s - begun_s)[steady].mean()))


def mean_busy_s(problem: RlProblem, curve: DecodeCurve) -> float:
    """Seconds of a mean iteration for which replicas are busy, together, at least."""
    busy = [busy_s(b.prompt_tokens_N, b.output_tokens_N, b.size, curve) for b in problem.batches]
    return sum(busy) / len(busy)
