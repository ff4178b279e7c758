"""Launch scripts for vLLM: `vllm serve` and `vllm-router`, flags of vLLM 0.33.

Rules of the engine (vllm/config/parallel.py, vllm/engine/arg_utils.py of 0.33.0): ranks count data-parallel outermost,
then pipeline, then tensor; with expert parallelism experts spread over all tp x dp ranks of a pipeline stage, without
it each expert is cut over all of them; batch limits hold per data-parallel rank, and the token budget of a step counts
decoding and prefill tokens together. NIXL listens on the base port plus the data-parallel rank.
"""

from collections.abc import Iterator

from planner.emit.registry import Target
from planner.emit.serving.checkpoints import kv_heads, load_quantisation
from planner.emit.serving.instances import Instance
from planner.emit.serving.scripts import (
    API_PORT,
    METRICS_PORT,
    RENDEZVOUS_PORT,
    ROUTER_PORT,
    SIDE_CHANNEL_PORT,
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
from planner.emit.serving.speculation import check_handover, verified_tokens, vllm_flags
from planner.emit.shell import Command, Word, argument, word
from planner.plan.schema import Decision, Envelope

_QUANTISATION = {"fp8": "fp8", "fp8_block": "fp8_per_block"}
_KV_CACHE = {"bf16": "bfloat16", "fp8": "fp8"}  # fp16 follows from the model's own type
_TRANSFER = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": "fail"}
_ALL_TO_ALL = {
    "decode": "deepep_low_latency",
    "prefill": "deepep_high_throughput",
    "colocated": "deepep_high_throughput",
}
_GRAPH_BATCH = 512  # the largest decode batch that vLLM captures in CUDA graphs by itself
_BUDGET_TOKENS = 2048  # the least that vLLM itself allows a step; it refuses a batch above its budget
_LOW_LATENCY_BUDGET_TOKENS = 256  # the same with low-latency kernels, whose buffers grow with it

Flags = Iterator[tuple[str, Word | None]]


def _launch(scene: Scene, instance: Instance, index: int) -> Command:
    part = instance.parts[index]
    title = instance.title if len(instance.parts) == 1 else f"{instance.title}, node {index} of {len(instance.parts)}"
    return Command(
        title=title,
        program=(word("vllm"), word("serve"), argument(scene.model_name(instance), what="model name")),
        flags=(
            *_listen(instance, index),
            *_parallelism(scene, instance, index),
            *_limits(instance),
            *_memory(scene, instance),
            *vllm_flags(scene, instance),
            *_transfer(instance),
        ),
        settings=(
            ("CUDA_VISIBLE_DEVICES", word(visible_devices(part))),
            *((("VLLM_HOST_IP", scene.address(part)),) if len(instance.parts) > 1 else ()),
            *_side_channel(scene, instance, index),
        ),
    )


def _listen(instance: Instance, index: int) -> Flags:
    if index == 0:
        yield "--host", word("0.0.0.0")
        yield "--port", word(API_PORT + instance.head.slot)
    else:
        yield "--headless", None


def _parallelism(scene: Scene, instance: Instance, index: int) -> Flags:
    refuse_context_parallelism(instance, "vLLM")
    parallelism = instance.role.parallelism
    yield "--tensor-parallel-size", word(parallelism.tp)
    if parallelism.pp > 1:
        yield "--pipeline-parallel-size", word(parallelism.pp)
    if parallelism.dp > 1:
        yield "--data-parallel-size", word(parallelism.dp)
    if len(instance.parts) > 1:
        yield from _across_nodes(scene, instance, index)
    yield from _experts(instance)


def _across_nodes(scene: Scene, instance: Instance, index: int) -> Flags:
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


def _experts(instance: Instance) -> Flags:
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


def _all_to_all(instance: Instance) -> str | None:
    """The kernels that move tokens to experts on other nodes, or in two batches; None leaves the engine's own."""
    parallelism = instance.role.parallelism
    across = len(instance.parts) > 1 and parallelism.dp > 1 and parallelism.ep > 1
    return _ALL_TO_ALL[instance.role.function] if across or two_batches(instance, "vLLM") else None


def _limits(instance: Instance) -> Flags:
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


def _budget_tokens(instance: Instance, batch: int) -> int | None:
    """Tokens of one step that decodes `batch`; None leaves vLLM's own: a decode instance computes no prefill."""
    chunk = limit(instance, "chunk_tokens")
    if instance.role.function == "decode":
        floor = _LOW_LATENCY_BUDGET_TOKENS if _all_to_all(instance) == "deepep_low_latency" else _BUDGET_TOKENS
        return batch if batch > floor else None
    if chunk is None:
        return batch if batch > _BUDGET_TOKENS else None
    return max(chunk, batch) if instance.role.function == "prefill" else chunk + batch


def _memory(scene: Scene, instance: Instance) -> Flags:
    model = scene.model(instance)
    yield "--gpu-memory-utilization", word(scene.cluster.problem.engine.memory_utilisation)
    quantisation = load_quantisation(model, _QUANTISATION, "vLLM", f"inputs.models.{scene.model_key(instance)}.weights")
    if quantisation is not None:
        yield "--quantization", word(quantisation)
    if "fp16" in (model.weights, model.kv_cache):
        yield "--dtype", word("float16")
    if model.kv_cache in _KV_CACHE:
        yield "--kv-cache-dtype", word(_KV_CACHE[model.kv_cache])


def _transfer(instance: Instance) -> Flags:
    if instance.role.function != "colocated":
        yield "--kv-transfer-config", word(_TRANSFER)


def _side_channel(scene: Scene, instance: Instance, index: int) -> Iterator[tuple[str, Word]]:
    """Where the KV handshakes of a part's ranks listen; the engine adds the data-parallel rank."""
    if instance.role.function == "colocated":
        return
    part = instance.parts[index]
    yield "VLLM_NIXL_SIDE_CHANNEL_HOST", scene.address(part)
    yield "VLLM_NIXL_SIDE_CHANNEL_PORT", word(SIDE_CHANNEL_PORT + 100 * part.slot)


def _router(scene: Scene, group: Group) -> Command:
    if group.prefill:
        workers: tuple[tuple[str, Word | None], ...] = (
            ("--vllm-pd-disaggregation", None),
            *(("--prefill", scene.url(instance)) for instance in group.prefill),
            *(("--decode", scene.url(instance)) for instance in group.decode),
        )
    else:
        workers = (("--worker-urls", Word(" ".join(scene.url(instance) for instance in group.colocated))),)
    return Command(
        title=group.title,
        program=(word("vllm-router"),),
        flags=(
            ("--host", word("0.0.0.0")),
            ("--port", word(ROUTER_PORT + group.index)),
            ("--prometheus-port", word(METRICS_PORT + group.index)),
            ("--policy", word("power_of_two")),
            *workers,
        ),
    )


def _check_transfer(scene: Scene, sender: Instance, receiver: Instance) -> None:
    """The NIXL connector's rules (distributed/kv_transfer/kv_connector/v1/nixl/base_worker.py of vLLM 0.33.0)."""
    check_handover(scene, sender, receiver)
    if receiver.role.parallelism.pp > 1:
        raise receiver.refuse(
            f"vLLM's NIXL connector delivers the KV cache to no pipeline, decode has pp {receiver.role.parallelism.pp}",
            "plan decode with pp 1",
        )
    sent, received, heads = sender.role.parallelism.tp, receiver.role.parallelism.tp, kv_heads(scene.model(sender))
    if heads is not None and sent > received and sent > heads:
        raise sender.refuse(
            f"tp {sent} repeats the {heads} KV heads, which vLLM's NIXL connector cannot merge into tp {received} "
            f"(role `{receiver.role.name}`)",
            f"plan prefill with tp up to {heads}, or decode with tp {sent}",
        )


_ENGINE = Engine("vLLM", "0.33", ("dp", "pp", "tp"), _launch, _router, _check_transfer)


def _emit(envelope: Envelope, decision: Decision) -> dict[str, str]:
    return emit_serving(envelope, decision, _ENGINE)


TARGETS = (Target("vllm", "bash scripts that run `vllm serve` on every node, and the router", ("serve",), _emit),)
