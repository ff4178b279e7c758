"""`planner hardware`: lists accelerators, nodes, fabrics and cloud instances, and imports hardware files."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import INPUT, Force, Json, Match, Output
from planner.cli.output import say, write_result
from planner.cli.render.columns import table
from planner.documents.units import BYTES, figure, format_si, parse_quantity, significant
from planner.errors import PlannerError, require_known

if TYPE_CHECKING:
    from planner.hardware.cluster import CloudInstance, Fabric, NodeType

HELP = "The hardware catalog: list what is known, show one entry, add a file of your own."
SECTIONS = ("nodes", "instances", "fabrics")

Section = Annotated[
    str, typer.Option("--section", metavar="NAME", help=f"One of {', '.join(SECTIONS)}.", rich_help_panel=INPUT)
]
Vendor = Annotated[
    str | None, typer.Option("--vendor", metavar="NAME", help="Only that of this vendor.", rich_help_panel=INPUT)
]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Only GPUs with at least this much.", rich_help_panel=INPUT),
]


def list_(
    section: Section = "nodes",
    match: Match = None,
    vendor: Vendor = None,
    memory: Memory = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """List the node types, cloud instances or fabrics that are known.

    Examples:

      planner hardware list --memory 100GB

      planner hardware list --section instances --match h100 --json
    """

    require_known("section", section, SECTIONS, listing="use one of", where="--section")
    entries = list(_selected(section, match, vendor, memory))
    facts = [_SECTION[section].facts(entry) for entry in entries]
    write_result(
        {"schema": "planner.hardware/1", section: facts},
        lambda: table(_SECTION[section].header, [_SECTION[section].cells(entry) for entry in entries]),
        output,
        as_json=as_json,
    )
    return 0


def show(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="An accelerator, node, instance or fabric, or one of their aliases.")
    ],
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show every figure of one entry and where it comes from; an accelerator comes with its usual node.

    Examples:

      planner hardware show h200

      planner hardware show p5.48xlarge --json
    """

    facts, sources = _shown(name)
    rows = []
    for path, value in _flat({key: value for key, value in facts.items() if key != "schema"}, ""):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        metric = "flop_per_s" if ".peak_flop_per_s." in f".{path}" else path.rpartition(".")[2]
        rows.append((path, figure(metric, value) if number and not isinstance(value, int) else str(value)))
    origins = [(f"{part}.{field}", text) for part, texts in sources.items() for field, text in texts.items()]
    write_result(
        {**facts, "sources": sources},
        lambda: f"{table(('field', 'value'), rows)}\n\n{table(('figure', 'source'), origins)}",
        output,
        as_json=as_json,
    )
    return 0


