"""What engines set where a launch script says nothing, by release and GPU, with where that is written."""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from planner.documents.read import parse_document
from planner.documents.units import BYTES, parse_quantity
from planner.engines.release import numbers
from planner.errors import PlannerError
from planner.hardware.accelerator import Accelerator

SCHEMA = "planner.engine_settings/1"
NAMES = (
    *("memory_utilisation", "free_memory_share", "chunk_tokens", "max_batch", "async_scheduling", "reserved_output"),
    *("whole_tiles", "triton_experts", "redundant_experts", "captured_tokens"),
    *("whole_prompts", "checkpoint_cache", "mx_inputs"),
)
_PLACE = "planner/engines/settings.yaml"


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A setting of an engine from release `first` on, on GPUs of at least so much memory."""

    setting: str
    value: float
    source: str
    first: tuple[int, ...] = ()
    memory_bytes: float = 0.0
    but: str = ""  # part of the names of GPUs that it is not for
    model: str = ""  # part of the names of models that alone have it
    shared: bool = False  # by the attention ranks of an instance together

    def covers(self, version: str | None, gpu: Accelerator | None) -> bool:
        """Whether a release has it on a GPU; the newest release where none is named."""
        if self.first and version is not None and () < numbers(version) < self.first:
            return False
        if gpu is None:
            return not self.memory_bytes
        return gpu.memory_bytes >= self.memory_bytes and not (self.but and self.but in gpu.name)


def engine_setting(
    engine: str, name: str, version: str | None = None, gpu: Accelerator | None = None, ranks: int = 1
) -> float:
    """What the engine sets unasked for each of so many attention ranks that share experts.

    Raises PlannerError for an engine or a setting without defaults.
    """
    for row in setting_rows().get(engine, ()):
        if row.setting == name and row.covers(version, gpu):
            return max(row.value // ranks, 1.0) if row.shared else row.value
    raise PlannerError(f"no default of `{name}` is known of engine `{engine}`", hint="state it, or take another engine")


def require_setting(engine: str, name: str, version: str | None = None) -> None:
    """Raises PlannerError where a release of an engine has no such setting."""
    rows = [row for row in setting_rows().get(engine, ()) if row.setting == name]
    if any(row.covers(version, None) for row in rows):
        return
    first = ".".join(map(str, min((row.first for row in rows), default=())))
    raise PlannerError(
        f"{engine}{f' {version}' if version else ''} has no `{name}`",
        hint=f"leave it out, or name a release from {first} on" if first else "leave it out",
    )


def whole_tiles(engine: str, version: str | None = None) -> float:
    """The most tensor parallelism of experts in fp8 blocks at which kernels take a whole tile of each, tokens or not.

    0 for engines of which nothing of the kind is known.
    """
    return _unasked(engine, "whole_tiles", version)


def triton_experts(engine: str, version: str | None = None) -> bool:
    """Whether OpenAI's Triton kernels run experts in mxfp4 on Hopper."""
    return bool(_unasked(engine, "triton_experts", version))


def whole_prompts(engine: str, version: str | None = None) -> bool:
    """Whether a step takes prompts that fit into it whole, and cuts none."""
    return bool(_unasked(engine, "whole_prompts", version))


def reads_checkpoint_cache(engine: str, version: str | None = None) -> bool:
    """Whether the KV cache has the format that a checkpoint names; else the model's own, unless told otherwise."""
    return bool(engine_setting(engine, "checkpoint_cache", version))


def mx_inputs(engine: str, version: str | None = None) -> bool:
    """Whether experts in mxfp4 take their inputs in mxfp8 on Blackwell."""
    return bool(_unasked(engine, "mx_inputs", version))


def captured_tokens(engine: str, model: str) -> float:
    """Tokens of the largest step that CUDA graphs hold of a model that the engine knows by its name; 0 of others."""
    rows = (row for row in setting_rows().get(engine, ()) if row.setting == "captured_tokens")
    return next((row.value for row in rows if row.model in model.lower()), 0.0)


def _unasked(engine: str, name: str, version: str | None) -> float:
    known = setting_rows().get(engine, ())
    return next((row.value for row in known if row.setting == name and row.covers(version, None)), 0.0)


@cache
def setting_rows() -> dict[str, tuple[SettingRow, ...]]:
    """All defaults by engine, in the order in which they count."""
    text = resources.files("planner.engines").joinpath("settings.yaml").read_text(encoding="utf-8")
    data = parse_document(text, _PLACE).data
    return {engine: tuple(_row(row) for row in rows) for engine, rows in data.items() if engine != "schema"}


def _row(data: dict[str, object]) -> SettingRow:
    if data["setting"] not in NAMES or not data["source"]:
        raise PlannerError(f"a setting is one of {', '.join(NAMES)}, with its source", where=_PLACE)
    return SettingRow(
        setting=str(data["setting"]),
        value=float(str(data["value"])),
        source=str(data["source"]),
        first=numbers(str(data.get("from", ""))),
        memory_bytes=parse_quantity(str(data["memory_from"]), BYTES) if "memory_from" in data else 0.0,
        but=str(data.get("but", "")),
        model=str(data.get("model", "")),
        shared=bool(data.get("shared", False)),
    )
