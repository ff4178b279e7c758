"""Mutation testing: small faults injected one at a time, each of which some test of its module should see.

Faults are injected where a wrong answer would be believed: in `solvers/`, in the costs, and in the bounds,
formulations, evaluations and checks of every kind of plan. A fault changes one place: a comparison that takes or leaves
equality, a sum for a difference, `min` for `max`, a condition turned round, a constant, a statement left out (the
operators of DeMillo, Lipton and Sayward, IEEE Computer 1978, as far as Python has them). It is run against the test
files that import its module, nearest first, until one test fails. `python benchmarks/mutants.py` draws 200 by seed and
takes up to an hour in two processes; what is done is kept in `--results` and not run again. Survivors are listed, with
the reason where `benchmarks/data/mutants.yaml` gives one.
"""

import argparse
import ast
import importlib.abc
import importlib.machinery
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
FIGURES = "_figures.py"  # tables of prices and bounds: quick, and of many modules
ANSWERS = ROOT / "tests" / "test_answers.py"  # of whole solves: whatever module is changed
REASONS = ROOT / "benchmarks" / "data" / "mutants.yaml"
GROUND_FLOOR = ("hardware", "models", "solvers", "cli")
AREAS: dict[str, tuple[str, ...]] = {
    "solvers": ("solvers/*.py", "solvers/*/*.py"),
    "costs": ("planner/costs/*.py", "planner/costs/*/*.py"),
    "check": ("planner/check/*.py", "planner/kinds/*/check.py"),
    "serve": ("planner/kinds/serve/steady/*.py", "planner/kinds/serve/proof/*.py"),
    "train": (
        "planner/kinds/train/space/*.py",
        "planner/kinds/train/evaluation/*.py",
        "planner/kinds/train/search/*.py",
        "planner/kinds/train/pools/*.py",
        "planner/kinds/train/proof/*.py",
    ),
    "rl": (
        "planner/rl/*.py",
        "planner/rl/search/*.py",
        "planner/kinds/rl/formulate.py",
        "planner/kinds/rl/planned.py",
        "planner/kinds/rl/proof.py",
    ),
}
MUTANTS, PROCESSES = 200, 2
EFFORT = (
    "SPEEDS_TOKENS_PER_S",
    "STARTS",
    "RESTARTS",
    "ITERATIONS",
    "REPLAYED",
    "BISECTIONS",
    "MORE_NODES",
    "PROOF_NODES",
    "PROOF_NODES_WAITING",
)
BUDGET_S = 60.0  # CPU seconds of tests for one mutant
TEST_S = 25.0  # CPU seconds; a test that takes longer hangs: the fault is seen
HANGS_S = 900.0  # by the clock: a process that takes longer hangs in compiled code
MOST_FILES = 14
PYTEST_OPTIONS = ("-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0",
                  "-W", "ignore::pytest.PytestAssertRewriteWarning")  # fmt: skip
HEAVY = ("numpy", "numba", "scipy.optimize", "scipy.stats", "networkx", "pydantic", "hypothesis", "typer", "yaml",
         "ortools.math_opt.python.mathopt", "ortools.sat.python.cp_model")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: in which module and function, on which line, and what stands there instead."""

    module: str
    path: str
    function: str
    line: int
    index: int  # of the place among all places of the module, in the order of `_places`
    change: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a test failed, and which."""

    mutant: Mutant
    killed: bool
    by: str
    seconds: float


COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
OPERATIONS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "ceil": "floor", "floor": "ceil",
         "minimum": "maximum", "maximum": "minimum", "argmin": "argmax", "argmax": "argmin"}  # fmt: skip


