"""The execution part of `make gpu` with an executor that only waits: cheapest first, a limit each, nothing hidden."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import run as gpu_run
from execute_examples import Examples, Executed, execute_examples, executed_all, summary

from planner.errors import PlannerError
from planner.execute.execution import ExecutionOptions
from planner.execute.shards.cases import Cut
from planner.hardware.profiling.writer import CARD

GPU = Path(__file__).parent.parent.parent / "benchmarks" / "gpu"
STEP = {"step": "decode", "error": 0.01, "memory_error": None, "predicted_s": 1.0, "measured_s": 1.0}
ROLES = {
    "deepseek-v3-ep32": ["chat"],
    "llama-3.1-8b-train": ["job"],
    "qwen3-30b-a3b-ep8": ["chat"],
    "llama-3.1-8b-tp1": ["chat"],
}


@dataclass(frozen=True)
class Result:
    data: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        return self.data


@dataclass
class Machine:
    """A clock, and how long each plan takes on it; a plan that takes longer than its limit is cut there."""

    takes_s: dict[str, float]
    now_s: float = 0.0
    started: list[str] = field(default_factory=list)

    def execute(self, path: Path, options: ExecutionOptions) -> Executed:
        name = path.stem
        self.started.append(name)
        if name not in self.takes_s:
            raise PlannerError("there is too little memory")
        late = self.takes_s[name] > options.limits.total_s
        self.now_s += min(self.takes_s[name], options.limits.total_s)
        faults = [{"kind": "time_limit", "what": "the job ran out of time", "hint": ""}] if late else []
        result = {"pricer": "", "device": {}, "cut": {}, "steps": [] if late else [STEP], "faults": faults}
        return Result(result)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    def execute(machine: Machine, total_s: float = 240.0, each_s: float = 60.0) -> dict[str, Any]:
        monkeypatch.setattr("time.monotonic", lambda: machine.now_s)
        return execute_examples(
            Examples(GPU / "plans", ROLES), tmp_path, tmp_path / "executed.json", device="cpu", accelerator="h200_sxm",
            budget_s=total_s, each_s=each_s, cut=Cut(), tell=lambda line: None, execute=machine.execute,
        )  # fmt: skip

    return execute


def test_the_smallest_shards_run_first_and_each_within_its_limit(run: Callable[..., dict[str, Any]]) -> None:
    machine = Machine(
        {"llama-3.1-8b-tp1": 10, "qwen3-30b-a3b-ep8": 10, "deepseek-v3-ep32": 900, "llama-3.1-8b-train": 10}
    )
    outcome = run(machine)
    assert machine.started == ["qwen3-30b-a3b-ep8", "llama-3.1-8b-tp1", "deepseek-v3-ep32", "llama-3.1-8b-train"]
    assert machine.now_s == 90
    assert outcome["unexecuted"] == {"deepseek-v3-ep32.chat": "ran past its limit of 60 s, with 0 steps done"}
    assert (outcome["summary"]["roles"], outcome["summary"]["steps"]) == (4, 3)
    assert not executed_all(outcome)


def test_what_is_left_for_want_of_time_runs_when_the_same_command_runs_again(
    run: Callable[..., dict[str, Any]],
) -> None:
    machine = Machine(dict.fromkeys(ROLES, 50.0))
    outcome = run(machine, total_s=110.0)
    assert set(outcome["unexecuted"].values()) == {"the time for executing was spent"}
    assert outcome["unfinished"] == list(outcome["unexecuted"]) == ["deepseek-v3-ep32.chat", "llama-3.1-8b-train.job"]
    again = run(machine, total_s=110.0)
    assert executed_all(again)
    assert (again["unexecuted"], again["summary"]["steps"], len(machine.started)) == ({}, 4, 4)


def test_a_run_that_executed_nothing_is_not_finished_and_says_why(run: Callable[..., dict[str, Any]]) -> None:
    outcome = run(Machine({}))
    assert set(outcome["unexecuted"].values()) == {"there is too little memory"}
    assert (outcome["unfinished"], executed_all(outcome)) == ([], False)
    partly = run(Machine({"llama-3.1-8b-tp1": 10}))
    assert len(partly["unexecuted"]) == 3
    assert executed_all(partly)


def test_the_command_exits_1_and_keeps_its_place_until_all_is_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left, step = ["a.chat"], {"steps": [STEP], "faults": []}
    outcomes: list[dict[str, Any]] = [
        {"summary": {"roles": 2, **summary([])}, "unexecuted": {"a.chat": "too late"}, "unfinished": left},
        {"summary": {"roles": 2, **summary([step])}, "unexecuted": {}, "unfinished": []},
    ]
    told: list[dict[str, Any]] = []

    def profiled(request: object, shapes: object, name: str, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / gpu_run.VERIFIED).write_text('{"kinds": {}}')
        (folder / CARD).write_text('{"points": 1, "families": 1, "left_out": [], "took_s": 1}')

    def packed(folder: Path, out: Path, *, facts: dict[str, Any]) -> None:
        told.append(facts)

    monkeypatch.setattr(gpu_run, "open_device", lambda name: None)
    monkeypatch.setattr(gpu_run, "describe", lambda device: Named())
    monkeypatch.setattr(gpu_run, "_profile", profiled)
    monkeypatch.setattr(gpu_run, "_execute", lambda *given: outcomes.pop(0))
    monkeypatch.setattr(gpu_run, "pack", packed)
    command = ["--out", str(tmp_path), "--accelerator", "h200_sxm", "--device", "cpu"]
    assert gpu_run.main(command) == 1
    assert "not a.chat: too late" in capsys.readouterr().out
    assert (tmp_path / gpu_run.UNFINISHED).is_dir()
    assert gpu_run.main(command) == 0
    assert not (tmp_path / gpu_run.UNFINISHED).exists()
    assert [row["finished"] for row in told] == [False, True]
    assert told[0]["unexecuted"] == {"a.chat": "too late"}


@dataclass(frozen=True)
class Named:
    name: str = "cpu"


def test_the_prepared_plans_are_all_read_for_their_order() -> None:
    asked = json.loads((GPU / "shapes.json").read_text())["executed"]
    order = Examples(GPU / "plans", asked).cheapest_first()
    assert len(order) == sum(map(len, asked.values()))
    assert order[0][0] == "qwen3-30b-a3b-ep8"
    assert order[-1] == ("llama-3.1-8b-train", "job")
