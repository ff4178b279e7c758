"""The schema of a plan: one envelope for every kind, and the parts that decisions of all kinds share.

JSON in SI units with the unit in the name. Nothing in it depends on when or where it was made, so the same problem,
seed and versions give the same bytes.
"""

import operator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, JsonValue, model_validator

from planner.plan import records
from planner.plan.records import Amount, Capacity, Index
from planner.schema.base import Spec, refuse

SCHEMA: Final = "planner.plan/1"

Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
Fraction = Annotated[float, Field(ge=0, le=1)]
Queueing = Literal["fcfs", "feedback"]


class Parallelism(Spec, records.Parallelism):
    __doc__ = records.Parallelism.__doc__


class Engine(Spec, records.Engine):
    pass


class Memory(Spec, records.Memory):
    """Bytes on the fullest device of a role."""

    capacity_bytes: Capacity = Field(description="what the plan may use of the device")

    @property
    def used_bytes(self) -> float:
        parts = (self.weights_bytes, self.kv_cache_bytes, self.activations_bytes)
        return sum(parts) + self.gradients_bytes + self.optimizer_bytes + self.workspace_bytes


class Role(Spec, records.Role):
    __doc__ = records.Role.__doc__
    engine: Engine | None = None
    parallelism: Parallelism = Parallelism()
    limits: dict[str, float | int | str] = Field(default_factory=dict)
    memory: Memory | None = None


class Axis(Spec, records.Axis):
    __doc__ = records.Axis.__doc__


class Skipped(Spec, records.Skipped):
    __doc__ = records.Skipped.__doc__


class Block(Spec, records.Block):
    __doc__ = records.Block.__doc__
    axes: tuple[Axis, ...] = ()
    skipped: tuple[Skipped, ...] = Field(default=(), exclude_if=operator.not_)


class Route(Spec, records.Route):
    __doc__ = records.Route.__doc__
    share: Fraction


class Phase(Spec, records.Phase):
    __doc__ = records.Phase.__doc__
    duration_s: Annotated[float, Field(gt=0)] | None = None


class SideFile(Spec, records.SideFile):
    __doc__ = records.SideFile.__doc__
    digest: Digest


class PrefixTier(Spec):
    """Memory of one tier that is bought for prefixes, by all instances together; all of them read it."""

    name: Literal["host", "ssd", "pool"]
    units: Index
    size_bytes: Amount
    usd_per_hour: Amount
    hit_share: Fraction = Field(description="of the tokens of prompts, those that the tier has when they come")
    bandwidth_bytes_per_s: Annotated[float, Field(gt=0)]
    request_bandwidth_bytes_per_s: Annotated[float, Field(gt=0)]


class PrefixMemory(Spec):
    """The memory that is bought for prefixes beside GPUs, fastest first; no units is an answer."""

    tiers: tuple[PrefixTier, ...]
    token_bytes: Annotated[float, Field(gt=0)] = Field(description="of the cache of a token, all ranks together")
    none_above: Amount | None = Field(
        default=None, description="times its prices from which on a plan without memory costs less"
    )

    @property
    def text(self) -> str:
        """What is bought and what it is worth, in one sentence."""
        bought = [f"{tier.size_bytes / 1e9:.4g} GB of `{tier.name}`" for tier in self.tiers if tier.units]
        if not bought:
            return "buys no memory for prefixes: none on offer saves what it costs"
        until = "" if self.none_above is None else f"; from {self.none_above:.3g} times its prices on it would buy none"
        return (
            f"buys {' and '.join(bought)} for prefixes, {self.usd_per_hour:.3g} USD/h, which have {self.hit_share:.1%} "
            f"of the tokens of prompts when they come{until}"
        )

    @property
    def usd_per_hour(self) -> float:
        """Of all tiers."""
        return sum(tier.usd_per_hour for tier in self.tiers)

    @property
    def size_bytes(self) -> float:
        """Of all tiers."""
        return sum(tier.size_bytes for tier in self.tiers)

    @property
    def hit_share(self) -> float:
        """Of the tokens of prompts, those that any tier has."""
        return sum(tier.hit_share for tier in self.tiers)