class _Planter(ast.NodeTransformer):
    """Walks the places where a fault can stand, in one order; plants it at place number `wanted` and describes it.

    Annotations, decorators, texts of errors and docstrings are no places; nor are tolerances, on whose edge no test
    should stand, defaults of fields, and what only bounds the effort of a search.
    """

    def __init__(self, wanted: int = -1) -> None:
        self.wanted, self.count = wanted, 0
        self.scope: list[str] = []
        self.in_class = False  # directly in the body of one
        self.places: list[tuple[str, int, str]] = []  # function, line, change

    def _here(self, node: ast.AST, change: str) -> bool:
        self.places.append((".".join(self.scope) or "module", getattr(node, "lineno", 0), change))
        self.count += 1
        return self.count - 1 == self.wanted

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        outside, self.in_class = self.in_class, False
        self.scope.append(node.name)
        node.args.defaults = [self.visit(default) for default in node.args.defaults]
        node.body = self._body(node.body)
        self.scope.pop()
        self.in_class = outside
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.scope.append(node.name)
        outside, self.in_class = self.in_class, True
        if not any("Spec" in ast.unparse(base) or "BaseModel" in ast.unparse(base) for base in node.bases):
            node.body = self._body(node.body)
        self.in_class = outside
        self.scope.pop()
        return node

    def _body(self, body: list[ast.stmt]) -> list[ast.stmt]:
        result: list[ast.stmt] = []
        for statement in body:
            removable = (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)) or isinstance(
                statement, (ast.AugAssign, ast.Continue, ast.Raise)
            )
            if removable and self._here(statement, f"without `{_text(statement)}`"):
                result.append(ast.copy_location(ast.Pass(), statement))
            else:
                result.append(self.visit(statement))
        return result

    def generic_visit(self, node: ast.AST) -> ast.AST:
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt) and self.scope:
                setattr(node, name, self._body(block))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            if isinstance(value, ast.AST):
                setattr(node, name, self.visit(value))
            elif isinstance(value, list) and not (value and isinstance(value[0], ast.stmt) and self.scope):
                setattr(node, name, [self.visit(item) if isinstance(item, ast.AST) else item for item in value])
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None and not self.in_class:
            node.value = self.visit(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        target = node.targets[0]
        if not self.scope and isinstance(target, ast.Name) and (_is_tolerance(target) or target.id in EFFORT):
            return node
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        if not self.scope:  # of a type
            return node
        return self.generic_visit(node)

    def visit_If(self, node: ast.If) -> ast.AST:
        if "TYPE_CHECKING" in ast.unparse(node.test):
            return node
        if self._here(node, f"`if {_text(node.test)}` turned round"):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        if self._here(node, f"`... if {_text(node.test)}` turned round"):
            node.test = ast.UnaryOp(ast.Not(), node.test)
        return self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        edge = any(_is_tolerance(part) for part in ast.walk(node) if isinstance(part, ast.expr))
        for index, operator in enumerate(node.ops):
            other = COMPARISONS[type(operator)]
            if edge and {type(operator), other} <= {ast.Lt, ast.LtE, ast.Gt, ast.GtE}:
                continue
            if self._here(node, f"`{_text(node)}` with {other.__name__}"):
                node.ops[index] = other()
        return self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        if self._here(node, f"`{_text(node)}` with {other.__name__}"):
            node.op = other()
        return self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        if _is_tolerance(node.right) and (isinstance(node.left, ast.Constant) or ast.unparse(node.right) == "SLACK"):
            return node  # SLACK: a factor that is one but for rounding
        other = OPERATIONS.get(type(node.op))
        text = any(
            isinstance(side, (ast.JoinedStr, ast.Constant)) and _is_text(side) for side in (node.left, node.right)
        )
        if other is not None and not text and self._here(node, f"`{_text(node)}` with {other.__name__}"):
            node.op = other()
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if name in CALLS and self._here(node, f"`{_text(node)}` with {CALLS[name]}"):
            if isinstance(node.func, ast.Attribute):
                node.func.attr = CALLS[name]
            else:
                node.func = ast.copy_location(ast.Name(CALLS[name], ast.Load()), node.func)
        if name in ("Field", "PlannerError", "TypeVar", "dataclass", "field", "Literal"):
            return node
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        return node if node.arg == "strict" else self.generic_visit(node)  # of `zip`: an assertion

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if isinstance(value, bool) and self._here(node, f"`{value}` to `{not value}`"):
            return ast.copy_location(ast.Constant(not value), node)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            changed = value + 1 if isinstance(value, int) else value * 2 or 1.0
            if self._here(node, f"`{value}` to `{changed}`"):
                return ast.copy_location(ast.Constant(changed), node)
        return node


def _is_tolerance(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id.endswith(("TOL", "TOLERANCE", "EPS", "DUST", "ROUNDING", "MARGIN"))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _text(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else f"{text[:87]}..."


def module_name(path: Path) -> str:
    """`planner.solvers.mix` for solvers/mix.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    names = parts if parts[0] == "planner" else ("planner", *parts)
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def list_mutants(area: str) -> list[Mutant]:
    """Every fault that can be injected into the modules of an area."""
    mutants = []
    for path in sorted({path for pattern in AREAS[area] for path in ROOT.glob(pattern)}):
        planter = _Planter()
        planter.visit(ast.parse(path.read_text()))
        where = str(path.relative_to(ROOT))
        mutants += [
            Mutant(module_name(path), where, function, line, index, change)
            for index, (function, line, change) in enumerate(planter.places)
        ]
    return mutants


def draw_mutants(count: int, seed: int, only: str) -> list[Mutant]:
    """`count` faults, the areas in turn, modules of an area alike, then places of a module alike."""
    draw = random.Random(seed)
    drawn: list[Mutant] = []
    pools: dict[str, dict[str, list[Mutant]]] = {}
    for area in AREAS:
        by_module: dict[str, list[Mutant]] = defaultdict(list)
        for mutant in list_mutants(area):
            if mutant.path.startswith(only):
                by_module[mutant.module].append(mutant)
        if by_module:
            pools[area] = by_module
    while pools and len(drawn) < count:
        for area in list(pools):
            modules = pools[area]
            if not modules:
                del pools[area]
                continue
            module = draw.choice(sorted(modules))
            drawn.append(modules[module].pop(draw.randrange(len(modules[module]))))
            if not modules[module]:
                del modules[module]
    return drawn[:count]


def mutated_source(mutant: Mutant) -> ast.Module:
    """The module's tree with the fault in it."""
    planter = _Planter(mutant.index)
    tree = ast.parse((ROOT / mutant.path).read_text())
    planter.visit(tree)
    return ast.fix_missing_locations(tree)


_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements hold statements."""


@cache
def _imports_of(path: Path) -> frozenset[str]:
    """Names that a file imports, modules and what may be modules."""
    names = set()
    for node in _statements(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names | _found_by_name(path))


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All statements, and no expressions, which are most of a tree and import nothing."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in _BLOCKS:
            waiting += getattr(node, block, ())


def _found_by_name(path: Path) -> set[str]:
    """What the registry of kinds imports by name: each kind, and what solves and checks its plans."""
    if path == ROOT / "planner" / "kinds" / "registry.py":
        return {module_name(kind) for kind in path.parent.glob("*/__init__.py")}
    if path.name == "__init__.py" and path.parent.parent.name == "kinds":
        return {f"{module_name(path)}.{part}" for part in ("solve", "check")}
    return set()


@cache
def _product() -> dict[str, Path]:
    tops = ("planner", *GROUND_FLOOR)
    paths = [path for top in tops for path in (ROOT / top).rglob("*.py") if not _through_link(path)]
    return {module_name(path): path for path in paths}


def _through_link(path: Path) -> bool:
    return any(parent.is_symlink() for parent in path.parents)


@cache
def _test_files() -> dict[Path, dict[str, int]]:
    """Product modules that each test file reaches, with the number of imports on the way."""
    helpers = {path.stem: path for path in (ROOT / "tests").rglob("*.py") if not path.name.startswith("test_")}
    return {path: _reach(path, helpers) for path in sorted((ROOT / "tests").rglob("test_*.py"))}


def _reach(test: Path, helpers: dict[str, Path]) -> dict[str, int]:
    depth_of: dict[str, int] = {}
    own, seen = (
        deque([test, *(folder / "conftest.py" for folder in test.parents if (folder / "conftest.py").exists())]),
        set(),
    )
    waiting: deque[tuple[str, int]] = deque()
    while own:
        path = own.popleft()
        if path in seen:
            continue
        seen.add(path)
        for name in sorted(_imports_of(path)):
            if name in helpers:
                own.append(helpers[name])
            elif name in _product():
                waiting.append((name, 1))
    while waiting:
        name, depth = waiting.popleft()
        if name in depth_of:
            continue
        depth_of[name] = depth
        waiting.extend((below, depth + 1) for below in _below(name))
    return depth_of


@cache
def _below(module: str) -> tuple[str, ...]:
    """The product modules that one imports."""
    return tuple(name for name in sorted(_imports_of(_product()[module])) if name in _product())


def tests_of(mutant: Mutant) -> list[Path]:
    """Test files that reach the module: those named for it, then those of its own folder, then the nearest."""
    leaf = mutant.module.rpartition(".")[2]
    reaching = [(path, reach[mutant.module]) for path, reach in _test_files().items() if mutant.module in reach]
    parts = set(Path(mutant.path).parts)
    reaching.sort(
        key=lambda pair: (
            leaf not in pair[0].stem,
            -len(parts & set(pair[0].relative_to(ROOT).parts)),
            len(pair[0].parts),  # of the folder above before those of its other folders
            pair[1],
            str(pair[0]),
        )
    )
    figures = [path for path, _ in reaching if path.name.endswith(FIGURES)]
    nearest = [path for path, _ in reaching[:MOST_FILES] if path != ANSWERS and path not in figures]
    return [*nearest[:2], *figures, ANSWERS, *nearest[2:]]


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives the mutated module in place of the one on disk."""

    def __init__(self, mutant: Mutant, folder: Path) -> None:
        self.mutant = mutant
        # numba keeps compiled code by the path of its source: a mutant has a path of its own
        self.path = folder / Path(mutant.path).name
        self.path.write_text(ast.unparse(mutated_source(mutant)))

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.mutant.module:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, origin=str(self.path))

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self.path)
        exec(compile(self.path.read_text(), str(self.path), "exec"), module.__dict__)


class _Watch:
    """A pytest plugin: ends a run when its budget is spent, fails a test that hangs, remembers the first failure."""

    def __init__(self) -> None:
        self.started, self.failed = time.process_time(), ""

    @property
    def spent(self) -> bool:
        """Whether the tests have had their time."""
        return time.process_time() - self.started > BUDGET_S

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.spent:
            pytest.exit("budget", returncode=0)
        signal.setitimer(signal.ITIMER_PROF, TEST_S)

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid or "collection"


def _hangs(number: int, frame: FrameType | None) -> None:
    raise TimeoutError("took too long")


def _run_child(mutant: Mutant, report: Path) -> None:
    """In a process of its own: the tests of the module with the fault in it; writes what failed."""
    folder = report.with_suffix("")
    folder.mkdir()
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder)
    if _is_compiled_in(mutant.module):  # callers in other files have it in their machine code: everything anew
        from numba.core import config

        setattr(config, "CACHE_DIR", str(folder / "numba"))  # noqa: B010 - its stubs leave it out
    os.chdir(ROOT)
    sys.meta_path.insert(0, _Finder(mutant, folder))
    signal.signal(signal.SIGPROF, _hangs)
    watch, failed, tests = _Watch(), "", [str(path) for path in tests_of(mutant)]
    for files in (tests[:2], tests[2:6], tests[6:]):  # collected together: far files only where near ones see nothing
        if not files or failed or watch.spent:
            break
        code = pytest.main([*PYTEST_OPTIONS, *files], plugins=[watch])
        ended_well = code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        failed = watch.failed or ("" if ended_well else f"pytest ended with {code}")
    report.write_text(json.dumps(failed))


