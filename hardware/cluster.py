"""A cluster: pools of equal nodes, each with its accelerator, links and price."""

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Ints
from planner.errors import PlannerError
from planner.hardware.accelerator import Accelerator
from planner.hardware.topology import UNWIRED, Level, Topology, Wiring


@dataclass(frozen=True, slots=True)
class Fabric:
    """A network between nodes or racks, as one GPU sees it through its adapter."""

    name: str
    bandwidth_bytes_per_s: float  # per GPU, one direction
    latency_s: float
    pod_gpus: int = 0  # devices that reach each other at full bandwidth; 0 = all of them
    oversubscription: float = 1.0  # between pods: 7.0 leaves a seventh of the bandwidth


@dataclass(frozen=True, slots=True)
class NodeType:
    """A server or a rack-scale node as one unit of placement."""

    name: str
    accelerator: Accelerator
    num_gpus: int  # in one operating-system node
    scale_up_size: int  # devices in one NVLink domain: 8 on HGX, 72 on NVL72
    scale_up_bandwidth_bytes_per_s: float  # per GPU, one direction
    scale_up_latency_s: float
    nic_bandwidth_bytes_per_s: float  # per GPU, one direction, out of the node or rack
    nic_latency_s: float
    pcie_bandwidth_bytes_per_s: float  # per GPU, one direction, to host memory
    host_memory_bytes: float
    scale_up_kind: str = "nvlink"  # "xgmi" for Infinity Fabric, "pcie" where there is neither
    pod_gpus: int = 0  # devices of one pod of the fabric; 0 = the fabric is the same everywhere
    pod_oversubscription: float = 1.0  # of the fabric between pods

    def on(self, fabric: Fabric) -> "NodeType":
        """The same node on another fabric."""
        return replace(
            self,
            nic_bandwidth_bytes_per_s=fabric.bandwidth_bytes_per_s,
            nic_latency_s=fabric.latency_s,
            pod_gpus=fabric.pod_gpus,
            pod_oversubscription=fabric.oversubscription,
        )

    def of_size(self, num_gpus: int) -> "NodeType":
        """A node of the same parts with `num_gpus` GPUs; a domain that spans nodes keeps its size."""
        if num_gpus == self.num_gpus:
            return self
        inside = self.scale_up_size <= self.num_gpus
        size = min(self.scale_up_size, num_gpus) if inside else self.scale_up_size
        return replace(self, num_gpus=num_gpus, scale_up_size=size)


