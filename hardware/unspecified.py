"""The node of pools whose GPUs nobody names: as many devices as are said, without any figure to price them by."""

from planner.hardware.accelerator import Accelerator
from planner.hardware.cluster import NodeType

UNSPECIFIED = "unspecified"
"""What `gpu` of such a pool says."""

_MANY = 1 << 30  # devices of a node and of a scale-up domain: no domain ends inside a pool

NODE = NodeType(
    name=UNSPECIFIED,
    accelerator=Accelerator(
        name=UNSPECIFIED,
        display_name="unspecified GPU",
        vendor="",
        memory_bytes=0.0,
        memory_bandwidth_bytes_per_s=0.0,
        peak_flop_per_s={},
        launch_latency_s=0.0,
        power_w=0.0,
        compute_capability="",
    ),
    num_gpus=_MANY,
    scale_up_size=2 * _MANY,
    scale_up_bandwidth_bytes_per_s=0.0,
    scale_up_latency_s=0.0,
    nic_bandwidth_bytes_per_s=0.0,
    nic_latency_s=0.0,
    pcie_bandwidth_bytes_per_s=0.0,
    host_memory_bytes=0.0,
)
