"""The schema of a plan: one envelope for every kind, and the parts that decisions of all kinds share.

JSON in SI units with the unit in the name. Nothing in it depends on when or where it was made, so the same problem,
seed and versions give the same bytes.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, JsonValue, model_validator

from planner.schema.base import Spec, refuse

SCHEMA: Final = "planner.plan/1"

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Index = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0)]


class Parallelism(Spec):
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
        return self.tp * self.pp * self.dp * self.cp


class Engine(Spec):
    name: str
    version: str | None = None


class Memory(Spec):
    """Bytes on the fullest device of a role."""

    weights_bytes: Amount = 0.0
    kv_cache_bytes: Amount = 0.0
    activations_bytes: Amount = 0.0
    gradients_bytes: Amount = 0.0
    optimizer_bytes: Amount = 0.0
    workspace_bytes: Amount = 0.0
    capacity_bytes: Amount = Field(description="what the plan may use of the device")

    @property
    def used_bytes(self) -> float:
        parts = (self.weights_bytes, self.kv_cache_bytes, self.activations_bytes)
        return sum(parts) + self.gradients_bytes + self.optimizer_bytes + self.workspace_bytes


class Role(Spec):
    """Equal replicas that do one job."""

    name: str
    function: str  # colocated, prefill, decode, train, actor, critic, rollout, experts, ...
    model: str | None = None  # key of the problem's models
    engine: Engine | None = None
    pool: str
    replicas: Count
    parallelism: Parallelism = Parallelism()
    limits: dict[str, float | int | str] = Field(default_factory=dict)
    memory: Memory | None = None


class Axis(Spec):
    """One dimension of a block of ranks: neighbours along it are `stride` devices apart."""

    name: str
    size: Count
    stride: Index


class Block(Spec):
    """Ranks of a role laid on the devices of a pool: first_device + sum(index x stride), the first axis outermost.

    Devices count through the pool, node by node, out-of-service nodes included. An axis is called replica, pp, dp, cp
    or tp; one that does not run evenly (over a node out of service) is split into two of the same name. A role with
    several blocks has its replicas spread over them, and its ranks count on from block to block.
    """

    role: str
    pool: str
    first_device: Index
    axes: tuple[Axis, ...] = ()

    @property
    def num_ranks(self) -> int:
        ranks = 1
        for axis in self.axes:
            ranks *= axis.size
        return ranks


class Route(Spec):
    """Share of all traffic of a workload that goes to a role, from the front door or on from another role.

    What leaves a role is what came to it: shares from the front door sum to 1, those out of a role to those into it.
    """

    workload: str
    to: str
    source: str | None = None  # the role before it; None = from the front door
    share: Fraction


class Phase(Spec):
    """A window of time with its own roles; roles that never share a phase may share devices."""

    name: str
    start_s: Annotated[float, Field(ge=0)] = 0.0
    duration_s: Annotated[float, Field(gt=0)] | None = None
    roles: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()


class SideFile(Spec):
    """A large array beside the plan."""

    path: str
    digest: Digest


class Decision(Spec):
    """What every kind decides; kinds add their own fields in a subclass."""

    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    placement: tuple[Block, ...] = ()
    routing: tuple[Route, ...] = ()
    phases: tuple[Phase, ...] = ()
    side_files: dict[str, SideFile] = Field(default_factory=dict)

    def reasons(self) -> tuple[str, ...]:
        """Why it is what it is, in sentences, where its fields say more than their values; kinds override it."""
        return ()

    @model_validator(mode="after")
    def names(self) -> "Decision":
        names = [role.name for role in self.roles]
        if len(set(names)) != len(names):
            raise refuse("two roles have the same name", "give each its own name", "roles")
        named = {block.role for block in self.placement} | {route.to for route in self.routing}
        named |= {route.source for route in self.routing if route.source is not None}
        named |= {role for phase in self.phases for role in phase.roles}
        unknown = sorted(named - set(names))
        if unknown:
            raise refuse(f"no role is called `{unknown[0]}`", f"the roles are {', '.join(names)}")
        return self


class Prediction(Spec):
    """One predicted figure; `interval` holds the 80 % interval where the costs give one."""

    metric: str  # ttft_s, tpot_s, requests_per_s, output_tokens_per_s_per_gpu, step_time_s, ...
    of: str = ""  # workload or role; empty = the whole plan
    statistic: str = "mean"
    value: float
    interval: tuple[float, float] | None = None
    approximate: bool = False


class Objective(Spec):
    metric: str
    sense: Literal["maximize", "minimize"]
    value: float | None


class Certificate(Spec):
    """What was proven, over which space, and what re-derives the bound without a solver.

    `stated` claims nothing: the plan was given, not searched. A gap up to `tolerance` counts as optimal.
    """

    claim: str
    status: Literal["optimal", "feasible", "infeasible", "unknown", "stated"]
    stop_reason: str = "finished"
    objective: Objective
    bound: float | None = None
    gap: Amount | None = None
    tolerance: Fraction = 1e-6
    axes: dict[str, list[JsonValue]] = Field(default_factory=dict)
    candidates: Index = 0
    pruned: dict[str, Index] = Field(default_factory=dict)
    proof: dict[str, JsonValue] = Field(default_factory=dict)
    next_best: JsonValue = None


Shares = dict[Literal["measured", "imported", "held", "analytical"], Fraction]


class StepEvidence(Spec):
    """The step that dominates a role: its time by operator (`host` among them), and the share of it by basis.

    `tpot_s_by_batch` is the time per output token with the role full, at its batch and at the neighbours of that.
    """

    seconds: dict[str, Amount]
    basis: Shares = Field(default_factory=dict)
    tpot_s_by_batch: dict[str, Amount] | None = None


class Evidence(Spec):
    """What the costs rest on: the share of predicted time by basis, and every fallback in words."""

    basis: Shares = Field(default_factory=dict)
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: dict[str, StepEvidence] | None = None  # by role


class Digests(Spec):
    """Of every input, with defaults filled in and paths left out."""

    problem: Digest
    models: dict[str, Digest] = Field(default_factory=dict)
    hardware: dict[str, Digest] = Field(default_factory=dict)
    profiles: tuple[Digest, ...] = ()
    calibration: Digest | None = None
    traces: dict[str, Digest] = Field(default_factory=dict)


class Software(Spec):
    planner: str
    solver: str = ""


class Envelope(Spec):
    """A plan of any kind; `decision` is validated again by the kind's own schema."""

    schema_: Literal["planner.plan/1"] = Field(alias="schema")
    kind: str
    name: str = "plan"
    software: Software
    seed: int = 0
    digests: Digests
    inputs: dict[str, JsonValue] = Field(description="the problem, defaults filled in")
    decision: dict[str, JsonValue]
    predictions: tuple[Prediction, ...] = ()
    certificate: Certificate
    evidence: Evidence = Evidence()
    assumptions: tuple[str, ...] = ()
