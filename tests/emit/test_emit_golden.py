"""Every emitted file, byte for byte as the engines' own parsers accepted it."""

from collections.abc import Callable

from planner.emit.registry import emit
from planner.plan.schema import Decision, Envelope


def test_emitted_files_are_those_that_the_engines_accepted(
    plan: tuple[Envelope, Decision], target: str, case_name: str, golden: Callable[[str, str], None]
) -> None:
    for name, text in emit(*plan, target).items():
        golden(f"emit/{target}/{case_name}/{name}", text)
