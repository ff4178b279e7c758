"""`planner hardware`: what the catalog knows of accelerators, nodes and fabrics."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import Json, Output

if TYPE_CHECKING:
    from planner.hardware.cluster import NodeType

HELP = "The hardware catalog: list what is known, show one entry."


def list_(as_json: Json = False, output: Output = None) -> int:
    """List the node types of the catalog with their accelerators.

    Examples:

      planner hardware list

      planner hardware list --json
    """
    from planner.cli.output import write_data, write_json
    from planner.cli.render import table
    from planner.hardware.library import list_nodes
    from planner.units import format_si

    nodes = list_nodes()
    if as_json:
        write_json({"schema": "planner.hardware/1", "nodes": [_facts(node) for node in nodes]}, output)
        return 0
    rows = [
        (
            node.name,
            node.accelerator.name,
            str(node.num_gpus),
            format_si(node.accelerator.memory_bytes, "B"),
            format_si(node.accelerator.memory_bandwidth_bytes_per_s, "B/s"),
            format_si(node.accelerator.peak("bf16"), "FLOP/s"),
            format_si(node.scale_up_bandwidth_bytes_per_s, "B/s"),
            format_si(node.nic_bandwidth_bytes_per_s, "B/s"),
        )
        for node in nodes
    ]
    header = ("node", "gpu", "gpus", "memory", "bandwidth", "bf16 dense", "scale-up", "network")
    write_data(table(header, rows), output)
    return 0


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An accelerator or node, or one of their aliases.")],
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show one accelerator with the node it usually stands in.

    Examples:

      planner hardware show h200

      planner hardware show gb200_nvl72 --json
    """
    from planner.cli.output import write_data, write_json
    from planner.cli.render import figure, table
    from planner.hardware.library import find_node, sources_of

    node = find_node(name)
    facts = _facts(node)
    named = (("node", "nodes", node.name), ("accelerator", "accelerators", node.accelerator.name))
    sources = {part: dict(sources_of(section, entry)) for part, section, entry in named}
    if as_json:
        write_json({"schema": "planner.node/1", **facts, "sources": sources}, output)
        return 0
    rows = []
    for path, value in _flat(facts, ""):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        metric = "flop_per_s" if ".peak_flop_per_s." in f".{path}" else path.rpartition(".")[2]
        rows.append((path, figure(metric, value) if number and not isinstance(value, int) else str(value)))
    origins = [(f"{part}.{field}", text) for part, texts in sources.items() for field, text in texts.items()]
    write_data(f"{table(('field', 'value'), rows)}\n\n{table(('figure', 'source'), origins)}", output)
    return 0


def _facts(node: "NodeType") -> dict[str, Any]:
    from planner.hardware.library import hardware_facts

    return dict(hardware_facts(node))


def _flat(value: Any, path: str) -> list[tuple[str, Any]]:  # noqa: ANN401 - plain data of the catalog
    if isinstance(value, dict) and value:
        return [leaf for key, below in value.items() for leaf in _flat(below, f"{path}.{key}" if path else str(key))]
    if isinstance(value, (list, tuple)):
        return [(path, ", ".join(str(entry) for entry in value) or "-")]
    return [(path, value)]


COMMANDS = {"list": list_, "show": show}
