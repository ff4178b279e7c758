"""What every field of a decision says, in words: the description in its schema, or the text here.

`meanings.yaml` holds, by class, the fields whose schema says no more than their name; a test walks all of them.
"""

import typing
from collections.abc import Iterator
from functools import cache
from importlib import resources

from pydantic import BaseModel

from planner.plan.schema import Decision


@cache
def _texts() -> dict[str, dict[str, str]]:
    """Texts by the name of a class, then of a field."""
    import yaml

    text = resources.files("planner.explain").joinpath("meanings.yaml").read_text(encoding="utf-8")
    texts: dict[str, dict[str, str]] = yaml.safe_load(text)
    return texts


def meaning(decision: type[Decision], path: str) -> str:
    """What a field says, by its dotted path in the decision of a kind, such as `weight_sync.method`; empty of none."""
    model: type[BaseModel] | None = decision
    text = ""
    for name in path.split("."):
        field = model.model_fields.get(name) if model is not None else None
        if model is None or field is None:
            return text
        text = field.description or _text_of(model, name)
        model = next(_models(field.annotation), None)
    return text


def field_paths(model: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel], str]]:
    """Every field below a model: its dotted path, the class that has it, and its name there."""
    for name, field in model.model_fields.items():
        yield name, model, name
        for inner in _models(field.annotation):
            for path, owner, own in field_paths(inner):
                yield f"{name}.{path}", owner, own


def _text_of(model: type[BaseModel], name: str) -> str:
    return next(
        (_texts()[base.__name__][name] for base in model.__mro__ if name in _texts().get(base.__name__, {})), ""
    )


def _models(annotation: object) -> Iterator[type[BaseModel]]:
    """Models that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models(part)
