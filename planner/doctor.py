"""Diagnoses this installation: versions, solvers, extras, GPUs, profiles, and writable folders."""

import importlib.metadata
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner.errors import PlannerError, extra_hint

EXTRAS = {"torch": "gpu", "ray": "ray", "mcp": "mcp", "guidellm": "engine", "aiconfigurator-core": "tables"}
"""Packages, and the extra that brings each."""
DISTRIBUTION = "llm-cluster-planner"
"""What pip installs; other projects are distributed as, or install, `planner` too."""
NEEDED = (
    *("pydantic", "typer", "rich", "PyYAML", "numpy", "numba", "scipy", "networkx", "ortools", "pulp", "pyarrow"),
    *("tree-sitter", "tree-sitter-bash"),
)
_SLOWEST_S = 20.0  # of a call to a driver


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing looked at; `ok` is None for what may be there or not."""

    part: str  # python, packages, solvers, extras, gpus, profiles, files
    name: str
    what: str
    ok: bool | None = None
    hint: str = ""


def examine(profiles: Sequence[str] = ()) -> list[Diagnostic]:
    """Everything that matters to a run of planner here, with the given profile paths."""
    looks: tuple[Callable[[], Iterator[Diagnostic]], ...] = (_python, _packages, _solvers, _extras, _gpus, _files)
    return [fact for look in looks for fact in look()] + list(_profiles(profiles))


def _python() -> Iterator[Diagnostic]:
    root = sys.modules["planner"]
    version = getattr(root, "__version__", "")  # none where another distribution wrote its package over this one
    right = (3, 11) <= sys.version_info[:2] < (3, 14)
    yield Diagnostic(
        "python", "python", platform.python_version(), right, "" if right else "use Python 3.11, 3.12 or 3.13"
    )
    hint = "" if version else f"install {DISTRIBUTION} again"
    yield Diagnostic("python", "planner", version or "overwritten by another package", bool(version), hint)
    for name in sorted(_others()):
        what = f"{_version(name)} installs a package or a command `planner` as well: one of the two hides the other"
        hint = f"install {DISTRIBUTION} into an environment of its own, or uninstall {name} and install it again"
        yield Diagnostic("python", name, what, False, hint)


def _others() -> set[str]:
    """Names of other distributions here that install an import package or a console script `planner`."""
    owners = set(importlib.metadata.packages_distributions().get("planner", ()))
    scripts = importlib.metadata.entry_points(group="console_scripts", name="planner")
    owners |= {script.dist.name for script in scripts if script.dist is not None}
    return owners - {DISTRIBUTION}


def _packages() -> Iterator[Diagnostic]:
    for name in NEEDED:
        version = _version(name)
        hint = "" if version else "install planner again"
        yield Diagnostic("packages", name, version or "missing", version is not None, hint)
    if _version("highspy") is not None:
        what = f"{_version('highspy')}, beside the HiGHS inside OR-Tools"
        hint = "if a solve ends in a crash, uninstall highspy: two builds of HiGHS in one process can clash"
        yield Diagnostic("packages", "highspy", what, None, hint)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _solvers() -> Iterator[Diagnostic]:
    """A model of one line through every backend: most x + y with 2 x + 3 y <= 12, x <= 4, whole numbers."""
    from planner.solvers.backends.model import LinearModel
    from planner.solvers.backends.solve import BACKENDS, solve

    model = LinearModel()
    x, y = model.integer_variable("x", 0, 4), model.integer_variable("y", 0, 10)
    model.add(2.0 * x + 3.0 * y <= 12.0, "C1")
    model.maximise(x + y)
    for backend in BACKENDS:
        started = time.perf_counter()
        try:
            result = solve(model, backend=backend, time_limit_s=_SLOWEST_S)
        except (PlannerError, ImportError, OSError, RuntimeError) as error:
            yield Diagnostic("solvers", backend, f"fails: {_line(error)}", False, "install planner again")
            continue
        right = result.objective == 5.0
        what = f"{result.solver}, {1e3 * (time.perf_counter() - started):.0f} ms"
        wrong = f"{what}, answers {result.objective} where 5 is right"
        yield Diagnostic("solvers", backend, what if right else wrong, right, "" if right else "install planner again")


def _extras() -> Iterator[Diagnostic]:
    for name, extra in EXTRAS.items():
        version = _version(name)
        hint = "" if version else extra_hint(extra)
        yield Diagnostic("extras", name, version or "absent", None, hint)


def _gpus() -> Iterator[Diagnostic]:
    if shutil.which("nvidia-smi") is None:
        yield Diagnostic("gpus", "nvidia-smi", "absent: no NVIDIA GPU is visible here; solving needs none")
        return
    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_SLOWEST_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        yield Diagnostic("gpus", "nvidia-smi", f"fails: {_line(error)}")
        return
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode != 0 or not lines:
        yield Diagnostic("gpus", "nvidia-smi", f"fails: {_line(done.stderr or done.stdout)}")
        return
    for name in dict.fromkeys(lines):
        yield Diagnostic("gpus", "gpu", f"{lines.count(name)} x {name}")


def _files() -> Iterator[Diagnostic]:
    from planner.hardware.profiles.cache import default_cache_dir

    for name, folder in (("temporary files", Path(tempfile.gettempdir())), ("cache", default_cache_dir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder):
                pass
        except OSError as error:
            hint = f"make `{folder}` writable, or set {'TMPDIR' if name == 'temporary files' else 'PLANNER_CACHE_DIR'}"
            yield Diagnostic("files", name, f"{folder} cannot be written: {error.strerror}", False, hint)
            continue
        yield Diagnostic("files", name, f"{folder} can be written", True)


def _profiles(paths: Sequence[str]) -> Iterator[Diagnostic]:
    from planner.costs.rates.pricer import NO_TABLES, open_store
    from planner.hardware.profiles.installed import installed_tables, unasked_profiles

    if list(paths) == [NO_TABLES]:
        yield Diagnostic("profiles", "kernel tables", f"`{NO_TABLES}`: times come from data sheets")
        return
    installed, own = installed_tables(), () if paths else unasked_profiles()
    if installed is not None and installed.problem:
        what = f"has {installed.problem}: costs go on without"
        yield Diagnostic("profiles", installed.name, what, None, "name other tables with --profiles")
    if not paths and not own:
        hint = "install the extra `tables`, or name them with --profiles or PLANNER_PROFILES"
        yield Diagnostic("profiles", "kernel tables", "none named: times come from data sheets", hint=hint)
    for path in (*paths, *own):
        try:
            store = open_store((path,))
            tables = [] if store is None else store.places()
        except PlannerError as error:
            yield Diagnostic("profiles", path, error.what, False, error.hint)
            continue
        known = ", ".join(sorted({accelerator for accelerator, *_ in tables}))
        what = f"{len(tables)} tables of {known}" if tables else "no tables"
        unasked = installed is not None and path in own and path == str(installed.folder)
        name = f"{installed.name}, installed" if unasked and installed is not None else path
        yield Diagnostic("profiles", name, what, bool(tables), "" if tables else "import kernel tables into it")


def _line(problem: object) -> str:
    return " ".join(str(problem).split())[:120] or "no answer"
