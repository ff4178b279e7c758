"""Artifacts as plans: what is in the plan is what stands in the artifact, and what nobody said is asked for."""

import re
from pathlib import Path
from typing import Any

import pytest

from planner.api import solve
from planner.check import check_plan
from planner.cli.main import main
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.hardware.library import find_accelerator
from planner.importing.plans.any_kind import plan_of_reading
from planner.importing.plans.post_training import rl_notes, rl_problem
from planner.importing.plans.question import Question
from planner.importing.plans.serving import serving_case, serving_problem
from planner.importing.plans.shapes import EngineRole
from planner.importing.plans.training import training_notes, training_problem
from planner.importing.plans.unpriced import unpriced_notes
from planner.importing.records import Reading
from planner.importing.registry import Artifact, read_artifact
from planner.kinds.rl.decision import RlDecision
from planner.kinds.serve.options import ServeDecision
from planner.kinds.train.decision import TrainDecision
from planner.models.library import find_model

LOAD = Question.of("input=1000,output=200,rate=2/s", cluster="gpu=h100,nodes=1")


def read(text: str) -> Reading:
    return read_artifact(Artifact(text, "artifact", {}))


def plan(text: str, question: Question = LOAD) -> Any:  # noqa: ANN401 - plain data
    return plan_of_reading(read(text), question)[0]


SERVE = "#!/bin/bash\nvllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 {flags}\n"
LIMITS = "--max-num-seqs 64 --max-num-batched-tokens 4160 --max-model-len 8192"


def test_flags_of_a_script_are_limits_of_a_plan() -> None:
    decision = plan(SERVE.format(flags=f"{LIMITS} --gpu-memory-utilization 0.85")).decision
    (role,) = decision["roles"]
    assert (role["parallelism"]["tp"], role["replicas"]) == (4, 1)
    assert (role["limits"]["max_batch"], role["limits"]["chunk_tokens"]) == (64, 4096)
    assert role["limits"]["max_context_tokens"] == 8192


def test_the_problem_that_it_answers_is_in_the_plan() -> None:
    inputs = plan(SERVE.format(flags=LIMITS)).inputs
    assert inputs["models"]["model"]["name"] == "Qwen/Qwen3-32B"
    assert inputs["engine"]["max_context_tokens"] == 8192
    assert inputs["options"]["tp"] == [4]


MIMO = """torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 36 --hidden-size 4096 --num-attention-heads 32 \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 1 --micro-batch-size 1 --global-batch-size 16 {flags} \\
  --seq-length 4096 --bf16 --use-distributed-optimizer --sequence-parallel --recompute-granularity full
"""


def test_heads_for_further_tokens_are_priced_where_the_script_trains_them_and_launched_again() -> None:
    question = Question.of(cluster="gpu=h100,nodes=1", model="XiaomiMiMo/MiMo-7B-Base")
    step_s = {}
    for flags in ("", "--mtp-num-layers 1"):
        envelope = plan(MIMO.format(flags=flags), question)
        step_s[flags] = {each.metric: each.value for each in envelope.predictions}["step_time_s"]
        assert ("mtp" in envelope.decision["stage_runs"][-1]["parts"]) == bool(flags)
        script = emit(envelope, TrainDecision.model_validate(envelope.decision), "megatron-lm")["launch.sh"]
        assert ("--mtp-num-layers 1" in script) == bool(flags)
    assert (
        1.02 < step_s["--mtp-num-layers 1"] / step_s[""] < 1.2
    )  # a layer of 36, and a second product with the vocabulary
    assert "2 heads for further tokens (MTP) are priced as the 1 of the model" in training_notes(
        read(MIMO.format(flags="--mtp-num-layers 2")), question
    )


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (Question.of(None, cluster="gpu=h100,nodes=1"), "which requests come"),
        (Question.of(None), "on which GPUs, which requests come"),
        (Question.of("input=10,output=10,rate=1/s"), "on which GPUs"),
        (Question.of("input=10,output=10", cluster="gpu=h100,nodes=1"), "needs a rate"),
    ],
)
def test_what_nobody_said_is_asked_for(question: Question, says: str) -> None:
    with pytest.raises(PlannerError, match=says):
        plan(SERVE.format(flags=""), question)


