"""TensorRT-LLM: flags `tensorrt_llm/commands/serve.py`, settings `tensorrt_llm/llmapi/llm_args.py`."""

from planner.engines.serving.description import EngineDescription, RoleFlags

ENGINE = EngineDescription(
    name="trtllm",
    title="TensorRT-LLM",
    target="tensorrt-llm",
    modules=("dynamo.trtllm",),
    policy="mixed",
    flags=RoleFlags(
        degrees=("--tp_size", "--pp_size", "--dp_size"),
        experts="--ep_size {}",
        step=("--max_batch_size", "--max_num_tokens"),
    ),
    settings={
        "tp": ("tensor_parallel_size", "tp_size"), "pp": ("pipeline_parallel_size", "pp_size"),
        "ep": ("moe_expert_parallel_size", "ep_size", "expert_parallel_size"),
        "max_num_seqs": ("max_batch_size",), "max_model_len": ("max_seq_len",), "chunk_tokens": ("max_num_tokens",),
        "kv_dtype": ("kv_cache_dtype", "kv_cache_config.dtype"), "model": ("model", "model_path"),
        "memory_utilisation": (
            "kv_cache_free_gpu_memory_fraction", "kv_cache_free_gpu_mem_fraction", "free_gpu_memory_fraction",
            "kv_cache_config.free_gpu_memory_fraction",
        ),
        "served": ("served_model_name",), "nodes": ("nnodes",),
    },
    config_flags=("extra_llm_api_options", "config", "config_file", "extra_engine_args"),
    config_keys=(
        "kv_cache_config", "cuda_graph_config", "enable_attention_dp", "max_num_tokens", "moe_config",
        "max_batch_size", "max_seq_len", "moe_expert_parallel_size", "attn_backend", "disable_overlap_scheduler",
    ),
    bench_backend="openai",
    also_named=("trt", "tensorrt-llm", "tensorrt_llm"),
    unread=(
        "kv_cache_config.max_tokens", "kv_cache_config.max_attention_window", "moe_config.backend", "attn_backend",
        "attention_dp_config", "cuda_graph_config.max_batch_size", "allreduce_strategy", "enable_min_latency",
        "scheduler_config.capacity_scheduler_policy", "stream_interval", "lora_config",
    ),
    vendors=("nvidia",),  # nvidia.github.io/TensorRT-LLM/reference/support-matrix.html, "Hardware"
    reserves=True,
)  # fmt: skip
