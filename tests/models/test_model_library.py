"""The catalog: names, aliases, agreement with the published configs, and what loading costs."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from planner.errors import PlannerError
from planner.models.architecture import Architecture
from planner.models.library import find_model, list_models, load_model, model_facts

CATALOG = Path(__file__).resolve().parents[2] / "models" / "catalog"
MEASURED = Path(__file__).resolve().parents[3] / "shared" / "data" / "serving" / "measured.csv"


def _bare(arch: Architecture) -> Architecture:
    return replace(arch, name="", source="")


def test_every_published_config_equals_its_catalog_entry(config_folders: list[Path]) -> None:
    for folder in config_folders:
        imported = load_model(folder)
        entry = find_model(imported.name)
        assert entry.name == imported.name
        if "Llama-4" in imported.name:  # the configs at hand are of their text parts
            entry = replace(entry, encoders=())
        assert _bare(entry) == _bare(imported), imported.name


def test_the_index_and_the_family_files_name_the_same_models() -> None:
    library = {
        name: path.stem
        for path in CATALOG.glob("*.yaml")
        if path.stem != "names"
        for name in yaml.safe_load(path.read_text(encoding="utf-8"))
    }
    assert {model.name: model.family for model in list_models()} == library


def test_no_spelling_means_two_models() -> None:
    spellings = [s.casefold() for model in list_models() for s in (model.name, *model.aliases)]
    assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize("name", [model.name for model in list_models()])
def test_every_entry_loads_states_its_source_and_has_plain_facts(name: str) -> None:
    arch = find_model(name)
    assert arch.name == name
    assert arch.source.startswith("https://")
    facts = model_facts(arch)
    assert json.loads(json.dumps(facts)) == facts
    assert arch.source not in json.dumps(facts)


def test_names_work_without_organisation_in_any_case_and_by_alias() -> None:
    for spelling, name in [
        ("qwen3-32b", "Qwen/Qwen3-32B"),
        ("QWEN/QWEN3-32B", "Qwen/Qwen3-32B"),
        ("meta-llama/Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B"),
        ("Meta-Llama-3.1-70B", "meta-llama/Meta-Llama-3.1-70B"),
        ("Llama-3.1-8B-Instruct", "meta-llama/Meta-Llama-3.1-8B"),
        ("Llama-3.1-8B-FP8", "nvidia/Llama-3.1-8B-Instruct-FP8"),
        ("Mixtral-8x7B", "mistralai/Mixtral-8x7B-v0.1"),
        (" opt-13b ", "facebook/opt-13b"),
    ]:
        assert find_model(spelling).name == name


def test_every_measured_deployment_has_its_model() -> None:
    if not MEASURED.exists():
        pytest.skip(f"no measured deployments at {MEASURED}")
    with MEASURED.open(encoding="utf-8") as stream:
        names = {row[column] for row in csv.DictReader(stream) for column in ("model", "aic_model")}
    assert len(names) > 8
    for name in names:
        assert not find_model(name).unsupported_parts()


def test_an_unknown_name_is_refused_with_the_nearest_ones() -> None:
    with pytest.raises(PlannerError, match="unknown model `Qwen3-33B`") as error:
        find_model("Qwen3-33B")
    assert "`Qwen/Qwen3-32B`" in error.value.hint
    assert "planner models list" in error.value.hint
    with pytest.raises(PlannerError) as nothing_near:
        find_model("$(reboot)")
    assert nothing_near.value.hint == "list them with `planner models list`"


def test_facts_tell_precisions_and_layers_apart_but_not_places() -> None:
    assert model_facts(find_model("Qwen3-32B")) != model_facts(find_model("Qwen3-32B-FP8"))
    arch = find_model("Qwen3-32B")
    assert model_facts(replace(arch, source="elsewhere", metadata={"a": "b"})) == model_facts(arch)
    assert model_facts(replace(arch, layers=arch.layers[1:])) != model_facts(arch)


def test_loading_one_model_parses_one_family_and_imports_neither_numpy_nor_pydantic() -> None:
    """What it takes in a new process is held to its aim by benchmarks/stated_times.py."""
    program = (
        "import sys; from planner.models import library\n"
        "parsed, load = [], library.load_document\n"
        "library.load_document = lambda path: parsed.append(path.stem) or load(path)\n"
        "library.find_model('DeepSeek-V3'), library.find_model('deepseek-v3')\n"
        "print(*parsed, *({'numpy', 'pydantic'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["names", "deepseek"]