BALANCED = "python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B --tp 8 --dp 8 --enable-dp-attention --ep 8 "
VLLM_BALANCED = "vllm serve Qwen/Qwen3-30B-A3B --data-parallel-size 8 --enable-expert-parallel "


@pytest.mark.parametrize(
    ("script", "copies"),
    [
        (VLLM_BALANCED + "--enable-eplb --eplb-config '{\"num_redundant_experts\": 16}'", 16),
        (VLLM_BALANCED + "--enable-eplb --eplb-config.num_redundant_experts 16", 16),
        (VLLM_BALANCED + "--enable-eplb --num-redundant-experts 8", 8),
        (VLLM_BALANCED + "--enable-eplb", 0),
        (VLLM_BALANCED + "--num-redundant-experts 8", None),
        (BALANCED + "--enable-eplb --ep-num-redundant-experts 16", 16),
        (BALANCED + "--init-expert-location /layouts/day.json --ep-num-redundant-experts 16", 16),
        (BALANCED + "--ep-num-redundant-experts 16", None),
    ],
)
def test_experts_that_an_engine_places_by_load_are_those_of_the_plan(script: str, copies: int | None) -> None:
    (role,) = read(f"#!/bin/bash\n{script}\n").fields["roles"]
    assert role.get("redundant_experts") == copies


@pytest.mark.parametrize(
    ("flags", "limits"),
    [
        ("", (4096, 1024)),
        ("--context-length 262144", (2048, 1024)),
        ("--max-running-requests 512 --chunked-prefill-size 16384", (64, 2048)),
    ],
)
def test_attention_ranks_of_sglang_share_what_is_stated_and_chunks_that_are_not(
    flags: str, limits: tuple[int, int]
) -> None:
    """Its default of requests is counted by rank, by how many of the longest its cache has room for; that of chunks is
    not."""
    (role,) = read(f"#!/bin/bash\n{BALANCED}{flags}\n").fields["roles"]
    gpu = find_accelerator("h100")
    part, _ = EngineRole("sglang", role, find_model("Qwen/Qwen3-30B-A3B"), gpu).instances()
    assert (part.max_batch, part.chunk_tokens) == limits


def test_copies_of_experts_are_priced_and_launched_again() -> None:
    script = f"#!/bin/bash\n{VLLM_BALANCED}--enable-eplb --num-redundant-experts 16 {LIMITS}\n"
    envelope = plan(script)
    decision = ServeDecision.model_validate(envelope.decision)
    assert decision.roles[0].limits["redundant_experts"] == 16
    (text,) = emit(envelope, decision, "vllm").values()
    (role,) = read(text).fields["roles"]
    assert role["redundant_experts"] == 16


def test_sequences_beyond_the_cache_are_told_and_not_planned() -> None:
    envelope, notes = plan_of_reading(read("#!/bin/bash\nvllm serve Qwen/Qwen3-32B --tensor-parallel-size 1\n"), LOAD)
    decision: Any = envelope.decision
    assert decision["roles"][0]["limits"]["max_batch"] < 1024
    assert any("caches have room for" in note for note in notes)
    assert any("whose default here is 8192" in note for note in notes)


def test_a_model_that_does_not_fit_is_refused_with_both_numbers() -> None:
    with pytest.raises(PlannerError, match=r"weights take \d+\.\d GB of a GPU, the engine may use 7\d\.\d GB"):
        plan("#!/bin/bash\nvllm serve meta-llama/Llama-3.3-70B-Instruct\n")


def test_hits_in_caches_that_are_switched_off_are_refused() -> None:
    stated = Question.of("input=1000,output=200,rate=2/s,prefix_hits=0.5", cluster="gpu=h100,nodes=1")
    assert plan(SERVE.format(flags=f"{LIMITS} --enable-prefix-caching"), stated)
    with pytest.raises(PlannerError, match=r"switches prefix caching off \(colocated\), and the workload states hits"):
        plan(SERVE.format(flags=f"{LIMITS} --no-enable-prefix-caching"), stated)


