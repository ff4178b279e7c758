"""The proven bound of a serving problem: no plan of its space keeps the limits in simulation and does better.

The mix of `solvers.mix` over every shape, each with the rates that nothing undercuts, and the limits of each workload
as shares of its requests that all instances together must keep:

Sets        c in C instance types, F those that prefill alone, S those that decode alone;  w in W workloads
Parameters  N_c engine seconds a second of an instance;  l_cw, h_cw, v_cw  limited, good, spent (`types.WorkloadBound`)
            q_w share of the requests that keep the percentile of TPOT, L_w limit on its mean, p_w share of the requests
            with several tokens;  e_c [s] shortest step;  Q_wj share that keeps limit j on TTFT, s_cwj share that is
            late on an idle engine;  i_cw [s] mean time to first token on an idle engine
Variables   those of the mix, x_cw [1/s] its loads;  y_cw, z_cw >= 0 [1/s] requests that keep the percentile, and
            seconds per output token of requests that come in a second
Constraints those of the mix with rates N_c / base_cw, links, ports and kinds of instances without limit, and
(B1)  sum_w (l_cw x_cw + h_cw y_cw - v_cw z_cw) <= N_c n_c           for c              engines work a second a second
(B2)  y_cw <= p_w x_cw  (0 where no step keeps the limit)            for c not in F, w
(B3)  sum_{c not in F} y_cw >= q_w d_w                               for w              the percentile of TPOT
(B4)  z_cw >= p_w e_c x_cw;   sum_{c not in F} z_cw <= p_w L_w d_w   for w              the mean of TPOT
(B5)  sum_{c not in S} s_cwj x_cw <= (1 - Q_wj) d_w                  for w, j           percentiles of TTFT
(B6)  sum_{c not in S} i_cw x_cw <= L_wj d_w                         for w, j           means of TTFT

What is proven is about expectations of a stationary process: streams of a finite length may do a little better by
chance. It holds for every batch, chunk, count and share of the requests, for schedulers that may leave an engine idle,
and for routers and queues that look at nothing that tells lengths of requests. It does not count waits, nor limits on
whole requests.
"""

import math
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from pydantic import JsonValue

from planner.costs.operators.work import Shards
from planner.costs.serving.media import encode_times
from planner.kinds.serve.bounds.demands import Workload, workloads_of
from planner.kinds.serve.bounds.dominance import undominated
from planner.kinds.serve.bounds.engines import EngineType, ListedType, least_types, listed_types
from planner.kinds.serve.bounds.prices import ESTIMATED, WHOLE, Effort
from planner.kinds.serve.bounds.types import TypeBound, WorkloadBound, type_bound
from planner.kinds.serve.steady.candidates import Candidate, Capacity
from planner.kinds.serve.steady.demand import Channel
from planner.kinds.serve.steady.formulate import Formulated, formulate
from planner.kinds.serve.steady.search import ServeSetting
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.progress import Limits
from planner.solvers.backends.model import Expr, LinearModel, Solution, total
from planner.solvers.backends.solve import solve
from planner.solvers.dualtree import DualTree, build_certificate, verify
from planner.solvers.mix import MixObjective, MixProblem
from planner.solvers.mix_model import Vars, build
from planner.solvers.mix_solve import DEFAULT_BACKEND
from planner.solvers.result import SolveResult

METHOD = "step_prices"
PROOF_NODES = 60  # of the tree, which closes most programs
MORE_NODES = 2000  # of one that comes near enough where the first does not: mixes that do not fill their GPUs take 900
NEAR_ENOUGH = 0.01  # of the best mix: less is not worth a larger tree
TOGETHER = 16  # shapes whose steps are priced at once: more of them leave the caches of a processor
IDLE = 0.5  # of an instance that is not priced, at all that is asked for
TRACE = 1e-6  # of an instance: what is more is used
MOST_STEPS = 100_000  # of a price: a finer unit rounds no bound up
MOST_SHAPES = 400  # mixtures of experts have 175 on 256 GPUs, a tenth of a second each
MOST_IN_TIME = 80  # beside a time limit: the bound would take what searches need
LATE = "the time limit came before it was worked out"
SPACE = "no plan of the stated shapes and modes, whatever its batches, chunks, counts, shares and waits"


@dataclass(frozen=True, slots=True)
class Bound:
    """The bound in the metric of the problem, or why there is none; `infeasible`: no plan keeps the limits."""

    metric: str
    value: float | None
    why: str = ""
    infeasible: bool = False
    proof: dict[str, JsonValue] = field(default_factory=dict)

    def beside(self, value: float, *, maximising: bool) -> tuple[float | None, float | None]:
        """The bound and the gap of a plan worth `value`, which may do a little better by chance."""
        if self.value is None:
            return None, None
        bound = max(self.value, value) if maximising else min(self.value, value)
        return bound, abs(bound - value) / max(abs(value), 1e-9)


