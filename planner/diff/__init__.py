"""What differs between two plans of any kind."""

from planner.diff.plans import Figure, PlanDiff, diff_plans
from planner.diff.tree import Change
from planner.diff.weights import Kept

__all__ = ["Change", "Figure", "Kept", "PlanDiff", "diff_plans"]
