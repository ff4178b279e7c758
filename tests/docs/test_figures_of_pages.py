"""Pages show what their commands print: the page on explanations is run, and the tool that makes pages again."""

import shlex
from pathlib import Path

import pytest

from planner.cli.main import main

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "explain-and-diff.md"

from figures import commands_of, merged, pages_with_figures, remade  # noqa: E402


@pytest.mark.usefixtures("each_mix_once")
def test_the_page_shows_what_its_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLANNER_PROFILES", raising=False)
    monkeypatch.setattr("planner.hardware.profiles.installed.PACKAGE", "no-kernel-tables")

    def run(command: str, folder: Path, both: bool) -> str:
        assert main(shlex.split(command)[1:]) in (0, 1)
        return capsys.readouterr().out

    page = PAGE.read_text(encoding="utf-8")
    now = remade(page, tmp_path, run)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(now, encoding="utf-8")
    else:
        assert page == now, "rewrite the page with `make figures`"


def test_marked_blocks_alone_are_made_again(tmp_path: Path) -> None:
    marked = "<!-- figures -->\n```console\n$ planner a\nold\n$ planner b \\\n    --flag\nold\n```\n"
    left = "```console\n$ planner a\nold\n```\n"
    commands: list[str] = []

    def run(command: str, folder: Path, both: bool) -> str:
        commands.append(command)
        return "new\n"

    assert remade(marked + left, tmp_path, run) == marked.replace("old", "new") + left
    assert commands == ["planner a", "planner b \\\n    --flag"]


def test_blocks_without_outputs_are_run_for_their_files(tmp_path: Path) -> None:
    page = "<!-- figures a.yaml=pyproject.toml -->\n```console\n$ planner solve a.yaml -o plan.json\n```\n"

    def run(command: str, folder: Path, both: bool) -> str:
        assert (folder / "a.yaml").read_text() == (ROOT / "pyproject.toml").read_text()
        return "a long answer\n"

    assert remade(page, tmp_path, run) == page


def test_wall_times_and_omissions_stay_as_the_page_has_them() -> None:
    shown = "head\n1\n... (2 more)\n4\nsolved in 1.70 s (solver)\n"
    printed = "head\n1.5\n2\n3\n4\nsolved in 9.99 s (solver)\n"
    assert merged(shown, printed) == "head\n1.5\n... (2 more)\n4\nsolved in 1.70 s (solver)\n"


def test_every_page_with_figures_names_commands_of_this_project() -> None:
    pages = list(pages_with_figures())
    assert ROOT / "README.md" in pages
    assert PAGE in pages
    assert [shown.command for shown in commands_of("$ make demo\nout\n$ make test\n")] == ["$ make demo", "$ make test"]