class Decision(Spec):
    """What every kind decides; kinds add their own fields in a subclass."""

    roles: Annotated[tuple[Role, ...], Field(min_length=1)]
    placement: tuple[Block, ...] = ()
    routing: tuple[Route, ...] = ()
    router_policy: Literal["round-robin", "power-of-two"] | None = None  # of routers, among equal instances
    queueing: Queueing | None = None  # of engines; first come first served where absent
    elastic: Literal[True] | None = None  # engines share one KV cache, join for prefills and part again
    cache: PrefixMemory | None = None  # where the problem offers memory for prefixes
    phases: tuple[Phase, ...] = ()
    side_files: dict[str, SideFile] = Field(default_factory=dict)

    def reasons(self) -> tuple[str, ...]:
        """Why it is what it is, in sentences, where its fields say more than their values; kinds override it."""
        return ()

    def parts(self) -> dict[str, dict[str, JsonValue]]:
        """Whole plans that it holds, by their place in it; kinds override it."""
        return {}

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


class Prediction(Spec, records.Prediction):
    __doc__ = records.Prediction.__doc__


class Objective(Spec):
    metric: str
    sense: Literal["maximize", "minimize"]
    value: float | None


class LeftOutNodes(Spec):
    """Nodes of a pool that a plan has no ranks on."""

    pool: str
    nodes: str = Field(description="such as `3,17,40-42`")
    why: str


class AtConfidence(Spec):
    """The best of the objective with limits at a confidence, and the bound on it; none where nothing keeps them.

    By formulas, or of a plan whose limits were `simulated`.
    """

    confidence: Fraction
    objective: Amount | None = None
    bound: Amount | None = None
    simulated: bool = Field(default=False, exclude_if=operator.not_)


class Expected(Spec):
    """The most output in expectation, a limit that breaks leaving none, at the confidence that leaves it; and at most.

    `value` is the confidence times the objective there, by formulas of steady state; `bound` is on that of every
    confidence considered; none where a search was stopped.
    """

    value: Amount
    bound: Amount | None = None


class Proven(Spec):
    """What was proven, over which space, and what re-derives the bound without a solver.

    `stated` claims nothing: the plan was given, not searched. A gap up to `tolerance` counts as optimal. An
    `estimate` says why limits were judged by formulas alone, where simulation would tell whether they are kept;
    `gap_reason` says in a clause what keeps a gap open.
    """

    claim: str
    status: Literal["optimal", "feasible", "infeasible", "unknown", "stated"]
    stop_reason: str = "finished"
    objective: Objective
    bound: float | None = None
    gap: Amount | None = None
    gap_reason: str | None = Field(default=None, exclude_if=operator.not_)
    tolerance: Fraction = 1e-6
    axes: dict[str, list[JsonValue]] = Field(default_factory=dict)
    candidates: Index = 0
    pruned: dict[str, Index] = Field(default_factory=dict)
    proof: dict[str, JsonValue] = Field(default_factory=dict)
    next_best: JsonValue = None
    estimate: str | None = None
    left_out: tuple[LeftOutNodes, ...] = Field(
        default=(), exclude_if=operator.not_, description="of pools with nodes out of service, or that form groups"
    )

    @property
    def gap_text(self) -> str | None:
        """The gap in words; none where there is no bound. What is open never reads as closed."""
        if self.gap is None:
            return None
        return "under 0.01 %" if self.tolerance < self.gap < 5e-5 else f"{100 * self.gap:.2f} %"


class Preferred(Proven):
    """What was proven of a part of the space, and what the plans in it have in common."""

    among: str = Field(default="plans where runs were measured", description="what these plans are")


