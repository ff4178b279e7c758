"""Bad input ends in one clear error with place and fix, the right exit code, and nothing half-written."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome

    Run = Callable[..., Outcome]

HOSTILE = """it's "$(touch pwned)" `touch pwned`; touch pwned #"""


def assert_refused(done: "Outcome", where: str, what: str, hint: str) -> None:
    """One error on stderr with the place, the mistake and the fix; nothing on stdout; exit code 2."""
    assert done.code == 2, done.err
    assert done.out == ""
    lines = done.err.splitlines()
    assert lines[0].startswith(f"error: {where}: ")
    assert what in lines[0]
    assert [line for line in lines if line.startswith("error: ")] == lines[:1]
    assert lines[-1].startswith("  hint: ")
    assert hint in lines[-1]


EDITS: dict[str, tuple[str, str, int, str, str]] = {
    # name: (text replaced, by what, line of the error, what it says, how to fix it)
    "unknown key": ("objective:", "objectve:", 21, "unknown key `objectve`", "did you mean `objective`?"),
    "unknown key below a list": ("tpot:", "tpott:", 20, "unknown key `tpott`", "did you mean `tpot`?"),
    "a key of a mapping below": ("slo:", "rate: 3/s\n    slo:", 18, "`rate`", "`rate` belongs into `workloads[].load`"),
    "a key of a mapping above": ("slo:", "objective: {}\n    slo:", 18, "`objective`", "belongs at the top"),
    "text for a mapping": ("slo:", "load: 3/s\n    slo:", 18, "a mapping, found", "`concurrency`, `rate`"),
    "unknown statistic": ("ttft: 1s", "ttft: {median: 1s}", 19, "`median` is no statistic", "`p95`"),
    "a percentile beyond all": ("ttft: 1s", "ttft: {p105: 1s}", 19, "lies above 0 and below 100", "`p99.9`"),
    "unknown option": ("objective:", "options: {tq: [1]}\nobjective:", 21, "unknown key `tq`", "`tp`"),
    "unknown form of lengths": (
        "input_tokens: 4000",
        "input_tokens: {low: 1, hihg: 2}",
        16,
        "unknown key `hihg`",
        "did you mean `high`",
    ),
    "time without unit": ("ttft: 1s", "ttft: 200", 19, 'must be a time such as "200ms", found 200', "`200ms`"),
    "another time without unit": ("tpot: 20ms", "tpot: 50", 20, "found 50", "write `50ms`"),
    "seconds without unit": ("ttft: 1s", "ttft: {p95: 0.5}", 19, "found 0.5", "write `p95: 0.5s`"),
    "a seed of many digits": ("kind:", "seed: 1000000000000\nkind:", 3, "must be at most", "2147483647"),
    "time in bytes": ("tpot: 20ms", "tpot: 20GB", 20, "must be a time", "200ms"),
    "price without unit": ("gpus: 32", "gpus: 32\n      price: 3", 14, "must be a price", "`price: 3USD/h`"),
    "rate in seconds": ("slo:", "load: {rate: 3s}\n    slo:", 18, "must be a rate", "12/s"),
    "both names of one quantity": (
        "gpus: 32",
        "gpus: 32\n      price: 3USD/h\n      usd_per_gpu_hour: 3",
        14,
        "`price` and `usd_per_gpu_hour` are both given",
        "keep one",
    ),
    "negative GPUs": ("gpus: 32", "gpus: -3", 13, "must be at least 1, found -3", "at least 1"),
    "half a GPU": ("gpus: 32", "gpus: 3.5", 13, "must be a whole number, found 3.5", "whole number"),
    "GPUs that fill no node": ("gpus: 32", "gpus: 12", 12, "12 GPUs", "`gpus: 8` or `gpus: 16`"),
    "negative time": ("ttft: 1s", "ttft: -1s", 19, "must be above 0", "above 0"),
    "lengths upside down": (
        "input_tokens: 4000",
        "input_tokens: {low: 9, high: 2}",
        16,
        "low 9 is above high 2",
        "swap them",
    ),
    "lengths in words": (
        "input_tokens: 4000",
        "input_tokens: plenty",
        16,
        "must be a whole number or a mapping",
        "whole number or a mapping",
    ),
    "infinite length": ("input_tokens: 4000", "input_tokens: {mean: .inf}", 16, "not a finite number", ""),
    "unknown GPU": ("gpu: h200", "gpu: h9999", 12, "unknown hardware `h9999`", "did you mean `h"),
    "unknown model": ("Qwen/Qwen3-32B", "Qwen/Qwen3-33B", 7, "unknown model `Qwen/Qwen3-33B`", "`Qwen/Qwen3-32B`"),
    "unknown kind": ("kind: serve", "kind: servce", 3, "unknown kind `servce`", "did you mean `serve`?"),
    "unknown engine": ("objective:", "engine: {name: vlm}\nobjective:", 21, "found 'vlm'", "did you mean `vllm`?"),
    "unknown weights": ("weights: fp8", "weights: fp9", 8, "unknown weight format `fp9`", "`fp8`"),
    "unknown model of a workload": (
        "name: chat",
        "name: chat\n    model: llama",
        14,
        "no model is called `llama`",
        "`qwen3`",
    ),
    "another schema": ("planner.problem/1", "planner.problem/9", 2, "planner.problem/9", "planner.problem/1"),
    "an empty cluster": ("    - gpu: h200\n      gpus: 32\n", "", 11, "must be a list", "a list"),
    "no pools": ("pools:\n    - gpu: h200\n      gpus: 32", "pools: []", 11, "needs at least 1 entry", "at least 1"),
    "every node out of service": (
        "gpus: 32",
        "nodes: 1\n      out_of_service: [0]",
        12,
        "no node in service",
        "out_of_service",
    ),
    "an unknown node out of service": (
        "gpus: 32",
        "nodes: 1\n      out_of_service: [7]",
        12,
        "unknown node 7",
        "index from 0 to 0",
    ),
    "no such trace": (
        "input_tokens: 4000",
        "input_tokens: {trace: missing.csv}",
        16,
        "cannot read trace",
        "check the path",
    ),
    "no such config": ("name: Qwen/Qwen3-32B", "config: missing", 7, "", ""),
    "a tab in YAML": ("  pools:", "\tpools:", 11, "not valid YAML", "indentation"),
    "a key given twice": ("gpus: 32", "gpus: 32\n      gpus: 33", 14, "twice", ""),
    "YAML that would run code": (
        "input_tokens: 4000",
        'input_tokens: !!python/object/apply:os.system ["touch pwned"]',
        16,
        "tag `!!python/object/apply:os.system` is not allowed",
        "write text",
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_bad_problem_is_refused_at_its_line(run: "Run", problem: Path, name: str) -> None:
    old, new, line, what, hint = EDITS[name]
    text = problem.read_text()
    assert old in text
    problem.write_text(text.replace(old, new, 1))
    before = set(Path().iterdir())
    done = run("solve", "problem.yaml", "-o", "out.json")
    assert done.code == 2
    where = done.err.partition("error: ")[2].split(": ")[0]
    assert where == f"problem.yaml:{line}"
    assert done.out == ""
    assert what in done.err.splitlines()[0]
    assert done.err.splitlines()[-1].startswith("  hint: ")
    assert hint in done.err.splitlines()[-1]
    assert set(Path().iterdir()) == before


def test_an_error_shows_the_line_with_a_caret_under_the_value(run: "Run", problem: Path) -> None:
    problem.write_text(problem.read_text().replace("ttft: 1s", "ttft: 200"))
    assert run("solve", "problem.yaml").err.splitlines() == [
        'error: problem.yaml:19: workloads.0.slo.ttft: must be a time such as "200ms", found 200',
        "  19 |       ttft: 200",
        "     |             ^^^",
        "  hint: write `200ms`",
    ]


def test_of_an_unknown_key_the_caret_is_under_the_key(run: "Run", problem: Path) -> None:
    problem.write_text(problem.read_text().replace("ttft: 1s", "tttft: 1s"))
    assert run("solve", "problem.yaml").err.splitlines()[1:3] == ["  19 |       tttft: 1s", "     |       ^^^^^"]


@pytest.mark.parametrize(
    ("override", "what", "hint"),
    [
        ("slo.ttft=200", "must be a time", "200ms"),
        ("slo.tttft=200ms", "unknown key `tttft`", "did you mean `ttft`?"),
        ("cluster.pools.1.gpus=8", "`cluster.pools` is a list and has no `1`", "the only index is 0"),
        ("cluster.pools.first.gpus=8", "has no `first`", "the only index is 0"),
        ("seed.deep=1", "", ""),
        ("options.tp=[0]", "must be at least 1, found 0", "at least 1"),
        ("workloads..slo=1", "is no dotted path", "--set slo.ttft=200ms"),
        ("slo.ttft={", "not valid YAML", ""),
        ("kind=!!python/name:os.system", "is not allowed", "write text"),
    ],
)
def test_a_bad_override_is_refused_at_its_flag(run: "Run", problem: Path, override: str, what: str, hint: str) -> None:
    done = run("solve", "problem.yaml", "--set", override)
    assert done.code == 2
    assert done.err.startswith(f"error: --set {override.partition('=')[0]}")
    assert what in done.err
    assert hint in done.err.splitlines()[-1]


def test_an_override_of_a_key_that_is_none_says_its_path_once(run: "Run", problem: Path) -> None:
    done = run("solve", "problem.yaml", "--set", "absent=1")
    assert done.err.startswith("error: --set absent: unknown key `absent`")


def test_an_override_without_a_value_is_refused(run: "Run", problem: Path) -> None:
    assert_refused(run("solve", "problem.yaml", "--set", "slo.ttft"), "--set", "no `path=value`", "slo.ttft=200ms")


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        (b"", "empty.yaml", "is empty"),
        (b"- 1\n- 2\n", "empty.yaml:1", "a problem is a mapping"),
        (b"kind: serve\n", "empty.yaml:1", "is missing"),
        (b"kind: \xff\xfe\n", "empty.yaml:1", "UTF-8"),
        (b"a: &a [*a]\n", "empty.yaml:1", ""),
        (b"kind: serve\x07\n", "empty.yaml:1", "U+0007"),
    ],
)
def test_a_file_that_is_no_problem_is_refused(run: "Run", content: bytes, where: str, what: str) -> None:
    Path("empty.yaml").write_bytes(content)
    assert_refused(run("solve", "empty.yaml"), where, what, "")


