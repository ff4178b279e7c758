"""The page on explanations and differences shows what its commands print."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from planner.cli.main import main

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "explain-and-diff.md"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    shutil.copy(ROOT / "examples" / "serve-cost-two-pools.yaml", tmp_path / "problem.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLANNER_PROFILES", raising=False)

    def shown(block: re.Match[str]) -> str:
        text = ""
        for command in re.findall(r"^\$ planner (.*)$", block[1], re.MULTILINE):
            assert main(shlex.split(command)) in (0, 1)
            printed = capsys.readouterr().out
            text += f"$ planner {command}\n{'' if command.startswith('solve') else printed}"
        return f"```console\n{text}```"

    page = PAGE.read_text(encoding="utf-8")
    now = BLOCK.sub(shown, page)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(now, encoding="utf-8")
    else:
        assert page == now, "rewrite the page with `pytest --update-golden tests/docs/test_explain_and_diff.py`"
