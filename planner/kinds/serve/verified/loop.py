"""Steady state proposes, simulation verifies: the best plan that keeps its limits when every step is simulated.

The exact mix of steady state (`steady.search`) proposes; a proposal is simulated on streams that all proposals share,
and the largest load at which it keeps its limits is found by bisection. What it keeps, as a share of what steady state
allows, is learnt of the instance types that the binding limits are about, and of all others of their function as far as
none of them is known to do better; the mix is solved again with the rates so corrected, until it proposes nothing
better than the best plan that kept its limits, nor does one that takes shapes not simulated at their word. The best
plan is varied as far as that gives more (`verified.climb`), and verified on streams that none was chosen on
(`verified.confirm`).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.errors import Conflict, Infeasible
from planner.kinds.serve.bounds.bound import ProblemBounds
from planner.kinds.serve.plan.decode import proposal
from planner.kinds.serve.plan.place import Unplaceable
from planner.kinds.serve.steady.conflicts.limits import explain_infeasible
from planner.kinds.serve.steady.demand import relaxed
from planner.kinds.serve.steady.search import Outcome, ServeSetting, search, solve_problem
from planner.kinds.serve.verified.budget import OF_TIME_LIMIT, Budget, OutOfTime
from planner.kinds.serve.verified.capacity import ROUGHLY, LoadKept
from planner.kinds.serve.verified.climb import WORTHWHILE
from planner.kinds.serve.verified.confirm import Confirmed, Unconfirmed, confirm
from planner.kinds.serve.verified.kept import Kept
from planner.kinds.serve.verified.learnt import Learnt
from planner.kinds.serve.verified.plan import Evidence, Verified, answered_per_s, limits_of
from planner.kinds.serve.verified.settled import MOST_REFUTED, best_confirmed
from planner.kinds.serve.verified.shared_streams import SharedStreams
from planner.kinds.serve.verified.traced import trace_rows
from planner.kinds.serve.verified.trials import Trials, Variants
from planner.kinds.serve.verified.verifiable import Unverified
from planner.problem.slo import SloSpec
from planner.simulate.fleet.shared_grids import SharedGrids
from planner.simulate.judge.intervals import fewest
from planner.simulate.run.engine import is_compiled

RELAXED = (1.0, 1.2, 1.5, 0.85, 4.0)
"""Limits of steady state, as multiples of those stated: others propose other batches and chunks of the same shapes.

