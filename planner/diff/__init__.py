"""Differences between two plans of any kind."""

from planner.diff.plans import FigureChange, PlanDiff, diff_plans
from planner.diff.tree import FieldChange
from planner.diff.weights import KeptWeights

__all__ = ["FieldChange", "FigureChange", "KeptWeights", "PlanDiff", "diff_plans"]
