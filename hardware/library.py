"""The hardware that is known by name: the catalog of this package, and files of the same layout that users add."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from planner.documents import Document, load_document
from planner.errors import PlannerError, nearest
from planner.hardware.accelerator import Accelerator
from planner.hardware.cluster import Fabric, NodeType, Pool
from planner.hardware.fields import count, error, list_of, map_of, one_of, quantity, ratio, record, text
from planner.units import BYTES, BYTES_PER_S, FLOP_PER_S, POWER_W, TIME_S, USD_PER_HOUR

_CATALOG = Path(__file__).parent / "catalog"
_PRECISIONS = ("fp32", "tf32", "bf16", "fp8", "nvfp4", "mxfp4", "int8")
_NAMING = {"aliases": list_of(text), "display_name": text, "sources": map_of(text)}

_ACCELERATOR = record(
    {
        "memory": quantity(BYTES),
        "memory_bandwidth": quantity(BYTES_PER_S),
        "peak": record({"bf16": quantity(FLOP_PER_S)}, dict.fromkeys(_PRECISIONS, quantity(FLOP_PER_S))),
        "launch_latency": quantity(TIME_S),
        "power": quantity(POWER_W),
        "compute_capability": text,
    },
    {**_NAMING, "vendor": text},
)
_NODE = record(
    {
        "accelerator": text,
        "num_gpus": count,
        "scale_up": record(
            {"size": count, "bandwidth": quantity(BYTES_PER_S), "latency": quantity(TIME_S)},
            {"kind": one_of("nvlink", "pcie")},
        ),
        "fabric": text,
        "host": record({"link_bandwidth": quantity(BYTES_PER_S), "memory": quantity(BYTES)}),
    },
    _NAMING,
)
_FABRIC = record({"bandwidth": quantity(BYTES_PER_S), "latency": quantity(TIME_S)}, _NAMING)
_POOL = record(
    {"name": text, "node": text, "num_nodes": count},
    {"fabric": text, "price": quantity(USD_PER_HOUR), "oversubscription": ratio},
)
_CLUSTER = record({"pools": list_of(_POOL)})
_FILE = record(
    {},
    {
        "accelerators": map_of(_ACCELERATOR),
        "fabrics": map_of(_FABRIC),
        "nodes": map_of(_NODE),
        "clusters": map_of(_CLUSTER),
    },
)

Named = TypeVar("Named")


@dataclass(frozen=True, slots=True)
class Library:
    """Hardware by catalog name. `aliases` maps every folded spelling to a name, `sources` figures to their origin."""

    accelerators: Mapping[str, Accelerator]
    nodes: Mapping[str, NodeType]
    fabrics: Mapping[str, Fabric]
    clusters: Mapping[str, tuple[Pool, ...]]
    aliases: Mapping[tuple[str, str], str]  # (section, folded spelling)
    sources: Mapping[tuple[str, str], Mapping[str, str]]  # (section, name) -> figure -> where it comes from


@cache
def builtin_library() -> Library:
    """The catalog of this package."""
    library = Library({}, {}, {}, {}, {}, {})
    for name in ("accelerators", "fabrics", "nodes", "clusters"):
        library = load_user_hardware(load_document(_CATALOG / f"{name}.yaml"), library)
    return library


def load_user_hardware(document: Document, base: Library | None = None) -> Library:
    """`base` (the built-in catalog) with the accelerators, fabrics, nodes and clusters of `document` added.

    An entry replaces one of the same name, and a new node becomes the default of its accelerator. Raises PlannerError
    with file and line for unknown keys, wrong units, impossible figures, unknown references and aliases used twice.
    """
    base = builtin_library() if base is None else base
    data = _FILE(document, (), document.data)
    entries = {section: data.get(section, {}) for section in ("accelerators", "fabrics", "nodes", "clusters")}
    accelerators = {**base.accelerators, **{k: _accelerator(k, v) for k, v in entries["accelerators"].items()}}
    fabrics = {**base.fabrics, **{k: _fabric(k, v) for k, v in entries["fabrics"].items()}}
    kept = {k: replace(node, accelerator=accelerators[node.accelerator.name]) for k, node in base.nodes.items()}
    library = Library(
        accelerators=MappingProxyType(accelerators),
        nodes=kept,
        fabrics=MappingProxyType(fabrics),
        clusters=base.clusters,
        aliases=MappingProxyType(_aliases(document, entries, base)),
        sources=MappingProxyType({**base.sources, **_sources(entries)}),
    )
    nodes = {k: _node(document, k, v, library) for k, v in entries["nodes"].items()}
    library = replace(library, nodes=MappingProxyType(nodes | {k: v for k, v in kept.items() if k not in nodes}))
    clusters = {k: _cluster(document, k, v, library) for k, v in entries["clusters"].items()}
    return replace(library, clusters=MappingProxyType({**base.clusters, **clusters}))


def find_accelerator(name: str, library: Library | None = None, *, where: str = "") -> Accelerator:
    """The accelerator of that name or alias, in any case and with any of `-`, `_` and spaces."""
    library = library or builtin_library()
    found = _look_up(library, "accelerators", library.accelerators, name)
    if found is None:
        raise _unknown("hardware", name, [*library.accelerators], where)
    return found


def find_node(name: str, library: Library | None = None, *, where: str = "") -> NodeType:
    """The node type of that name or alias; an accelerator stands for its default node."""
    library = library or builtin_library()
    node = _look_up(library, "nodes", library.nodes, name)
    if node is not None:
        return node
    accelerator = _look_up(library, "accelerators", library.accelerators, name)
    if accelerator is None:
        raise _unknown("hardware", name, [*library.accelerators, *library.nodes], where)
    for node in library.nodes.values():
        if node.accelerator.name == accelerator.name:
            return node
    what = f"accelerator `{accelerator.name}` stands in no node type"
    raise PlannerError(
        what, where=where, hint=f"add a node with `accelerator: {accelerator.name}` to the hardware file"
    )


def find_fabric(name: str, library: Library | None = None, *, where: str = "") -> Fabric:
    """The fabric of that name or alias."""
    library = library or builtin_library()
    found = _look_up(library, "fabrics", library.fabrics, name)
    if found is None:
        raise _unknown("fabric", name, [*library.fabrics], where)
    return found


def find_cluster(name: str, library: Library | None = None, *, where: str = "") -> tuple[Pool, ...]:
    """The pools of the cluster of that name."""
    library = library or builtin_library()
    found = _look_up(library, "clusters", library.clusters, name)
    if found is None:
        raise _unknown("cluster", name, [*library.clusters], where)
    return found


def list_accelerators(library: Library | None = None) -> list[Accelerator]:
    """Every accelerator, in the order of the catalog."""
    return list((library or builtin_library()).accelerators.values())


def list_nodes(library: Library | None = None) -> list[NodeType]:
    """Every node type, those of users first."""
    return list((library or builtin_library()).nodes.values())


def list_fabrics(library: Library | None = None) -> list[Fabric]:
    """Every fabric, in the order of the catalog."""
    return list((library or builtin_library()).fabrics.values())


def sources_of(section: str, name: str, library: Library | None = None) -> Mapping[str, str]:
    """Where each figure of `name` in `section` ("accelerators", "nodes", "fabrics") comes from; empty when not told."""
    return (library or builtin_library()).sources.get((section, name), {})


def hardware_facts(node: NodeType) -> dict[str, Any]:
    """Every figure of a node type and its accelerator as plain JSON data; spellings and sources do not take part."""
    facts = asdict(node)
    for spelling in ("aliases", "display_name"):
        del facts["accelerator"][spelling]
    return facts


def fold(name: str) -> str:
    """`name` as it is compared: lower case, without `-`, `_`, spaces and a leading `nvidia`."""
    folded = re.sub(r"[-_\s]+", "", name.casefold())
    return folded.removeprefix("nvidia") or folded


def _look_up(library: Library, section: str, entries: Mapping[str, Named], name: str) -> Named | None:
    return entries.get(library.aliases.get((section, fold(name)), name))


def _unknown(kind: str, name: str, known: list[str], where: str) -> PlannerError:
    letters = re.match(r"[a-z]*", fold(name))
    start = letters[0] if letters else ""
    alike = [candidate for candidate in known if start and re.match(rf"{start}\d", candidate)]
    close = nearest(name, known) or alike[:3]
    listed = "list them with `planner hardware list`"
    hint = f"did you mean {' or '.join(f'`{candidate}`' for candidate in close)}? {listed}" if close else listed
    return PlannerError(f"unknown {kind} `{name}`", where=where, hint=hint)


def _aliases(document: Document, entries: dict[str, Any], base: Library) -> dict[tuple[str, str], str]:
    aliases = dict(base.aliases)
    for section, named in entries.items():
        for name, entry in named.items():
            for spelling in (name, *entry.get("aliases", ())):
                owner = aliases.setdefault((section, fold(spelling)), name)
                if owner != name:
                    what = f"goes by `{spelling}`, which already means `{owner}`"
                    raise error(document, (section, name), what, "choose another name or drop the alias")
    return aliases


def _sources(entries: dict[str, Any]) -> dict[tuple[str, str], dict[str, str]]:
    return {
        (section, name): entry.get("sources", {}) for section, named in entries.items() for name, entry in named.items()
    }


def _accelerator(name: str, entry: dict[str, Any]) -> Accelerator:
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
        aliases=entry.get("aliases", ()),
    )


def _fabric(name: str, entry: dict[str, Any]) -> Fabric:
    return Fabric(name, entry["bandwidth"], entry["latency"])


def _node(document: Document, name: str, entry: dict[str, Any], library: Library) -> NodeType:
    path = ("nodes", name)
    size = entry["scale_up"]["size"]
    if size % entry["num_gpus"] and entry["num_gpus"] % size:
        what = f"is {size}, neither a multiple nor a divisor of num_gpus {entry['num_gpus']}"
        raise error(document, (*path, "scale_up", "size"), what, "give the GPUs of one NVLink domain, over whole nodes")
    fabric = find_fabric(entry["fabric"], library, where=document.where((*path, "fabric")))
    return NodeType(
        name=name,
        accelerator=find_accelerator(entry["accelerator"], library, where=document.where((*path, "accelerator"))),
        num_gpus=entry["num_gpus"],
        scale_up_size=size,
        scale_up_bandwidth_bytes_per_s=entry["scale_up"]["bandwidth"],
        scale_up_latency_s=entry["scale_up"]["latency"],
        nic_bandwidth_bytes_per_s=fabric.bandwidth_bytes_per_s,
        nic_latency_s=fabric.latency_s,
        pcie_bandwidth_bytes_per_s=entry["host"]["link_bandwidth"],
        host_memory_bytes=entry["host"]["memory"],
        scale_up_kind=entry["scale_up"].get("kind", "nvlink"),
    )


def _cluster(document: Document, name: str, entry: dict[str, Any], library: Library) -> tuple[Pool, ...]:
    path = ("clusters", name, "pools")
    if not entry["pools"]:
        raise error(document, path, "is empty", "name at least one pool")
    return tuple(_pool(document, (*path, index), pool, library) for index, pool in enumerate(entry["pools"]))


def _pool(document: Document, path: tuple[str | int, ...], entry: dict[str, Any], library: Library) -> Pool:
    node = find_node(entry["node"], library, where=document.where((*path, "node")))
    if "fabric" in entry:
        fabric = find_fabric(entry["fabric"], library, where=document.where((*path, "fabric")))
        node = replace(node, nic_bandwidth_bytes_per_s=fabric.bandwidth_bytes_per_s, nic_latency_s=fabric.latency_s)
    return Pool(
        name=entry["name"],
        node=node,
        num_nodes=entry["num_nodes"],
        usd_per_gpu_hour=entry.get("price"),
        oversubscription=entry.get("oversubscription", 1.0),
    )
