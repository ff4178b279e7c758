"""Steady state proposes, simulation verifies: the best plan that keeps its limits when every step is simulated.

The exact mix of steady state (`steady.search`) proposes; a proposal is simulated on streams that all proposals share,
and the largest load at which it keeps its limits is found by bisection. What it keeps, as a share of what steady state
allows, is learnt of the instance types that the binding limits are about, and of all others of their function as far as
none of them is known to do better; the mix is solved again with the rates so corrected, until it proposes nothing
better than the best plan that kept its limits, nor does one that takes shapes not simulated at their word. The best
plan is verified on streams that none was chosen on.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from planner.errors import Conflict, Infeasible, PlannerError
from planner.kinds.serve.plan.certificate import objective
from planner.kinds.serve.plan.decode import envelope
from planner.kinds.serve.plan.place import Unplaceable
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.demand import relaxed
from planner.kinds.serve.steady.limits import explain_infeasible
from planner.kinds.serve.steady.search import Outcome, ServeSetting, search, solve_problem
from planner.kinds.serve.verified.capacity import LoadKept, keeps, load_kept
from planner.kinds.serve.verified.plan import Verified, limits_of, verified_plan
from planner.kinds.serve.verified.shared_streams import SharedStreams
from planner.plan.restated import unproven
from planner.plan.schema import Envelope
from planner.problem.schema import SloSpec
from planner.progress import Limits
from planner.simulate.judge.intervals import fewest
from planner.simulate.judge.limits import FEWEST, STREAMS, Judgement, Verdict, judge, judge_runs
from planner.simulate.run.engine import is_compiled

SEARCH_SEED, VERIFIED_SEED = 100_000, 300_000
RELAXED = (1.0, 1.5, 4.0)  # limits of steady state, as multiples of those stated; the last where none else helps
MOST_PROPOSALS = 6  # under limits relaxed alike
MOST_EVENTS = 12_000_000  # of all proposals together: some 10 CPU-s
FLIGHTS = 20.0  # times what is in the system at a time: a stream of the search
MOST_REQUESTS = 200_000  # of the streams that proposals share
LEAST_REQUESTS = 10_000  # of the streams that proposals share
BETTER = 1.003  # times the best plan that was kept: what a proposal must promise
STEPS_BACK = (0.99, 0.98, 0.96, 0.93, 0.88, 0.8, 0.65, 0.4)
"""Shares of the load kept in the search at which a goodput plan is verified; the first that is kept is claimed."""
FIRST_STAGES = frozenset({"colocated", "prefill"})


@dataclass(frozen=True, slots=True)
class Kept:
    """A proposal with the load that it keeps."""

    outcome: Outcome  # at the load that steady state gives it
    plan: Envelope
    load: LoadKept

    @property
    def value(self) -> float:
        """In the unit of the mix problem: of goodput what is kept, else the price of all instances."""
        value = self.outcome.result.objective
        assert value is not None
        return value * self.load.scale if self.outcome.formulated.problem.maximising else value

    @property
    def cost(self) -> float:
        """What is to be small: the price, or goodput below 0."""
        return -self.value if self.outcome.formulated.problem.maximising else self.value


@dataclass(slots=True)
class Learnt:
    """Shares of what steady state allows that instance types keep in simulation, by place in the list of candidates."""

    candidates: tuple[Candidate, ...]
    own: dict[int, float] = field(default_factory=dict)
    barred: dict[int, int] = field(default_factory=dict)  # the most instances that have a regular place

    def learn(self, proposal: Outcome, load: LoadKept) -> None:
        """Takes over what a proposal keeps, of the types that its binding limits are about."""
        blamed = {"ttft": FIRST_STAGES, "tpot": frozenset({"colocated", "decode", "attention"})}
        about = frozenset[str]().union(*(blamed.get(time, frozenset()) for time in load.binding))
        everyone = load.scale >= 1.0 or not about or bool(load.binding - set(blamed))
        for row, count in enumerate(proposal.solution.counts):
            if count and (everyone or self.candidates[row].function in about):
                self.own[row] = self.own.get(row, self.share(row)) * max(load.scale, 0.05)

    def share(self, row: int, *, carried: bool = True) -> float:
        """What is known of a type, or of its shape, or, where `carried`, the most that any of its function keeps."""
        if row in self.own:
            return self.own[row]
        candidate = self.candidates[row]
        alike = [r for r in self.own if self.candidates[r].function == candidate.function]
        same = [r for r in alike if self.candidates[r].shape == candidate.shape]
        return max((self.own[r] for r in same or (alike if carried else ())), default=1.0)

    def corrected(self, outcome: Outcome, *, carried: bool) -> Outcome:
        """The outcome's mix problem with rates as they are kept, of shapes not simulated too where `carried`."""
        problem = outcome.searched
        shapes = []
        for row, shape in enumerate(problem.shapes):
            share = self.share(row, carried=carried)
            most = self.barred.get(row, shape.max_instances)
            rates = tuple(rate * share for rate in shape.rate_per_s)
            shapes.append(replace(shape, rate_per_s=rates, max_instances=most))
        return replace(outcome, searched=replace(problem, shapes=tuple(shapes)))


