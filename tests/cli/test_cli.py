"""The conventions of the command: exit codes, where output goes, what help says."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from planner.cli import options, progress
from planner.cli.render import columns
from planner.cli.render import plan as render
from planner.documents.units import figure
from planner.errors import Conflict, Infeasible, PlannerError, Stopped
from planner.load.problems import load_plan
from planner.plan.schema import Envelope

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome

    Run = Callable[..., Outcome]

VERBS = ("solve", "check", "emit", "estimate", "schema")
NOUNS = {"hardware": ("list", "show"), "models": ("list", "show"), "profiles": ("import", "list", "show")}
COMMANDS = [(verb,) for verb in VERBS] + [(noun, verb) for noun, verbs in NOUNS.items() for verb in verbs]


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch, plan: Path) -> Envelope:
    """The plan that every solve answers with."""
    envelope, _ = load_plan(plan)
    monkeypatch.setattr("planner.api.solve", lambda problem, limits=None: envelope)
    return envelope


def answer_with(monkeypatch: pytest.MonkeyPatch, answer: BaseException) -> None:
    def solve(problem: object, limits: object = None) -> Envelope:
        raise answer

    monkeypatch.setattr("planner.api.solve", solve)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_every_command_shows_two_examples(run: "Run", command: tuple[str, ...]) -> None:
    done = run(*command, "--help")
    assert done.code == 0
    examples = done.out.partition("Examples:")[2].partition("\n\nArguments")[0]
    assert len(re.findall(rf"planner {' '.join(command)}\b", examples)) >= 2
    assert run("help", *command) == done


def test_options_of_solve_are_grouped(run: "Run") -> None:
    headings = re.findall(r"^(\w+):$", run("solve", "--help").out, flags=re.MULTILINE)
    assert [heading for heading in headings if heading != "Examples"] == [
        "Arguments",
        "Input",
        "Solver",
        "Output",
        "Options",
    ]


@pytest.mark.parametrize(
    ("arguments", "what", "hint"),
    [
        (["solv"], "unknown command `solv`", "did you mean `solve`"),
        (["hardware", "lst"], "unknown command `lst`", "did you mean `list`?"),
        ([], "missing command", "see `planner --help`"),
        (["solve"], "missing argument `PROBLEM`", "see `planner solve --help`"),
        (["solve", "--gpa", "1", "x"], "unknown option `--gpa`", "did you mean `--gap`?"),
        (["solve", "x", "--threads", "0"], "`--threads`", "see `planner solve --help`"),
        (["solve", "x", "--threads", "many"], "`--threads`", "see `planner solve --help`"),
        (["solve", "x", "--gap"], "option `--gap` requires an argument", "see `planner --help`"),
        (["emit", "plan.json"], "missing option `--target`", "see `planner emit --help`"),
        (["schema", "prblem"], "no schema of `prblem`", "planner schema problem"),
        (["solve", "problem.yaml", "--time-limit", "30"], 'must be a time such as "200ms"', "--time-limit 30s"),
        (["solve", "problem.yaml", "--time-limit", "0s"], "must be positive", "--time-limit 30s"),
        (["solve", "problem.yaml", "--gap", "lots"], "must be a fraction", "--gap 1%"),
        (["solve", "problem.yaml", "--gap", "150%"], "must be at least 0 and below 100%", "--gap 1%"),
        (["estimate"], "needs either a JSONL file or `--measured FILE.csv`", "planner estimate requests.jsonl"),
        (["profiles", "list"], "no profiles were named", "PLANNER_PROFILES"),
    ],
)
def test_mistakes_in_the_command_line_exit_2_with_a_hint(
    run: "Run", problem: Path, arguments: list[str], what: str, hint: str
) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.out == ""
    first, second = done.err.splitlines()
    assert first.startswith("error: ")
    assert what in first
    assert second.startswith("  hint: ")
    assert hint in second


def test_our_own_bugs_exit_4_and_ask_for_a_report(run: "Run", problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, ZeroDivisionError("division by zero"))
    done = run("solve", str(problem))
    assert done.code == 4
    assert "ZeroDivisionError: division by zero" in done.err
    assert "please report it" in done.err
    assert "Traceback" not in done.err
    monkeypatch.setenv("PLANNER_DEBUG", "1")
    assert "Traceback" in run("solve", str(problem)).err


def test_ctrl_c_without_a_plan_exits_130(run: "Run", problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, KeyboardInterrupt())
    done = run("solve", str(problem), "-o", "plan.json")
    assert done.code == 130
    assert done.out == ""
    assert not Path("plan.json").exists()


def test_infeasible_exits_1_and_names_the_limits_in_conflict(
    run: "Run", problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conflict: list[Conflict] = [
        {"limit": "p95 ttft <= 120 ms", "nearest": "ttft 143 ms"},
        {"limit": "gpus <= 8", "nearest": "10 gpus"},
    ]
    answer_with(monkeypatch, Infeasible(conflict, proved=True))
    done = run("solve", str(problem), "-o", "plan.json")
    assert done.code == 1
    assert not Path("plan.json").exists()
    assert done.out.splitlines() == [
        "infeasible: no plan meets all limits (proved)",
        "  these cannot hold together:  p95 ttft <= 120 ms,  gpus <= 8",
        "  nearest:  ttft 143 ms   |   10 gpus",
    ]
    document = json.loads(run("solve", str(problem), "--json").out)
    assert document == {"schema": "planner.infeasible/1", "proved": True, "conflict": conflict}


def test_no_plan_and_no_proof_exits_3_and_does_not_call_it_infeasible(
    run: "Run", problem: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conflict: list[Conflict] = [
        {"limit": "attainment of `chat` = 95.00%", "nearest": "93.11%"},
        {"limit": "8 GPUs", "nearest": ""},
    ]
    answer_with(monkeypatch, Infeasible(conflict, proved=False))
    done = run("solve", str(problem))
    assert done.code == 3
    assert done.out.splitlines() == [
        "no plan was found that meets all limits, and none is proven impossible",
        "  not kept together:  attainment of `chat` = 95.00%,  8 GPUs",
        "  nearest:  93.11%",
    ]
    assert json.loads(run("solve", str(problem), "--json").out)["proved"] is False


def test_a_limit_without_a_plan_exits_3(run: "Run", problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, Stopped("time_limit", bound=7.5))
    done = run("solve", str(problem), "--time-limit", "30s")
    assert done.code == 3
    assert "time limit of 30 s" in done.err
    document = json.loads(run("solve", str(problem), "--json").out)
    assert document == {"schema": "planner.stopped/1", "reason": "time_limit", "bound": 7.5}


def test_check_exits_1_when_a_rule_fails_or_cannot_be_verified(run: "Run", plan: Path) -> None:
    written = run("check", str(plan))
    assert written.code == 1
    assert re.match(r"ok    (\d+) of \1 rules \(5 unverifiable\)\n", written.out)
    assert "unverifiable restated.plan  certificate.status" in written.out
    data = json.loads(plan.read_text())
    data["decision"]["roles"][0]["memory"]["capacity_bytes"] /= 1000
    plan.write_text(json.dumps(data))
    bad = run("check", str(plan))
    assert bad.code == 1
    assert "FAIL  memory." in bad.out
    assert json.loads(plan.with_name("plan.checks.json").read_text())["levels"]["static"]["ok"] is False


def test_solve_prints_the_plan_and_writes_it_only_where_told(run: "Run", problem: Path, solved: Envelope) -> None:
    before = set(Path().iterdir())
    done = run("solve", str(problem))
    assert done.code == 0
    assert solved.name in done.out
    assert set(Path().iterdir()) == before
    written = run("solve", str(problem), "-o", "out.json")
    assert written.out == done.out
    assert "wrote out.json" in written.err
    assert load_plan("out.json")[0] == solved


def test_solve_to_stdout_prints_nothing_but_the_plan(run: "Run", problem: Path, solved: Envelope) -> None:
    text = run("solve", str(problem), "-o", "-").out
    assert Envelope.model_validate(json.loads(text)) == solved
    assert run("solve", str(problem), "--json").out == text


def test_wall_time_goes_to_stderr_only(run: "Run", problem: Path, solved: Envelope) -> None:
    done = run("solve", str(problem))
    assert re.search(r"solved in [\d.]+ s", done.err)
    assert "solved in" not in done.out
    assert run("solve", str(problem)).out == done.out


JSON_COMMANDS = [
    ("solve", "problem.yaml"),
    ("solve", "problem.yaml", "--show-config"),
    ("check", "plan.json"),
    ("emit", "plan.json", "--target", "vllm"),
    ("schema", "problem"),
    ("schema", "plan"),
    ("hardware", "list"),
    ("hardware", "show", "h200"),
    ("models", "list"),
    ("models", "show", "Qwen/Qwen3-32B"),
    ("estimate", "requests.jsonl"),
]


@pytest.mark.parametrize("command", JSON_COMMANDS, ids=" ".join)
def test_json_prints_one_document_with_a_schema(
    run: "Run", problem: Path, solved: Envelope, command: tuple[str, ...]
) -> None:
    Path("requests.jsonl").write_text('{"id": 1}\n')
    done = run(*command, "--json")
    code = 1 if command[0] in ("check", "estimate") else 0  # nobody can price this plan again, nor a line without one
    assert done.code == code
    document: dict[str, Any] = json.loads(done.out)
    assert re.fullmatch(r"planner\.[a-z_]+/\d+", document["schema"])
    written = run(*command, "--json", "-o", "document" if command[0] != "emit" else "folder")
    assert written.code == code


@pytest.mark.parametrize(
    "command", [("hardware", "list"), ("models", "show", "Qwen/Qwen3-32B"), ("check", "plan.json")]
)
def test_text_reads_the_same_without_colour(
    run: "Run", plan: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    plain = run(*command).out
    assert "\x1b" not in plain
    monkeypatch.setattr(columns, "wants_colour", lambda: True)
    coloured = run(*command).out
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_no_color_is_obeyed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert columns.wants_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not columns.wants_colour()


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2


def test_progress_is_one_line_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 0.5, 2.0, 3.0))
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    monkeypatch.setattr("os.get_terminal_size", lambda fileno: os.terminal_size((40, 20)))
    monkeypatch.delenv("PLANNER_NO_PROGRESS", raising=False)
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress.progress() as tell:
        tell("too early")
        tell("bound 7.5")
        tell("bound 7.4 " + "x" * 100)
    shown = terminal.getvalue()
    assert "too early" not in shown
    assert "\r2 s  bound 7.5" in shown
    assert "\n" not in shown
    assert max(len(part) for part in shown.split("\r")) < 40
    for stream, quiet in ((io.StringIO(), ""), (_Terminal(), "1")):
        monkeypatch.setenv("PLANNER_NO_PROGRESS", quiet)
        monkeypatch.setattr(sys, "stderr", stream)
        with progress.progress() as tell:
            tell("bound 7.5")
        assert stream.getvalue() == ""


def test_profiles_come_from_flags_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANNER_PROFILES", os.pathsep.join(("one", "two words")))
    assert options.profile_paths(None) == ("one", "two words")
    assert options.profile_paths(["three"]) == ("three",)
    monkeypatch.delenv("PLANNER_PROFILES")
    assert options.profile_paths(None) == ()


@pytest.mark.parametrize(("text", "value"), [("1%", 0.01), ("0.05", 0.05), ("0", 0.0)])
def test_gap_is_a_fraction_or_a_percentage(text: str, value: float) -> None:
    assert options.fraction(text, "--gap") == pytest.approx(value)


def test_time_limit_needs_a_unit() -> None:
    assert options.seconds("2min", "--time-limit") == 120.0
    with pytest.raises(PlannerError, match="--time-limit"):
        options.seconds("2", "--time-limit")


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("ttft_s", 0.0412, "41.2 ms"),
        ("requests_per_s", 4.314, "4.31 requests/s"),
        ("output_tokens_per_s_per_gpu", 1234.0, "1230 tokens/s/gpu"),
        ("memory_bandwidth_bytes_per_s", 1.83e12, "1.83 TB/s"),
        ("usd_per_hour", 98.7, "98.7 USD/h"),
        ("weights_bytes", 32.8e9, "32.8 GB"),
        ("gap", None, "-"),
    ],
)
def test_figures_carry_units_and_three_digits(metric: str, value: float | None, text: str) -> None:
    assert figure(metric, value) == text


def test_a_reader_that_leaves_early_ends_the_command_quietly() -> None:
    command = f"{sys.executable} -m planner schema plan | head -c 10"
    done = subprocess.run(command, shell=True, check=True, capture_output=True, text=True)
    assert done.stdout == '{\n  "$sche'
    assert done.stderr == ""


def test_emitted_folder_holds_the_files_of_the_json_document(run: "Run", plan: Path) -> None:
    files: dict[str, str] = json.loads(run("emit", str(plan), "--target", "vllm", "--json").out)["files"]
    assert run("emit", str(plan), "--target", "vllm", "-o", "launch").code == 0
    assert {path.name: path.read_text() for path in Path("launch").iterdir()} == files
    assert all(os.access(Path("launch") / name, os.X_OK) for name, text in files.items() if text.startswith("#!"))


def test_a_time_limit_is_never_taken_for_a_proof(run: "Run", problem: Path) -> None:
    done = run("solve", str(problem), "--time-limit", "1ms")
    assert done.code in (0, 3)
    assert "infeasible" not in done.out


def test_one_screen_shows_every_part_of_a_plan_of_every_kind() -> None:
    for path in sorted((Path(__file__).parent.parent / "plans").glob("*.json")):
        envelope, decision = load_plan(path)
        text = render.render_plan(envelope, decision)
        assert text.startswith(f"{envelope.name}: {envelope.kind}, ")
        assert all(role.name in text for role in decision.roles)
        for prediction in envelope.predictions:
            assert figure(prediction.metric, prediction.value) in text
        own = decision.model_dump(exclude_defaults=True, exclude=set(type(decision).__mro__[1].model_fields))  # type: ignore[attr-defined]  # the class of decisions of all kinds
        for name, value in own.items():
            if not isinstance(value, (list, tuple)):
                assert f"{name}: " in text