class _Late(Exception):
    """The time for the bound has passed."""


@dataclass(slots=True)
class ProblemBounds:
    """What no plan of a problem exceeds while it keeps its limits in simulation, worked out when it is asked for.

    A type is priced once an optimum uses it. Before that, where as little as possible is asked for, an instance of it
    does all that is asked for, which bounds it too; where the most is looked for, prices that a few steps give bound
    it, and one that prefills and decodes does what it could if sequences had the shortest context. What more prices
    would not change is left out.
    """

    setting: ServeSetting
    most_shapes: int = MOST_SHAPES
    end_s: float | None = None  # of the monotonic clock: what is not worked out by then is not known
    _workloads: tuple[Workload, ...] = ()
    _listed: list[ListedType] = field(default_factory=list)
    _bounds: list[TypeBound] = field(default_factory=list)
    _priced: set[int] = field(default_factory=set)
    _whole: Bound | None = None

    @classmethod
    def within(cls, setting: ServeSetting, limits: Limits, started_s: float) -> "ProblemBounds":
        """Those of a problem whose solve began at `started_s` of the monotonic clock."""
        most = MOST_SHAPES if limits.time_limit_s is None else MOST_IN_TIME
        return cls(setting, most, limits.end_s(started_s))

    @property
    def whole(self) -> Bound:
        """The bound on the objective of every plan."""
        if self._whole is None:
            try:
                self._whole = self._worked_out()
            except _Late:
                self._whole = Bound(formulate(self.setting.resolved, self.setting.targets, ()).metric, None, LATE)
        return self._whole

    def _require_time(self) -> None:
        if self.end_s is not None and time.monotonic() >= self.end_s:
            raise _Late

    def most_per_s(self, function: str, shape: InstanceShape, *, alone: bool) -> float:
        """The most requests of all workloads that an instance does; `alone`: no other type decodes.

        inf where nothing is proven. For problems of one model on one pool.
        """
        if _unknown(self.setting, self.most_shapes) is not None:
            return math.inf
        self._list()
        rows = (row for row, each in enumerate(self._listed) if (each.function, each.shape) == (function, shape))
        row = next(rows, None)
        if row is None:
            return math.inf
        bound = self._price(row)
        pairs = zip(_shares(self.setting), self._workloads, bound.workloads, strict=True)
        busy_s = sum(share * _least_s(bound, own, workload, alone=alone) for share, workload, own in pairs if own)
        return bound.engine.engines / busy_s if busy_s > 0.0 else math.inf

    def _list(self) -> None:
        """Every type, none of them priced."""
        if not self._workloads:
            self._workloads = workloads_of(self.setting, _shares(self.setting))
            self._listed = list(listed_types(self.setting, self._workloads))
            rates = [target.rate_per_s for target in self.setting.targets]
            asked = sum(rate for rate in rates if rate is not None) or 1.0
            self._bounds = [self._unpriced(each, asked) for each in self._listed]

    def _unpriced(self, listed: ListedType, asked_per_s: float) -> TypeBound:
        engine = listed.unpriced()
        least_s = IDLE * engine.engines / asked_per_s
        rows = (
            WorkloadBound(least_s, 0.0, good_share=1.0, late_share=(0.0,) * len(workload.ttft))
            if own.model == listed.model
            else None
            for own, workload in zip(self.setting.resolved.workloads, self._workloads, strict=True)
        )
        return TypeBound(engine, tuple(rows))

    def _price(self, row: int) -> TypeBound:
        if row not in self._priced:
            self._priced.add(row)
            self._bounds[row] = _bounded(self.setting, self._listed[row].priced(self.setting), self._workloads)
        return self._bounds[row]

    def _estimate(self) -> None:
        """Bounds all types by prices that a few steps give, of a part of their tables where these are large."""
        alike: dict[Hashable, list[int]] = {}
        for row in range(len(self._listed)):
            if row not in self._priced:
                alike.setdefault(self._listed[row].axes, []).append(row)
        for rows in alike.values():
            for start in range(0, len(rows), TOGETHER):
                self._require_time()
                some = rows[start : start + TOGETHER]
                engines = least_types(self.setting, [self._listed[row] for row in some])
                for row, engine in zip(some, engines, strict=True):
                    self._require_time()
                    self._bounds[row] = _bounded(self.setting, engine, self._workloads, effort=ESTIMATED)

    def _worked_out(self) -> Bound:
        formulated = formulate(self.setting.resolved, self.setting.targets, ())
        why = _unknown(self.setting, self.most_shapes)
        if why is not None:
            return Bound(formulated.metric, None, why)
        self._list()
        if not self._listed:
            return Bound(formulated.metric, None, "no shape holds the model", infeasible=True)
        if formulated.problem.maximising:
            self._estimate()
        self._solved(whole=False)
        answer = self._solved(whole=True)
        self._require_time()
        return _proven(*answer)

    def _solved(self, *, whole: bool) -> tuple["_Program", SolveResult[Solution]]:
        """The best mix once every type that it uses is priced; soon known where it may have parts of instances."""
        while True:
            program = _Program.of(self.setting, self._bounds, self._workloads)
            answer = program.solved(whole=whole)
            unpriced = program.used(answer) - self._priced
            if not unpriced:
                return program, answer
            for row in unpriced:
                self._require_time()
                self._price(row)


