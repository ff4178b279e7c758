"""SGLang's own checks of emitted commands, by the Python of an environment that has SGLang; no GPU is needed.

`python sglang_engine.py JOB.json` reads commands, pairs of them that hand caches over, and a folder of model
configurations, and prints one verdict for each. A command is parsed, made into `ServerArgs`, resolved, and put to
`check_server_args`, with a pretended GPU. For a pair every decode rank reads what prefill's bootstrap server would say
(`try_ensure_parallel_info`, which compares page sizes and cache formats and maps ranks and stages), and the prefill
ranks that it asks prepare the transfer to it (`_prepare_payload_xfer`, which matches layers and head splits); where
heads go to another tensor-parallel size, the layers that the engine pairs are compared with those of the stage. NIXL
and the network are stand-ins, caches are addresses that nobody reads; windows and states are not among them.
"""

import argparse
import contextlib
import importlib.abc
import importlib.machinery
import json
import os
import sys
import types
from collections.abc import Callable, Iterator, MutableSequence
from typing import Any

from verdicts import verdict

KERNELS = {
    "torchvision", "sgl_kernel", "flashinfer", "deep_gemm", "deep_ep", "flash_attn", "flash_mla", "decord", "cutlass",
    "cuda", "soundfile", "torchaudio", "torchcodec", "timm", "gguf", "xgrammar", "llguidance", "tilelang", "IPython",
    "datasets", "kernels", "quack", "humming",
}  # fmt: skip
SLOTS = 2  # of each cache
GPU: dict[str, Any] = {"name": "", "capability": (9, 0), "memory_bytes": 0, "count": 8}


class AnyType(type):
    """A class whose parts and instances are all like it."""

    def __getattr__(cls, name: str) -> "AnyType":
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyType(name, (), {"stands_in": True})

    def __call__(cls, *given: object, **named: object) -> Any:  # noqa: ANN401
        return AnyType("made", (), {"stands_in": True}) if "stands_in" in cls.__dict__ else super().__call__(*given)


class Stand(types.ModuleType):
    """A module with CUDA kernels that nobody calls."""

    __path__: MutableSequence[str] = []  # noqa: RUF012 - as modules have it

    def __getattr__(self, name: str) -> AnyType:
        if name.startswith("__"):
            raise AttributeError(name)
        return AnyType(name, (), {"stands_in": True})


class Kernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds stand-ins for `KERNELS`."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:  # noqa: ANN401
        known = fullname.split(".")[0] in KERNELS
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return Stand(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def pretend() -> None:
    """Makes SGLang see the GPUs of `GPU`."""
    import torch

    sys.meta_path.append(Kernels())
    cuda = torch.cuda
    torch.version.cuda = "13.0"

    def properties(*_: object, **__: object) -> types.SimpleNamespace:
        major, minor = GPU["capability"]
        return types.SimpleNamespace(
            name=GPU["name"], total_memory=GPU["memory_bytes"], multi_processor_count=132, major=major, minor=minor,
            uuid="GPU-0", L2_cache_size=60 * 2**20, is_integrated=0, warp_size=32,
        )  # fmt: skip

    stand_ins: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: GPU["count"],
        "get_device_capability": lambda *_, **__: tuple(GPU["capability"]),
        "get_device_properties": properties,
        "get_device_name": lambda *_, **__: GPU["name"],
        "mem_get_info": lambda *_, **__: (int(0.98 * GPU["memory_bytes"]), GPU["memory_bytes"]),
        "current_device": lambda: 0,
        "memory_allocated": lambda *_, **__: 0,
    }
    for name, stand_in in stand_ins.items():
        setattr(cuda, name, stand_in)


class Refused(Exception):
    """What the engine says against a command."""


def local(name: str | None, models: str) -> str | None:
    """The folder with a model's configuration."""
    if name is None:
        return None
    folder = os.path.join(models, name.replace("/", "--"))
    if not os.path.isdir(folder):
        raise Refused(f"no configuration of `{name}` is at hand")
    return folder


