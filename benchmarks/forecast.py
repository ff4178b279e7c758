"""Forecasts that cannot leak: predictions written down before anybody published the runs, and scored when they come.

    python benchmarks/forecast.py --write                # today's predictions into docs/forecasts/
    python benchmarks/forecast.py --score RESULTS.csv    # all forecasts, on rows that were measured after them

Forecast are the deployments below with the load of the public benchmarks: lengths drawn from .8 of the nominal ones,
clients that start at once, engines of no stated release with defaults. A file of docs/forecasts/ is never written
twice: its name has the day, its first lines digest, commit and calibration, and the digest is of all that follows.

RESULTS.csv has the columns of `planner estimate --measured` with `measured` (the day of the run), `tpot_ms` and
`ttft_ms`. A row counts for a forecast that has its model, weights, system, engine, mode, lengths, degrees and
clients, and is older than its run. Errors are absolute percentages, beside those of the trivial answer: the median of
the results of the same engine and lengths themselves.
"""

import argparse
import csv
import datetime
import hashlib
import io
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from planner.costs.rates.calibration import load_calibration
from planner.documents.files import write_text_atomic
from planner.errors import PlannerError

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "docs" / "forecasts"
DEPLOYMENTS = (  # model, weights, system, engine, tp, expert parallelism
    ("Qwen/Qwen3.5-397B-A17B", "fp8_block", "h200_sxm", "sglang", 8, 1),
    ("Qwen/Qwen3.5-397B-A17B", "nvfp4", "b200_sxm", "vllm", 4, 1),
    ("zai-org/GLM-5.2", "fp8_block", "b300_sxm", "sglang", 8, 8),
    ("zai-org/GLM-5.2", "nvfp4", "gb300", "trtllm", 4, 4),
    ("moonshotai/Kimi-K2.5", "nvfp4", "b300_sxm", "vllm", 4, 1),
    ("MiniMaxAI/MiniMax-M2.7", "fp8_block", "h200_sxm", "vllm", 4, 4),
    ("deepseek-ai/DeepSeek-V3.2", "nvfp4", "b300_sxm", "sglang", 4, 1),
    ("openai/gpt-oss-120b", "mxfp4", "gb300", "vllm", 2, 1),
)
LENGTHS = ((1024, 1024), (8192, 1024))
CLIENTS = (4, 32, 128)
KEY = ("model", "weights", "system", "backend", "mode", "isl", "osl", "concurrency", "gpus", "tp", "dp", "moe_ep")
TOLD = ("ttft_s", "tpot_s", "ttft_low_s", "ttft_high_s", "tpot_low_s", "tpot_high_s", "output_tokens_per_s_per_gpu")
COLUMNS = ("id", *KEY, "pp", "moe_tp", "length_low", *TOLD)
Row = dict[str, str]


