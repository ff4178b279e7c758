"""Recomputation by input size: a table where lengths vary, instead of one policy sized for the longest input.

Source: "Exploiting Input Tensor Dynamics in Activation Checkpointing", IPDPS 2023. For every size the layers of a rank
choose what they recompute, at least time within the memory that is left (`planner.solvers.choices`, exact). A rank may
hold micro-batches of any sizes at once: what it needs beside them is that of the longest, so that a row that fits with
its own size in all of them fits beside every other row. Shape suffixes: N size, R rank of the pipeline, S stage, K kind
of layer.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.recompute import BY_OPERATOR
from planner.costs.training.config import RecomputeConfig
from planner.costs.training.memory import in_flight_bytes
from planner.errors import PlannerError
from planner.kinds.train.evaluation.choice import PlanChoice, handover
from planner.kinds.train.evaluation.choice_layouts import work_of, working_by
from planner.kinds.train.evaluation.evaluate import evaluate, evaluate_stages
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.evaluation.stages import StageCosts, stage_costs
from planner.kinds.train.space.mean_table import MeanTable, sized
from planner.kinds.train.space.tables import CostTable
from planner.solvers.choices import ChoiceProblem, ItemClass, best_choices, total_bytes

WHOLE = "whole"  # the set of a layer that keeps its input only
Names = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One input size on one rank: how many layers of each kind recompute each set of modules, and what that takes."""

    rank: int
    tokens: int  # of a sequence
    sets: tuple[tuple[int, Names, int], ...]  # kind of layer, set, layers
    recompute_s: float  # of one micro-batch
    bytes: float  # of the rank, micro-batches of this size in flight
    capacity_bytes: float

    @property
    def layers_of_set(self) -> Mapping[Names, int]:
        """Layers by what they recompute, whatever their kind."""
        layers_of: dict[Names, int] = {}
        for _, names, layers in self.sets:
            layers_of[names] = layers_of.get(names, 0) + layers
        return layers_of


