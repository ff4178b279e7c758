"""Options of the whole test suite."""

import gc
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

PLANS = Path(__file__).parent / "plans"
GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden with what the code gives now")


# The same examples in every run, however loaded the machine is; `--hypothesis-profile=default` looks for new ones.
settings.register_profile(
    "planner", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("planner")


def pytest_configure() -> None:
    """No test reads the catalog or the kernel tables of who runs it; plans are verified where a test asks for it.

    The many interpreters that tests start compile the sources once and not each for itself.
    """
    os.environ.pop("PLANNER_CATALOG", None)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["PLANNER_PROFILES"] = "none"
    os.environ["PLANNER_LEVEL"] = "static"
    os.environ["XDG_CONFIG_HOME"] = str(PLANS / "no-config")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: garbage is looked for among what comes after alone, and seldom.

    Compilations and plans make millions of objects that are no cycles: at Python's own threshold the search for cycles
    takes 4 % of the suite.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(100_000, 20, 20)
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Every other worker collects folders from their ends.

    What pytest and hypothesis keep of each file (asserts rewritten, constants) each of two workers then makes for half
    of the files, and reads what the other has made: from a clean checkout that is more than half of the collection.
    """
    report = yield
    if isinstance(collector, pytest.Directory) and _from_the_end():
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All workers have the tests in one order, that of their files."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: item.path.parts)


def _from_the_end() -> bool:
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 2 == 1


def pytest_unconfigure() -> None:
    """Garbage of the run is looked for once at its end: pytest looks five times, 3 s each, among all that is left."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares text with a file below tests/golden byte for byte, or rewrites the file under --update-golden."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        assert path.is_file(), f"{name} is missing; write it with `pytest --update-golden`"
        assert path.read_bytes().decode() == text

    return compare


@pytest.fixture(scope="module")
def each_mix_once() -> Iterator[None]:
    """Explanations within a file ask the solver once for the best of each mix, and wait for it for an hour."""
    from planner.explain import mix

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mix, "TIME_LIMIT_S", 3600.0)
        patch.setattr(mix, "_solve", cache(mix._solve))
        yield


@pytest.fixture
def edited_plan() -> Callable[..., dict[str, Any]]:
    """A hand-written plan by kind, with values set (or, given `...`, removed) at dotted paths and its digest redone."""
    from planner.documents.files import digest

    def edit(kind: str, edits: dict[str, Any] | None = None) -> dict[str, Any]:
        plan: dict[str, Any] = json.loads((PLANS / f"{kind}.json").read_text())
        for dotted, value in (edits or {}).items():
            *above, last = (int(step) if step.isdigit() else step for step in dotted.split("."))
            place: Any = plan
            for step in above:
                place = place[step]
            if value is ...:
                del place[last]
            elif isinstance(place, list) and last == len(place):
                place.append(value)
            else:
                place[last] = value
        if edits and any(dotted.startswith("inputs.") for dotted in edits):
            plan["digests"]["problem"] = digest(plan["inputs"])
        return plan

    return edit


@pytest.fixture
def failing_rules(edited_plan: Callable[..., dict[str, Any]]) -> Callable[..., set[str]]:
    """The rules that a hand-written plan fails after edits."""
    from planner.check import check_plan
    from planner.kinds.registry import find_kind
    from planner.plan.schema import Envelope

    def failing(kind: str, edits: dict[str, Any]) -> set[str]:
        envelope = Envelope.model_validate(edited_plan(kind, edits))
        decision = find_kind(kind).decision.model_validate(envelope.decision)
        return {finding.rule for finding in check_plan(envelope, decision) if finding.verdict == "failed"}

    return failing
