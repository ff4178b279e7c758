"""SGLang: flags `sglang/srt/server_args.py`, metrics `sglang/srt/metrics/collector.py`."""

from planner.engines.serving.description import EngineDescription, RoleFlags

ENGINE = EngineDescription(
    name="sglang",
    title="SGLang",
    target="sglang",
    modules=("sglang.launch_server", "sglang_router.launch_server", "dynamo.sglang"),
    policy="prefill-first",
    flags=RoleFlags(
        degrees=("--tp-size", "--pp-size", "--dp-size"),
        experts="--ep-size {}",
        step=("--max-running-requests", "--chunked-prefill-size"),
    ),
    settings={
        "tp": ("tensor_parallel_size", "tp_size"), "pp": ("pipeline_parallel_size", "pp_size"),
        "dp": ("data_parallel_size", "dp_size", "attn_dp_size"), "ep": ("ep_size", "expert_parallel_size"),
        "max_num_seqs": ("max_running_requests",), "max_model_len": ("context_length",),
        "chunk_tokens": ("chunked_prefill_size",), "kv_dtype": ("kv_cache_dtype",),
        "memory_utilisation": ("mem_fraction_static",), "model": ("model_path", "model"),
        "served": ("served_model_name",), "nodes": ("nnodes",),
    },
    config_flags=("config",),
    config_keys=(
        "model_path", "tp_size", "mem_fraction_static", "chunked_prefill_size", "max_running_requests",
        "context_length", "disable_radix_cache",
    ),
    bench_backend="sglang",
    also_named=("sglang-native", "sglang-oai"),
    image="lmsysorg/sglang:v{}",
    quantises={"fp8": "fp8"},
    unpriced=(
        "cpu_offload_gb", "enable_lora", "lora_paths", "enable_mixed_chunk", "enable_two_batch_overlap",
        "enable_single_batch_overlap", "enable_pdmux",
    ),
    unread=(
        "max_total_tokens", "max_prefill_tokens", "max_mamba_cache_size",
        "schedule_policy", "schedule_conservativeness", "num_continuous_decode_steps", "stream_interval",
        "scheduler_recv_interval", "attention_backend", "prefill_attention_backend", "decode_attention_backend",
        "moe_runner_backend", "cuda_graph_max_bs", "cuda_graph_max_bs_decode", "enable_torch_compile",
        "enable_symm_mem", "enable_nccl_nvls", "disable_custom_all_reduce", "enable_flashinfer_allreduce_fusion",
        "disable_shared_experts_fusion", "json_model_override_args",
    ),
    metrics={
        "running": ("sglang:num_running_reqs",),
        "waiting": ("sglang:num_queue_reqs",),
        "cache": ("sglang:token_usage",),
        "requests": ("sglang:num_requests_total",),
        "prompt_tokens": ("sglang:prompt_tokens_total",),
        "output_tokens": ("sglang:generation_tokens_total",),
        "preemptions": ("sglang:num_retracted_reqs",),
        "ttft": ("sglang:time_to_first_token_seconds",),
        "itl": ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
        "tpot": ("sglang:time_per_output_token_seconds",),
        "latency": ("sglang:e2e_request_latency_seconds",),
    },
)  # fmt: skip