@dataclass(frozen=True)
class RecomputeTable:
    """Rows by rank, then by size rising; the longest is what a plan with one set is made for."""

    plan: Evaluation
    tables: tuple[CostTable, ...]  # costs of layers by size
    rows: tuple[SizeRow, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens of a sequence, rising."""
        return tuple(table.job.options.sequence_tokens for table in self.tables)

    @property
    def table_NR(self) -> Floats:
        """Seconds of recomputing a micro-batch by size and rank."""
        return np.array([row.recompute_s for row in self.rows]).reshape(-1, len(self.sizes)).T

    @property
    def static_NR(self) -> Floats:
        """The same under the sets of the longest input."""
        longest = [row for row in self.rows if row.tokens == self.sizes[-1]]
        return np.array([[_seconds(table, row.sets) for row in longest] for table in self.tables])

    def step_s(self, shares: Sequence[float], *, static: bool = False) -> float:
        """A step whose micro-batches come in these shares of the sizes, all as long as their mean."""
        again_NR = self.static_NR if static else self.table_NR
        parts = [_stages(self.plan, table, again_R) for table, again_R in zip(self.tables, again_NR, strict=True)]
        return _mean_step_s(self.plan, parts, np.array(shares) / sum(shares))

    def gain(self, shares: Sequence[float]) -> float:
        """By how much the plan for the longest input takes longer: 0.05 is 5 %."""
        return self.step_s(shares, static=True) / self.step_s(shares) - 1.0


def recompute_table(plan: Evaluation, sizes: Sequence[int]) -> RecomputeTable:
    """The table of a plan made for the longest of these sizes.

    Raises PlannerError where a size does not fit even with every layer recomputed whole.
    """
    tables = tuple(sized(plan.choice.table, tokens) for tokens in sorted(set(sizes)))
    known: dict[_Rank, tuple[SizeRow, ...]] = {}
    rows: list[SizeRow] = []
    for rank, figures in enumerate(_ranks(plan)):
        if figures not in known:
            known[figures] = tuple(_rows(plan, figures, tables))
        rows += [replace(row, rank=rank) for row in known[figures]]
    return RecomputeTable(plan, tables, tuple(rows))


def by_length(plan: Evaluation) -> Evaluation:
    """The plan of an evaluation by mean costs: priced for the longest, with the mean step under rows by length."""
    choice = plan.choice
    longest = choice.table.longest if isinstance(choice.table, MeanTable) else choice.table
    mode = longest.mode(choice.mode.recompute)
    made = evaluate(replace(choice, table=longest, mode=mode), plan.counts_S)
    lengths = longest.job.options.lengths
    table, share_of = recompute_table(made, [length.tokens for length in lengths]), {n.tokens: n.share for n in lengths}
    return replace(made, mean_s=table.step_s([share_of[tokens] for tokens in table.sizes]))


def options(table: CostTable, kind: int) -> dict[Names, tuple[float, float]]:
    """Seconds and bytes of one micro-batch in one layer by what it recomputes; experts take their activation along."""
    cost, kept = table.layers[kind], table.activations[kind]
    allowed = table.job.options.search.recompute or ("none", "selective", "full")
    able = [
        name
        for name in table.job.modules_again
        if name == BY_OPERATOR or (name in kept.of_module and name in cost.forward_of_module)
    ]
    costs_of_set: dict[Names, tuple[float, float]] = {}
    sets = [names for names in table.job.sets_again(able) if not {"moe", "moe_activation"} <= set(names)]
    for names in ((), *sets):
        if ("selective" if names else "none") in allowed:
            costs_of_set[names] = (cost.again_s(names), kept.without(names))
    if "full" in allowed:
        costs_of_set[(WHOLE,)] = (cost.forward_s, kept.input_bytes)
    return costs_of_set


@dataclass(frozen=True, slots=True)
class _Rank:
    """What the rows of a rank hang on: equal ranks have equal rows."""

    layers_K: tuple[int, ...]  # of each kind
    depth: float  # micro-batches in flight, counted in its layers
    held_bytes: float  # beside activations and what is at work
    last: bool  # whether it holds the loss
    host_room: float  # bytes of its host for activations, where these lie there


def _ranks(plan: Evaluation) -> Iterator[_Rank]:
    choice, counts_S = plan.choice, np.array(plan.counts_S, np.float64)
    job, pipe = choice.table.job, choice.pipe
    resident_R = in_flight_bytes(choice.schedule, choice.pp, choice.vpp, choice.num_micro_batches, counts_S)
    last_R = np.array(pipe.unit_of_rank) == pipe.last
    held_R = plan.memory.total_R - plan.memory.activations_R - working_by(last_R, work_of(choice))
    resident_R2 = stage_costs(choice, plan.counts_S).by_rank(choice)[1]
    host_R = job.host_bytes - choice.sharing.of("host_bytes", resident_R2)
    edges = np.concatenate([[0], np.cumsum(plan.counts_S)])
    for rank, stages in enumerate(pipe.stages_of_rank):
        kinds = [kind for stage in stages for kind in job.kind_of_layer[edges[stage] : edges[stage + 1]]]
        depth = float(resident_R[rank]) / max(len(kinds), 1)
        layers_K = tuple(kinds.count(kind) for kind in range(len(job.kinds)))
        yield _Rank(layers_K, depth, float(held_R[rank]), bool(last_R[rank]), float(host_R[rank]))


def _rows(plan: Evaluation, rank: _Rank, tables: Sequence[CostTable]) -> Iterator[SizeRow]:
    """A row a size; layers are recomputed whole only where they are at the longest, whose room this takes."""
    choice, longest = plan.choice, tables[-1]
    capacity = longest.job.capacity_bytes
    room = capacity - rank.held_bytes
    cases = []
    for whole in (True, False):
        reserve = _work_bytes(longest, choice, rank, whole=whole)
        row = _solved(longest, rank, room - reserve, choice, whole)
        if row is not None:
            cases.append((row[0], reserve, whole))
    if not cases:
        tokens = longest.job.options.sequence_tokens
        raise PlannerError(
            f"sequences of {tokens} tokens leave {room / 1e9:.3g} GB for activations, with all layers recomputed",
            where="options.lengths",
            hint="cut the longest inputs, or shard over more ranks",
        )
    _, reserve, whole = min(cases)
    for table in tables:
        row = _solved(table, rank, room - reserve, choice, whole)
        assert row is not None  # less is in flight than at the longest
        seconds, sets, used = row
        tokens = table.job.options.sequence_tokens
        yield SizeRow(0, tokens, sets, seconds, rank.held_bytes + reserve + used, capacity)


def _work_bytes(table: CostTable, choice: PlanChoice, rank: _Rank, *, whole: bool) -> float:
    """What is at work on a rank, of which some layers may be recomputed whole."""
    recompute = RecomputeConfig("full") if whole else RecomputeConfig()
    work = table.work(choice.zero_stage, recompute, "activations" in choice.offload)
    return work.on_last_bytes if rank.last else work.layer_bytes


def _solved(
    table: CostTable, rank: _Rank, room: float, choice: PlanChoice, whole: bool
) -> tuple[float, tuple[tuple[int, Names, int], ...], float] | None:
    """Seconds, sets and bytes of the fastest sets of one size within the room; None where none fits.

    Where activations are offloaded, the room is that of the host, and they take nothing of the device.
    """
    groups, names = [], []
    on_host = "activations" in choice.offload
    for kind, layers in enumerate(rank.layers_K):
        able = {name: cost for name, cost in options(table, kind).items() if whole or name != (WHOLE,)}
        if not able:
            return None
        names.append(list(able))
        groups.append(ItemClass(layers, tuple((seconds, size * rank.depth) for seconds, size in able.values())))
    problem = ChoiceProblem(tuple(groups), max(rank.host_room if on_host else room, 0.0))
    result = best_choices(problem)
    if room < 0.0 or result.solution is None or result.objective is None:
        return None
    sets = tuple(
        (kind, name, layers)
        for kind, chosen in enumerate(result.solution)
        for name, layers in zip(names[kind], chosen, strict=True)
        if layers
    )
    return result.objective, sets, 0.0 if on_host else total_bytes(problem, result.solution)


def _seconds(table: CostTable, sets: Sequence[tuple[int, Names, int]]) -> float:
    """Seconds of recomputing these sets at the size of the table."""
    return sum(layers * options(table, kind)[names][0] for kind, names, layers in sets)


def _stages(plan: Evaluation, table: CostTable, again_R: Floats) -> tuple[PlanChoice, StageCosts]:
    """What stages take at one size, recomputation spread over the stages of a rank by their layers."""
    choice = replace(plan.choice, table=table, mode=table.mode(RecomputeConfig()), full_layers=0)
    plain = stage_costs(choice, plan.counts_S)
    pass_S3, counts_S = plain.pass_S3.copy(), np.array(plan.counts_S, np.float64)
    for again_s, stages in zip(again_R, choice.pipe.stages_of_rank, strict=True):
        indices = list(stages)
        pass_S3[indices, 1] += again_s * counts_S[indices] / max(float(counts_S[indices].sum()), 1.0)
    return choice, replace(plain, pass_S3=pass_S3)


def _mean_step_s(plan: Evaluation, parts: Sequence[tuple[PlanChoice, StageCosts]], share_N: Floats) -> float:
    """The step of stages that take the mean of these."""
    stages = replace(
        parts[-1][1],
        pass_S3=sum(share * part.pass_S3 for share, (_, part) in zip(share_N, parts, strict=True)),
        joined_S=sum(share * part.joined_S for share, (_, part) in zip(share_N, parts, strict=True)),
    )
    message_s = float(sum(share * handover(at_size)[0] for share, (at_size, _) in zip(share_N, parts, strict=True)))
    message_B = np.full(max(len(plan.counts_S) - 1, 0), message_s)
    return evaluate_stages(plan.choice, plan.counts_S, stages, message_B).step_s