def _is_compiled_in(module: str) -> bool:
    compiled = [path for name, path in _product().items() if ".compiled." in name]
    return ".compiled" in module or any(module in _imports_of(path) for path in compiled)


def _fork(mutant: Mutant, report: Path) -> int:
    process = os.fork()
    if process == 0:
        try:
            _run_child(mutant, report)
        except BaseException:  # noqa: BLE001 - a fault of this program, told to the parent
            report.with_suffix(".txt").write_text(traceback.format_exc())
        finally:
            os._exit(0)
    return process


def run_mutants(mutants: Sequence[Mutant], processes: int) -> Iterator[Outcome]:
    """Each mutant against its tests, `processes` at a time."""
    with tempfile.TemporaryDirectory(prefix="planner-mutants-") as folder:
        waiting = deque(enumerate(mutants))
        running: dict[int, tuple[Mutant, Path, float]] = {}
        while waiting or running:
            while waiting and len(running) < processes:
                number, mutant = waiting.popleft()
                report = Path(folder, f"{number}.json")
                running[_fork(mutant, report)] = mutant, report, time.monotonic()
            for process in list(running):
                mutant, report, started = running[process]
                done, _ = os.waitpid(process, os.WNOHANG)
                seconds = time.monotonic() - started
                if not done and seconds < HANGS_S:
                    continue
                if not done:
                    os.kill(process, signal.SIGKILL)
                    os.waitpid(process, 0)
                del running[process]
                own_fault = report.with_suffix(".txt")
                if own_fault.exists():
                    raise RuntimeError(own_fault.read_text())
                failed = json.loads(report.read_text()) if report.exists() else "the process hung or died"
                yield Outcome(mutant, bool(failed), failed, seconds)
            time.sleep(0.05)


