"""Benchmarks without ../shared/data: what their targets read has a generated sample, which judges no target."""

import csv
import gzip
import json
import re
import sys
from pathlib import Path

import inputs
import numpy as np
import pytest
import rl_fused
import samples
from case_kinds import KINDS, core_attention_balance, solve_case
from samples import caches, cases, training
from samples.tables import ROW_DEVIATION, Noise

from planner.documents.read import load_document
from planner.interchange.rl_problem import read_problem

ROOT = Path(__file__).parents[2]
OWN_WAY = {"experts", "traces/mooncake_fast25_conversation.jsonl.gz"}  # go on without, or have a sample too
TARGETS = re.findall(r"^bench-[\w-]+:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
TOLD = {name for rules in TARGETS for name in re.findall(r"\.\./shared/data/(\S+)", rules)}
SCRIPTS = {name for rules in TARGETS for name in re.findall(r"benchmarks/(\w+)\.py", rules)}


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A data folder that is not there; samples go beside it."""
    monkeypatch.setattr(inputs, "SHARED", tmp_path / "absent")
    monkeypatch.setattr(inputs, "SAMPLES", tmp_path / "samples")
    monkeypatch.setattr(inputs, "GENERATED", set())
    monkeypatch.setattr(sys, "argv", ["bench.py"])
    return tmp_path / "absent"


def constants() -> set[str]:
    """Files below the data folder that the scripts of the targets name as constants."""
    named = set()
    for script in SCRIPTS:
        text = (ROOT / "benchmarks" / f"{script}.py").read_text(encoding="utf-8")
        for parts in re.findall(r"^[A-Z_]+ = SHARED((?: / \"[^\"]+\")+)$", text, re.MULTILINE):
            named.add("/".join(re.findall(r"\"([^\"]+)\"", parts)))
    return named - OWN_WAY


@pytest.mark.parametrize("name", sorted(TOLD | constants() | {"cases", "placement"}))
def test_what_a_benchmark_is_told_to_read_has_a_sample(name: str) -> None:
    assert samples.known(name)


def test_a_sample_stands_in_and_judges_nothing(absent: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = inputs.required(absent / "rl" / "flexfusion_instances.csv")
    assert path.is_relative_to(inputs.SAMPLES)
    assert inputs.required(absent / "rl" / "flexfusion_instances.csv") == path
    told = capsys.readouterr().out
    assert told.count("generated sample, which says nothing about accuracy") == 1
    rl_fused.main(path)
    assert inputs.exit_code(1) == 0
    assert "not judged on generated samples: rl/flexfusion_instances.csv" in capsys.readouterr().out


def test_measured_data_are_judged(absent: Path) -> None:
    absent.mkdir()
    assert inputs.required(absent) == absent
    assert inputs.exit_code(1) == 1


@pytest.mark.parametrize("name", ["", "serving/throughput.csv", "serving/score.py", "nothing"])
def test_nothing_stands_in_for_scorers_nor_for_what_is_sealed(absent: Path, name: str) -> None:
    with pytest.raises(SystemExit) as refused:
        inputs.required(absent / name)
    assert refused.value.code == inputs.ABSENT
    assert not inputs.SAMPLES.exists()


@pytest.mark.parametrize("writes", ["--write", "--write=costs.yaml", "--wri"])
def test_no_calibration_is_written_from_a_sample(absent: Path, monkeypatch: pytest.MonkeyPatch, writes: str) -> None:
    monkeypatch.setattr(sys, "argv", ["training.py", str(absent / "training"), writes])
    with pytest.raises(SystemExit) as refused:
        inputs.first_path()
    assert refused.value.code == inputs.ABSENT


def test_generated_rl_problems_are_read_and_a_trace_shares_blocks(absent: Path) -> None:
    for name in ("p1_7b_32h800_sync", "p3_32b_64h800_async_longtail", "p5_7b_h800_h20_time"):
        assert read_problem(load_document(inputs.required(absent / "rl" / f"{name}.json"))).generation
    path = inputs.required(absent / "traces" / "mooncake_fast25_conversation.jsonl.gz")
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    blocks = [block for row in rows for block in row["hash_ids"]]
    assert len(set(blocks)) < len(blocks)
    assert all(row["input_length"] <= 512 * len(row["hash_ids"]) for row in rows)


def test_generated_runs_are_the_same_again() -> None:
    text = training.measured_more()
    assert text == training.measured_more()
    rows = list(csv.DictReader(text.splitlines()))
    assert all(float(row["step_time_s"]) > 0.0 and row["note"] == "generated" for row in rows)


def test_a_factor_is_drawn_for_each_group() -> None:
    noise = Noise(1)
    drawn = {group: np.log([noise.factor(group) for _ in range(200)]) for group in ("first", "second")}
    means = {group: logarithms.mean() for group, logarithms in drawn.items()}
    assert abs(means["first"] - means["second"]) > 10 * ROW_DEVIATION / 200**0.5
    assert all(abs(means[group] - np.log(factor)) < ROW_DEVIATION for group, factor in noise.group_factors.items())


MINIMISED = [
    "topo_circuits",
    "topo_faults",
    "mm_split",
    "stage_transfer",
    "place_moves",
    "workflow_chance",
    "place_mix",
]
MAXIMISED = ["cache_pool", "fleet_day", "fleet_elastic", "fleet_share"]


@pytest.mark.parametrize("name", [*MINIMISED, *MAXIMISED])
def test_a_generated_case_is_solved(name: str, tmp_path: Path) -> None:
    files = cases.files()
    (tmp_path / caches.TRACE).write_bytes(files[caches.TRACE])
    answer = solve_case(json.loads(files[f"{name}_sample.json"]), tmp_path)
    assert answer.bound is not None
    above = answer.bound - answer.objective if name in MAXIMISED else answer.objective - answer.bound
    assert above >= -1e-8


def test_every_kind_of_case_has_a_sample() -> None:
    made = [*cases.files().values(), samples.contents("placement")["placement/hbd_mc_2880gpu.json"]]
    kinds = {json.loads(text).get("kind") for text in made if text.startswith(b"{")}
    assert kinds >= set(KINDS)


def test_the_form_that_names_a_model_is_the_one_that_names_bytes() -> None:
    documents = [[900, 30], [200], [40]]
    bytes_of_token = {"query_bytes_per_token": 16384, "kv_bytes_per_token": 4096}
    plain = {"documents": documents, "block": 1, "max_over_mean": 1.05, **bytes_of_token}
    named = {"batches": documents, "model": {"hidden": 4096, "heads": 32, "kv_heads": 8}}
    named["benchmark"] = {"objective": "min bytes moved per layer s.t. max/avg<=1.05"}
    assert core_attention_balance.problem_of(named) == core_attention_balance.problem_of(plain)
    with pytest.raises(ValueError, match="no largest load"):
        core_attention_balance.problem_of({**named, "benchmark": {"objective": "min bytes"}})
