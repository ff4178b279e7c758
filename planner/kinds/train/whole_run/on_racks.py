"""Racks of a training plan's nodes, and what its step waits for their uplinks; derived again by the check.

A stage fills whole nodes; node n of a stage holds the same replicas, or the same part of one, as node n of every other
(tp innermost, then cp, dp and pp). So nodes are the cells of `solvers.topology.racks`, as many replicas as nodes
of a stage. Where several stages share a node they are one, and where experts or contexts are split over several nodes,
these nodes are one cell: they stay inside a rack, and what they exchange leaves none. Bytes of a step:

Gradients   G_b of stages partly inside rack b: each ring over D ranks leaves the rack once and sends (D - 1) / D of
            what it sums or gathers: twice a step, of ZeRO-2 gradients once a micro-batch, of ZeRO-3 three times one
Activations A_b on edges that leave a rack: of every micro-batch, sequence x hidden in 16 bits, one way forward and the
            other way back, once for each chunk of a pipeline rank

What a step waits for, beyond its time under adapters alone:

W = max_b ((G_b / r_b - E)+ + (A_b / r_b - P)+)           gradients exchanged once a step
W = max_b ((G_b + A_b) / r_b - E - P)+                    gradients exchanged with every micro-batch

P is the time of the pipeline's passes; E that of the exchange which shows, and of the passes beside which the rest is
hidden. No placement waits less than the bounds of three relaxations allow: of gradients alone beside E, of activations
alone beside P, and of both beside both.

Left out: the edges of interleaved schedules from the last rank to the first.

Shapes: O placements, B racks, S stages, R pipeline ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from planner.arrays import Floats, Ints
from planner.costs.training.zero_overlap import each_micro_batch
from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.train.decision import RackPlacement
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.evaluation.stages import stage_costs
from planner.kinds.train.job import TrainJob
from planner.plan.schema import Envelope
from planner.solvers.topology.racks import RackPlan, capacity_bound_s, decode, place_on_racks, rank_orders
from planner.solvers.topology.racks_problem import Racks, SharedGradients

ON_RACKS = "uplinks of racks carry gradients and activations alone, each as long as they can beside passes"
WIRE_BYTES = 2.0  # of an activation
MOST_KEPT = 4096  # placement problems whose answers are kept


@dataclass(frozen=True, slots=True)
class Uplinks:
    """The placement problem of an evaluated plan, and how long its uplinks may send unseen."""

    problem: Racks
    nodes_per_cell: int
    gradients_s: float  # E
    passes_s: float  # P
    together: bool  # gradients are exchanged with every micro-batch

    def waits_s(self, count_BS: Ints) -> float:
        """W of cells by rack and stage."""
        return float(self.waits_of_each_s(count_BS[None])[0])

    def waits_of_each_s(self, count_OBS: Ints) -> Floats:
        """W [O] of several placements."""
        gradients_OB = self.of_gradients.uplinks_s(count_OBS)
        activations_OB = self.of_activations.uplinks_s(count_OBS)
        if self.together:
            together_OB = gradients_OB + activations_OB - self.gradients_s - self.passes_s
            return np.asarray(np.maximum(together_OB, 0.0).max(axis=1))
        shown_OB = np.maximum(gradients_OB - self.gradients_s, 0.0) + np.maximum(activations_OB - self.passes_s, 0.0)
        return np.asarray(shown_OB.max(axis=1))

    def least_s(self, bounds_s: Sequence[float]) -> float:
        """The least W, by bounds of both kinds of bytes together, of gradients alone and of activations alone."""
        both_s, gradients_s, activations_s = bounds_s
        least_s = max(0.0, both_s - self.gradients_s - self.passes_s)
        if self.together:
            return least_s
        return max(least_s, gradients_s - self.gradients_s, activations_s - self.passes_s)

    @property
    def relaxed(self) -> tuple[Racks, Racks, Racks]:
        """The problem with both kinds of bytes, of gradients and of activations alone."""
        return self.problem, self.of_gradients, self.of_activations

    @property
    def of_gradients(self) -> Racks:
        """The problem without activations."""
        return replace(self.problem, activation_bytes_S=(0.0,) * len(self.problem.activation_bytes_S))

    @property
    def of_activations(self) -> Racks:
        """The problem without gradients."""
        return replace(self.problem, gradient_bytes_S=(0.0,) * len(self.problem.gradient_bytes_S))


@dataclass(frozen=True, slots=True)
class Placed:
    """Cells by rack and stage with what the step waits for them, and the least that it waits under any placement."""

    count_BS: Ints
    waits_s: float
    least_s: float


def has_uplinks(job: TrainJob) -> bool:
    """Whether the job's pool has racks with uplinks."""
    return job.pool.wiring.uplink_bytes_per_s is not None


