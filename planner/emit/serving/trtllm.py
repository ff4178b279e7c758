"""Launch scripts and configurations of TensorRT-LLM: `trtllm-serve`, and its server before prefill and decode apart.

Names of settings are those of `LlmArgs` of its PyTorch backend, releases 1.2 to 1.4 (tensorrt_llm/llmapi/llm_args.py;
disagg_utils.py for what stands before). Attention runs tensor-parallel, or data-parallel on as many ranks
(`enable_attention_dp`); batch limits hold per rank; `free_gpu_memory_fraction` is a share of what weights and
activations leave. Context servers schedule without overlap. Ranks on several nodes need MPI, which clusters start and
the scripts here do not.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from planner.emit.documents import manifest, plan_title
from planner.emit.names import label_of
from planner.emit.registry import EmitTarget, LayoutPlan
from planner.emit.serving.balanced_experts import num_experts, redundant_experts
from planner.emit.serving.checkpoints import load_quantisation, loaded_name
from planner.emit.serving.instances import EngineInstance
from planner.emit.serving.scene import (
    API_PORT,
    FRONT_FILE,
    ROUTER_PORT,
    Host,
    RouterGroup,
    Scene,
    ServingEngine,
    caches_prefixes,
    limit,
    prefix_tiers,
)
from planner.emit.serving.scripts import (
    clients_share,
    experts_spread,
    node_parts,
    planned_shares,
    read_scene,
    told_files,
    two_batches,
)
from planner.emit.serving.speculation import check_handover, drafts_of, verified_tokens
from planner.emit.shell import Command, Word, argument, script, word
from planner.engines.serving.trtllm import ENGINE as DESCRIPTION
from planner.plan.schema import Decision, Envelope

Settings = dict[str, object]
_KV_CACHE = {"bf16": "auto", "fp16": "auto", "fp8": "fp8"}
_ROUTERS = {"round-robin": "round_robin", "power-of-two": "load_balancing"}
_PROGRAM = "trtllm-serve"


def config_name(role: str) -> str:
    """The file that holds the settings of a role."""
    return f"config-{label_of(role, 40)}.yaml"


def _launch(scene: Scene, instance: EngineInstance, index: int) -> Command:
    part = instance.parts[index]
    return Command(
        title=instance.title_of(index),
        program=(word(_PROGRAM), argument(scene.model_name(instance), what="model name")),
        flags=(
            ("--host", word("0.0.0.0")),
            ("--port", word(API_PORT + part.slot)),
            ("--backend", word("pytorch")),
            ("--config", word(config_name(instance.role.name))),
        ),
        settings=(("CUDA_VISIBLE_DEVICES", word(part.visible_devices)),),
    )


def settings_of(scene: Scene, instance: EngineInstance) -> Settings:
    """The settings of an instance: parallelism, limits, memory, formats, drafts, and how caches are handed over.

    Raises PlannerError for what TensorRT-LLM does not run.
    """
    if two_batches(instance, "TensorRT-LLM"):
        raise instance.refuse("TensorRT-LLM cuts no steps in two batches", 'plan with `overlap: ["off"]`')
    return {
        **_parallelism(instance),
        **_limits(instance),
        **_memory(scene, instance),
        **_scheduling(scene, instance),
        **_speculation(scene, instance),
        **_balancer(scene, instance),
    }


def _parallelism(instance: EngineInstance) -> Settings:
    shape = instance.role.parallelism
    if shape.tp > 1 and shape.dp > 1:
        raise instance.refuse(
            f"TensorRT-LLM runs attention either tensor- or data-parallel, not tp {shape.tp} x dp {shape.dp}",
            "plan with tp 1 or dp 1",
        )
    settings: Settings = {"tensor_parallel_size": shape.tp * shape.dp, "pipeline_parallel_size": shape.pp}
    if experts_spread(instance):
        settings |= {"moe_expert_parallel_size": shape.ep, "moe_tensor_parallel_size": shape.moe_tp}
    elif shape.dp > 1:
        raise instance.refuse(
            f"TensorRT-LLM has no dp {shape.dp} copies of a dense model in one instance", "plan with more replicas"
        )
    return settings | ({"enable_attention_dp": True} if shape.dp > 1 else {})


def _limits(instance: EngineInstance) -> Settings:
    batch, chunk = limit(instance, "max_batch"), limit(instance, "chunk_tokens")
    context = limit(instance, "max_context_tokens")
    settings: Settings = {}
    if batch is not None:
        settings["max_batch_size"] = batch
        if instance.role.function != "prefill":
            settings["cuda_graph_config"] = {"enable_padding": True, "max_batch_size": batch}
    if context is not None:
        settings["max_seq_len"] = context
    decoding = (batch or 0) * verified_tokens(instance)
    budget = {"decode": decoding, "prefill": max(chunk or 0, batch or 0)}.get(
        instance.role.function, chunk + decoding if chunk is not None else 0
    )
    if budget:
        settings["max_num_tokens"] = budget
    return settings | ({"enable_chunked_prefill": True} if chunk is not None else {})


def _memory(scene: Scene, instance: EngineInstance) -> Settings:
    model = scene.model(instance)
    load_quantisation(model, {}, "TensorRT-LLM", f"inputs.models.{scene.model_key(instance)}.weights")
    cache: Settings = {
        "free_gpu_memory_fraction": _cache_fraction(scene, instance),
        "enable_block_reuse": caches_prefixes(instance),
    }
    tiers = prefix_tiers(instance)
    if tiers.stored or tiers.ssd_bytes is not None:
        raise instance.refuse(
            "TensorRT-LLM keeps prefixes in host memory of its own alone, and the plan has SSDs, a pool, or several "
            "engines that share",
            "plan for `engine: {name: vllm}`, or without `cache`",
        )
    if tiers.host_bytes is not None:
        cache["host_cache_size"] = tiers.host_bytes
    if model.kv_cache is not None:
        cache["dtype"] = _KV_CACHE[model.kv_cache]
    return {"kv_cache_config": cache}


def _cache_fraction(scene: Scene, instance: EngineInstance) -> float:
    """The share of what weights and activations leave of a device that the plan gives to KV caches, rounded down."""
    share, memory = scene.cluster.problem.engine.memory_utilisation, instance.role.memory
    if memory is None:
        return share
    used = memory.weights_bytes + memory.activations_bytes + memory.workspace_bytes
    left, whole = memory.capacity_bytes - used, memory.capacity_bytes / share - used
    if left <= 0:
        raise instance.refuse("no memory is left for KV caches", "check the plan with `planner check`")
    return int(left / whole * 1000 + 1e-6) / 1000


def _scheduling(scene: Scene, instance: EngineInstance) -> Settings:
    """Steps formed while the one before runs, and the transfer of caches."""
    apart = instance.role.name in scene.connectors
    off = instance.role.limits.get("async_scheduling") == "off" or (apart and instance.role.function == "prefill")
    settings: Settings = {"disable_overlap_scheduler": True} if off else {}
    if apart:
        longest = limit(instance, "max_context_tokens")
        buffer: Settings = {} if longest is None else {"max_tokens_in_buffer": longest}
        settings["cache_transceiver_config"] = {"backend": "DEFAULT", **buffer}
    return settings


def _speculation(scene: Scene, instance: EngineInstance) -> Settings:
    drafts = drafts_of(scene, instance)
    if drafts is None:
        return {}
    if drafts.spec.method == "mtp":
        return {"speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": drafts.tokens}}
    if drafts.model is not None:
        own: Settings = {"decoding_type": "Draft_Target", "speculative_model": loaded_name(drafts.model)}
    else:
        names = {"ngram": "NGram", "eagle": "Eagle", "eagle3": "Eagle3"}
        own = {"decoding_type": names[str(drafts.spec.algorithm)]}
        own |= {} if drafts.spec.checkpoint is None else {"speculative_model": drafts.spec.checkpoint}
    return {"speculative_config": {**own, "max_draft_len": drafts.tokens}}


def _balancer(scene: Scene, instance: EngineInstance) -> Settings:
    """Where experts lie: as a file says, or by load, of which one layer follows in each step."""
    placed = scene.experts.get(instance.role.name)
    if placed is not None:
        return {"moe_config": {"load_balancer": placed.file}}
    copies = redundant_experts(scene, instance, "TensorRT-LLM")
    if copies is None:
        return {}
    slots = num_experts(scene, instance) + copies
    return {"moe_config": {"load_balancer": {"num_slots": slots, "layer_updates_per_iter": 1}}}


def _files(envelope: Envelope, decision: Decision, layouts: Sequence[LayoutPlan] = ()) -> dict[str, str]:
    """A script a node, the settings of each role beside it, and the server before prefill and decode."""
    scene, groups = read_scene(envelope, decision, layouts, ENGINE)
    for instance in scene.instances:
        if len(instance.parts) > 1:
            raise instance.refuse(
                "its ranks lie on several nodes, for which TensorRT-LLM needs MPI, and these scripts start none",
                "plan instances that fit a node, or emit for `lws`, `kubernetes` or `dynamo`",
            )
    header = (plan_title(envelope), f"Settings of {ENGINE.name} {ENGINE.version}.")
    configs = {
        name: text for instance in scene.instances for name, text in told_files(ENGINE, scene, instance, header).items()
    }
    scripts = {
        f"launch-node-{node.number}.sh": script(
            (*header, f"Run this on {node.title}.", *_notes(scene, groups, decision)),
            (),
            node_parts(scene, ENGINE, place)[1],
            beside=True,
        )
        for place, node in scene.nodes.items()
    }
    fronts = {}
    for group in groups:
        if group.prefill:
            name = front_name(group, len(groups))
            start = f"Run `{_PROGRAM} disaggregated -c {name}` once the servers answer."
            front = _front(group, decision.router_policy, partial(_address, scene))
            fronts[name] = manifest((*header, start), [front])
    return {**scripts, **configs, **fronts, **{each.file: each.text for each in scene.experts.values()}}


def _notes(scene: Scene, groups: Sequence[RouterGroup], decision: Decision) -> Iterator[str]:
    """How clients share their requests, as no program of the engine does it for instances that run whole requests."""
    for group in groups:
        if group.colocated:
            places = ", ".join(_address(scene, instance) for instance in group.colocated)
            yield clients_share(group, places, decision.router_policy)
    if any(route.source is None and route.share < 1.0 for route in decision.routing):
        yield from planned_shares(decision)


def _settings(scene: Scene, instance: EngineInstance) -> dict[str, Settings]:
    """By the name of its file."""
    return {config_name(instance.role.name): settings_of(scene, instance)}


def front_name(group: RouterGroup, groups: int) -> str:
    """The file of the server before prefill and decode, one of so many groups."""
    stem, dot, suffix = FRONT_FILE.partition(".")
    return FRONT_FILE if groups == 1 else f"{stem}-{group.index}{dot}{suffix}"


def _front(group: RouterGroup, policy: str | None, host: Host) -> Settings:
    router = {"type": _ROUTERS[policy or "power-of-two"]}
    return {
        "hostname": "0.0.0.0",
        "port": ROUTER_PORT + group.index,
        "context_servers": _servers([host(instance) for instance in group.prefill], router),
        "generation_servers": _servers([host(instance) for instance in group.decode], router),
    }


def _servers(urls: Sequence[str], router: Mapping[str, str]) -> Settings:
    return {"num_instances": len(urls), "urls": urls, "router": dict(router)}


def _address(scene: Scene, instance: EngineInstance) -> str:
    """Host and port, by the names that the plan gives its nodes."""
    host = "".join(str(part) for part in scene.node(instance.head).default.parts)
    return f"{host}:{API_PORT + instance.head.slot}"


def _unrouted(scene: Scene, instance: EngineInstance) -> Word:
    return word(_address(scene, instance))


ENGINE = ServingEngine(
    description=DESCRIPTION,
    version="1.3",
    rank_order=("pp", "dp", "tp"),
    launch=_launch,
    router=(word(_PROGRAM), word("disaggregated")),
    disaggregated="",
    prefill_address=_unrouted,
    check_transfer=check_handover,
    expert_note="",
    settings=_settings,
    front=_front,
    over_mpi=True,
)
TARGETS = (
    EmitTarget(
        DESCRIPTION.target,
        "scripts of `trtllm-serve`, its settings, and the server before prefill and decode",
        ("serve",),
        _files,
        _files,
    ),
)
