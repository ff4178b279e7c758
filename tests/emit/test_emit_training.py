"""Training plans as launchers' files: byte for byte, and what is refused."""

import dataclasses
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from training_plans import ALL_TRAINING, BRIDGE, MEGATRON, SHARDED, TITAN, TRAINING, TrainCase

from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.plan.store import plan_digest, plan_json

GOLDEN = Path(__file__).parents[1] / "golden" / "emit"
UNEVEN, MOE = MEGATRON["dense-uneven-full-recompute"], MEGATRON["moe-latent-mtp"]


@pytest.mark.parametrize(("target", "case_name"), ALL_TRAINING)
def test_emitted_training_files_are_as_recorded(
    target: str, case_name: str, golden: Callable[[str, str], None]
) -> None:
    envelope, decision = TRAINING[target][case_name].build()
    files = emit(envelope, decision, target)
    digest = plan_digest(plan_json(envelope))
    assert any(digest in text for text in files.values())
    for name, text in files.items():
        golden(f"emit/{target}/{case_name}/{name}", text.replace(digest, "sha256:PLAN"))
    assert sorted(path.name for path in (GOLDEN / target / case_name).iterdir()) == sorted(files)


@pytest.mark.parametrize(("target", "case_name"), ALL_TRAINING)
def test_emitted_scripts_are_bash(target: str, case_name: str) -> None:
    files = emit(*TRAINING[target][case_name].build(), target)
    for name in ("launch.sh", "train.sbatch"):
        checked = subprocess.run(["bash", "-n"], input=files.get(name, "").encode(), capture_output=True, check=False)
        assert checked.returncode == 0, checked.stderr


def test_every_node_starts_the_same_program_with_its_own_rank(tmp_path: Path) -> None:
    torchrun = tmp_path / "torchrun"
    torchrun.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    torchrun.chmod(0o755)
    text = emit(*MEGATRON["dense-interleaved"].build(), "megatron-lm")["launch.sh"]
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MEGATRON_LM": "/opt/a folder", "NODE_RANK": "3"}
    ran = subprocess.run(
        ["bash", "-s", "--", "--lr", "1e-4"], input=text, env=environment, capture_output=True, text=True, check=True
    )
    words = ran.stdout.splitlines()
    assert words[words.index("--node-rank") + 1] == "3"
    assert "/opt/a folder/pretrain_gpt.py" in words
    assert words[words.index("--pipeline-model-parallel-layout") + 1] == "E|(t|)*126L"
    assert words[-2:] == ["--lr", "1e-4"]


def test_sparse_attention_that_is_left_out_is_said_and_off_in_every_launcher() -> None:
    case = dataclasses.replace(MOE, model="deepseek-ai/DeepSeek-V3.2")
    said = (
        "# attention is over all tokens: the indexer of `deepseek-ai/DeepSeek-V3.2`, which chooses 2048, is left out."
    )
    script = emit(*case.build(), "megatron-lm")["launch.sh"]
    assert said in script.splitlines()
    assert "attention-variant" not in script
    overrides = emit(*case.build(), "megatron-bridge")["overrides.yaml"]
    assert said in overrides.splitlines()
    assert yaml.safe_load(overrides)["model"]["experimental_attention_variant"] is None


