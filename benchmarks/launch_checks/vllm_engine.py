"""vLLM's own checks of emitted commands, by the Python of an environment that has vLLM; no GPU is needed.

`python vllm_engine.py JOB.json` reads commands, pairs of them that hand caches over, and a folder of model
configurations, and prints one verdict for each. A command is parsed and validated by the engine's parser and made into
its `VllmConfig` (`ModelConfig.verify_with_parallel_config` among others) on a pretended GPU. For a pair the connector's
workers of all ranks of both sides are built on small caches in memory, and the side that starts the transfer shakes
hands with each peer: the engine compares compatibility hashes, numbers of regions, block lengths and head splits. NIXL
and the socket between the two are stand-ins. Layers that share a tensor in the engine have one each here.
"""

import contextlib
import copy
import importlib.machinery
import json
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from verdicts import verdict

KERNELS = ("_C", "_C_stable_libtorch", "_moe_C", "_moe_C_stable_libtorch", "_qutlass_C")
BLOCKS = 2  # of each cache
GPU: dict[str, Any] = {"name": "", "capability": (9, 0), "memory_bytes": 0, "count": 8}


def module(name: str, parts: dict[str, Any], *, package: bool = False) -> types.ModuleType:
    """A module that stands in for one with CUDA kernels."""
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=package)
    if package:
        made.__path__ = []
    made.__dict__.update(parts)
    sys.modules[name] = made
    return made


def pretend() -> None:
    """Makes vLLM see the GPUs of `GPU`."""
    import torch

    for name in KERNELS:
        module(f"vllm.{name}", {})
    torch.version.cuda = "13.0"

    def nothing(*_: object, **__: object) -> None:
        return None

    parts: dict[str, Any] = {
        **dict.fromkeys(("FA2_AVAILABLE", "FA3_AVAILABLE"), True),
        **{name: (lambda *_, **__: True) for name in ("is_fa_version_supported",)},
        **dict.fromkeys(
            (
                "fa_version_unsupported_reason",
                "flash_attn_varlen_func",
                "get_scheduler_metadata",
                "compile_flash_attn_varlen_func_from_specs",
            ),
            nothing,
        ),
    }
    module("vllm.vllm_flash_attn", parts, package=True)
    module("vllm.vllm_flash_attn.flash_attn_interface", parts)
    for operator, least in {"fp4": 100, "mxfp8": 100, "block_fp8": 90, "fp8": 89}.items():
        with contextlib.suppress(AttributeError, RuntimeError):
            name = f"cutlass_scaled_mm_supports_{operator}"
            setattr(torch.ops._C, name, lambda capability, least=least: capability >= least)
    with contextlib.suppress(AttributeError, RuntimeError):
        torch.ops._C.cutlass_group_gemm_supported = lambda capability: capability >= 90
    pretend_platform()


def pretend_platform() -> None:
    """The GPUs of `GPU` as vLLM's platform."""
    import torch
    import vllm.platforms as platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Pretended(NonNvmlCudaPlatform):  # type: ignore[misc]  # of another environment
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:  # noqa: ANN401
            return DeviceCapability(*GPU["capability"])

        @classmethod
        def has_device_capability(cls, capability: Any, device_id: int = 0) -> bool:  # noqa: ANN401
            major, minor = capability if isinstance(capability, tuple) else divmod(capability, 10)
            return bool(tuple(GPU["capability"]) >= (major, minor))

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return str(GPU["name"])

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(GPU["memory_bytes"])

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

        @classmethod
        def device_count(cls) -> int:
            return int(GPU["count"])

        @classmethod
        def num_compute_units(cls, device_id: int = 0) -> int:
            return 132

        @classmethod
        def is_integrated_gpu(cls, device_id: int = 0) -> bool:
            return False

    platforms._current_platform = Pretended()
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: int(GPU["count"])
    torch.cuda.get_device_capability = lambda *_, **__: tuple(GPU["capability"])


