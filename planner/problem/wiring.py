"""How a pool's nodes are joined beyond their type, as people write it, and as `planner.hardware` knows it."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from planner.documents.units import BYTES_PER_S, TIME_S
from planner.errors import PlannerError, errors_at
from planner.hardware.cluster import NodeType, Pool
from planner.hardware.topology import CircuitSwitch, Wiring
from planner.schema.base import Spec, refuse
from planner.solvers.topology.architectures import Architecture, Cubes, FixedRings, KHopRing, Switch, groups_on

Rate = Annotated[float, Field(gt=0)]
Some = Annotated[int, Field(ge=1)]


class ScaleUpLinks(Spec):
    """Links that join several nodes to one scale-up domain: which groups stand depends on what is out of service."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "bandwidth": ("bandwidth_bytes_per_s", BYTES_PER_S)
    }
    kind: Literal["ring", "switch", "fixed", "cube"] = Field(
        description="k-hop ring of all nodes, units behind switches, rings that cannot be re-formed, cubes of a torus"
    )
    group: Some = Field(description="nodes of a group")
    hops: Some | None = Field(default=None, description="of a ring: nodes that each reaches on either side")
    unit: Some | None = Field(default=None, description="nodes of a switch or a cube; of one switch all when absent")
    bandwidth_bytes_per_s: Rate | None = Field(default=None, description="per GPU and direction; the type's own")

    @model_validator(mode="after")
    def of_its_kind(self) -> "ScaleUpLinks":
        if (self.kind == "ring") != (self.hops is not None):
            raise refuse("`hops` are those of a ring", "give `hops` with `kind: ring`, and with no other")
        if self.kind == "cube" and self.unit is None:
            raise refuse("a cube has no size", "give its nodes as `unit`")
        if self.kind in ("ring", "fixed") and self.unit is not None:
            raise refuse(f"`{self.kind}` has no units", "leave `unit` out")
        return self

    @property
    def architecture(self) -> Architecture:
        """The rule by which groups are formed."""
        match self.kind:
            case "ring":
                return KHopRing(self.hops or 1)
            case "switch":
                return Switch(self.unit)
            case "fixed":
                return FixedRings()
            case "cube":
                return Cubes(self.unit or 1)


class RailSpec(Spec):
    """Switches that join the GPUs of one index of so many nodes; beyond them the fabric is narrower."""

    nodes: Some = Field(description="of a scalable unit")
    oversubscription: Annotated[float, Field(ge=1)] = Field(default=1.0, description="between units")


class CircuitSpec(Spec):
    """Optical circuits between racks, which follow the phases of a plan."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "link": ("link_bytes_per_s", BYTES_PER_S),
        "switching": ("switching_s", TIME_S),
    }
    ports: Some = Field(description="links that a rack has room for")
    link_bytes_per_s: Rate = Field(description="of one link and direction")
    switching_s: Annotated[float, Field(ge=0)] = Field(description="that a change takes")


class TopologySpec(Spec):
    """Racks, their uplinks, rails, scale-up links over several nodes, and optical circuits of a pool."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"uplink": ("uplink_bytes_per_s", BYTES_PER_S)}
    racks: tuple[Some, ...] | None = Field(default=None, description="nodes of each, in order; sizes may differ")
    uplink_bytes_per_s: Rate | None = Field(default=None, description="of every rack and direction")
    rails: RailSpec | None = None
    scale_up: ScaleUpLinks | None = Field(default=None, description="groups of nodes in one scale-up domain")
    circuits: CircuitSpec | None = Field(default=None, description="between racks; plans of kind `rl` use them")

    @model_validator(mode="after")
    def of_racks(self) -> "TopologySpec":
        for name, given in (("uplink", self.uplink_bytes_per_s), ("circuits", self.circuits)):
            if given is not None and not self.racks:
                raise refuse(f"`{name}` of no racks", "list the nodes of every rack in `racks`", name)
        return self


def wired(pool: Pool, spec: TopologySpec, where: str) -> Pool:
    """The pool joined as `spec` says, its groups formed around the nodes out of service.

    Raises PlannerError where levels do not nest, nodes are absent, or no group can stand.
    """
    if spec.rails is not None:
        pod_gpus = spec.rails.nodes * pool.node.num_gpus
        node = replace(pool.node, pod_gpus=pod_gpus, pod_oversubscription=spec.rails.oversubscription)
        pool = replace(pool, node=node)
    with errors_at(where):
        if spec.racks is not None:
            pool = pool.on_racks(spec.racks)
        groups: tuple[tuple[int, ...], ...] = ()
        if spec.scale_up is not None:
            groups = _groups(pool, spec.scale_up)
            pool = replace(pool, node=_joined(pool.node, spec.scale_up))
    circuits = None
    if spec.circuits is not None:
        each = spec.circuits
        circuits = CircuitSwitch(each.ports, each.link_bytes_per_s, each.switching_s)
    wiring = Wiring(pool.wiring.racks, spec.uplink_bytes_per_s, groups, circuits)
    return replace(pool, wiring=wiring)


def _joined(node: NodeType, links: ScaleUpLinks) -> NodeType:
    """The node with the domain of its group."""
    return replace(
        node,
        scale_up_size=links.group * node.num_gpus,
        scale_up_bandwidth_bytes_per_s=links.bandwidth_bytes_per_s or node.scale_up_bandwidth_bytes_per_s,
    )


def _groups(pool: Pool, links: ScaleUpLinks) -> tuple[tuple[int, ...], ...]:
    """As many groups of nodes in service as the links form."""
    if pool.node.scale_up_size > pool.node.num_gpus:
        what = f"the scale-up domain of `{pool.node.name}` spans nodes already"
        raise PlannerError(what, where="scale_up", hint="name a node type whose domain is one node, or leave it out")
    healthy_N = np.zeros(pool.num_nodes, bool)
    healthy_N[list(pool.healthy_nodes)] = True
    groups_GM = groups_on(links.architecture, healthy_N, links.group)
    if not len(groups_GM):
        whole = len(groups_on(links.architecture, np.ones_like(healthy_N), links.group))
        reach = f", and gaps of at most {links.hops}" if links.hops is not None else ""
        what = f"no group of {links.group} nodes stands on {int(healthy_N.sum())} in service{reach}"
        hint = "give a smaller `group`" + (", or more `hops`" if links.hops is not None else "")
        raise PlannerError(what, where="scale_up", hint=f"{hint}; {whole} stand where no node is out")
    return tuple(tuple(int(node) for node in group) for group in groups_GM)
