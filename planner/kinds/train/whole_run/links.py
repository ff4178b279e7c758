"""Rate at which a rank of a training plan reaches others, for what is exchanged beside the collectives of layers."""

from planner.kinds.train.job import TrainJob


def rank_bytes_per_s(job: TrainJob, span: int) -> float:
    """Of one rank to another that is fewer than `span` ranks away: links of a domain, else the fabric."""
    machine = job.machine
    if span <= machine.domain_gpus:
        return machine.link_bytes_per_s * job.rates.get("link.cp", machine.generation)
    return machine.fabric_bytes_per_s * job.rates.get("fabric.cp", machine.generation)
