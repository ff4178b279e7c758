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
        header = ("model", "parameters", "active", "layers", "weights", "costs")
        write_data(table(header, [_cells(row) for row in rows]), output)
    return 0


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A catalog name, or the path of a config.json.")],
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show one model: layers, parameters, bytes of its weights.

    Examples:

      planner models show Qwen/Qwen3-32B

      planner models show ./my-model/config.json --json
    """
    from planner.cli.output import write_data, write_json
    from planner.cli.render import table

    architecture = _find(name)
    row = _row(architecture)
    if as_json:
        from planner.models.library import model_facts

        write_json({"schema": "planner.model/1", **row, "architecture": model_facts(architecture)}, output)
        return 0
    names = ("model", "parameters", "active per token", "layers", "weights", "costs")
    cells = [*zip(names, _cells(row), strict=True), *(("", reason) for reason in row["unsupported"])]
    write_data(table(("field", "value"), cells), output)
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
    """Figures of one model; those that rest on tensors no source fixes are null."""
    from planner.models.parameters import parameter_counts, weight_bytes

    counts = parameter_counts(architecture)
    known = not counts.unknown
    return {
        "name": architecture.name,
        "parameters": counts.total if known else None,
        "active": counts.active if known else None,
        "layers": architecture.num_layers,
        "weights_bytes": weight_bytes(architecture) if known else None,
        "unsupported": architecture.unsupported_parts(),
    }


def _cells(row: dict[str, Any]) -> list[str]:
    from planner.cli.render import figure

    return [
        row["name"],
        _count(row["parameters"]),
        _count(row["active"]),
        str(row["layers"]),
        figure("weights_bytes", row["weights_bytes"]),
        "no" if row["unsupported"] else "yes",
    ]


def _count(value: int | None) -> str:
    from planner.units import significant

    if value is None:
        return "-"
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= factor:
            return f"{significant(value / factor)}{letter}"
    return str(value)


COMMANDS = {"list": list_, "show": show}
