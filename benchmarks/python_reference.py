"""The page of the Python API, from signatures and docstrings.

python benchmarks/python_reference.py            writes docs/python-reference.md
python benchmarks/python_reference.py --check    writes nothing; exits 1 where the page says something else
"""

import ast
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from written_pages import write_or_check

import planner
from planner.audit.records import Answer, Audit
from planner.calibrate.refitted import Calibrated
from planner.library import verbs
from planner.library.predictions import Predictions
from planner.library.sweeps import Sweep
from planner.simulate.plans.simulation import PlanSimulation

PAGE = Path(__file__).parent.parent / "docs" / "python-reference.md"
WIDTH = 100  # of a signature in one line
INTRODUCTION = """\
# Python reference

Every public name of `planner`, from its signature and docstring (`python benchmarks/python_reference.py` writes this
page). Examples that run stand in [from Python](python-api.md).

`audit`, `calibrate`, `estimate`, `simulate` and `sweep` are packages too, which can be called: `planner.sweep(...)` is
typed as the function below. What stands behind `*` is given by name.
"""
VERBS = ("solve", "estimate", "simulate", "sweep", "calibrate", "audit")
READERS = ("load_plan", "load_problem")
EXPERTS = ("make_ranks", "plan_layout", "plan_ahead", "plan_batch", "plan_tokens")
ANSWERS = (Predictions, Sweep, PlanSimulation, Calibrated, Audit, Answer)
MISTAKES = (planner.PlannerError, planner.Infeasible, planner.Stopped)


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## From problems to answers\n"]
    parts += [_function(f"planner.{name}", getattr(verbs, name)) for name in VERBS]
    parts += ["## Files\n", *(_function(f"planner.{name}", getattr(planner, name)) for name in READERS)]
    parts += ["## A plan\n", _class("planner.Plan", planner.Plan), _class("planner.Limits", planner.Limits)]
    parts += ["## Other answers\n", *(_class(answer.__name__, answer) for answer in ANSWERS)]
    parts += ["## Expert layouts from arrays\n"]
    parts += [_function(f"planner.{name}", getattr(planner, name)) for name in EXPERTS]
    parts += [_class("planner.StepPlanner", planner.StepPlanner)]
    parts += ["## Mistakes, and answers that are no plan\n"]
    parts += [_class(f"planner.{error.__name__}", error) for error in MISTAKES]
    return "\n".join(parts)


def _function(name: str, function: Callable[..., Any]) -> str:
    call = _signature(_definition(function))
    return f"### `{name}`\n\n```python\n{call}\n```\n\n{_text(function)}\n"


def _class(name: str, described: type) -> str:
    """A class with its fields, properties and methods, each in the order in which they are written."""
    lines = [f"### `{name}`\n\n{_text(described)}\n"]
    members = [*_members(described)]
    if members:
        lines.append("| | |\n|---|---|\n" + "".join(f"| `{shown}` | {said} |\n" for shown, said in members))
    return "\n".join(lines)


def _members(described: type) -> Iterator[tuple[str, str]]:
    source = inspect.getsource(described)
    rows = source.splitlines()
    (described_class,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    for node in described_class.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and is_dataclass(described):
            _, _, comment = rows[node.lineno - 1].partition("  # ")
            yield node.target.id, _cell(f"`{_type(node.annotation)}`" + (f": {comment}" if comment else ""))
        elif isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
            said = _cell(inspect.cleandoc(ast.get_docstring(node) or ""))
            decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
            if "property" in decorators:
                yield node.name, f"`{_cell(_type(node.returns))}`" + (f": {said}" if said else "")
            elif not decorators:
                yield f"{node.name}({', '.join(_parameters(node, types=False)[1:])})", said


def _definition(function: Callable[..., Any]) -> ast.FunctionDef:
    node = ast.parse(inspect.getsource(function)).body[0]
    assert isinstance(node, ast.FunctionDef)
    return node


def _signature(node: ast.FunctionDef) -> str:
    """A call with the types of its parameters, in one line or one a line."""
    texts, result = _parameters(node, types=True), f" -> {_type(node.returns)}"
    line = f"{node.name}({', '.join(texts)}){result}"
    return (
        line if len(line) <= WIDTH else f"{node.name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){result}"
    )


def _parameters(node: ast.FunctionDef, *, types: bool) -> list[str]:
    """Parameters as they are written, with their types or without."""
    given = node.args
    absent = [None] * (len(given.args) - len(given.defaults))
    pairs = [*zip(given.args, [*absent, *given.defaults], strict=True)]
    texts = [_parameter(name, default, types) for name, default in pairs]
    named = [_parameter(*pair, types) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [*texts, *(["*"] if named else []), *named]


def _parameter(given: ast.arg, default: ast.expr | None, types: bool) -> str:
    typed = f"{given.arg}: {_type(given.annotation)}" if types else given.arg
    equals = " = " if types else "="
    return typed if default is None else f"{typed}{equals}{ast.unparse(default)}"


def _type(annotation: ast.expr | None) -> str:
    return "" if annotation is None else ast.unparse(annotation).replace("'", "")


def _text(described: object) -> str:
    return inspect.cleandoc(getattr(described, "__doc__", None) or "")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page, or compares it."""
    return write_or_check(PAGE, page, __doc__, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
