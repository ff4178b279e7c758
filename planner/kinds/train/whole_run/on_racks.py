"""Racks of a training plan's nodes, so that the busiest uplink is done soonest; derived again by the check.

A stage fills whole nodes; node n of a stage holds the same replicas, or the same part of one, as node n of every other
(tp innermost, then cp, dp and pp). So nodes are the cells of `solvers.topology.racks`, as many replicas as nodes
of a stage. Bytes of a step:

Gradients   of a stage partly inside a rack: each of its tp rings of D = dp cp ranks leaves the rack once and sends
            2 (D - 1) / D of a device's gradients
Activations on an edge that leaves a rack: of every micro-batch, sequence x hidden in 16 bits, one way forward and the
            other way back, once for each chunk of a pipeline rank

Left out: the edges of interleaved schedules from the last rank to the first, exchanges of experts and of context
parallelism between nodes. The step's time does not know of uplinks.
"""

import numpy as np

from planner.errors import PlannerError, errors_at
from planner.kinds.train.decision import TrainDecision
from planner.kinds.train.job import TrainJob
from planner.kinds.train.racks import RackPlacement
from planner.plan.schema import Envelope
from planner.solvers.topology.racks import place_on_racks, rank_orders
from planner.solvers.topology.racks_problem import Racks

ON_RACKS = "uplinks of racks carry gradients and activations alone, and the step does not wait for them"
WIRE_BYTES = 2.0  # of an activation


def with_racks(envelope: Envelope, decision: TrainDecision, job: TrainJob) -> Envelope:
    """The plan with the rack of every node, where the cluster has racks with uplinks.

    Raises PlannerError for racks with too few nodes in service, several pools, and stages that fill no whole nodes.
    """
    if job.pool.wiring.uplink_bytes_per_s is None:
        return envelope
    problem = racks_of(decision, job)
    result = place_on_racks(problem)
    assert result.solution is not None
    assert result.objective is not None
    assert result.bound is not None
    made = RackPlacement(
        rack_of_node=result.solution.rack_SD,
        busiest_uplink_s=result.objective,
        bound_s=result.bound,
        rank_order_s=float(problem.uplinks_s(next(rank_orders(problem))).max()),
    )
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "racks": made.model_dump(mode="json")},
            "assumptions": (*envelope.assumptions, ON_RACKS),
        }
    )


def racks_of(decision: TrainDecision, job: TrainJob) -> Racks:
    """The placement problem of a plan."""
    wiring, where = job.pool.wiring, job.resolved.where(("cluster", "pools", 0, "topology"))
    assert wiring.uplink_bytes_per_s is not None
    if decision.pools != "one":
        raise PlannerError("racks are of one pool", where=where, hint="give one pool, or leave `uplink` out")
    shape, gpus = decision.degrees, job.pool.node.num_gpus
    stage = shape.dp * shape.cp * shape.tp
    if stage % gpus:
        what = f"a stage of {stage} GPUs fills no whole nodes of {gpus}"
        raise PlannerError(what, where=where, hint="search fewer stages, such as `search.pp: 1`")
    edge = decision.num_micro_batches * decision.micro_batch * job.options.sequence_tokens * WIRE_BYTES
    edge *= job.arch.hidden_size * shape.vpp * gpus / (shape.tp * shape.cp)
    free = np.bincount(job.pool.rack_of_node[list(job.pool.healthy_nodes)], minlength=len(wiring.racks))
    with errors_at(where):
        return Racks(
            replicas=stage // gpus,
            free_B=tuple(free.tolist()),
            uplink_bytes_per_s_B=(wiring.uplink_bytes_per_s,) * len(wiring.racks),
            gradient_bytes_S=tuple(_gradients_sent(decision, rank) for rank in range(shape.pp)),
            activation_bytes_S=(edge,) * (shape.pp - 1),
        )


def _gradients_sent(decision: TrainDecision, rank: int) -> float:
    """Bytes of a step that a rack sends for a pipeline rank partly inside it; weights stand for sharded gradients."""
    shape, memory = decision.degrees, decision.pipeline_ranks[rank].memory
    ranks = shape.dp * shape.cp
    held = memory.weights_bytes * (ranks if decision.zero_stage == 3 else 1)
    if decision.zero_stage < 2:
        held = max(held, memory.gradients_bytes)
    return shape.tp * 2.0 * (ranks - 1) / ranks * held