def test_instances_on_more_nodes_than_they_fill_are_told() -> None:
    for flags, told in (("--nnodes 4 --node-rank 0", True), ("", False)):
        notes = plan_of_reading(read(SERVE.format(flags=f"{LIMITS} {flags}")), LOAD)[1]
        assert any("is on 4 nodes in the artifact" in note for note in notes) is told


def test_equal_prefill_instances_wait_together_as_their_plan_says() -> None:
    side = 'vllm serve Qwen/Qwen3-8B --port {} --kv-transfer-config \'{{"kv_connector": "NixlConnector", {}}}\' &\n'
    sides = [(8000, "producer"), (8001, "producer"), (8002, "consumer")]
    text = "#!/bin/bash\n" + "".join(side.format(port, f'"kv_role": "kv_{role}"') for port, role in sides)
    envelope = plan(text, Question.of("input=3000,output=200,rate=4/s", cluster="gpu=h100,nodes=1"))
    assert [(role["function"], role["replicas"]) for role in envelope.decision["roles"]] == [
        ("prefill", 2),
        ("decode", 1),
    ]
    assert all(finding.ok for finding in check_plan(envelope, _decision(envelope)))


def test_weights_that_the_engine_makes_while_loading_are_priced_and_launched_again() -> None:
    envelope = plan(SERVE.format(flags=f"{LIMITS} --quantization fp8"))
    assert envelope.inputs["models"]["model"]["weights"] == "fp8"
    (text,) = emit(envelope, _decision(envelope), "vllm").values()
    assert "--quantization fp8" in text
    stored = plan(SERVE.format(flags=f"{LIMITS} --quantization fp8").replace("Qwen3-32B", "Qwen3-32B-FP8"))
    assert "weights" not in stored.inputs["models"]["model"]


def test_weights_made_by_a_method_that_is_not_priced_are_refused() -> None:
    with pytest.raises(PlannerError, match="what vllm makes of it by `bitsandbytes` is not priced"):
        plan(SERVE.format(flags="--quantization bitsandbytes"))


def test_roles_that_quantise_unlike_each_other_are_refused() -> None:
    flags = ("--port 8000 --quantization fp8 &", "--port 8001")
    with pytest.raises(PlannerError, match=r"unlike each other \(colocated fp8, colocated none\)"):
        plan("#!/bin/bash\n" + "\n".join(f"vllm serve Qwen/Qwen3-8B {each}" for each in flags))


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("--enforce-eager", "steps without CUDA graphs"),
        ("--cpu-offload-gb 10", "--cpu-offload-gb 10"),
        ("--kv-cache-dtype int8", "a KV cache in int8"),
        ("""--speculative-config '{"method": "ngram", "num_speculative_tokens": 4}'""", "drafts (ngram, 4 tokens"),
        ("--enable-prefix-caching", "prefix caching (the workload states no `prefix_hits`)"),
        ("--cpu-offload-gb 0 --decode-context-parallel-size 1", None),
        ("--kv-cache-memory-bytes 10G --compilation-config.mode 3", "--kv-cache-memory-bytes 10G"),
    ],
)
def test_settings_that_no_plan_has_are_told(flags: str, told: str | None) -> None:
    _, notes = plan_of_reading(read(SERVE.format(flags=f"{LIMITS} {flags}")), LOAD)
    said = [note for note in notes if "not priced, and not in the plan: " in note]
    assert told in said[0] if told else not said


@pytest.mark.parametrize(("engine", "share"), [("sglang", 0.824), ("trtllm", 0.9)])
def test_memory_that_nobody_states_is_the_default_of_the_engine(engine: str, share: float) -> None:
    """On four H100: SGLang reserves 14,336 of 81,559 MiB for steps, graphs and four ranks."""
    starts = {
        "sglang": "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp 4",
        "trtllm": "trtllm-serve Qwen/Qwen3-32B --tp_size 4",
    }
    case = serving_case(read(f"#!/bin/bash\n{starts[engine]}\n"), LOAD)
    assert share < case.resolved.problem.engine.memory_utilisation < 1.0
    assert any(f"default share here is {share:g}" in note for note in case.notes)


