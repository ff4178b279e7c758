"""Pareto frontier of throughput per GPU against speed per user: one exact solve for each speed."""

from planner.kinds.serve.options import FrontierPoint
from planner.kinds.serve.steady.search import Outcome, ServeSetting, search
from planner.progress import Limits
from planner.solvers.mix_solve import certify
from planner.solvers.pareto import non_dominated

SPEEDS_TOKENS_PER_S = (5, 7.5, 10, 12.5, 15, 20, 25, 30, 35, 40, 45, 50, 60, 70, 80, 90, 100, 120, 140, 160, 180, 200)


def frontier(setting: ServeSetting, limits: Limits) -> tuple[FrontierPoint, ...]:
    """Non-dominated plans, slowest user first: for each speed the most tokens/s/GPU among plans at least as fast.

    Each point is the optimum of its own mix (epsilon-constraint method), with its own proven bound.
    """
    points: list[FrontierPoint] = []
    for speed in SPEEDS_TOKENS_PER_S:
        limits.tell(f"frontier at {speed:g} tokens/s per user")
        targets = tuple(target.no_slower_than(1.0 / speed) for target in setting.targets)
        outcome = search(setting, targets, limits, tie_break=False)
        if outcome.has_mix:
            points.append(_point(outcome))
    pairs = [(point.tokens_per_s_per_gpu, point.tokens_per_s_per_user) for point in points]
    return tuple(points[i] for i in non_dominated(pairs, maximise=(True, True))) if points else ()


def _point(outcome: Outcome) -> FrontierPoint:
    value = outcome.objective
    assert value is not None
    bound = certify(outcome.formulated.problem, outcome.result).bound()
    assert bound is not None, "a problem with a solution has a bound"
    used = [
        (candidate, count)
        for candidate, count in zip(outcome.formulated.candidates, outcome.solution.counts, strict=True)
        if count
    ]
    tpot = max(
        capacity.tpot_s
        for candidate, _ in used
        for capacity in candidate.capacities
        if capacity is not None and capacity.rate_per_s > 0.0
    )
    return FrontierPoint(
        tokens_per_s_per_gpu=value,
        tokens_per_s_per_user=1.0 / tpot,
        bound_tokens_per_s_per_gpu=max(value, outcome.formulated.in_metric(bound)),
        roles=tuple(
            f"{count} x {candidate.function} {candidate.label}"
            + (f", batch {candidate.max_batch}" if candidate.max_batch else "")
            for candidate, count in used
        ),
    )