def solve_verified(setting: ServeSetting, outcome: Outcome, limits: Limits) -> Envelope:
    """The best plan that keeps its limits in simulation; raises Infeasible where none of the proposals does.

    Steady state proposes under limits as stated, and relaxed: some of its mixes are worse in theory than in simulation.
    """
    require_verifiable(setting)
    if not is_compiled():
        limits.tell("compiling the simulator, once for this machine")
    searches: list[Search] = []
    kept: list[tuple[Kept, Search]] = []
    for factor in RELAXED:
        if factor == RELAXED[-1] and kept:
            break
        proposed = outcome if factor == 1.0 else search(setting, relaxed(setting.targets, factor), limits)
        if proposed.has_mix:
            searches.append(Search.of(setting, proposed, limits, factor, searches[-1] if searches else None))
            best = min((each.cost for each, _ in kept), default=None)
            kept += [(each, searches[-1]) for each in searches[-1].proposals(best)]
    for best_kept, proposing in sorted(kept, key=lambda pair: pair[0].cost):
        verified = proposing.verify(best_kept)
        if verified is not None:
            return verified_plan(setting, verified, proposing.evidence(searches), proposing.shared)
    raise no_plan(setting, searches) if searches else explain_infeasible(setting, limits)


def require_verifiable(setting: ServeSetting) -> None:
    """Refuses what is not simulated at a load: clients that wait, trade-offs, and problems without limits."""
    where = setting.resolved.where(("options", "judged_by"))
    hint = "take `--level static`, whose answer is an estimate"
    if any(target.clients is not None for target in setting.targets):
        raise PlannerError(
            "plans are verified at a rate, not for clients that wait for answers", where=where, hint=hint
        )
    if setting.resolved.problem.availability is not None:
        raise PlannerError("plans are verified with all instances up, not for an availability", where=where, hint=hint)
    if setting.resolved.problem.objective.pareto is not None:
        raise PlannerError("plans are verified for one objective, not a trade-off", where=where, hint=hint)
    if not any(True for workload in setting.resolved.workloads for _ in limits_of(workload.spec.slo)):
        raise PlannerError(
            "without limits there is nothing to verify",
            where=where,
            hint="give a workload limits, such as `slo: {ttft: 1s, tpot: 50ms}`",
        )


