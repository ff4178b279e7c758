"""Layouts outside of what was measured say so: shipped ranges are those of the table, and plans beyond are named."""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.costs.training.config import TrainingConfig, machine_of
from planner.costs.training.intervals import (
    FARTHEST,
    distance,
    distances,
    layout_of,
    measured_layouts,
    step_interval_s,
)
from planner.costs.training.measured_ranges import NAMES, measured_ranges, outside, range_note
from planner.costs.training.rates import default_rates
from planner.hardware.library import find_node
from planner.models.library import find_model

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
TABLE = Path(__file__).parents[3].parent / "shared" / "data" / "training" / "measured.csv"
MACHINE = machine_of(find_node("h100_sxm"))


def config(model: str, **changes: int) -> TrainingConfig:
    base = TrainingConfig(find_model(model), MACHINE, 4096, 256, 1, tp=1, pp=8, ep=1, dp=8, zero_stage=1)
    return replace(base, **changes)  # type: ignore[arg-type]  # degrees are numbers


@pytest.mark.skipif(not TABLE.is_file(), reason="../shared is not here")
def test_the_shipped_ranges_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "training_ranges", raising=False)
    import training_ranges

    assert training_ranges.SHIPPED.read_text(encoding="utf-8") == training_ranges.ranges(TABLE)
    rows = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
    sparse = [int(row["ep"]) for row in rows if "moe" in row["arch"] and row["task"] != "lora"]
    shipped = measured_ranges()["experts", "ep"]
    assert (shipped.least, shipped.most, shipped.runs) == (min(sparse), max(sparse), len(sparse))


def test_every_degree_has_a_range_for_every_kind() -> None:
    assert {kind for kind, _ in measured_ranges()} == {"dense", "experts", "lora"}
    for kind in ("dense", "experts", "lora"):
        for degree in NAMES:
            measured = measured_ranges()[kind, degree]
            assert 0 <= measured.least <= measured.most
            assert measured.runs > 0


def test_a_layout_that_people_run_is_inside_and_one_that_nobody_measured_is_named() -> None:
    usual = config("Qwen/Qwen3-235B-A22B", ep=8)
    assert range_note(usual) is None
    strange = config("Qwen/Qwen3-235B-A22B", pp=1, dp=64, micro_batch=4, zero_stage=3)
    assert [each.split(" (")[0] for each in outside(strange)] == ["ep 1", "ZeRO stage 3"]
    note = range_note(strange)
    assert note is not None
    assert note.startswith("no measurement near: beyond the ")
    assert "mixtures of experts" in note
    assert range_note(config("meta-llama/Llama-3.1-8B", ep=1, zero_stage=3)) is None


def test_measured_runs_have_no_distance_and_doublings_add_up_as_squares() -> None:
    near = measured_layouts()[0]
    assert distance(near) == 0.0
    assert distances(near, [near._replace(tp=near.tp * 2, pp=near.pp * 2)])[0] == pytest.approx(2**0.5)
    assert distances(near, [near._replace(zero_stage=(near.zero_stage + 1) % 4)])[0] == 1.0
    assert distances(near, [near._replace(micro_batch=near.micro_batch * 4096)])[0] == FARTHEST
    assert not len(distances(near, [near._replace(kind="lora")]))


def test_intervals_widen_with_distance() -> None:
    near, far = config("Qwen/Qwen3-30B-A3B", ep=8, pp=1), config("Qwen/Qwen3-30B-A3B", ep=1, pp=1, zero_stage=3)
    rates = replace(default_rates(), spread={"all": (-0.1, 0.1)}, spread_by_distance=0.3)
    widths = [high / low for low, high in (step_interval_s(each, 1.0, rates) for each in (near, far))]
    assert distance(layout_of(near)) < distance(layout_of(far))
    assert widths[0] < widths[1]
