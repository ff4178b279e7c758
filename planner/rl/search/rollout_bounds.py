"""Bounds on rollouts of groups of replicas, before any is simulated.

Array suffixes: G groups (a replica kind and a count), B batches.
"""

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.curves import DecodeCurve, GenerationOption
from planner.rl.plan import GenerationGroup
from planner.rl.problem import RlProblem
from planner.rl.search.bounds import generation_bound_s
from planner.rl.services import (
    Services,
)


def queue_bounds_s(
    problem: RlProblem, groups: tuple[GenerationGroup, ...], queues_B: list[Ints], beside: Services | None = None
) -> Floats:
    """[G, B] seconds until all is generated, and scored there what services leave `beside` it; infinite where a sample
    does not fit."""
    bound_GB = np.empty((len(groups), len(queues_B)))
    of_option: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        of_option.setdefault(id(group.option), []).append(index)
    for members in of_option.values():
        curve = groups[members[0]].option.curve
        replicas = np.array([groups[index].replicas for index in members], float)
        if problem.partial:
            bound_GB[members] = _partial_bound_s(problem, curve, replicas)[:, None]
            continue
        for column, (batch, queue_Q) in enumerate(zip(problem.batches, queues_B, strict=True)):
            prompt_Q, output_Q = batch.prompt_tokens_N[queue_Q], batch.output_tokens_N[queue_Q]
            needed = len(queue_Q) - (batch.size - problem.trained_samples) if problem.samples else len(queue_Q)
            fits = (prompt_Q + output_Q).max(initial=0) <= curve.kv_tokens
            first_Q = prompt_Q if batch.turns is None else batch.turns.prompt_N[queue_Q]  # observations come later
            total_Q, group = prompt_Q + output_Q, groups[members[0]]
            beside_s = 0.0 if beside is None else _scoring_s(problem, group, total_Q, beside)
            bound = generation_bound_s(first_Q, output_Q, needed, curve, replicas, beside_s)
            bound_GB[members, column] = bound if fits else np.inf
    return bound_GB


def _partial_bound_s(problem: RlProblem, curve: DecodeCurve, replicas_G: Floats) -> Floats:
    """No mean iteration that carries samples over is shorter [G]: all together train on the shortest of all samples."""
    first = [batch.prompt_tokens_N if batch.turns is None else batch.turns.prompt_N for batch in problem.batches]
    prompt_N = np.concatenate([batch.prompt_tokens_N for batch in problem.batches])
    output_N = np.concatenate([batch.output_tokens_N for batch in problem.batches])
    if (prompt_N + output_N).max() > curve.kv_tokens:
        return np.full(len(replicas_G), np.inf)
    count = len(problem.batches)
    needed = count * problem.trained_samples
    return generation_bound_s(np.concatenate(first), output_N, needed, curve, replicas_G) / count


def _scoring_s(problem: RlProblem, group: GenerationGroup, tokens_N: Ints, services: Services) -> float:
    """Seconds of one replica to score all tokens; infinite where the pool scores nothing."""
    scoring = problem.scoring_on(group.option.pool, services)
    return np.inf if scoring is None else float(tokens_N.sum()) * scoring.gpu_s / group.option.gpus


def pair_bound_s(problem: RlProblem, early: GenerationGroup, late: GenerationGroup, queues_B: list[Ints]) -> Floats:
    """[B] seconds; infinite where a sample does not fit the early replicas, which all of them start on."""
    first, other = early.option.curve, late.option.curve
    better = DecodeCurve(
        min(first.step_s, other.step_s),
        min(first.sequence_s, other.sequence_s),
        min(first.token_s, other.token_s),
        max(first.prefill_tokens_per_s, other.prefill_tokens_per_s),
        max(first.max_running, other.max_running),
        max(first.kv_tokens, other.kv_tokens),
    )
    option = GenerationOption(early.option.pool, early.option.gpus, better, early.option.tp)
    group = GenerationGroup(option, max(early.replicas, late.replicas))
    bound_B = queue_bounds_s(problem, (group,), queues_B)[0]
    fits_B = [int(batch.tokens_N.max()) <= first.kv_tokens for batch in problem.batches]
    return np.where(fits_B, bound_B, np.inf)
