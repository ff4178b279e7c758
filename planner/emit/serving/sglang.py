"""Launch scripts for SGLang: `sglang.launch_server` and `sglang_router`, flags of SGLang 0.5.23.

Rules of the engine (sglang/srt/arg_groups of 0.5.23): ranks count pipeline outermost, then attention data-parallel,
then tensor; `--tp-size` counts all ranks of a pipeline stage, of which attention takes tp_size / attn_dp_size and
experts any ep_size that divides it, each expert cut over the rest; an all-to-all backend needs ep_size = tp_size. The
limits of running requests and of prefill tokens are totals that SGLang divides by the data-parallel ranks.
Data-parallel replicas (`--dp-size`) exist on one node only. `--mem-fraction-static` is the share of device memory for
weights and KV cache.
"""

import math
from collections.abc import Iterator
from functools import partial

from planner.emit.registry import EmitTarget
from planner.emit.serving.balanced_experts import redundant_experts
from planner.emit.serving.checkpoints import loaded_name
from planner.emit.serving.instances import EngineInstance
from planner.emit.serving.scene import (
    API_PORT,
    BOOTSTRAP_PORT,
    RENDEZVOUS_PORT,
    SSD_FOLDER,
    STORE,
    PrefixTiers,
    Scene,
    ServingEngine,
    caches_prefixes,
    limit,
    prefix_tiers,
    refuse_shared_ssd,
)
from planner.emit.serving.scripts import (
    emit_serving,
    experts_spread,
    format_flags,
    require_equal_parts,
    two_batches,
)
from planner.emit.serving.speculation import check_handover, draft_quantisation, drafts_of, verified_tokens
from planner.emit.shell import Command, Flag, Word, argument, word
from planner.engines.serving.sglang import ENGINE as DESCRIPTION
from planner.plan.schema import Memory

_KV_CACHE = {"bf16": "bf16", "fp8": "fp8_e4m3"}  # fp16 follows from the model's own type
_DISPATCH = {"decode": "low_latency", "prefill": "normal", "colocated": "auto"}
_PREFILL_TOKENS = 16384  # the default cap on a prefill batch, whatever the chunk
_GB = 10**9
_DISPATCH_TOKENS = 128  # decoding tokens of a rank that DeepEP's buffers hold by default
_MAX_DISPATCH_TOKENS = 1024  # and the most they can hold


def _launch(scene: Scene, instance: EngineInstance, index: int) -> Command:
    part = instance.parts[index]
    return Command(
        title=instance.title_of(index),
        program=(word("python3"), word("-m"), word("sglang.launch_server")),
        flags=(
            ("--model-path", argument(scene.model_name(instance), what="model name")),
            ("--host", word("0.0.0.0")),
            ("--port", word(API_PORT + part.slot)),
            *_parallelism(scene, instance, index),
            *_limits(instance),
            *_memory(scene, instance),
            *_speculation(scene, instance),
            *_transfer(scene, instance),
        ),
        settings=(
            ("CUDA_VISIBLE_DEVICES", word(part.visible_devices)),
            *_dispatch_buffers(instance),
            *_store(instance),
        ),
    )


def _parallelism(scene: Scene, instance: EngineInstance, index: int) -> Iterator[Flag]:
    parallelism = instance.role.parallelism
    replicated = _is_replicated(instance)
    yield "--tp-size", word(parallelism.tp if replicated else parallelism.tp * parallelism.dp)
    if parallelism.pp > 1:
        yield "--pp-size", word(parallelism.pp)
    if replicated:
        yield "--dp-size", word(parallelism.dp)
    elif parallelism.dp > 1:
        yield "--attn-dp-size", word(parallelism.dp)
    yield from _experts(instance)
    placed = scene.experts.get(instance.role.name)
    if placed is not None:
        yield "--ep-num-redundant-experts", word(placed.rows.num_redundant)
        yield "--init-expert-location", word(placed.file)
        yield "--ep-dispatch-algorithm", word("dynamic")  # copies share tokens equally, as layouts are planned
    copies = redundant_experts(scene, instance, "SGLang")
    if copies is not None:
        yield "--enable-eplb", None
        yield "--ep-num-redundant-experts", word(copies)
        yield "--ep-dispatch-algorithm", word("dynamic")
    require_equal_parts(instance, "SGLang")
    if len(instance.parts) > 1:
        yield "--nnodes", word(len(instance.parts))
        yield "--node-rank", word(index)
    port = RENDEZVOUS_PORT + 100 * instance.head.slot
    local = word(f"127.0.0.1:{port}")
    yield "--dist-init-addr", scene.address(instance.head, after=f":{port}") if len(instance.parts) > 1 else local


