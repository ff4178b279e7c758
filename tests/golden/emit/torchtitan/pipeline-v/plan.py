# Plan "training", sha256:PLAN, by planner 0.1.0
"""The configuration that torchtitan trains with as planned: `--module plan --config plan`."""

from dataclasses import replace

from torchtitan.config import CompileConfig, ParallelismConfig
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_70b

STAGES = [
    ["tok_embeddings", "layers.0", "layers.1", "layers.2", "layers.3"],
    ["layers.4", "layers.5", "layers.6", "layers.7", "layers.8"],
    ["layers.9", "layers.10", "layers.11", "layers.12", "layers.13"],
    ["layers.14", "layers.15", "layers.16", "layers.17", "layers.18"],
    ["layers.19", "layers.20", "layers.21", "layers.22", "layers.23"],
    ["layers.24", "layers.25", "layers.26", "layers.27", "layers.28"],
    ["layers.29", "layers.30", "layers.31", "layers.32", "layers.33"],
    ["layers.34", "layers.35", "layers.36", "layers.37", "layers.38"],
    ["layers.39", "layers.40", "layers.41", "layers.42", "layers.43"],
    ["layers.44", "layers.45", "layers.46", "layers.47", "layers.48"],
    ["layers.49", "layers.50", "layers.51", "layers.52", "layers.53"],
    ["layers.54", "layers.55", "layers.56", "layers.57", "layers.58"],
    ["layers.59", "layers.60", "layers.61", "layers.62", "layers.63"],
    ["layers.64", "layers.65", "layers.66", "layers.67", "layers.68"],
    ["layers.69", "layers.70", "layers.71", "layers.72", "layers.73"],
    ["layers.74", "layers.75", "layers.76", "layers.77", "layers.78", "layers.79", "norm", "lm_head"],
]


def plan():
    """The model's own configuration with what the plan decided in place of its defaults."""
    config = llama3_70b()
    return replace(
        config,
        model_spec=model_registry('70B'),
        training=replace(
            config.training,
            local_batch_size=32,
            global_batch_size=256,
            seq_len=4096,
            enable_cpu_offload=False,
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=1,
            data_parallel_shard_degree=8,
            fsdp_reshard_after_forward="always",
            tensor_parallel_degree=8,
            enable_sequence_parallel=True,
            pipeline_parallel_degree=8,
            context_parallel_degree=1,
            expert_parallel_degree=1,
            pipeline_parallel_schedule="ZBVZeroBubble",
            pipeline_parallel_microbatch_size=1,
            module_fqns_per_model_part=STAGES,
        ),
        activation_checkpoint=None,
        compile=CompileConfig(enable=True, enable_async_tensor_parallel=False),
    )