def cases() -> Iterator[Row]:
    """Rows of `planner estimate --measured`."""
    for (model, weights, system, engine, tp, ep), (isl, osl), clients in itertools.product(
        DEPLOYMENTS, LENGTHS, CLIENTS
    ):
        values = (model, weights, system, engine, "agg", isl, osl, clients, tp, tp, 1, ep)
        name = f"{model.rpartition('/')[2]} {weights} {system} {engine} tp{tp} ep{ep} {isl}+{osl} c{clients}"
        row = {"id": name, **dict(zip(KEY, map(str, values), strict=True))}
        yield {**row, "pp": "1", "moe_tp": str(tp // ep), "length_low": "0.8"}


def predicted(rows: list[Row]) -> list[Row]:
    """The rows with what is predicted of them; raises PlannerError for one that has no prediction."""
    from planner.estimate import estimate_measured

    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="", encoding="utf-8") as file:
        file.write(table_text(rows, [name for name in COLUMNS if name not in TOLD]))
        file.flush()
        lines = [json.loads(line) for line in estimate_measured(file.name, profiles=("none",))]
    return [{**row, **_told(line)} for row, line in zip(rows, lines, strict=True)]


def _told(line: dict[str, dict[str, float | list[float]] | str]) -> Row:
    told = line.get("prediction")
    if not isinstance(told, dict):
        raise PlannerError(f"{line['id']}: {line.get('error')}", hint="take it out of DEPLOYMENTS")
    values = {name: told[name] for name in ("ttft_s", "tpot_s", "output_tokens_per_s_per_gpu")}
    for name in ("ttft", "tpot"):
        ends = told[f"{name}_s_interval"]
        assert isinstance(ends, list)
        values |= {f"{name}_low_s": ends[0], f"{name}_high_s": ends[1]}
    return {name: f"{value:.5g}" for name, value in values.items()}


def table_text(rows: list[Row], columns: list[str]) -> str:
    """A table as text."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write(folder: Path, day: datetime.date, rows: list[Row]) -> Path:
    """A forecast of that day; raises PlannerError where there is one."""
    path = folder / f"{day.isoformat()}.csv"
    if path.exists():
        raise PlannerError("a forecast is never written twice", where=str(path), hint="forecast again on another day")
    body = table_text(predicted(rows), list(COLUMNS))
    facts = {
        "digest": _digest(body),
        "date": day.isoformat(),
        "commit": subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip(),
        "calibration": load_calibration().digest,
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomic(path, "".join(f"# {name}: {value}\n" for name, value in facts.items()) + body)
    return path


def _digest(body: str) -> str:
    return f"sha256:{hashlib.sha256(body.encode()).hexdigest()}"


def read(path: Path) -> tuple[datetime.date, list[Row]]:
    """Day and rows of a forecast; raises PlannerError for one that was changed."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    facts = dict(line[2:].strip().split(": ", 1) for line in lines if line.startswith("# "))
    body = "".join(line for line in lines if not line.startswith("# "))
    if facts.get("digest") != _digest(body) or facts.get("date") != path.stem:
        raise PlannerError("is not what was forecast: digest or date differ", where=str(path), hint="restore the file")
    return datetime.date.fromisoformat(facts["date"]), list(csv.DictReader(io.StringIO(body)))


def results_of(path: Path) -> list[Row]:
    """Rows of results; raises PlannerError for a table without the columns, or with times or days that are none."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except OSError as error:
        raise PlannerError(f"cannot be read: {error.strerror}", where=str(path), hint="check the path") from None
    wanted = (*KEY, "measured", "tpot_ms", "ttft_ms")
    missing = [name for name in wanted if rows and name not in rows[0]]
    if missing or not rows:
        what = f"has no column `{missing[0]}`" if missing else "has no rows"
        raise PlannerError(what, where=f"{path}:1", hint=f"its columns must hold {', '.join(wanted)}")
    for number, row in enumerate(rows, 2):
        try:
            datetime.date.fromisoformat(row["measured"])
            right = all(float(row[name]) > 0.0 for name in ("tpot_ms", "ttft_ms"))
        except ValueError:
            right = False
        if not right:
            hint = "write `measured` as 2026-12-31, and `tpot_ms` and `ttft_ms` as numbers above 0"
            raise PlannerError("the day or a time of the row cannot be", where=f"{path}:{number}", hint=hint)
    return rows


def pairs(forecast: tuple[datetime.date, list[Row]], results: list[Row]) -> tuple[list[tuple[Row, Row]], int]:
    """Forecasts with the results of later runs of theirs, and how many results were left out as too old."""
    day, rows = forecast
    known = {_key(row): row for row in rows}
    same = [(known[_key(row)], row) for row in results if _key(row) in known]
    later = [pair for pair in same if datetime.date.fromisoformat(pair[1]["measured"]) > day]
    return later, len(same) - len(later)


def _key(row: Row) -> tuple[str | float, ...]:
    return tuple(_plain(row[name]) for name in KEY)


def _plain(text: str) -> str | float:
    """A number where it is one: tables write 8 and 8.0."""
    try:
        return float(text)
    except ValueError:
        return text.strip().lower()


def lines_of(name: str, later: list[tuple[Row, Row]], old: int) -> Iterator[str]:
    """Errors of a forecast, beside a constant."""
    yield f"{name}: {len(later)} results of later runs" + (f", {old} of runs before it left out" if old else "")
    for metric in ("tpot", "ttft") if later else ():
        values = [(float(own[f"{metric}_s"]), float(row[f"{metric}_ms"]) / 1e3) for own, row in later]
        held = [
            float(own[f"{metric}_low_s"]) <= measured <= float(own[f"{metric}_high_s"])
            for (own, _), (_, measured) in zip(later, values, strict=True)
        ]
        kinds = [(row["backend"], _plain(row["isl"]), _plain(row["osl"])) for _, row in later]
        middle = {
            kind: statistics.median(m for (_, m), other in zip(values, kinds, strict=True) if other == kind)
            for kind in kinds
        }
        trivial = [(middle[kind], measured) for kind, (_, measured) in zip(kinds, values, strict=True)]
        texts = [
            f"{statistics.fmean(errors):.1f} / {statistics.median(errors):.1f}"
            for errors in ([100.0 * abs(told / true - 1.0) for told, true in told] for told in (values, trivial))
        ]
        yield f"  {metric}  {texts[0]} %   constant {texts[1]} %   intervals hold {sum(held) / len(held):.0%}"


def main(given: list[str] | None = None, *, folder: Path = FOLDER) -> int:
    """Write a forecast or score those there are; 2 for what cannot be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--write", action="store_true")
    asked.add_argument("--score", type=Path, metavar="RESULTS.csv")
    options = parser.parse_args(given)
    try:
        if options.write:
            print(write(folder, datetime.datetime.now(datetime.UTC).date(), list(cases())))
            return 0
        results = results_of(options.score)
        for path in sorted(folder.glob("*.csv")):
            print(*lines_of(path.stem, *pairs(read(path), results)), sep="\n")
    except PlannerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
