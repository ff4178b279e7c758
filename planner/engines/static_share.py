"""The share of a device that SGLang gives to weights and caches unasked: what a step and its graphs leave.

SGLang reserves memory by its own rules of thumb before it knows the model (`sglang/srt/server_args.py`,
`_handle_gpu_memory_settings`, the same in 0.5.3 to 0.5.10; `__post_init__` of 0.5.1 and 0.5.2).
"""

from planner.engines.release import numbers
from planner.engines.settings import engine_setting
from planner.hardware.accelerator import Accelerator

MIB = 2.0**20
BY_STEP = (0, 5, 3)  # from this release on by the tokens of a step and the sequences of its graphs
_GRAPHS = ((160, 512, 512), (60, 256, 512), (35, 32, 160), (20, 24, 80), (0, 8, 8))
"""Sequences of the largest graph by GiB of memory: of instances of less than four devices, and of more."""
_BEFORE_GIB = ((160, 32.0, 0.0), (90, 12.0, 0.5), (35, 9.5, 0.5), (0, 2.8, 0.1))  # by GiB of memory; for each device
_LARGE_GRAPHS = 300


def static_share(gpu: Accelerator, version: str | None, *, devices: int, stages: int, attention_ranks: int) -> float:
    """Of an instance of so many tensor-parallel `devices` in each stage; attention ranks that share experts, or 1."""
    memory_mib = gpu.memory_bytes / MIB
    if version is not None and () < numbers(version) < BY_STEP:
        fixed_gib, each_gib = next(row[1:] for row in _BEFORE_GIB if memory_mib >= row[0] * 1024)
        reserved_mib = (fixed_gib + each_gib * devices * stages + 4.0 * (attention_ranks > 1)) * 1024
    else:
        reserved_mib = _by_step_mib(memory_mib, engine_setting("sglang", "chunk_tokens", version, gpu), devices, stages)
        reserved_mib += _attention_mib(memory_mib, devices, attention_ranks)
        reserved_mib = max(reserved_mib, 10 * 1024 * (memory_mib > 60 * 1024))
    return round((memory_mib - reserved_mib) / memory_mib, 3)


def _graph_batch(memory_mib: float, devices: int) -> int:
    few, many = next(row[1:] for row in _GRAPHS if memory_mib >= row[0] * 1024)
    return few if devices < 4 else many


def _by_step_mib(memory_mib: float, step_tokens: float, devices: int, stages: int) -> float:
    graphs = 2.0 * _graph_batch(memory_mib, devices)
    return 512.0 + 1.5 * max(step_tokens, 2048.0) + graphs + devices * stages / 8 * 1024


def _attention_mib(memory_mib: float, devices: int, attention_ranks: int) -> float:
    batch = _graph_batch(memory_mib, devices)
    each = 4.5 if batch > _LARGE_GRAPHS else 3.0
    return batch * attention_ranks * each if attention_ranks > 1 else 0.0
