"""Adds a model to the user's catalog: a file of entries as it is, or a config.json turned into an entry."""

from dataclasses import dataclass
from pathlib import Path

from planner.documents.read import Document, load_document, parse_document
from planner.documents.user_catalog import MODELS, add_to_catalog, catalog_file, catalog_stamps
from planner.errors import PlannerError
from planner.models.architecture import Architecture
from planner.models.layout import architecture_to_data
from planner.models.library import load_model, load_user_model, read_user_models


@dataclass(frozen=True, slots=True)
class ImportedModels:
    """The file that was written, and the names that it adds or replaces."""

    file: Path
    names: list[str]


def import_models(path: str | Path, *, name: str | None = None, force: bool = False) -> ImportedModels:
    """Checks the models at `path` and adds them to the user's catalog.

    `path` is a YAML file of entries, a config.json or a folder that holds one; `name` is what the model of a config is
    called, else it is named after its folder. Raises PlannerError for a mistake; nothing is written then.
    """
    place = Path(path)
    if place.suffix in (".yaml", ".yml"):
        if name is not None:
            raise PlannerError("a file of entries names its models itself", where=str(path), hint="leave `--name` out")
        document, stem = load_document(place), place.stem
        text = place.read_text(encoding="utf-8-sig")
    else:
        arch = load_model(place)
        called = name or arch.name
        text, stem = _as_entry(called, arch), called
        document = parse_document(text, f"{stem}.yaml")
    names = _checked(document, catalog_file(MODELS, stem))
    return ImportedModels(add_to_catalog(MODELS, stem, text, force=force), names)


def _checked(document: Document, target: Path) -> list[str]:
    """The names in `document`, each of whose models loads beside the user's other files."""
    others = [load_document(path) for path, _, _ in catalog_stamps(MODELS, new=True) if Path(path) != target]
    user = read_user_models([*others, document])
    for name in document.data:
        load_user_model(name, user)
    return list(document.data)


def _as_entry(name: str, arch: Architecture) -> str:
    """A catalog entry of a model that came from a config.json."""
    import yaml

    entry = {"source": f"config.json of {arch.name}", **architecture_to_data(arch)}
    return str(yaml.safe_dump({name: entry}, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None))
