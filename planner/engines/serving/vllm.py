"""vLLM: flags `vllm/engine/arg_utils.py`, metrics `vllm/v1/metrics/loggers.py`."""

from planner.engines.serving.description import EngineDescription, RoleFlags

ENGINE = EngineDescription(
    name="vllm",
    title="vLLM",
    target="vllm",
    modules=(
        "vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main", "dynamo.vllm",
    ),
    policy="mixed",
    flags=RoleFlags(
        degrees=("--tensor-parallel-size", "--pipeline-parallel-size", "--data-parallel-size"),
        experts="--enable-expert-parallel",
        step=("--max-num-seqs", "--max-num-batched-tokens"),
    ),
    settings={
        "tp": ("tensor_parallel_size",), "pp": ("pipeline_parallel_size",), "dp": ("data_parallel_size",),
        "max_num_seqs": ("max_num_seqs",), "max_model_len": ("max_model_len",),
        "chunk_tokens": ("max_num_batched_tokens",), "kv_dtype": ("kv_cache_dtype",),
        "memory_utilisation": ("gpu_memory_utilization",), "model": ("model", "model_tag", "model_id"),
        "served": ("served_model_name",), "nodes": ("nnodes",),
    },
    config_flags=("config",),
    config_keys=(
        "tensor_parallel_size", "pipeline_parallel_size", "gpu_memory_utilization", "max_num_seqs", "max_model_len",
        "max_num_batched_tokens", "kv_cache_dtype", "enable_prefix_caching", "no_enable_prefix_caching",
        "async_scheduling", "enable_expert_parallel", "compilation_config", "served_model_name",
    ),
    bench_backend="vllm",
    image="vllm/vllm-openai:v{}",
    quantises={"fp8": "fp8", "fp8_block": "fp8_per_block"},
    unpriced=(
        "cpu_offload_gb", "enable_lora", "decode_context_parallel_size", "prefill_context_parallel_size", "enable_dbo",
    ),
    unread=(
        "kv_cache_memory_bytes", "num_gpu_blocks_override", "offload_num_in_group", "no_enable_chunked_prefill",
        "max_num_partial_prefills", "long_prefill_token_threshold", "num_scheduler_steps", "scheduling_policy",
        "stream_interval", "attention_backend", "attention_config", "moe_backend", "all2all_backend",
        "compilation_config", "max_cudagraph_capture_size", "disable_custom_all_reduce", "hf_overrides",
        "disable_hybrid_kv_cache_manager", "language_model_only",
    ),
    metrics={
        "running": ("vllm:num_requests_running",),
        "waiting": ("vllm:num_requests_waiting",),
        "cache": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
        "requests": ("vllm:request_success_total", "vllm:request_success"),
        "prompt_tokens": ("vllm:prompt_tokens_total", "vllm:prompt_tokens"),
        "output_tokens": ("vllm:generation_tokens_total", "vllm:generation_tokens"),
        "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
        "ttft": ("vllm:time_to_first_token_seconds",),
        "itl": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
        "tpot": ("vllm:request_time_per_output_token_seconds",),
        "latency": ("vllm:e2e_request_latency_seconds",),
    },
)  # fmt: skip
