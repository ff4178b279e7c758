"""Lower bounds on the step time of a choice whose pool has racks with uplinks, over all layouts and placements.

With the passes P, the exchange that shows X and the time H beside which more of it is hidden, the step takes at least
P + X + W, and the wait W at least what `planner.kinds.train.whole_run.on_racks` says of it with E = X + H. Whatever P
and X are, so the step takes at least, of times in which uplinks send under any placement,

A                               activations alone
C                               both, where gradients are exchanged with every micro-batch (H = 0)
C - H, G - H + P                both, and gradients alone, where they are exchanged once a step

The slowest rank's m micro-batches take no more than P and what passes run together save, D, so that H <= q (P + D),
with q the share of the passes of one micro-batch that hides over m. As the step takes at least P, C - H is at least
(C - q D) / (1 + q), and with q <= 1 G - H + P at least G - q D + (1 - q) P for the least P.

Gradients of a stage are at least those of the fewest layers that a rank can hold. A step of less than (c + 1) t m - D,
with t the least of a layer's, has no rank of more than c layers, so that where a rack has a part of some stages, the
others leave at least the gradients of all layers but c each to these. With f(c) the least step then, no step takes less
than min(f(c), (c + 1) t m - D), for any c.
"""

from dataclasses import replace
from math import ceil, inf

import numpy as np

from planner.arrays import Floats
from planner.costs.training.zero_overlap import each_micro_batch
from planner.kinds.train.evaluation.choice import PlanChoice
from planner.kinds.train.evaluation.choice_layouts import even_layers
from planner.kinds.train.evaluation.stages import stage_costs
from planner.kinds.train.search.bounds import Floor, saved_s
from planner.kinds.train.whole_run.on_racks import cells_of, gradients_sent, least_busy_s
from planner.solvers.topology.racks_problem import Racks, SharedGradients


def floor_with_waits_s(choice: PlanChoice, floor: Floor, floor_s: float) -> float:
    """Least seconds of a step with what it waits for uplinks, `floor_s` without; as it is where it stands on no racks.

    A mean over lengths keeps `floor_s`.
    """
    cells = None if choice.table.job.mean_of_lengths else cells_of(choice)
    if cells is None:
        return floor_s
    problem = cells[0]
    least_s = max(floor_s, least_busy_s(problem))
    if problem.stages != choice.pp:  # several to a node: no gradients leave it
        return max(least_s, least_step_s(choice, floor, least_busy_s(problem)))
    counts_S = _known_layers(choice)
    if counts_S is not None:
        sent_R = gradients_sent(choice, stage_costs(choice, counts_S).by_rank(choice)[1])
        both = replace(problem, gradient_bytes_S=tuple(sent_R.tolist()))
        return max(least_s, least_step_s(choice, floor, least_busy_s(both)))
    return max(least_s, _with_any_layers_s(choice, floor, problem, least_s))


def least_step_s(choice: PlanChoice, floor: Floor, both_s: float) -> float:
    """The least step where an uplink sends so long under any placement."""
    if each_micro_batch(choice.zero_stage, choice.num_micro_batches):
        return both_s
    share, saved = hiding_share(choice), saved_s(choice)
    least_s = (both_s - share * saved) / (1.0 + share)
    if choice.pp > 1 or share > 1.0:
        return least_s
    passes_s = choice.num_micro_batches * floor.slowest_s - saved
    return max(least_s, both_s - share * saved + (1.0 - share) * passes_s)


def _with_any_layers_s(choice: PlanChoice, floor: Floor, problem: Racks, least_s: float) -> float:
    """The best bound of all c, for layouts that are not known: f falls with c, and what it is held against rises."""
    table, layers = choice.table, choice.table.job.arch.num_layers
    bytes_2 = gradients_sent(choice, np.eye(2))  # of an element
    both = replace(problem, gradient_bytes_S=tuple((_fewest_elements(choice) @ bytes_2).tolist()))
    all_bytes = float(table.model_2 @ bytes_2)
    each, ends = table.resident_K2.max(axis=0) @ bytes_2, (table.first.resident_2 + table.last.resident_2) @ bytes_2
    layer_s, saved = choice.num_micro_batches * float(table.pass_K3.sum(axis=1).min()), saved_s(choice)
    low, high = layers if choice.schedule.startswith("dualpipe") else ceil(layers / choice.pp), layers
    low = max(low, min(layers, ceil((least_s + saved) / layer_s) - 1))
    best_s = least_s
    while low <= high:
        most = (low + high) // 2
        within_s = inf if most == layers else (most + 1) * layer_s - saved
        both_s = least_busy_s(both, SharedGradients(all_bytes, float(most * each + ends)))
        reached_s = least_step_s(choice, floor, both_s)
        best_s = max(best_s, min(within_s, reached_s))
        low, high = (most + 1, high) if reached_s > within_s else (low, most - 1)
    return best_s


def hiding_share(choice: PlanChoice) -> float:
    """The share q of the passes of all micro-batches beside which gradients or parameters are exchanged; 0 without."""
    job = choice.table.job
    hidden = {"grad_reduce", "param_gather"} & set(job.options.overlap)
    return job.rates.get("dp.room") / choice.num_micro_batches if hidden else 0.0


def _known_layers(choice: PlanChoice) -> tuple[int, ...] | None:
    """Layers of every stage where no layout is searched."""
    layers = choice.table.job.arch.num_layers
    if choice.pp == 1:
        return (layers,) if choice.vpp == 1 else None
    return even_layers(layers, choice.pipe.num_stages) if choice.table.job.options.search.layers == "even" else None


def _fewest_elements(choice: PlanChoice) -> Floats:
    """The elements [R, 2] of a layer on each rank, and of one a chunk but for those that hold an end of the model."""
    fewest_R = np.full(choice.pp, max(choice.vpp, 1))
    fewest_R[[0, -1]] = max(choice.vpp - 2, 1)
    return np.asarray(fewest_R[:, None] * choice.table.resident_K2.min(axis=0)[None])
