"""`planner models`: lists models of the catalogs, reads a `config.json`, and imports entries."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import INPUT, Force, Json, Match, Output
from planner.cli.output import say, write_result
from planner.cli.render.columns import table
from planner.documents.units import figure, significant
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.models.architecture import Architecture
    from planner.models.library import CatalogModel

HELP = "The model catalog: list what is known, show one model, add models of your own."

Family = Annotated[
    str | None, typer.Option("--family", metavar="NAME", help="Only this family.", rich_help_panel=INPUT)
]
Priced = Annotated[bool, typer.Option("--priced", help="Only models that have costs.", rich_help_panel=INPUT)]
Name = Annotated[
    str | None,
    typer.Option("--name", metavar="NAME", help="What to call the model of a config.json.", rich_help_panel=INPUT),
]


def list_(
    match: Match = None, family: Family = None, priced: Priced = False, as_json: Json = False, output: Output = None
) -> int:
    """List the models that are known.

    Examples:

      planner models list --match qwen3 --priced

      planner models list --family deepseek --json
    """
    from planner.models.library import find_model, list_models

    chosen = [model for model in list_models() if _chosen(model, match, family)]
    rows = [{**_row(find_model(model.name)), "family": model.family, "own": model.users_own} for model in chosen]
    rows = [row for row in rows if not (priced and row["unsupported"])]
    header = ("model", "parameters", "active", "layers", "weights", "costs")
    write_result(
        {"schema": "planner.models/1", "models": rows},
        lambda: table(header, [_cells(row) for row in rows]),
        output,
        as_json=as_json,
    )
    return 0


def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A catalog name, or the path of a config.json.")],
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show one model: its layers, its parameters by part, its bytes, and where the entry comes from.

    Examples:

      planner models show Qwen/Qwen3-32B

      planner models show ./my-model/config.json --json
    """

    architecture = _find(name)
    row = {**_row(architecture), **_details(architecture), "source": architecture.source}
    from planner.models.library import model_facts

    names = ("model", "parameters", "active per token", "layers", "weights", "costs")
    cells = [*zip(names, _cells(row), strict=True), *(("", reason) for reason in row["unsupported"])]
    write_result(
        {"schema": "planner.model/1", **row, "architecture": model_facts(architecture)},
        lambda: table(("field", "value"), [*cells, *_detail_cells(row)]),
        output,
        as_json=as_json,
    )
    return 0


