"""`show`, `init`, `doctor`, `completion` and `diff` at the command line."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from planner.cli.main import built_command
from planner.cli.options import VARIABLES
from planner.cli.render.map import render_map
from planner.doctor import EXTRAS
from planner.kinds.registry import find_kind, kind_names
from planner.load.problems import load_plan, load_problem
from planner.load.starters import starter, starter_names
from planner.problem.shapes import known_shapes

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome

    Run = Callable[..., Outcome]

PLANS = Path(__file__).parent.parent / "plans"


@pytest.mark.parametrize("kind", kind_names())
def test_show_draws_every_role_of_every_kind(run: "Run", kind: str) -> None:
    shown = run("show", str(PLANS / f"{kind}.json"))
    assert (shown.code, shown.err) == (0, "")
    _, decision = load_plan(PLANS / f"{kind}.json")
    assert all(role.name in shown.out.rpartition("\n\n")[2] for role in decision.roles)
    assert len(shown.out.splitlines()) < 60
    assert run("show", str(PLANS / f"{kind}.json"), "--json").out == (PLANS / f"{kind}.json").read_text()


def test_sixteen_thousand_ranks_are_one_row_of_the_map(run: "Run") -> None:
    drawn = run("show", str(PLANS / "train.json")).out.rpartition("\n\n")[2].splitlines()
    assert drawn == ["  h100", "    nodes 0-2047  JJJJJJJJ", "  J job"]


def test_a_map_has_a_letter_a_device_and_marks_what_is_idle_or_gone(edited_plan: Callable[..., dict[str, Any]]) -> None:
    plan = edited_plan("serve", {"inputs.cluster.pools.0.out_of_service": [1], "decision.roles.0.name": "decode-2"})
    plan["decision"]["placement"][0] |= {"role": "decode-2", "axes": [{"name": "tp", "size": 2, "stride": 1}]}
    plan["decision"]["placement"][1]["axes"] = [{"name": "tp", "size": 4, "stride": 1}]
    plan["decision"]["routing"] = []
    decision = find_kind("serve").decision.model_validate(plan["decision"])
    from planner.check.inputs import pools_of
    from planner.problem.schema import Problem

    lines = render_map(decision, pools_of(Problem.model_validate(plan["inputs"]))).splitlines()
    assert [line.split()[-1] for line in lines[1:3]] == ["DD..dddd", "xxxxxxxx"]
    assert lines[-1].split("   ") == ["  D decode-2", "d decode", ". idle", "x out of service"]


def test_a_map_of_a_pool_that_the_catalog_does_not_know_is_drawn_in_rows_of_eight() -> None:
    _, decision = load_plan(PLANS / "serve.json")
    assert [line.split()[-1] for line in render_map(decision, {}).splitlines()[1:-1]] == ["PP..DDDD"]


def test_a_map_with_many_kinds_of_rows_leaves_out_the_middle(edited_plan: Callable[..., dict[str, Any]]) -> None:
    plan = edited_plan("serve")
    plan["decision"]["placement"][0]["axes"] = [{"name": "replica", "size": 100, "stride": 9}]
    decision = find_kind("serve").decision.model_validate(plan["decision"])
    drawn = render_map(decision, {}).splitlines()
    assert len(drawn) < 40
    assert any("rows more" in line for line in drawn)


def test_a_layout_of_many_layers_is_counted_and_its_imbalance_shown_to_four_digits(
    run: "Run", edited_plan: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    layouts = [{"first_layer": layer, "num_layers": 1, "expert_of_slot": list(range(36))} for layer in range(58)]
    plan = edited_plan("experts", {"decision.layouts": layouts, "predictions.0.value": 1.0003})
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    shown = run("show", "plan.json").out
    assert "layouts: 58 of first_layer, num_layers, expert_of_slot" in shown
    assert "34, 35" not in shown
    assert next(line for line in shown.splitlines() if line.startswith("  imbalance")).split()[-1] == "1.0003"


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"inputs.workloads": [[1], {"name": "chat", "slo": [2]}, {"slo": {"ttft": 3}}]}, 0, ""),
        ({"certificate.proof": {"verified": {"limits": [["ttft"]]}}}, 2, "certificate.proof.verified.limits"),
        ({"certificate.proof": {"verified": {"limits": [{"time": "ttft", "limit": "1s"}]}}}, 2, "stated as limits"),
    ],
)
def test_a_plan_whose_free_parts_are_no_records_is_shown_or_refused(
    run: "Run", edited_plan: Callable[..., dict[str, Any]], changes: dict[str, Any], code: int, said: str
) -> None:
    Path("plan.json").write_text(json.dumps(edited_plan("serve", changes)))
    shown = run("show", "plan.json")
    assert shown.code == code
    assert said in shown.err


SOLVABLE = [kind for kind in kind_names() if find_kind(kind).solvable]


def test_there_is_something_to_start_from_for_every_kind_that_is_solved_and_no_other(run: "Run") -> None:
    assert set(starter_names()) == {*SOLVABLE, "sweep"}
    refused = run("init", "cluster")
    assert (refused.code, refused.out) == (2, "")


@pytest.mark.parametrize("kind", SOLVABLE)
def test_a_starting_problem_loads_and_is_commented(run: "Run", tmp_path: Path, kind: str) -> None:
    assert run("init", kind, "-o", "problem.yaml").code == 0
    assert (tmp_path / "problem.yaml").read_text() == run("init", kind).out == starter(kind)
    assert load_problem(tmp_path / "problem.yaml").problem.kind == kind
    assert starter(kind).count("#") >= 5


def test_the_starting_problem_of_serve_is_solved(run: "Run") -> None:
    run("init", "serve", "-o", "problem.yaml")
    done = run("solve", "problem.yaml", "-o", "plan.json")
    assert done.code == 0, done.err
    assert run("check", "plan.json").code == 0


def test_every_comment_of_the_starting_problem_of_serve_can_be_uncommented(run: "Run", tmp_path: Path) -> None:
    text = starter("serve")
    for line in text.splitlines():
        bare = line.lstrip()
        if bare.startswith("# ") and ":" in bare and not line.startswith(("# Which", "# Solve")):
            text = text.replace(line, line.replace("# ", "", 1))
    text = text.replace("profiles: [profiles/h200]", "profiles: []")
    (tmp_path / "problem.yaml").write_text(text)
    assert load_problem(tmp_path / "problem.yaml").problem.limits.gpus == 16


def test_init_keeps_a_file_that_is_there_unless_forced(run: "Run", tmp_path: Path) -> None:
    (tmp_path / "problem.yaml").write_text("mine\n")
    kept = run("init", "serve", "-o", "problem.yaml")
    assert kept.code == 2
    assert "is there already" in kept.err
    assert (tmp_path / "problem.yaml").read_text() == "mine\n"
    assert run("init", "serve", "-o", "problem.yaml", "--force").code == 0
    assert (tmp_path / "problem.yaml").read_text() == starter("serve")


def test_init_names_the_kinds_near_an_unknown_one(run: "Run") -> None:
    done = run("init", "serv")
    assert (done.code, "did you mean `serve`?" in done.err) == (2, True)


def test_a_healthy_installation_is_said_to_be(run: "Run", monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PLANNER_CACHE_DIR", str(tmp_path / "cache"))
    done = run("doctor", "--json")
    facts = {(fact["part"], fact["name"]): fact for fact in json.loads(done.out)["facts"]}
    assert done.code == 0, done.out
    for backend in ("mathopt-highs", "mathopt-gscip", "cpsat", "pulp-cbc"):
        assert facts["solvers", backend]["ok"]
        assert " ms" in facts["solvers", backend]["what"]
    assert {name for part, name in facts if part == "extras"} == set(EXTRAS)
    assert facts["files", "cache"]["ok"]


def test_doctor_fails_on_a_folder_without_tables_and_says_only_that_when_quiet(run: "Run", tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("doctor", "--profiles", str(tmp_path / "empty"), "--quiet")
    assert done.code == 1
    assert [line.split()[:2] for line in done.out.splitlines() if "FAIL" in line] == [["FAIL", "profiles"]]
    assert done.out.endswith("not healthy\n")


def test_doctor_fails_when_a_solver_is_wrong(run: "Run", monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **named: object) -> None:
        raise ImportError("libortools.so.9: cannot open shared object file")

    monkeypatch.setattr("planner.solvers.backends.mathopt.run", broken)
    done = run("doctor", "-q")
    assert done.code == 1
    assert "libortools.so.9" in done.out


def test_doctor_notes_a_second_highs(run: "Run", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.doctor._version", lambda name: "1.0")
    assert "highspy" in run("doctor").out


def test_doctor_names_another_distribution_that_installs_planner(
    run: "Run", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "llm_d_planner-9.9.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-d-planner\nVersion: 9.9\n")
    (other / "RECORD").write_text("planner/__init__.py,,\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delattr("planner.__version__")  # as where it was installed over this one
    done = run("doctor", "--json")
    facts = {fact["name"]: fact for fact in json.loads(done.out)["facts"]}
    assert done.code == 1
    assert facts["llm-d-planner"]["what"].startswith("9.9 installs a package or a command `planner`")
    assert "environment of its own" in facts["llm-d-planner"]["hint"]
    assert facts["planner"]["what"] == "overwritten by another package"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(run: "Run", shell: str) -> None:
    done = run("completion", shell)
    assert done.code == 0
    assert f"complete_{shell}" in done.out
    assert json.loads(run("completion", shell, "--json").out)["script"] == done.out.rstrip("\n")


def test_the_completion_script_gets_the_verbs(tmp_path: Path) -> None:
    asked = {"_PLANNER_COMPLETE": "complete_bash", "COMP_WORDS": "planner d", "COMP_CWORD": "1"}
    command = [sys.executable, "-m", "planner"]
    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert {"diff", "doctor"} <= set(done.stdout.split())
    assert "solve" not in done.stdout.split()


def test_diff_exits_0_for_equal_plans_and_1_for_others(run: "Run", plan: Path) -> None:
    same = run("diff", str(plan), str(plan))
    assert (same.code, same.out) == (0, "no differences\n")
    edited = json.loads(plan.read_text())
    edited["decision"]["roles"][1]["limits"]["max_batch"] = 64
    Path("other.json").write_text(json.dumps(edited))
    differ = run("diff", str(plan), "other.json")
    assert differ.code == 1
    assert "  ~ decode.max_batch  128 -> 64\n" in differ.out
    assert "Plan: 0 to add, 1 to change, 0 to remove; 12 of 12 GPUs keep their weights." in differ.out
    document = json.loads(run("diff", str(plan), "other.json", "--json").out)
    assert document["schema"] == "planner.diff/1"
    assert document["summary"] == {"add": 0, "change": 1, "remove": 0}


def test_diff_shows_relative_changes_and_says_when_kinds_differ(run: "Run", plan: Path) -> None:
    edited = json.loads(plan.read_text())
    edited["predictions"][0]["value"] *= 1.5
    Path("other.json").write_text(json.dumps(edited))
    assert "(+50.0 %)" in run("diff", str(plan), "other.json").out
    assert run("diff", str(plan), str(PLANS / "rl.json")).out.startswith("kinds differ: serve -> rl;")


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": "planner.plan/9"}', "\x00"])
def test_diff_refuses_what_is_no_plan(run: "Run", plan: Path, text: str) -> None:
    Path("bad.json").write_text(text)
    done = run("diff", str(plan), "bad.json")
    assert done.code == 2
    assert done.err.startswith("error: bad.json")


def test_the_starting_sweep_is_a_sweep_of_the_starting_problem(run: "Run", tmp_path: Path) -> None:
    from planner.sweep.schema import load_sweep

    run("init", "serve", "-o", "problem.yaml")
    assert run("init", "sweep", "-o", "sweep.yaml").code == 0
    sweep = load_sweep(str(tmp_path / "sweep.yaml"))
    assert (sweep.folder / sweep.spec.base).exists()
    overrides = [f"{axis.field}={axis.values[0]}" for axis in sweep.spec.axes if axis.values and axis.field]
    assert load_problem(tmp_path / "problem.yaml", overrides=overrides).problem.cluster.pools[0].nodes == 1


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--trace", "requests.csv"), "--trace"),
        (("--tolerance", "5%"), "--tolerance"),
        (("--level", "simulate", "--url", "http://127.0.0.1:1"), "--url"),
        (("--level", "simulate", "--roles", "decode"), "--roles"),
        (("--level", "engine", "--nproc", "2"), "--nproc"),
        (("--level", "engine", "--profiles", "tables"), "--profiles"),
        (("--level", "engine", "--report", "report.json", "--duration", "5s"), "--duration"),
    ],
)
def test_check_refuses_flags_that_its_level_does_not_read(
    run: "Run", plan: Path, arguments: tuple[str, ...], flag: str
) -> None:
    done = run("check", str(plan), *arguments)
    assert done.code == 2
    assert done.err.startswith(f"error: {flag}: ")
    assert "  hint: " in done.err


@pytest.mark.parametrize(
    ("kind", "level", "levels"),
    [
        ("place", "simulate", "`static`, `proof`"),
        ("train", "simulate", "`static`, `proof`, `execute`"),
        ("experts", "engine", "`static`, `proof`, `execute`"),
        ("fleet", "engine", "`static`, `proof`, `simulate`"),
    ],
)
def test_a_level_that_a_kind_does_not_have_is_refused_with_those_that_it_has(
    run: "Run", kind: str, level: str, levels: str
) -> None:
    outcome = run("check", str(PLANS / f"{kind}.json"), "--level", level)
    assert outcome.code == 2
    assert (
        outcome.err == f"error: --level: plans of kind `{kind}` have no level `{level}`\n  hint: they have {levels}\n"
    )


def test_every_flag_of_check_is_read_at_some_level() -> None:
    from planner.cli.main import built_command
    from planner.cli.plans.check_levels import READ_AT

    of_all = {"plan", "level", "as_json", "output"}
    assert {parameter.name for parameter in built_command().commands["check"].params} - of_all == set(READ_AT)


def test_a_misspelt_variable_is_refused_with_the_one_that_was_meant(
    run: "Run", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_THRAEDS", "2")
    outcome = run("models", "list")
    assert outcome.code == 2
    assert "PLANNER_THRAEDS" in outcome.err
    assert "did you mean `PLANNER_THREADS`" in outcome.err


def test_every_variable_of_a_flag_is_known() -> None:
    def variables(command: Any) -> set[str]:  # noqa: ANN401 - parser types differ between versions of typer
        own = {param.envvar for param in command.params if isinstance(param.envvar, str)}
        return own.union(*(variables(below) for below in getattr(command, "commands", {}).values()))

    assert variables(built_command()) <= VARIABLES
    assert {"PLANNER_SEED", "PLANNER_TIME_LIMIT", "PLANNER_WORKERS"} <= variables(built_command())


def test_the_shapes_are_listed_with_their_sources(run: "Run") -> None:
    shown = run("trace", "shapes")
    assert shown.code == 0
    listed = json.loads(run("trace", "shapes", "--json").out)["shapes"]
    assert [shape["name"] for shape in listed] == sorted(known_shapes())
    assert all(shape["source"] in shown.out for shape in listed)