def _is_replicated(instance: EngineInstance) -> bool:
    """Whether data-parallel ranks are whole copies of a dense model."""
    parallelism = instance.role.parallelism
    if parallelism.dp == 1 or experts_spread(instance):
        return False
    if len(instance.parts) > 1:
        raise instance.refuse(
            f"SGLang keeps the dp {parallelism.dp} copies of a dense model on one node",
            "plan with dp 1 and more replicas",
        )
    return True


def _experts(instance: EngineInstance) -> Iterator[Flag]:
    parallelism, halves = instance.role.parallelism, two_batches(instance, "SGLang")
    if not experts_spread(instance) or parallelism.ep == 1:
        return
    yield "--ep-size", word(parallelism.ep)
    if _dispatches(instance):
        yield "--moe-a2a-backend", word(ENGINE.release.dispatcher(instance.role.function))
        yield "--deepep-mode", word(_DISPATCH[instance.role.function])
    if halves:
        yield "--enable-two-batch-overlap", None


def _dispatches(instance: EngineInstance) -> bool:
    """Whether tokens go to experts by all-to-all kernels, which need every expert whole on one rank: to other nodes."""
    parallelism = instance.role.parallelism
    far = len(instance.parts) > 1 or two_batches(instance, "SGLang")
    return far and parallelism.ep > 1 and parallelism.moe_tp == 1


def _dispatch_buffers(instance: EngineInstance) -> Iterator[tuple[str, Word]]:
    """Room for the decoding batch in DeepEP's low-latency buffers where the default is too small."""
    batch = limit(instance, "max_batch") or 0
    tokens = batch * verified_tokens(instance)
    if instance.role.function == "prefill" or not _dispatches(instance) or tokens <= _DISPATCH_TOKENS:
        return
    if tokens > _MAX_DISPATCH_TOKENS:
        raise instance.refuse(
            f"max_batch {batch} is {tokens} tokens a step, and DeepEP moves up to {_MAX_DISPATCH_TOKENS} of a rank "
            "between nodes",
            f"plan with max_batch up to {_MAX_DISPATCH_TOKENS // verified_tokens(instance)}",
        )
    yield "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK", word(tokens)


def _limits(instance: EngineInstance) -> Iterator[Flag]:
    parallelism = instance.role.parallelism
    batch, chunk = limit(instance, "max_batch"), limit(instance, "chunk_tokens")
    context = limit(instance, "max_context_tokens")
    if context is not None:
        yield "--context-length", word(context)
    if batch is not None:
        yield "--max-running-requests", word(batch * parallelism.dp)
        if instance.role.function != "prefill":
            yield "--cuda-graph-max-bs-decode", word(batch)
    if chunk is not None:
        shared = 1 if _is_replicated(instance) else parallelism.dp
        yield "--chunked-prefill-size", word(chunk * shared)
        if chunk > _PREFILL_TOKENS:
            yield "--max-prefill-tokens", word(chunk)


def _memory(scene: Scene, instance: EngineInstance) -> Iterator[Flag]:
    yield "--mem-fraction-static", word(_static_fraction(scene, instance))
    yield from format_flags(scene, instance, "SGLang", DESCRIPTION.quantises, _KV_CACHE)
    if not caches_prefixes(instance):
        yield "--disable-radix-cache", None
    yield from _prefix_tiers(instance, prefix_tiers(instance))


