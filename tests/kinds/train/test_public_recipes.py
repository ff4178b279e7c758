"""The table of public recipes: each a problem that its engine can be asked for, with a source."""

import pytest
from sealed_groups import rows_of
from train_problems import job
from training_recipes import RECIPES, Row, problem

ROWS = rows_of(RECIPES)


def test_there_are_ten_with_sources_from_8b_to_671b() -> None:
    assert len(ROWS) == 10
    assert all(row["source"] for row in ROWS)
    assert {"meta-llama/Llama-3.1-8B", "deepseek-ai/DeepSeek-V3"} <= {row["model"] for row in ROWS}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_what_a_recipe_states_is_legal_for_its_engine(row: Row) -> None:
    made = job(problem(row, fixed=True))
    degrees = [int(row[name] or 1) for name in ("tp", "pp", "cp", "dp")]
    assert made.num_gpus == int(row["num_gpus"]) == degrees[0] * degrees[1] * degrees[2] * degrees[3]
    assert made.strict == bool(row["engine"])
    stages = made.engine.stages(degrees[1], "pretrain")
    assert int(row["zero_stage"]) in stages
    assert int(row["micro_batch"] or 1) * degrees[3] <= made.options.global_batch
