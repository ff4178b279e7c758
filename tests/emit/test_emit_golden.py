"""Every emitted file, byte for byte as the engines' own parsers accepted it."""

from collections.abc import Callable
from pathlib import Path

import pytest
from emit_plans import ALL, BY_TARGET

from planner.emit.registry import emit
from planner.plan.store import plan_digest, plan_json

GOLDEN = Path(__file__).parents[1] / "golden" / "emit"


@pytest.mark.parametrize(("target", "case_name"), ALL)
def test_emitted_files_are_those_that_the_engines_accepted(
    target: str, case_name: str, golden: Callable[[str, str], None]
) -> None:
    envelope, decision = BY_TARGET[target][case_name].build()
    digest = plan_digest(plan_json(envelope))
    files = emit(envelope, decision, target)
    for name, text in files.items():
        assert digest in text
        golden(f"emit/{target}/{case_name}/{name}", text.replace(digest, "sha256:PLAN"))
    assert sorted(path.name for path in (GOLDEN / target / case_name).iterdir()) == sorted(files)