def read_traits_from_source() -> None:
    """Traits of model classes by the names of their bases: importing them needs the kernels."""
    import ast
    import dataclasses
    import importlib.util

    from vllm.model_executor.models import registry

    def bases_of(name: str, cls: str, depth: int) -> set[str]:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None or depth > 3:
            return set()
        with open(spec.origin, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        origin: dict[str, tuple[str, str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                package = ".".join(name.split(".")[: -node.level]) if node.level else ""
                source = ".".join(part for part in (package, node.module or "") if part)
                origin |= {alias.asname or alias.name: (source, alias.name) for alias in node.names}
        bases: set[str] = set()
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == cls:
                for base in node.bases:
                    named = base.id if isinstance(base, ast.Name) else getattr(base, "attr", "")
                    bases.add(named)
                    if named and not named.startswith(("Supports", "Module", "Protocol", "object")):
                        place, above = origin.get(named, (name, named))
                        with contextlib.suppress(ModuleNotFoundError):
                            bases |= bases_of(place, above, depth + 1)
        return bases

    def inspect(self: Any) -> Any:  # noqa: ANN401
        bases = bases_of(self.module_name, self.class_name, 0)
        hybrid = "IsHybrid" in bases
        known = dict.fromkeys((field.name for field in dataclasses.fields(registry._ModelInfo)), False)
        known |= {
            "supports_pp": "SupportsPP" in bases,
            "supports_lora": "SupportsLoRA" in bases,
            "supports_multimodal": "SupportsMultiModal" in bases,
            "is_hybrid": hybrid,
            "has_inner_state": hybrid or "HasInnerState" in bases,
            "is_text_generation_model": True,
        }
        texts = {
            "architecture": self.class_name,
            "attn_type": "decoder",
            "default_seq_pooling_type": "LAST",
            "default_tok_pooling_type": "ALL",
            "score_type": "bi-encoder",
            "supported_video_pruning_methods": (),
        }
        return registry._ModelInfo(**{**known, **texts})

    registry._LazyRegisteredModel.inspect_model_cls = inspect


class Refused(Exception):
    """What the engine says against a command."""


def config_of(argv: list[str], models: str) -> Any:  # noqa: ANN401 - a VllmConfig
    """The engine's configuration of a command; raises whatever the engine raises."""
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.common.cli_args import make_arg_parser, validate_parsed_serve_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))

    def refuse(message: str) -> None:
        raise Refused(message)

    parser.error = refuse
    given = parser.parse_args(argv)
    given.model = given.model_tag or given.model
    validate_parsed_serve_args(given)
    given.served_model_name = given.served_model_name or [given.model]
    given.model = given.model_tag = given.tokenizer = local(given.model, models)
    draft = given.speculative_config
    if isinstance(draft, dict) and draft.get("model"):
        draft["model"] = local(draft["model"], models)
    made = AsyncEngineArgs.from_cli_args(given).create_engine_config(headless=bool(given.headless))
    require_connectors(made.kv_transfer_config)
    return made


def local(name: str, models: str) -> str:
    """The folder with a model's configuration."""
    folder = os.path.join(models, name.replace("/", "--"))
    if not os.path.isdir(folder):
        raise Refused(f"no configuration of `{name}` is at hand")
    return folder


class Agent:
    """What the connector asks of NIXL: names, and descriptors that nobody reads."""

    def __init__(self, *_: object) -> None:
        self.count = 0

    def get_agent_metadata(self) -> bytes:
        return b"agent"

    def add_remote_agent(self, _: bytes) -> str:
        self.count += 1
        return f"agent-{self.count}"

    def get_new_notifs(self) -> dict[str, list[bytes]]:
        return {}

    def prep_xfer_dlist(self, *_: object, **__: object) -> int:
        self.count += 1
        return self.count

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def caches_of(vllm_config: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
    """The cache configuration of a rank, and small caches of its layers."""
    import torch
    from vllm.v1.kv_cache_interface import (
        FullAttentionSpec,
        KVCacheConfig,
        KVCacheGroupSpec,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    start, end = model.get_layers_start_end_indices(parallel)
    kinds = getattr(model.hf_text_config, "layer_types", None) or ["full_attention"] * end
    eight = "fp8" in str(vllm_config.cache_config.cache_dtype)
    shared: dict[str, Any] = {
        "num_kv_heads": model.get_num_kv_heads(parallel),
        "head_size": model.get_head_size(),
        "dtype": torch.uint8 if eight else model.dtype,
    }
    specs: dict[str, Any] = {}
    for layer in range(start, end):
        name, kind = f"model.layers.{layer}.self_attn.attn", kinds[layer]
        if kind == "linear_attention":
            specs[name] = state_spec(vllm_config)
        elif model.use_mla:
            specs[name] = MLAAttentionSpec(block_size=64, **shared)
        elif kind in ("sliding_attention", "chunked_attention"):
            specs[name] = SlidingWindowSpec(
                block_size=16, sliding_window=model.get_sliding_window() or 128, dcp_sharded=False, **shared
            )
        else:
            specs[name] = FullAttentionSpec(block_size=16, **shared)
    by_kind: dict[type, list[str]] = {}
    for name, spec in specs.items():
        by_kind.setdefault(type(spec), []).append(name)
    groups = [KVCacheGroupSpec(names, specs[names[0]]) for names in by_kind.values()]
    caches = {name: torch.zeros((BLOCKS, spec.page_size_bytes), dtype=torch.uint8) for name, spec in specs.items()}
    return KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups), caches


def state_spec(vllm_config: Any) -> Any:  # noqa: ANN401
    """The recurrent state of a gated delta-rule layer."""
    from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
    from vllm.v1.kv_cache_interface import MambaSpec

    model, ranks = vllm_config.model_config, vllm_config.parallel_config.tensor_parallel_size
    text = model.hf_text_config
    keys, values = text.linear_num_key_heads, text.linear_num_value_heads
    width = 2 * keys * text.linear_key_head_dim + values * text.linear_value_head_dim
    conv = (width // ranks, text.linear_conv_kernel_dim - 1)
    state = (values // ranks, text.linear_value_head_dim, text.linear_key_head_dim)
    return MambaSpec(
        block_size=16,
        shapes=(conv, state),
        dtypes=(model.dtype, model.dtype),
        mamba_type=MambaAttentionBackendEnum.GDN_ATTN,
    )


def handed_over(transfer: Any) -> Any:  # noqa: ANN401
    """The connector between prefill and decode, which comes first where prefixes are kept beside the engine."""
    beside = transfer.kv_connector_extra_config.get("connectors")
    if not beside:
        return copy.copy(transfer)
    return type(transfer)(**beside[0])


def require_connectors(transfer: Any) -> None:  # noqa: ANN401
    """Raises Refused for a connector that the engine does not know, alone or among several."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if transfer is None:
        return
    beside = transfer.kv_connector_extra_config.get("connectors", [])
    for name in (transfer.kv_connector, *(each["kv_connector"] for each in beside)):
        if name not in KVConnectorFactory._registry:
            raise Refused(f"vLLM has no connector `{name}`")


class Instance:
    """The connector's workers of every stage and tensor-parallel rank of one command."""

    def __init__(self, vllm_config: Any, engine_id: str) -> None:  # noqa: ANN401
        self.config, self.engine_id = vllm_config, engine_id
        parallel = vllm_config.parallel_config
        self.tp, self.pp = parallel.tensor_parallel_size, parallel.pipeline_parallel_size
        self.workers = {(pp, tp): self._worker(pp, tp) for pp in range(self.pp) for tp in range(self.tp)}

    def _worker(self, pp: int, tp: int) -> Any:  # noqa: ANN401
        from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

        own = copy.copy(self.config)
        own.parallel_config = copy.copy(self.config.parallel_config)
        own.parallel_config.rank = pp * self.tp + tp
        own.kv_transfer_config = handed_over(self.config.kv_transfer_config)
        own.kv_transfer_config.engine_id = self.engine_id
        base_worker.get_tensor_model_parallel_rank = lambda: tp
        base_worker.get_tensor_model_parallel_world_size = lambda: self.tp
        kv_cache_config, caches = caches_of(own)
        cls = KVConnectorFactory.get_connector_class(own.kv_transfer_config)
        own.cache_config = copy.copy(own.cache_config)
        own.cache_config.kv_cache_layout = cls.get_required_kvcache_layout(own) or "LBNHC"
        connector = cls(own, KVConnectorRole.WORKER, kv_cache_config)
        connector.register_kv_caches(caches)
        return connector.connector_worker

    def payloads(self) -> dict[tuple[int, int], bytes]:
        """What the side channel of this instance answers, by stage and rank."""
        import msgspec

        encoder = msgspec.msgpack.Encoder()
        return {rank: encoder.encode(worker.xfer_handshake_metadata) for rank, worker in self.workers.items()}

    def close(self) -> None:
        for worker in self.workers.values():
            worker.shutdown()


@contextlib.contextmanager
def channel_to(peer: Instance) -> Iterator[None]:
    """Sockets of the connector that the other instance answers, as its side channel would."""
    import msgspec
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    payloads = peer.payloads()

    class Socket:
        asked: tuple[int, int]

        def setsockopt(self, *_: object) -> None: ...

        def send(self, message: bytes) -> None:
            _, stage, rank = msgspec.msgpack.decode(message)
            self.asked = (stage, rank)

        def recv_multipart(self) -> list[bytes]:
            return [payloads[self.asked], msgspec.msgpack.encode(time.perf_counter())]

    @contextlib.contextmanager
    def socket(*_: object) -> Iterator[Socket]:
        yield Socket()

    before = base_worker.zmq_ctx
    base_worker.zmq_ctx = socket
    try:
        yield
    finally:
        base_worker.zmq_ctx = before


def shake_hands(prefill: Any, decode: Any) -> str:  # noqa: ANN401
    """What the connector checks when its instances meet; raises what it raises."""
    sender, receiver = Instance(prefill, "prefill"), Instance(decode, "decode")
    name = handed_over(prefill.kv_transfer_config).kv_connector
    count = 0
    try:
        for starts, peer, notify in ((receiver, sender, "Push" in name), (sender, receiver, False)):
            if starts is sender and "Push" not in name:
                continue  # decode reads: prefill starts nothing
            with channel_to(peer):
                for worker in starts.workers.values():
                    worker._nixl_handshake(
                        "peer", 1, peer.tp, peer.engine_id, remote_pp_size=peer.pp, notif_agents_only=notify
                    )
                    count += 1
    finally:
        sender.close()
        receiver.close()
    return f"{name}: {count} ranks shook hands"


def stand_in_for_nixl() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.nixl import base_worker

    base_worker.NixlWrapper = Agent
    base_worker.nixl_agent_config = lambda **_: object()
    base_worker.check_nixl_version = lambda *_: None
    base_worker.current_platform.set_device = lambda *_: None
    base_worker._NIXL_SUPPORTED_DEVICE.setdefault("cuda", ("cuda", "cpu"))


@contextlib.contextmanager
def settings(command: dict[str, Any]) -> Iterator[None]:
    """The environment and the GPU of a command."""
    import vllm.envs as envs

    before = dict(os.environ)
    wanted = {key: value for key, value in command["settings"].items() if key.startswith("VLLM_")}
    os.environ.update(wanted)
    GPU.update(command["gpu"])
    with contextlib.suppress(AttributeError):
        envs.disable_envs_cache()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    pretend()
    read_traits_from_source()
    stand_in_for_nixl()
    import vllm

    configs: dict[str, Any] = {}
    verdicts: dict[str, str] = {}
    for key, command in job["commands"].items():

        def build(key: str = key, command: dict[str, Any] = command) -> str:
            with settings(command):
                made = configs[key] = config_of(command["argv"], job["models"])
            parallel = made.parallel_config
            return f"world {parallel.world_size}, dp {parallel.data_parallel_size}"

        verdicts[key] = verdict(build)
    for key, (prefill, decode) in job["pairs"].items():
        if prefill in configs and decode in configs:

            def meet(prefill: str = prefill, decode: str = decode) -> str:
                with settings(job["commands"][prefill]):
                    return shake_hands(configs[prefill], configs[decode])

            verdicts[key] = verdict(meet)
        else:
            verdicts[key] = "a command of the pair was refused"
    print(json.dumps({"version": vllm.__version__, "verdicts": verdicts}))


if __name__ == "__main__":
    main()
