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

from planner.emit.registry import Target
from planner.emit.serving.checkpoints import load_quantisation
from planner.emit.serving.instances import Instance
from planner.emit.serving.scripts import (
    API_PORT,
    BOOTSTRAP_PORT,
    METRICS_PORT,
    RENDEZVOUS_PORT,
    ROUTER_PORT,
    Engine,
    Group,
    Scene,
    emit_serving,
    experts_spread,
    limit,
    refuse_context_parallelism,
    require_equal_parts,
    two_batches,
    visible_devices,
)
from planner.emit.serving.speculation import check_handover, sglang_flags, verified_tokens
from planner.emit.shell import Command, Word, argument, word
from planner.plan.schema import Decision, Envelope

_QUANTISATION = {"fp8": "fp8"}
_KV_CACHE = {"bf16": "bf16", "fp8": "fp8_e4m3"}  # fp16 follows from the model's own type
_DISPATCH = {"decode": "low_latency", "prefill": "normal", "colocated": "auto"}
_PREFILL_TOKENS = 16384  # the default cap on a prefill batch, whatever the chunk
_DISPATCH_TOKENS = 128  # decoding tokens of a rank that DeepEP's buffers hold by default
_MAX_DISPATCH_TOKENS = 1024  # and the most they can hold

Flags = Iterator[tuple[str, Word | None]]


def _launch(scene: Scene, instance: Instance, index: int) -> Command:
    part = instance.parts[index]
    title = instance.title if len(instance.parts) == 1 else f"{instance.title}, node {index} of {len(instance.parts)}"
    return Command(
        title=title,
        program=(word("python3"), word("-m"), word("sglang.launch_server")),
        flags=(
            ("--model-path", argument(scene.model_name(instance), what="model name")),
            ("--host", word("0.0.0.0")),
            ("--port", word(API_PORT + part.slot)),
            *_parallelism(scene, instance, index),
            *_limits(instance),
            *_memory(scene, instance),
            *sglang_flags(scene, instance),
            *_transfer(instance),
        ),
        settings=(("CUDA_VISIBLE_DEVICES", word(visible_devices(part))), *_dispatch_buffers(instance)),
    )


def _parallelism(scene: Scene, instance: Instance, index: int) -> Flags:
    refuse_context_parallelism(instance, "SGLang")
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
    require_equal_parts(instance, "SGLang")
    if len(instance.parts) > 1:
        yield "--nnodes", word(len(instance.parts))
        yield "--node-rank", word(index)
    port = RENDEZVOUS_PORT + 100 * instance.head.slot
    local = word(f"127.0.0.1:{port}")
    yield "--dist-init-addr", scene.address(instance.head, after=f":{port}") if len(instance.parts) > 1 else local


def _is_replicated(instance: Instance) -> bool:
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


def _experts(instance: Instance) -> Flags:
    parallelism, halves = instance.role.parallelism, two_batches(instance, "SGLang")
    if not experts_spread(instance) or parallelism.ep == 1:
        return
    yield "--ep-size", word(parallelism.ep)
    if _dispatches(instance):
        yield "--moe-a2a-backend", word("deepep")
        yield "--deepep-mode", word(_DISPATCH[instance.role.function])
    if halves:
        yield "--enable-two-batch-overlap", None


def _dispatches(instance: Instance) -> bool:
    """Whether tokens go to experts by all-to-all kernels, which need every expert whole on one rank: to other nodes."""
    parallelism = instance.role.parallelism
    far = len(instance.parts) > 1 or two_batches(instance, "SGLang")
    return far and parallelism.ep > 1 and parallelism.moe_tp == 1


def _dispatch_buffers(instance: Instance) -> Iterator[tuple[str, Word]]:
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


def _limits(instance: Instance) -> Flags:
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


def _memory(scene: Scene, instance: Instance) -> Flags:
    model = scene.model(instance)
    yield "--mem-fraction-static", word(_static_fraction(scene, instance))
    where = f"inputs.models.{scene.model_key(instance)}"
    quantisation = load_quantisation(model, _QUANTISATION, "SGLang", f"{where}.weights")
    if quantisation is not None:
        yield "--quantization", word(quantisation)
    if "fp16" in (model.weights, model.kv_cache):
        yield "--dtype", word("float16")
    if model.kv_cache in _KV_CACHE:
        yield "--kv-cache-dtype", word(_KV_CACHE[model.kv_cache])


def _static_fraction(scene: Scene, instance: Instance) -> float:
    """The share of device memory left to weights and KV cache once activations and workspace are set aside."""
    share = scene.cluster.problem.engine.memory_utilisation
    memory = instance.role.memory
    if memory is not None:
        share *= 1 - (memory.activations_bytes + memory.workspace_bytes) / memory.capacity_bytes
    if share <= 0:
        raise instance.refuse("no memory is left for weights and KV cache", "check the plan with `planner check`")
    return math.floor(share * 1000 + 1e-6) / 1000


def _transfer(instance: Instance) -> Flags:
    if instance.role.function == "colocated":
        return
    yield "--disaggregation-mode", word(instance.role.function)
    yield "--disaggregation-transfer-backend", word("nixl")
    if instance.role.function == "prefill":
        yield "--disaggregation-bootstrap-port", word(BOOTSTRAP_PORT + instance.head.slot)


def _router(scene: Scene, group: Group) -> Command:
    if group.prefill:
        workers: tuple[tuple[str, Word | None], ...] = (
            ("--pd-disaggregation", None),
            *(("--prefill", _with_bootstrap(scene, instance)) for instance in group.prefill),
            *(("--decode", scene.url(instance)) for instance in group.decode),
        )
    else:
        workers = (("--worker-urls", Word(" ".join(scene.url(instance) for instance in group.colocated))),)
    return Command(
        title=group.title,
        program=(word("python3"), word("-m"), word("sglang_router.launch_router")),
        flags=(
            ("--host", word("0.0.0.0")),
            ("--port", word(ROUTER_PORT + group.index)),
            ("--prometheus-port", word(METRICS_PORT + group.index)),
            ("--policy", word("power_of_two")),
            *workers,
        ),
    )


def _with_bootstrap(scene: Scene, instance: Instance) -> Word:
    return Word(f"{scene.url(instance)} {word(BOOTSTRAP_PORT + instance.head.slot)}")


def _check_transfer(scene: Scene, sender: Instance, receiver: Instance) -> None:
    """The rule of disaggregation/common/conn.py of SGLang 0.5.23."""
    check_handover(scene, sender, receiver)
    stages = sender.role.parallelism.pp
    if receiver.role.parallelism.pp not in (1, stages):
        raise receiver.refuse(
            f"SGLang decodes with pp 1 or that of prefill, {stages}, not pp {receiver.role.parallelism.pp}",
            "plan decode with pp 1",
        )


_ENGINE = Engine("SGLang", "0.5.23", ("pp", "dp", "tp"), _launch, _router, _check_transfer)


def _emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
    return emit_serving(envelope, decision, _ENGINE)


TARGETS = (
    Target("sglang", "bash scripts that run `sglang.launch_server` on each node, and routers", ("serve",), _emit),
)
