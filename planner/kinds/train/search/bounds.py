"""Lower bounds on the step time of a choice over all layouts of its layers: what lets the search prune.

Let W be the work of one micro-batch in the whole model, t the least of a layer's, L the layers, p ranks, m
micro-batches. The slowest rank takes at least tau = max(W / p, t ceil(L / p)), and with L = k p at least the lesser of
k t + the dearer end and (k + 1) t. A rank works m tau in any schedule. Under 1F1B its first gradient comes after a
micro-batch's whole way there and back, W, when p - r forward passes are done, so that the step takes at least
W + (m - 1) tau - (p - 1) f tau, where f is the largest share of the forward pass in any layer or end. Under DualPipe
two ranks share two stages, and tau is W / p.

Means of figures that grow with what a rank holds stand for their maxima; so do the sums max(a, b) + c min(a, b), which
are convex for c <= 1.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner.costs.training.zero_overlap import each_micro_batch, lost_share, overlapped
from planner.kinds.train.evaluation.choice import PlanChoice, handover
from planner.kinds.train.space.tables import CostTable, RecomputeMode


@dataclass(frozen=True)
class Floor:
    """Least seconds of a micro-batch on the slowest rank, for one shape, number of ranks and mode of recomputation."""

    table: CostTable
    pp: int
    mode: RecomputeMode | None = None  # none: nothing is computed again
    full_layers: int = 0  # of each rank, the least
    further_heads: bool = True  # of multi-token prediction, whose costs take long to make
    paired: bool = False  # a rank shares the stages of another: it need not hold whole layers on average

    @cached_property
    def last_s(self) -> tuple[float, float, float]:
        """Passes of the end of the model."""
        return self.table.last.pass_s if self.further_heads else self.table.loss_s

    @cached_property
    def work_s(self) -> float:
        """One micro-batch through the whole model."""
        table = self.table
        extra_s = 0.0 if self.mode is None else float(np.array(table.job.count_of_kind) @ self.mode.extra_s)
        again_s = self.pp * self.full_layers * float(table.pass_K3[:, 0].min())
        return float(table.layers_3.sum()) + sum(table.first.pass_s) + sum(self.last_s) + extra_s + again_s

    @cached_property
    def slowest_s(self) -> float:
        """tau."""
        if self.pp == 1 or self.paired:
            return self.work_s / self.pp
        layers = self.table.job.arch.num_layers
        extra_K = np.zeros(len(self.table.layers)) if self.mode is None else np.array(self.mode.extra_s)
        each = float((self.table.pass_K3.sum(axis=1) + extra_K).min())
        least = -(-layers // self.pp)
        whole = least * each
        if layers % self.pp == 0:
            dearer = max(sum(self.table.first.pass_s), sum(self.last_s))
            whole = min(whole + dearer, whole + each)
        again_s = self.full_layers * float(self.table.pass_K3[:, 0].min())
        return float(max(self.work_s / self.pp, whole + again_s))

    @cached_property
    def forward_share(self) -> float:
        """The largest share of the forward pass in what it belongs to."""
        rows = [*self.table.pass_K3.tolist(), self.table.first.pass_s, self.last_s]
        return float(max(row[0] / max(sum(row), 1e-30) for row in rows))


def floor_s(choice: PlanChoice, floor: Floor) -> float:
    """Least seconds of a step of this choice under any layout."""
    batches, pp = choice.num_micro_batches, choice.pp
    reduce_s, gather_s, optimizer_s = (choice.sharing.rate_F2[:3] @ (choice.table.model_2 / pp)).tolist()
    slowest_s, work_s = floor.slowest_s, floor.work_s
    often = each_micro_batch(choice.zero_stage, batches)
    if often:
        slowest_s = max(slowest_s, exchanging_s(choice, floor, reduce_s, gather_s))
        work_s = max(work_s, slowest_s)
    message_s, exposed = handover(choice)
    slowest_s += 2.0 * choice.vpp * exposed * message_s
    pipeline_s = batches * slowest_s - saved_s(choice)
    ahead = batches - 1 - (pp - 1) * floor.forward_share
    if choice.schedule == "1f1b" and pp > 1 and ahead >= 0 and not often:
        pipeline_s = max(pipeline_s, work_s + ahead * slowest_s)
    return float(pipeline_s + once_s(choice, reduce_s, gather_s, optimizer_s) + choice.idle_s)


def once_s(choice: PlanChoice, reduce_s: float, gather_s: float, optimizer_s: float) -> float:
    """Least seconds beside the pipeline once a step, where a rank's exchange and update take so long."""
    rates, overlap = choice.table.job.rates, choice.table.job.options.overlap
    often = each_micro_batch(choice.zero_stage, choice.num_micro_batches)
    tail = rates.get("dp.tail")
    shown_s = 0.0
    if choice.zero_stage != 3:
        shown_s += gather_s * (tail if "param_gather" in overlap else 1.0)
    if not often:
        shown_s += reduce_s * (tail if "grad_reduce" in overlap else 1.0)
    return shown_s + optimizer_s + rates.get("step_s")


def exchanging_s(choice: PlanChoice, floor: Floor, reduce_s: float, gather_s: float) -> float:
    """The mean rank's micro-batch with gathers and reductions beside its passes."""
    job, table = choice.table.job, choice.table
    lost = lost_share(job.rates, job.options.overlap, choice.zero_stage)
    forward_s = (float(table.layers_3[0]) + table.first.pass_s[0] + table.last.pass_s[0]) / choice.pp
    back_s = floor.work_s / choice.pp - forward_s
    gathered_s = gather_s if choice.zero_stage == 3 else 0.0
    return float(overlapped(forward_s, gathered_s, lost) + overlapped(back_s, gathered_s + reduce_s, lost))


def saved_s(choice: PlanChoice) -> float:
    """The most that passes run together can save: all of the exchange between experts."""
    if not choice.schedule.startswith("dualpipe"):
        return 0.0
    exchange_s = float(np.array(choice.table.job.count_of_kind) @ choice.table.exchange_K)
    return choice.num_micro_batches * exchange_s / choice.pp * _UNEVEN


_UNEVEN = 2.0  # a rank may hold at most about twice the mean of what saves time
