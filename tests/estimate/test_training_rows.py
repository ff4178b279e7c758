"""Rows of measured training runs: what they state, what is chosen, and the lines of predictions."""

import csv
import json
from pathlib import Path
from typing import Any, get_args

import pytest

from planner.costs.operators.experts import ExpertLoad
from planner.costs.training.config import Loading, TrainingConfig
from planner.costs.training.memory import memory
from planner.costs.training.step import step_time
from planner.engines.training import Dispatcher
from planner.errors import PlannerError
from planner.estimate import estimate_measured
from planner.estimate.bridge_recipes import recipe_of, recipes
from planner.estimate.training import is_training_table
from planner.estimate.training_columns import network_bytes_per_s
from planner.estimate.training_rows import choices_of, completed, config_of_row
from planner.kinds.train.options import LoadingSpec
from planner.kinds.train.search_options import Module
from planner.models.architecture import DenseFfn

SHARED = Path(__file__).parents[3] / "shared/data/training"
ROW = {
    "id": "run", "model": "a-model", "arch": "dense", "hidden": "4096", "layers": "32", "heads": "32", "kv_heads": "8",
    "head_dim": "128", "ffn": "14336", "gated": "1", "vocab": "128256", "seq": "8192", "gpu": "H100-SXM5-80GB",
    "num_gpus": "16", "gpus_per_node": "8", "interconnect": "NVLink4 900GB/s intra; 8x400Gb/s IB NDR", "tp": "2",
    "pp": "2", "vpp": "", "cp": "", "ep": "", "etp": "", "dp": "4", "zero": "distopt(ZeRO-1)", "schedule": "1f1b",
    "recompute": "none", "mbs": "1", "gbs": "64", "precision": "bf16", "task": "pretrain", "framework": "NeMo v25.04",
    "note": "",
}  # fmt: skip


def row(**changes: str) -> dict[str, str]:
    return {**ROW, **changes}


SETTINGS = {
    "optimizer": ("lamb", "optimizer", "lamb"),
    "overlap": ("grad_reduce tp_comm", "overlap", frozenset({"grad_reduce", "tp_comm"})),
    "offload": ("optimizer activations", "offload", frozenset({"optimizer", "activations"})),
    "moved_layers": ("7", "moved_layers", 7),
    "document_tokens": ("2048", "document_tokens", 2048.0),
    "step_spread": ("0.02", "step_spread", 0.02),
    "in_network_reduction": ("1", "in_network", True),
    "expert_fullest": ("1.5", "expert_load", ExpertLoad(fullest=1.5)),
    "sample_bytes": ("2e6", "loading", Loading(sample_bytes=2e6)),
    "samples_per_s": ("40", "loading", Loading(samples_per_s=40.0)),
}


@pytest.mark.parametrize("column", SETTINGS)
def test_a_column_sets_what_an_option_sets(column: str) -> None:
    text, field, value = SETTINGS[column]
    assert getattr(config_of_row(row(**{column: text})).config, field) == value
    assert getattr(config_of_row(row()).config, field) != value


@pytest.mark.parametrize(
    ("column", "text", "message"),
    [
        ("optimizer", "adam", "did you mean `adamw`"),
        ("overlap", "grad_reduce sharp", "unknown overlap `sharp`"),
        ("step_spread", "2", "2 is not 0 or more and below 1"),
        ("step_spread", "1", "1 is not 0 or more and below 1"),
        ("step_spread", "nan", "nan is not finite"),
        ("expert_fullest", "0.5", "0.5 is not 1 or more"),
        ("expert_fullest", "inf", "inf is not finite"),
        ("expert_capacity", "0", "0 is not more than 0"),
        ("a2a_overlap", "2", "2 is not 1 or 0"),
        ("a2a_overlap", "yes", "`yes` is no number"),
        ("moved_layers", "99", "99 is not 0 or more and at most 31"),
        ("moved_layers", "2.5", "2.5 is no whole number"),
        ("in_network_reduction", "0.5", "0.5 is not 1 or 0"),
        ("sample_bytes", "-1", "-1 is not more than 0"),
        ("read_bytes_per_s", "5e10", "samples of no size"),
    ],
)
def test_a_setting_that_no_problem_takes_is_refused(column: str, text: str, message: str) -> None:
    with pytest.raises(PlannerError, match=message) as raised:
        config_of_row(row(**{column: text}))
    assert raised.value.hint


