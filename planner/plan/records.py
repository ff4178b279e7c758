"""A plan as frozen dataclasses, for programs that run where neither pydantic nor numpy is installed."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from planner.errors import PlannerError, did_you_mean


@dataclass(frozen=True, slots=True)
class Parallelism:
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    moe_tp: int = 1
    ep: int = 1
    vpp: int = 1

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tp * self.pp * self.dp * self.cp


@dataclass(frozen=True, slots=True)
class Engine:
    name: str
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest device of a role."""

    capacity_bytes: float
    weights_bytes: float = 0.0
    kv_cache_bytes: float = 0.0
    activations_bytes: float = 0.0
    gradients_bytes: float = 0.0
    optimizer_bytes: float = 0.0
    workspace_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class Role:
    name: str
    function: str
    pool: str
    replicas: int
    model: str | None = None
    engine: Engine | None = None
    parallelism: Parallelism = Parallelism()
    limits: Mapping[str, float | int | str] = field(default_factory=dict)
    memory: Memory | None = None


@dataclass(frozen=True, slots=True)
class Axis:
    name: str
    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Block:
    """Ranks of a role on devices of a pool; `planner.plan.placement` expands it."""

    role: str
    pool: str
    first_device: int
    axes: tuple[Axis, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    workload: str
    to: str
    share: float
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    start_s: float = 0.0
    duration_s: float | None = None
    roles: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SideFile:
    path: str
    digest: str


@dataclass(frozen=True, slots=True)
class Prediction:
    metric: str
    value: float
    of: str = ""
    statistic: str = "mean"
    interval: tuple[float, float] | None = None
    approximate: bool = False


@dataclass(frozen=True, slots=True)
class Digests:
    problem: str
    models: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()
    calibration: str | None = None
    traces: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Software:
    planner: str
    solver: str = ""


@dataclass(frozen=True, slots=True)
class PlanDocument:
    """A plan as read; what only its kind knows is in `extra` as plain data, as are `inputs` and `certificate`."""

    kind: str
    name: str
    seed: int
    software: Software
    digests: Digests
    inputs: Mapping[str, Any]
    roles: tuple[Role, ...]
    placement: tuple[Block, ...]
    routing: tuple[Route, ...]
    phases: tuple[Phase, ...]
    side_files: Mapping[str, SideFile]
    predictions: tuple[Prediction, ...]
    certificate: Mapping[str, Any]
    evidence: Mapping[str, Any]
    assumptions: tuple[str, ...]
    extra: Mapping[str, Any]
    source: str = field(compare=False)

    def role(self, name: str) -> Role:
        """The role called `name`; PlannerError names the roles there are."""
        known = [role.name for role in self.roles]
        if name not in known:
            listing = f"the roles are {', '.join(f'`{role}`' for role in known)}"
            hint = did_you_mean(name, known, otherwise=listing)
            raise PlannerError(f"no role `{name}`", where=self.source, hint=hint)
        return self.roles[known.index(name)]
