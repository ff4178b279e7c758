"""The reader without pydantic: what it takes, what it refuses, and that it says what the schema says."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from planner.errors import PlannerError
from planner.plan import reader, records, schema
from planner.plan.reader import read_plan
from planner.schema.base import Spec

PLANS = Path(__file__).parent.parent / "plans"
Edited = Callable[..., dict[str, Any]]

ALONE = """
import sys
from pathlib import Path
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ImportError(name + " is blocked here")
sys.meta_path.insert(0, Blocked())
"""


def run_without(blocked: set[str], code: str, *arguments: str) -> str:
    """Standard output of `code` in a fresh interpreter that cannot import any of `blocked`."""
    program = ALONE.replace("{blocked}", repr(blocked)) + code
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_plan_is_read_and_placed_without_pydantic_numpy_yaml_or_a_solver() -> None:
    code = """
from planner.plan import placement
from planner.plan.reader import read_plan
for path in sys.argv[1:]:
    plan = read_plan(path)
    print(plan.kind, sum(1 for role in plan.roles for _ in placement.role_devices(plan.placement, role.name)))
"""
    blocked = {"pydantic", "pydantic_core", "numpy", "yaml", "ortools", "pulp", "scipy", "networkx", "pyarrow"}
    out = run_without(blocked, code, *(str(path) for path in sorted(PLANS.glob("*.json"))))
    assert out.split() == [
        "experts",
        "32",
        "fleet",
        "64",
        "place",
        "8",
        "rl",
        "96",
        "serve",
        "12",
        "train",
        "16384",
        "workflow",
        "1",
    ]


@pytest.mark.parametrize(
    ("record", "spec"),
    [
        (records.Parallelism, schema.Parallelism),
        (records.Engine, schema.Engine),
        (records.Memory, schema.Memory),
        (records.Role, schema.Role),
        (records.Axis, schema.Axis),
        (records.Block, schema.Block),
        (records.Route, schema.Route),
        (records.Phase, schema.Phase),
        (records.SideFile, schema.SideFile),
        (records.Prediction, schema.Prediction),
        (records.Digests, schema.Digests),
        (records.Software, schema.Software),
        (records.Decision, schema.Decision),
        (reader._Envelope, schema.Envelope),
    ],
)
def test_the_records_have_the_keys_and_needs_of_the_schema(record: Any, spec: type[Spec]) -> None:  # noqa: ANN401
    needs = {part.name: part.default is MISSING and part.default_factory is MISSING for part in fields(record)}
    wanted = {field.alias or name: field.is_required() for name, field in spec.model_fields.items()}
    assert needs == wanted


def refused(tmp_path: Path, content: str | dict[str, Any], name: str = "plan.json") -> PlannerError:
    path = tmp_path / name
    path.write_text(content if isinstance(content, str) else json.dumps(content, indent=1))
    with pytest.raises(PlannerError) as caught:
        read_plan(path)
    assert caught.value.where.startswith(str(path))
    assert caught.value.hint
    return caught.value


def test_a_plan_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    text = (PLANS / "serve.json").read_text()
    for length in range(0, len(text.rstrip()), 97):
        refused(tmp_path, text[:length])
    assert "cut off" in refused(tmp_path, text[: len(text) // 2]).hint


@pytest.mark.parametrize("content", ["[]", "{}", "null", '"plan"', "hello", "\x00\x01", '{"schema": null}'])
def test_what_is_no_plan_is_refused(tmp_path: Path, content: str) -> None:
    refused(tmp_path, content)


def test_a_problem_is_not_taken_for_a_plan(tmp_path: Path) -> None:
    error = refused(tmp_path, {"schema": "planner.problem/1", "kind": "serve"})
    assert "planner.problem/1" in error.what


def test_a_plan_of_a_later_schema_is_named_as_such(edited_plan: Edited, tmp_path: Path) -> None:
    error = refused(tmp_path, edited_plan("serve", {"schema": "planner.plan/2"}))
    assert "`planner.plan/2`" in error.what
    assert "`planner.plan/1`" in error.what
    assert error.where.endswith(":2")


@pytest.mark.parametrize(
    ("edits", "what", "place"),
    [
        ({"decision.roles.0.replicas": "two"}, "must be a whole number, found 'two'", "decision.roles.0.replicas"),
        ({"decision.roles.0.replicas": True}, "must be a whole number, found True", "decision.roles.0.replicas"),
        ({"decision.roles.0.replicas": 0}, "must be at least 1, found 0", "decision.roles.0.replicas"),
        (
            {"decision.roles.0.memory.capacity_bytes": 0.0},
            "must be at least 1, found 0.0",
            "decision.roles.0.memory.capacity_bytes",
        ),
        ({"decision.roles.0.pool": ...}, "`pool` is missing", "decision.roles.0"),
        ({"decision.roles.0.engin": {}}, "unknown key `engin`", "decision.roles.0.engin"),
        ({"decision.roles": {}}, "must be a list, found a mapping", "decision.roles"),
        ({"decision.roles": []}, "a plan needs at least one role", "decision.roles"),
        ({"decision.roles.1.name": "prefill"}, "two roles have the same name", "decision.roles"),
        ({"decision.placement.0.role": "encode"}, "no role is called `encode`", "decision.placement.0.role"),
        (
            {"decision.placement.0.first_device": -1},
            "must be at least 0, found -1",
            "decision.placement.0.first_device",
        ),
        ({"predictions.0.interval": [1.0]}, "must have 2 entries, found 1", "predictions.0.interval"),
        ({"digests": []}, "must be a mapping, found a list", "digests"),
        ({"seed": 1.5}, "must be a whole number, found 1.5", "seed"),
        ({"extra": 1}, "unknown key `extra`", "extra"),
        ({"certificate": ...}, "`certificate` is missing", ""),
    ],
)
def test_malformed_plans_are_refused_with_line_and_key(
    edits: dict[str, Any], what: str, place: str, edited_plan: Edited, tmp_path: Path
) -> None:
    error = refused(tmp_path, edited_plan("serve", edits))
    assert error.what == what
    assert error.where.endswith(place)
    assert error.where.removeprefix(str(tmp_path / "plan.json")).split(":")[1].isdigit()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlannerError, match="file not found"):
        read_plan(tmp_path / "plan.json")


def test_a_role_is_found_by_name() -> None:
    plan = read_plan(PLANS / "serve.json")
    assert plan.role("decode").parallelism.devices == 4
    with pytest.raises(PlannerError, match="did you mean `decode`"):
        plan.role("decoder")