def _prefix_tiers(instance: EngineInstance, tiers: PrefixTiers) -> Iterator[Flag]:
    """HiCache: host memory of a rank, and a store behind it: Mooncake's for several engines or a pool, or files."""
    if not tiers.some:
        return
    refuse_shared_ssd(instance, tiers, "SGLang")
    if tiers.host_bytes is not None and tiers.host_bytes < _GB:
        raise instance.refuse(
            f"SGLang counts host memory in whole GB of a rank, and it is given {tiers.host_bytes} bytes",
            "give every GPU 1 GB or more of host memory (`engine.host_cache`, or the tier `host` of `cache`), or none",
        )
    yield "--enable-hierarchical-cache", None
    if tiers.host_bytes is not None and not tiers.shared:
        yield "--hicache-size", word(tiers.host_bytes // _GB)
    if tiers.stored:
        yield "--hicache-storage-backend", word("mooncake")
    elif tiers.ssd_bytes is not None:
        yield "--hicache-storage-backend", word("file")


def _store(instance: EngineInstance) -> Iterator[tuple[str, Word]]:
    """What the store behind HiCache is told: host memory that a rank lends it, or the folder of its files.

    Its master answers at `STORE`.
    """
    tiers = prefix_tiers(instance)
    if tiers.stored:
        lent = tiers.host_bytes if tiers.shared else None
        yield "MOONCAKE_MASTER", word(STORE)
        yield "MOONCAKE_GLOBAL_SEGMENT_SIZE", word(lent or 0)
    elif tiers.ssd_bytes is not None:
        yield "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR", word(SSD_FOLDER)


def _static_fraction(scene: Scene, instance: EngineInstance) -> float:
    share = mem_fraction_static(scene.cluster.problem.engine.memory_utilisation, instance.role.memory)
    if share <= 0:
        raise instance.refuse("no memory is left for weights and KV cache", "check the plan with `planner check`")
    return share


def mem_fraction_static(share: float, memory: Memory | None) -> float:
    """The share of device memory left to weights and KV cache once activations and workspace are set aside.

    SGLang counts it of what is free as it starts (`profile_available_bytes` of srt/model_executor).
    """
    if memory is not None:
        share *= 1 - (memory.activations_bytes + memory.workspace_bytes) / memory.capacity_bytes
    return math.floor(share * 1000 + 1e-6) / 1000


def _transfer(scene: Scene, instance: EngineInstance) -> Iterator[Flag]:
    connector = scene.connectors.get(instance.role.name)
    if connector is None:
        return
    yield "--disaggregation-mode", word(connector.roles[instance.role.function])
    yield "--disaggregation-transfer-backend", word(connector.name)
    if instance.role.function == "prefill":
        yield "--disaggregation-bootstrap-port", word(BOOTSTRAP_PORT + instance.head.slot)


def _speculation(scene: Scene, instance: EngineInstance) -> Iterator[Flag]:
    """`--speculative-algorithm` and what belongs to it."""
    drafts = drafts_of(scene, instance)
    if drafts is None:
        return
    algorithm = {"mtp": "NEXTN", "model": "STANDALONE"}.get(drafts.spec.method, str(drafts.spec.algorithm).upper())
    yield "--speculative-algorithm", word(algorithm)
    if algorithm == "NGRAM":
        yield "--speculative-num-draft-tokens", word(drafts.tokens + 1)
        yield "--speculative-ngram-max-bfs-breadth", word(1)
        return
    if algorithm == "STANDALONE" and instance.role.parallelism.dp > 1:
        raise instance.refuse(
            "SGLang drafts with a model of its own only without data-parallel ranks", "plan with dp 1"
        )
    if drafts.model is not None:
        path = loaded_name(drafts.model)
        quantised = draft_quantisation(drafts, "SGLang") or "unquant"
        yield "--speculative-draft-model-path", argument(path, what="draft model name")
        yield "--speculative-draft-model-quantization", word(quantised)
    else:
        path = drafts.spec.checkpoint or scene.model_name(instance)
        yield "--speculative-draft-model-path", argument(path, what="drafter")
    yield "--speculative-num-steps", word(drafts.tokens)
    yield "--speculative-eagle-topk", word(1)
    yield "--speculative-num-draft-tokens", word(drafts.tokens + 1)


def _with_bootstrap(scene: Scene, instance: EngineInstance) -> tuple[Word, ...]:
    return scene.url(instance), word(BOOTSTRAP_PORT + instance.head.slot)


ENGINE = ServingEngine(
    description=DESCRIPTION,
    version="0.5.23",
    rank_order=("pp", "dp", "tp"),
    launch=_launch,
    router=(word("python3"), word("-m"), word("sglang_router.launch_router")),
    disaggregated="--pd-disaggregation",
    prefill_address=_with_bootstrap,
    check_transfer=check_handover,
    expert_note="",
)
TARGETS = (
    EmitTarget(
        DESCRIPTION.target,
        "bash scripts that run `sglang.launch_server` on each node, and routers",
        ("serve",),
        partial(emit_serving, engine=ENGINE),
        partial(emit_serving, engine=ENGINE),
    ),
)