The last is for where nothing else keeps its limits.
"""
MOST_PROPOSALS = 4  # under limits relaxed alike
LEAST_PROPOSALS = 2  # until a plan keeps its limits, however much work they are
MOST_UNKEPT = 10  # of a search that learns from few: until one is kept
SOONER = 0.1  # share of a limit by which it is broken on the first streams of such a search, for it to be broken
REFUTED = 0.95  # of its load: what such a plan is taken to keep
MOST_EVENTS = 8_000_000  # of all proposals together: some 10 CPU-s
LEAST_REQUESTS = 10_000  # of the streams that proposals share
BETTER = 1.003  # times the best plan that was kept: what a proposal must promise


def best_verified(
    setting: ServeSetting,
    outcome: Outcome,
    budget: Budget,
    bounds: ProblemBounds,
    brief: "Brief | None" = None,
) -> tuple[Verified, Evidence]:
    """The best mix that keeps its limits in simulation, and what was simulated for it; raises Infeasible where none of
    the proposals does.

    Steady state proposes under limits as stated, and relaxed: some of its mixes are worse in theory than in simulation.
    `brief` is of a search beside others.
    Raises Unverified where simulation is too much work, or its time ends it.
    """
    limits = budget.limits
    if not is_compiled():
        limits.tell("compiling the simulator, once for this machine")
    searches: list[Search] = []
    kept: list[tuple[Kept, Search]] = []
    for factor in RELAXED:
        enough = kept and (brief is not None or factor == RELAXED[-1] or searches[-1].exhausted)
        if budget.spent or enough or (searches and brief is not None and brief.below is not None):
            break
        proposed = (
            outcome if factor == 1.0 else search(setting, relaxed(setting.targets, factor), budget.left, proposes=True)
        )
        if proposed.has_mix:
            before = searches[-1] if searches else None
            searches.append(Search.of(setting, proposed, budget, factor, before, brief))
            best = min((each.cost for each, _ in kept), default=None if brief is None else brief.below)
            kept += [(each, searches[-1]) for each in searches[-1].proposals(best)]
    answer = best_confirmed(kept, tuple(each.outcome for each in searches), bounds, limits)
    if answer is not None:
        verified, proposing, not_simulated = answer
        return verified, proposing.evidence(searches) | {"cheaper_mixes_not_simulated": not_simulated}
    budget.allow(OF_TIME_LIMIT)
    budget.require_time()
    raise no_plan(setting, searches) if searches else explain_infeasible(setting, limits)


@dataclass(frozen=True, slots=True)
class Brief:
    """A search that is one of several of a problem: the first limits under which a proposal is kept are enough, and
    loads below those asked for, which tell how many more instances are needed, need not be known well; it learns from
    more proposals instead."""

    grids: SharedGrids  # what steps take, which is the same in all of them
    below: float | None = None  # what plans of the others cost: of more no simulation is needed


@dataclass(slots=True)
class Search:
    """Proposals of a problem, and what was learnt from those that were simulated."""

    setting: ServeSetting
    outcome: Outcome
    budget: Budget
    learnt: Learnt
    trials: Trials
    relaxed: float  # by which the limits of steady state are multiplied
    most_unkept: int = MOST_PROPOSALS  # proposals until one is kept
    tried: list[LoadKept] = field(default_factory=list)
    seen: set[tuple[int, ...]] = field(default_factory=set)  # counts of what was proposed
    preferred: dict[object, Outcome] = field(default_factory=dict)  # by what was known
    refuted: int = 0  # proposals that kept their limits in the search, and not when they were verified

    @classmethod
    def of(
        cls,
        setting: ServeSetting,
        outcome: Outcome,
        budget: Budget,
        factor: float,
        before: "Search | None",
        brief: "Brief | None" = None,
    ) -> "Search":
        """A search that begins with what steady state prefers, on the streams of the one `before`."""
        learnt = Learnt(outcome.formulated.candidates)
        if before is not None:
            return cls(setting, outcome, budget, learnt, before.trials, factor, before.most_unkept)
        served = outcome.solution.served_per_s
        fractions = tuple(rate / sum(served) for rate in served)
        grids = SharedGrids() if brief is None else brief.grids
        shared = SharedStreams(setting, fractions, budget, rows=trace_rows(setting.resolved), grids=grids)
        count = max(LEAST_REQUESTS, shared.least_requests(), fewest_requests(setting))
        trials = Trials(shared, count) if brief is None else Trials(shared, count, ROUGHLY, SOONER)
        return cls(setting, outcome, budget, learnt, trials, factor, MOST_PROPOSALS if brief is None else MOST_UNKEPT)

    @property
    def maximising(self) -> bool:
        return self.outcome.formulated.problem.maximising

    @property
    def scalable(self) -> bool:
        """Whether less load is a plan too: goodput of requests that come at a rate."""
        return self.maximising and all(target.clients is None for target in self.setting.targets)

    @property
    def out_of_time(self) -> bool:
        return self.budget.spent

    @property
    def exhausted(self) -> bool:
        """Whether as much was simulated as may be, but for the plan that is verified."""
        return self.trials.shared.charged_events >= MOST_EVENTS

    def proposals(self, cost: float | None) -> Iterator[Kept]:
        """Mixes that steady state prefers by what is known, those that keep their limits at some load.

        They promise more than the plan of this `cost`, where there is one.
        """
        best = None if cost is None else abs(cost)
        proposed: Outcome | None = self.outcome if best is None and not self.seen else self._promising(best)
        while proposed is not None and self._may_go_on(best):
            self.seen.add(proposed.solution.counts)
            kept = self._simulated(proposed, best)
            if kept is not None and self._improves(kept, best):
                best = kept.value
                yield kept
            proposed = self._promising(best)

    def _improves(self, kept: Kept, best: float | None) -> bool:
        enough = kept.value > 0.0 if self.scalable else kept.load.scale >= 1.0
        return enough and not kept.load.refuted and (best is None or self._better(kept.value, best, 1.0))

    def safer(self, refuted: Kept) -> Iterator[Kept]:
        """What is proposed where fresh streams refute a plan whose load is given, and whose instances are too few."""
        self.refuted += 1
        if not self.scalable and self.refuted <= MOST_REFUTED:
            self.learnt.learn(refuted.outcome, LoadKept(REFUTED, frozenset()))
            yield from self.proposals(None)

    def _may_go_on(self, best: float | None) -> bool:
        most, least = MOST_PROPOSALS, LEAST_PROPOSALS
        if best is None and self.most_unkept > most:
            most = least = self.most_unkept
        if len(self.tried) >= most + self.refuted or self.budget.spent:
            return False
        first = best is None and len(self.tried) < least + self.refuted
        return first or not self.exhausted

    def _promising(self, best: float | None) -> Outcome | None:
        """The mix that promises more than the best, by all that was learnt, or else by that of its shapes alone."""
        for carried in (True, False):
            proposed = self._next(carried=carried)
            if proposed is not None and proposed.solution.counts not in self.seen:
                value = proposed.result.objective
                if best is None or (value is not None and self._better(value, best)):
                    return proposed
        return None

    def _better(self, value: float, best: float, by: float = BETTER) -> bool:
        return value > best * by if self.maximising else value < best / by

    def _simulated(self, proposed: Outcome, best: float | None) -> Kept | None:
        """The load that a proposal keeps, which is learnt; None where its instances have no regular place."""
        self.budget.limits.tell(f"simulating proposal {len(self.tried) + 1}")
        try:
            variants = Variants.of(proposal(self.setting, proposed), sum(proposed.solution.served_per_s))
        except Unplaceable as error:
            (bad,) = (item for item in proposed.roles if item.role == error.role)
            candidates = enumerate(proposed.formulated.candidates)
            alike = [row for row, candidate in candidates if candidate.is_alike(bad.candidate)]
            self.learnt.barred |= dict.fromkeys(alike, bad.count - 1)
            self.tried.append(LoadKept(0.0, frozenset()))
            return None
        needed, value = 0.0, proposed.result.objective
        if self.scalable and best is not None and value:
            needed = best * BETTER / value
        try:
            load = self.trials.load_kept(variants, self._most_scale(proposed), needed)
        except OutOfTime:
            return None
        self.learnt.learn(proposed, load)
        self.tried.append(load)
        return Kept(proposed, variants, load)

    def tried_beside(self, best: Kept, proposed: Outcome, least: float = WORTHWHILE) -> Kept | None:
        """A plan at the load that it keeps, or refuted at `least` times that of the best; nothing is learnt of it.

        None where it is not simulated: it is worse than the best, has no regular place, or is too much work.
        """
        value = proposed.result.objective
        if not value or (not self.scalable and self._better(best.value, value, 1.0)):
            return None
        try:
            variants = Variants.of(proposal(self.setting, proposed), sum(proposed.solution.served_per_s))
        except Unplaceable:
            return None
        needed = best.value * least / value if self.scalable else 1.0
        most = self._most_scale(proposed) if self.scalable else 1.0
        if needed > most:
            return None
        try:
            load = self.trials.load_kept(variants, most, needed)
        except Unverified:
            return None
        return Kept(proposed, variants, load)

    def _most_scale(self, proposed: Outcome) -> float:
        """Of a goodput plan, the load at which a workload has all that it asks for; of clients that wait all of them.

        Other plans are tried beyond their load, to learn how many fewer instances would do.
        """
        if not self.maximising:
            return math.inf
        if not self.scalable:
            return 1.0
        rows = zip(self.setting.targets, proposed.solution.served_per_s, strict=True)
        return min(
            (t.rate_per_s / rate for t, rate in rows if t.rate_per_s is not None and rate > 0.0), default=math.inf
        )

    def _next(self, *, carried: bool) -> Outcome | None:
        """What steady state prefers by what is known."""
        known = (carried, tuple(sorted(self.learnt.own.items())), tuple(sorted(self.learnt.barred.items())))
        if known not in self.preferred:
            corrected = self.learnt.corrected(self.outcome, carried=carried)
            fullness = () if self.maximising else corrected.formulated.fullness
            result = solve_problem(corrected.searched, self.setting, self.budget.left, fullness, tie_break=carried)
            self.preferred[known] = replace(self.outcome, result=result)
        following = self.preferred[known]
        return following if following.has_mix else None

    def verify(self, best: Kept, least: float = 0.0, reached: Unconfirmed | None = None) -> Verified | Unconfirmed:
        """The plan at a load that fresh streams confirm, given up where it would be worth less than `least`.

        It goes on from what was `reached` before, at no larger load. Raises OutOfTime.
        """
        self.budget.limits.tell("verifying on fresh streams")
        self.budget.allow(1.0)
        if not self.scalable:
            confirmed = confirm(self.trials, best.variants, 1.0, scalable=False)
        else:
            scale, tries = (best.load.scale, 0) if reached is None else (reached.scale, reached.tries)
            most, below = self._most_scale(best.outcome), least * best.load.scale / best.value
            most = most if reached is None else min(most, reached.scale)
            confirmed = confirm(self.trials, best.variants, scale, scalable=True, most=most, least=below, tries=tries)
        if isinstance(confirmed, Unconfirmed):
            return confirmed
        return Verified(at_rates(best.outcome, self._rates(best, confirmed)), confirmed)

    def _rates(self, best: Kept, confirmed: Confirmed) -> tuple[float, ...]:
        """What is served of each workload: the load that was verified, of clients that wait what was simulated."""
        whole = confirmed.judgements[0]
        rows = zip(self.setting.targets, best.outcome.solution.served_per_s, strict=True)
        return tuple(
            rate * confirmed.scale if target.clients is None else answered_per_s(whole, target.index)
            for target, rate in rows
        )

    def evidence(self, searches: Sequence["Search"]) -> Evidence:
        """What was simulated, and what steady state still hopes for of mixes that were not."""
        hoped, shared = self._next(carried=False), self.trials.shared
        return {
            "limits_relaxed": self.relaxed,
            "proposals": sum(len(each.tried) for each in searches),
            "runs": shared.runs,
            "requests": shared.requests,
            "events": shared.events,
            "steady_state": self.outcome.objective,
            "hoped_for_unsimulated": None if hoped is None else hoped.objective,
        }


def no_plan(setting: ServeSetting, searches: Sequence[Search]) -> Infeasible:
    """The limits that no proposal kept."""
    times = frozenset[str]().union(*(load.binding for each in searches for load in each.tried))
    conflict = [
        Conflict(limit=text, nearest="")
        for workload in setting.resolved.workloads
        for time_of, text in limits_of(workload.spec.slo)
        if not times or time_of in times
    ]
    return Infeasible(conflict, proved=False)


def at_rates(outcome: Outcome, served_per_s: Sequence[float]) -> Outcome:
    """The same mix with so many requests per second of each workload."""
    solution = outcome.solution
    value = outcome.result.objective
    assert value is not None
    factors = [new / old if old > 0.0 else 0.0 for new, old in zip(served_per_s, solution.served_per_s, strict=True)]
    scaled = replace(
        solution,
        load_per_s=tuple(
            tuple(load * factor for load, factor in zip(loads, factors, strict=True)) for loads in solution.load_per_s
        ),
        flows=tuple(replace(flow, rate_per_s=flow.rate_per_s * factors[flow.demand]) for flow in solution.flows),
        served_per_s=tuple(served_per_s),
    )
    if outcome.formulated.problem.maximising:
        value *= sum(served_per_s) / sum(solution.served_per_s)
    return replace(outcome, result=replace(outcome.result, solution=scaled, objective=value, bound=None))


def fewest_requests(setting: ServeSetting) -> int:
    """Requests of all streams that the statistics of the limits ask for."""
    return max(fewest(of) for each in setting.resolved.workloads for of in _statistics(each.spec.slo))


def _statistics(slo: SloSpec) -> Iterator[str]:
    yield "mean"
    for _, of, _ in slo.limits():
        yield of