def test_samples_that_come_slowly_make_a_row_as_long_as_a_plan() -> None:
    stated = {"sample_bytes": "2e6", "read_bytes_per_s": "1e7", "samples_per_s": "40"}
    config = config_of_row(row(**stated)).config
    assert config.loading == LoadingSpec(sample_bytes=2e6, read_bytes_per_s=1e7, samples_per_s=40.0).arriving()
    assert step_time(config).step_s == pytest.approx(64 * 2e6 / 1e7)
    assert step_time(config_of_row(row()).config).step_s < 12.8


def test_a_row_becomes_its_configuration() -> None:
    config = completed(config_of_row(row()))
    assert (config.tp, config.pp, config.dp, config.num_gpus, config.num_micro_batches) == (2, 2, 4, 16, 16)
    assert config.machine.fabric_bytes_per_s == 50e9
    assert config.zero_stage == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVLink4 900GB/s intra; 8x400Gb/s IB NDR", 50e9),
        ("NVLink3; 1600Gb/s RoCE per node", 25e9),
        ("NVLink5 NVL72 domain 72 GPUs; 800Gb/s IB per GPU", 100e9),
        ("4x200Gb/s HDR per node", 12.5e9),
        ("4 nodes RoCE", 0.0),
    ],
)
def test_networks_are_read_from_their_description(text: str, expected: float) -> None:
    assert network_bytes_per_s(text, 8) == expected


def test_two_systems_in_one_description_are_told_apart() -> None:
    text = "400Gb/s per node RoCE (A100) / 800Gb/s (H100)"
    fast = config_of_row(row(interconnect=text)).config.machine
    slow = config_of_row(row(interconnect=text, gpu="A100-SXM4-80GB")).config.machine
    assert fast.fabric_bytes_per_s == 2 * slow.fabric_bytes_per_s == 12.5e9


def test_the_least_recomputation_that_fits_is_chosen_where_none_is_stated() -> None:
    easy = completed(config_of_row(row(recompute="")))
    hard = completed(config_of_row(row(recompute="", mbs="16", gbs="64")))
    assert easy.recompute.granularity == "none"
    assert hard.recompute.granularity != "none"
    assert memory(hard).total_R.max() <= hard.machine.memory_bytes


def test_the_micro_batch_of_the_least_step_is_chosen_where_none_is_stated() -> None:
    chosen = completed(config_of_row(row(mbs="")))
    stated = [completed(config_of_row(row(mbs=str(size)))) for size in (1, 2)]
    assert step_time(chosen).step_s <= min(step_time(config).step_s for config in stated)


def test_layers_that_do_not_divide_leave_room_for_embedding_and_loss() -> None:
    assert config_of_row(row(layers="30", pp="8", dp="1")).config.ends_count_as_layers
    uneven = config_of_row(row(layers="29", pp="4", dp="2")).config
    assert uneven.layers_of_stage == (8, 8, 8, 5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"gpu": "H9000"}, "H9000"),
        ({"num_gpus": "15"}, "15 GPUs"),
        ({"hidden": "wide"}, "no number"),
        ({"mbs": "-1"}, "positive"),
        ({"vocab": "0.5"}, "vocab"),
        ({"layers": "1000000"}, "1000000 layers"),
        ({"vpp": "64"}, "more pipeline stages"),
        ({"seq": "1e12"}, "larger than any"),
        ({"arch": "hybrid-mamba", "model": "no-such-model"}, "no-such-model"),
    ],
)
def test_rows_that_cannot_be_are_refused_by_name(changes: dict[str, str], named: str) -> None:
    with pytest.raises(PlannerError, match=named):
        config_of_row(row(**changes))


