"""The catalog's layout: data and back, runs of layers, and broken entries."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import PlannerError
from planner.models.layout import architecture_from_data, architecture_to_data, run_lengths
from planner.models.library import find_model, list_models

ENTRY: dict[str, Any] = {
    "hidden_size": 64,
    "vocab_size": 100,
    "max_context_tokens": 1024,
    "tied_embeddings": False,
    "blocks": {
        "full": {
            "mixer": {"grouped_query": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 16, "v_head_dim": 16}},
            "ffn": {"dense": {"intermediate_size": 128}},
        }
    },
    "layers": [{"times": 3, "of": ["full"]}],
}


def _expand(order: list[object]) -> list[str]:
    names: list[str] = []
    for item in order:
        if isinstance(item, dict):
            names += _expand(item["of"]) * item["times"]
        else:
            names.append(str(item))
    return names


@pytest.mark.parametrize("defaults", [True, False])
def test_every_model_of_the_catalog_survives_the_round_trip(defaults: bool) -> None:
    for model in list_models():
        arch = find_model(model.name)
        data = architecture_to_data(arch, defaults=defaults)
        assert architecture_from_data(arch.name, data, where="entry", source=arch.source) == arch


@given(st.lists(st.sampled_from("abc"), max_size=60))
def test_folding_runs_loses_nothing(names: list[str]) -> None:
    folded = run_lengths(names)
    assert _expand(folded) == names
    assert len(folded) <= len(names)


def test_a_repeating_pattern_folds_into_one_run() -> None:
    assert run_lengths(["a", "a", "a", "b"] * 16) == [{"times": 16, "of": ["a", "a", "a", "b"]}]
    assert run_lengths(["d"] * 3 + ["m"] * 58) == [{"times": 3, "of": ["d"]}, {"times": 58, "of": ["m"]}]


def test_nested_runs_expand() -> None:
    inner = {"times": 2, "of": ["full", {"times": 3, "of": ["full"]}]}
    assert architecture_from_data("m", {**ENTRY, "layers": [inner, "full"]}, where="m").num_layers == 9


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("hidden_size",), None, r"entry\.hidden_size: must be a plain int, found None"),
        (("hidden_size",), "64", r"entry\.hidden_size: must be a plain int"),
        (("tied_embeddings",), 1, r"entry\.tied_embeddings: must be a plain bool"),
        (("hiden_size",), 64, "unknown field `hiden_size`"),
        (("name",), "other", "unknown field `name`"),
        (("blocks",), [], r"entry\.blocks: must be a mapping, found list"),
        (("blocks", "full", "mixer"), {"grouped": {}}, "must have one key of grouped_query, latent, linear"),
        (("blocks", "full", "mixer", "grouped_query"), {"num_heads": 4}, "field `num_kv_heads` is missing"),
        (("layers",), [], "field `layers` is missing"),
        (("layers",), "full", r"entry\.layers: must be a list"),
        (("layers",), ["ful"], "unknown block `ful`"),
        (("layers",), [{"times": 0, "of": ["full"]}], r"must be a block or \{times, of\}"),
        (("layers",), [{"times": 10**12, "of": ["full"]}], "more than 10000 layers"),
        (("precisions",), {"attention": "fp9"}, r"entry\.precisions\.attention: unknown format `fp9`"),
        (("encoders",), {}, r"entry\.encoders: must be a list"),
    ],
)
def test_a_broken_entry_is_one_error_with_its_place(path: tuple[str, ...], value: object, message: str) -> None:
    broken = copy.deepcopy(ENTRY)
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(PlannerError, match=message):
        architecture_from_data("m", broken, where="entry")


def test_a_missing_field_is_named() -> None:
    for field in ("hidden_size", "vocab_size", "max_context_tokens", "tied_embeddings", "blocks", "layers"):
        with pytest.raises(PlannerError, match=f"field `{field}` is missing"):
            architecture_from_data("m", {k: v for k, v in ENTRY.items() if k != field}, where="entry")