@dataclass(slots=True)
class Search:
    """Proposals of a problem, and what was learnt from those that were simulated."""

    setting: ServeSetting
    outcome: Outcome
    limits: Limits
    learnt: Learnt
    shared: SharedStreams
    count: int  # requests of the streams that proposals share
    relaxed: float  # by which the limits of steady state are multiplied
    tried: list[LoadKept] = field(default_factory=list)

    @classmethod
    def of(
        cls, setting: ServeSetting, outcome: Outcome, limits: Limits, factor: float, before: "Search | None"
    ) -> "Search":
        """A search that begins with what steady state prefers, on the streams of the one `before`."""
        if before is not None:
            learnt = Learnt(outcome.formulated.candidates)
            return cls(setting, outcome, limits, learnt, before.shared, before.count, factor)
        served = outcome.solution.served_per_s
        fractions = tuple(rate / sum(served) for rate in served)
        count = max(
            LEAST_REQUESTS, *(fewest(of) for each in setting.resolved.workloads for of in _statistics(each.spec.slo))
        )
        learnt = Learnt(outcome.formulated.candidates)
        return cls(setting, outcome, limits, learnt, SharedStreams(setting, fractions), count, factor)

    @property
    def maximising(self) -> bool:
        return self.outcome.formulated.problem.maximising

    def proposals(self, cost: float | None) -> Iterator[Kept]:
        """Mixes that steady state prefers by what is known, those that keep their limits at some load.

        They promise more than the plan of this `cost`, where there is one.
        """
        seen: set[tuple[int, ...]] = set()
        best = None if cost is None else abs(cost)
        proposed: Outcome | None = self.outcome if best is None else self._promising(seen, best)
        while proposed is not None and len(self.tried) < MOST_PROPOSALS and self.shared.events < MOST_EVENTS:
            seen.add(proposed.solution.counts)
            kept = self._simulated(proposed)
            if kept is not None and (self.maximising or kept.load.scale >= 1.0) and kept.value > 0.0:
                best = kept.value if best is None or self._better(kept.value, best, 1.0) else best
                yield kept
            proposed = self._promising(seen, best)

    def _promising(self, seen: set[tuple[int, ...]], best: float | None) -> Outcome | None:
        """The mix that promises more than the best, by all that was learnt, or else by that of its shapes alone."""
        for carried in (True, False):
            proposed = self._next(carried=carried)
            if proposed is not None and proposed.solution.counts not in seen:
                value = proposed.result.objective
                if best is None or (value is not None and self._better(value, best)):
                    return proposed
        return None

    def _better(self, value: float, best: float, by: float = BETTER) -> bool:
        return value > best * by if self.maximising else value < best / by

    def _simulated(self, proposed: Outcome) -> Kept | None:
        """The load that a proposal keeps, which is learnt; None where its instances have no regular place."""
        self.limits.tell(f"simulating proposal {len(self.tried) + 1}")
        try:
            plan = self._plan(proposed)
        except Unplaceable as error:
            (bad,) = (item for item in proposed.roles if item.role == error.role)
            row = next(row for row, each in enumerate(proposed.formulated.candidates) if each is bad.candidate)
            self.learnt.barred[row] = bad.count - 1
            self.tried.append(LoadKept(0.0, frozenset()))
            return None
        rate = sum(proposed.solution.served_per_s)
        load = load_kept(lambda scale: self._judged(plan, rate * scale), self._most_scale(proposed))
        self.learnt.learn(proposed, load)
        self.tried.append(load)
        return Kept(proposed, plan, load)

    def _plan(self, proposed: Outcome) -> Envelope:
        value = proposed.objective
        assert value is not None
        return envelope(self.setting, proposed, unproven(objective(proposed, value)), (), ())

    def _judged(self, plan: Envelope, rate_per_s: float) -> Judgement:
        """Judged on the streams that proposals share, which grow where they have no stationary part at this load."""
        while True:
            judgement = judge_runs(self.shared.simulate(plan, rate_per_s, self.count, SEARCH_SEED), self.shared.slos)
            long_enough = judgement.saturated or judgement.settled or 2 * self.count > MOST_REQUESTS
            if long_enough and self.count >= self._flights(judgement):
                return judgement
            self.count = min(max(2 * self.count, self._flights(judgement)), MOST_REQUESTS)

    def _flights(self, judgement: Judgement) -> int:
        """Requests that are many times those in the system at a time, by Little's law."""
        if judgement.saturated:
            return 0
        stays_s = sum(float(np.nansum(run.e2e_s)) for run in judgement.runs)
        spans_s = sum(float(np.nanmax(run.arrival_s)) for run in judgement.runs)
        return min(int(STREAMS * FLIGHTS * stays_s / spans_s), MOST_REQUESTS)

    def _most_scale(self, proposed: Outcome) -> float:
        """Of a goodput plan, the load at which a workload has all that it asks for."""
        if not self.maximising:
            return math.inf
        rows = zip(self.setting.targets, proposed.solution.served_per_s, strict=True)
        return min(
            (t.rate_per_s / rate for t, rate in rows if t.rate_per_s is not None and rate > 0.0), default=math.inf
        )

    def _next(self, *, carried: bool) -> Outcome | None:
        """What steady state prefers by what is known."""
        corrected = self.learnt.corrected(self.outcome, carried=carried)
        result = solve_problem(
            corrected.searched, self.setting, self.limits, corrected.formulated.fullness, tie_break=carried
        )
        following = replace(self.outcome, result=result)
        return following if following.has_mix else None

    def verify(self, best: Kept) -> Verified | None:
        """The plan at a load that fresh streams confirm; None where they do not."""
        self.limits.tell("verifying on fresh streams")
        rate = sum(best.outcome.solution.served_per_s)
        count = max(self.count, FEWEST)
        for number, step in enumerate(STEPS_BACK if self.maximising else (1.0,)):
            scale = best.load.scale * step if self.maximising else 1.0
            seed = VERIFIED_SEED + 10_000 * number
            fresh = partial(self.shared.simulate, best.plan, rate * scale, seed=seed)
            judgement = judge(fresh, self.shared.slos, fewest_requests=count)
            if judgement.verdict is not Verdict.BROKEN and keeps(judgement):
                return Verified(at_scale(best.outcome, scale), judgement, seed)
        return None

    def evidence(self, searches: Sequence["Search"]) -> dict[str, float | int | None]:
        """What was simulated, and what steady state still hopes for of mixes that were not."""
        hoped = self._next(carried=False)
        return {
            "limits_relaxed": self.relaxed,
            "proposals": sum(len(each.tried) for each in searches),
            "runs": self.shared.runs,
            "requests": self.shared.requests,
            "steady_state": self.outcome.objective,
            "hoped_for_unsimulated": None if hoped is None else hoped.objective,
        }


def no_plan(setting: ServeSetting, searches: Sequence[Search]) -> Infeasible:
    """The limits that no proposal kept."""
    times = frozenset[str]().union(*(load.binding for each in searches for load in each.tried))
    conflict = [
        Conflict(limit=text, nearest="")
        for workload in setting.resolved.workloads
        for time, text in limits_of(workload.spec.slo)
        if not times or time in times
    ]
    return Infeasible(conflict, proved=False)


def at_scale(outcome: Outcome, scale: float) -> Outcome:
    """The same mix at a share of its load."""
    solution = outcome.solution
    value = outcome.result.objective
    assert value is not None
    scaled = replace(
        solution,
        load_per_s=tuple(tuple(load * scale for load in loads) for loads in solution.load_per_s),
        flows=tuple(replace(flow, rate_per_s=flow.rate_per_s * scale) for flow in solution.flows),
        served_per_s=tuple(rate * scale for rate in solution.served_per_s),
    )
    objective_value = value * scale if outcome.formulated.problem.maximising else value
    return replace(outcome, result=replace(outcome.result, solution=scaled, objective=objective_value, bound=None))


def _statistics(slo: SloSpec) -> Iterator[str]:
    yield "mean"
    for _, of, _ in slo.limits():
        yield of