def test_memory_left_to_sglang_is_beside_the_sequences_that_caches_hold(tmp_path: Path) -> None:
    """What is launched again states the share that the engine takes unasked, though it asks for more sequences."""
    script = "#!/bin/bash\npython3 -m sglang.launch_server --model-path openai/gpt-oss-20b --tp 1\n"
    envelope, notes = plan_of_reading(read(script), LOAD)
    (share,) = re.findall(r"default share here is (\S+)", " ".join(notes))
    assert any("caches have room for" in note for note in notes)
    (text,) = emit(envelope, _decision(envelope), "sglang").values()
    assert f"--mem-fraction-static {share} " in text


@pytest.mark.parametrize(("flags", "told"), [("", True), ("--config settings.yaml", False)])
def test_prompts_that_tensorrt_llm_does_not_cut_are_told(flags: str, told: bool) -> None:
    cut = "cat > settings.yaml <<E\nenable_chunked_prefill: true\nE\n" if flags else ""
    reading = read(f"#!/bin/bash\n{cut}trtllm-serve Qwen/Qwen3-32B --tp_size 4 {flags}\n")
    notes = unpriced_notes(reading, LOAD, 8)
    assert any("prompts that are not cut" in note for note in notes) is told


@pytest.mark.parametrize(
    ("script", "ahead"),
    [
        (SERVE.format(flags=LIMITS), None),
        (SERVE.format(flags=f"{LIMITS} --no-async-scheduling"), False),
        (SERVE.format(flags=f"{LIMITS} --async-scheduling"), True),
        (f"#!/bin/bash\n{BALANCED} --disable-overlap-schedule\n", False),
    ],
)
def test_whether_a_step_is_formed_ahead_is_what_the_launch_says(script: str, ahead: bool | None) -> None:
    problem = serving_problem(read(script), LOAD)
    assert problem["engine"].get("async_scheduling") is ahead


PROBLEM = {
    "kind": "serve",
    "models": {"m": {"name": "Qwen/Qwen3-32B"}},
    "cluster": {"pools": [{"gpu": "h100", "nodes": 1}]},
    "workloads": [{"input_tokens": 1000, "output_tokens": 200, "load": {"rate_per_s": 4.0}}],
    "objective": {"minimize": "gpus"},
}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("modes", [["colocated"], ["disaggregated"]])
def test_what_was_emitted_is_the_plan_again(engine: str, modes: list[str], tmp_path: Path) -> None:
    from planner.importing.files import read_files

    problem = PROBLEM | {"engine": {"name": engine}, "options": {"modes": modes}}
    first = solve(problem, level="static")
    for name, text in emit(first, _decision(first), engine).items():
        (tmp_path / name).write_text(text)
    again, _ = plan_of_reading(read_files([str(tmp_path)], {}), LOAD)
    assert roles(again) == roles(first)


def _decision(envelope: Any) -> Any:  # noqa: ANN401 - plain data
    from planner.kinds.serve.options import ServeDecision

    return ServeDecision.model_validate(envelope.decision)


def roles(envelope: Any) -> list[Any]:  # noqa: ANN401 - plain data
    """What launch scripts say of roles: a decode script of vLLM has no chunk, a prefill one no more than a chunk."""
    return [
        (role["function"], role["replicas"], role["parallelism"]["tp"], role["limits"].get("chunk_tokens"),
         role["limits"]["max_batch"] if role["function"] != "prefill" else None)
        for role in envelope.decision["roles"]
    ]  # fmt: skip


MEGATRON = """#!/bin/bash
torchrun --nproc_per_node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 64 \\
  --seq-length 4096 --bf16 --use-distributed-optimizer --sequence-parallel
"""


def test_a_training_script_is_a_plan_of_its_degrees() -> None:
    envelope = plan(MEGATRON, Question.of(cluster="gpu=h100"))
    (role,) = envelope.decision["roles"]
    degrees = {name: role["parallelism"].get(name, 1) for name in ("tp", "pp", "dp", "cp")}
    assert degrees == {"tp": 2, "pp": 2, "dp": 4, "cp": 1}
    assert (envelope.decision["micro_batch"], envelope.decision["zero_stage"]) == (1, 1)