def import_(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A config.json, a folder that holds one, or a YAML file of entries.")
    ],
    name: Name = None,
    force: Force = False,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Add models to your own catalog, where problems and this command find their names.

    Examples:

      planner models import ./lab--tiny-moe --name lab/tiny-moe

      planner models import our-models.yaml --json
    """
    from planner.models.importing import import_models

    added = import_models(path, name=name, force=force)
    write_result(
        {"schema": "planner.models_import/1", "file": str(added.file), "names": added.names},
        lambda: "\n".join(added.names),
        output,
        as_json=as_json,
    )
    say(f"wrote {added.file}")
    return 0


def _chosen(model: "CatalogModel", match: str | None, family: str | None) -> bool:
    if family and model.family.casefold() != family.casefold():
        return False
    return not match or any(match.casefold() in spelling.casefold() for spelling in (model.name, *model.aliases))


def _find(name: str) -> "Architecture":
    """By catalog name, or from a path that exists."""

    from planner.models.library import find_model, load_model

    try:
        return find_model(name)
    except PlannerError:
        if Path(name).exists():
            return load_model(Path(name))
        raise


def _row(architecture: "Architecture") -> dict[str, Any]:
    """Figures of one model; those that rest on tensors no source fixes are null, and `unknown` names these parts."""
    from planner.models.architecture import UnsupportedMixer
    from planner.models.parameters import parameter_counts, weight_bytes

    counts = parameter_counts(architecture)
    unpriced = [layer.mixer for layer in architecture.layers if isinstance(layer.mixer, UnsupportedMixer)]
    hollow = any(mixer.parameters == 0 for mixer in unpriced)
    total, active = (counts.total, counts.active) if architecture.layers else (counts.modules, counts.modules)
    return {
        "name": architecture.name,
        "parameters": None if hollow else total,
        "active": None if hollow else active,
        "layers": architecture.num_layers or sum(module.num_layers for module in architecture.modules[:1]),
        "weights_bytes": None if counts.unknown else weight_bytes(architecture),
        "unknown": list(counts.unknown),
        "unsupported": architecture.unsupported_parts(),
    }


def _details(architecture: "Architecture") -> dict[str, Any]:
    """Parameters by part, blocks in order, formats and networks of one model."""

    from planner.models.layout import architecture_to_data
    from planner.models.modules import module_parameters
    from planner.models.parameters import parameter_counts

    counts = asdict(parameter_counts(architecture))
    parts = {part: count for part, count in counts.items() if part not in ("total", "active", "unknown") and count}
    data = architecture_to_data(architecture)
    return {
        "parameters_by_part": parts,
        "max_context_tokens": architecture.max_context_tokens,
        "precisions": asdict(architecture.precisions),
        "blocks": data["blocks"],
        "order": data.get("layers", []),
        "encoders": [asdict(encoder) for encoder in architecture.encoders],
        "modules": [{**asdict(m), "parameters": module_parameters(m)} for m in architecture.modules],
        "kv_bytes_per_token": _cache_bytes(architecture),
    }


def _cache_bytes(architecture: "Architecture") -> float | None:
    """What one token adds to the cache of the whole model while windows are unfilled; None when it is not known."""
    from planner.models.kv import kv_bytes_per_token

    try:
        return float(kv_bytes_per_token(architecture))
    except PlannerError:
        return None


def _cells(row: dict[str, Any]) -> list[str]:

    return [
        row["name"],
        _count(row["parameters"]),
        _count(row["active"]),
        str(row["layers"]),
        figure("weights_bytes", row["weights_bytes"]),
        "no" if row["unsupported"] else "yes",
    ]


def _detail_cells(row: dict[str, Any]) -> list[tuple[str, str]]:
    """The further lines of `show`."""

    formats: dict[str, list[str]] = {}
    for part, form in row["precisions"].items():
        formats.setdefault(form, []).append(part)
    cells = [("context", f"{row['max_context_tokens']} tokens")]
    cells += [("kv cache per token", figure("kv_bytes", row["kv_bytes_per_token"]))]
    cells += [(f"parameters: {part}", _count(count)) for part, count in row["parameters_by_part"].items()]
    cells += [(f"format: {form}", ", ".join(parts)) for form, parts in formats.items()]
    cells += [(f"block: {name}", _words(block)) for name, block in row["blocks"].items()]
    cells += [("order of blocks", _words(row["order"]))] if row["order"] else []
    for role, networks in (("encoder", row["encoders"]), ("beside", row["modules"])):
        for network in networks:
            cells.append(
                (f"{role}: {network['kind']}", _words({k: v for k, v in network.items() if k != "kind" and v}))
            )
    cells += [("not published", ", ".join(row["unknown"]))] if row["unknown"] else []
    return [*cells, ("source", row["source"] or "-")]


def _words(value: object) -> str:
    """Plain data on one line, without quotes: `mixer: {grouped_query: {num_heads: 64}}`."""
    match value:
        case dict():
            inner = ", ".join(f"{key}: {_words(below)}" for key, below in value.items())
            return f"{{{inner}}}" if inner else "-"
        case list() | tuple():
            return f"[{', '.join(_words(below) for below in value)}]"
        case bool():
            return "yes" if value else "no"
    return str(value)


def _count(value: int | None) -> str:

    if value is None:
        return "-"
    for factor, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= factor:
            return f"{significant(value / factor)}{letter}"
    return str(value)


COMMANDS = {"list": list_, "show": show, "import": import_}
