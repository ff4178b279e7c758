"""Reads what is recorded in a plan: its problem, the options of its kind, and its models from the catalog."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import JsonValue, ValidationError

from planner.errors import PlannerError
from planner.problem.resolve import resolve_model
from planner.problem.schema import Problem
from planner.schema.base import Spec, Where

if TYPE_CHECKING:
    from planner.models.architecture import Architecture

Options = TypeVar("Options", bound=Spec)

INPUTS = Where({}, "inputs")
"""Places in errors about the recorded problem."""


def recorded_problem(inputs: Mapping[str, JsonValue]) -> Problem | None:
    """The problem that a plan carries; None when it is not valid, which the check says by itself."""
    try:
        return Problem.model_validate(inputs)
    except ValidationError:
        return None


def recorded_options(problem: Problem | None, options: type[Options]) -> Options | None:
    """What the problem states for its kind; None when that is not valid, which the check says by itself."""
    try:
        return options.model_validate(problem.options) if problem is not None else None
    except ValidationError:
        return None


def recorded_model(problem: Problem, key: str | None) -> "Architecture | None":
    """The catalog's model under `key`; None for one that came from a config.json, or that the catalog does not know."""
    if key not in problem.models or problem.models[key].name is None:
        return None
    try:
        return resolve_model(problem, key, INPUTS, Path())
    except PlannerError:
        return None