LLAMA_70B = (
    MEGATRON.replace("layers 32", "layers 80")
    .replace("size 4096 --num-attention-heads 32", "size 8192 --num-attention-heads 64")
    .replace("--tensor-model-parallel-size 2", "--tensor-model-parallel-size 8")
    .replace("--seq", "--group-query-attention --num-query-groups 8 --ffn-hidden-size {ffn} {flags} --seq", 1)
)


def test_every_size_that_a_script_states_tells_its_model() -> None:
    for ffn, name in ((28672, "meta-llama/"), (29568, "Qwen/")):
        document = training_problem(read(LLAMA_70B.format(ffn=ffn, flags="")), Question.of(cluster="gpu=h100"))
        assert document["models"]["policy"]["name"].startswith(name)
    with pytest.raises(PlannerError, match="8 query groups, 28673 of FFN"):
        training_problem(read(LLAMA_70B.format(ffn=28673, flags="")), Question.of(cluster="gpu=h100"))


@pytest.mark.parametrize(
    ("flags", "name", "value"),
    [
        ("", "overlap", ["p2p"]),
        ("--overlap-grad-reduce --tp-comm-overlap", "overlap", ["grad_reduce", "tp_comm", "p2p"]),
        ("--no-overlap-p2p-communication", "overlap", []),
        ("--grad-reduce-in-bf16", "reduce_gradients", "bf16"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "precision", "fp8_block"),
        ("--optimizer muon", "optimizer", "muon"),
        ("--num-experts 8 --moe-token-dispatcher-type alltoall", "dispatcher", "alltoall"),
        ("--num-experts 8", "dispatcher", "alltoall"),
        ("--num-experts 8 --moe-token-dispatcher-type flex", "dispatcher", "deepep"),
        ("--num-experts 8 --moe-expert-capacity-factor 1.5", "experts", {"capacity": 1.5, "padded": False}),
        ("", "dropout", {"hidden": 0.1, "attention": 0.1}),
        ("--hidden-dropout 0.0", "dropout", {"hidden": 0.0, "attention": 0.1}),
        ("--hidden-dropout 0 --attention-dropout 0", "dropout", None),
        ("", "cuda_graphs", False),
        ("--cuda-graph-impl transformer_engine --cuda-graph-scope attn mlp", "cuda_graphs", ["attn", "mlp"]),
        ("--recompute-activations", "search.recompute_modules", ["core_attention"]),
        (
            "--recompute-granularity selective --recompute-modules moe_act layernorm",
            "search.recompute_modules",
            ["moe_activation", "layernorm"],
        ),
        (
            "--recompute-granularity full --recompute-method block --recompute-num-layers 3",
            "search.recompute_layers",
            3,
        ),
        (
            "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
            "search.recompute_layers",
            "all",
        ),
        ("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params", "search.zero_stage", 3),
        ("--context-parallel-size 2 --cp-comm-type a2a", "search.context_parallel", "ulysses"),
        ("--num-experts 8 --expert-tensor-parallel-size 1", "search.moe_tp", 1),
    ],
)
def test_flags_of_megatron_that_change_a_step_are_priced(flags: str, name: str, value: object) -> None:
    question = Question.of(cluster="gpu=h100", model="meta-llama/Llama-3.1-70B")
    options = training_problem(read(LLAMA_70B.format(ffn=28672, flags=flags)), question)["options"]
    holder, _, last = name.rpartition(".")
    assert (options[holder] if holder else options).get(last) == value
    assert options["search"]["layers"] == "even"


def test_what_megatron_computes_again_is_that_of_the_script_and_launched_again() -> None:
    flags = "--recompute-granularity selective --recompute-modules mlp shared_experts --no-bias-swiglu-fusion"
    reading = read(MEGATRON.replace("--bf16", f"--bf16 {flags}"))
    question = Question.of(cluster="gpu=h100")
    envelope, notes = plan_of_reading(reading, question)
    script = "".join(emit(envelope, TrainDecision.model_validate(envelope.decision), "megatron-lm").values())
    assert "--recompute-modules mlp" in script
    assert "--hidden-dropout 0.1" in script
    assert any("`shared_experts` computed again, --no-bias-swiglu-fusion" in note for note in notes)


