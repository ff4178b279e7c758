"""Planning and placement optimizer for LLM training, serving and RL on GPU clusters."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.api import solve
    from planner.check import check_plan
    from planner.diff import diff_plans
    from planner.errors import PlannerError
    from planner.estimate import estimate_jsonl
    from planner.explain import explain_plan
    from planner.infeasible import Infeasible, Stopped
    from planner.load import load_plan, load_problem
    from planner.plan.store import plan_json
    from planner.progress import Limits

__all__ = [
    "Infeasible",
    "Limits",
    "PlannerError",
    "Stopped",
    "__version__",
    "check_plan",
    "diff_plans",
    "estimate_jsonl",
    "explain_plan",
    "load_plan",
    "load_problem",
    "plan_json",
    "solve",
]
__version__ = "0.1.0"

_HOME = {
    "Infeasible": "planner.infeasible",
    "Limits": "planner.progress",
    "PlannerError": "planner.errors",
    "Stopped": "planner.infeasible",
    "check_plan": "planner.check",
    "diff_plans": "planner.diff",
    "estimate_jsonl": "planner.estimate",
    "explain_plan": "planner.explain",
    "load_plan": "planner.load",
    "load_problem": "planner.load",
    "plan_json": "planner.plan.store",
    "solve": "planner.api",
}


def __getattr__(name: str) -> object:
    """The public names, imported when first used, so that `import planner` costs nothing (PEP 562)."""
    if name not in _HOME:
        raise AttributeError(f"module `planner` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
