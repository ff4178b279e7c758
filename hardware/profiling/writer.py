"""Writes measured kernels as tables of engine `planner` in the store's format, with a metadata card.

A grid is the product of the sizes that any of its families was measured at. Inside a family's own range the cells that
were not measured are interpolated as the choice of points judged them to be within its tolerance; their kernel source
says `interpolated`. Cells outside the range stay empty.
"""

import datetime
import io
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from planner.errors import PlannerError
from planner.hardware.profiles.files import publish, write_files
from planner.hardware.profiles.importing import import_profiles
from planner.hardware.profiles.layout import LAYOUTS
from planner.hardware.profiles.store import INDEX, read_index
from planner.hardware.profiling.adaptive import Point, Refinement
from planner.hardware.profiling.device import DeviceFacts
from planner.hardware.profiling.journal import ProfileJournal
from planner.hardware.profiling.kernel_shape import Row

ENGINE = "planner"
CARD, CARD_SCHEMA = "card.json", "planner.profile_card/1"
INTERPOLATED = "interpolated"

METHOD = (
    "random inputs, rotated among sets that exceed the cache; warm-up; medians. On a GPU device events, and replay of "
    "a CUDA graph for kernels under 100 µs; on a processor the clock around single runs of one thread."
)

ABSENT = (
    "attention over 8-bit caches, and in 8 bits: neither SDPA nor FlexAttention computes it",
    "experts in 4 bits, and their gradients in 8: there is no grouped product for them",
    "products in nvfp4 and mxfp4: they need scales in the layout of one generation of GPUs",
)
"""What PyTorch has no kernel for and so no profile holds; costs take the roofline, or a neighbour's utilisation."""

_Cell = tuple[Row, float, str]
_Group = tuple[str, tuple[tuple[str, int | str], ...]]


def write_profile(
    folder: Path,
    refined: Sequence[Refinement],
    journal: ProfileJournal,
    *,
    version: str,
    facts: DeviceFacts,
    gauge: dict[str, object],
    report: dict[str, object],
) -> None:
    """Puts tables and card into `folder`, in place of tables of the same version; raises PlannerError."""
    assert journal.rates is not None
    cells = table_cells(refined, journal)
    try:
        with tempfile.TemporaryDirectory(prefix=".partial-", dir=folder) as staged:
            raw, store = Path(staged) / "raw", Path(staged) / "store"
            for table, rows in cells.items():
                place = raw / journal.rates.accelerator / table / ENGINE / version
                write_files(place, {f"{table}_perf.parquet": _parquet(rows)})
            import_profiles(raw, store)
            _move(store, folder)
        card = _card(journal, version, facts, gauge, report, cells)
        write_files(folder, {CARD: (json.dumps(card, indent=2, ensure_ascii=False) + "\n").encode()})
    except OSError as error:
        raise PlannerError(
            f"cannot be written: {error.strerror}", where=str(folder), hint="name a folder that can be written"
        ) from None


def table_cells(refined: Sequence[Refinement], journal: ProfileJournal) -> dict[str, list[_Cell]]:
    """Rows of every table with their seconds and kernels: measured cells, and those between them."""
    groups: dict[_Group, list[Refinement]] = {}
    for refinement in refined:
        groups.setdefault(_group(refinement), []).append(refinement)
    cells: dict[str, list[_Cell]] = {}
    for (table, _), members in groups.items():
        for refinement in members:
            cells.setdefault(table, []).extend(_family_cells(refinement, members, journal))
    return cells


def _group(refinement: Refinement) -> _Group:
    """The table of a family, and its keys there: families of one group share a grid."""
    shape = refinement.family.shape(tuple(axis[0] for axis in refinement.axes))
    axes = LAYOUTS[shape.table].axes
    keys = tuple(sorted((name, value) for name, value in shape.row().items() if name not in axes))
    return shape.table, keys


def _family_cells(refinement: Refinement, members: list[Refinement], journal: ProfileJournal) -> Iterator[_Cell]:
    """The cells of one family at all sizes at which its group was measured, within the family's own range."""
    name = refinement.family.name
    measured = {refinement.sizes(index) for index in refinement.measured_s}
    axes = []
    for axis, own in refinement.family.sweep:
        sizes = {size for member in members for size in _sizes_along(axis, member)}
        axes.append(sorted(size for size in sizes if own[0] <= size <= own[-1]))
    for point in _product(axes):
        row = refinement.family.shape(point).row()
        if point in measured:
            timing = journal.timings[name, point]
            yield row, timing.median_s, timing.source
        else:
            yield row, refinement.predict_s(tuple(map(float, point))), INTERPOLATED


def _sizes_along(axis: str, refinement: Refinement) -> set[int]:
    """The sizes of that name at which a family was measured, swept or fixed."""
    names = [name for name, _ in refinement.family.sweep]
    if axis in names:
        place = names.index(axis)
        return {refinement.sizes(index)[place] for index in refinement.measured_s}
    return {int(value) for name, value in refinement.family.fixed if name == axis}


def _product(axes: list[list[int]]) -> Iterator[Point]:
    mesh = np.meshgrid(*(np.asarray(axis) for axis in axes), indexing="ij")
    yield from (tuple(int(value) for value in point) for point in np.stack([m.ravel() for m in mesh], axis=1))


def _parquet(cells: list[_Cell]) -> bytes:
    """One table with latencies in milliseconds, the unit of the layout."""
    import pyarrow
    import pyarrow.parquet

    columns: dict[str, list[int | str | float]] = {name: [] for name in cells[0][0]}
    for row, _, _ in cells:
        for name, value in row.items():
            columns[name].append(value)
    columns["latency"] = [seconds * 1e3 for _, seconds, _ in cells]
    columns["kernel_source"] = [source for _, _, source in cells]
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _move(store: Path, folder: Path) -> None:
    """Puts the tables of `store` into `folder`, its index last."""
    index = json.loads((store / INDEX).read_text(encoding="utf-8"))
    for place in index["tables"]:
        publish(store / place, folder / place)
    if (folder / INDEX).is_file():
        kept = json.loads((folder / INDEX).read_text(encoding="utf-8"))["tables"]
        read_index(folder)
        index["tables"] = {place: kept.get(place) for place in kept} | index["tables"]
    staged = store / INDEX
    staged.write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    os.replace(staged, folder / INDEX)


def _card(
    journal: ProfileJournal,
    version: str,
    facts: DeviceFacts,
    gauge: dict[str, object],
    report: dict[str, object],
    cells: dict[str, list[_Cell]],
) -> dict[str, object]:
    rates = journal.rates
    assert rates is not None
    spread = [(t.p90_s - t.p10_s) / t.median_s for t in journal.timings.values()]
    return {
        "schema": CARD_SCHEMA,
        "accelerator": rates.accelerator,
        "version": version,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "device": facts.to_json(),
        "state": gauge,
        "method": METHOD,
        "absent": ABSENT,
        "rates_reached": {
            "flop_per_s": rates.flop_per_s,
            "bandwidth_bytes_per_s": rates.bandwidth_bytes_per_s,
            "kernel_floor_s": rates.floor_s,
        },
        "spread": {"median": float(np.median(spread)), "p90": float(np.percentile(spread, 90))} if spread else {},
        "cells": {
            table: {"measured": sum(source != INTERPOLATED for _, _, source in rows), "all": len(rows)}
            for table, rows in sorted(cells.items())
        },
        **report,
    }