def test_a_table_of_training_runs_gives_a_line_a_row(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    good, bad = _lines(table, row(), row(id="wrong", gpu="H9000"))
    assert is_training_table(str(table))
    prediction = good["prediction"]
    low, high = prediction["step_time_s_interval"]
    assert 0.0 < low <= prediction["step_time_s"] <= high
    tokens = 64 * 8192 / prediction["step_time_s"] / 16
    assert prediction["tokens_per_s_per_gpu"] == pytest.approx(tokens)
    assert prediction["memory_bytes"] > 1e9
    assert bad["id"] == "wrong"
    assert "H9000" in bad["error"]


def test_a_run_that_cannot_fit_is_flagged_and_priced_as_it_is_stated(tmp_path: Path) -> None:
    """8e9 parameters of 18 bytes on every GPU, 2 bytes of gradient less where that would help."""
    whole = row(num_gpus="2", tp="1", pp="1", dp="2", zero="none", recompute="full", gbs="2", seq="1024")
    lines = _lines(tmp_path / "runs.csv", whole, row(recompute="", mbs=""), row(id="no order", vpp="2", gbs="12"))
    assert lines[0]["prediction"]["fits"] is False
    assert lines[0]["prediction"]["memory_bytes"] > 8e9 * 18
    assert lines[0]["prediction"]["memory_share"] > 1.7
    assert lines[0]["chosen"] == {}
    assert lines[1]["prediction"]["fits"] is True
    assert set(lines[1]["chosen"]) == {"micro_batch", "recompute"}
    assert "rounds of 2" in lines[2]["error"]


def test_a_run_fits_where_its_hosts_hold_what_it_offloads(tmp_path: Path) -> None:
    """8e9 parameters of 16 bytes on two ranks, updated by both replicas or shared out; 64 GB are there for each GPU."""
    fields = {"num_gpus": "4", "tp": "2", "pp": "1", "dp": "2", "gbs": "2", "seq": "1024", "mbs": "1", "gpu": "L40S"}
    rows = [row(**fields, zero=zero, offload="optimizer") for zero in ("none", "ZeRO-1")]
    whole, shared = (line["prediction"] for line in _lines(tmp_path / "runs.csv", *rows))
    assert whole["host_memory_bytes"] == pytest.approx(2.0 * shared["host_memory_bytes"])
    assert whole["host_memory_bytes"] == pytest.approx(8.03e9 * 16 / 2, rel=1e-3)
    assert (whole["fits"], shared["fits"]) == (False, True)


def test_gradients_in_bf16_are_reported_where_they_make_a_run_fit() -> None:
    tight = next(
        stated
        for layers in range(8, 32)
        for stated in [config_of_row(row(tp="1", pp="1", dp="16", zero="none", recompute="full", layers=str(layers)))]
        if memory(stated.config).total_R.max() > 0.97 * stated.config.machine.memory_bytes
    )
    assert choices_of(tight, completed(tight)) == {"gradients": "bf16"}


def test_a_pipeline_under_zero_2_scatters_once_a_step_and_says_so() -> None:
    stated = config_of_row(row(zero="ZeRO-2"))
    assert completed(stated).zero_stage == 1
    assert choices_of(stated, completed(stated)) == {"zero_stage": 1}
    assert completed(config_of_row(row(zero="ZeRO-2", pp="1", dp="8"))).zero_stage == 2


def test_ranks_with_several_stages_run_interleaved_and_schedules_fix_their_number() -> None:
    assert completed(config_of_row(row(schedule="", vpp="2"))).schedule == "interleaved"
    assert completed(config_of_row(row(schedule="zb-v"))).vpp == 2
    with pytest.raises(PlannerError, match="`zb_v` has 2 stages a rank"):
        config_of_row(row(schedule="zb-v", vpp="3"))


def _lines(table: Path, *rows: dict[str, str]) -> list[dict[str, Any]]:
    """The predictions for a table of these rows."""
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for each in rows for name in each)))
        writer.writeheader()
        writer.writerows(rows)
    return [json.loads(line) for line in estimate_measured(str(table))]


def test_tables_of_memory_need_fewer_columns() -> None:
    left_out = ("framework", "gated", "schedule", "arch", "zero")
    short = row(note="schedule=ZB-1p; as printed", pp="4", dp="2")
    config = config_of_row({name: value for name, value in short.items() if name not in left_out}).config
    assert config.schedule == "zb_h1"
    assert config_of_row({**short, "gbs": ""}).config.global_batch == 2
    layer = config.arch.layers[0]
    assert isinstance(layer.ffn, DenseFfn)
    assert layer.ffn.gated


