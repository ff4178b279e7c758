"""The arrows of the house: who may import whom, how long things are, and what no module does."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import networkx

ROOT = Path(__file__).parent.parent
TOPS = ("planner", "hardware", "models", "solvers", "cli")

# From the ground up; a module may import what stands below it, and within its own layer only its own package.
LAYERS: tuple[frozenset[str], ...] = (
    frozenset({"arrays", "errors", "verify"}),
    frozenset({"documents"}),
    frozenset({"hardware", "models", "solvers"}),
    frozenset(
        {
            "benchmark_reports",
            "engines",
            "plan",
            "problem",
            "progress",
            "schema",
        }
    ),
    frozenset({"costs"}),
    frozenset({"simulate", "experts", "reliability", "rl"}),
    frozenset({"kinds"}),
    frozenset(
        {
            "alternatives",
            "api",
            "calibrate",
            "check",
            "diff",
            "doctor",
            "emit",
            "engine_check",
            "estimate",
            "execute",
            "explain",
            "importing",
            "interchange",
            "load",
            "propose",
            "timelines",
        }
    ),
    frozenset({"audit", "moves", "report", "sweep", "watch"}),
    frozenset({"cli", "library"}),
    frozenset({"__main__", ""}),  # "" is planner/__init__.py, the public API
)
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)  # imports stand in nothing else
PEERS = (1, 3, 7)  # layers whose members may import each other, as long as no cycle comes of it
MOST_MODULES = 20  # of one folder, its `__init__.py` among them
FOUNDATION = frozenset().union(*LAYERS[:2])
LAZY = {"ortools", "pulp", "highspy", "scipy", "networkx", "pyarrow", "pandas", "torch", "rich", "numba", "tree_sitter"}
SOLVER_PACKAGES = {"ortools", "pulp", "highspy"}
BUILT_ON_TORCH = (
    "planner.execute.",
    "planner.hardware.profiling.",
)  # who needs these modules imports them in functions
BUILT_ON_NUMBA = (  # likewise
    "planner.solvers.compilation.",
    "planner.solvers.compiled.",
    "planner.estimate.compiled.",
    "planner.rl.compiled.",
    "planner.simulate.loop",
)


@dataclass(frozen=True)
class Import:
    """One imported module; `at_top` when it is imported with the module itself, `for_types` under TYPE_CHECKING."""

    target: str
    name: str
    line: int
    at_top: bool
    for_types: bool


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    num_lines: int

    @property
    def part(self) -> str:
        """The part of the house: `costs` for planner.costs.rates.roofline."""
        return (*self.name.split("."), "")[1]


@cache
def _modules() -> dict[str, Module]:
    """All modules by name; read when the first test asks, since every process of a run collects this file."""
    modules = {}
    for top in TOPS:
        for path in sorted((ROOT / top).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[0] == "planner" and parts[1] in TOPS:
                continue
            names = list(parts if parts[0] == "planner" else ("planner", *parts))
            name = ".".join(names[:-1] if names[-1] == "__init__" else names)
            text = path.read_text(encoding="utf-8")
            modules[name] = Module(name, path, ast.parse(text), len(text.splitlines()))
    return modules


def _imports(module: Module) -> Iterator[Import]:
    waiting: list[tuple[ast.AST, bool, bool]] = [(module.tree, True, False)]
    while waiting:
        node, at_top, for_types = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, "", node.lineno, at_top, for_types) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module.path}:{node.lineno}: relative import"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                target = submodule if submodule in _modules() else str(node.module)
                yield Import(target, alias.name, node.lineno, at_top, for_types)
        in_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        guarded = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        below = [child for child in ast.iter_child_nodes(node) if isinstance(child, STATEMENTS)]
        waiting += [(child, at_top and not in_function, for_types or guarded) for child in below]


@cache
def _all_imports() -> dict[str, tuple[Import, ...]]:
    return {name: tuple(_imports(module)) for name, module in _modules().items()}


@cache
def _statements() -> tuple[tuple[Module, ast.AST], ...]:
    """All statements and handlers, and no expressions, which are most of a tree."""
    met: list[tuple[Module, ast.AST]] = []
    for module in _modules().values():
        waiting: list[ast.AST] = [module.tree]
        while waiting:
            below = [child for child in ast.iter_child_nodes(waiting.pop()) if isinstance(child, STATEMENTS)]
            waiting += below
            met += [(module, node) for node in below]
    return tuple(met)


def _layer(part: str) -> int:
    for index, parts in enumerate(LAYERS):
        if part in parts:
            return index
    raise AssertionError(f"planner.{part} stands in no layer of {Path(__file__).name}")


@cache
def _own(module: Module) -> list[Import]:
    """Imports of the house itself; the version number stands in planner/__init__.py, for everyone."""
    own = [imported for imported in _all_imports()[module.name] if imported.target.split(".")[0] == "planner"]
    return [imported for imported in own if (imported.target, imported.name) != ("planner", "__version__")]


def _part(name: str) -> str:
    return (*name.split("."), "")[1]


def test_every_module_stands_in_a_layer() -> None:
    for module in _modules().values():
        _layer(module.part)


def test_no_import_points_up() -> None:
    wrong = []
    for module in _modules().values():
        here = _layer(module.part)
        for imported in _own(module):
            there = _layer(_part(imported.target))
            same = _part(imported.target) == module.part or (here == there and here in PEERS)
            if here == len(LAYERS) - 1 or there < here or same:
                continue
            wrong.append(f"{module.path.relative_to(ROOT)}:{imported.line} imports {imported.target}")
    assert not wrong


def test_ground_floor_rests_on_the_foundation_alone() -> None:
    wrong = []
    for module in _modules().values():
        if module.part in ("hardware", "models", "solvers"):
            allowed = {module.part} | (FOUNDATION if module.part != "solvers" else LAYERS[0])
            wrong += [
                f"{module.path.relative_to(ROOT)}:{imported.line} imports {imported.target}"
                for imported in _own(module)
                if _part(imported.target) not in allowed
            ]
    assert not wrong


def test_only_emission_estimates_proposals_and_what_reads_artifacts_know_a_kind_by_name() -> None:
    allowed = ("audit", "emit", "estimate", "importing", "interchange", "propose")
    wrong = []
    for module in _modules().values():
        kind = (*module.name.split("."), "", "", "")[2] if module.part == "kinds" else ""
        for imported in _own(module):
            other = (*imported.target.split("."), "", "", "")[2] if _part(imported.target) == "kinds" else ""
            if other not in ("", "registry", kind) and module.part not in allowed:
                wrong.append(f"{module.path.relative_to(ROOT)}:{imported.line} imports {imported.target}")
    assert not wrong


def _circles(edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Groups of names that reach each other along the edges."""
    graph: networkx.DiGraph[str] = networkx.DiGraph()
    graph.add_edges_from((source, target) for source, target in edges if source != target)
    return [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1]


