"""Writes tables as Parquet, CSV and JSON, atomically and with identical bytes for identical rows."""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from planner.documents.files import canonical_json, write_bytes_atomic
from planner.documents.read import load_document
from planner.errors import PlannerError
from planner.sweep.columns import FIXED
from planner.sweep.results import ResultTable, TableCell, Type

SCHEMA = "planner.sweep_results/1"
READ = (SCHEMA, "planner.sweep-results/1")  # spelled so by 0.1.0 before its release
FORMATS = (".parquet", ".csv", ".json")
_ROWS_PER_GROUP = 10_000


def require_format(path: str) -> None:
    """Raises PlannerError for a name whose ending says no known format; `-` is JSON."""
    if path != "-" and Path(path).suffix not in FORMATS:
        raise PlannerError(
            f"the format of `{Path(path).name}` is not known", where=path, hint=f"end the name in {', '.join(FORMATS)}"
        )


def write_table(table: ResultTable, path: str, findings: Mapping[str, object]) -> None:
    """Writes the table in the format of the file's ending; `findings` go into JSON alone."""
    suffix = Path(path).suffix if path != "-" else ".json"
    if suffix == ".parquet":
        content = _parquet(table)
    elif suffix == ".csv":
        content = _csv(table)
    else:
        content = (json.dumps(json_document(table, findings), indent=1, ensure_ascii=False) + "\n").encode()
    write_bytes_atomic(path, content)


def json_document(table: ResultTable, findings: Mapping[str, object]) -> dict[str, Any]:
    """The table as one document, with what was found in it."""
    return {
        "schema": SCHEMA,
        "axes": list(table.axes),
        "columns": table.columns,
        "rows": table.rows,
        **findings,
        "inputs": table.inputs,
    }


def _csv(table: ResultTable) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows([_written(row[name]) for name in table.columns] for row in table.rows)
    return text.getvalue().encode()


def _written(cell: TableCell) -> str:
    return "" if cell is None else repr(cell) if isinstance(cell, float) else str(cell)


def _parquet(table: ResultTable) -> bytes:
    import pyarrow
    from pyarrow import parquet

    kinds = {"integer": pyarrow.int64(), "number": pyarrow.float64(), "text": pyarrow.string()}
    meaning = {"schema": SCHEMA, "axes": list(table.axes), "inputs": table.inputs}
    schema = pyarrow.schema(
        [(name, kinds[kind]) for name, kind in table.columns.items()], metadata={"planner": canonical_json(meaning)}
    )
    arrays = [
        pyarrow.array([row[name] for row in table.rows], type=kinds[kind]) for name, kind in table.columns.items()
    ]
    sink = io.BytesIO()
    parquet.write_table(
        pyarrow.Table.from_arrays(arrays, schema=schema), sink, row_group_size=_ROWS_PER_GROUP, compression="zstd",
        version="2.6", data_page_version="1.0", use_dictionary=True, write_statistics=True,
    )  # fmt: skip
    return sink.getvalue()


def read_table(path: str) -> ResultTable:
    """The table in a file that `write_table` wrote.

    Raises PlannerError for a file that is missing, of another kind, or not whole.
    """
    require_format(path)
    suffix = Path(path).suffix
    if suffix != ".json" and not Path(path).is_file():
        raise PlannerError("file not found", where=path, hint="write it first: `planner sweep SWEEP.yaml -o FILE`")
    table = {".parquet": _from_parquet, ".csv": _from_csv}.get(suffix, _from_json)(path)
    missing = [name for name in ("scenario", "status", "plan", *table.axes) if name not in table.columns]
    if missing:
        raise PlannerError(
            f"is no result of a sweep: it has no column `{missing[0]}`",
            where=path,
            hint="give a file written by `planner sweep -o`",
        )
    return table


def _from_parquet(path: str) -> ResultTable:
    import pyarrow
    from pyarrow import parquet

    try:
        stored = parquet.read_table(path)
        rows = stored.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise PlannerError(
            f"is not a whole Parquet file: {str(error).splitlines()[0][:120]}",
            where=path,
            hint="write it again: the same sweep takes every solved point from its journal",
        ) from None
    columns: dict[str, Type] = {
        part.name: "integer"
        if pyarrow.types.is_integer(part.type)
        else "number"
        if pyarrow.types.is_floating(part.type)
        else "text"
        for part in stored.schema
    }
    meaning = _meaning((stored.schema.metadata or {}).get(b"planner", b""), path)
    return ResultTable(columns, rows, tuple(meaning["axes"]), meaning["inputs"], path)


def _meaning(text: bytes, path: str) -> dict[str, Any]:
    try:
        meaning = json.loads(text)
    except ValueError:
        meaning = None
    if not isinstance(meaning, dict) or meaning.get("schema") not in READ:
        schema = meaning.get("schema") if isinstance(meaning, dict) else None
        other = f": its schema is {schema!r}, this program reads `{SCHEMA}`" if schema else ""
        raise PlannerError(f"is no result of a sweep{other}", where=path, hint="give a file of `planner sweep -o`")
    return meaning


def _from_json(path: str) -> ResultTable:
    data = load_document(path).data
    if not isinstance(data, dict) or data.get("schema") not in READ:
        _meaning(json.dumps(data if isinstance(data, dict) else {}).encode(), path)
    sound = isinstance(data.get("rows"), list) and all(isinstance(row, dict) for row in data["rows"])
    kinds = data.get("columns")
    if not sound or not isinstance(kinds, dict) or not set(kinds.values()) <= set(get_args(Type)):
        raise PlannerError("is no whole result of a sweep", where=path, hint="write it again with `planner sweep -o`")
    rows = [{name: row.get(name) for name in kinds} for row in data["rows"]]
    return ResultTable(kinds, rows, tuple(str(name) for name in data.get("axes", [])), data.get("inputs", {}), path)


def _from_csv(path: str) -> ResultTable:
    try:
        text = Path(path).read_text(encoding="utf-8")
        lines = list(csv.reader(io.StringIO(text)))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise PlannerError(f"cannot be read as CSV: {error}", where=path, hint="write it again") from None
    names = lines[0] if lines else []
    ragged = next((number for number, line in enumerate(lines, 1) if len(line) != len(names)), None)
    if ragged is not None or (text and not text.endswith("\n")):
        raise PlannerError(
            "the file is cut off or changed here", where=f"{path}:{ragged or len(lines)}", hint="write it again"
        )
    rows = [dict(zip(names, map(_read, line), strict=True)) for line in lines[1:]]
    columns: dict[str, Type] = {name: _type([row[name] for row in rows]) for name in names}
    status = names.index("status") if "status" in names else 0
    axes = tuple(name for name in names[:status] if name not in FIXED)
    return ResultTable(columns, rows, axes, {}, path)


def _read(text: str) -> TableCell:
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


def _type(cells: list[TableCell]) -> Type:
    if any(isinstance(cell, str) for cell in cells):
        return "text"
    return "number" if any(isinstance(cell, float) for cell in cells) else "integer"
