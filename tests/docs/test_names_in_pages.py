"""Every file, module, name and make target of this project that a page, a docstring or a comment names exists."""

import ast
import re
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LINKED = ("models", "solvers", "hardware", "cli")  # sub-packages that stand beside `planner` and are linked into it
# Not part of a longer path: `megatron/training/arguments.py` and addresses are files of others.
FILE = re.compile(
    r"(?<![\w./:-])(?:planner|models|solvers|hardware|cli|tests|benchmarks|docs)(?:/[\w.-]+)*/[\w-]+\.(?:py|md)\b(?!\()"
)
FOLDER = re.compile(r"`((?:planner|models|solvers|hardware|cli|tests|benchmarks|docs)(?:/[\w.-]+)*)/`")
IMPORT = re.compile(r"^from (planner[\w.]*) import ([\w, ]+)$", re.MULTILINE)
DOTTED = re.compile(r"`(planner(?:\.\w+)+)[`(\[:]")
TARGET = re.compile(r"`make ([a-z][\w-]*)[` ]")


def texts() -> dict[Path, str]:
    """Every page and module of the project that is in the repository, as text."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "*.md", "*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return {path: path.read_text() for path in paths if path.is_file() and path != Path(__file__)}


TEXTS = texts()


def module_path(dotted: str) -> Path | None:
    """The file of the module `dotted`, None where there is no such module."""
    parts = dotted.split(".")
    path = ROOT.joinpath(*(parts[1:] if parts[1:2] and parts[1] in LINKED else parts))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)


@cache
def members(path: Path) -> dict[str, ast.AST]:
    """Names that the module at `path` defines or imports at its top level."""
    return names_in(ast.parse(path.read_text()).body)


def names_in(body: list[ast.stmt]) -> dict[str, ast.AST]:
    names: dict[str, ast.AST] = {}
    for statement in body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names[statement.name] = statement
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            names.update({alias.asname or alias.name: statement for alias in statement.names})
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            names[statement.target.id] = statement
        elif isinstance(statement, ast.Assign):
            names.update({target.id: statement for target in statement.targets if isinstance(target, ast.Name)})
        elif isinstance(statement, ast.If):
            names.update(names_in(statement.body))
    return names


def exists(dotted: str) -> bool:
    """Whether `dotted` is a module, a name in a module, or a member of a class of one."""
    if module_path(dotted):
        return True
    *outer, name = dotted.split(".")
    module = module_path(".".join(outer))
    if module:
        return name in members(module)
    *outer, owner = outer
    module = module_path(".".join(outer)) if outer else None
    definition = members(module).get(owner) if module else None
    return isinstance(definition, ast.ClassDef) and name in names_in(definition.body)


def stale(pattern: re.Pattern[str], is_known: dict[str, bool]) -> list[str]:
    """Places of `pattern` whose name is not known, as `file:line: name`."""
    return [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match[pattern.groups]}"
        for path, text in TEXTS.items()
        for match in pattern.finditer(text)
        if not is_known[match[pattern.groups]]
    ]


def mentioned(pattern: re.Pattern[str]) -> set[str]:
    return {match[pattern.groups] for text in TEXTS.values() for match in pattern.finditer(text)}


def test_every_file_that_is_named_exists() -> None:
    files = {name: (ROOT / name).is_file() for name in mentioned(FILE)}
    assert len(files) > 50
    assert not stale(FILE, files)


def test_every_folder_that_is_named_exists() -> None:
    folders = {name: (ROOT / name).is_dir() for name in mentioned(FOLDER)}
    assert folders
    assert not stale(FOLDER, folders)


def test_every_module_and_every_name_in_one_exists() -> None:
    names = {name: exists(name) for name in mentioned(DOTTED)}
    assert len(names) > 50
    assert not stale(DOTTED, names)


def test_what_code_in_pages_imports_exists() -> None:
    names = {
        f"{module}.{name.strip()}"
        for path, text in TEXTS.items()
        if path.suffix == ".md"
        for module, listed in IMPORT.findall(text)
        for name in listed.split(",")
    }
    assert len(names) > 5
    assert not [name for name in sorted(names) if not exists(name)]


def test_every_make_target_exists() -> None:
    rules = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets = mentioned(TARGET)
    assert targets
    assert not stale(TARGET, {target: target in rules for target in targets})