def test_a_missing_file_names_the_nearest_one(run: "Run", problem: Path) -> None:
    assert_refused(run("solve", "probelm.yaml"), "probelm.yaml", "file not found", "did you mean `problem.yaml`?")


def test_a_config_without_its_fields_is_refused(run: "Run", problem: Path) -> None:
    Path("config.json").write_text('{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}')
    problem.write_text(problem.read_text().replace("name: Qwen/Qwen3-32B", "config: config.json"))
    assert_refused(run("solve", "problem.yaml"), "problem.yaml:7", "is missing", "")


def test_an_slo_that_no_candidate_can_meet_is_answered_with_the_conflict(run: "Run", problem: Path) -> None:
    done = run("solve", "problem.yaml", "--set", "slo.tpot=1ms", "-o", "out.json")
    assert done.code == 1
    assert done.out.startswith("infeasible: no plan meets all limits (proved)")
    assert "tpot" in done.out
    assert "nearest:" in done.out
    assert not Path("out.json").exists()


@pytest.mark.parametrize("cut", [0.02, 0.3, 0.7, 0.99])
@pytest.mark.parametrize("command", [("check",), ("emit", "--target", "vllm")])
def test_a_truncated_plan_is_refused(run: "Run", plan: Path, cut: float, command: tuple[str, ...]) -> None:
    text = plan.read_text()
    plan.write_text(text[: int(cut * len(text))])
    done = run(command[0], "plan.json", *command[1:])
    assert done.code == 2
    assert done.err.startswith("error: plan.json:")
    assert "cut off" in done.err
    assert [path.name for path in Path().iterdir()] == ["plan.json"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"schema": "other.plan/1"}', "is not a plan"),
        ('{"schema": "planner.plan/9"}', "planner.plan/9"),
        ('{"name": "left-pad", "version": "1.0.0"}', "is not a plan"),
        ("[]", "is not a plan"),
        ("kind: serve\n", "is not a plan"),
    ],
)
def test_a_foreign_file_is_no_plan(run: "Run", text: str, what: str) -> None:
    Path("foreign.json").write_text(text)
    done = run("check", "foreign.json")
    assert done.code == 2
    assert what in done.err
    assert [path.name for path in Path().iterdir()] == ["foreign.json"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda data: data.update(extra=1), "unknown key `extra`"),
        (lambda data: data.update(kind="serv"), "unknown kind `serv`"),
        (lambda data: data["decision"]["roles"][0].update(replicas=0), "must be at least 1"),
        (lambda data: data["decision"].update(roles=[]), "at least 1 entry"),
        (lambda data: data["digests"].update(problem="md5:0"), "sha256"),
        (lambda data: data.pop("certificate"), "`certificate` is missing"),
    ],
    ids=["extra", "kind", "replicas", "roles", "digest", "missing"],
)
def test_a_malformed_plan_is_refused(
    run: "Run", plan: Path, change: Callable[[dict[str, Any]], object], what: str
) -> None:
    data = json.loads(plan.read_text())
    change(data)
    plan.write_text(json.dumps(data, indent=1))
    done = run("check", "plan.json")
    assert done.code == 2
    assert done.err.startswith("error: plan.json:")
    assert what in done.err
    assert [path.name for path in Path().iterdir()] == ["plan.json"]


