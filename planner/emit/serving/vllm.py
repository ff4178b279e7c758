"""Launch scripts for vLLM: `vllm serve` and `vllm-router`, flags of vLLM 0.33.

Rules of the engine (vllm/config/parallel.py, vllm/engine/arg_utils.py of 0.33.0): ranks count data-parallel outermost,
then pipeline, then tensor; with expert parallelism experts spread over all tp x dp ranks of a pipeline stage, without
it each expert is cut over all of them; batch limits hold per data-parallel rank, and the token budget of a step counts
decoding and prefill tokens together. NIXL listens on the base port plus the data-parallel rank.
"""

import json
from collections.abc import Iterator
from functools import partial

from planner.emit.registry import EmitTarget
from planner.emit.serving.balanced_experts import redundant_experts
from planner.emit.serving.checkpoints import cache_traits, loaded_name
from planner.emit.serving.instances import EngineInstance
from planner.emit.serving.scene import (
    API_PORT,
    RENDEZVOUS_PORT,
    SIDE_CHANNEL_PORT,
    Scene,
    ServingEngine,
    caches_prefixes,
    limit,
    prefix_tiers,
)
from planner.emit.serving.scripts import (
    emit_serving,
    experts_spread,
    format_flags,
    require_equal_parts,
    two_batches,
)
from planner.emit.serving.shared_groups import emit_groups
from planner.emit.serving.speculation import check_handover, draft_quantisation, drafts_of, verified_tokens
from planner.emit.serving.vllm_tiers import beside_engine, connector_of, files_of, variables_of
from planner.emit.shell import Command, Flag, Word, argument, word
from planner.engines.serving.vllm import ENGINE as DESCRIPTION
from planner.experts.launchers import vllm_config
from planner.problem.media import most_images
from planner.problem.recorded import recorded_model

_KV_CACHE = {"bf16": "bfloat16", "fp8": "fp8"}  # fp16 follows from the model's own type
_GIB = 1 << 30
_GRAPH_BATCH = 512  # the largest decode batch that vLLM captures in CUDA graphs by itself
_BUDGET_TOKENS = 2048  # the least that vLLM itself allows a step; it refuses a batch above its budget
_LOW_LATENCY_BUDGET_TOKENS = 256  # the same with low-latency kernels, whose buffers grow with it


def _launch(scene: Scene, instance: EngineInstance, index: int) -> Command:
    part = instance.parts[index]
    return Command(
        title=instance.title_of(index),
        program=(word("vllm"), word("serve"), argument(scene.model_name(instance), what="model name")),
        flags=(
            *_listen(instance, index),
            *_parallelism(scene, instance, index),
            *_limits(instance),
            *_media(scene, instance),
            *_memory(scene, instance),
            *_adapters(instance),
            *_speculation(scene, instance),
            *_transfer(scene, instance),
        ),
        settings=(
            ("CUDA_VISIBLE_DEVICES", word(part.visible_devices)),
            *((("VLLM_HOST_IP", scene.address(part)),) if len(instance.parts) > 1 else ()),
            *_side_channel(scene, instance, index),
            *variables_of(instance),
        ),
    )


def _listen(instance: EngineInstance, index: int) -> Iterator[Flag]:
    if index == 0:
        yield "--host", word("0.0.0.0")
        yield "--port", word(API_PORT + instance.head.slot)
    else:
        yield "--headless", None


def _parallelism(scene: Scene, instance: EngineInstance, index: int) -> Iterator[Flag]:
    parallelism = instance.role.parallelism
    yield "--tensor-parallel-size", word(parallelism.tp)
    if parallelism.pp > 1:
        yield "--pipeline-parallel-size", word(parallelism.pp)
    if parallelism.dp > 1:
        yield "--data-parallel-size", word(parallelism.dp)
    if len(instance.parts) > 1:
        yield from _across_nodes(scene, instance, index)
    yield from _experts(instance)
    placed = scene.experts.get(instance.role.name)
    if placed is not None:
        yield "--enable-eplb", None
        yield "--eplb-config", word(vllm_config(placed.rows.num_redundant, placed.file).strip())
    copies = redundant_experts(scene, instance, "vLLM")
    if copies is not None:
        yield "--enable-eplb", None
        yield "--eplb-config", word(vllm_config(copies).strip())