def arguments_of(argv: list[str], models: str) -> Any:  # noqa: ANN401 - resolved server arguments
    """The engine's resolved arguments of a command; raises whatever the engine raises."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser(prog="sglang.launch_server")
    ServerArgs.add_cli_args(parser)

    def refuse(message: str) -> Any:  # noqa: ANN401
        raise Refused(message)

    parser.error = refuse  # type: ignore[method-assign]
    given = parser.parse_args(argv)
    given.model_path = local(given.model_path, models)
    given.speculative_draft_model_path = local(given.speculative_draft_model_path, models)
    made = ServerArgs.from_cli_args(given)
    made.resolve_once()
    made.check_server_args()
    return resolving_view(made)


class Agent:
    """What the connector asks of NIXL."""

    def get_xfer_descs(self, *_: object, **__: object) -> object:
        return object()

    def prep_xfer_dlist(self, *_: object, **__: object) -> object:
        return object()

    def __getattr__(self, name: str) -> Callable[..., object]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: object()


def model_of(arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    """Layers and heads of a model by its configuration."""
    with open(os.path.join(arguments.model_path, "config.json"), encoding="utf-8") as file:
        data = json.load(file)
    return dict(data.get("text_config") or data)


class Instance:
    """Ranks of one command: tensor-parallel ranks of attention, and stages."""

    def __init__(self, arguments: Any) -> None:  # noqa: ANN401
        self.arguments, self.model = arguments, model_of(arguments)
        self.tp = arguments.tp_size // arguments.attn_dp_size
        self.pp, self.latent = arguments.pp_size, "kv_lora_rank" in self.model

    def stage(self, pp: int) -> tuple[int, int]:
        """The first layer of a stage and that of the next."""
        from sglang.srt.distributed.utils import get_pp_indices

        start, end = get_pp_indices(self.model["num_hidden_layers"], pp, self.pp)
        return int(start), int(end)

    def manager(self, pp: int, tp: int) -> Any:  # noqa: ANN401
        """The connector's manager of a rank, without its threads and sockets."""
        from sglang.srt.disaggregation.nixl.conn import NixlKVManager

        start, end = self.stage(pp)
        lengths = self.item_lens(end - start)
        made = object.__new__(NixlKVManager)
        made.kv_args = types.SimpleNamespace(
            engine_rank=tp, pp_rank=pp, page_size=self.page, gpu_id=0, kv_layer_ids=[], state_types=[],
            kv_data_ptrs=[(i + 1) << 32 for i in range(len(lengths))], kv_item_lens=lengths,
            kv_data_lens=[SLOTS * length for length in lengths], kv_data_mem_kinds=["VRAM"] * len(lengths),
            kv_head_num=self.heads, total_kv_head_num=self.model.get("num_key_value_heads", 1),
            prefill_start_layer=start, prefill_end_layer=end, mla_compression_ratios=None, num_draft_entries=0,
        )  # fmt: skip
        parts = {
            "attn_tp_size": self.tp, "attn_tp_rank": tp, "attn_cp_size": 1, "attn_cp_rank": 0, "dcp_size": 1,
            "pp_size": self.pp, "pp_rank": pp, "is_mla_backend": self.latent, "is_hybrid_mla_backend": False,
            "kv_cache_dtype_str": str(self.arguments.kv_cache_dtype), "kv_layout": None, "dsv41_spec_layout": None,
            "enable_all_cp_ranks_for_transfer": False, "prefill_info_table": {}, "agent": Agent(),
            "prep_handles": {}, "prep_handles_slice_dst": {}, "prep_handle_slice_src": None,
            "src_mem_kind": "VRAM", "_num_slots_src": SLOTS,
        }  # fmt: skip
        for name, part in parts.items():
            setattr(made, name, part)
        return made

    @property
    def page(self) -> int:
        return int(self.arguments.page_size or 1)

    @property
    def heads(self) -> int:
        """KV heads of a rank."""
        return max(1, int(self.model.get("num_key_value_heads", 1)) // int(self.tp))

    def item_lens(self, layers: int) -> list[int]:
        """Bytes of a page of each cache: latents of every layer, or keys of all layers and then values."""
        size = 1 if "fp8" in str(self.arguments.kv_cache_dtype) else 2
        if self.latent:
            width = self.model["kv_lora_rank"] + self.model["qk_rope_head_dim"]
            return [self.page * width * size] * layers
        width = self.model.get("head_dim") or self.model["hidden_size"] // self.model["num_attention_heads"]
        return [self.page * self.heads * width * size] * (2 * layers)


@contextlib.contextmanager
def bootstrap_of(prefill: Instance) -> Iterator[None]:
    """What prefill's bootstrap server answers."""
    from sglang.srt.disaggregation.common import conn

    told = {
        "attn_tp_size": prefill.tp, "attn_cp_size": 1, "dp_size": prefill.arguments.attn_dp_size,
        "pp_size": prefill.pp, "page_size": prefill.page, "follow_bootstrap_room": True,
        "kv_cache_dtype": str(prefill.arguments.kv_cache_dtype),
    }  # fmt: skip
    answer = types.SimpleNamespace(status_code=200, json=lambda: told, text="")
    before = conn.requests
    conn.requests = types.SimpleNamespace(get=lambda *_, **__: answer)
    try:
        yield
    finally:
        conn.requests = before


def shake_hands(prefill_arguments: Any, decode_arguments: Any) -> str:  # noqa: ANN401
    """What the connector checks when its ranks meet; raises what it raises."""
    from sglang.srt.disaggregation.nixl.conn import KVArgsRegisterInfo

    prefill, decode = Instance(prefill_arguments), Instance(decode_arguments)
    senders = {(pp, tp): prefill.manager(pp, tp) for pp in range(prefill.pp) for tp in range(prefill.tp)}
    count = 0
    for pp in range(decode.pp):
        for tp in range(decode.tp):
            receiver = decode.manager(pp, tp)
            with bootstrap_of(prefill):
                if not receiver.try_ensure_parallel_info("peer:1"):
                    raise Refused("decode did not understand prefill's bootstrap server")
            info = receiver.prefill_info_table["peer:1"]
            own = receiver.kv_args
            for rank in ((stage, sender) for stage in info.target_pp_ranks for sender in info.target_tp_ranks):
                register = KVArgsRegisterInfo(
                    room="None", endpoint="peer", dst_port=1, agent_name=f"decode-{pp}-{tp}", agent_metadata=b"",
                    dst_kv_ptrs=own.kv_data_ptrs, dst_kv_mem_kinds=own.kv_data_mem_kinds, dst_aux_ptrs=[],
                    dst_state_data_ptrs=[], gpu_id=0, decode_tp_size=decode.tp, decode_tp_rank=tp,
                    dst_kv_item_len=own.kv_item_lens[0], dst_kv_item_lens=own.kv_item_lens, dst_num_slots=SLOTS,
                )  # fmt: skip
                senders[rank]._prepare_payload_xfer(register)
                require_own_layers(senders[rank], own, decode)
                count += 1
    return f"nixl: {count} transfers prepared"


def require_own_layers(sender: Any, received: Any, decode: Instance) -> None:  # noqa: ANN401
    """Raises Refused where the engine pairs keys or values of a stage with those of other layers."""
    if decode.latent or sender.attn_tp_size == decode.tp:
        return
    own, layers = sender.kv_args, decode.model["num_hidden_layers"]
    _, _, keys, values, _ = sender.get_mha_kv_ptrs_with_pp(own.kv_data_ptrs, received.kv_data_ptrs)
    span = slice(own.prefill_start_layer, own.prefill_end_layer)
    right = received.kv_data_ptrs[:layers][span], received.kv_data_ptrs[layers:][span]
    if decode.pp == 1 and (keys, values) != right:
        raise Refused(f"layers {span.start} to {span.stop} would be written over others")


@contextlib.contextmanager
def settings(command: dict[str, Any]) -> Iterator[None]:
    """The environment and the GPU of a command."""
    before = dict(os.environ)
    os.environ.update({key: value for key, value in command["settings"].items() if key.startswith("SGLANG_")})
    GPU.update(command["gpu"])
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as file:
        job = json.load(file)
    import sglang
    import sglang.srt.server_args  # before its kernels are stood in for: transformers look for torchvision

    pretend()
    resolved: dict[str, Any] = {}
    verdicts: dict[str, str] = {}
    for key, command in job["commands"].items():

        def build(key: str = key, command: dict[str, Any] = command) -> str:
            with settings(command):
                made = resolved[key] = arguments_of(command["argv"], job["models"])
            return f"tp {made.tp_size}, pp {made.pp_size}, attention dp {made.attn_dp_size}"

        verdicts[key] = verdict(build)
    for key, (prefill, decode) in job["pairs"].items():
        if prefill in resolved and decode in resolved:
            verdicts[key] = verdict(lambda p=prefill, d=decode: shake_hands(resolved[p], resolved[d]))  # type: ignore[misc]
        else:
            verdicts[key] = "a command of the pair was refused"
    print(json.dumps({"version": sglang.__version__, "verdicts": verdicts}))


if __name__ == "__main__":
    main()
