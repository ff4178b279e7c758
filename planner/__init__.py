"""Planning and placement optimizer for LLM training, serving and RL on GPU clusters."""

TYPE_CHECKING = False  # as in `planner.__main__`
if TYPE_CHECKING:
    from planner.api import solve
    from planner.check import check_plan
    from planner.diff import diff_plans
    from planner.errors import Infeasible, PlannerError, Stopped
    from planner.estimate import estimate_jsonl
    from planner.experts.ahead import plan_ahead
    from planner.experts.known_routing import plan_batch
    from planner.experts.layout import plan_layout
    from planner.experts.ranks import make_ranks
    from planner.experts.steps import StepPlanner
    from planner.experts.tokens import plan_tokens
    from planner.explain import explain_plan
    from planner.load.problems import load_plan, load_problem
    from planner.plan.store import plan_json
    from planner.progress import Limits

__all__ = [
    "Infeasible",
    "Limits",
    "PlannerError",
    "StepPlanner",
    "Stopped",
    "__version__",
    "check_plan",
    "diff_plans",
    "estimate_jsonl",
    "explain_plan",
    "load_plan",
    "load_problem",
    "make_ranks",
    "plan_ahead",
    "plan_batch",
    "plan_json",
    "plan_layout",
    "plan_tokens",
    "solve",
]
__version__ = "0.1.0"

_HOME = {
    "Infeasible": "planner.errors",
    "Limits": "planner.progress",
    "PlannerError": "planner.errors",
    "StepPlanner": "planner.experts.steps",
    "Stopped": "planner.errors",
    "check_plan": "planner.check",
    "diff_plans": "planner.diff",
    "estimate_jsonl": "planner.estimate",
    "explain_plan": "planner.explain",
    "load_plan": "planner.load.problems",
    "load_problem": "planner.load.problems",
    "make_ranks": "planner.experts.ranks",
    "plan_ahead": "planner.experts.ahead",
    "plan_batch": "planner.experts.known_routing",
    "plan_json": "planner.plan.store",
    "plan_layout": "planner.experts.layout",
    "plan_tokens": "planner.experts.tokens",
    "solve": "planner.api",
}


def __getattr__(name: str) -> object:
    """The public names, imported when first used, so that `import planner` costs nothing (PEP 562)."""
    import importlib

    if name not in _HOME:
        raise AttributeError(f"module `planner` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