def import_(
    path: Annotated[
        str, typer.Argument(metavar="FILE", help="A hardware file: docs/adding-hardware.md has its layout.")
    ],
    force: Force = False,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Add a hardware file to your own catalog, where problems and this command find its names.

    Examples:

      planner hardware import our-cluster.yaml

      planner hardware import our-cluster.yaml --force --json
    """
    from planner.hardware.importing import import_hardware

    added = import_hardware(path, force=force)
    document = {"schema": "planner.hardware_import/1", "file": str(added.file), "names": added.names}
    write_result(
        document,
        lambda: "\n".join(f"{section}: {', '.join(names)}" for section, names in added.names.items()),
        output,
        as_json=as_json,
    )
    say(f"wrote {added.file}")
    return 0


def _selected(section: str, match: str | None, vendor: str | None, memory: str | None) -> Iterator[Any]:
    from planner.hardware.index import fold
    from planner.hardware.library import known_library

    library = known_library()
    if section == "fabrics" and (vendor or memory):
        flag = "--vendor" if vendor else "--memory"
        raise PlannerError("fabrics have no GPUs to choose by", where=flag, hint="leave it out, or use `--match`")
    if vendor:
        vendors = {node.accelerator.vendor.casefold() for node in library.nodes.values()} - {""}
        require_known("vendor", vendor.casefold(), vendors, where="--vendor")
    least = parse_quantity(memory, BYTES, where="--memory") if memory else 0.0
    for entry in getattr(library, section).values():
        gpu = None if section == "fabrics" else (entry if section == "nodes" else entry.node).accelerator
        spellings = (entry.name, *((gpu.name, gpu.display_name, *gpu.aliases) if gpu else ()))
        if match and not any(fold(match) in fold(spelling) for spelling in spellings):
            continue
        if gpu and ((vendor and gpu.vendor.casefold() != vendor.casefold()) or gpu.memory_bytes < least):
            continue
        yield entry


def _node_cells(node: "NodeType") -> tuple[str, ...]:

    gpu = node.accelerator
    return (
        node.name,
        gpu.name,
        str(node.num_gpus),
        format_si(gpu.memory_bytes, "B"),
        format_si(gpu.memory_bandwidth_bytes_per_s, "B/s"),
        format_si(gpu.peak("bf16"), "FLOP/s"),
        format_si(node.scale_up_bandwidth_bytes_per_s, "B/s"),
        format_si(node.nic_bandwidth_bytes_per_s, "B/s"),
    )


def _instance_cells(instance: "CloudInstance") -> tuple[str, ...]:

    return (
        instance.name,
        instance.provider,
        instance.node.accelerator.name,
        str(instance.node.num_gpus),
        format_si(instance.node.nic_bandwidth_bytes_per_s, "B/s"),
        figure("usd_per_hour", instance.usd_per_hour),
        figure("usd_per_gpu_hour", instance.usd_per_gpu_hour),
        instance.region or "-",
        instance.date or "-",
    )


def _fabric_cells(fabric: "Fabric") -> tuple[str, ...]:

    pods = f"{significant(fabric.oversubscription)} to 1 between {fabric.pod_gpus} GPUs" if fabric.pod_gpus else "-"
    return (fabric.name, format_si(fabric.bandwidth_bytes_per_s, "B/s"), format_si(fabric.latency_s, "s"), pods)


def _node_facts(node: "NodeType") -> dict[str, Any]:
    from planner.hardware.library import hardware_facts

    return dict(hardware_facts(node))


def _instance_facts(instance: "CloudInstance") -> dict[str, Any]:
    facts = {key: value for key, value in asdict(instance).items() if key not in ("node", "source")}
    return {**facts, "usd_per_gpu_hour": instance.usd_per_gpu_hour, "node": _node_facts(instance.node)}


def _shown(name: str) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """Everything of one entry, and the sources of its figures by part."""
    from planner.hardware.library import find_fabric, find_instance, find_node, sources_of

    instance = find_instance(name)
    try:
        node = find_node(name)
    except PlannerError:
        try:
            fabric = find_fabric(name)
        except PlannerError:
            fabric = None
        if fabric is None:
            raise
        facts = {"schema": "planner.fabric/1", **asdict(fabric)}
        return facts, {"fabric": dict(sources_of("fabrics", fabric.name))}
    gpu = {"accelerator": dict(sources_of("accelerators", node.accelerator.name))}
    if instance is None:
        facts = {"schema": "planner.node/1", **_node_facts(node)}
        return facts, {"node": dict(sources_of("nodes", node.name)), **gpu}
    facts = {"schema": "planner.instance/1", **_instance_facts(instance)}
    own = dict(sources_of("instances", instance.name))
    of_node = {key: text for key, text in sources_of("nodes", instance.node_type).items() if key not in own}
    return facts, {"instance": own, "node": of_node, **gpu}


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:  # noqa: ANN401 - plain data of the catalog
    if isinstance(value, dict) and value:
        return [leaf for key, below in value.items() for leaf in _flat(below, f"{path}.{key}" if path else str(key))]
    if isinstance(value, (list, tuple)):
        return [(path, ", ".join(str(entry) for entry in value) or "-")]
    return [(path, "-" if value is None else value)]


@dataclass(frozen=True, slots=True)
class _SectionOf:
    """How the entries of one section are shown."""

    header: tuple[str, ...]
    cells: Callable[[Any], tuple[str, ...]]
    facts: Callable[[Any], dict[str, Any]]


_SECTION = {
    "nodes": _SectionOf(
        ("node", "gpu", "gpus", "memory", "bandwidth", "bf16 dense", "scale-up", "network"), _node_cells, _node_facts
    ),
    "instances": _SectionOf(
        ("instance", "provider", "gpu", "gpus", "network", "price", "price a GPU", "region", "seen"),
        _instance_cells,
        _instance_facts,
    ),
    "fabrics": _SectionOf(("fabric", "bandwidth", "latency", "oversubscription"), _fabric_cells, asdict),
}

COMMANDS = {"list": list_, "show": show, "import": import_}
