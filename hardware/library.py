"""Looks hardware up by name: the built-in catalog, and files of the same layout that users add.

Names are looked up in the user's own files and in as much of the catalog as the name needs: one family of
accelerators with its nodes, not all of them.
"""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, TypeVar

from planner.documents.read import Document, load_document
from planner.documents.user_catalog import HARDWARE, Stamp, catalog_stamps
from planner.errors import PlannerError, UnknownNameError, nearest
from planner.hardware import entries as entry_of
from planner.hardware.accelerator import Accelerator
from planner.hardware.cluster import CloudInstance, Fabric, NodeType, Pool
from planner.hardware.fields import Path, error
from planner.hardware.index import CATALOG, CatalogEntry, catalog_index, fold

_FABRICS = "fabrics"
_TRIVIAL = {"pod_gpus": 0, "pod_oversubscription": 1.0}

Named = TypeVar("Named")


@dataclass(frozen=True, slots=True)
class Library:
    """Hardware by catalog name. `aliases` maps every folded spelling to a name, `sources` figures to their origin."""

    accelerators: Mapping[str, Accelerator]
    nodes: Mapping[str, NodeType]
    fabrics: Mapping[str, Fabric]
    instances: Mapping[str, CloudInstance]
    clusters: Mapping[str, tuple[Pool, ...]]
    aliases: Mapping[tuple[str, str], str]  # (section, folded spelling)
    sources: Mapping[tuple[str, str], Mapping[str, str]]  # (section, name) -> figure -> where it comes from


@cache
def builtin_library() -> Library:
    """The whole catalog of this package."""
    return _catalog(*{place.file for place in catalog_index().values()})


def known_library() -> Library:
    """The whole catalog with the user's own files in it."""
    return _with_user_files(catalog_stamps(HARDWARE))


def load_user_hardware(document: Document, base: Library | None = None) -> Library:
    """`base` (the built-in catalog) with the entries of `document` added.

    An entry replaces one of the same name, and a new node becomes the default of its accelerator. Raises PlannerError
    with file and line for unknown keys, wrong units, impossible figures, unknown references and aliases used twice.
    """
    base = builtin_library() if base is None else base
    added = entry_of.read_entries(document)
    accelerators = {**base.accelerators, **{k: entry_of.accelerator(k, v) for k, v in added["accelerators"].items()}}
    fabrics = {**base.fabrics, **{k: entry_of.fabric(document, k, v) for k, v in added["fabrics"].items()}}
    kept = {k: replace(node, accelerator=accelerators[node.accelerator.name]) for k, node in base.nodes.items()}
    library = replace(
        base,
        accelerators=MappingProxyType(accelerators),
        nodes=kept,
        fabrics=MappingProxyType(fabrics),
        aliases=MappingProxyType(_aliases(document, added, base)),
        sources=MappingProxyType({**base.sources, **_sources(added)}),
    )
    nodes = {k: _node(document, k, v, library) for k, v in added["nodes"].items()}
    library = replace(library, nodes=MappingProxyType(nodes | {k: v for k, v in kept.items() if k not in nodes}))
    instances = {k: _instance(document, k, v, library) for k, v in added["instances"].items()}
    library = replace(library, instances=MappingProxyType({**base.instances, **instances}))
    clusters = {k: _cluster(document, k, v, library) for k, v in added["clusters"].items()}
    return replace(library, clusters=MappingProxyType({**base.clusters, **clusters}))


def find_accelerator(name: str, library: Library | None = None, *, where: str = "") -> Accelerator:
    """The accelerator of that name or alias, in any case and with any of `-`, `_` and spaces."""
    library = library or _library_for(name, "accelerators")
    return _known(library, "accelerators", library.accelerators, name, "hardware", where)


def find_node(name: str, library: Library | None = None, *, where: str = "") -> NodeType:
    """The node type of that name or alias; an accelerator stands for its default node, an instance for its own."""
    library = library or _library_for(name, "nodes", "instances", "accelerators")
    node = _look_up(library, "nodes", library.nodes, name)
    if node is not None:
        return node
    instance = _look_up(library, "instances", library.instances, name)
    if instance is not None:
        return instance.node
    accelerator = _look_up(library, "accelerators", library.accelerators, name)
    if accelerator is None:
        raise _unknown("hardware", name, [*library.accelerators, *library.nodes, *library.instances], where)
    for node in library.nodes.values():
        if node.accelerator.name == accelerator.name:
            return node
    raise PlannerError(
        f"accelerator `{accelerator.name}` stands in no node type",
        where=where,
        hint=f"add a node with `accelerator: {accelerator.name}` to the hardware file",
    )


def find_instance(name: str, library: Library | None = None) -> CloudInstance | None:
    """The cloud instance of that name, None when `name` is none; a node of the same name goes first."""
    library = library or _library_for(name, "nodes", "instances", "accelerators")
    if _look_up(library, "nodes", library.nodes, name) is not None:
        return None
    return _look_up(library, "instances", library.instances, name)


def price_per_gpu_hour(name: str, library: Library | None = None) -> float | None:
    """The on-demand price of one GPU of the instance called `name`, in USD; None for what no cloud prices."""
    instance = find_instance(name, library)
    return None if instance is None else instance.usd_per_gpu_hour


def find_fabric(name: str, library: Library | None = None, *, where: str = "") -> Fabric:
    """The fabric of that name or alias."""
    library = library or _library_for(name, "fabrics")
    return _known(library, "fabrics", library.fabrics, name, "fabric", where)


def sources_of(section: str, name: str, library: Library | None = None) -> Mapping[str, str]:
    """Where each figure of `name` in `section` ("accelerators", "nodes", ...) comes from; empty when not told."""
    return (library or _library_for(name, section)).sources.get((section, name), {})


