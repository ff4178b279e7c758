"""Settings are columns: what recipes of public runs fill, what engines set where they are empty, and nothing else."""

import math
from dataclasses import replace

import pytest
from recipe_columns import filled, load_alone

from planner.engines.settings import setting_rows
from planner.errors import PlannerError
from planner.estimate.batches import batch_of
from planner.estimate.case import Case, Refused
from planner.estimate.evaluate import Estimate, evaluate
from planner.estimate.measured import case_of_row, rows_of_table
from planner.estimate.settings import OLDEST, priced_version

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
    "measured": "2026-04-22",
}  # fmt: skip


def case(row: dict[str, str], **changes: str) -> Case:
    """The deployment of a row that its recipe filled."""
    return case_of_row(filled({**row, **changes}))


def gap_case(**changes: str) -> Case:
    """A run of NVIDIA's gap analysis with what its times tell."""
    return case_of_row(filled({**COLOCATED, "source": "nvidia-gap", **changes}, inferred=True))


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


def test_a_share_of_hits_beyond_one_is_refused() -> None:
    with pytest.raises(PlannerError, match="prefix_hits"):
        case(COLOCATED, prefix_hits="1.5")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"backend": "TRT-LLM"}, "unknown engine `TRT-LLM`"),
        ({"gpus": "8"}, "`gpus` is 8, and the degrees of parallelism make 2"),
        ({"isl": "0"}, "isl of the row cannot be"),
    ],
)
def test_what_contradicts_itself_or_is_unknown_is_named(changes: dict[str, str], says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        case_of_row({**COLOCATED, **changes})


@pytest.mark.parametrize(
    ("header", "row", "says"),
    [("osl", "1,2", "more values than the 8 columns of the header"), ("osl,osl", "1,2", "has two columns `osl`")],
)
def test_tables_whose_values_have_no_column_of_their_own_are_refused(header: str, row: str, says: str) -> None:
    lines = [f"id,system,backend,mode,isl,concurrency,gpus,{header}", f"a,h100_sxm,vllm,agg,8,1,1,{row}"]
    with pytest.raises(PlannerError, match=says):
        list(rows_of_table(lines, "own.csv"))


@pytest.mark.parametrize("limit", [{"max_batch": "-5"}, {"chunk_tokens": "-1"}])
def test_negative_limits_are_refused(limit: dict[str, str]) -> None:
    with pytest.raises(PlannerError, match=f"`{next(iter(limit))}` of the row cannot be"):
        case(COLOCATED, **limit)


def test_the_cache_has_the_format_of_the_recipe() -> None:
    assert case(COLOCATED).arch.precisions.kv_cache == "fp8"
    assert case(COLOCATED, system="h200_sxm").arch.precisions.kv_cache != "fp8"
    assert case(COLOCATED, source="mine").arch.precisions.kv_cache != "fp8"


def test_a_recipe_is_that_of_the_day() -> None:
    early = case(COLOCATED, measured="2026-03-28")
    assert (early.arch.precisions.kv_cache, early.captured_tokens) == ("bf16", None)
    assert case(COLOCATED).captured_tokens == 2048.0


def test_checkpoints_convert_what_their_cards_say() -> None:
    deepseek = case(DISAGGREGATED, weights="nvfp4").arch.precisions
    assert (deepseek.attention, deepseek.output_projection) == ("bf16", "nvfp4")
    assert case(DISAGGREGATED).arch.precisions.output_projection == "fp8_block"


@pytest.mark.parametrize(("system", "inputs"), [("b200_sxm", "fp8"), ("h200_sxm", "bf16")])
def test_inputs_of_experts_are_those_that_the_device_multiplies(system: str, inputs: str) -> None:
    gpt = {"family": "gpt-oss-120b", "aic_model": "openai/gpt-oss-120b", "weights": "mxfp4"}
    assert case(COLOCATED, **gpt, system=system).arch.precisions.expert_activation == inputs


@pytest.mark.parametrize(
    ("batch", "degrees"), [("64", (2, 1, 64)), ("32", (1, 2, 64)), ("4", (2, 1, 4)), ("", (2, 1, 64))]
)
def test_requests_of_a_rank_tell_of_ranks_that_are_not_stated(batch: str, degrees: tuple[int, int, int]) -> None:
    """As many as tensor-parallel ranks: attention data parallel; more: one of several instances."""
    deployment = case(COLOCATED, batch_per_rank=batch)
    assert (deployment.decode.tp, deployment.decode.dp, deployment.clients) == degrees


def test_a_version_of_the_framework_is_not_that_of_the_engine() -> None:
    assert case(DISAGGREGATED, backend_version="0.8.1.post1").version is None
    assert case(DISAGGREGATED, backend_version="1.0.0rc3").version == "1.0.0rc3"
    assert case(COLOCATED, backend_version="0.12.0", source="nvidia-gap").version == "0.12.0"


@pytest.mark.parametrize(
    ("row", "changes", "version"),
    [
        (COLOCATED, {"backend": "sglang", "measured": "2025-11-10"}, "0.5.5"),
        (COLOCATED, {"backend": "sglang", "measured": "2026-01-10"}, None),
        (COLOCATED, {"backend": "sglang", "measured": "2025-11-10", "backend_version": "0.5.9"}, "0.5.9"),
        (COLOCATED, {"backend": "trtllm", "measured": "2025-10-29"}, "1.1.0"),
        (COLOCATED, {"backend": "trtllm", "backend_version": "1.1.0rc2.post2"}, "1.1.0rc2.post2"),
        (COLOCATED, {"backend": "vllm", "measured": "2025-10-29"}, None),
        (DISAGGREGATED, {"backend_version": "0.5.1-rc0.pre3"}, "1.1.0"),
        (DISAGGREGATED, {"measured": "2025-12-15"}, "1.1.0"),
        (DISAGGREGATED, {"measured": "2026-02-15"}, None),
    ],
)
def test_releases_that_a_table_leaves_out_are_those_of_the_day(
    row: dict[str, str], changes: dict[str, str], version: str | None
) -> None:
    assert case(row, **changes).version == version


@pytest.mark.parametrize(("dp", "degrees"), [("32", (1, 32, 32)), ("4", (4, 1, 1))])
def test_recipes_that_leave_out_expert_parallelism_have_it_over_nodes(dp: str, degrees: tuple[int, int, int]) -> None:
    ranks = {"decode_tp": "1", "decode_dp": dp, "decode_moe_tp": dp, "decode_moe_ep": "1", "decode_workers": "1"}
    ranks["gpus"] = str(8 + int(dp))
    early = case(DISAGGREGATED, backend="sglang", backend_version="0.5.5.post2", **ranks).decode
    assert (early.tp, early.dp, early.ep) == degrees
    later = case(DISAGGREGATED, backend="sglang", backend_version="0.5.8", **ranks).decode
    assert (later.tp, later.dp, later.ep, later.moe_tp) == (1, int(dp), 1, int(dp))


def test_attention_ranks_wait_for_each_other_half_of_the_longest_wait_at_most() -> None:
    row = {**COLOCATED, "backend": "trtllm", "family": "gpt-oss-120b", "osl": "1024", "moe_tp": "1"}
    assert case({**row, "dp": "1"}).hold_steps == 0.0
    assert case({**row, "dp": "2", "gpus": "4"}, concurrency="32").hold_steps == 30.0
    assert case({**row, "dp": "2", "gpus": "4"}, concurrency="512").hold_steps == pytest.approx(2 * 0.9 * 1024 / 512)


@pytest.mark.parametrize(
    ("backend", "isl", "chunk_tokens"),
    [("trtllm", "4096", 5660), ("trtllm", "128", 1692), ("sglang", "4096", 4096), ("sglang", "16384", 8192),
     ("vllm", "4096", 5660)],
)  # fmt: skip
def test_gap_runs_have_room_for_a_prompt_and_1500_tokens_in_a_step(backend: str, isl: str, chunk_tokens: int) -> None:
    """Beside the batch, but on SGLang, whose steps are of prompts alone, whole ones."""
    assert case(COLOCATED, source="nvidia-gap", backend=backend, isl=isl).decode.chunk_tokens == chunk_tokens


def test_prompts_of_gap_runs_on_sglang_share_steps_from_the_release_whose_template_says_so() -> None:
    gap = {**COLOCATED, "source": "nvidia-gap", "backend": "sglang", "isl": "4096", "concurrency": "256"}
    apart, shared = (case(gap, backend_version=release) for release in ("0.5.1.post1", "0.5.6.post2"))
    assert (apart.mixed_steps, shared.mixed_steps) == (False, True)
    waiting, beside = evaluate([apart, replace(apart, mixed_steps=True)], None)
    assert isinstance(waiting, Estimate)
    assert isinstance(beside, Estimate)
    assert beside.ttft_s < waiting.ttft_s
    assert beside.tpot_s > waiting.tpot_s


def test_estimates_look_neither_at_the_source_nor_at_the_shape_of_a_number() -> None:
    known = [case_of_row({**COLOCATED, "source": source, "isl": "4000"}) for source in ("inferencex", "nvidia-gap", "")]
    assert known[0] == known[1] == known[2]
    round_, odd = (case_of_row({**COLOCATED, "source": "nvidia-gap", "isl": isl}) for isl in ("4000", "4001"))
    assert replace(odd, isl=4000.0) == round_


def test_filling_leaves_other_tables_alone() -> None:
    own = {**COLOCATED, "source": "mine"}
    assert filled(own, inferred=True) == own


def test_several_scheduler_steps_tell_the_limits_of_the_engine_that_has_them() -> None:
    azure = {**COLOCATED, "source": "Azure AI-benchmarking-guide", "backend": "vllm", "max_batch": ""}
    made = case_of_row(filled(azure))
    assert (made.decode.max_batch, made.decode.chunk_tokens, made.poll_steps) == (256, 131072, 10.0)
    assert filled({**azure, "backend": "trtllm"}) == {**azure, "backend": "trtllm"}


def test_gap_runs_in_thousands_of_tokens_start_one_after_the_other() -> None:
    assert gap_case(backend="sglang", isl="4000").staggered
    assert not gap_case(backend="sglang", isl="4096").staggered


def test_gap_runs_of_vllm_in_thousands_of_tokens_find_their_prompts_again() -> None:
    """Of 640 prompts 100 are new."""
    assert gap_case(isl="4000").prefix_hits == pytest.approx(540 / 640)
    assert gap_case(isl="4000", concurrency="4").prefix_hits == 0.0
    assert gap_case(isl="4000", prefix_hits="0.5").prefix_hits == 0.5


def test_delayed_prompts_are_those_of_the_recipes() -> None:
    llama = {"family": "Llama-3.x-70B", "aic_model": "meta-llama/Llama-3.1-70B", "weights": "fp8", "backend": "trtllm",
             "isl": "1024", "osl": "1024"}  # fmt: skip
    assert case(COLOCATED, **llama).hold_steps == 20.0
    assert case(COLOCATED, **{**llama, "osl": "8192"}).hold_steps == 0.0


def test_every_default_of_an_engine_has_its_source() -> None:
    rows = [row for rows in setting_rows().values() for row in rows]
    assert {"vllm", "sglang", "trtllm"} == set(setting_rows())
    assert all(row.source for row in rows)


@pytest.mark.parametrize(
    ("system", "backend", "limits"),
    [
        ("h100_sxm", "vllm", (8192, 1024)),
        ("a100_sxm", "vllm", (2048, 256)),
        ("h100_sxm", "sglang", (8192, 2048)),
        ("b200_sxm", "sglang", (16384, 2048)),
        ("l40s", "trtllm", (8192, 2048)),
    ],
)
def test_what_a_row_leaves_empty_is_the_engines_own(system: str, backend: str, limits: tuple[int, int]) -> None:
    decode = case_of_row({**COLOCATED, "system": system, "backend": backend, "weights": "bfloat16"}).decode
    assert (decode.chunk_tokens, decode.max_batch) == limits


@pytest.mark.parametrize(
    ("version", "limits"),
    [("0.6.3", (512, 256)), ("0.6.5", (2048, 256)), ("0.8.0", (8192, 1024)), ("", (8192, 1024))],
)
def test_limits_of_vllm_are_those_of_its_release(version: str, limits: tuple[int, int]) -> None:
    decode = case_of_row({**COLOCATED, "system": "h100_sxm", "backend": "vllm", "backend_version": version}).decode
    assert (decode.chunk_tokens, decode.max_batch) == limits


@pytest.mark.parametrize(
    ("backend", "version", "cache"),
    [("vllm", "0.12.0", "bf16"), ("vllm", "0.14.0", "fp8"), ("vllm", "", "fp8"),
     ("sglang", "0.5.1.post1", "bf16"), ("sglang", "0.5.3", "fp8"), ("trtllm", "1.0.0rc3", "fp8")],
)  # fmt: skip
def test_a_cache_that_the_checkpoint_names_is_that_of_releases_which_read_it(
    backend: str, version: str, cache: str
) -> None:
    row = {**COLOCATED, "weights": "nvfp4", "backend": backend, "backend_version": version}
    assert case_of_row(row).arch.precisions.kv_cache == cache
    assert case_of_row({**row, "kv_cache": "bf16"}).arch.precisions.kv_cache == "bf16"


@pytest.mark.parametrize(
    ("backend", "system", "inputs"),
    [("trtllm", "b200_sxm", "fp8"), ("trtllm", "h200_sxm", "bf16"), ("vllm", "b200_sxm", "bf16")],
)
def test_inputs_of_experts_unasked_are_those_of_the_engine(backend: str, system: str, inputs: str) -> None:
    row = {**COLOCATED, "aic_model": "openai/gpt-oss-120b", "weights": "mxfp4", "backend": backend, "system": system}
    assert case_of_row(row).arch.precisions.expert_activation == inputs
    assert case_of_row({**row, "expert_inputs": "bf16"}).arch.precisions.expert_activation == "bf16"


@pytest.mark.parametrize(("backend", "unasked"), [("trtllm", True), ("vllm", False), ("sglang", False)])
def test_prompts_are_cut_but_on_tensorrt_llm_unasked(backend: str, unasked: bool) -> None:
    row = {**COLOCATED, "backend": backend}
    said = [case_of_row({**row, "chunked_prefill": own}).whole_prompts for own in ("", "0", "1")]
    assert said == [unasked, True, False]


@pytest.mark.parametrize(
    ("version", "degrees", "share"),
    [
        ("0.5.1.post1", (8, 1), (183359 - 32 * 1024) / 183359),
        ("0.5.9", (8, 1), (183359 - 512 - 1.5 * 16384 - 2 * 512 - 1024) / 183359),
        ("0.5.9", (1, 8), (183359 - 512 - 1.5 * 16384 - 2 * 512 - 1024 - 4.5 * 512 * 8) / 183359),
    ],
)
def test_sglang_leaves_to_the_cache_what_a_step_and_its_graphs_do_not_reserve(
    version: str, degrees: tuple[int, int], share: float
) -> None:
    tp, dp = map(str, degrees)
    row = {**COLOCATED, "backend": "sglang", "backend_version": version, "tp": tp, "dp": dp, "moe_tp": "8", "gpus": "8"}
    assert case_of_row(row).memory_utilisation == pytest.approx(share, abs=5e-4)
    assert case_of_row({**row, "memory_utilisation": "0.7"}).memory_utilisation == 0.7


@pytest.mark.parametrize(
    ("changes", "columns"),
    [
        ({"measured": "2025-12-15"}, (None, None)),
        ({"measured": "2026-01-29"}, ("8192", "40")),
        ({"measured": "2026-01-29", "concurrency": "32"}, (None, None)),
        ({"measured": "2026-01-29", "isl": "8192"}, ("8320", None)),
        ({"measured": "2026-02-03", "weights": "nvfp4", "gpus": "8", "moe_ep": "8"}, ("8192", None)),
        ({"measured": "2026-02-03", "weights": "nvfp4"}, (None, None)),
    ],
)
def test_deepseek_on_b200_has_graphs_of_prompts_from_the_day_that_its_recipe_says_so(
    changes: dict[str, str], columns: tuple[str | None, str | None]
) -> None:
    row = {**COLOCATED, "family": "DeepSeek-R1/V3", "backend": "trtllm", "isl": "1024", **changes}
    assert (filled(row).get("captured_tokens"), filled(row).get("hold_steps")) == columns


def test_prompts_of_later_disaggregated_recipes_have_steps_of_their_own_size() -> None:
    assert filled({**DISAGGREGATED, "measured": "2026-02-05"})["chunk_tokens"] == "16384"
    assert "chunk_tokens" not in filled({**DISAGGREGATED, "measured": "2025-12-19"})


@pytest.mark.parametrize(
    ("version", "most_tp"), [("0.11.0", 0), ("0.11.2", 1024), ("0.12.0", 7), ("0.14.1", 7), ("0.15.0", 0), ("", 0)]
)
def test_releases_of_vllm_that_compute_whole_tiles_of_experts_decode_at_one_pace(version: str, most_tp: int) -> None:
    row = {**COLOCATED, "system": "h200_sxm", "osl": "8192", "isl": "1024", "backend_version": version}
    few, many = (case_of_row({**row, "concurrency": clients}) for clients in ("4", "16"))
    assert few.whole_tiles == most_tp
    answers = evaluate([few, many], None)
    paces = [answer.tpot_s for answer in answers if isinstance(answer, Estimate)]
    assert (paces[1] < 1.2 * paces[0]) == (most_tp > 0)
    assert case_of_row({**row, "whole_tiles": "0"}).whole_tiles == 0.0
    assert case_of_row({**row, "whole_tiles": "1"}).whole_tiles == math.inf


@pytest.mark.parametrize(
    ("backend", "day", "requests"),
    [
        ("sglang", "2025-12-21", "1280"),
        ("trtllm", "2025-12-19", "2048"),
        ("trtllm", "2026-02-05", ""),
        ("sglang", "", ""),
    ],
)
def test_disaggregated_runs_sent_as_many_requests_as_the_scripts_of_their_day(
    backend: str, day: str, requests: str
) -> None:
    row = {**DISAGGREGATED, "backend": backend, "measured": day, "concurrency": "256"}
    assert filled(row).get("requests", "") == requests
    assert load_alone(row).get("requests", "") == requests


def test_a_run_of_a_literal_concurrency_has_the_batch_of_the_middle_of_its_sweep_only_where_inferred() -> None:
    row = {**COLOCATED, "family": "gpt-oss-120b", "aic_model": "openai/gpt-oss-120b", "weights": "mxfp4"}
    hopper = {**row, "system": "h100_sxm", "concurrency": "512"}
    inferred = case_of_row(filled(hopper, inferred=True))
    assert (inferred.decode.max_batch, inferred.requests_per_client) == (16, 160 / 512)
    assert case(hopper).decode.max_batch == 1024
    assert not {"max_batch", "requests"} & filled(hopper).keys()
    assert case_of_row(filled({**hopper, "concurrency": "64"}, inferred=True)).decode.max_batch == 1024
    assert case_of_row(filled({**row, "concurrency": "512"}, inferred=True)).decode.max_batch == 512


@pytest.mark.parametrize(
    ("changes", "degrees"),
    [
        ({"family": "gpt-oss-120b", "system": "h200_sxm"}, ("8", "1", "1", "8")),
        ({"family": "gpt-oss-120b", "system": "h200_sxm", "measured": "2025-11-03"}, ("8", "1", "8", "1")),
        ({"family": "gpt-oss-120b"}, ("8", "1", "8", "1")),
        ({"weights": "fp8_block", "concurrency": "64"}, ("1", "8", "1", "8")),
        ({"weights": "fp8_block", "osl": "8192", "concurrency": "64"}, ("8", "1", "1", "8")),
        ({"weights": "nvfp4", "concurrency": "8"}, ("8", "1", "8", "1")),
        ({"weights": "nvfp4", "concurrency": "16"}, ("8", "1", "1", "8")),
        ({"weights": "nvfp4", "concurrency": "256"}, ("1", "8", "1", "8")),
        ({"weights": "nvfp4", "isl": "8192", "concurrency": "64"}, ("1", "8", "1", "8")),
        ({"weights": "nvfp4", "backend": "sglang", "concurrency": "256"}, ("8", "1", "8", "1")),
    ],
)
def test_early_recipes_of_tensorrt_llm_chose_degrees_that_their_rows_leave_out(
    changes: dict[str, str], degrees: tuple[str, ...]
) -> None:
    row = {**COLOCATED, "family": "DeepSeek-R1/V3", "backend": "trtllm", "measured": "2025-11-02", "weights": "mxfp4"}
    row |= {"isl": "1024", "concurrency": "16", "gpus": "8", "tp": "8", "moe_tp": "8"}
    columns = filled({**row, **changes})
    assert tuple(columns[name] for name in ("tp", "dp", "moe_tp", "moe_ep")) == degrees


def test_gpt_oss_on_hopper_runs_marlin_from_the_day_that_its_recipe_says_so() -> None:
    row = {**COLOCATED, "family": "gpt-oss-120b", "system": "h100_sxm"}
    said = [filled({**row, "measured": day}).get("triton_experts") for day in ("2025-12-08", "2026-01-02", "")]
    assert said == [None, "0", "0"]
    assert "triton_experts" not in filled({**row, "system": "b200_sxm"})


def test_kimi_on_several_nodes_decodes_attention_data_parallel_as_its_recipe_says() -> None:
    kimi = {"family": "Kimi-K2.5", "aic_model": "moonshotai/Kimi-K2.5", "weights": "nvfp4", "backend": "vllm"}
    degrees = {"prefill_tp": "4", "prefill_dp": "1", "prefill_moe_ep": "4"}
    wide = {"decode_workers": "1", "decode_tp": "16", "decode_moe_tp": "1", "decode_moe_ep": "16"}
    narrow = {"decode_tp": "4", "decode_moe_tp": "1", "decode_moe_ep": "4"}
    for decode, own in ((wide, (1, 16)), (narrow, (4, 1))):
        known = case(DISAGGREGATED, **kimi, **degrees, **decode, gpus="20")
        assert known.prefill is not None
        assert (known.prefill.tp, known.prefill.dp) == (1, 4)
        assert (known.decode.tp, known.decode.dp) == own


def test_a_way_of_scheduling_is_priced_as_the_release_that_has_it() -> None:
    stated = [
        case_of_row({**COLOCATED, "backend_version": version, "async_scheduling": flag}).section
        for version, flag in (("0.12.0", ""), ("0.12.0", "1"), ("0.16.0", ""), ("0.16.0", "0"))
    ]
    assert stated == ["vllm<0.14", "vllm", "vllm", "vllm<0.14"]
    assert priced_version("vllm", None, False) == OLDEST
    with pytest.raises(PlannerError, match="async_scheduling 0 has no price on trtllm"):
        priced_version("trtllm", None, False)


@pytest.mark.parametrize(
    ("columns", "error"),
    [
        ({"length_low": "0.8", "isl_cv": "0.2"}, "length_low and isl_cv are both given"),
        ({"memory_utilisation": "0.8", "free_memory_share": "0.8"}, "are both given"),
        ({"async_scheduling": "2"}, "`async_scheduling` is 0 or 1, found `2`"),
        ({"kv_cache": "fp9"}, "unknown KV cache format `fp9`"),
        ({"hold_steps": "soon"}, "`hold_steps` is no number: soon"),
        ({"poll_steps": "-1"}, "`poll_steps` of the row cannot be -1"),
        ({"memory_utilisation": "90"}, "`memory_utilisation` of the row cannot be 90"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(columns: dict[str, str], error: str) -> None:
    with pytest.raises(PlannerError, match=error):
        case_of_row({**COLOCATED, **columns})


def test_the_cache_takes_its_share_of_what_weights_leave() -> None:
    whole, half = (
        batch_of([case_of_row({**COLOCATED, "free_memory_share": share})], None).frame().most_decoding[0]
        for share in ("1", "0.5")
    )
    assert half == whole // 2


def test_a_row_of_no_stated_share_had_the_memory_that_its_weights_need() -> None:
    """DeepSeek-R1 fills 87 % of four B200: no default of SGLang would hold it."""
    row = {
        **COLOCATED,
        "aic_model": "deepseek-ai/DeepSeek-V3",
        "backend": "sglang",
        "gpus": "4",
        "tp": "4",
        "moe_tp": "4",
    }
    default, stated = evaluate([case_of_row(row), case_of_row({**row, "memory_utilisation": "0.88"})], None)
    assert isinstance(default, Estimate)
    assert isinstance(stated, Refused)
    assert "out of memory" in stated.reason


def test_a_table_tells_how_many_requests_were_sent_and_what_an_admitted_one_reserves() -> None:
    """TensorRT-LLM admits what can end without eviction; the others take pages as sequences grow."""
    assert case(COLOCATED).requests_per_client == 10.0
    assert case(COLOCATED, requests="64").requests_per_client == 1.0
    assert case(COLOCATED).reserved_output == 0.5
    assert case(DISAGGREGATED).reserved_output == 1.0
    assert case(DISAGGREGATED, reserved_output="0.5").reserved_output == 0.5


def test_a_cache_that_holds_whole_answers_admits_fewer_sequences() -> None:
    grown, whole = (case(COLOCATED, reserved_output=share, concurrency="512") for share in ("0.5", "1"))
    tokens = (8192 + 512.0, 8192 + 1024.0)
    admitted = [batch_of([each], None).memory().sequence_bytes[0] for each in (grown, whole)]
    assert admitted[1] / admitted[0] == pytest.approx(tokens[1] / tokens[0], rel=0.01)


def test_one_wave_of_requests_is_measured_until_its_last_answer() -> None:
    """Half of them wait until the first half has ended: Little's law with their mean times would say a third more."""
    halves = case(COLOCATED, max_batch="32", concurrency="64", requests="64", isl="64", length_low="1")
    (wave,) = evaluate([halves], None)
    assert isinstance(wave, Estimate)
    rate = wave.output_tokens_per_s_per_gpu * 2 / halves.osl
    by_law = 64 / (wave.ttft_s + (halves.osl - 1.0) * wave.tpot_s)
    assert rate == pytest.approx(64 / (2 * halves.osl * wave.tpot_s), rel=0.05)
    assert by_law == pytest.approx(4.0 / 3.0 * rate, rel=0.05)


def test_requests_handed_over_in_process_pass_no_front_end() -> None:
    """trtllm-bench is no server; its recipe says so."""
    plain = {"source": "TensorRT-LLM perf-overview v1.0", "backend": "trtllm", "isl": "128", "osl": "128"}
    rows = {**COLOCATED, **plain, "concurrency": "2000", "requests": "2000"}
    served, handed = case(rows, source=""), case(rows)
    assert (served.in_process, handed.in_process) == (False, True)
    slow, fast = evaluate([served, handed], None)
    assert isinstance(slow, Estimate)
    assert isinstance(fast, Estimate)
    assert fast.ttft_s < slow.ttft_s
    assert fast.output_tokens_per_s_per_gpu >= slow.output_tokens_per_s_per_gpu


def test_the_overview_of_1_0_runs_mixtures_of_experts_attention_data_parallel() -> None:
    """What its page says of them holds for no dense model, and for no other overview."""
    overview = {"source": "TensorRT-LLM perf-overview v1.0", "backend": "trtllm", "tp": "8", "dp": "1"}
    mixture = {**overview, "moe_tp": "8", "moe_ep": "1"}
    assert (filled(mixture)["tp"], filled(mixture)["dp"], filled(mixture)["moe_tp"]) == ("1", "8", "8")
    for other in (
        {**overview, "moe_tp": "1", "moe_ep": "1"},
        {**mixture, "source": "TensorRT-LLM perf-overview v0.14"},
    ):
        assert (filled(other)["tp"], filled(other)["dp"]) == ("8", "1")


@pytest.mark.parametrize(("system", "graph_batch"), [("mi300x", "1"), ("h100_sxm", None)])
def test_dstack_compares_eager_steps_on_one_gpu_with_a_cache_of_16_bits(system: str, graph_batch: str | None) -> None:
    row = {"source": "dstackai/benchmarks h100sxm5_vs_mi300x", "backend": "vllm", "system": system}
    assert filled(row)["kv_cache"] == "bf16"
    assert filled(row).get("graph_batch") == graph_batch


def test_a_decoding_step_outside_graphs_lasts_as_long_as_its_host_launches() -> None:
    """Llama-2-7B on vLLM: about 1.2 s for 100 tokens (github.com/vllm-project/vllm/pull/1440)."""
    alone = {"aic_model": "meta-llama/Llama-2-7b-hf", "weights": "bfloat16", "backend_version": "0.6.0", "source": ""}
    load = {"isl": "5", "osl": "100", "concurrency": "1", "gpus": "1", "tp": "1", "moe_tp": "1"}
    row = {**COLOCATED, **alone, **load, "system": "h100_sxm"}
    eager, graphs = evaluate([case(row, graph_batch="0.5"), case(row)], None)
    assert isinstance(eager, Estimate)
    assert isinstance(graphs, Estimate)
    assert eager.tpot_s == pytest.approx(0.012, rel=0.05)
    assert graphs.tpot_s < 0.6 * eager.tpot_s


@pytest.mark.parametrize(
    ("changes", "chunk_tokens"),
    [
        ({"tp": "8", "dp": "1", "moe_tp": "8"}, 16_384),
        ({"tp": "1", "dp": "8", "moe_tp": "8"}, 2_048),
        ({"tp": "1", "dp": "8", "moe_tp": "8", "backend": "trtllm"}, 8_192),
        ({"tp": "1", "dp": "8", "moe_tp": "1", "aic_model": "meta-llama/Llama-2-7b-hf", "weights": "bfloat16"}, 16_384),
    ],
)
def test_attention_ranks_of_sglang_share_the_prompt_tokens_of_a_step(
    changes: dict[str, str], chunk_tokens: int
) -> None:
    row = {**COLOCATED, "backend": "sglang", "source": "", "gpus": "8", **changes}
    assert case(row).decode.chunk_tokens == chunk_tokens


@pytest.mark.parametrize(
    ("changes", "chunk_tokens"),
    [
        ({"system": "b200_sxm", "prefill_tp": "1", "prefill_dp": "8"}, 4_096),
        ({"system": "b200_sxm", "prefill_tp": "8", "prefill_dp": "1"}, 32_768),
        ({"prefill_tp": "1", "prefill_dp": "8"}, 16_384),
        ({"prefill_tp": "8", "prefill_dp": "1"}, 8_192),
        ({"prefill_tp": "8", "prefill_dp": "1", "isl": "8192"}, 24_576),
        ({"prefill_tp": "8", "prefill_dp": "1", "isl": "8192", "decode_tp": "1", "decode_dp": "8"}, 131_072),
    ],
)
def test_disaggregated_recipes_of_sglang_name_the_prompt_tokens_of_all_ranks(
    changes: dict[str, str], chunk_tokens: int
) -> None:
    row = {**DISAGGREGATED, "backend": "sglang", "backend_version": "0.5.8", **changes}
    assert filled(row)["chunk_tokens"] == str(chunk_tokens)
