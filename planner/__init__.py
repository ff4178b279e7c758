"""Planning and placement optimizer for LLM training, serving and RL on GPU clusters."""

TYPE_CHECKING = False  # as in `planner.__main__`
if TYPE_CHECKING:
    from planner.errors import Infeasible, PlannerError, Stopped
    from planner.experts.ahead import plan_ahead
    from planner.experts.known_routing import plan_batch
    from planner.experts.layout import plan_layout
    from planner.experts.ranks import make_ranks
    from planner.experts.steps import StepPlanner
    from planner.experts.tokens import plan_tokens
    from planner.library.plans import Plan
    from planner.library.verbs import estimate_cases, load_plan, solve, sweep_axes
    from planner.load.problems import load_problem
    from planner.progress import Limits

__all__ = [
    "Infeasible",
    "Limits",
    "Plan",
    "PlannerError",
    "StepPlanner",
    "Stopped",
    "__version__",
    "estimate_cases",
    "load_plan",
    "load_problem",
    "make_ranks",
    "plan_ahead",
    "plan_batch",
    "plan_layout",
    "plan_tokens",
    "solve",
    "sweep_axes",
]
__version__ = "0.1.0"

_HOME = {
    "Infeasible": "planner.errors",
    "Limits": "planner.progress",
    "Plan": "planner.library.plans",
    "PlannerError": "planner.errors",
    "StepPlanner": "planner.experts.steps",
    "Stopped": "planner.errors",
    "estimate_cases": "planner.library.verbs",
    "load_plan": "planner.library.verbs",
    "load_problem": "planner.load.problems",
    "make_ranks": "planner.experts.ranks",
    "plan_ahead": "planner.experts.ahead",
    "plan_batch": "planner.experts.known_routing",
    "plan_layout": "planner.experts.layout",
    "plan_tokens": "planner.experts.tokens",
    "solve": "planner.library.verbs",
    "sweep_axes": "planner.library.verbs",
}


def __getattr__(name: str) -> object:
    """The public names, imported when first used, so that `import planner` costs nothing (PEP 562)."""
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module `planner` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
