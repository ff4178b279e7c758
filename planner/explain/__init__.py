"""Explains a plan: binding limits, what each limit is worth (shadow prices), and what would change the plan."""

from planner.explain.explanation import Explanation, explain_plan
from planner.explain.facts import Fact
from planner.explain.fields import field_names

__all__ = ["Explanation", "Fact", "explain_plan", "field_names"]
