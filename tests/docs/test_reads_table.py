"""The page on problems says which kind of plan reads what, as the kinds declare it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from schema_leaves import FIELDS

from planner.kinds.registry import find_kind, kind_names
from planner.problem.reads import FLAGS

PAGE = Path(__file__).parent.parent.parent / "docs" / "problem-and-plan.md"
START, END = "<!-- what each kind reads -->\n", "<!-- until here -->\n"
KINDS = tuple(name for name in kind_names() if find_kind(name).solvable)


def _readers(name: str) -> tuple[bool, ...]:
    return tuple(find_kind(kind).reads.reads(name) for kind in KINDS)


def _rows(names: tuple[str, ...], above: str = "") -> Iterator[tuple[str, tuple[bool, ...]]]:
    """The fields below a path, one row where all of them have the same readers."""
    for key in dict.fromkeys(name.removeprefix(above).partition(".")[0] for name in names):
        path = above + key
        inside = tuple(name for name in names if name == path or name.startswith(path + "."))
        if len({_readers(name) for name in inside}) == 1:
            yield path, _readers(inside[0])
        else:
            yield from _rows(tuple(name for name in inside if name != path), path + ".")


def _table() -> str:
    rows = [
        (f"`{path.replace('.*', '[]').replace('models[]', 'models.<name>')}`", told) for path, told in _rows(FIELDS)
    ]
    rows += [(f"`{flag}`", _readers(name)) for name, flag in FLAGS.items() if name != "seed"]
    lines = [f"| field or flag | {' | '.join(f'`{kind}`' for kind in KINDS)} |", f"|---|{'---|' * len(KINDS)}"]
    lines += [f"| {name} | {' | '.join('x' if reads else '' for reads in told)} |" for name, told in rows]
    return "\n".join(lines).replace("|  |", "| |").replace("|  |", "| |") + "\n"


def test_the_page_has_the_table_of_what_each_kind_reads(request: pytest.FixtureRequest) -> None:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    written, _, after = rest.partition(END)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(f"{before}{START}{_table()}{END}{after}", encoding="utf-8")
        return
    assert written == _table(), "rewrite it with `pytest --update-golden tests/docs/test_reads_table.py`"
