"""Text output of `planner profile` and `planner profiles compare`."""

from collections import Counter
from typing import TYPE_CHECKING

from planner.cli.output import say, write_data, write_json, write_result
from planner.cli.render.columns import table
from planner.documents.units import format_si, significant

if TYPE_CHECKING:
    from planner.costs.compare import Comparison
    from planner.costs.shape_list import ShapeList
    from planner.hardware.profiling.measure import MeasuredProfile


def print_profile(listed: "ShapeList", measured: "MeasuredProfile", accelerator: str, *, as_json: bool) -> None:
    """The result of measuring on stdout, and on stderr what is missing from it."""
    document = {
        "schema": "planner.profiled/1",
        "accelerator": accelerator,
        "folder": str(measured.folder),
        "points": measured.points,
        "new_points": measured.new_points,
        "families": measured.families,
        "left_out": measured.left_out,
        "skipped": list(listed.skipped),
        "throttled_points": measured.throttled,
        "sentinel_drift": measured.drift,
        "took_s": measured.took_s,
    }
    counted = f"{measured.points} points ({measured.new_points} new) of {measured.families} families"
    drift = f"drift {significant(100 * measured.drift)} %"
    write_result(
        document, lambda: f"{accelerator}: {counted} in {format_si(measured.took_s, 's')}, {drift}", as_json=as_json
    )
    for reason in listed.skipped:
        say(f"skipped {reason}")
    for reason, count in Counter(measured.left_out.values()).items():
        say(f"left out {count} families: {reason}")
    say(f"wrote {measured.folder}")


def print_comparison(comparison: "Comparison", *, as_json: bool, output: str | None) -> None:
    """One line a table: utilisation of the roofline, and the ratio to the other profile where both measured."""

    if as_json:
        write_json(comparison.to_json(), output)
        return
    header = ("table", "cells", "utilisation", "p10", "p90", "shared", "ratio", "apart", "within 15 %")
    rows = []
    for line in comparison.lines:
        own = (line.table, str(line.cells), *(_percent(value) for value in line.utilisation))
        ratio = "-" if line.ratio is None else significant(line.ratio)
        other = (ratio, _percent(line.difference), _percent(line.within))
        rows.append((*own, str(line.shared), *other))
    write_data(table(header, rows), output)
    for note in comparison.notes:
        say(note)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{significant(100 * value)} %"
