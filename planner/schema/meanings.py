"""What fields say whose schema has no description: `meanings.yaml`, by class; a test walks all of them."""

from functools import cache
from importlib import resources

from pydantic import BaseModel


@cache
def _texts() -> dict[str, dict[str, str]]:
    """Texts by the name of a class, then of a field."""
    import yaml

    text = resources.files("planner.schema").joinpath("meanings.yaml").read_text(encoding="utf-8")
    texts: dict[str, dict[str, str]] = yaml.safe_load(text)
    return texts


def meaning_of(model: type[BaseModel], name: str) -> str:
    """The description of a field in its schema, or the text here, of its class or of a base; empty without any."""
    texts = (_texts().get(base.__name__, {}).get(name, "") for base in model.__mro__)
    return model.model_fields[name].description or next(filter(None, texts), "")
