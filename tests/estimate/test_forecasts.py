"""Forecasts: written once, unchanged since, and scored on runs that are later alone."""

import csv
import datetime
from pathlib import Path

import pytest

pytest.importorskip("numba", reason="the replay is compiled by numba")

import forecast

from planner.errors import PlannerError

DAY = datetime.date(2026, 11, 23)


def results(path: Path, rows: list[forecast.Row], factor: float, measured: str) -> Path:
    """Runs of forecast rows that took `factor` times as long."""
    names = [*forecast.KEY, "measured", "ttft_ms", "tpot_ms"]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            times = {f"{name}_ms": str(1e3 * factor * float(row[f"{name}_s"])) for name in ("ttft", "tpot")}
            writer.writerow({**row, **times, "isl": f"{row['isl']}.0", "measured": measured})
    return path


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return forecast.write(tmp_path / "forecasts", DAY, list(forecast.cases())[:3])


def test_a_forecast_is_written_once_and_read_as_it_was(written: Path) -> None:
    day, rows = forecast.read(written)
    assert (day, len(rows)) == (DAY, 3)
    assert all(float(row["tpot_low_s"]) <= float(row["tpot_s"]) <= float(row["tpot_high_s"]) for row in rows)
    with pytest.raises(PlannerError, match="never written twice"):
        forecast.write(written.parent, DAY, list(forecast.cases())[:1])
    assert len(forecast.read(written)[1]) == 3


@pytest.mark.parametrize("change", [("0.8", "0.9"), ("# date: 2026-11-23", "# date: 2026-11-22")])
def test_a_changed_forecast_is_refused(written: Path, change: tuple[str, str]) -> None:
    text = written.read_text(encoding="utf-8")
    assert change[0] in text
    written.write_text(text.replace(*change), encoding="utf-8")
    with pytest.raises(PlannerError, match="is not what was forecast"):
        forecast.read(written)


def test_later_runs_alone_are_scored(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = forecast.read(written)[1]
    later = results(written.parent / "results.txt", rows, 1.25, "2026-12-01")
    assert forecast.main(["--score", str(later)], folder=written.parent) == 0
    told = capsys.readouterr().out
    assert "3 results of later runs" in told
    assert "tpot  20.0 / 20.0 %" in told
    old = results(written.parent / "results.txt", rows, 1.0, "2026-11-23")
    assert forecast.main(["--score", str(old)], folder=written.parent) == 0
    assert "0 results of later runs, 3 of runs before it left out" in capsys.readouterr().out


def test_results_that_cannot_be_are_refused(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = forecast.read(written)[1]
    path = results(written.parent / "results.txt", rows, 1.0, "yesterday")
    assert forecast.main(["--score", str(path)], folder=written.parent) == 2
    assert "results.txt:2" in capsys.readouterr().err
    path.write_text("id\na\n", encoding="utf-8")
    assert forecast.main(["--score", str(path)], folder=written.parent) == 2
    assert "has no column `model`" in capsys.readouterr().err


def test_the_forecasts_that_are_kept_are_unchanged() -> None:
    kept = sorted(forecast.FOLDER.glob("*.csv"))
    assert kept
    assert all(forecast.read(path)[1] for path in kept)