BRIDGE = """
model:
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  overlap_p2p_comm: false
  tp_comm_overlap: true
  recompute_granularity: selective
  recompute_modules: [mlp]
train: {micro_batch_size: 1, global_batch_size: 64}
dataset: {seq_length: 4096}
ddp: {overlap_param_gather: false, grad_reduce_in_fp32: false}
mixed_precision: bf16_with_fp8_subchannel_scaling_mixed
"""


def test_overrides_of_megatron_bridge_fix_what_they_decide() -> None:
    question = Question.of(cluster="gpu=h100,gpus=16", model="meta-llama/Llama-3.1-8B")
    options = training_problem(read(BRIDGE), question)["options"]
    assert options["overlap"] == ["grad_reduce", "tp_comm"]
    assert (options["reduce_gradients"], options["precision"]) == ("bf16", "fp8_block")
    search = options["search"]
    assert (search["layers"], search["zero_stage"], search["recompute_modules"]) == ("even", 1, ["mlp"])
    assert "dropout" not in options


TITAN = """[model]
name = "llama3"
flavor = "70B"
[training]
local_batch_size = 1
global_batch_size = 128
seq_len = 8192
{training}
[parallelism]
tensor_parallel_degree = 8
{parallelism}
"""


@pytest.mark.parametrize(
    ("training", "parallelism", "stated"),
    [
        ("", "data_parallel_shard_degree = 8", {"zero_stage": 3}),
        ("", 'data_parallel_shard_degree = 8\nfsdp_reshard_after_forward = "never"', {"zero_stage": 2}),
        ("", "data_parallel_shard_degree = 4\ndata_parallel_replicate_degree = 2", {"zero_stage": 3, "zero_shards": 4}),
        ("", "data_parallel_shard_degree = 1\ndata_parallel_replicate_degree = 8", {"zero_stage": 0}),
        ("", "data_parallel_shard_degree = 2\npipeline_parallel_degree = 4", {"zero_stage": 2, "schedule": "1f1b"}),
        ("enable_cpu_offload = true", "data_parallel_shard_degree = 8", {"zero_stage": 3, "offload": ["optimizer"]}),
        (
            "",
            "data_parallel_shard_degree = 2\npipeline_parallel_degree = 2\ncontext_parallel_degree = 2\n"
            'pipeline_parallel_schedule = "ZBVZeroBubble"\nenable_sequence_parallel = false',
            {"zero_stage": 2, "schedule": "zb_v", "context_parallel": "all_gather", "sequence_parallel": False},
        ),
    ],
)
def test_how_torchtitan_shares_out_states_is_fixed(training: str, parallelism: str, stated: dict[str, object]) -> None:
    reading = read(TITAN.format(training=training, parallelism=parallelism))
    question = Question.of(cluster="gpu=h100,nodes=8", model="meta-llama/Llama-3.1-70B")
    search = training_problem(reading, question)["options"]["search"]
    names = ("zero_stage", "zero_shards", "offload", "schedule", "context_parallel", "sequence_parallel")
    assert {name: search[name] for name in names if name in search} == stated


def test_what_of_torchtitan_no_plan_has_is_told() -> None:
    text = TITAN.format(training="", parallelism='pipeline_parallel_degree = 2\npipeline_parallel_schedule = "GPipe"')
    text += '[compile]\nenable = false\n[activation_checkpoint]\nmode = "selective"\nselective_ac_option = "2"\n'
    (note,) = training_notes(read(text), Question.of(cluster="gpu=h100,nodes=8"))
    assert note.endswith("schedule GPipe, every 2. layer computed again whole, steps that are not compiled")


def test_tensor_parallelism_of_torchtitan_overlaps_where_it_is_asked_to() -> None:
    question = Question.of(cluster="gpu=h100,nodes=8", model="meta-llama/Llama-3.1-70B")
    for flag, overlaps in (("true", True), ("false", False)):
        text = TITAN.format(training="", parallelism=f"enable_async_tensor_parallel = {flag}")
        assert ("tp_comm" in training_problem(read(text), question)["options"].get("overlap", ())) is overlaps


