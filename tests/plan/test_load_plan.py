"""Plans loaded through the schema of their kind: places in errors, and no mutation that crashes loading or checking."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.check import check_plan
from planner.errors import PlannerError
from planner.kinds.registry import kind_names
from planner.load.problems import load_plan
from planner.plan.reader import read_plan

Edited = Callable[..., dict[str, Any]]
PLANS = Path(__file__).parent.parent / "plans"
TEXTS = {kind: (PLANS / f"{kind}.json").read_text() for kind in kind_names()}


def refused(tmp_path: Path, plan: dict[str, Any]) -> PlannerError:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(plan, indent=1))
    with pytest.raises(PlannerError) as caught:
        load_plan(path)
    assert caught.value.where.startswith(f"{path}:")
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize(
    ("kind", "edits", "what", "place"),
    [
        ("serve", {"sed": 1}, "unknown key `sed`", "sed"),
        ("serve", {"decision.mod": "x"}, "unknown key `mod`", "decision.mod"),
        ("serve", {"kind": "sevre"}, "unknown kind `sevre`", "kind"),
        ("train", {"decision.stage_runs.0.stages": 0}, "must be at least 1", "decision.stage_runs.0.stages"),
        ("experts", {"decision.layouts.1.quota.0": ...}, "287 quotas for 288 slots", "decision.layouts.1.quota"),
        ("rl", {"decision.phases.0.roles": ["writer"]}, "no role is called `writer`", "decision"),
        ("place", {"decision.hosts": []}, "at least 1", "decision.hosts"),
        ("serve", {"digests.problem": "md5:0"}, "pattern", "digests.problem"),
    ],
)
def test_errors_name_line_and_key(
    kind: str, edits: dict[str, Any], what: str, place: str, edited_plan: Edited, tmp_path: Path
) -> None:
    error = refused(tmp_path, edited_plan(kind, edits))
    assert what in error.what
    assert error.where.endswith(f": {place}")


def paths_of(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:  # noqa: ANN401
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, inner in below for deeper in paths_of(inner, (*path, key)))]


WHOLE = st.sampled_from([0, -1, 1, 2, 7, 8, 64, 10**6, 10**12, 10**400])
REAL = st.sampled_from([0.0, 0.5, -0.5, 1.0, 1e300, 5e-324])
TEXT = st.sampled_from(["", "x", "h200", "prefill", "optimal", "tp", "node-a"])
SCALARS = st.none() | st.booleans() | WHOLE | REAL | TEXT
ANYTHING = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(TEXT, SCALARS, max_size=2)


def alike(value: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401
    """Other values of the type of `value`, so that most mutations reach the rules and not only the schema."""
    if isinstance(value, list):
        return st.sampled_from([[], value[:1], value[::-1], value * 2])
    if isinstance(value, dict):
        return st.sampled_from([{}, *({k: v for k, v in value.items() if k != gone} for gone in value)])
    kinds: dict[type, st.SearchStrategy[Any]] = {bool: st.booleans(), int: WHOLE, float: REAL | WHOLE, str: TEXT}
    return kinds.get(type(value), ANYTHING)


def value_at(kind: str, path: tuple[str | int, ...]) -> Any:  # noqa: ANN401
    value = json.loads(TEXTS[kind])
    for step in path:
        value = value[step]
    return value


PATHS = {kind: [path for path in paths_of(json.loads(text)) if path] for kind, text in TEXTS.items()}


def changes(kind: str) -> st.SearchStrategy[tuple[tuple[str | int, ...], Any]]:
    """A path into the plan of that kind, and what to write there."""
    places = st.sampled_from(PATHS[kind])
    return places.flatmap(lambda path: st.tuples(st.just(path), alike(value_at(kind, path)) | ANYTHING))


MUTATIONS = st.sampled_from(sorted(TEXTS)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(changes(kind), min_size=1, max_size=3))
)


def holds(place: Any, step: str | int) -> bool:  # noqa: ANN401
    """Whether `place` still has that entry, after the mutations before."""
    if isinstance(place, list):
        return isinstance(step, int) and step < len(place)
    return isinstance(place, dict) and step in place


def mutated(kind: str, changes: list[tuple[tuple[str | int, ...], Any]]) -> str:
    plan = json.loads(TEXTS[kind])
    for path, value in changes:
        place: Any = plan
        for step in path[:-1]:
            place = place[step] if holds(place, step) else None
        if holds(place, path[-1]):
            place[path[-1]] = value
    return json.dumps(plan)


def refusal(load: Callable[[], object]) -> PlannerError | None:
    try:
        load()
    except PlannerError as error:
        return error
    return None


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(MUTATIONS)
def test_a_mutated_plan_is_read_and_checked_or_refused(
    tmp_path: Path, mutation: tuple[str, list[tuple[tuple[str | int, ...], Any]]]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(mutated(*mutation))
    for load in (lambda: read_plan(path), lambda: check_plan(*load_plan(path), base=tmp_path)):
        problem = refusal(load)
        assert problem is None or problem.where.startswith(str(path))