def proven_bound(setting: ServeSetting) -> Bound:
    """What no plan of a problem exceeds while it keeps its limits in simulation."""
    return ProblemBounds(setting).whole


def _least_s(bound: TypeBound, own: WorkloadBound, workload: Workload, *, alone: bool) -> float:
    """Engine seconds of a request of a workload: (B1), with (B3) to (B6) where no other type does the same."""
    limit = workload.tpot if bound.engine.decodes else None
    if not alone:
        return own.base_s
    late = zip(own.late_share, workload.ttft, strict=True) if bound.engine.prefills else ()
    if any(own.idle_s > each.bound_s if each.share is None else share > 1.0 - each.share for share, each in late):
        return math.inf
    if limit is None:
        return own.limited_s
    if limit.share is None:
        return own.limited_s - own.spent * limit.bound_s * workload.several
    return own.limited_s + own.good_s * own.good_share if own.keeps else math.inf


def _unknown(setting: ServeSetting, most_shapes: int) -> str | None:
    """Why nothing is proven of a problem; None where something can be."""
    options, problem = setting.options, setting.resolved.problem
    reasons = {
        "drafts are not priced": max(options.searched_drafts) > 0,
        "sides apart are not priced": "attention-ffn" in options.modes,
        "other orders of requests and shared caches are not priced": options.reordered,
        "prefix hits are not priced": setting.resolved.cached is None
        and any(target.prefix_hits > 0.0 for target in setting.targets),
        "clients that wait have no rate": any(target.clients is not None for target in setting.targets),
        "failures are not priced": problem.availability is not None,
        "a trade-off has no one bound": problem.objective.pareto is not None,
        f"there are more than {most_shapes} shapes": sum(len(each.shapes) for each in setting.spaces.values())
        > most_shapes,
    }
    return next((why for why, given in reasons.items() if given), None)


def _shares(setting: ServeSetting) -> tuple[float, ...]:
    """By workload its part of all requests."""
    problem = setting.resolved.problem
    weights = [(problem.serves_loads and target.rate_per_s) or target.share for target in setting.targets]
    return tuple(weight / sum(weights) for weight in weights)


