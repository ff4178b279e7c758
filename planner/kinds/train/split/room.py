"""Whether any rank has room for the networks of one sequence: what is too large stops before a search."""

from dataclasses import replace
from math import floor

from planner.costs.training.config import TrainingConfig
from planner.costs.training.modalities.networks import NetworkCost
from planner.documents.units import format_si
from planner.errors import PlannerError
from planner.kinds.train.job import TrainJob
from planner.kinds.train.space.space import powers
from planner.kinds.train.split.states import HELD, STATES


def require_room(job: TrainJob, *, apart: bool) -> None:
    """Raises PlannerError for samples whose towers or generators no GPU holds, whatever shares them out.

    The mean sequence at the largest tp, all states shared out by data-parallel ranks; the nearest amount of data that
    fits is named.
    """
    room = job.room_bytes
    for name, costs in _costs(job).items():
        fixed = min(sum(STATES[:2]) * cost.trained_elements + cost.frozen_bytes for cost in costs)
        held = min((HELD if apart else 1.0) * cost.in_flight_bytes + cost.work_bytes for cost in costs)
        if fixed + held > room:
            percent = floor(100.0 * max(room - fixed, 0.0) / held)
            raise PlannerError(
                f"the {name} holds {format_si(fixed + held, 'B')} of one sequence on a GPU that has room for"
                f" {format_si(room, 'B')}",
                where=job.resolved.where(("options", "samples")),
                hint=f"give sequences at most {percent} % of these inputs, or freeze the network: it then keeps less",
            )


def _costs(job: TrainJob) -> dict[str, list[NetworkCost]]:
    """Of each network, at every tp that the problem allows."""
    options, networks = job.options, job.networks
    config = TrainingConfig(
        job.arch, job.machine, options.sequence_tokens, options.global_batch, micro_batch=1, framework=job.framework
    )
    costs: dict[str, list[NetworkCost]] = {name: [] for name in networks.names}
    for tp in powers(job.machine.domain_gpus):
        shard = replace(config.dense_shard, tp=tp, sequence_parallel=tp > 1 and job.framework.sequence_parallel)
        own = (
            *networks.tower_costs(job.machine, shard, job.rates),
            *networks.generator_costs(job.machine, shard, job.rates),
        )
        for place, (name, cost) in enumerate(zip(networks.names, own, strict=True)):
            if place >= len(networks.heads) or networks.heads[place] % tp == 0:
                costs[name].append(cost)
    return costs
