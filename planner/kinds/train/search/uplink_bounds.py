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

Gradients are those of the fewest layers that a rank can hold, and of all layers where a rack has a part of every stage.
"""

import numpy as np

from planner.arrays import Floats
from planner.costs.training.zero_overlap import each_micro_batch
from planner.kinds.train.evaluation.evaluate import PlanChoice, even_layers, stage_costs
from planner.kinds.train.search.bounds import Floor, saved_s
from planner.kinds.train.whole_run.on_racks import cells_of, gradients_sent, least_busy_s
from planner.solvers.topology.racks_problem import Racks


def floor_with_waits_s(choice: PlanChoice, floor: Floor, floor_s: float) -> float:
    """Least seconds of a step with what it waits for uplinks, `floor_s` without; as it is where it stands on no racks.

    A mean over lengths keeps `floor_s`.
    """
    cells = None if choice.table.job.mean_of_lengths else cells_of(choice)
    if cells is None:
        return floor_s
    problem = cells[0]
    both, all_bytes = problem, 0.0
    if problem.stages == choice.pp:
        both, all_bytes = with_least_gradients(choice, problem)
    least_s = max(floor_s, least_busy_s(problem))
    both_s = least_busy_s(both, all_bytes)
    if each_micro_batch(choice.zero_stage, choice.num_micro_batches):
        return max(least_s, both_s)
    share, saved = hiding_share(choice), saved_s(choice)
    least_s = max(least_s, (both_s - share * saved) / (1.0 + share))
    if choice.pp > 1 or share > 1.0:
        return least_s
    passes_s = choice.num_micro_batches * floor.slowest_s - saved
    return max(least_s, both_s - share * saved + (1.0 - share) * passes_s)


def hiding_share(choice: PlanChoice) -> float:
    """q."""
    job = choice.table.job
    hidden = {"grad_reduce", "param_gather"} & set(job.options.overlap)
    return job.rates.get("dp.room") / choice.num_micro_batches if hidden else 0.0


def with_least_gradients(choice: PlanChoice, problem: Racks) -> tuple[Racks, float]:
    """The problem with the fewest gradients of each stage, and those of all stages together."""
    if choice.table.job.options.search.layers == "even":
        counts_S = even_layers(choice.table.job.arch.num_layers, choice.pipe.num_stages)
        if counts_S is not None:
            sent_R = gradients_sent(choice, stage_costs(choice, counts_S).by_rank(choice)[1])
            return _with(problem, sent_R), float(sent_R.sum())
    all_bytes = gradients_sent(choice, choice.table.model_2[None])
    sent_R = all_bytes if choice.pp == 1 else gradients_sent(choice, _fewest_elements(choice))
    return _with(problem, sent_R), float(all_bytes.sum())


def _with(problem: Racks, sent_R: Floats) -> Racks:
    return Racks(
        problem.replicas,
        problem.free_B,
        problem.uplink_bytes_per_s_B,
        tuple(sent_R.tolist()),
        problem.activation_bytes_S,
    )


def _fewest_elements(choice: PlanChoice) -> Floats:
    """The elements [R, 2] of a layer on each rank, and of one a chunk but for those that hold an end of the model."""
    fewest_R = np.full(choice.pp, max(choice.vpp, 1))
    fewest_R[[0, -1]] = max(choice.vpp - 2, 1)
    return np.asarray(fewest_R[:, None] * choice.table.resident_K2.min(axis=0)[None])