def test_a_script_without_its_node_number_says_so() -> None:
    text = emit(*MEGATRON["dense-interleaved"].build(), "megatron-lm")["launch.sh"]
    environment = {"PATH": "/usr/bin:/bin", "MEGATRON_LM": "x"}
    ran = subprocess.run(["bash", "-s"], input=text, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert "set NODE_RANK to the number of this node" in ran.stderr


def test_the_mesh_lays_stages_of_a_v_there_and_back() -> None:
    mesh = json.loads(emit(*TITAN["pipeline-v"].build(), "torchrun")["mesh.json"])
    assert [stage["rank"] for stage in mesh["stages"]] == [*range(8), *reversed(range(8))]
    assert (mesh["mesh_dim_names"], mesh["mesh_shape"]) == (["pp", "dp", "cp", "tp"], [8, 8, 1, 8])


def test_slurm_starts_named_nodes_in_the_order_of_the_plan() -> None:
    case = dataclasses.replace(MEGATRON["dense-data-parallel-outside"], node_names=("gpu-d", "gpu-a", "gpu-c", "gpu-b"))
    text = emit(*case.build(), "slurm")["train.sbatch"]
    assert "#SBATCH --nodelist=gpu-d,gpu-a,gpu-c,gpu-b" in text
    assert "gpu-d gpu-a gpu-c gpu-b" in text
    assert "--distribution=arbitrary" in text


def test_slurm_refuses_node_names_that_could_break_out() -> None:
    case = dataclasses.replace(MEGATRON["dense-data-parallel-outside"], node_names=("a", "b", "c", "d;reboot"))
    with pytest.raises(PlannerError, match="Slurm knows no node `d;reboot`"):
        emit(*case.build(), "slurm")


def _changed(case: TrainCase, **changes: Any) -> TrainCase:  # noqa: ANN401 - any field of the case
    return dataclasses.replace(case, **changes)


def _more(case: TrainCase, **more: Any) -> TrainCase:  # noqa: ANN401 - any field of the decision
    return dataclasses.replace(case, more=case.more | more)


TRAPS = {
    "heads": (
        _changed(UNEVEN, degrees={"tp": 3, "pp": 4, "dp": 2}, nodes=3, sequence_tokens=3072),
        "32 heads over tp 3",
    ),
    "experts": (_changed(MOE, degrees={"pp": 16, "dp": 32, "ep": 64}), "ep 64 x moe_tp 1 does not divide the 32 ranks"),
    "experts of a dense model": (_changed(UNEVEN, degrees=UNEVEN.degrees | {"ep": 2}), "has no experts for ep 2"),
    "layers": (
        _changed(UNEVEN, stages=((1, 7, ("embedding",)), (2, 9, ()), (1, 8, ("loss",)))),
        "33 layers laid out, .* has 32",
    ),
    "stages": (
        _changed(UNEVEN, stages=((1, 16, ("embedding",)), (1, 16, ("loss",)))),
        "2 stages laid out, pp 4 x vpp 1",
    ),
    "rounds": (
        _changed(
            UNEVEN,
            stages=((1, 4, ("embedding",)), (6, 4, ()), (1, 4, ("loss",))),
            degrees=UNEVEN.degrees | {"vpp": 2},
            schedule="interleaved",
            global_batch=1020,
        ),
        "takes micro-batches in rounds of 4, there are 510",
    ),
    "batch": (_more(UNEVEN, num_micro_batches=7), "the global batch is 1024"),
}


@pytest.mark.parametrize("target", ["megatron-lm", "megatron-bridge", "slurm"])
@pytest.mark.parametrize("trap", TRAPS)
def test_plans_that_megatron_would_take_and_fail_on_are_refused(target: str, trap: str) -> None:
    case, message = TRAPS[trap]
    with pytest.raises(PlannerError, match=message):
        emit(*case.build(), target)


REFUSED = [
    ("megatron-lm", _changed(UNEVEN, schedule="zb_h1"), "has no schedule `zb_h1`"),
    ("megatron-lm", _changed(UNEVEN, options={"optimizer": "lamb"}), "has no optimizer `lamb`"),
    ("megatron-lm", _changed(UNEVEN, options={"task": "lora"}), "trains no adapters"),
    ("torchtitan", BRIDGE["adapters"], "starts from no weights"),
    ("deepspeed", BRIDGE["adapters"], "has no adapters"),
    ("megatron-bridge", _more(BRIDGE["tuned-context"], zero_stage=3), "task `sft` with ZeRO 3"),
    (
        "megatron-bridge",
        _changed(MOE, options={"task": "lora"}),
        "adapters beside the attention of `deepseek-ai/DeepSeek-V3`",
    ),
    ("megatron-lm", _more(UNEVEN, offload=("activations",)), "activations are offloaded with pp 4"),
    ("megatron-lm", _more(UNEVEN, zero_stage=0, zero_shards=None, offload=("optimizer",)), "offloaded and not sharded"),
    (
        "megatron-lm",
        _more(MEGATRON["moe-context-ulysses"], sequence_parallel=False),
        "no sequence parallelism",
    ),
    ("megatron-lm", _changed(UNEVEN, order=("tp", "pp", "dp", "cp")), "ranks count tp, pp, dp"),
    ("megatron-lm", _more(UNEVEN, sequence_parallel=False), "`tp_comm` without sequence parallelism"),
    ("torchtitan", _more(UNEVEN, overlap=("tp_fused",)), "products fused with their exchange"),
    ("megatron-lm", _more(MOE, overlap=("ep_comm",)), "`ep_comm` in a pipeline with vpp 1"),
    (
        "megatron-bridge",
        _changed(
            UNEVEN,
            degrees={"tp": 2, "pp": 2, "dp": 4, "vpp": 2},
            stages=((1, 8, ("embedding",)), (2, 8, ()), (1, 8, ("loss",))),
            schedule="interleaved",
        ),
        "interleaving over pp 2 without `p2p`",
    ),
    ("deepspeed", UNEVEN, "pp 4: DeepSpeed cuts pipelines"),
    ("deepspeed", TITAN["moe"], "DeepSpeed lays experts in the program"),
    ("deepspeed", _more(SHARDED, precision="fp8"), "does not train in fp8"),
    ("deepspeed", _changed(SHARDED, degrees={"tp": 2, "dp": 8}), "ZeRO 3 with tp 2"),
    ("torchtitan", _more(SHARDED, zero_stage=1), "no ZeRO 1"),
    ("torchtitan", MOE, "no ZeRO 1"),
    ("torchtitan", _more(TITAN["moe"], dispatcher="deepep"), "no dispatcher `deepep`"),
    ("megatron-lm", _more(UNEVEN, zero_stage=2, zero_shards=None), "ZeRO 2 with pp 4"),
    ("megatron-bridge", _more(UNEVEN, zero_stage=3, zero_shards=None), "Megatron's FSDP has no pipeline"),
    (
        "torchtitan",
        _changed(SHARDED, model="Qwen/Qwen3-8B", stages=((1, 36, ("embedding", "loss")),)),
        "no configuration",
    ),
    (
        "torchtitan",
        _changed(SHARDED, recompute={"granularity": "full", "num_layers": 4}),
        "no recomputation of a part of the layers",
    ),
]


@pytest.mark.parametrize(("target", "case", "message"), REFUSED)
def test_what_a_launcher_cannot_say_is_refused(target: str, case: TrainCase, message: str) -> None:
    with pytest.raises(PlannerError, match=message):
        emit(*case.build(), target)


@pytest.mark.parametrize("target", ["megatron-lm", "torchtitan", "deepspeed"])
def test_the_target_that_a_refusal_of_adapters_names_takes_them(target: str) -> None:
    case = BRIDGE["adapters"]
    with pytest.raises(PlannerError) as refused:
        emit(*case.build(), target)
    named = str(refused.value).rpartition("--target ")[2].strip("`")
    program = emit(*case.build(), named)["train.py"]
    assert "dim=8" in program
    assert "pretrained_checkpoint = os.environ" in program


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed"])
def test_all_that_keeps_adapters_from_a_launcher_names_one_other(target: str) -> None:
    with pytest.raises(PlannerError) as refused:
        emit(*_changed(UNEVEN, options={"task": "lora"}).build(), target)
    assert set(re.findall(r"--target ([a-z-]+)", refused.value.hint)) == {"megatron-bridge"}


JOINED = {
    "lamb, sharded in part": (
        "deepspeed",
        _changed(_more(SHARDED, zero_shards=4), options={"optimizer": "lamb"}),
        "plan ZeRO 0: DeepSpeed does not shard LAMB, whose norms are of whole layers",
    ),
    "muon": (
        "torchtitan",
        _changed(SHARDED, options={"optimizer": "muon"}),
        "plan without it, or use `--target megatron-lm`",
    ),
    "lamb": ("torchtitan", _changed(SHARDED, options={"optimizer": "lamb"}), "plan without it"),
    "tuned": ("torchtitan", _changed(UNEVEN, options={"task": "sft"}), "use `--target megatron-bridge`"),
}


@pytest.mark.parametrize("name", JOINED)
def test_remedies_that_are_joined_hold_together(name: str) -> None:
    target, case, hint = JOINED[name]
    with pytest.raises(PlannerError) as refused:
        emit(*case.build(), target)
    assert refused.value.hint == hint


def test_stages_that_recompute_differently_are_refused_by_launchers_with_one_setting() -> None:
    decision = UNEVEN.decision()
    decision["stage_runs"][0]["recompute"] = {"granularity": "full", "num_layers": 5}
    envelope, _ = UNEVEN.build()
    from planner.kinds.train.decision import TrainDecision

    with pytest.raises(PlannerError, match="different numbers of layers"):
        emit(envelope, TrainDecision.model_validate(decision), "megatron-lm")