def cells_of(choice: PlanChoice) -> tuple[Racks, int] | None:
    """The cells of a plan with the activations between them, no gradients yet, and the nodes of a cell.

    None where its stages or groups fill no whole nodes, or no rack holds them.
    """
    job, shape = choice.table.job, choice.table.shape
    batch = choice.num_micro_batches * shape.micro_batch * job.options.sequence_tokens
    edge = batch * WIRE_BYTES * job.arch.hidden_size * choice.vpp / (shape.tp * shape.cp)
    span = max(shape.tp * shape.cp, shape.ep * shape.etp)
    return _cells(job.pool, choice.dp * shape.cp * shape.tp, span, choice.pp, edge)


@lru_cache(maxsize=MOST_KEPT)
def _cells(pool: Pool, stage: int, span: int, pp: int, edge_bytes: float) -> tuple[Racks, int] | None:
    """Cells of stages of so many ranks, groups of `span` of them, of which each sends so much to the next stage."""
    gpus = pool.node.num_gpus
    merged = max(gpus // stage, 1)
    if stage * merged % gpus or pp % merged:
        return None
    cell = max(1, -(-span // gpus))
    nodes = stage * merged // gpus
    free_B = _free_nodes(pool) // cell
    stages = pp // merged
    if nodes % cell or free_B.sum() * cell < nodes * stages:
        return None
    rate = pool.wiring.uplink_bytes_per_s
    assert rate is not None
    problem = Racks(
        replicas=nodes // cell,
        free_B=tuple(free_B.tolist()),
        uplink_bytes_per_s_B=(rate,) * len(free_B),
        gradient_bytes_S=(0.0,) * stages,
        activation_bytes_S=(edge_bytes * min(gpus * cell, stage),) * (stages - 1),
    )
    return problem, cell


def uplinks_of(best: Evaluation) -> Uplinks | None:
    """The racks of a plan on one pool; None where its stages or groups fill no whole nodes, or no rack holds them."""
    choice = best.choice
    cells = cells_of(choice)
    if cells is None:
        return None
    problem, nodes_per_cell = cells
    if problem.stages == choice.pp:
        resident_R2 = stage_costs(choice, best.counts_S).by_rank(choice)[1]
        problem = replace(problem, gradient_bytes_S=tuple(gradients_sent(choice, resident_R2).tolist()))
    together = each_micro_batch(choice.zero_stage, choice.num_micro_batches)
    return Uplinks(problem, nodes_per_cell, best.exchange_s + _hidden_s(best), best.pipeline_s, together)


@lru_cache(maxsize=64)
def _free_nodes(pool: Pool) -> Ints:
    """Nodes of each rack that ranks may stand on [B]."""
    return np.bincount(pool.rack_of_node[list(pool.job_nodes)], minlength=len(pool.wiring.racks))


def placed(uplinks: Uplinks) -> Placed:
    """The placement with the least wait, of these the one whose busiest uplink is done soonest.

    Candidates are the best of rank orders, of both kinds of bytes together, of gradients and of activations alone.
    """
    candidates, least_s = [in_rank_order(uplinks)], least_waits_s(uplinks)
    waits_s = uplinks.waits_s(candidates[0])
    for each in uplinks.relaxed:
        if waits_s <= least_s:
            break
        candidates.append(_counts(uplinks, _quick(each)))
        waits_s = min(waits_s, uplinks.waits_s(candidates[-1]))
    best_BS = min(candidates, key=lambda c: (uplinks.waits_s(c), float(uplinks.problem.uplinks_s(c).max())))
    return Placed(best_BS, waits_s, min(least_s, waits_s))


def least_waits_s(uplinks: Uplinks) -> float:
    """What the step waits under any placement at least."""
    return uplinks.least_s([least_busy_s(each) for each in uplinks.relaxed])


def in_rank_order(uplinks: Uplinks) -> Ints:
    """The rank order with the least wait [B, S]."""
    silent = uplinks.of_activations.gradient_bytes_S
    counts_OBS = _rank_orders(replace(uplinks.problem, gradient_bytes_S=silent, activation_bytes_S=silent[1:]))
    return np.asarray(counts_OBS[int(uplinks.waits_of_each_s(counts_OBS).argmin())])


@lru_cache(maxsize=MOST_KEPT)
def _rank_orders(cells: Racks) -> Ints:
    """The rank orders of cells that send nothing, kept [order, B, S]."""
    return np.stack(list(rank_orders(cells)))


@lru_cache(maxsize=MOST_KEPT)
def least_busy_s(problem: Racks, shared: SharedGradients | None = None) -> float:
    """The bound by room, kept: candidates that differ in nothing else have the same problem."""
    return capacity_bound_s(problem, shared)


@lru_cache(maxsize=MOST_KEPT)
def _quick(problem: Racks) -> RackPlan | None:
    """The quick placement, kept alike."""
    return place_on_racks(problem, quick=True).solution


def _counts(uplinks: Uplinks, plan: RackPlan | None) -> Ints:
    """Cells of a placement by rack and stage [B, S]."""
    assert plan is not None
    racks = len(uplinks.problem.free_B)
    return np.array([np.bincount(row, minlength=racks) for row in plan.rack_SD]).T


def waiting(best: Evaluation) -> Evaluation:
    """The evaluation with what its step waits for uplinks, where its pool has racks with them.

    Raises PlannerError for plans that the racks do not hold.
    """
    job = best.choice.table.job
    if not has_uplinks(job):
        return best
    uplinks = uplinks_of(best)
    if uplinks is None:
        raise no_room(job)
    return replace(best, uplinks_s=placed(uplinks).waits_s)


def require_plain(jobs: Sequence[TrainJob]) -> None:
    """Raises PlannerError for uplinks under several pools, or under strategies by layer, whose waits are not known."""
    for index, job in enumerate(jobs):
        if not has_uplinks(job):
            continue
        where = job.resolved.where(("cluster", "pools", index, "topology"))
        if len(jobs) > 1:
            raise PlannerError("racks are of one pool", where=where, hint="give one pool, or leave `uplink` out")
        if job.options.search.layerwise:
            what = "strategies by layer do not know of uplinks"
            raise PlannerError(what, where=where, hint="leave `search.layerwise` out, or `uplink`")


def no_room(job: TrainJob) -> PlannerError:
    """No plan's stages stand on whole nodes of the racks."""
    where = job.resolved.where(("cluster", "pools", 0, "topology"))
    what = f"no plan's stages and groups fill whole nodes of {job.pool.node.num_gpus} GPUs inside these racks"
    return PlannerError(what, where=where, hint="search fewer stages, such as `search.pp: 1`, or leave `uplink` out")


def with_racks(envelope: Envelope, best: Evaluation) -> Envelope:
    """The plan with the rack of every node, where the cluster has racks with uplinks."""
    if not has_uplinks(best.choice.table.job):
        return envelope
    uplinks = uplinks_of(best)
    if uplinks is None:
        raise no_room(best.choice.table.job)
    chosen, soonest = placed(uplinks), place_on_racks(uplinks.problem, quick=True)
    assert soonest.bound is not None
    counts = [chosen.count_BS, _counts(uplinks, soonest.solution)]
    kept = [count_BS for count_BS in counts if uplinks.waits_s(count_BS) <= chosen.waits_s]
    count_BS = min(kept, key=lambda c: float(uplinks.problem.uplinks_s(c).max()))
    busiest_s = float(uplinks.problem.uplinks_s(count_BS).max())
    rows = decode(uplinks.problem, count_BS).rack_SD
    made = RackPlacement(
        rack_of_node=tuple(tuple(rack for rack in row for _ in range(uplinks.nodes_per_cell)) for row in rows),
        busiest_uplink_s=busiest_s,
        bound_s=min(soonest.bound, busiest_s),
        rank_order_s=float(uplinks.problem.uplinks_s(next(rank_orders(uplinks.problem))).max()),
        step_waits_s=chosen.waits_s,
        step_waits_least_s=chosen.least_s,
    )
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "racks": made.model_dump(mode="json")},
            "assumptions": (*envelope.assumptions, ON_RACKS),
        }
    )