def test_tables_of_deployments_are_told_apart(tmp_path: Path) -> None:
    table = tmp_path / "serving.csv"
    table.write_text("id,source,model,isl,osl,concurrency\n")
    assert not is_training_table(str(table))
    assert not is_training_table(str(tmp_path / "missing.csv"))


def test_a_training_table_without_a_column_names_it(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("id,model,seq,gpu,num_gpus,tp,pp,gbs,precision\n")
    with pytest.raises(PlannerError, match="mbs"):
        list(estimate_measured(str(table)))


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data/training")
def test_published_runs_are_predicted_and_fit() -> None:
    errors, peaks = [], []
    with (SHARED / "measured.csv").open(newline="") as file:
        for index, known in enumerate(csv.DictReader(file)):
            if index % 4 == 0 and known["model"] != "deepseek-v4-flash":
                config = completed(config_of_row(known))
                errors.append(abs(step_time(config).step_s / float(known["step_time_s"]) - 1.0))
                peaks.append(memory(config).total_R.max() / config.machine.memory_bytes)
    assert sum(errors) / len(errors) < 0.06
    assert sum(peak > 1.03 for peak in peaks) <= 1


def test_columns_tell_the_training_code_of_a_row() -> None:
    plain, older = config_of_row(row()).config, config_of_row(row(era="megatron_2022", loaders_per_node="4")).config
    assert (older.framework.name, older.framework.loaders_per_node) == ("megatron_2022", 4)
    assert step_time(older).step_s > step_time(plain).step_s
    windows = config_of_row(row(window_tokens="1024")).config
    assert {getattr(layer.mixer, "window_tokens", 0) for layer in windows.arch.layers} == {1024}
    assert step_time(windows).step_s < step_time(plain).step_s
    assert not config_of_row(row(dispatcher="alltoall")).config.framework.forwarded_experts


def bridge(release: str, gpu: str, **changes: str) -> TrainingConfig:
    """A run of Qwen3 30B as Megatron Bridge's recipe has it, but for what differs."""
    stated = {"framework": f"Megatron-Bridge {release}", "model": "qwen3-30b-a3b", "arch": "moe", "ep": "8"}
    sizes = {"hidden": "2048", "layers": "48", "heads": "32", "kv_heads": "4", "head_dim": "128", "ffn": "6144"}
    experts = {"experts": "128", "topk": "8", "moe_ffn": "768", "num_gpus": "8", "dp": "8", "tp": "1", "pp": "1"}
    return config_of_row(row(**stated, **sizes, **experts, gpu=gpu, precision="mxfp8", mbs="4", **changes)).config


@pytest.mark.parametrize(
    ("release", "gpu", "host", "scopes", "beside", "forwards"),
    [
        ("25.09", "GB200-NVL72-186GB", "eager", {"attn", "mlp", "moe"}, False, False),
        ("26.04", "GB200-NVL72-186GB", "eager", {"moe_router", "moe_preprocess"}, False, True),
        ("26.04", "B200-SXM-180GB", "eager", {"attn", "moe_router", "moe_preprocess"}, False, True),
        ("26.06.01", "GB200-NVL72-186GB", "graphs", set(), True, True),
        ("26.07", "GB200-NVL72-186GB", "graphs", set(), True, True),  # as the latest before it
    ],
)
def test_recipes_of_bridge_say_what_is_captured_beside_and_forwarded(
    release: str, gpu: str, host: str, scopes: set[str], beside: bool, forwards: bool
) -> None:
    config = bridge(release, gpu)
    assert (config.framework.host, sorted(config.framework.captured)) == (host, sorted(scopes))
    assert ("ep_comm" in config.overlap) == beside
    assert config.framework.forwarded_experts == forwards
    assert config.framework.fused_experts == (host == "graphs")
    assert config.expert_load.padded == (release == "25.09")


def test_recipes_of_bridge_say_what_is_recomputed_where_their_degrees_are_those_of_the_row() -> None:
    deepseek = {"framework": "Megatron-Bridge 26.04", "model": "deepseek-v3", "precision": "mxfp8", "num_gpus": "256"}
    degrees = {"tp": "1", "pp": "4", "vpp": "4", "ep": "64", "dp": "64", "gbs": "4096", "gpu": "GB200-NVL72-186GB"}
    alike = config_of_row(row(**deepseek, **degrees, recompute=""))
    assert alike.config.recompute.modules == ("mlp",)
    assert not alike.recompute_open
    assert config_of_row(row(**deepseek, **{**degrees, "ep": "32"}, recompute="")).recompute_open
    stated = config_of_row(row(**deepseek, **degrees, recompute="full"))
    assert stated.config.recompute.granularity == "full"


def test_columns_say_otherwise_than_the_recipe() -> None:
    stated = {"cuda_graphs": "attn", "a2a_overlap": "0", "dispatcher": "alltoall", "expert_capacity": "1.25"}
    config = bridge("26.06", "GB200-NVL72-186GB", **stated)
    assert (config.framework.host, sorted(config.framework.captured)) == ("eager", ["attn"])
    assert not config.framework.forwarded_experts
    assert "ep_comm" not in config.overlap
    assert config.expert_load.capacity == 1.25
    assert not bridge("26.04", "GB200-NVL72-186GB", cuda_graphs="none").framework.captured


def test_megascale_and_what_it_started_from_are_told_apart() -> None:
    before, after = (
        config_of_row(row(framework=name)).config for name in ("Megatron-LM (commit 285068c8)", "MegaScale")
    )
    assert (before.framework.name, after.framework.name) == ("megatron_2022", "megascale")
    assert (before.overlap, "tp_comm" in after.overlap) == (frozenset(), True)
    assert {getattr(layer.mixer, "window_tokens", 0) for layer in after.arch.layers} == {8192 // 4}
    assert step_time(before).step_s > 1.1 * step_time(after).step_s


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"era": "megatron_2032"}, "megatron_20"),
        ({"dispatcher": "deepp"}, "deepep"),
        ({"attention": "flsh"}, "flash"),
        ({"cuda_graphs": "atn"}, "attn"),
    ],
)
def test_unknown_settings_of_a_row_are_refused_with_the_nearest(changes: dict[str, str], hint: str) -> None:
    with pytest.raises(PlannerError) as raised:
        config_of_row(row(**changes))
    assert next(iter(changes.values())) in raised.value.what
    assert hint in (raised.value.hint or "")


