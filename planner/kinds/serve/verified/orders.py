"""Each order of requests that a problem allows is searched as if it were the only one; the best verified plan wins.

An order is whose turn it is (`options.queueing`), or one cache that all engines keep together (`options.elastic`). What
a problem of one order is answered with is so no better than what a problem of more is, but for what is not worthwhile
(`climb.WORTHWHILE`), for which the order that is named first is kept. Loads that short streams keep tell little of
orders that favour some requests: others may wait for longer than these streams last, so that plans of unlike orders are
compared by what fresh streams confirm.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TypeAlias

from pydantic import JsonValue

from planner.errors import Infeasible
from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.engine_rules import ways_of_models
from planner.kinds.serve.steady.search import Outcome, ServeSetting, search, shape_spaces
from planner.kinds.serve.verified.budget import Budget
from planner.kinds.serve.verified.climb import WORTHWHILE
from planner.kinds.serve.verified.loop import Brief, best_verified
from planner.kinds.serve.verified.plan import Evidence, Verified, verified_plan
from planner.kinds.serve.verified.verifiable import STOPPED, Unverified
from planner.plan.schema import Envelope
from planner.progress import Limits

ORDERS = "orders"  # of a proof: what each of several is worth
TIME_LIMIT = "time_limit"  # stop reason
Best: TypeAlias = tuple[Verified, Evidence]


@dataclass(frozen=True, slots=True)
class SearchedOrder:
    """The best plan of an order that was verified, or why there is none."""

    options: ServeOptions
    answer: Best | Unverified | Infeasible
    cut: bool  # whether the time limit ended its search

    @property
    def value(self) -> float | None:
        """In the metric of the problem; None where no plan was verified."""
        return self.answer[0].outcome.objective if isinstance(self.answer, tuple) else None

    @property
    def told(self) -> JsonValue:
        """As a certificate tells it."""
        (queueing,), (elastic,) = self.options.queueing, self.options.elastic
        return {
            "queueing": queueing,
            "elastic": elastic,
            "objective": self.value,
            **({} if isinstance(self.answer, tuple) else {"why": str(self.answer)}),
            "stop_reason": TIME_LIMIT if self.cut else "finished",
        }


def solve_verified(
    setting: ServeSetting,
    outcome: Outcome,
    limits: Limits,
    started_s: float,
    bounds: ProblemBounds | None = None,
    brief: Brief | None = None,
) -> Envelope:
    """The best plan that keeps its limits in simulation, of any order; `outcome` is what steady state makes of it.

    `bounds` are those of the problem, where they are known; `brief` of a search beside others. Every order has an equal
    part of the time that those before it leave. Where no plan of any is verified: raises Unverified if simulation was
    too much work for one of them, or the time limit, counted from `started_s`, ended its search, and else Infeasible.
    """
    bounds = bounds or ProblemBounds.within(setting, limits, started_s)
    orders, searched = list(orders_of(setting)), list[SearchedOrder]()
    for number, own in enumerate(orders):
        own_limits = replace(limits, explain=limits.explain and number == 0)  # the first one's conflict is named
        budget = Budget(own_limits, started_s, len(orders) - number)
        answer: Best | Unverified | Infeasible
        try:
            answer = _best_of(own, outcome if own is setting else None, budget, bounds, brief)
        except (Unverified, Infeasible) as error:
            answer = error
        searched.append(SearchedOrder(own.options, answer, budget.cut))
    answers = [each.answer for each in searched if isinstance(each.answer, tuple)]
    if not answers:
        raise _none_verified(setting, searched)
    verified, evidence = reduce(better_of, answers)
    return _with_orders(verified_plan(setting, verified, evidence, bounds.whole), searched)


def _best_of(
    own: ServeSetting, outcome: Outcome | None, budget: Budget, bounds: ProblemBounds, brief: Brief | None
) -> Best:
    """The best verified mix of one order, whose steady state may be known."""
    budget.require_time()
    proposed = search(own, own.targets, budget.left) if outcome is None else outcome
    if not (proposed.has_mix or proposed.proven):
        budget.cut = True
        raise Unverified(STOPPED)
    return best_verified(own, proposed, budget, bounds, brief)


def _none_verified(setting: ServeSetting, searched: Sequence[SearchedOrder]) -> Unverified | Infeasible:
    """What is said where no order has a plan; formulas prove nothing of orders that they do not price."""
    errors = [each.answer for each in searched if not isinstance(each.answer, tuple)]
    for error in errors:
        if isinstance(error, Unverified):
            return error
    (first, *_) = (error for error in errors if isinstance(error, Infeasible))
    return Infeasible(first.conflict, proved=first.proved and not setting.options.reordered)


def _with_orders(plan: Envelope, searched: Sequence[SearchedOrder]) -> Envelope:
    """The plan with what each of several orders is worth, and whether the time limit ended a search."""
    certificate, update = plan.certificate, dict[str, JsonValue]()
    if len(searched) > 1:
        update["proof"] = {**certificate.proof, ORDERS: [each.told for each in searched]}
    if certificate.status != "optimal" and any(each.cut for each in searched):
        update["stop_reason"] = TIME_LIMIT
    return plan.model_copy(update={"certificate": certificate.model_copy(update=update)})


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


def better_of(best: Best, other: Best) -> Best:
    """The one of less cost or worthwhile more goodput; else the one whose order is named first."""
    maximising = best[0].outcome.formulated.problem.maximising
    first, second = best[0].outcome.objective, other[0].outcome.objective
    assert first is not None
    assert second is not None
    return other if (second > first * WORTHWHILE if maximising else second < first) else best
