"""`planner import` and `planner audit` as commands."""

import json
from pathlib import Path

import pytest

from planner.cli.main import main

RUNS = "#!/bin/bash\nvllm serve org/m --tensor-parallel-size 2\n"
FAILS = "#!/bin/bash\ntorchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --tensor-model-parallel-size 16\n"


def test_the_summary_is_written_in_the_form_of_the_truth(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.sh").write_text(RUNS)
    assert main(["import", str(tmp_path / "a.sh"), "--summary", str(tmp_path / "s.json")]) == 0
    summary = json.loads((tmp_path / "s.json").read_text())
    assert list(summary) == ["kind", "engine", "model", "gpus", "gpu_type", "roles", "unresolved", "audit"]
    assert "org/m" in capsys.readouterr().out


def test_an_audit_exits_with_1_where_nothing_can_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.sh").write_text(RUNS)
    (tmp_path / "b.sh").write_text(FAILS)
    assert main(["audit", str(tmp_path / "a.sh")]) == 0
    assert main(["audit", str(tmp_path / "b.sh"), "--json"]) == 1
    assert "needs 16 GPUs" in capsys.readouterr().out


def test_a_variable_without_a_value_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.sh").write_text(RUNS)
    assert main(["import", str(tmp_path / "a.sh"), "--env", "TP"]) == 2
    assert "NAME=VALUE" in capsys.readouterr().err
