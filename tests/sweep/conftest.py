"""Small sweeps in an empty folder, and the command inside the test process."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner.cli.main import main

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {qwen3: {name: Qwen/Qwen3-32B, weights: fp8, kv_cache: fp8}}
cluster: {pools: [{gpu: h200, gpus: 4, price: 3.50USD/h}]}
workloads:
  - {name: chat, input_tokens: 1000, output_tokens: 200, load: {rate: 2/s}, slo: {ttft: 1s, tpot: 30ms}}
objective: {minimize: cost}
options: {modes: [colocated], tp: [1, 2], pp: [1], dp: [1]}
"""


@dataclass(frozen=True)
class Outcome:
    """Exit code, stdout and stderr of one command."""

    code: int
    out: str
    err: str


Sweep = Callable[..., Outcome]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with a problem in it, the working directory; solved points are kept below it."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PLANNER_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PLANNER_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "problem.yaml").write_text(PROBLEM)
    return tmp_path


@pytest.fixture
def sweep(folder: Path, capsys: pytest.CaptureFixture[str]) -> Sweep:
    """Writes `sweep.yaml` with the text given after its head, and runs `planner sweep` on it with the flags given."""

    def command(text: str, *flags: str) -> Outcome:
        (folder / "sweep.yaml").write_text(f"schema: planner.sweep/1\nbase: problem.yaml\n{text}\n")
        capsys.readouterr()
        code = main(["sweep", "sweep.yaml", "--workers", "0", *flags])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return command