def test_no_circle_of_imports_between_modules() -> None:
    """Imports inside functions and those for type checkers count: they too say who must be read to read a module."""
    edges = [
        (module.name, imported.target)
        for module in _modules().values()
        for imported in _own(module)
        if imported.target in _modules()
    ]
    assert not _circles(edges)
    assert not [edge for edge in edges if edge[0] == edge[1]]


def test_no_circle_of_imports_between_the_folders_inside_a_folder() -> None:
    circles = []
    for folder in {name for name, module in _modules().items() if module.path.name == "__init__.py"} - {"planner"}:
        inside = f"{folder}."
        edges = [
            (module.name[len(inside) :].split(".")[0], imported.target[len(inside) :].split(".")[0])
            for module in _modules().values()
            if module.name.startswith(inside)
            for imported in _own(module)
            if imported.target.startswith(inside)
        ]
        circles += [(folder, circle) for circle in _circles(edges)]
    assert not circles


def test_no_folder_holds_more_modules_than_a_reader_keeps_in_mind() -> None:
    sizes = Counter(module.path.parent.relative_to(ROOT) for module in _modules().values())
    assert {str(folder): size for folder, size in sizes.items() if size > MOST_MODULES} == {}


def test_heavy_libraries_are_imported_inside_functions() -> None:
    wrong = [
        f"{module.path.relative_to(ROOT)}:{imported.line} imports {imported.target}"
        for module in _modules().values()
        for imported in _all_imports()[module.name]
        if imported.target.split(".")[0] in LAZY and imported.at_top and not imported.for_types
        if not (imported.target.split(".")[0] == "torch" and module.name.startswith(BUILT_ON_TORCH))
        if not (imported.target.split(".")[0] == "numba" and module.name.startswith(BUILT_ON_NUMBA))
    ]
    assert not wrong


def test_modules_that_hold_torch_or_numba_are_imported_inside_functions_by_all_others() -> None:
    holders = {
        name
        for name in _modules()
        if any(
            imported.target.split(".")[0] in ("torch", "numba") and imported.at_top for imported in _all_imports()[name]
        )
    }
    wrong = [
        f"{module.path.relative_to(ROOT)}:{imported.line} imports {imported.target}"
        for module in _modules().values()
        for imported in _own(module)
        if imported.target in holders and imported.at_top and not imported.for_types
        if not module.name.startswith((*BUILT_ON_TORCH, *BUILT_ON_NUMBA))
    ]
    assert not wrong


def test_solver_packages_are_imported_by_the_backends_alone() -> None:
    wrong = [
        f"{module.path.relative_to(ROOT)}:{imported.line} imports {imported.target}"
        for module in _modules().values()
        if not module.name.startswith("planner.solvers.backends")
        for imported in _all_imports()[module.name]
        if imported.target.split(".")[0] in SOLVER_PACKAGES
    ]
    assert not wrong


def test_short_names_of_the_folders_are_never_imported() -> None:
    short = {"hardware", "models", "solvers", "cli"}
    assert not [
        f"{module.path}:{imported.line}"
        for module in _modules().values()
        for imported in _all_imports()[module.name]
        if imported.target.split(".")[0] in short
    ]


def test_every_module_is_short_and_named_for_what_it_holds() -> None:
    vague = {"utils", "util", "helpers", "common", "misc", "v2"}
    assert {name: module.num_lines for name, module in _modules().items() if module.num_lines > 800} == {}
    assert [name for name in _modules() if name.rpartition(".")[2] in vague] == []


def test_few_functions_are_longer_than_a_screen() -> None:
    lengths = {
        f"{module.name}.{node.name}": (node.end_lineno or node.lineno) - node.lineno + 1
        for module, node in _statements()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    long = {name: length for name, length in lengths.items() if length > 60}
    assert len(long) < 0.02 * len(lengths), long


def test_broad_excepts_stand_in_the_main_of_the_command_alone() -> None:
    wrong = []
    for module, node in _statements():
        if isinstance(node, ast.ExceptHandler) and module.name != "planner.cli.main":
            caught = (
                {"bare"}
                if node.type is None
                else {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)}
            )
            if caught & {"bare", "Exception", "BaseException"}:
                wrong.append(f"{module.path.relative_to(ROOT)}:{node.lineno}")
    assert not wrong


def test_no_module_imports_everything_of_another() -> None:
    stars = [
        f"{module.path.relative_to(ROOT)}:{node.lineno}"
        for module, node in _statements()
        if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names)
    ]
    assert not stars
