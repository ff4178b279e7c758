"""`planner profiles`: import, list and compare measured kernel tables, which costs are looked up in."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import Json, Output, Profiles, profile_paths
from planner.cli.output import say, write_result
from planner.documents.units import format_si
from planner.errors import PlannerError, did_you_mean

if TYPE_CHECKING:
    from planner.hardware.profiles.table import TableIdentity

HELP = "Kernel tables: import, list, show, compare and adopt them."


def import_(
    path: Annotated[
        str, typer.Argument(metavar="PATH", help="A folder of parquet tables, or a wheel that holds them.")
    ],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="Where the store is to lie.")],
    as_json: Json = False,
) -> int:
    """Convert kernel tables into a store of memory-mapped columns.

    Examples:

      planner profiles import kernel-profiles/ -o profiles/

      planner profiles import aiconfigurator_core.whl -o profiles/
    """
    from planner.hardware.profiles.importing import import_profiles

    report = import_profiles(Path(path), Path(output))
    size = format_si(report.size_bytes, "B")
    kept = f"{len(report.tables)} tables, {report.rows_kept} rows, {size}"
    write_result(
        {
            "schema": "planner.profiles_import/1",
            "tables": [_fields(identity) for identity in report.tables],
            "skipped": [{"table": table, "reason": reason} for table, reason in report.skipped],
            "rows_kept": report.rows_kept,
            "rows_dropped": report.rows_dropped,
            "size_bytes": report.size_bytes,
        },
        lambda: f"{kept}; {report.rows_dropped} rows dropped, {len(report.skipped)} tables skipped",
        as_json=as_json,
    )
    for table, reason in report.skipped:
        say(f"skipped {table}: {reason}")
    say(f"wrote {output} in {report.import_s:.1f} s")
    return 0


def list_(profiles: Profiles = None, as_json: Json = False, output: Output = None) -> int:
    """List the kernel tables found under the given paths.

    Examples:

      planner profiles list --profiles profiles/

      planner profiles list --json
    """
    from planner.cli.render.columns import table

    rows = [_fields(identity) for identity in _identities(profiles)]
    header = ("accelerator", "engine", "version", "table")
    write_result(
        {"schema": "planner.profiles_list/1", "tables": rows},
        lambda: table((*header, "digest"), [[*(row[name] for name in header), row["digest"][:12]] for row in rows]),
        output,
        as_json=as_json,
    )
    return 0


def show(
    accelerator: Annotated[str, typer.Argument(metavar="ACCELERATOR", help="As `planner profiles list` names it.")],
    profiles: Profiles = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show which engines, versions and tables an accelerator has.

    Examples:

      planner profiles show h200_sxm --profiles profiles/

      planner profiles show h200_sxm --json
    """
    from planner.cli.render.columns import table

    identities = _identities(profiles)
    known = sorted({identity.accelerator for identity in identities})
    if accelerator not in known:
        listing = f"there are tables of {', '.join(f'`{name}`' for name in known)}"
        raise PlannerError(f"no tables of `{accelerator}`", hint=did_you_mean(accelerator, known, otherwise=listing))
    tables: dict[tuple[str, str], list[str]] = {}
    for identity in identities:
        if identity.accelerator == accelerator:
            tables.setdefault((identity.engine, identity.version), []).append(identity.table)
    engines = [{"engine": engine, "version": version, "tables": names} for (engine, version), names in tables.items()]
    rows = [(engine, version, ", ".join(names)) for (engine, version), names in tables.items()]
    write_result(
        {"schema": "planner.profiles_show/1", "accelerator": accelerator, "engines": engines},
        lambda: table(("engine", "version", "tables"), rows),
        output,
        as_json=as_json,
    )
    return 0


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Kernel tables: a store, a folder of tables, or a wheel.")],
    second: Annotated[str, typer.Argument(metavar="B", help="Those that they are compared with.")],
    accelerator: Annotated[
        str | None, typer.Option("--accelerator", metavar="NAME", help="Which one, where A has tables of several.")
    ] = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="Of B, the tables of this engine.")
    ] = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Show how near two profiles come to the roofline, and to each other.

    Examples:

      planner profiles compare profiles/mine kernel-profiles/h200_sxm --engine vllm

      planner profiles compare profiles/monday profiles/friday --json
    """
    from planner.cli.measured.profile_report import print_comparison
    from planner.costs.compare import compare as compare_stores
    from planner.hardware.library import find_accelerator
    from planner.hardware.profiles.store import ProfileStore

    stores = [ProfileStore.open([Path(path)]) for path in (first, second)]
    known = stores[0].accelerators()
    if accelerator is None and len(known) > 1:
        raise PlannerError(
            f"holds tables of {', '.join(f'`{name}`' for name in known)}",
            where=first,
            hint="choose one with `--accelerator`",
        )
    name = accelerator or known[0]
    try:
        sheet = find_accelerator(name)
    except PlannerError:
        sheet = None
    named = name if sheet is None else sheet.name
    comparison = compare_stores(named, sheet, stores[0], stores[1], (first, second), engine)
    print_comparison(comparison, as_json=as_json, output=output)
    return 0


def adopt(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="What `make gpu OUT=DIR` left behind.")],
    root: Annotated[str, typer.Option("--root", metavar="FOLDER", help="A checkout of planner.")] = ".",
    as_json: Json = False,
) -> int:
    """File a measured profile in the package, as the default of its accelerator.

    Examples:

      planner profiles adopt results/

      planner profiles adopt results/ --root ~/planner
    """
    from planner.hardware.profiling.bundle import adopt as adopt_result

    done = adopt_result(Path(folder), Path(root))
    fields = {"accelerator": done.accelerator, "profile": str(done.profile), "evidence": str(done.evidence)}
    write_result(
        {"schema": "planner.profiles_adopt/1", **fields, "tables": list(done.tables)},
        lambda: f"{done.accelerator}: {len(done.tables)} tables ({', '.join(done.tables)})",
        as_json=as_json,
    )
    say(f"wrote {done.profile} and {done.evidence}")
    return 0


def _identities(flags: list[str] | None) -> "list[TableIdentity]":
    from planner.costs.rates.pricer import serving_tables
    from planner.hardware.profiles.store import ProfileStore

    paths = serving_tables(profile_paths(flags))
    if not paths:
        raise PlannerError("no profiles were named", hint="add `--profiles PATH` or set PLANNER_PROFILES")
    return ProfileStore.open([Path(path) for path in paths]).identities()


def _fields(identity: "TableIdentity") -> dict[str, str]:
    return {name: str(getattr(identity, name)) for name in ("accelerator", "engine", "version", "table", "digest")}


COMMANDS = {"import": import_, "list": list_, "show": show, "compare": compare, "adopt": adopt}
