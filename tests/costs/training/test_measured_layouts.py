"""Layouts outside of what was measured say so: regions are those of the runs, and plans beyond are named."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from planner.costs.training.config import FRAMEWORKS, TrainingConfig, machine_of
from planner.costs.training.intervals import FARTHEST, distance, distances, step_interval_s
from planner.costs.training.measured_layouts import (
    NAMES,
    layout_of,
    measured_layouts,
    outside,
    region_note,
    region_of,
)
from planner.costs.training.rates import default_rates
from planner.estimate.training_rows import config_of_row
from planner.hardware.library import find_node
from planner.models.library import find_model

TABLE = Path(__file__).parents[3].parent / "shared" / "data" / "training" / "measured.csv"
MACHINE = machine_of(find_node("h100_sxm"))


def config(model: str, **changes: int) -> TrainingConfig:
    base = TrainingConfig(find_model(model), MACHINE, 4096, 256, 1, tp=1, pp=8, ep=1, dp=8, zero_stage=1)
    return replace(base, **changes)  # type: ignore[arg-type]  # degrees are numbers


@pytest.mark.skipif(not TABLE.is_file(), reason="../shared is not here")
def test_runs_of_the_table_are_inside_their_regions() -> None:
    rows = list(csv.DictReader(TABLE.read_text(encoding="utf-8").splitlines()))
    for row in rows[5::20]:
        assert list(outside(config_of_row(row).config)) == [], row["id"]


@pytest.mark.parametrize("kind", ["dense", "experts", "lora"])
@pytest.mark.parametrize("family", ["Megatron", "FSDP", "DeepSpeed"])
@pytest.mark.parametrize("generation", ["ampere", "hopper", "blackwell", "cdna", "unheard of"])
def test_every_generation_and_family_has_a_region(kind: str, family: str, generation: str) -> None:
    region = region_of(kind, family, generation)
    assert region.layouts > 0
    assert all(1 <= least <= most for least, most in region.ranges.values())
    assert any(region.stages.values())
    assert "1f1b" in region.schedules


def test_every_measured_run_is_inside_its_region() -> None:
    for run in measured_layouts():
        region = region_of(run.kind, FRAMEWORKS[run.code].family, run.generation)
        assert all(region.holds(degree, getattr(run, degree)) for degree in NAMES)
        assert run.zero_stage in region.stages[run.pp > 1]
        assert run.schedule in region.schedules


def test_what_is_measured_on_one_generation_or_without_a_pipeline_is_not_so_on_another_or_with_one() -> None:
    hopper, blackwell = (region_of("dense", "FSDP", generation) for generation in ("hopper", "blackwell"))
    assert 2 in hopper.stages[False]
    assert 2 not in hopper.stages[True]
    assert 2 not in region_of("dense", "Megatron", "blackwell").stages[False]
    assert blackwell.stages == {False: (2, 3), True: (3,)}  # FSDP without a run on it: its stages elsewhere
    assert blackwell.ranges["pp"][1] < region_of("dense", "Megatron", "ampere").ranges["pp"][1]
    assert region_of("dense", "Megatron", "ampere").stages == {False: (0, 1), True: (0, 1)}


def test_a_layout_that_people_run_is_inside_and_one_that_nobody_measured_is_named() -> None:
    usual = config("Qwen/Qwen3-235B-A22B", ep=8)
    assert region_note(usual) is None
    strange = config("Qwen/Qwen3-235B-A22B", pp=1, dp=64, micro_batch=4, zero_stage=3)
    assert [each.split(" (")[0] for each in outside(strange)] == ["ep 1", "ZeRO stage 3 without a pipeline"]
    note = region_note(strange)
    assert note is not None
    assert note.startswith("no measurement near: beyond the ")
    assert "mixtures of experts" in note
    assert region_note(config("meta-llama/Llama-3.1-8B", pp=1)) is None
    piped = replace(config("meta-llama/Llama-3.1-8B", zero_stage=2), framework=FRAMEWORKS["torchtitan"])
    assert list(outside(replace(piped, schedule="zb_v"))) == [
        "ZeRO stage 2 with a pipeline (3)",
        "schedule zb_v (1f1b, interleaved)",
    ]


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