def hardware_facts(node: NodeType) -> dict[str, Any]:
    """Every figure of a node type and its accelerator as plain JSON data; spellings and sources do not take part.

    Nor does the width of the accelerator, which joined later, so that digests of older plans stay as they were, nor
    what products reach where that is not told.
    """
    facts = {key: value for key, value in asdict(node).items() if _TRIVIAL.get(key, ...) != value}
    for left_out in ("aliases", "display_name", "num_multiprocessors"):
        del facts["accelerator"][left_out]
    if not facts["accelerator"]["reached_flop_per_s"]:
        del facts["accelerator"]["reached_flop_per_s"]
    return facts


def _library_for(name: str, *sections: str) -> Library:
    """The smallest library in which `name` means what it means in the whole: the first of `sections` that has it."""
    stamps = catalog_stamps(HARDWARE)
    if stamps:
        return _with_user_files(stamps)
    for section in sections:
        place = catalog_index().get((section, fold(name)))
        if place is not None:
            return _one_instance(place) if section == "instances" else _catalog(place.file)
    return builtin_library()


@cache
def _one_instance(place: CatalogEntry) -> Library:
    """The family of the instance's node, with this one instance."""
    document = _document(place.file)
    entry = document.data["instances"][place.name]
    only = replace(document, data={"instances": {place.name: entry}})
    return load_user_hardware(only, _catalog(catalog_index()["nodes", fold(str(entry["node"]))].file))


@lru_cache(maxsize=4)
def _with_user_files(stamps: tuple[Stamp, ...]) -> Library:
    library = builtin_library()
    for path, _, _ in stamps:
        library = load_user_hardware(load_document(path), library)
    return library


@cache
def _catalog(*files: str) -> Library:
    """The fabrics and the given files of the catalog, each after those that it refers to."""
    library = Library({}, {}, {}, {}, {}, {}, {})
    for file in (_FABRICS, *sorted({*files} - {_FABRICS}, key=_rank)):
        library = load_user_hardware(_document(file), library)
    return library


def _rank(file: str) -> tuple[int, str]:
    """Instances refer to nodes, clusters to both."""
    return (1 if file.startswith("instances") else 2 if file == "clusters" else 0, file)


@cache
def _document(file: str) -> Document:
    return load_document(CATALOG / f"{file}.yaml")


def _look_up(library: Library, section: str, named: Mapping[str, Named], name: str) -> Named | None:
    return named.get(library.aliases.get((section, fold(name)), name))


def _known(library: Library, section: str, named: Mapping[str, Named], name: str, kind: str, where: str) -> Named:
    entry = _look_up(library, section, named, name)
    if entry is None:
        raise _unknown(kind, name, [*named], where)
    return entry


def _unknown(kind: str, name: str, known: list[str], where: str) -> UnknownNameError:
    letters = re.match(r"[a-z]*", fold(name))
    start = letters[0] if letters else ""
    alike = [candidate for candidate in known if start and re.match(rf"{start}\d", candidate)]
    close = nearest(name, known) or alike[:3]
    listed = "list them with `planner hardware list`"
    hint = f"did you mean {' or '.join(f'`{candidate}`' for candidate in close)}? {listed}" if close else listed
    return UnknownNameError(f"unknown {kind} `{name}`", where=where, hint=hint)


def _aliases(document: Document, added: dict[str, dict[str, Any]], base: Library) -> dict[tuple[str, str], str]:
    aliases = dict(base.aliases)
    for section, named in added.items():
        for name, entry in named.items():
            for spelling in (name, *entry.get("aliases", ())):
                owner = aliases.setdefault((section, fold(spelling)), name)
                if owner != name:
                    raise error(
                        document,
                        (section, name),
                        f"goes by `{spelling}`, which already means `{owner}`",
                        "choose another name or drop the alias",
                    )
    return aliases


def _sources(added: dict[str, dict[str, Any]]) -> dict[tuple[str, str], Mapping[str, str]]:
    return {
        (section, name): entry_of.sources(section, entry)
        for section, named in added.items()
        for name, entry in named.items()
    }


def _node(document: Document, name: str, entry: dict[str, Any], library: Library) -> NodeType:
    path = ("nodes", name)
    network = find_fabric(entry["fabric"], library, where=document.where((*path, "fabric")))
    gpu = find_accelerator(entry["accelerator"], library, where=document.where((*path, "accelerator")))
    return entry_of.node(document, name, entry, gpu, network)


def _instance(document: Document, name: str, entry: dict[str, Any], library: Library) -> CloudInstance:
    path = ("instances", name)
    base = find_node(entry["node"], library, where=document.where((*path, "node")))
    stated = entry.get("fabric")
    network = None if stated is None else find_fabric(stated, library, where=document.where((*path, "fabric")))
    return entry_of.instance(document, name, entry, base, network)


def _cluster(document: Document, name: str, entry: dict[str, Any], library: Library) -> tuple[Pool, ...]:
    path = ("clusters", name, "pools")
    if not entry["pools"]:
        raise error(document, path, "is empty", "name at least one pool")
    return tuple(_pool(document, (*path, index), pool, library) for index, pool in enumerate(entry["pools"]))


def _pool(document: Document, path: Path, entry: dict[str, Any], library: Library) -> Pool:
    node = find_node(entry["node"], library, where=document.where((*path, "node")))
    if "fabric" in entry:
        node = node.on(find_fabric(entry["fabric"], library, where=document.where((*path, "fabric"))))
    return Pool(
        name=entry["name"],
        node=node,
        num_nodes=entry["num_nodes"],
        usd_per_gpu_hour=entry.get("price"),
        oversubscription=entry.get("oversubscription", 1.0),
    )
