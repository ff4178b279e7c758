"""Plans with the config.json of their models named where it lies, so that models are read from it again.

A plan names a model that came from a config.json without its folder. What prices or launches a plan reads the model;
it is given a plan that names the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, NotAtHand, config_at_hand, recorded_problem

if TYPE_CHECKING:
    from planner.models.architecture import Architecture


def located(envelope: Envelope, hand: AtHand) -> Envelope:
    """The plan with every config.json that is at hand; by their digests, they are those that it was made from."""
    problem, paths = recorded_problem(envelope.inputs), dict[str, Path]()
    if problem is None:
        return envelope
    for key in (key for key, spec in problem.models.items() if spec.config is not None):
        try:
            paths[key] = config_at_hand(problem, key, envelope.digests.models, hand)
        except NotAtHand:
            continue
    return _named(envelope, paths)


def located_by(envelope: Envelope, models: Mapping[str, "Architecture"]) -> Envelope:
    """The plan of a problem whose models have been read, each from where it was."""
    return _named(envelope, {key: Path(model.source) for key, model in models.items() if model.source})


def _named(envelope: Envelope, paths: Mapping[str, Path]) -> Envelope:
    """The plan with these files as those of its models, but for models of the catalog."""
    models = envelope.inputs.get("models")
    if not isinstance(models, dict):
        return envelope
    files: dict[str, JsonValue] = {
        key: {**spec, "config": str(paths[key].resolve())}
        for key, spec in models.items()
        if key in paths and isinstance(spec, dict) and "config" in spec
    }
    if not files:
        return envelope
    return envelope.model_copy(update={"inputs": {**envelope.inputs, "models": {**models, **files}}})
