"""The page on adding a model, followed step by step."""

import re
from dataclasses import replace
from pathlib import Path

import yaml

from planner.models import library
from planner.models.layout import architecture_from_data
from planner.models.library import load_model
from planner.models.parameters import parameter_counts
from planner.models.precision import with_precision

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "adding-a-model.md").read_text(encoding="utf-8")


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_config_and_the_entry_of_the_page_are_the_same_model(tmp_path: Path) -> None:
    problem, entry, _variant = (yaml.safe_load(block) for block in _blocks("yaml"))
    folder = tmp_path / problem["models"]["tiny"]["config"]
    folder.mkdir()
    (folder / "config.json").write_text(_blocks("json")[0], encoding="utf-8")
    imported = load_model(folder)
    ((name, data),) = entry.items()
    source = data.pop("source")
    assert imported == replace(architecture_from_data(name, data, where="page", source=source), source=str(folder))


def test_the_page_states_the_counts_of_its_example(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(_blocks("json")[0], encoding="utf-8")
    counts = parameter_counts(load_model(tmp_path))
    assert f"{counts.total:,}" in PAGE
    assert f"{counts.active:,}" in PAGE


def test_the_catalog_finds_the_entries_of_the_page_and_the_variant_is_a_conversion(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("\n".join(_blocks("yaml")[1:]), encoding="utf-8")
    (tmp_path / "names.yaml").write_text("lab:\n  lab/tiny-moe: [tiny]\n  lab/tiny-moe-NVFP4: []\n", encoding="utf-8")
    caches = (library._index, library._names, library._load, library._family)
    before = library._CATALOG
    try:
        library._CATALOG = tmp_path
        for cached in caches:
            cached.cache_clear()
        base, variant = library.find_model("TINY"), library.find_model("tiny-moe-nvfp4")
    finally:
        library._CATALOG = before
        for cached in caches:
            cached.cache_clear()
    assert replace(with_precision(base, "nvfp4", "fp8"), name=variant.name, source=variant.source) == variant
    assert variant.precisions.experts == "nvfp4"


def test_every_path_the_page_names_exists() -> None:
    root = Path(__file__).resolve().parents[2]
    for path in set(re.findall(r"`((?:models|tests)/[\w./]*)`", PAGE)):
        assert (root / path).exists(), path
