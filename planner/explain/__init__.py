"""Why a plan is what it is: what binds it, what each limit is worth, and what would change it."""

from planner.explain.explanation import Explanation, explain_plan
from planner.explain.facts import Fact
from planner.explain.fields import field_names

__all__ = ["Explanation", "Fact", "explain_plan", "field_names"]
