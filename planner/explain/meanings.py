"""What every field of a decision says, in words, by its path."""

import typing
from collections.abc import Iterator

from pydantic import BaseModel

from planner.plan.schema import Decision
from planner.schema.meanings import meaning_of


def meaning(decision: type[Decision], path: str) -> str:
    """What a field says, by its dotted path in the decision of a kind, such as `weight_sync.method`; empty of none."""
    model: type[BaseModel] | None = decision
    text = ""
    for name in path.split("."):
        if model is None or name not in model.model_fields:
            return text
        text = meaning_of(model, name)
        model = next(_models(model.model_fields[name].annotation), None)
    return text


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Models that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)
