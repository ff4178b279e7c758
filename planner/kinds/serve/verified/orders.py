"""Each order of requests that a problem allows is searched as if it were the only one; the best verified plan wins.

An order is whose turn it is (`options.queueing`), or one cache that all engines keep together (`options.elastic`). What
a problem of one order is answered with is so no better than what a problem of more is. Loads that short streams keep
tell little of orders that favour some requests: others may wait for longer than these streams last, so that plans of
unlike orders are compared by what fresh streams confirm.
"""

import time
from collections.abc import Iterator
from dataclasses import replace

from planner.errors import Infeasible
from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.engine_rules import ways_of_models
from planner.kinds.serve.steady.search import Outcome, ServeSetting, search, shape_spaces
from planner.kinds.serve.verified.loop import Brief, best_verified
from planner.kinds.serve.verified.plan import Evidence, Verified, verified_plan
from planner.kinds.serve.verified.verifiable import Unverified
from planner.plan.schema import Envelope
from planner.progress import Limits


def solve_verified(
    setting: ServeSetting,
    outcome: Outcome,
    limits: Limits,
    started_s: float,
    bounds: ProblemBounds | None = None,
    brief: Brief | None = None,
) -> Envelope:
    """The best plan that keeps its limits in simulation, of any order; `outcome` is what steady state makes of it.

    `bounds` are those of the problem, where they are known; `brief` of a search beside others. Raises Infeasible where
    none of the proposals keeps them, and Unverified where simulation is too much work, or the time limit, counted from
    `started_s`, ends it: what the first order says of which no plan is verified.
    """
    bounds = bounds or ProblemBounds(setting)
    orders = list(orders_of(setting))
    best: tuple[Verified, Evidence] | None = None
    ended: Unverified | Infeasible | None = None
    for number, own in enumerate(orders):
        share, begun_s = _share_of(limits, started_s, number, len(orders))
        proposed = outcome if own is setting else search(own, own.targets, share)
        if number and not proposed.has_mix:
            continue
        try:
            answer = best_verified(own, proposed, share, begun_s, bounds, brief)
        except (Unverified, Infeasible) as error:
            ended = ended or error
            continue
        if best is None or _is_better(answer[0], best[0]):
            best = answer
    if best is None:
        assert ended is not None
        raise ended
    verified, evidence = best
    return verified_plan(setting, verified, evidence, bounds.whole)


def orders_of(setting: ServeSetting) -> Iterator[ServeSetting]:
    """The problem with each order alone; itself where there is one, or where none of them has a place in it."""
    allowed = list(_orders(setting))
    if len(allowed) <= 1 and setting.options in (allowed or [setting.options]):
        yield setting
        return
    for options in allowed:
        stated = {**setting.resolved.problem.options, "max_shapes": options.max_shapes}
        problem = setting.resolved.problem.model_copy(update={"options": stated})
        spaces = shape_spaces(setting.costs_of_pool, setting.release, options)
        ways = ways_of_models(setting.release, setting.costs_of_pool, spaces)
        resolved = replace(setting.resolved, problem=problem)
        yield replace(setting, resolved=resolved, options=options, spaces=spaces, ways=ways, priced={})


def _orders(setting: ServeSetting) -> Iterator[ServeOptions]:
    """Options of one order each; engines that share a cache are of one type, and whole."""
    options = setting.options
    if False in options.elastic:
        for queueing in options.queueing:
            yield options.model_copy(update={"queueing": (queueing,), "elastic": (False,)})
    if True in options.elastic and "fcfs" in options.queueing and _may_share(setting):
        whole = {"modes": ("colocated",), "pp": (1,), "dp": (1,), "speculation": None, "max_shapes": 1}
        yield options.model_copy(update={"queueing": ("fcfs",), "elastic": (True,), **whole})


def _may_share(setting: ServeSetting) -> bool:
    """Whether engines that do both, whole, without drafts or cached prompts, are in the space."""
    options = setting.options
    whole = all(degrees is None or 1 in degrees for degrees in (options.pp, options.dp))
    plain = not any(target.prefix_hits or target.encoding for target in setting.targets)
    return whole and plain and "colocated" in options.modes and 0 in options.searched_drafts


def _share_of(limits: Limits, started_s: float, number: int, count: int) -> tuple[Limits, float]:
    """The limits of one of so many orders, an equal part of the time that is left, and when that begins."""
    begun_s = time.monotonic() if number else started_s
    if limits.time_limit_s is None:
        return limits, begun_s
    left_s = limits.time_limit_s - (begun_s - started_s)
    return replace(limits, time_limit_s=max(left_s, 0.0) / (count - number)), begun_s


def _is_better(verified: Verified, other: Verified) -> bool:
    value, best = verified.outcome.objective, other.outcome.objective
    assert value is not None
    assert best is not None
    return value > best if verified.outcome.formulated.sense == "maximize" else value < best
