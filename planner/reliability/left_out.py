"""Nodes that a plan leaves out, for its certificate: what was proven is of the others."""

from collections.abc import Iterable, Iterator, Sequence

from planner.hardware.cluster import Pool
from planner.plan.placement import device_runs, role_devices
from planner.plan.schema import Decision, Envelope, LeftOutNodes
from planner.reliability.rack_nodes import nodes_on_racks

OUT, LACKING, NO_GROUP = "out of service", "too few of its scale-up domain are in service", "in no group of the links"
IDLE = "no ranks are placed there"


def with_left_out(envelope: Envelope, decision: Decision, pools: Iterable[Pool]) -> Envelope:
    """The plan whose certificate names the nodes without ranks of every pool that has some out, or forms groups."""
    left = tuple(entry for pool in pools for entry in _left_out(decision, pool))
    if left == envelope.certificate.left_out:
        return envelope
    return envelope.model_copy(update={"certificate": envelope.certificate.model_copy(update={"left_out": left})})


def _left_out(decision: Decision, pool: Pool) -> Iterator[LeftOutNodes]:
    if not pool.out_of_service and not pool.wiring.groups:
        return
    size = pool.node.num_gpus
    used = set(nodes_on_racks(decision, pool)) or {
        device // size
        for role in decision.roles
        for name, device in role_devices(decision.placement, role.name)
        if name == pool.name
    }
    able = set(pool.job_nodes)
    why = NO_GROUP if pool.wiring.groups else LACKING
    idle = [node for node in pool.healthy_nodes if node not in used]
    for nodes, reason in (
        (sorted(set(pool.out_of_service)), OUT),
        ([node for node in idle if node not in able], why),
        ([node for node in idle if node in able], IDLE),
    ):
        if nodes:
            yield LeftOutNodes(pool=pool.name, nodes=_ranges(nodes), why=reason)


def _ranges(nodes: Sequence[int]) -> str:
    """`3,17,40-42`."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in device_runs(nodes))
