"""Planning and placement optimizer for LLM training, serving and RL on GPU clusters."""

import sys
from types import ModuleType

TYPE_CHECKING = False  # as in `planner.__main__`
if TYPE_CHECKING:
    import inspect
    from collections.abc import Callable

    from planner.errors import Infeasible, PlannerError, Stopped
    from planner.experts.ahead import plan_ahead
    from planner.experts.known_routing import plan_batch
    from planner.experts.layout import plan_layout
    from planner.experts.ranks import make_ranks
    from planner.experts.steps import StepPlanner
    from planner.experts.tokens import plan_tokens
    from planner.library.plans import Plan
    from planner.library.verbs import audit, calibrate, estimate, load_plan, simulate, solve, sweep
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
    "audit",
    "calibrate",
    "estimate",
    "load_plan",
    "load_problem",
    "make_ranks",
    "plan_ahead",
    "plan_batch",
    "plan_layout",
    "plan_tokens",
    "simulate",
    "solve",
    "sweep",
]
__version__ = "0.1.0"

_HOME = {
    "Infeasible": "planner.errors",
    "Limits": "planner.progress",
    "Plan": "planner.library.plans",
    "PlannerError": "planner.errors",
    "StepPlanner": "planner.experts.steps",
    "Stopped": "planner.errors",
    "load_plan": "planner.library.verbs",
    "load_problem": "planner.load.problems",
    "make_ranks": "planner.experts.ranks",
    "plan_ahead": "planner.experts.ahead",
    "plan_batch": "planner.experts.known_routing",
    "plan_layout": "planner.experts.layout",
    "plan_tokens": "planner.experts.tokens",
    "solve": "planner.library.verbs",
}
_VERBS = ("audit", "calibrate", "estimate", "simulate", "sweep")  # names of packages, and of functions
_HOME_OF_VERBS = "planner.library.verbs"


class _Verb(ModuleType):
    """A package that is called by its name: `planner.sweep(...)` is `planner.library.verbs.sweep(...)`."""

    def __call__(self, *args: object, **options: object) -> object:
        return self._function(*args, **options)

    @property
    def __signature__(self) -> "inspect.Signature":
        """What `inspect.signature` and completion show."""
        import inspect

        return inspect.signature(self._function)

    @property
    def _function(self) -> "Callable[..., object]":
        import importlib

        function: Callable[..., object] = getattr(
            importlib.import_module(_HOME_OF_VERBS), self.__name__.rpartition(".")[2]
        )
        return function


class _Front(ModuleType):
    """This package, whose parts named like a verb can be called as soon as they are imported, by whomever."""

    def __setattr__(self, name: str, value: object) -> None:
        if name in _VERBS and isinstance(value, ModuleType):
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front


def __getattr__(name: str) -> object:
    """The public names, imported when first used, so that `import planner` costs nothing (PEP 562)."""
    import importlib

    if name in _VERBS:
        return importlib.import_module(f"planner.{name}")
    if name not in _HOME:
        raise AttributeError(f"module `planner` has no attribute `{name}`")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