def gradients_sent(choice: PlanChoice, resident_R2: Floats) -> Floats:
    """Bytes of a step that a rack sends for each pipeline rank partly inside it [R], which hold so many elements."""
    shape = choice.table.shape
    ranks = choice.dp * shape.cp
    sent_R = np.zeros(len(resident_R2))
    for column, rings in enumerate((shape.tp, shape.ep * shape.etp)):
        members = choice.dp * shape.cp * shape.tp // rings
        own_R2 = resident_R2 * (np.arange(2) == column)
        weights_R = choice.sharing.of("weights_bytes", own_R2)
        if choice.zero_stage == 3:
            weights_R = weights_R * min(choice.shards or ranks, members)
        gradients_R = choice.sharing.of("gradients_bytes", own_R2)
        held_R = np.maximum(weights_R, gradients_R) if choice.zero_stage < 2 else weights_R
        sent_R = sent_R + rings * (members - 1) / members * held_R
    return sent_R * _sweeps(choice)


def _sweeps(choice: PlanChoice) -> float:
    """How often a step sums or gathers what a stage holds."""
    batches = choice.num_micro_batches
    if choice.zero_stage == 3:
        return 3.0 * batches
    return 1.0 + batches if each_micro_batch(choice.zero_stage, batches) else 2.0


def _hidden_s(best: Evaluation) -> float:
    """Passes of the slowest rank beside which an exchange once a step is hidden."""
    choice, job = best.choice, best.choice.table.job
    overlap, room = job.options.overlap, job.rates.get("dp.room")
    passes_s: list[float] = best.pass_R3[best.pass_R3.sum(axis=1).argmax()].tolist()
    if each_micro_batch(choice.zero_stage, choice.num_micro_batches):
        return 0.0
    forward_s, backward_s = passes_s[0], sum(passes_s[1:])
    return room * (backward_s * ("grad_reduce" in overlap) + forward_s * ("param_gather" in overlap))