def _bounded(
    setting: ServeSetting, engine: EngineType, workloads: Sequence[Workload], effort: Effort = WHOLE
) -> TypeBound:
    own = [index for index, each in enumerate(setting.resolved.workloads) if each.model == engine.model]
    context_tokens = setting.targets[own[0]].context_tokens
    costs, shards = setting.costs_of_pool[engine.model, engine.pool].costs, Shards.of(*engine.shape.all_degrees)
    encoding = [
        encode_times(costs.arch, costs.pricer, shards, each.media)
        if each.media is not None and each.model == engine.model
        else None
        for each in setting.resolved.workloads
    ]
    shortest = min(setting.resolved.workloads[index].input.mean_tokens for index in own)
    way_s = float(costs.engine.request_s(shortest))
    if not engine.decodes:
        handed = all(workloads[index].within(context_tokens).several == 1.0 for index in own)
        way_s = float(costs.engine.apart_s(shortest)) - (0.0 if handed else costs.engine.handover_s)
    return type_bound(engine, workloads, own, context_tokens, way_s, encoding, effort)


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """The best mix of instance types by what each can do at most: (B1) to (B6) beside the mix."""

    formulated: Formulated
    model: LinearModel
    variables: Vars
    number_of: list[int]  # by shape of the mix, its type
    types: int
    seed: int

    @classmethod
    def of(cls, setting: ServeSetting, types: Sequence[TypeBound], workloads: Sequence[Workload]) -> "_Program":
        placed = [(bound, channel) for bound in types for channel in _channels(setting, bound.engine)]
        number_of = [number for number, bound in enumerate(types) for _ in _channels(setting, bound.engine)]
        candidates = [_candidate(bound, channel) for bound, channel in placed]
        targets = [replace(target, transfer_bytes=0.0, draft_bytes=0.0) for target in setting.targets]
        formulated = formulate(setting.resolved, targets, candidates)
        shapes = formulated.problem.shapes
        kept = undominated(shapes, [bound for bound, _ in placed])
        limits = replace(formulated.problem.limits, shapes=None)
        problem = replace(formulated.problem, shapes=tuple(shapes[c] for c in kept), links=None, limits=limits)
        formulated = replace(formulated, problem=problem)
        model, variables = _in_price_steps(problem, *build(problem))
        good_share = [_good_share(types, w) for w in range(len(workloads))]
        _add_limits(model, variables, formulated, [placed[c][0] for c in kept], workloads, good_share)
        return cls(
            formulated, model, variables, [number_of[c] for c in kept], len(types), setting.resolved.problem.seed
        )

    def used(self, answer: SolveResult[Solution]) -> frozenset[int]:
        """The types that a solution has instances of, or parts of them."""
        values = () if answer.solution is None else answer.solution.values_by_column
        counts = enumerate(self.variables.n)
        return frozenset(self.number_of[c] for c, count in counts if values and values[count.column] > TRACE)

    def solved(self, *, whole: bool = True) -> SolveResult[Solution]:
        """The best mix, of `whole` instances or of parts of them too."""
        model = self.model
        if not whole:
            model = model.restricted({}, {})
            model.integer = [False] * len(model.integer)
        return solve(model, backend=DEFAULT_BACKEND, seed=self.seed)


def _in_price_steps(problem: MixProblem, model: LinearModel, variables: Vars) -> tuple[LinearModel, Vars]:
    """The model with costs in a unit that all prices are whole multiples of, where there is one.

    No mix costs a part of it, so that a bound is rounded up to it (`solvers.dualtree`).
    """
    prices = [shape.price_per_hour for shape in problem.shapes]
    step = price_step(prices) if problem.objective is MixObjective.PRICE else None
    if step is None:
        return model, variables
    cost = total(round(price / step) * count for price, count in zip(prices, variables.n, strict=True))
    model.optimise(cost, maximising=False)
    return model, replace(variables, objective=cost, objective_unit=step)


def price_step(prices: Sequence[float]) -> float | None:
    """The largest unit that all prices are whole multiples of; None where that is too small a part of them."""
    exact = [Fraction(price).limit_denominator(MOST_STEPS) for price in prices if price > 0.0]
    if not exact:
        return None
    denominator = math.lcm(*(price.denominator for price in exact))
    step = math.gcd(*(int(price * denominator) for price in exact)) / denominator
    multiples = [price / step for price in prices]
    whole = all(math.isclose(each, round(each), rel_tol=1e-12) for each in multiples)
    return step if whole and max(multiples) <= MOST_STEPS else None


def bound_of_types(setting: ServeSetting, types: Sequence[TypeBound], workloads: Sequence[Workload]) -> Bound:
    """The proven bound of the best mix of instance types by what each can do at most."""
    program = _Program.of(setting, types, workloads)
    return _proven(program, program.solved())


def _proven(program: _Program, answer: SolveResult[Solution]) -> Bound:
    formulated, model, unit = program.formulated, program.model, program.variables.objective_unit
    tree, proven = proof_of(model, answer.objective)
    if proven is None:
        return Bound(formulated.metric, None, "no plan keeps the limits", infeasible=True)
    proof: dict[str, JsonValue] = {
        "method": METHOD,
        "types": program.types,
        "objective_unit": formulated.in_metric(unit),
        "model": model.to_dict(),
        "tree": tree.to_dict(),
    }
    return Bound(formulated.metric, formulated.in_metric(proven * unit), proof=proof)


def proof_of(model: LinearModel, best: float | None) -> tuple[DualTree, float | None]:
    """A tree that proves that nothing is better than the best mix, and what it proves.

    A large one comes within `NEAR_ENOUGH` where a small one comes no nearer.
    """
    tree = build_certificate(model, best, node_limit=PROOF_NODES)
    proven = verify(tree, model)
    if best is None or proven is None or abs(proven - best) <= NEAR_ENOUGH * abs(best):
        return tree, proven
    tree = build_certificate(model, best, gap_tolerance=NEAR_ENOUGH * min(abs(best), 1.0), node_limit=MORE_NODES)
    return tree, verify(tree, model)