@pytest.mark.parametrize("output", ["missing/out.json", ".", "problem.yaml/out.json"])
def test_an_output_that_cannot_be_written_is_refused_before_the_search(
    run: "Run", problem: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    def search(problem: object, limits: object = None) -> None:
        raise AssertionError("searched")

    monkeypatch.setattr("planner.api.solve", search)
    done = run("solve", "problem.yaml", "-o", output)
    assert_refused(done, output, "cannot be written", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full on this system")
def test_a_full_disk_is_told_and_leaves_nothing_behind(run: "Run") -> None:
    assert_refused(run("schema", "problem", "-o", "/dev/full"), "/dev/full", "No space left", "")
    command = [sys.executable, "-m", "planner", "schema", "problem"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, check=False, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: <stdout>: cannot be written")
    assert "Traceback" not in done.stderr


def test_an_emission_into_a_file_is_refused(run: "Run", plan: Path) -> None:
    Path("taken").write_text("mine")
    done = run("emit", "plan.json", "--target", "vllm", "-o", "taken")
    assert_refused(done, "taken", "cannot be written", "")
    assert Path("taken").read_text() == "mine"
    assert sorted(path.name for path in Path().iterdir()) == ["plan.json", "taken"]


def test_an_unknown_target_names_the_nearest(run: "Run", plan: Path) -> None:
    assert_refused(run("emit", "plan.json", "--target", "vlm"), "--target", "unknown target `vlm`", "`vllm`")


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_hostile_names_never_break_out_of_a_script(
    run: "Run", plan: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = plan.read_text()
    quoted = json.dumps(HOSTILE, ensure_ascii=False)[1:-1]
    assert "Qwen/Qwen3-32B" in text
    assert "node-a" in text
    plan.write_text(text.replace("Qwen/Qwen3-32B", quoted).replace("node-a", quoted + "-a"))
    done = run("emit", "plan.json", "--target", target, "-o", "launch")
    if done.code == 2:  # refusing such a name is as safe as quoting it
        assert not Path("launch").exists()
        return
    tools = Path("tools")
    tools.mkdir()
    for name in ("vllm", "sglang", "python3", "python", "curl", "vllm-router", "getent", "sleep"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    path = f"{tools.resolve()}{os.pathsep}/usr/bin{os.pathsep}/bin"
    for script in Path("launch").glob("*.sh"):
        subprocess.run(["bash", "-n", str(script)], check=True)
        subprocess.run(["bash", str(script)], check=False, env={"PATH": path}, timeout=30, capture_output=True)
    assert not Path("pwned").exists()


def test_hostile_names_reach_the_terminal_escaped(run: "Run") -> None:
    Path("colour.json").write_text('{"kind": "serve", "\\u001b[31mred": 1}')
    done = run("solve", "colour.json")
    assert done.code == 2
    assert "\x1b" not in done.err
    assert "\\x1b[31mred" in done.err


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("estimate", "missing.jsonl"), "missing.jsonl"),
        (("estimate", "--measured", "missing.csv"), "missing.csv"),
        (("profiles", "list", "--profiles", "missing"), "missing"),
        (("profiles", "import", "missing", "-o", "store"), "missing"),
        (("simulate", "plan.json", "--routing", "freenes"), "--routing: unknown policy `freenes`"),
        (("simulate", "plan.json", "--preemption", "never"), "--preemption: unknown policy `never`"),
        (("profile", "--models", "Qwen/Qwen9", "-o", "mine"), "--models: unknown model `Qwen/Qwen9`"),
        (("models", "show", "Qwen/Qwen9"), "unknown model `Qwen/Qwen9`"),
        (("hardware", "show", "h9999"), "unknown hardware `h9999`"),
    ],
)
def test_a_missing_name_or_file_of_any_verb_exits_2(run: "Run", arguments: tuple[str, ...], where: str) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert done.err.startswith(f"error: {where}")
    assert "  hint: " in done.err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "where", "hint"),
    [
        (("check", "--calibration", "own.yaml"), "--calibration own.yaml", "leave it out"),
        (("check", "--refresh", "--calibration", "own.yaml"), "--calibration own.yaml", "leave it out"),
        (("check", "--inputs", "nowhere"), "--inputs nowhere", "name the folder"),
        (("explain", "--why-not", "tp=x"), "--why-not tp=x", "whole number"),
        (("explain", "objective", "--fields"), "--fields", "alone"),
        (("simulate", "--rate-scale", "2"), "--rate-scale", "--trace FILE"),
        (("simulate", "--drop-empty"), "--drop-empty", "--trace FILE"),
    ],
)
def test_what_a_verb_would_not_use_is_refused(
    run: "Run", plan: Path, arguments: tuple[str, ...], where: str, hint: str
) -> None:
    stated = plan.read_bytes()
    assert_refused(run(arguments[0], str(plan), *arguments[1:]), where, "", hint)
    assert plan.read_bytes() == stated


def test_a_calibration_of_a_plan_without_a_problem_is_refused(run: "Run", plan: Path) -> None:
    document = json.loads(plan.read_text())
    document["inputs"] = {}
    plan.write_text(json.dumps(document))
    done = run("check", str(plan), "--calibration", "own.yaml")
    assert_refused(done, "--calibration own.yaml", "no problem to price again", "leave it out")


def test_an_estimate_without_any_prediction_is_no(run: "Run") -> None:
    Path("requests.jsonl").write_text('{"id": "a"}\n[]\n')
    done = run("estimate", "requests.jsonl")
    assert (done.code, done.err) == (1, "note: 2 of 2 have no prediction; their `error` says why\n")
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == ["a", "line 2"]
