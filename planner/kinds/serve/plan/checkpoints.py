"""Checkpoints that must be there before a plan can be launched."""

from collections.abc import Iterator, Sequence

from planner.engines.formats import as_stored, made_while_loading, stored_formats
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.models.library import find_model
from planner.problem.schema import ModelSpec, Problem


def checkpoint_assumptions(problem: Problem, keys: Sequence[str]) -> Iterator[str]:
    """Models of a plan in formats that their checkpoints do not bring, and that the engine does not make of them."""
    engine = SERVING_ENGINES[problem.engine.name]
    for key in dict.fromkeys(keys):
        spec = problem.models[key]
        stored, weights = _stored(spec), spec.weights
        if weights is None or as_stored(weights, stored) or made_while_loading(weights, stored, engine.quantises):
            continue
        able = " and ".join(engine.quantises) or "no format"
        yield (
            f"`{key}` needs a checkpoint quantised to {weights} beforehand: {engine.title} makes {able} of bf16 weights"
            " while loading them, and `emit` takes the name of one that brings the format"
        )


def _stored(spec: ModelSpec) -> frozenset[str]:
    """Formats of the checkpoint; none where the catalog does not know it."""
    try:
        return frozenset() if spec.name is None else stored_formats(find_model(spec.name))
    except PlannerError:
        return frozenset()
