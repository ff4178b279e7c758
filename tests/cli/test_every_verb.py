"""What holds for every registered verb, found by walking the command itself."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from planner.cli.main import built_command
from planner.cli.options import NO_FILES, WRITTEN

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome

    Run = Callable[..., Outcome]

MOST_MODULES = 180  # of Python and typer, of which 120 are imported


def _verbs(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401
    below = getattr(command, "commands", None)
    if below is None:
        yield path, command
        return
    for name, child in below.items():
        yield from _verbs(child, (*path, name))


VERBS = dict(_verbs(built_command()))


def test_the_verbs_of_this_page_are_there() -> None:
    assert {("solve",), ("diff",), ("explain",), ("show",), ("init",), ("doctor",), ("completion",)} <= set(VERBS)


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_has_json(verb: tuple[str, ...]) -> None:
    assert "--json" in {flag for parameter in VERBS[verb].params for flag in parameter.opts}


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_shows_two_examples_of_itself(run: "Run", verb: tuple[str, ...]) -> None:
    shown = run(*verb, "--help")
    assert shown.code == 0
    assert len(re.findall(rf"^ +planner {' '.join(verb)}\b", shown.out, re.MULTILINE)) >= 2


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_every_verb_refuses_a_file_that_is_not_there(run: "Run", verb: tuple[str, ...]) -> None:
    needed = [parameter for parameter in VERBS[verb].params if parameter.param_type_name == "argument"]
    if not any(getattr(parameter, "required", False) for parameter in needed):
        pytest.skip("takes no argument that must be there")
    options = ["--target", "vllm"] if verb == ("emit",) else ["-o", "out"] if verb == ("profiles", "import") else []
    done = run(*verb, *["nowhere.json" for parameter in needed if parameter.required], *options)
    assert done.code == 2, done
    assert done.err.startswith("error: ")
    assert "hint: " in done.err


@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_no_verb_writes_over_what_it_reads(run: "Run", verb: tuple[str, ...], tmp_path: Path) -> None:
    flags = WRITTEN & {each.opts[0] for each in VERBS[verb].params if each.metavar in ("FILE", "FOLDER")}
    files = [each for each in VERBS[verb].params if each.param_type_name == "argument" and each.metavar not in NO_FILES]
    if not flags or not files:
        pytest.skip("reads no file or writes none")
    options = [each.opts[0] for each in VERBS[verb].params if each.required and each not in files]
    needed = [part for option in options if option not in flags for part in (option, "x")]
    (tmp_path / "mine.yaml").write_text("kind: serve\n")
    for flag in sorted(flags):
        given = ["mine.yaml", *(f"other-{number}" for number in range(len(files) - 1))]
        done = run(*verb, *given, *needed, flag, "./mine.yaml")
        assert (done.code, done.err.splitlines()[0][-4:]) == (2, " too"), done.err
    assert (tmp_path / "mine.yaml").read_text() == "kind: serve\n"


@pytest.mark.parametrize("verb", [("watch", "http://node-00:8000"), ("calibrate", "runs.json")], ids=" ".join)
def test_a_plan_that_a_verb_reads_beside_is_not_written_over(run: "Run", verb: tuple[str, ...]) -> None:
    done = run(*verb, "--plan", "plan.json", "--output", "./plan.json")
    assert (done.code, done.err.splitlines()[0]) == (2, "error: --output ./plan.json: is the file of --plan too")


def test_help_imports_of_the_package_the_verbs_and_little_else() -> None:
    """Imports are what its CPU time is spent on, which benchmarks/stated_times.py holds to a fifth of a second."""
    code = (
        "import sys\n"
        "there = set(sys.modules)\n"
        "from planner.cli.main import main\n"
        "assert main(['--help']) == 0\n"
        "print(*set(sys.modules) - there, file=sys.stderr)\n"
    )
    imported = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stderr.split()
    parts = Counter(name.partition(".")[0] for name in imported)
    assert {*parts} - sys.stdlib_module_names <= {"planner", "typer", "annotated_doc", "shellingham"}
    assert parts.total() - parts["planner"] <= MOST_MODULES
    ours = {name.split(".")[1] for name in imported if name.startswith("planner.")}
    assert ours <= {"cli", "documents", "errors", "plan", "progress"}
