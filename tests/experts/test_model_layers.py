"""Recorded layers set against those of a model: dense ones left out, missing loads and other models refused."""

from pathlib import Path

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.experts.forms import FORMS, files_of, launch_rows
from planner.experts.model_layers import ModelLayers, layers_of
from planner.experts.readers import read_loads
from planner.models.library import find_model

MODEL = ModelLayers("made-up", 5, (1, 3), (5,), 4)
COUNTS = np.arange(1.0, 9.0).reshape(2, 4)


def _saved(folder: Path, rows: dict[int, int], layers: int) -> Path:
    """A file of `layers` rows; row -> which of COUNTS it holds."""
    load = np.zeros((layers, 4))
    for row, place in rows.items():
        load[row] = COUNTS[place]
    np.savez(folder / "loads.npz", load=load)
    return folder / "loads.npz"


def test_layers_of_a_catalog_model_are_numbered_with_dense_and_mtp_ones() -> None:
    layers = layers_of(find_model("deepseek-ai/DeepSeek-V3"))
    assert layers.num_layers == 61
    assert layers.expert_ids == tuple(range(3, 61))
    assert layers.mtp_ids == (61,)
    assert layers.num_experts == 256
    assert layers.ids_of(59)[-1] == 61
    with pytest.raises(PlannerError, match="57 layers are laid out, `deepseek-ai/DeepSeek-V3` has 58"):
        layers.ids_of(57)
    with pytest.raises(PlannerError, match="has no experts"):
        layers_of(find_model("Qwen/Qwen3-32B"))


@pytest.mark.parametrize("layers", [5, 6])
def test_rows_of_all_layers_lose_the_dense_ones_of_the_model(tmp_path: Path, layers: int) -> None:
    rows = {1: 0, 3: 1} | ({5: 0} if layers == 6 else {})
    loads = read_loads(_saved(tmp_path, rows, layers), model=MODEL)
    assert loads.layer_ids == (1, 3, 5)[: len(rows)]
    assert loads.total_LE[:2].tolist() == COUNTS.tolist()


def test_rows_of_layers_with_experts_alone_get_the_numbers_of_the_model(tmp_path: Path) -> None:
    assert read_loads(_saved(tmp_path, {0: 0, 1: 1}, 2), model=MODEL).layer_ids == (1, 3)


@pytest.mark.parametrize(
    ("rows", "layers", "said"),
    [
        ({1: 0}, 5, "layer 3 of `made-up` has experts and no load"),
        ({0: 1, 1: 0, 3: 1}, 5, "layer 0 has loads, in `made-up` it is dense"),
        ({0: 1}, 4, "holds 4 layers of 4 experts, `made-up` has 2 of 4"),
    ],
)
def test_loads_that_are_not_those_of_the_model_are_refused(
    tmp_path: Path, rows: dict[int, int], layers: int, said: str
) -> None:
    with pytest.raises(PlannerError, match=said):
        read_loads(_saved(tmp_path, rows, layers), model=MODEL)


def test_experts_that_no_record_names_have_no_load(tmp_path: Path) -> None:
    lines = ['{"step": 0, "layer": %d, "top_indices": [[0, 2]]}' % layer for layer in (1, 3)]  # noqa: UP031
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    assert read_loads(tmp_path / "trace.jsonl", model=MODEL).total_LE.tolist() == [[1, 0, 1, 0]] * 2


@pytest.mark.parametrize("form", list(FORMS))
def test_the_layout_is_the_first_file_of_every_form(form: str) -> None:
    rows = launch_rows(np.array([[0, 1, 2, 3, 0, 1]] * 2), 2, MODEL)
    assert next(iter(files_of(form, rows))) == FORMS[form].layout


def test_layouts_of_other_models_and_with_free_shares_do_not_leave() -> None:
    with pytest.raises(PlannerError, match="4 layers are laid out, `made-up` has 2"):
        launch_rows(np.array([[0, 1, 2, 3]] * 4), 2, MODEL)
    with pytest.raises(PlannerError, match="share the tokens of an expert equally"):
        launch_rows(np.array([[0, 1, 2, 3]] * 2), 2, MODEL, free_shares=True)