@dataclass(frozen=True, slots=True)
class CloudInstance:
    """A node type that a cloud lets by the hour; the price is of the whole instance, on demand, at one day."""

    name: str  # as the provider writes it: p5.48xlarge
    provider: str
    node_type: str  # the node of the catalog that it is one of, or a part of
    node: NodeType
    usd_per_hour: float | None  # None where the provider sells none on demand
    region: str
    date: str  # when the price was seen, ISO 8601
    source: str

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The price shared out evenly over the GPUs."""
        return None if self.usd_per_hour is None else self.usd_per_hour / self.node.num_gpus


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal nodes on one fabric; `out_of_service` are node indices that must not be used."""

    name: str
    node: NodeType
    num_nodes: int
    usd_per_gpu_hour: float | None = None
    out_of_service: tuple[int, ...] = ()
    oversubscription: float = 1.0  # fabric uplinks: 2.0 halves the bandwidth between nodes
    wiring: Wiring = UNWIRED

    @property
    def rack_of_node(self) -> Ints:
        """The rack of every node: as they are listed, else its scale-up domain of nodes, its pod, or the pool."""
        nodes = np.arange(self.num_nodes)
        if self.wiring.racks:
            return np.repeat(np.arange(len(self.wiring.racks)), self.wiring.racks)
        size = self.node.num_gpus
        unit = self.node.scale_up_size if self.node.scale_up_size > size else self.node.pod_gpus
        return np.asarray(nodes * size // unit if unit else np.zeros_like(nodes))

    def on_racks(self, racks: tuple[int, ...]) -> "Pool":
        """The pool with its nodes on racks of so many; raises PlannerError where they are not its nodes or do not nest.

        Racks hold whole scale-up domains, and pods hold whole racks.
        """
        ends = list(itertools.accumulate(racks))
        if min(racks, default=0) < 1 or ends[-1] != self.num_nodes:
            what = f"{len(racks)} racks hold {sum(racks)} nodes, and pool `{self.name}` has {self.num_nodes}"
            raise PlannerError(what, where="racks", hint=f"list racks of {self.num_nodes} nodes in all, 1 or more each")
        domain, pod = (size // self.node.num_gpus for size in (self.node.scale_up_size, self.node.pod_gpus))
        cut = next((end for end in ends[:-1] if domain > 1 and end % domain), None)
        if cut is not None:
            what = f"a rack ends behind node {cut - 1}, inside a scale-up domain of {domain} nodes"
            raise PlannerError(what, where="racks", hint=f"give racks of whole domains, {domain} nodes each")
        torn = next((edge for edge in range(pod, self.num_nodes, pod) if edge not in ends), None) if pod else None
        if torn is not None:
            what = f"a pod of {pod} nodes ends behind node {torn - 1}, inside a rack"
            raise PlannerError(what, where="racks", hint=f"give racks that end where pods do, every {pod} nodes")
        return replace(self, wiring=replace(self.wiring, racks=racks))

    @property
    def domain_of_node(self) -> Ints:
        """The scale-up domain of every node: that of its group, where groups are formed, else as nodes count.

        A node that stands in no group is a domain of its own.
        """
        nodes = np.arange(self.num_nodes)
        if not self.wiring.groups:
            return np.asarray(nodes // max(self.node.scale_up_size // self.node.num_gpus, 1))
        domains = nodes + len(self.wiring.groups)
        for group, members in enumerate(self.wiring.groups):
            domains[list(members)] = group
        return np.asarray(domains)

    @property
    def free_domains(self) -> list[list[int]]:
        """Devices in service of every scale-up domain that has some, in order: a node's, a rack's, or a group's.

        All devices of a domain reach each other alike, so a group of ranks may stand around a node that is out.
        """
        size, domains = self.node.num_gpus, self.domain_of_node
        nodes: dict[int, list[int]] = {group: list(members) for group, members in enumerate(self.wiring.groups)}
        for node in self.healthy_nodes:
            members = nodes.setdefault(int(domains[node]), [])
            if node not in members:
                members.append(node)
        return [[node * size + gpu for node in members for gpu in range(size)] for members in nodes.values()]

    @property
    def healthy_nodes(self) -> tuple[int, ...]:
        gone = set(self.out_of_service)
        return tuple(node for node in range(self.num_nodes) if node not in gone)

    @property
    def num_gpus(self) -> int:
        """GPUs in service."""
        return len(self.healthy_nodes) * self.node.num_gpus

    @property
    def job_devices(self) -> Ints:
        """The devices that one job's ranks are laid over, in rank order: those of all nodes in service.

        Where groups are formed they stand there one after the other, and nodes in none of them are left out. Where a
        scale-up domain spans nodes and some are out, each domain gives the largest power of two of its nodes
        (16 of 18), so that groups of ranks stay inside; or the longest run of nodes in service is taken, where it is
        longer.
        """
        size, domain = self.node.num_gpus, self.node.scale_up_size
        nodes = np.array(self.healthy_nodes, np.int64)
        if self.wiring.groups:
            nodes = np.array(self.wiring.groups, np.int64).ravel()
        elif self.out_of_service and domain > size:
            nodes = max(_in_whole_domains(nodes, domain // size), _longest_run(nodes), key=len)
        return np.asarray((nodes[:, None] * size + np.arange(size)[None, :]).ravel())

    @property
    def job_nodes(self) -> tuple[int, ...]:
        """The nodes of `job_devices`, in order."""
        return tuple(np.unique(self.job_devices // self.node.num_gpus).tolist())

    def topology(self) -> Topology:
        """NVLink domain, then the fabric over the whole pool, in racks and pods where it has them.

        Sizes are whole domains. Of racks of unequal sizes whole common parts count as one rack, and an uplink is shared
        out over the devices of the largest: what costs see is never faster than the links are.
        """
        node = self.node
        total = _whole(self.num_nodes * node.num_gpus, node.scale_up_size)
        bandwidth, latency_s = node.nic_bandwidth_bytes_per_s / self.oversubscription, node.nic_latency_s
        inside = Level(
            node.scale_up_kind,
            node.scale_up_size,
            node.scale_up_bandwidth_bytes_per_s,
            node.scale_up_latency_s,
            mesh=node.scale_up_kind == "xgmi",
        )
        if total == node.scale_up_size:
            return Topology((inside,))
        pod = _whole(node.pod_gpus, node.scale_up_size)
        levels, racks, uplink = [inside], self.wiring.racks, self.wiring.uplink_bytes_per_s
        narrow = bandwidth
        if uplink is not None and len(racks) > 1:
            rack = math.gcd(*racks) * node.num_gpus
            narrow = min(bandwidth, uplink / (max(racks) * node.num_gpus))
            if rack > node.scale_up_size and rack % node.scale_up_size == 0:
                levels.append(Level("rack", rack, bandwidth, latency_s))
        if not pod or pod >= total:
            return Topology((*levels, Level("fabric", _whole(total, levels[-1].size), narrow, latency_s)))
        between = min(narrow, bandwidth / node.pod_oversubscription)
        if pod > levels[-1].size:
            levels.append(Level("pod", _whole(pod, levels[-1].size), narrow, latency_s))
        return Topology((*levels, Level("fabric", _whole(total, levels[-1].size), between, latency_s)))


def _in_whole_domains(nodes: Ints, nodes_per_domain: int) -> Ints:
    """The first nodes of every domain, as many as the largest power of two in one, where it has them."""
    share = 1 << (nodes_per_domain.bit_length() - 1)
    domain = nodes // nodes_per_domain
    rank = np.arange(len(nodes)) - np.searchsorted(domain, domain)  # of a node within its domain
    enough = np.bincount(domain, minlength=1)[domain] >= share
    return np.asarray(nodes[enough & (rank < share)])


def _longest_run(nodes: Ints) -> Ints:
    """The longest stretch of neighbours among ascending nodes."""
    runs = np.split(nodes, np.flatnonzero(np.diff(nodes) > 1) + 1)
    return max(runs, key=len)


def _whole(size: int, unit: int) -> int:
    """`size` rounded up to whole units."""
    return -(-size // unit) * unit
