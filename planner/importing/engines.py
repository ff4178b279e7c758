"""The flags of serving engines as the fields of a role.

Names of flags: vLLM `vllm/engine/arg_utils.py`, SGLang `sglang/srt/server_args.py`, TensorRT-LLM
`tensorrt_llm/llmapi/llm_args.py` and `commands/serve.py`. A degree that is not set is 1 in all three; every other
setting that is not set stays open, since its default rests on the release and the GPU (planner/engines/settings.yaml).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from planner.documents.read import parse_document
from planner.engines.serving.registry import SERVING_ENGINES
from planner.engines.settings import whole_prompts
from planner.errors import PlannerError
from planner.importing.launches import Launch
from planner.importing.options import POSITIONAL, Options, named, read_options, stated
from planner.importing.records import AHEAD, QUANTIZATION, UNPRICED, UNREAD
from planner.importing.values import Values, is_unknown

ABSENT = "."
"""Under which options hold the path of a configuration that is not at hand."""


@dataclass(frozen=True)
class Given:
    """What stands around a command: GPUs and nodes of a replica, replicas, and what it is called for; None: unsaid."""

    gpus: int | None = None
    nodes: int | None = None
    replicas: int | None = 1
    role: str | None = None
    max_replicas: int | None = None


def decision_names(engine: str) -> list[str]:
    """The names of settings that decide a field of a role."""
    return [name for names in SERVING_ENGINES[engine].settings.values() for name in names]


_FIELDS = {
    "replicas": ("replicas", "replicaCount", "minReplicas", "num_replicas", "min_replicas"),
    "gpus_per_replica": ("nvidia.com/gpu", "gpu", "requestGPU"),
    "micro_batch": ("micro-batch-size", "local_batch_size", "train_micro_batch_size_per_gpu"),
    "recompute": ("recompute-granularity", "mode"),
    "vpp": ("num-virtual-stages-per-pipeline-rank",),
}  # fmt: skip
_TRAINING = {
    "tp": ("tensor-model-parallel-size", "tensor_parallel_degree", "tensor_model_parallel_size"),
    "pp": ("pipeline-model-parallel-size", "pipeline_parallel_degree", "pipeline_model_parallel_size"),
    "cp": ("context-parallel-size", "context_parallel_degree"),
    "ep": ("expert-model-parallel-size", "expert_parallel_degree"),
}
_ROLLOUT = ("tensor_model_parallel_size", "rollout-num-gpus-per-engine", "vllm_tensor_parallel_size")


def flag_names(engine: str, field: str) -> tuple[str, ...]:
    """What artifacts call the setting behind a field, as flags have it first."""
    if field in _FIELDS:
        return _FIELDS[field]
    if engine in SERVING_ENGINES:
        names = tuple(name.replace("_", "-") for name in SERVING_ENGINES[engine].settings.get(field, ()))
        return (*names, *(name.replace("-", "_") for name in names))
    return _ROLLOUT if field == "rollout.tp" else _TRAINING.get(field.removeprefix("train."), ())


def options_of(launch: Launch) -> Options:
    """The settings of a launch, those of a configuration file that stands beside it included; flags go first.

    Dynamo's workers of TensorRT-LLM take settings as JSON too (`dynamo/trtllm`), which go before all others.
    """
    flags = read_options(launch.words)
    flags |= flat_options(Values().mapping(flags.get("override_engine_args")))
    engine = SERVING_ENGINES.get(launch.engine)
    for name in engine.config_flags if engine is not None else ():
        text = launch.file(flags.get(name))
        if text is not None:
            return config_options(text, str(flags[name])) | flags
        flags |= {ABSENT: flags[name]} if isinstance(flags.get(name), str) else {}
    return flags


def config_options(text: str, source: str) -> Options:
    """The settings in the YAML of a configuration file, those inside mappings under names with dots too."""
    marked = text.replace("\x00", "\ue000")
    data = parse_document(marked, source).data if marked.strip() else {}
    return flat_options(data) if isinstance(data, Mapping) else {}


def flat_options(data: Mapping[str, Any]) -> Options:
    """Settings by name, those inside mappings under names with dots too."""
    options = named({key: _unmarked(value) for key, value in data.items()})
    for key, value in list(options.items()):
        if isinstance(value, Mapping):
            options |= {f"{key}.{name}": below for name, below in flat_options(value).items()}
    return options


def _unmarked(value: object) -> object:
    return value.replace("\ue000", "\x00") if isinstance(value, str) else value


def first(options: Mapping[str, Any], names: tuple[str, ...]) -> object:
    """The value of the first name that is set to anything."""
    return next((options[name] for name in names if options.get(name) is not None), None)


def role_of(engine: str, options: Options, given: Given, values: Values) -> dict[str, Any]:
    """The fields of one role; degrees that are not set are 1, and the GPUs are the given ones, else the ranks."""
    names = SERVING_ENGINES[engine].settings
    degree = {key: values.integer(first(options, names[key]), 1) if key in names else 1 for key in ("tp", "pp", "dp")}
    if engine == "trtllm" and values.switch(options.get("enable_attention_dp")):
        degree["dp"] = degree["tp"]
    ranks = ranks_of(engine, degree, options, values)
    elsewhere = ABSENT in options and ranks is not None and given.gpus not in (None, ranks)
    if elsewhere and not any(first(options, names[key]) for key in degree if key in names):
        values.unresolved.append(str(options[ABSENT]))
        degree = dict.fromkeys(degree)
    nodes = given.nodes or values.integer(options.get("nnodes")) or _nodes_of(options, degree, values)
    role: dict[str, Any] = {
        "role": given.role or _asked_role(options, values) or "colocated",
        "replicas": given.replicas,
        "gpus_per_replica": given.gpus or ranks,
        "nodes_per_replica": nodes,
        **degree,
        "ep": _experts(engine, options, degree, values),
        "max_num_seqs": values.integer(first(options, names["max_num_seqs"])),
        "max_model_len": values.integer(first(options, names["max_model_len"])),
        "chunk_tokens": values.integer(first(options, names["chunk_tokens"])),
        "kv_dtype": values.text(first(options, names["kv_dtype"])),
        "memory_utilisation": values.number(first(options, names["memory_utilisation"])),
        "prefix_caching": _prefix_caching(engine, options, values),
        "speculative": _speculative(options, values),
    }
    if values.switch(options.get("enforce_eager")) or values.switch(options.get("disable_cuda_graph")):
        role["enforce_eager"] = True
    quantization = values.text(options.get(QUANTIZATION))
    if quantization is not None:
        role[QUANTIZATION] = quantization
    unpriced = stated(options, SERVING_ENGINES[engine].unpriced)
    if unpriced:
        role[UNPRICED] = unpriced
    unread = stated(options, SERVING_ENGINES[engine].unread)
    if role["role"] != "decode" and whole_prompts(engine) and not values.switch(options.get("enable_chunked_prefill")):
        unread.append("prompts that are not cut: `enable_chunked_prefill` is off")
    if unread:
        role[UNREAD] = unread
    ahead = _scheduling_ahead(engine, options, values)
    if ahead is not None:
        role[AHEAD] = ahead
    copies = _redundant_experts(engine, options, values)
    if copies is not None:
        role["redundant_experts"] = copies
    if given.max_replicas is not None and given.max_replicas != given.replicas:
        role["max_replicas"] = given.max_replicas
    return role


def ranks_of(engine: str, degree: Mapping[str, int | None], options: Options, values: Values) -> int | None:
    """The processes of a replica, one a GPU: data-parallel attention of SGLang and TensorRT-LLM shares those of TP."""
    tp, pp, dp = degree["tp"], degree["pp"], degree["dp"]
    attention = values.switch(options.get("enable_dp_attention")) or options.get("attn_dp_size") is not None
    shared = engine == "trtllm" or (engine == "sglang" and attention)
    if tp is None or pp is None or (dp is None and not shared):
        return None
    return tp * pp * (1 if shared or dp is None else dp)


def _nodes_of(options: Options, degree: Mapping[str, int | None], values: Values) -> int:
    """Nodes by the share of data parallelism that is local; 1 where nothing says so."""
    local, dp = values.integer(options.get("data_parallel_size_local")), degree["dp"]
    return dp // local if local and dp and dp % local == 0 else 1


def _experts(engine: str, options: Options, degree: Mapping[str, int | None], values: Values) -> int | None:
    backend = str(options.get("moe_a2a_backend") or "none")
    switched = options.get("enable_deepep_moe") or options.get("enable_ep_moe")
    if engine == "sglang" and (backend != "none" or values.switch(switched)):
        return degree["tp"]  # `server_args.py`: an all-to-all backend sets ep_size to tp_size
    if engine != "vllm":
        return values.integer(first(options, SERVING_ENGINES[engine].settings["ep"]), 1)
    asked = options.get("enable_expert_parallel")
    if asked is None or values.switch(asked) is False:
        return 1
    tp, dp = degree["tp"], degree["dp"]
    return None if is_unknown(asked) or tp is None or dp is None else tp * dp


def _redundant_experts(engine: str, options: Options, values: Values) -> int | None:
    """Copies of experts of a layer where the engine places them by load (EPLB); None where it does not, or may not.

    SGLang does so from a recorded layout too; its copies without either are of the first experts, whatever their load.
    """
    asked = values.switch(options.get("enable_eplb"))
    if engine == "vllm":
        config = "eplb_config.num_redundant_experts"
        copies = values.mapping(options.get("eplb_config")).get("num_redundant_experts", options.get(config))
        stated = first({**options, config: copies}, (config, "num_redundant_experts"))
    else:
        asked = asked or options.get("init_expert_location") not in (None, "trivial")
        stated = options.get("ep_num_redundant_experts")
    return values.integer(stated, 0) if asked and engine in ("vllm", "sglang") else None


def _scheduling_ahead(engine: str, options: Options, values: Values) -> bool | None:
    """Whether the scheduler forms a step while the one before it runs, where the settings say so.

    TensorRT-LLM's servers of prefill do not whatever they are told (examples/disaggregated).
    """
    if engine == "vllm":
        return values.switch(options.get("async_scheduling"))
    off = options.get("disable_overlap_schedule" if engine == "sglang" else "disable_overlap_scheduler")
    apart = engine == "trtllm" and options.get("cache_transceiver_config") is not None
    return False if values.switch(off) and not apart else None


def _prefix_caching(engine: str, options: Options, values: Values) -> bool | None:
    if engine == "sglang":
        return False if values.switch(options.get("disable_radix_cache")) else None
    if engine == "trtllm":
        return values.switch(first(options, ("kv_cache_config.enable_block_reuse", "enable_block_reuse")))
    return values.switch(options.get("enable_prefix_caching"))


def _speculative(options: Options, values: Values) -> dict[str, Any] | None:
    """The method and the tokens drafted a step."""
    prefix = "speculative_config."
    dotted = {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}
    config = values.mapping(options.get("speculative_config")) or dotted
    if config:
        method = config.get("method") or config.get("decoding_type") or config.get("model")
        tokens = first(config, ("num_speculative_tokens", "num_nextn_predict_layers", "max_draft_len"))
        return {"method": method, "tokens": values.integer(tokens)}
    method = values.text(first(options, ("speculative_algorithm", "speculative_algo")))
    if method is None:
        return None
    return {"method": method, "tokens": values.integer(options.get("speculative_num_draft_tokens"))}


def _asked_role(options: Options, values: Values) -> str | None:
    """The side of a disaggregated deployment that the flags name; None for both, and for none.

    Raises PlannerError for flags that name one side each.
    """
    mode = values.text(options.get("disaggregation_mode"))
    transfer = values.mapping(options.get("kv_transfer_config"))
    asked = {
        "--disaggregation-mode": mode if mode in ("prefill", "decode") else None,
        "--is-prefill-worker": "prefill" if values.switch(options.get("is_prefill_worker")) else None,
        "--is-decode-worker": "decode" if values.switch(options.get("is_decode_worker")) else None,
        "--kv-transfer-config": {"kv_producer": "prefill", "kv_consumer": "decode"}.get(str(transfer.get("kv_role"))),
    }
    if values.mapping(options.get("cache_transceiver_config")) and mode is None:
        # servers of prefill run without the overlap scheduler (TensorRT-LLM, examples/disaggregated)
        whole = values.switch(options.get("disable_overlap_scheduler"))
        asked["disable_overlap_scheduler"] = "prefill" if whole else "decode"
    named = {flag: side for flag, side in asked.items() if side is not None}
    if len(set(named.values())) > 1:
        told = " and ".join(f"{flag} of {side}" for flag, side in named.items())
        raise PlannerError(f"flags of one engine name two roles: {told}", hint="leave one of them out")
    return next(iter(named.values()), None)


def hands_over(options: Options) -> bool:
    """Whether the flags set up the handing over of KV caches between two sides."""
    return any(options.get(name) for name in ("kv_transfer_config", "disaggregation_mode", "cache_transceiver_config"))


def model_of(engine: str, options: Options, values: Values) -> str | None:
    """The model's name: the one loaded, or the one served where that alone is a name and not a path."""
    loaded = first(options, SERVING_ENGINES[engine].settings["model"]) or options.get(POSITIONAL)
    served = options.get("served_model_name")
    served = served[0] if isinstance(served, list) and served else served
    if is_unknown(loaded) or isinstance(loaded, bool):
        return values.text(loaded)
    loaded = re.sub(r"\Ahf:(//)?", "", str(loaded)) if loaded is not None else None
    if (loaded is None or not is_repository(loaded)) and isinstance(served, str) and is_repository(served):
        return served
    return values.text(loaded)


def is_repository(name: str) -> bool:
    """Whether `name` is `owner/model` and no path."""
    owner, slash, rest = name.partition("/")
    return bool(slash and owner and rest) and "/" not in rest and owner not in (".", "..", "~") and not is_unknown(name)
