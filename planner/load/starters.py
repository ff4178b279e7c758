"""Commented starter documents for `planner init`: `starter.yaml` of each kind that can be solved, and of sweeps."""

from importlib.resources import files
from importlib.util import find_spec

from planner.errors import PlannerError, did_you_mean
from planner.kinds.registry import find_kind, kind_names

_FILE = "starter.yaml"


def starter_names() -> list[str]:
    """What `starter` has a document for: kinds of plans that can be solved, and `sweep`."""
    return [name for name, package in _packages().items() if files(package).joinpath(_FILE).is_file()]


def starter(name: str) -> str:
    """The commented document to start from; raises PlannerError with the nearest names for an unknown one."""
    known = starter_names()
    if name not in known:
        if name in kind_names():
            raise PlannerError(
                f"plans of kind `{name}` can be checked but not solved",
                where="KIND",
                hint=f"start from one of {', '.join(f'`{starter}`' for starter in known)}",
            )
        listing = f"there are {', '.join(f'`{starter}`' for starter in known)}"
        raise PlannerError(f"no document to start from for `{name}`", hint=did_you_mean(name, known, otherwise=listing))
    return files(_packages()[name]).joinpath(_FILE).read_text(encoding="utf-8")


def _packages() -> dict[str, str]:
    packages = {name: f"planner.kinds.{name}" for name in kind_names() if find_kind(name).solvable}
    return packages | ({"sweep": "planner.sweep"} if find_spec("planner.sweep") is not None else {})
