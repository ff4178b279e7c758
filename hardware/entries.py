"""Sections and fields that an entry of a hardware file may have, and the descriptor object made of each."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from planner.documents.read import Document
from planner.documents.units import BYTES, BYTES_PER_S, FLOP_PER_S, POWER_W, TIME_S, USD_PER_HOUR
from planner.hardware.accelerator import Accelerator
from planner.hardware.cluster import CloudInstance, Fabric, NodeType
from planner.hardware.fields import Path, count, error, list_of, map_of, one_of, quantity, ratio, record, text

SECTIONS: Final = ("accelerators", "fabrics", "nodes", "instances", "clusters")

_PRECISIONS = ("fp32", "tf32", "bf16", "fp8", "nvfp4", "mxfp4", "int8")
_REACHED = ("bf16", "fp8")  # of which it is known what they reach on the GPUs that costs were fitted to
_NAMING = {"aliases": list_of(text), "display_name": text, "sources": map_of(text)}
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def _date(document: Document, path: Path, value: object) -> str:
    """A day such as 2026-07-28."""
    day = text(document, path, value)
    if not _DATE.fullmatch(day):
        raise error(document, path, f"must be a day, found {value!r}", "write for example `2026-07-28`")
    return day


_ACCELERATOR = record(
    {
        "memory": quantity(BYTES),
        "memory_bandwidth": quantity(BYTES_PER_S),
        "peak": record({"bf16": quantity(FLOP_PER_S)}, dict.fromkeys(_PRECISIONS, quantity(FLOP_PER_S))),
        "launch_latency": quantity(TIME_S),
        "power": quantity(POWER_W),
        "compute_capability": text,
    },
    {
        **_NAMING,
        "vendor": text,
        "multiprocessors": count,
        "reached": record({}, dict.fromkeys(_REACHED, quantity(FLOP_PER_S))),
    },
)
_NODE = record(
    {
        "accelerator": text,
        "num_gpus": count,
        "scale_up": record(
            {"size": count, "bandwidth": quantity(BYTES_PER_S), "latency": quantity(TIME_S)},
            {"kind": one_of("nvlink", "xgmi", "pcie")},
        ),
        "fabric": text,
        "host": record({"link_bandwidth": quantity(BYTES_PER_S), "memory": quantity(BYTES)}),
    },
    _NAMING,
)
_FABRIC = record(
    {"bandwidth": quantity(BYTES_PER_S), "latency": quantity(TIME_S)},
    {**_NAMING, "pod_gpus": count, "oversubscription": ratio},
)
_INSTANCE = record(
    {"provider": text, "node": text, "num_gpus": count, "source": text},
    {
        "aliases": list_of(text),
        "fabric": text,
        "network": quantity(BYTES_PER_S),
        "price": quantity(USD_PER_HOUR),
        "region": text,
        "date": _date,
    },
)
_POOL = record(
    {"name": text, "node": text, "num_nodes": count},
    {"fabric": text, "price": quantity(USD_PER_HOUR), "oversubscription": ratio},
)
_CLUSTER = record({"pools": list_of(_POOL)}, {"aliases": list_of(text)})
_FILE = record(
    {},
    {
        "accelerators": map_of(_ACCELERATOR),
        "fabrics": map_of(_FABRIC),
        "nodes": map_of(_NODE),
        "instances": map_of(_INSTANCE),
        "clusters": map_of(_CLUSTER),
    },
)


def read_entries(document: Document) -> dict[str, dict[str, Any]]:
    """Every entry of a hardware file by section and name, checked, in SI.

    Raises PlannerError with file and line for unknown keys, wrong units and impossible figures.
    """
    data = _FILE(document, (), document.data)
    return {section: data.get(section, {}) for section in SECTIONS}


def sources(section: str, entry: Mapping[str, Any]) -> Mapping[str, str]:
    """Where each figure of an entry comes from; empty when it does not say."""
    if section == "instances":
        return dict.fromkeys(_PRICED & entry.keys(), entry["source"])
    sources: Mapping[str, str] = entry.get("sources", {})
    return sources


_PRICED = {"num_gpus", "fabric", "network", "price"}


def accelerator(name: str, entry: Mapping[str, Any]) -> Accelerator:
    """The accelerator of a checked entry."""
    return Accelerator(
        name=name,
        display_name=entry.get("display_name", name),
        vendor=entry.get("vendor", ""),
        memory_bytes=entry["memory"],
        memory_bandwidth_bytes_per_s=entry["memory_bandwidth"],
        peak_flop_per_s=entry["peak"],
        launch_latency_s=entry["launch_latency"],
        power_w=entry["power"],
        compute_capability=entry["compute_capability"],
        num_multiprocessors=entry.get("multiprocessors", 0),
        aliases=entry.get("aliases", ()),
        reached_flop_per_s=entry.get("reached", {}),
    )


def fabric(document: Document, name: str, entry: Mapping[str, Any]) -> Fabric:
    """The fabric of a checked entry. Raises PlannerError for an oversubscription without pods, or pods without one."""
    if ("pod_gpus" in entry) != ("oversubscription" in entry):
        path = ("fabrics", name)
        raise error(document, path, "has only one of pod_gpus and oversubscription", "give both, or neither")
    return Fabric(
        name, entry["bandwidth"], entry["latency"], entry.get("pod_gpus", 0), entry.get("oversubscription", 1.0)
    )


def node(document: Document, name: str, entry: Mapping[str, Any], gpu: Accelerator, network: Fabric) -> NodeType:
    """The node type of a checked entry. Raises PlannerError for a domain that is no whole number of nodes."""
    scale_up, size = entry["scale_up"], entry["scale_up"]["size"]
    if size % entry["num_gpus"] and entry["num_gpus"] % size:
        what = f"is {size}, neither a multiple nor a divisor of num_gpus {entry['num_gpus']}"
        path = ("nodes", name, "scale_up", "size")
        raise error(document, path, what, "give the GPUs of one NVLink domain, over whole nodes")
    return NodeType(
        name=name,
        accelerator=gpu,
        num_gpus=entry["num_gpus"],
        scale_up_size=size,
        scale_up_bandwidth_bytes_per_s=scale_up["bandwidth"],
        scale_up_latency_s=scale_up["latency"],
        nic_bandwidth_bytes_per_s=network.bandwidth_bytes_per_s,
        nic_latency_s=network.latency_s,
        pcie_bandwidth_bytes_per_s=entry["host"]["link_bandwidth"],
        host_memory_bytes=entry["host"]["memory"],
        scale_up_kind=scale_up.get("kind", "nvlink"),
        pod_gpus=network.pod_gpus,
        pod_oversubscription=network.oversubscription,
    )


def instance(
    document: Document, name: str, entry: Mapping[str, Any], base: NodeType, network: Fabric | None
) -> CloudInstance:
    """The instance of a checked entry: `base` with the instance's GPUs and network.

    Raises PlannerError for a price without region and day.
    """
    if "price" in entry and not {"region", "date"} <= entry.keys():
        path = ("instances", name)
        raise error(document, path, "has a price without its region and date", "add `region:` and `date:`")
    whole = base if network is None else base.on(network)
    shaped = _with_network(whole, name, entry)
    return CloudInstance(
        name=name,
        provider=entry["provider"],
        node_type=base.name,
        node=shaped,
        usd_per_hour=entry.get("price"),
        region=entry.get("region", ""),
        date=entry.get("date", ""),
        source=entry["source"],
    )


def _with_network(base: NodeType, name: str, entry: Mapping[str, Any]) -> NodeType:
    shaped = replace(base.of_size(entry["num_gpus"]), name=name)
    if "network" not in entry:
        return shaped
    return replace(shaped, nic_bandwidth_bytes_per_s=entry["network"] / entry["num_gpus"])
