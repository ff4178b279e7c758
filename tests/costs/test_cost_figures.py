"""Costs of many steps, drawn by seed over models, GPUs and every switch, are those of the tables in tests/golden/costs.

What changes costs on purpose writes the tables anew with `pytest --update-golden`, and the difference is read.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Literal, get_args

import numpy as np

from planner.costs.operators.experts import EVEN, ExpertLoad
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.calibration import load_calibration
from planner.costs.rates.roofline import Roofline
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.costs.training.config import (
    AHEAD,
    FRAMEWORKS,
    MEGATRON_OVERLAPS,
    ContextParallel,
    Loading,
    Precision,
    RecomputeConfig,
    Schedule,
    Task,
    TrainingConfig,
    machine_of,
)
from planner.costs.training.flops import model_flop_per_token
from planner.costs.training.intervals import step_interval_s
from planner.costs.training.memory import memory, work_bytes
from planner.costs.training.rates import default_rates
from planner.costs.training.step import step_time
from planner.hardware.cluster import Pool
from planner.hardware.library import find_node
from planner.kinds.serve.steady.steps.formulas import Costs
from planner.models.architecture import Architecture, MoeFfn
from planner.models.library import find_model

CONFIGS = 200
TRAINED = (
    "meta-llama/Meta-Llama-3.1-8B", "openai/gpt-3-175b", "mosaicml/mpt-7b", "google/gemma-3-12b-it",
    "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V2-Lite", "openai/gpt-oss-20b",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nvidia/Nemotron-H-56B-Base-8K", "Qwen/Qwen3.5-35B-A3B",
)  # fmt: skip
MODULES = ("core_attention", "mlp", "moe", "moe_activation", "layernorm", "mla_up_projection", "attention")
SWITCHES = (*sorted(MEGATRON_OVERLAPS), "tp_comm", "tp_fused", "ep_comm")
SERVED = (
    ("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", "vllm"),
    ("nvidia/Llama-3.3-70B-Instruct-FP8", "h200_sxm", "trtllm"),
    ("Qwen/Qwen3-235B-A22B-FP8", "h200_sxm", "sglang"),
    ("nvidia/Qwen3-30B-A3B-NVFP4", "b200", "vllm"),
    ("deepseek-ai/DeepSeek-V3", "h200_sxm", "sglang"),
    ("deepseek-ai/DeepSeek-V3.2", "b200", "vllm"),
    ("openai/gpt-oss-120b", "h100_sxm", "vllm"),
    ("google/gemma-3-27b-it", "a100_sxm", "vllm"),
    ("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "h100_sxm", "vllm"),
    ("Qwen/Qwen3.5-122B-A10B", "h200_sxm", "sglang"),
)


def _line(*values: object) -> str:
    return ",".join(f"{value:.8g}" if isinstance(value, float) else str(value) for value in values) + "\n"


def _has_experts(arch: Architecture) -> bool:
    return any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)


def _training_config(seed: int) -> TrainingConfig:
    draw = random.Random(f"training figures/{seed}")
    arch = find_model(draw.choice(TRAINED))
    node = find_node(draw.choice(("h100_sxm", "h800_sxm", "a100_sxm", "gb200_nvl72", "b200")))
    schedule = draw.choice(get_args(Schedule))
    tp, cp, pp, dp = (
        draw.choice((1, 2, 4, 8)),
        draw.choice((1, 1, 2, 4)),
        draw.choice((1, 2, 4, 8)),
        2 ** draw.randint(0, 4),
    )
    vpp = draw.choice((2, 3)) if schedule == "interleaved" else 2 if schedule in ("zb_v", "dualpipev") else 1
    pp = max(pp, 2) if schedule != "1f1b" else pp
    sparse = _has_experts(arch)
    etp = draw.choice((1, 1, tp)) if sparse else 1
    ep = draw.choice([degree for degree in (1, 2, 4, 8, 16) if tp * cp * dp % (degree * etp) == 0]) if sparse else 1
    granularity: Literal["none", "selective", "full"] = draw.choice(("none", "selective", "full"))
    micro_batch, batches = draw.choice((1, 2, 4)), pp * draw.choice((2, 3, 8))
    return TrainingConfig(
        arch=arch,
        machine=machine_of(node),
        sequence_tokens=draw.choice((2048, 4096, 32768)),
        global_batch=dp * micro_batch * batches,
        micro_batch=micro_batch,
        tp=tp,
        pp=pp,
        vpp=vpp,
        cp=cp,
        context_parallel=draw.choice(get_args(ContextParallel)),
        ep=ep,
        etp=etp,
        dp=dp,
        zero_stage=draw.randint(0, 3),
        zero_ranks=draw.choice((0, 0, 2)) if dp > 2 else 0,
        schedule=schedule,
        recompute=RecomputeConfig(
            granularity,
            tuple(draw.sample(MODULES, draw.randint(1, 3))) if granularity == "selective" else (),
            draw.choice((0, 1)) if granularity == "full" else 0,
        ),
        precision=draw.choice(get_args(Precision)) if node.name != "a100_sxm" else "bf16",
        task=draw.choice((*get_args(Task), "pretrain")),
        overlap=frozenset(draw.sample(SWITCHES, draw.randint(0, len(SWITCHES)))),
        offload=frozenset(draw.choice(((), (), ("optimizer",), ("activations",)))),
        framework=FRAMEWORKS[draw.choice(("megatron", *FRAMEWORKS))],
        ends_count_as_layers=draw.random() < 0.3,
        optimizer=draw.choice(("adamw", "adamw", "muon")),
        moved_layers=draw.choice((0, 3)),
        expert_load=draw.choice((EVEN, EVEN, ExpertLoad(1.5), ExpertLoad(2.0, 1.25, padded=True))),
        document_tokens=draw.choice((0.0, 0.0, 1024.0)),
        in_network=draw.random() < 0.3,
        step_spread=draw.choice((0.0, 0.02)),
        loading=draw.choice((AHEAD, AHEAD, Loading(1e7, 1e9))),
    )


def _training_lines() -> Iterator[str]:
    names = ("forward_s", "backward_input_s", "backward_weight_s")
    yield _line(
        "config", "step_s", "least_s", "most_s", "pipeline_s", "bubble_s", "data_parallel_s", "optimizer_s",
        *(f"{end}_{name}" for end in ("first", "last") for name in names), "model_flop_per_token",
        *(f"{end}_{part}_bytes" for end in ("first", "last")
          for part in ("weights", "gradients", "optimizer", "activations", "workspace")),
        "layer_work_bytes", "loss_work_bytes",
    )  # fmt: skip
    for seed in range(CONFIGS):
        config = _training_config(seed)
        time, held, work = step_time(config), memory(config), work_bytes(config)
        yield _line(
            seed, time.step_s, *step_interval_s(config, time.step_s, default_rates()), time.pipeline_s, time.bubble_s,
            time.data_parallel_s, time.optimizer_s,
            *(float(value) for end in (0, -1) for value in time.pass_R3[end]),
            model_flop_per_token(config.arch, config.sequence_tokens),
            *(float(part_R[end]) for end in (0, -1) for part_R in (
                held.weights_R, held.gradients_R, held.optimizer_R, held.activations_R, held.workspace_R,
            )),
            work.layer_bytes, work.loss_bytes,
        )  # fmt: skip


def _serving_lines() -> Iterator[str]:
    yield "model,gpu,engine,work,layout,seconds,weight_bytes,cache_bytes,activation_bytes\n"
    for model, gpu, engine in SERVED:
        arch, pool, calibration = find_model(model), Pool("pool", find_node(gpu), 8), load_calibration()
        roofline = Roofline(pool.node.accelerator, pool.topology(), calibration.efficiencies)
        costs = Costs(arch, roofline, calibration.engine(engine, None))
        layouts = _layouts(arch)
        for name, work in _works(len(layouts)).items():
            shards = Shards.of(*(np.array(column, dtype=float) for column in zip(*layouts, strict=True)))
            seconds = np.broadcast_to(costs.step(shards, work).seconds, len(layouts))
            resident = weight_bytes(arch, shards), kv_cache_bytes(arch, shards, np.full(len(layouts), 3000.0))
            columns = (*resident, activation_bytes(arch, shards, 2048.0, 64.0))
            for index, layout in enumerate(layouts):
                text = "x".join(map(str, layout))
                yield _line(model, gpu, engine, name, text, *(float(column[index]) for column in (seconds, *columns)))


def _layouts(arch: Architecture) -> list[tuple[int, int, int, int, int, int]]:
    """tp, pp, dp, tensor and expert parallelism of experts, batches that a step is cut in."""
    dense = [(tp, pp, 1, tp, 1, 1) for tp, pp in ((1, 1), (2, 1), (8, 1), (4, 2))]
    sparse = [(8, 1, 1, 1, 8, 1), (1, 1, 8, 1, 8, 1), (2, 1, 4, 8, 1, 1), (1, 1, 16, 1, 16, 2), (4, 2, 2, 2, 4, 1)]
    return dense + sparse if _has_experts(arch) else dense


def _works(size: int) -> dict[str, Work]:
    def full(value: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        return np.full(size, value)

    return {
        "decode": Work.decode(full(48.0), full(2500.0)),
        "one": Work.decode(full(1.0), full(20000.0)),
        "prefill": Work.of(full(4096.0), full(2.0), full(1000.0), full(0.0), full(0.0)),
        "mixed": Work.of(full(512.0), full(1.0), full(0.0), full(32.0), full(1500.0)),
        "drafts": Work.decode(full(16.0), full(4000.0)).with_drafts(full(3.0)),
    }


def test_training_costs_are_those_of_the_table(golden: Callable[[str, str], None]) -> None:
    golden("costs/training.csv", "".join(_training_lines()))


def test_serving_costs_are_those_of_the_table(golden: Callable[[str, str], None]) -> None:
    golden("costs/serving.csv", "".join(_serving_lines()))


def test_the_drawn_configurations_have_every_switch() -> None:
    configs = [_training_config(seed) for seed in range(CONFIGS)]
    for name in (field.name for field in fields(TrainingConfig)):
        if name not in ("layers_of_stage", "lora_rank"):
            assert len({str(getattr(config, name)) for config in configs}) > 1, name