FACTORY = """model_name_or_path: Qwen/Qwen3-8B
stage: sft
finetuning_type: {kind}
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
cutoff_len: 4096
bf16: true
{more}
"""


@pytest.mark.parametrize(
    ("text", "stated", "told"),
    [
        (FACTORY.format(kind="lora", more="lora_rank: 32"), {"task": "lora", "lora_rank": 32}, None),
        (FACTORY.format(kind="full", more="enable_liger_kernel: true"), {"task": "sft"}, "--enable-liger-kernel"),
        (
            '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3, "zero_hpz_partition_size": 8}}',
            {"overlap": ["param_gather", "p2p", "grad_reduce"]},
            "zero_hpz_partition_size",
        ),
        (
            '{"zero_optimization": {"stage": 3, "overlap_comm": false, "offload_param": {"device": "cpu"}}}',
            {"overlap": ["param_gather", "p2p"]},
            "offload_param",
        ),
    ],
)
def test_what_configurations_of_trainers_decide_is_priced_or_told(
    text: str, stated: dict[str, object], told: str | None
) -> None:
    question = Question.of("global_batch=64,sequence=4096", cluster="gpu=h100,nodes=1", model="Qwen/Qwen3-8B")
    reading = read(text)
    options = training_problem(reading, question)["options"]
    assert stated.items() <= options.items()
    notes = [note for note in training_notes(reading, question) if "not priced" in note]
    assert (told in notes[0]) if told else not notes


AUTOMODEL = """
step_scheduler: {global_batch_size: 64, local_batch_size: 1}
model: {pretrained_model_name_or_path: Qwen/Qwen3-8B, torch_dtype: bfloat16}
distributed: {dp_size: 8, dp_replicate_size: 2, tp_size: 1, cp_size: 1}
distributed_config: {reshard_after_forward: false, activation_checkpointing: full, enable_fsdp2_prefetch: true,
  defer_fsdp_grad_sync: false}
packed_sequence: {packed_sequence_size: 4096}
peft: {dim: 16}
"""


def test_a_recipe_of_automodel_is_priced_as_its_own_engine_with_what_it_decides() -> None:
    problem = training_problem(read(AUTOMODEL), Question.of(cluster="gpu=h100,nodes=1"))
    options, search = problem["options"], problem["options"]["search"]
    assert problem["engine"] == {"name": "nemo-automodel"}
    assert (options["task"], options["lora_rank"]) == ("lora", 16)
    assert options["overlap"] == ["grad_reduce", "p2p", "param_gather"]
    assert (search["zero_stage"], search["zero_shards"], search["recompute"]) == (2, 4, "full")
    assert not [note for note in training_notes(read(AUTOMODEL), Question.of()) if "not priced" in note]


def test_a_run_that_fits_no_machine_is_an_answer_and_no_bug(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run.sh").write_text(
        LLAMA_70B.format(ffn=28672, flags="").replace("parallel-size 8", "parallel-size 1")
    )
    out = tmp_path / "plan.json"
    assert main(["import", str(tmp_path / "run.sh"), "--cluster", "gpu=h100", "-o", str(out)]) == 1
    assert "memory of a GPU" in capsys.readouterr().out
    assert not out.exists()


def test_sizes_of_no_model_are_refused_with_what_to_give() -> None:
    with pytest.raises(PlannerError, match="no model of the catalog has 33 layers"):
        plan(MEGATRON.replace("layers 32", "layers 33"), Question.of(cluster="gpu=h100"))


VERL = """#!/bin/bash
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_response_length=1024 \\
  actor_rollout_ref.model.path=Qwen/Qwen2.5-7B actor_rollout_ref.actor.ppo_mini_batch_size=32 \\
  actor_rollout_ref.rollout.tensor_model_parallel_size=4 actor_rollout_ref.rollout.n=4 trainer.n_gpus_per_node=8 {more}
"""
ANSWERS = Question.of("input=500,output={mean: 600, cv: 0.6}", cluster="gpu=h100")


