"""The page on expert layouts prints what it says, and names what is there."""

import contextlib
import io
import re
from pathlib import Path

from planner.cli.experts.experts import COMMANDS
from planner.emit.registry import targets

PAGE = Path(__file__).parent.parent.parent / "docs" / "experts.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_the_block_of_python_prints_what_stands_below_it() -> None:
    ((code, printed),) = re.findall(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, str(PAGE), "exec"), {})
    assert out.getvalue() == printed


def test_every_verb_and_every_target_for_layouts_is_named() -> None:
    assert all(f"planner experts {verb}" in TEXT for verb in COMMANDS)
    assert all(f"`{name}`" in TEXT for name, target in targets().items() if "experts" in target.kinds)