def _across_nodes(scene: Scene, instance: EngineInstance, index: int) -> Iterator[Flag]:
    """Data-parallel ranks whole on their nodes, or one tensor and pipeline group over several nodes."""
    parallelism = instance.role.parallelism
    port = RENDEZVOUS_PORT + 100 * instance.head.slot
    if parallelism.dp == 1:
        require_equal_parts(instance, "vLLM")
        yield "--nnodes", word(len(instance.parts))
        yield "--node-rank", word(index)
        yield "--master-addr", scene.address(instance.head)
        yield "--master-port", word(port)
        return
    size = parallelism.tp * parallelism.pp
    if any(len(part.gpus) % size for part in instance.parts):
        raise instance.refuse(
            f"a data-parallel rank of tp x pp = {size} GPUs would span nodes, which these vLLM scripts do not launch",
            "place each data-parallel rank on one node, or plan with dp 1",
        )
    ranks = [len(part.gpus) // size for part in instance.parts]
    yield "--data-parallel-size-local", word(ranks[index])
    yield "--data-parallel-address", scene.address(instance.head)
    yield "--data-parallel-rpc-port", word(port)
    if index > 0:
        yield "--data-parallel-start-rank", word(sum(ranks[:index]))


def _experts(instance: EngineInstance) -> Iterator[Flag]:
    parallelism, halves = instance.role.parallelism, two_batches(instance, "vLLM")
    if not experts_spread(instance) or parallelism.ep == 1:
        return
    if parallelism.moe_tp > 1:
        raise instance.refuse(
            f"vLLM cuts experts over all ranks or spreads them over all, not moe_tp {parallelism.moe_tp} x "
            f"ep {parallelism.ep}",
            f"plan with ep {parallelism.tp * parallelism.dp} or with ep 1",
        )
    yield "--enable-expert-parallel", None
    backend = _all_to_all(instance)
    if backend is not None:
        yield "--all2all-backend", word(backend)
    if halves:
        if parallelism.pp > 1:
            raise instance.refuse("vLLM cuts no steps of pipelines in two batches", "plan with pp 1")
        yield "--enable-dbo", None


def _all_to_all(instance: EngineInstance) -> str | None:
    """The kernels that move tokens to experts on other nodes, or in two batches; None leaves the engine's own."""
    parallelism = instance.role.parallelism
    across = len(instance.parts) > 1 and parallelism.dp > 1 and parallelism.ep > 1
    return ENGINE.release.dispatcher(instance.role.function) if across or two_batches(instance, "vLLM") else None


def _limits(instance: EngineInstance) -> Iterator[Flag]:
    batch, context = limit(instance, "max_batch"), limit(instance, "max_context_tokens")
    if context is not None:
        yield "--max-model-len", word(context)
    if batch is not None:
        yield "--max-num-seqs", word(batch)
        if batch * verified_tokens(instance) > _GRAPH_BATCH and instance.role.function != "prefill":
            yield "--max-cudagraph-capture-size", word(batch * verified_tokens(instance))
    budget = _budget_tokens(instance, (batch or 0) * verified_tokens(instance))
    if budget is not None:
        yield "--max-num-batched-tokens", word(budget)


def _media(scene: Scene, instance: EngineInstance) -> Iterator[Flag]:
    """Images and sounds of a request at most, and the tower whole on every rank where these cannot share it out."""
    problem, most = scene.cluster.problem, dict[str, int]()
    for workload in problem.workloads:
        if problem.model_of(workload) != instance.role.model:
            continue
        if workload.images is not None:
            most["image"] = max(most.get("image", 0), most_images(workload.images))
        if workload.audio_s is not None:
            most["audio"] = 1
    if not most:
        return
    yield "--limit-mm-per-prompt", word(json.dumps(most))
    model = recorded_model(problem, instance.role.model)
    towers = () if model is None else model.encoders
    if any(tower.kind == "vision" and tower.num_heads % instance.role.parallelism.tp for tower in towers):
        yield "--mm-encoder-tp-mode", word("data")


def _budget_tokens(instance: EngineInstance, batch: int) -> int | None:
    """Tokens of one step that decodes `batch`; None leaves vLLM's own: a decode instance computes no prefill."""
    chunk = limit(instance, "chunk_tokens")
    if instance.role.function == "decode":
        floor = _LOW_LATENCY_BUDGET_TOKENS if _all_to_all(instance) == "deepep_low_latency" else _BUDGET_TOKENS
        return batch if batch > floor else None
    if chunk is None:
        return batch if batch > _BUDGET_TOKENS else None
    return max(chunk, batch) if instance.role.function == "prefill" else chunk + batch


def _memory(scene: Scene, instance: EngineInstance) -> Iterator[Flag]:
    own = instance.role.limits.get("memory_utilisation", scene.cluster.problem.engine.memory_utilisation)
    yield "--gpu-memory-utilization", word(float(own))
    cache = limit(instance, "kv_cache_bytes")
    if cache is not None:
        yield "--kv-cache-memory-bytes", word(cache)
    ahead = instance.role.limits.get("async_scheduling")
    if ahead is not None:
        yield "--async-scheduling" if ahead == "on" else "--no-async-scheduling", None
    yield from format_flags(scene, instance, "vLLM", DESCRIPTION.quantises, _KV_CACHE)
    yield "--enable-prefix-caching" if caches_prefixes(instance) else "--no-enable-prefix-caching", None
    spilled = _host_cache(instance)
    if spilled is not None and instance.role.name not in scene.connectors:
        yield "--kv-offloading-size", word(spilled / _GIB)


def _host_cache(instance: EngineInstance) -> int | None:
    """Host memory of all the ranks of one engine core, which is what vLLM is told where it is all that there is."""
    tiers, parallelism = prefix_tiers(instance), instance.role.parallelism
    if tiers.host_bytes is None or beside_engine(tiers):
        return None
    return tiers.host_bytes * parallelism.tp * parallelism.pp


def _transfer(scene: Scene, instance: EngineInstance) -> Iterator[Flag]:
    connector = scene.connectors.get(instance.role.name)
    if connector is None and beside_engine(prefix_tiers(instance)):
        yield "--kv-transfer-config", word(connector_of(prefix_tiers(instance)))
    if connector is not None:
        own = {"kv_connector": connector.name, "kv_role": connector.roles[instance.role.function]}
        yield "--kv-transfer-config", word(_beside_host_cache(instance, {**own, **connector.config}))


def _beside_host_cache(instance: EngineInstance, transfer: dict[str, object]) -> dict[str, object]:
    """The transfer of caches, joined with host memory where prefixes are kept there.

    `--kv-offloading-size` would take the place of the connector (vllm/config/vllm.py of 0.33.0).
    """
    size = _host_cache(instance)
    spilled: dict[str, object] = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": size},
    }
    if beside_engine(prefix_tiers(instance)):
        spilled = connector_of(prefix_tiers(instance))
    elif size is None:
        return transfer
    both = {"connectors": [transfer, spilled]}
    return {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": both}


def _side_channel(scene: Scene, instance: EngineInstance, index: int) -> Iterator[tuple[str, Word]]:
    """Where the KV handshakes of a part's ranks listen; the engine adds the data-parallel rank."""
    if instance.role.function == "colocated":
        return
    part = instance.parts[index]
    yield "VLLM_NIXL_SIDE_CHANNEL_HOST", scene.address(part)
    yield "VLLM_NIXL_SIDE_CHANNEL_PORT", word(SIDE_CHANNEL_PORT + 100 * part.slot)
    if cache_traits(scene.model(instance)).state:
        yield from ((name, word(value)) for name, value in scene.connectors[instance.role.name].settings.items())


def _adapters(instance: EngineInstance) -> Iterator[Flag]:
    """Adapters that the engine loads at its start, under their names as models."""
    limits = instance.role.limits
    if "lora_modules" not in limits:
        return
    yield "--enable-lora", None
    yield "--max-loras", word(limits["max_loras"])
    yield "--max-lora-rank", word(limits["max_lora_rank"])
    modules = json.loads(str(limits["lora_modules"]))
    if modules:
        yield "--lora-modules", tuple(argument(json.dumps(module), what="adapter") for module in modules)


def _speculation(scene: Scene, instance: EngineInstance) -> Iterator[Flag]:
    """`--speculative-config`."""
    drafts = drafts_of(scene, instance)
    if drafts is None:
        return
    data: dict[str, str | int] = {"num_speculative_tokens": drafts.tokens}
    if drafts.spec.method == "mtp":
        data["method"] = "mtp"
    elif drafts.model is not None:
        data |= {"method": "draft_model", "model": loaded_name(drafts.model)}
        data["draft_tensor_parallel_size"] = instance.role.parallelism.tp
        quantisation = draft_quantisation(drafts, "vLLM")
        data |= {"quantization": quantisation} if quantisation is not None else {}
    else:
        data["method"] = str(drafts.spec.algorithm)
        data |= {"model": drafts.spec.checkpoint} if drafts.spec.checkpoint is not None else {}
    yield "--speculative-config", argument(json.dumps(data, sort_keys=True), what="drafter")


ENGINE = ServingEngine(
    description=DESCRIPTION,
    version="0.33",
    rank_order=("dp", "pp", "tp"),
    launch=_launch,
    router=(word("vllm-router"),),
    disaggregated="--vllm-pd-disaggregation",
    prefill_address=Scene.url,
    check_transfer=check_handover,
    expert_note=(
        "vLLM reads that file from pull request #41141 on. Version 0.33 is without it: it refuses initial_mapping_path "
        "and does not start, so that nothing runs with the experts elsewhere."
    ),
    settings=files_of,
)
TARGETS = (
    EmitTarget(
        DESCRIPTION.target,
        "bash scripts that run `vllm serve` on every node, and the router",
        ("serve",),
        partial(emit_serving, engine=ENGINE),
        partial(emit_serving, engine=ENGINE),
    ),
    EmitTarget(
        "vllm-groups",
        "bash scripts that run an engine of each model of a group, their routers, and where every model answers",
        ("place",),
        partial(emit_groups, engine=ENGINE),
    ),
)