def _channels(setting: ServeSetting, engine: EngineType) -> list[Channel | None]:
    """Prefill hands over to every pool, decode takes what comes to its own."""
    if engine.function == "colocated":
        return [None]
    pools = range(len(setting.resolved.pools)) if engine.function == "prefill" else (engine.pool,)
    return [Channel(pool, pool, 1.0) for pool in pools]


def _candidate(bound: TypeBound, channel: Channel | None) -> Candidate:
    engine = bound.engine
    capacities = tuple(
        None if each is None else Capacity(engine.engines / max(each.base_s, 1e-12), 0, 0, 0, 0, 0, 0, 0, 0)
        for each in bound.workloads
    )
    return Candidate(
        function=engine.function,
        model=engine.model,
        pool=engine.pool,
        shape=engine.shape,
        channel=channel,
        max_batch=engine.instance.most_sequences,
        chunk_tokens=engine.instance.token_budget,
        draft_tokens=0,
        capacities=capacities,
        weights_bytes=0.0,
        activations_bytes=0.0,
        workspace_bytes=0.0,
        basis={},
        memory_share=0.0,
    )


def _add_limits(
    model: LinearModel,
    variables: Vars,
    formulated: Formulated,
    bounds: Sequence[TypeBound],
    workloads: Sequence[Workload],
    good_share: Sequence[float],
) -> None:
    """(B1) to (B6), with rates in the unit of the mix; `good_share` of all requests must keep the percentile."""
    shapes, unit = formulated.problem.shapes, variables.rate_unit_per_s
    x = {(c, w): shapes[c].rate_per_s[w] / unit * busy for (c, w), busy in variables.u.items()}
    most = [model.upper[served.column] for served in variables.d]
    good: dict[int, list[Expr]] = {w: [] for w in range(len(workloads))}
    spent: dict[int, list[Expr]] = {w: [] for w in range(len(workloads))}
    for c, bound in enumerate(bounds):
        work: list[Expr] = []
        for w, each in enumerate(bound.workloads):
            if each is None or (c, w) not in x:
                continue
            work.append(each.limited_s * x[c, w])
            limit = workloads[w].tpot
            if limit is None or not bound.engine.decodes:
                continue
            if limit.share is None:
                z = model.continuous(f"z[{c},{w}]", 0.0, most[w])
                model.add(workloads[w].several * each.least_tpot_s / limit.bound_s * x[c, w] <= z, f"B4[{c},{w}]")
                work.append(-1.0 * each.spent * limit.bound_s * z)
                spent[w].append(z)
            elif each.keeps:
                y = model.continuous(f"y[{c},{w}]", 0.0, most[w])
                model.add(y <= workloads[w].several * x[c, w], f"B2[{c},{w}]")
                work.append(each.good_s * y)
                good[w].append(y)
        model.add(unit / bound.engine.engines * total(work) <= variables.n[c], f"B1[{c}]")
    for w, workload in enumerate(workloads):
        served = variables.d[w]
        if workload.tpot is not None and workload.tpot.share is None:
            model.add(total(spent[w]) <= workload.several * served, f"B4[{w}]")
        elif workload.tpot is not None:
            model.add(total(good[w]) >= good_share[w] * served, f"B3[{w}]")
        _add_first_tokens(model, bounds, x, served, w, workload)


def _good_share(bounds: Sequence[TypeBound], w: int) -> float:
    """The share of all requests that must keep the percentile, by the type that serves the fewest tokens of them."""
    shares = (each.good_share for bound in bounds if (each := bound.workloads[w]) and bound.engine.decodes)
    return min(shares, default=1.0)


def _add_first_tokens(
    model: LinearModel,
    bounds: Sequence[TypeBound],
    x: dict[tuple[int, int], Expr],
    served: Expr,
    w: int,
    workload: Workload,
) -> None:
    """(B5) and (B6)."""
    prefilling = [
        (c, each)
        for c, bound in enumerate(bounds)
        if bound.engine.prefills and (c, w) in x and (each := bound.workloads[w]) is not None
    ]
    for j, limit in enumerate(workload.ttft):
        if limit.share is None:
            idle = total(each.idle_s / limit.bound_s * x[c, w] for c, each in prefilling)
            model.add(idle <= served, f"B6[{w},{j}]")
        else:
            late = total(each.late_share[j] * x[c, w] for c, each in prefilling)
            model.add(late <= (1.0 - limit.share) * served, f"B5[{w},{j}]")
