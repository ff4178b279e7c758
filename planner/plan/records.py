"""The parts of a plan as plain records, for programs that run where neither pydantic nor numpy is installed.

They say once which fields a plan has: `planner.plan.schema` makes pydantic models of the same classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, dataclass_transform

from planner.errors import PlannerError, did_you_mean

T = TypeVar("T")


@dataclass_transform(field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A frozen dataclass; to type checkers one that models, which are frozen in their own way, may extend."""
    return dataclass(frozen=True)(cls)


@dataclass(frozen=True, slots=True)
class AtLeast:
    """The least value of a number, for the plain reader and for pydantic."""

    least: int

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:  # noqa: ANN401 - a type
        return {**handler(source), "ge": self.least}


Count = Annotated[int, AtLeast(1)]
Index = Annotated[int, AtLeast(0)]
Amount = Annotated[float, AtLeast(0)]
Capacity = Annotated[float, AtLeast(1)]
BY_NUMBER = -1
"""In place of a number of redundant experts: none is copied, and experts lie in the order of their numbers."""


@record
class Parallelism:
    """Degrees of each dimension of one replica.

    It stands on tp x pp x dp x cp devices. Experts live on the same devices: moe_tp x ep of them hold one set of the
    experts of a pipeline stage, so moe_tp x ep divides tp x dp x cp. vpp counts the model chunks of a pipeline rank.
    """

    tp: Count = 1
    pp: Count = 1
    dp: Count = 1
    cp: Count = 1
    moe_tp: Count = 1
    ep: Count = 1
    vpp: Count = 1

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tp * self.pp * self.dp * self.cp

    @property
    def text(self) -> str:
        """The degrees above 1, such as `tp2 moe-tp2`; empty where a replica is one device."""
        names = ("tp", "pp", "dp", "cp", "moe_tp", "ep", "vpp")
        degrees = ((name.replace("_", "-"), getattr(self, name)) for name in names)
        return " ".join(f"{name}{size}" for name, size in degrees if size > 1)


@record
class Engine:
    name: str
    version: str | None = None


@record
class Memory:
    """Bytes on the fullest device of a role; `capacity_bytes` is what the plan may use of it."""

    weights_bytes: Amount = 0.0
    kv_cache_bytes: Amount = 0.0
    activations_bytes: Amount = 0.0
    gradients_bytes: Amount = 0.0
    optimizer_bytes: Amount = 0.0
    workspace_bytes: Amount = 0.0
    capacity_bytes: Capacity = field(kw_only=True)


@record
class Role:
    """Equal replicas that do one job."""

    name: str
    function: str  # colocated, prefill, decode, train, actor, critic, rollout, experts, ...
    model: str | None = None  # key of the problem's models
    engine: Engine | None = None
    pool: str = field(kw_only=True)
    replicas: Count = field(kw_only=True)
    parallelism: Parallelism = Parallelism()
    limits: Mapping[str, float | int | str] = field(default_factory=dict)
    memory: Memory | None = None


@record
class Axis:
    """One dimension of a block of ranks: neighbours along it are `stride` devices apart."""

    name: str
    size: Count
    stride: Index


@record
class Skipped:
    """Devices beside each other that a block's ranks are counted around, such as those of a node out of service."""

    first_device: Index
    devices: Count


@record
class Block:
    """Ranks of a role laid on the devices of a pool: first_device + sum(index x stride), the first axis outermost.

    Devices count through the pool, node by node, out-of-service nodes included, and around those that are `skipped`
    behind the first one. An axis is called replica, pp, dp, cp or tp; one that does not run evenly is split into two of
    the same name. A role with several blocks has its replicas spread over them, and its ranks count on from block to
    block.
    """

    role: str
    pool: str
    first_device: Index
    axes: tuple[Axis, ...] = ()
    skipped: tuple[Skipped, ...] = ()


@record
class Route:
    """Share of all traffic of a workload that goes to a role, from the front door or on from another role.

    What leaves a role is what came to it: shares from the front door sum to 1, those out of a role to those into it.
    """

    workload: str
    to: str
    source: str | None = None  # the role before it; None = from the front door
    share: Amount = field(kw_only=True)


@record
class Phase:
    """A window of time with its own roles; roles that never share a phase may share devices."""

    name: str
    start_s: Amount = 0.0
    duration_s: float | None = None
    roles: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


@record
class SideFile:
    """A large array beside the plan."""

    path: str
    digest: str


@record
class Prediction:
    """One predicted figure; `interval` holds the 80 % interval where the costs give one."""

    metric: str  # ttft_s, tpot_s, requests_per_s, output_tokens_per_s_per_gpu, step_time_s, ...
    of: str = ""  # workload or role; empty = the whole plan
    statistic: str = "mean"
    value: float = field(kw_only=True)
    interval: tuple[float, float] | None = None
    approximate: bool = False


@record
class Digests:
    """Of every input, with defaults filled in and paths left out."""

    problem: str
    models: Mapping[str, str] = field(default_factory=dict)
    hardware: Mapping[str, str] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()
    calibration: str | None = None
    traces: Mapping[str, str] = field(default_factory=dict)


@record
class Software:
    planner: str
    solver: str = ""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """The parts of `decision` that all kinds share."""

    roles: tuple[Role, ...]
    placement: tuple[Block, ...] = ()
    routing: tuple[Route, ...] = ()
    router_policy: str | None = None
    queueing: str | None = None
    elastic: bool | None = None
    cache: Mapping[str, Any] | None = None
    phases: tuple[Phase, ...] = ()
    side_files: Mapping[str, SideFile] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a plan says beside its decision; what is not judged here stays plain data."""

    kind: str
    software: Software
    digests: Digests
    inputs: Mapping[str, Any]
    certificate: Mapping[str, Any]
    name: str = "plan"
    seed: int = 0
    predictions: tuple[Prediction, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PlanDocument(Header, Decision):
    """A plan as read; what only its kind knows is in `extra` as plain data."""

    extra: Mapping[str, Any]
    source: str = field(compare=False)

    def role(self, name: str) -> Role:
        """The role called `name`; PlannerError names the roles there are."""
        known = [role.name for role in self.roles]
        if name not in known:
            listing = f"the roles are {', '.join(f'`{role}`' for role in known)}"
            raise PlannerError(
                f"no role `{name}`", where=self.source, hint=did_you_mean(name, known, otherwise=listing)
            )
        return self.roles[known.index(name)]
