"""Running the command inside the test process."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from planner.cli.main import main

ROOT = Path(__file__).parent.parent.parent


@dataclass(frozen=True)
class Outcome:
    """Exit code, stdout and stderr of one command."""

    code: int
    out: str
    err: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `planner` with the given arguments in an empty folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("PLANNER_PROFILES", "PLANNER_DEBUG", "PLANNER_TIME_LIMIT", "PLANNER_SEED", "PLANNER_GAP"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("planner.hardware.profiles.installed.PACKAGE", "no-kernel-tables")

    def command(*arguments: str) -> Outcome:
        capsys.readouterr()
        code = main(arguments)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return command


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    """A copy of an example problem."""
    path = tmp_path / "problem.yaml"
    path.write_text((ROOT / "examples" / "serve-qwen3-32b-h200.yaml").read_text())
    return path


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """A copy of a plan written by hand."""
    path = tmp_path / "plan.json"
    path.write_text((ROOT / "tests" / "plans" / "serve.json").read_text())
    return path