def test_every_recipe_of_bridge_reads_and_states_scopes_and_modules_by_known_names() -> None:
    table = [recipe for variants in recipes().values() for recipe in variants]
    assert len(table) > 400
    for recipe in table:
        assert min(recipe.degrees) >= 1
        assert recipe.dispatcher in ("", *get_args(Dispatcher))
        assert not ("full_iteration" in recipe.graphs and len(recipe.graphs) > 1)
        modules = recipe.recompute.modules if recipe.recompute else ()
        assert set(modules) <= set(get_args(Module))


def test_a_run_has_the_recipe_of_its_degrees_from_the_nearest_release() -> None:
    """Qwen3 235B on B300 ran on four stages a rank until 26.02 and on one since: the older results say so later."""
    run = {"model": "qwen3-235b-a22b", "gpu": "B300-SXM-288GB", "precision": "mxfp8", "tp": "1", "pp": "8", "ep": "8"}
    older = recipe_of({**run, "framework": "Megatron-Bridge 26.02.01", "vpp": "4", "mbs": "1"})
    newer = recipe_of({**run, "framework": "Megatron-Bridge 26.02.01", "mbs": "2"})
    assert older is not None
    assert newer is not None
    assert (older[1], older[0].a2a_overlap) == (True, True)
    assert (newer[1], newer[0].a2a_overlap) == (True, False)
    assert recipe_of({**run, "framework": "Megatron-LM 0.14", "mbs": "1"}) is None
    assert recipe_of({**run, "framework": "Megatron-Bridge 24.01", "mbs": "3"}) is None  # before all of them
