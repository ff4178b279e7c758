"""A cluster: pools of equal nodes, each with its accelerator, links and price."""

from dataclasses import dataclass

from planner.hardware.accelerator import Accelerator
from planner.hardware.topology import Level, Topology


@dataclass(frozen=True, slots=True)
class Fabric:
    """A network between nodes or racks, as one GPU sees it through its adapter."""

    name: str
    bandwidth_bytes_per_s: float  # per GPU, one direction
    latency_s: float


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
    scale_up_kind: str = "nvlink"  # "pcie" where there is no NVLink


@dataclass(frozen=True, slots=True)
class Pool:
    """Equal nodes on one fabric; `out_of_service` are node indices that must not be used."""

    name: str
    node: NodeType
    num_nodes: int
    usd_per_gpu_hour: float | None = None
    out_of_service: tuple[int, ...] = ()
    oversubscription: float = 1.0  # fabric uplinks: 2.0 halves the bandwidth between nodes

    @property
    def healthy_nodes(self) -> tuple[int, ...]:
        gone = set(self.out_of_service)
        return tuple(node for node in range(self.num_nodes) if node not in gone)

    @property
    def num_gpus(self) -> int:
        """GPUs in service."""
        return len(self.healthy_nodes) * self.node.num_gpus

    def topology(self) -> Topology:
        """NVLink domain, then the fabric over the whole pool, its size rounded up to whole domains."""
        node = self.node
        total = -(-self.num_nodes * node.num_gpus // node.scale_up_size) * node.scale_up_size
        inside = Level(
            node.scale_up_kind, node.scale_up_size, node.scale_up_bandwidth_bytes_per_s, node.scale_up_latency_s
        )
        fabric = Level("fabric", total, node.nic_bandwidth_bytes_per_s / self.oversubscription, node.nic_latency_s)
        return Topology((inside,) if total == node.scale_up_size else (inside, fabric))
