"""Which plans `make gpu` executes when it is started again, runs out of time, or meets one that cannot run."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import execute_examples as subject
import pytest
from execute_examples import Examples, execute_examples, summary

from planner.errors import PlannerError
from planner.execute.shards.cases import Cut


def step(error: float | None, memory_error: float | None = None) -> dict[str, Any]:
    return {"step": "decode", "error": error, "memory_error": memory_error, "measured_s": 1.0, "predicted_s": 1.0}


@pytest.fixture
def examples(tmp_path: Path) -> Examples:
    folder = tmp_path / "plans"
    folder.mkdir()
    plan = {"inputs": {"cluster": {"pools": [{"gpu": "h200_sxm"}]}, "models": {"m": {"name": "x"}}}}
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(json.dumps(plan))
    return Examples(folder, {"one": ("chat",), "two": ("chat", "decode")})


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, str]]:
    """Plan, role and hardware of every role that is executed; role `decode` cannot be."""
    executed: list[tuple[str, str, str]] = []

    def execute(plan: Path, options: Any) -> SimpleNamespace:  # noqa: ANN401 - options of the executor
        (role,) = options.roles
        gpu = json.loads(plan.read_text())["inputs"]["cluster"]["pools"][0]["gpu"]
        executed.append((plan.stem, role, gpu))
        if role == "decode":
            raise PlannerError("it has no executor")
        result = {"pricer": "tables", "device": {}, "cut": {}, "steps": [step(0.1, -0.02)], "faults": []}
        return SimpleNamespace(as_json=lambda: result)

    monkeypatch.setattr(subject, "execute_plan", execute)
    return executed


def run(examples: Examples, tmp_path: Path, budget_s: float = 100.0) -> dict[str, Any]:
    return execute_examples(
        examples, tmp_path, tmp_path / "done.json", device="cpu", accelerator="a100_sxm", budget_s=budget_s,
        cut=Cut(), tell=lambda _: None,
    )  # fmt: skip


def test_every_role_runs_on_the_hardware_at_hand_and_one_that_cannot_is_named(
    examples: Examples, started: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    document = run(examples, tmp_path)
    assert started == [("one", "chat", "a100_sxm"), ("two", "chat", "a100_sxm"), ("two", "decode", "a100_sxm")]
    assert document["unexecuted"] == {"two.decode": "it has no executor"}
    assert document["summary"]["claimed"] == 2
    assert document["summary"]["worst_memory_error"] == 0.02


def test_a_run_that_goes_on_executes_only_what_is_missing(
    examples: Examples, started: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    run(Examples(examples.folder, {"one": ("chat",)}), tmp_path)
    started.clear()
    document = run(examples, tmp_path)
    assert ("one", "chat", "a100_sxm") not in started
    assert [(row["plan"], row["role"]) for row in document["runs"]] == [("one", "chat"), ("two", "chat")]


def test_roles_behind_the_end_of_the_time_are_named(
    examples: Examples, started: list[tuple[str, str, str]], tmp_path: Path
) -> None:
    document = run(examples, tmp_path, budget_s=0.0)
    assert not started
    assert set(document["unexecuted"]) == {"one.chat", "two.chat", "two.decode"}
    assert document["summary"]["median_error"] is None


def test_the_summary_counts_steps_with_a_claim_alone() -> None:
    counts = summary([{"steps": [step(-0.3), step(0.1), step(0.05), step(None)], "faults": [{"what": "gone"}]}])
    assert (counts["steps"], counts["claimed"], counts["faults"]) == (4, 3, 1)
    assert (counts["median_error"], counts["worst_error"]) == (0.1, 0.3)