def test_rl_overrides_are_a_plan_of_their_degrees() -> None:
    envelope = plan(VERL.format(more=""), ANSWERS)
    rollout = next(role for role in envelope.decision["roles"] if role["function"] == "rollout")
    assert rollout["parallelism"]["tp"] == 4


ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
SLIME = """python3 train.py --actor-num-gpus-per-node 8 --colocate --hf-checkpoint Qwen/Qwen2.5-7B \\
  --rollout-batch-size 64 --global-batch-size 64 """


@pytest.mark.parametrize(
    ("text", "reference", "running", "share"),
    [
        (VERL.format(more=""), None, 1024, 0.5),
        (VERL.format(more=f"{ACTOR}.use_kl_loss=True {ROLLOUT}.max_num_seqs=128"), "policy", 128, 0.5),
        (
            VERL.format(more=f"algorithm.use_kl_in_reward=True {ROLLOUT}.gpu_memory_utilization=0.7"),
            "policy",
            1024,
            0.7,
        ),
        (VERL.format(more=f"{ACTOR}.use_kl_loss=\\${{algorithm.kl}} +algorithm.kl=True"), "policy", 1024, 0.5),
        (VERL.format(more=f"'{ACTOR}.use_kl_loss=${{oc.env:KL,False}}'"), None, 1024, 0.5),
        (f"{SLIME} --use-kl-loss --sglang-max-running-requests 64", "policy", 64, None),
    ],
)
def test_what_an_rl_run_loads_and_holds_is_priced(
    text: str, reference: str | None, running: int | None, share: float | None
) -> None:
    problem = rl_problem(read(text), ANSWERS)
    options = problem["options"]
    assert (options.get("reference"), options.get("max_running")) == (reference, running)
    assert problem.get("engine", {}).get("memory_utilisation") == share


@pytest.mark.parametrize("switch", ["$KL", "'${oc.env:KL}'"])
def test_a_reference_that_waits_for_a_variable_is_taken_for_granted_and_told(switch: str) -> None:
    reading = read(VERL.format(more=f"{ACTOR}.use_kl_loss={switch}"))
    assert rl_problem(reading, ANSWERS)["options"]["reference"] == "policy"
    assert "KL" in reading.unresolved
    assert any("waits for KL" in note for note in rl_notes(reading))


def test_settings_of_verl_that_no_plan_has_are_told() -> None:
    more = f"{ACTOR}.ulysses_sequence_parallel_size=2 {ROLLOUT}.enforce_eager=True {ROLLOUT}.data_parallel_size=1"
    (note,) = rl_notes(read(VERL.format(more=more)))
    assert note.endswith(f"plan: {ROLLOUT}.enforce_eager=True, {ACTOR}.ulysses_sequence_parallel_size=2")


def test_sglangs_share_of_memory_is_for_weights_and_caches_alone() -> None:
    """What is launched of a share is again the one that was read, in each framework with SGLang."""
    verl = VERL.format(more=f"{ROLLOUT}.name=sglang {ROLLOUT}.gpu_memory_utilization=0.6")
    for text, told, key in (
        (f"{SLIME} --sglang-mem-fraction-static 0.6 --hidden-dropout 0", "slime", "--sglang-mem-fraction-static "),
        (verl, "verl", "actor_rollout_ref.rollout.gpu_memory_utilization="),
    ):
        reading = read(text)
        share = rl_problem(reading, ANSWERS)["engine"]["memory_utilisation"]
        assert 0.6 < share < 0.8
        envelope = plan_of_reading(reading, ANSWERS)[0]
        files = emit(envelope, RlDecision.model_validate(envelope.decision), told)
        assert re.search(rf"{re.escape(key)}0\.6\b", "".join(files.values()))
    assert any("dropout (hidden 0.1" in note for note in rl_notes(read(SLIME)))


def test_context_and_expert_parallelism_of_an_rl_run_are_fixed_and_its_epochs_told() -> None:
    megatron = f"{ACTOR}.megatron"
    more = f"{megatron}.context_parallel_size=2 {megatron}.expert_model_parallel_size=1 {ACTOR}.ppo_epochs=2"
    reading = read(VERL.format(more=more))
    options = rl_problem(reading, ANSWERS)["options"]
    assert (options["training_cp"], options["training_ep"]) == ([2], [1])
    assert any("2 epochs" in note for note in rl_notes(reading))