def _load_done(results: Path) -> dict[tuple[str, str, int, str], dict[str, Any]]:
    rows = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return {(row["path"], row["function"], row["index"], row["change"]): row for row in rows}


def _preload() -> None:
    for name in HEAVY:
        importlib.import_module(name)


def main(argv: Sequence[str] | None = None) -> int:
    """Run what is not done, print rates by area and every survivor; 1 when fewer than nine in ten are seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=MUTANTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="PATH", help="modules whose path begins so")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--results", type=Path, default=ROOT / "build" / "mutants.jsonl")
    parser.add_argument("--quick", action="store_true", help="24 mutants")
    given = parser.parse_args(argv)
    mutants = draw_mutants(24 if given.quick else given.count, given.seed, given.only)
    given.results.parent.mkdir(parents=True, exist_ok=True)
    done = _load_done(given.results)
    missing = [m for m in mutants if (m.path, m.function, m.index, m.change) not in done]
    _preload()
    with given.results.open("a") as journal:
        for outcome in run_mutants(missing, given.processes):
            mutant = outcome.mutant
            row = asdict(mutant) | {"killed": outcome.killed, "by": outcome.by, "seconds": round(outcome.seconds, 1)}
            print(json.dumps(row), file=journal, flush=True)
            done[mutant.path, mutant.function, mutant.index, mutant.change] = row
            verdict = "killed " if outcome.killed else "SURVIVED"
            print(f"{verdict} {outcome.seconds:5.1f} s  {mutant.path}:{mutant.line} {mutant.change}", flush=True)
    return _report([done[m.path, m.function, m.index, m.change] for m in mutants])


def _report(rows: Sequence[dict[str, Any]]) -> int:
    reasons = yaml.safe_load(REASONS.read_text()) if REASONS.exists() else {}
    for area, patterns in AREAS.items():
        of_area = [row for row in rows if any(Path(row["path"]).match(pattern) for pattern in patterns)]
        if of_area:
            print(f"{area:8} {sum(row['killed'] for row in of_area):4} of {len(of_area):4} seen")
    survivors = [row for row in rows if not row["killed"]]
    for row in survivors:
        key = f"{row['path']}:{row['function']}: {row['change']}"
        print(f"survived {row['path']}:{row['line']} {row['function']}: {row['change']}  {reasons.get(key, '')}")
    seconds = sum(row["seconds"] for row in rows)
    print(f"{len(rows) - len(survivors)} of {len(rows)} mutants seen by a test ({seconds:.0f} s of tests)")
    return 0 if len(survivors) <= 0.1 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
