# Plan "training", sha256:PLAN, by planner 0.1.0
"""The configuration that torchtitan trains with as planned: `--module plan --config plan`."""

from dataclasses import replace

from torchtitan.config import CompileConfig, ParallelismConfig
from torchtitan.distributed.activation_checkpoint import FullAC
from torchtitan.models.llama3 import model_registry
from torchtitan.models.llama3.config_registry import llama3_8b

STAGES = None


def plan():
    """The model's own configuration with what the plan decided in place of its defaults."""
    config = llama3_8b()
    return replace(
        config,
        model_spec=model_registry('8B'),
        training=replace(
            config.training,
            local_batch_size=1,
            global_batch_size=64,
            seq_len=4096,
            enable_cpu_offload=False,
            disable_cuda_graphs=True,
        ),
        parallelism=ParallelismConfig(
            data_parallel_replicate_degree=2,
            data_parallel_shard_degree=4,
            fsdp_reshard_after_forward="never",
            tensor_parallel_degree=2,
            enable_sequence_parallel=True,
            pipeline_parallel_degree=1,
            context_parallel_degree=1,
            expert_parallel_degree=1,
            module_fqns_per_model_part=STAGES,
        ),
        activation_checkpoint=FullAC.Config(),
        compile=CompileConfig(enable=True, enable_async_tensor_parallel=True),
    )
