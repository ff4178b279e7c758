"""Planning and placement optimizer for LLM training, serving and RL on GPU clusters."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.api import solve
    from planner.check import check_plan
    from planner.estimate import estimate_jsonl
    from planner.load import load_plan, load_problem

__all__ = ["__version__", "check_plan", "estimate_jsonl", "load_plan", "load_problem", "solve"]
__version__ = "0.1.0"

_HOME = {
    "check_plan": "planner.check",
    "estimate_jsonl": "planner.estimate",
    "load_plan": "planner.load",
    "load_problem": "planner.load",
    "solve": "planner.api",
}


def __getattr__(name: str) -> object:
    """The public functions, imported when first used, so that `import planner` costs nothing (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module `planner` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
