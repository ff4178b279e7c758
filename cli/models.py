"""`planner models`: what the catalog knows of models, and what a `config.json` says."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import Json, Output
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.models.architecture import Architecture

HELP = "The model catalog: list what is known, show one model."


def list_(as_json: Json = False, output: Output = None) -> int:
    """List the models of the catalog.

    Examples:

      planner models list

      planner models list --json
    """
    from planner.cli.output import write_data, write_json
    from planner.cli.render import table
    from planner.models.library import find_model, list_models

    rows = [_row(find_model(model.name)) for model in list_models()]
    if as_json:
        write_json({"schema": "planner.models/1", "models": rows}, output)
    else:
        header = ("model", "parameters", "active", "layers", "weights")
        cells = [
            [row["name"], _count(row["parameters"]), _count(row["active"]), str(row["layers"]), _size(row)]
            for row in rows
        ]
        write_data(table(header, cells), output)
    return 0


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A catalog name, or the path of a config.json.")],
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show one model: its layers, exact parameter counts, bytes of weights and of KV cache.

    Examples:

      planner models show Qwen/Qwen3-32B

      planner models show ./my-model/config.json --json
    """
    from planner.cli.output import write_data, write_json
    from planner.cli.render import figure, table

    architecture = _find(name)
    row = _row(architecture)
    if as_json:
        from planner.models.library import model_facts

        write_json({"schema": "planner.model/1", **row, "architecture": model_facts(architecture)}, output)
        return 0
    cells = [
        (key, figure(key, value) if key.endswith("bytes") else _count(value))
        for key, value in row.items()
        if key != "name"
    ]
    write_data(table(("field", "value"), [("name", str(row["name"])), *cells]), output)
    return 0


def _find(name: str) -> "Architecture":
    """By catalog name, or from a path that exists."""
    from pathlib import Path

    from planner.models.library import find_model, load_model

    try:
        return find_model(name)
    except PlannerError:
        if Path(name).exists():
            return load_model(Path(name))
        raise


def _row(architecture: "Architecture") -> dict[str, Any]:
    from planner.models.parameters import parameter_counts, weight_bytes

    counts = parameter_counts(architecture)
    return {
        "name": architecture.name,
        "parameters": counts.total,
        "active": counts.active,
        "layers": len(architecture.layers),
        "weights_bytes": weight_bytes(architecture),
    }


def _count(value: float) -> str:
    from planner.units import significant

    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= factor:
            return f"{significant(value / factor)}{letter}"
    return str(int(value))


def _size(row: dict[str, Any]) -> str:
    from planner.units import format_si

    return format_si(row["weights_bytes"], "B")


COMMANDS = {"list": list_, "show": show}
