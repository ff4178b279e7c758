"""The page on the loop: its commands, run one after the other against a server with known times."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from planner.cli.main import main

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "audit-loop.md"

from stub_server import Behaviour, serve  # noqa: E402


def commands() -> tuple[str, list[str]]:
    """The script of the page, and its commands."""
    blocks = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S))
    return blocks["bash"], [line.removeprefix("$ ") for line in blocks["console"].splitlines() if line.startswith("$ ")]


def run(command: str, environment: dict[str, str]) -> int:
    """A command of the page in the working directory."""
    words = [
        name
        for word in shlex.split(command)
        for name in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
    ]
    if words[0] == "planner":
        return main(words[1:])
    return subprocess.run(words, env=environment, check=False, timeout=60).returncode


def interval(answer: Any) -> tuple[float, float]:  # noqa: ANN401 - parsed JSON
    low, high = answer["now"]["times"]["tpot_s.mean"]["interval"]
    return low, high


def test_runs_of_ones_own_narrow_the_audit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, lines = commands()
    monkeypatch.chdir(tmp_path)
    Path("serve.sh").write_text(script)
    tool = tmp_path / "bin" / "vllm"
    tool.parent.mkdir()
    tool.write_text(f"#!{sys.executable}\n{(Path(__file__).parent / 'fake_vllm.py').read_text(encoding='utf-8')}")
    tool.chmod(0o755)
    with serve(Behaviour(ttft_s=0.03, tpot_s=0.007)) as url:
        path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
        environment = dict(os.environ) | {"PATH": path, "STUB_URL": url, "STUB_REQUESTS": "12", "STUB_FULLER": "0.02"}
        assert [run(line, environment) for line in lines] == [0] * len(lines)
    first, second = (json.loads(Path(name).read_text()) for name in ("first.json", "second.json"))
    (low, high), (least, most) = interval(first), interval(second)
    assert most / least < high / low
    assert least < 0.007 / (1.0 - 0.02 * 8.0) < most, "what the server takes at the rate that nobody ran"
    assert json.loads(Path("plan.json").read_text())["inputs"]["costs"]["calibration"] != "default"
