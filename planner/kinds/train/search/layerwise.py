"""Layer-wise strategies (Galvatron): the best tp, dp, ZeRO stage and recomputation of every layer.

For each size of micro-batch, cp, number of stages and cut of the layers into them, a stage is a chain of choices under
a budget of bytes (`planner.solvers.chain`), solved exactly: what Galvatron searches (Miao et al., VLDB 2023,
arXiv:2211.13878), with bytes and seconds as they are. What a stage needs beside its layers hangs on the largest layer
that is gathered or computed again, so that chains are solved by cases of it.

Bounds. Let C be the least seconds of a stage's micro-batches and exchanges, m micro-batches, tau_k the least of stage k
for one, memory set aside. The last stage starts after the forward passes of those before it, which end after it, so
that a step takes at least C + sum over k < s of tau_k. Rank s of p has done p - s forward passes when its first
gradient comes, so that it takes at least (1 - (p - 1 - s) f / m) C + sum over k /= s of tau_k as well, where f is the
largest share of the forward pass in a layer. With one stage the first is the step itself.
Shape suffixes: L layer, N distinct item (a kind of layer with the ends at it), G tp, O option of a tp, S stage.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product

import numpy as np

from planner.arrays import Floats, Ints
from planner.costs.training.config import even_layout
from planner.errors import PlannerError
from planner.kinds.train.evaluation.choice import Strategy
from planner.kinds.train.evaluation.evaluation import Evaluation, fits
from planner.kinds.train.evaluation.mixes import LayerRows, LayerwiseSpace, evaluate_mix, strategy_costs
from planner.kinds.train.evaluation.pipes import pipe_of
from planner.kinds.train.figures import MARGIN
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.contexts import method_costs, undominated_rows
from planner.kinds.train.space.space import (
    allowed_schedules,
    axis_values,
    context_methods,
    context_suits,
    divisors,
    head_counts,
    kv_head_counts,
)
from planner.kinds.train.space.states import ShardShape, zero_stages
from planner.kinds.train.space.tables import CostTable, RecomputeMode
from planner.solvers.chain import Chain, ChainProblem, solve_chain
from planner.solvers.result import Status

Counts = tuple[int, ...]
MIXES_RULE = "of these tp, dp, ZeRO stages and recomputation by layer, with 1F1B, on all GPUs, stages cut evenly"


@dataclass(frozen=True, slots=True)
class Mixes:
    """The best mix found below the cutoff, with a bound on every mix."""

    best: Evaluation | None
    value: float  # its step; the cutoff where there is none
    bound: float
    cuts: int  # combinations of micro-batch, number of stages and cut
    solved: int  # of them, those that no bound left out
    least_solved: float  # seconds of a step, of the bounds of those
    least_left: float  # of the others


def require_dense(job: TrainJob) -> None:
    """Raises PlannerError where layers have experts: ranks that share these out stay the same for all layers."""
    if job.num_experts:
        raise PlannerError(
            f"`{job.arch.name}` has experts, which all layers keep on the same ranks",
            where=job.resolved.where(("options", "search", "layerwise")),
            hint="leave `layerwise` out",
        )


def plan_layers(job: TrainJob, cutoff_s: float = np.inf) -> Mixes:
    """The fastest mix whose step takes less than `cutoff_s`."""
    best: Evaluation | None = None
    value, least_solved, solved = cutoff_s, np.inf, 0
    cuts = sorted(_cuts(job), key=lambda cut: cut.floor_s)
    for cut in cuts:
        if cut.floor_s >= value * (1.0 - MARGIN):
            break
        solved += 1
        mix, least_s = cut.planned(value)
        least_solved = min(least_solved, least_s)
        if mix is not None and mix.step_s < value and fits(mix):
            best, value = mix, mix.step_s
    least_left = cuts[solved].floor_s if solved < len(cuts) else np.inf
    return Mixes(best, value, min(least_solved, value), len(cuts), solved, least_solved, least_left)


def _cuts(job: TrainJob) -> Iterator["LayerCut"]:
    """Every size of micro-batch with every cp and number of stages, layers cut as evenly as can be."""
    tables: dict[ShardShape, CostTable] = {}
    for pp in _pipelines(job):
        layouts = dict.fromkeys(even_layout(job.arch.num_layers, pp, ends) for ends in (False, True))
        whole = [counts for counts in layouts if min(counts) >= 1]
        if job.options.search.layers == "even":
            whole = [counts for counts in whole if len(set(counts)) == 1]
        for cp, sequences in product(axis_values(job)["cp"], divisors(job.options.common_batch)):
            space = LayerwiseSpace(job, pp, cp, "ring", job.num_gpus // pp, sequences, tables)
            yield from (LayerCut(options, counts) for options in _methods(space) for counts in whole)


def _pipelines(job: TrainJob) -> Iterator[int]:
    """Numbers of stages that divide the GPUs: one, or several where 1F1B may run them.

    Mixes have one stage a rank, and share states out over all data-parallel ranks.
    """
    axes, search = axis_values(job), job.options.search
    if 1 not in axes["vpp"] or "all" not in (search.zero_shards or ("all",)):
        return
    piped = "1f1b" in allowed_schedules(job)
    for pp in axes["pp"]:
        if job.num_gpus % pp == 0 and pp <= job.arch.num_layers and (pp == 1 or piped):
            yield pp


def _methods(space: LayerwiseSpace) -> Iterator["StrategyOptions"]:
    """The space under every method of context parallelism that no other beats wherever the two can be used."""
    methods = context_methods(space.job) if space.cp > 1 else (space.context,)
    by_degrees: dict[tuple[int, ...], list[StrategyOptions]] = {}
    for method in methods:
        options = StrategyOptions(replace(space, context=method))
        if options.degrees:
            by_degrees.setdefault(options.degrees, []).append(options)
    for degrees, alike in by_degrees.items():
        costs = [np.concatenate([method_costs(options.space.table(tp)) for tp in degrees]) for options in alike]
        yield from (options for options, kept in zip(alike, undominated_rows(costs), strict=True) if kept)


@dataclass(frozen=True)
class StrategyOptions:
    """What every item costs under every strategy of one space."""

    space: LayerwiseSpace

    @cached_property
    def degrees(self) -> tuple[int, ...]:
        """Every tp that divides heads and ranks, and whose dp and micro-batch are on the axes of the problem [G]."""
        job, space = self.space.job, self.space
        axes, heads, kv_heads = axis_values(job), head_counts(job), kv_head_counts(job)
        return tuple(
            tp
            for tp in axes["tp"]
            if space.ranks % (tp * space.cp) == 0
            and (dp := space.dp(tp)) in axes["dp"]
            and space.sequences % dp == 0
            and space.sequences // dp in axes["micro_batch"]
            and all(count % tp == 0 for count in heads)
            and all(count % tp == 0 or tp % count == 0 for count in kv_heads)
            and bool(context_suits(job, space.context, np.array(tp), np.array(space.cp)))
        )

    @cached_property
    def strategies(self) -> tuple[tuple[tuple[int, RecomputeMode], ...], ...]:
        """ZeRO stage and recomputation of each option [G][O]."""
        stages = zero_stages(self.space.job, self.space.pp)
        tables = [self.space.table(tp) for tp in self.degrees]
        return tuple(tuple((zero, mode) for zero in stages for mode in table.modes) for table in tables)

    @cached_property
    def items(self) -> tuple[LayerRows, Ints]:
        """The distinct items [N], and which each layer is [L]."""
        rows = LayerRows.of_model(self.space.job)
        columns = np.stack([rows.kind_X, rows.first_X.astype(np.int64), rows.last_X.astype(np.int64)])
        _, first_N, item_L = np.unique(columns, axis=1, return_index=True, return_inverse=True)
        return rows.at(first_N), item_L.ravel()

    @cached_property
    def least_L(self) -> Floats:
        """Least seconds of a micro-batch in each layer, exchanges and memory set aside."""
        rows, item_L = self.items
        least_N = np.full(len(rows.kind_X), np.inf)
        for tp in self.degrees:
            table = self.space.table(tp)
            extra_K = np.array([mode.extra_s for mode in table.modes]).min(axis=0)
            pass_N = (table.pass_K3.sum(axis=1) + extra_K)[rows.kind_X]
            pass_N = pass_N + rows.first_X * sum(table.first.pass_s) + rows.last_X * sum(table.last.pass_s)
            least_N = np.minimum(least_N, pass_N)
        return np.asarray(least_N[item_L])

    @cached_property
    def costs(self) -> "ItemCosts":
        """Every item under every strategy; infinite seconds where a tp has fewer options."""
        space, rows = self.space, self.items[0]
        shape = (len(rows.kind_X), len(self.degrees), max(len(options) for options in self.strategies))
        once, state, in_flight = (np.zeros(shape) for _ in range(3))
        costs = ItemCosts(np.full(shape, np.inf), once, state, in_flight, np.zeros(shape[1:]), np.zeros(shape[1:]))
        for g, tp in enumerate(self.degrees):
            table = space.table(tp)
            sharings = {zero: space.sharing(tp, zero) for zero in zero_stages(space.job, space.pp)}
            for o, (zero, mode) in enumerate(self.strategies[g]):
                row = strategy_costs(space, tp, zero, sharings[zero], rows, mode)
                costs.pass_NGO[:, g, o] = row.pass_X3.sum(axis=1)
                costs.once_NGO[:, g, o] = row.shown_X + row.optimizer_X
                costs.state_NGO[:, g, o] = row.state_X3.sum(axis=1)
                costs.in_flight_NGO[:, g, o] = np.array(mode.in_flight_bytes)[rows.kind_X]
                work = table.work(zero, mode.recompute)
                costs.work_GO[g, o], costs.loss_GO[g, o] = work.layer_bytes, work.loss_bytes
                costs.forward_share = max(
                    costs.forward_share, float((row.pass_X3[:, 0] / row.pass_X3.sum(axis=1)).max())
                )
        return costs

    @property
    def forward_share(self) -> float:
        """f; half of what changes of tp take is forward."""
        return max(self.costs.forward_share, 0.5 if len(self.degrees) > 1 else 0.0)

    @cached_property
    def change_GG(self) -> Floats:
        """Seconds of a micro-batch, there and back, where neighbours have these tp."""
        return np.array([[2.0 * self.space.change_s(a, b) for b in self.degrees] for a in self.degrees])

    def strategy(self, state: int, option: int) -> Strategy:
        """One of them by its place."""
        tp = self.degrees[state]
        zero, mode = self.strategies[state][option]
        return Strategy(tp, self.space.dp(tp), zero, mode.recompute)


@dataclass(slots=True, eq=False)
class ItemCosts:
    """Figures of every item under every strategy."""

    pass_NGO: Floats  # seconds of a micro-batch
    once_NGO: Floats  # seconds of a step
    state_NGO: Floats  # bytes between steps
    in_flight_NGO: Floats  # bytes of a micro-batch
    work_GO: Floats  # bytes while a layer is at work
    loss_GO: Floats  # bytes of the loss
    forward_share: float = 0.0  # the largest of the forward pass in an item


@dataclass(frozen=True)
class LayerCut:
    """One space with its layers cut into stages."""

    options: StrategyOptions
    counts: Counts

    @cached_property
    def least_S(self) -> Floats:
        """tau: least seconds of a micro-batch in each stage."""
        return np.add.reduceat(self.options.least_L, np.concatenate([[0], np.cumsum(self.counts)[:-1]]))

    @cached_property
    def floor_s(self) -> float:
        """Least seconds of a step, memory set aside."""
        space = self.options.space
        before_S = np.concatenate([[0.0], np.cumsum(self.least_S)[:-1]])
        return float((space.num_micro_batches * self.least_S + before_S).max()) + space.job.rates.get("step_s")

    def planned(self, cutoff_s: float) -> tuple[Evaluation | None, float]:
        """The plan of the best chain of every stage, where it may beat the cutoff, and a bound on every plan."""
        space, bound = self.options.space, self.floor_s
        fixed_s = space.job.rates.get("step_s")
        chosen: list[Strategy] = []
        for stage in range(len(self.counts)):
            others = tuple(self._others(stage))
            seconds, chain = self._stage(stage, min((cutoff_s - fixed_s - rest_s) / share for rest_s, share in others))
            if chain is None:
                return None, max(bound, cutoff_s)
            bound = max(bound, *(fixed_s + rest_s + share * seconds for rest_s, share in others))
            chosen += self._chosen(stage, chain)
        return evaluate_mix(space, self.counts, chosen), bound

    def _chosen(self, stage: int, chain: Chain) -> Iterator[Strategy]:
        """Strategies of a stage's layers; equal neighbours of one tp in the order of their options, since theirs is
        all the same."""
        first = sum(self.counts[:stage])
        items = self.options.items[1][first : first + self.counts[stage]].tolist()
        alike = groupby(zip(items, chain.states, chain.options, strict=True), key=lambda layer: layer[:2])
        for (_, state), run in alike:
            yield from (self.options.strategy(state, option) for option in sorted(option for _, _, option in run))

    def _others(self, stage: int) -> Iterator[tuple[float, float]]:
        """Seconds of a step beside those of this stage, and the share of its own that counts, by either bound."""
        before_s = float(self.least_S[:stage].sum())
        yield before_s, 1.0
        behind, batches = len(self.counts) - 1 - stage, self.options.space.num_micro_batches
        share = 1.0 - behind * self.options.forward_share / batches
        if behind and share > 0.0:
            yield float(self.least_S.sum() - self.least_S[stage]), share

    def _stage(self, stage: int, cutoff_s: float) -> tuple[float, Chain | None]:
        """The best chain of one stage that takes less than the cutoff, by cases of the largest layer at work."""
        case = self._chain(stage)
        best: Chain | None = None
        open_cases = [_Case(len(case.levels) - 1, 0)]
        while open_cases:
            here = open_cases.pop()
            problem = case.problem(here)
            result = None if problem is None else solve_chain(problem, cutoff_s)
            if result is None or result.status is not Status.OPTIMAL:
                continue
            assert result.solution is not None
            assert result.objective is not None
            split = here.split(case.largest(result.solution))
            if split:
                open_cases += split
            else:
                best, cutoff_s = result.solution, result.objective
        return cutoff_s, best

    def _chain(self, stage: int) -> "_Stage":
        """The layers of a stage under every strategy."""
        options, first = self.options, sum(self.counts[:stage])
        space, item_L = options.space, options.items[1][first : first + self.counts[stage]]
        costs, batches = options.costs, space.num_micro_batches
        depth = float(pipe_of("1f1b", space.pp, 1, batches).peak_R[stage])
        size_NGO = costs.state_NGO + depth * costs.in_flight_NGO
        holds_loss = stage == len(self.counts) - 1
        return _Stage(
            (batches * costs.pass_NGO + costs.once_NGO)[item_L],
            size_NGO[item_L],
            batches * options.change_GG,
            space.job.room_bytes,
            costs.work_GO,
            costs.loss_GO if holds_loss else np.zeros_like(costs.loss_GO),
        )


@dataclass(frozen=True, slots=True)
class _Case:
    """The level of what is at work that is allowed, and the one that is paid for."""

    allowed: int
    paid: int

    def split(self, level: int) -> tuple["_Case", ...]:
        """Cases that part the plans of this level from those with less; none where it is paid for."""
        if level > self.paid:
            return replace(self, allowed=level - 1), replace(self, paid=level)
        return ()


@dataclass(frozen=True)
class _Stage:
    """A chain without its budget: bytes beside the layers hang on the case."""

    time_LGO: Floats
    size_LGO: Floats
    change_GG: Floats
    room_bytes: float
    work_GO: Floats
    loss_GO: Floats  # none where another stage holds the loss

    @cached_property
    def levels(self) -> Floats:
        """Bytes of a layer at work, ascending."""
        return np.unique(self.work_GO)

    def problem(self, case: _Case) -> ChainProblem | None:
        """The chain of a case; None where it allows nothing or has no room."""
        paid_bytes = float(self.levels[case.paid])
        allowed_GO = self.work_GO <= self.levels[case.allowed]
        budget = self.room_bytes - paid_bytes
        time_LGO = np.where(allowed_GO[None], self.time_LGO, np.inf)
        if budget < 0.0 or not np.isfinite(time_LGO).any(axis=(1, 2)).all():
            return None
        size_LGO = self.size_LGO.copy()
        size_LGO[-1] += np.maximum(self.loss_GO - paid_bytes, 0.0)
        change_LGG = np.broadcast_to(self.change_GG, (len(time_LGO), *self.change_GG.shape)).copy()
        return ChainProblem(time_LGO, size_LGO, change_LGG, budget)

    def largest(self, chain: Chain) -> int:
        """The level of the largest layer at work."""
        used = (list(chain.states), list(chain.options))
        return int(np.searchsorted(self.levels, self.work_GO[used].max()))