class Certificate(Proven):
    """What was proven of the whole space, and `within` of the part of it that the plan was preferred in."""

    within: Preferred | None = Field(
        default=None,
        exclude_if=operator.not_,
        description="the same of the part of the space that the plan was preferred in to better ones elsewhere",
    )
    confidence: Fraction | None = Field(
        default=None,
        exclude_if=operator.not_,
        description="with which limits are kept of which the problem does not say; half is by the estimate alone",
    )
    confidences: tuple[AtConfidence, ...] = Field(
        default=(), exclude_if=operator.not_, description="that it was chosen from, and what limits leave at each"
    )
    expected: Expected | None = Field(
        default=None, exclude_if=operator.not_, description="what is expected, where that chose the confidence"
    )

    @property
    def within_text(self) -> str:
        """Such as `optimal among plans where runs were measured`; empty where no part was preferred."""
        if self.within is None:
            return ""
        proven = "optimal" if self.within.status == "optimal" else f"gap {self.within.gap_text}"
        return f"{proven} among {self.within.among}"


Basis = Literal["measured", "imported", "held", "analytical"]
Shares = dict[Basis, Fraction]


class StepEvidence(Spec):
    """The step that dominates a role: its time by operator (`host` among them), and the share of it by basis.

    `tpot_s_by_batch` is the time per output token with the role full, at its batch and at the neighbours of that.
    """

    seconds: dict[str, Amount]
    basis: Shares = Field(default_factory=dict)
    tpot_s_by_batch: dict[str, Amount] | None = None


class TimeBelief(Spec):
    """How far a predicted time of a workload may be off, where own runs tell: of TPOT by the runs most like the role.

    `low` and `high` are the ends of the middle 80 % of the logarithm of the true over the predicted time, which is
    normal on either side, or Student-t where `freedom` says its degrees.
    """

    of: str
    metric: Literal["ttft_s", "tpot_s"]
    role: str | None = Field(default=None, description="the one that decodes and is least sure")
    low: float
    high: float
    freedom: Annotated[float, Field(gt=0)] | None = None


class LimitMargins(Spec):
    """By how much the limits of a workload are divided to be kept with a confidence: what a search compares with."""

    of: str
    confidence: Fraction
    ttft: Annotated[float, Field(gt=0)] = Field(description="limits on the time to the first token")
    tpot: Annotated[float, Field(gt=0)] = Field(description="all other limits on times")

    def of_time(self, metric: str) -> float:
        """By how much a limit on a time is divided; 1 of what is no time (`attainment`)."""
        if metric == "attainment":
            return 1.0
        return self.ttft if metric == "ttft_s" else self.tpot


class Evidence(Spec):
    """What the costs rest on: the share of predicted time by basis, and every fallback in words."""

    basis: Shares = Field(default_factory=dict)
    sources: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    steps: dict[str, StepEvidence] | None = None  # by role
    spread_gpus: Index | None = Field(
        default=None,
        exclude_if=operator.not_,
        description="GPUs of whose clients an instance has its share, where own runs are taken near it",
    )
    beliefs: tuple[TimeBelief, ...] = Field(
        default=(), exclude_if=operator.not_, description="of the times of each workload, where own runs tell of them"
    )
    margins: tuple[LimitMargins, ...] = Field(
        default=(), exclude_if=operator.not_, description="of the limits of each workload that has a confidence"
    )

    def margins_of(self, workload: str) -> LimitMargins | None:
        """Those of the limits of a workload, where they have a confidence."""
        return next((each for each in self.margins if each.of == workload), None)


class Digests(Spec, records.Digests):
    __doc__ = records.Digests.__doc__
    problem: Digest
    models: dict[str, Digest] = Field(default_factory=dict)
    hardware: dict[str, Digest] = Field(default_factory=dict)
    profiles: tuple[Digest, ...] = ()
    calibration: Digest | None = None
    traces: dict[str, Digest] = Field(default_factory=dict)


class Software(Spec, records.Software):
    pass


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

    @property
    def roles(self) -> tuple[Role, ...]:
        """Those of the decision, which every kind has."""
        roles: Any = self.decision["roles"]
        return tuple(Role.model_validate(role) for role in roles)
