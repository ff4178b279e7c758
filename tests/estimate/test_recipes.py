"""Settings that recipes of public benchmarks give to rows whose table does not state them."""

import pytest

from planner.errors import PlannerError
from planner.estimate.case import Case
from planner.estimate.measured import case_of_row
from planner.estimate.recipes import Recipe, recipe_of

DISAGGREGATED = {
    "id": "d", "source": "inferencex", "family": "DeepSeek-R1/V3", "aic_model": "deepseek-ai/DeepSeek-V3",
    "weights": "fp8_block", "system": "gb200", "backend": "trtllm", "mode": "disagg", "isl": "1024", "osl": "8192",
    "concurrency": "36", "gpus": "40",
    "prefill_workers": "1", "prefill_tp": "1", "prefill_pp": "1", "prefill_dp": "8", "prefill_moe_tp": "1",
    "prefill_moe_ep": "8", "decode_workers": "4", "decode_tp": "8", "decode_pp": "1", "decode_dp": "1",
    "decode_moe_tp": "8", "decode_moe_ep": "1",
}  # fmt: skip
COLOCATED = {
    "id": "c", "source": "inferencex", "family": "MiniMax-M2.5", "aic_model": "MiniMaxAI/MiniMax-M2.5",
    "weights": "fp8_block", "system": "b200_sxm", "backend": "vllm", "mode": "agg", "isl": "8192", "osl": "1024",
    "concurrency": "64", "gpus": "2", "tp": "2", "pp": "1", "dp": "1", "moe_tp": "2", "moe_ep": "1",
}  # fmt: skip


def case(row: dict[str, str], **changes: str) -> Case:
    return case_of_row({**row, **changes})


@pytest.mark.parametrize(("concurrency", "batch"), [("4", 1), ("36", 8), ("64", 16), ("252", 32)])
def test_disaggregated_recipes_limit_the_batch_to_a_power_of_two(concurrency: str, batch: int) -> None:
    assert case(DISAGGREGATED, concurrency=concurrency).decode.max_batch == batch


def test_a_sweep_over_concurrency_runs_at_one_limit() -> None:
    few = {"weights": "nvfp4", "osl": "1024", "concurrency": "12"}
    assert case(DISAGGREGATED, **few).decode.max_batch == 32
    assert case(DISAGGREGATED, **{**few, "concurrency": "5"}).decode.max_batch == 1


def test_settings_that_the_table_states_win() -> None:
    stated = case(COLOCATED, max_batch="48", chunk_tokens="4096", memory_utilisation="0.8")
    assert (stated.decode.max_batch, stated.decode.chunk_tokens, stated.memory_utilisation) == (48, 4096, 0.8)
    assert case(COLOCATED).decode.chunk_tokens == 2 * 8192


@pytest.mark.parametrize("limit", [{"max_batch": "-5"}, {"chunk_tokens": "-1"}])
def test_negative_limits_are_refused(limit: dict[str, str]) -> None:
    with pytest.raises(PlannerError, match="max_batch or chunk_tokens"):
        case(COLOCATED, **limit)


def test_the_cache_has_the_format_of_the_recipe() -> None:
    assert case(COLOCATED).arch.precisions.kv_cache == "fp8"
    assert case(COLOCATED, system="h200_sxm").arch.precisions.kv_cache != "fp8"
    assert case(COLOCATED, source="mine").arch.precisions.kv_cache != "fp8"


def test_runs_of_no_known_source_have_no_recipe() -> None:
    assert recipe_of({**COLOCATED, "source": "mine"}, 64, 1) == Recipe()
    assert case(COLOCATED, source="").poll_steps == 0.0


def test_gap_runs_in_thousands_of_tokens_start_one_after_the_other() -> None:
    assert case(COLOCATED, source="nvidia-gap", isl="4000").staggered
    assert not case(COLOCATED, source="nvidia-gap", isl="4096").staggered


def test_held_prompts_are_those_of_the_recipes() -> None:
    llama = {"family": "Llama-3.x-70B", "aic_model": "meta-llama/Llama-3.1-70B", "weights": "fp8", "backend": "trtllm",
             "isl": "1024", "osl": "1024"}  # fmt: skip
    assert case(COLOCATED, **llama).hold_steps == 20.0
    assert case(COLOCATED, **{**llama, "osl": "8192"}).hold_steps == 0.0
