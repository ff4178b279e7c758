"""Schema of expert-placement problems (options) and plans (decision)."""

import operator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.documents.units import BYTES, FRACTION, TIME_S
from planner.plan.records import Amount, Count, Index
from planner.plan.schema import Decision
from planner.schema.base import Spec, refuse

Policy = Literal["static", "periodic", "realtime", "windows", "micro_batches", "affinity"]
STEPWISE: tuple[Policy, ...] = ("windows", "micro_batches")
"""Policies whose plans hold a layout for each recorded window or micro-batch."""
OF_WINDOWS: tuple[Policy, ...] = ("static", "windows")
"""Policies whose search takes shares, moves and a distance from the bound."""
SlotsOfRanks = Annotated[tuple[Count, ...], Field(min_length=1)]


class ExpertsOptions(Spec):
    """How the experts are spread: the copies that fit, the loads they carry, and how often they may move."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "interval": ("interval_s", TIME_S),
        "expert_size": ("expert_bytes", BYTES),
        "most_moved": ("most_moved_bytes", BYTES),
        "tolerance": ("tolerance", FRACTION),
    }
    paths: ClassVar[tuple[str, ...]] = ("loads", "resident")
    ep: Count = Field(description="ranks that share the experts of a layer")
    slots_per_rank: Count | SlotsOfRanks | Annotated[tuple[SlotsOfRanks, ...], Field(min_length=1)] = Field(
        description="experts that fit on a rank in one layer; one figure, one by rank, or by layer and rank"
    )
    rank_speeds: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] | None = Field(
        default=None, description="relative, one by rank; all alike when absent"
    )
    peak_tokens: Count | None = Field(
        default=None, description="most that a rank has memory for in one layer, in the units of the loads"
    )
    policy: Policy = Field(
        default="static",
        description="one layout, the next one of windows to come, or copies in every micro-batch; of records, a layout "
        "for each window, for each micro-batch, or for the experts that tokens chose together",
    )
    shares: Literal["equal", "free"] = Field(
        default="equal", description="of an expert's tokens on its copies; `static` and `windows`"
    )
    ahead: bool = Field(default=False, description="for the window after each, hedged; `static` and `windows`")
    tolerance: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="above its bound, at which a layout is left; what the policy is best with when absent"
    )
    most_moved_bytes: Amount | None = Field(
        default=None, description="of experts, from the layout that runs before; `static` and `windows`"
    )
    nodes_per_group: Count | None = Field(
        default=None, description="nodes that the experts of a routing group stay on, `static` alone"
    )
    imbalance_price: Amount | None = Field(
        default=None, description="nodes a token that 1 % of imbalance is worth, `affinity` alone"
    )
    node_of_rank: Annotated[tuple[Index, ...], Field(min_length=1)] | None = Field(
        default=None, description="those of the pool in order when absent"
    )
    home_slots: Index | None = Field(
        default=None, description="of a rank, whose expert never moves; `micro_batches` alone, no rule when absent"
    )
    num_experts: Count | None = Field(default=None, description="that tokens choose from, `affinity` alone")
    expert_bytes: Amount | None = Field(
        default=None, description="weights of one expert of one layer; the model's when absent"
    )
    min_chunk_tokens: Count | None = Field(
        default=None, description="fewest that a copy takes in a micro-batch, `realtime` alone; any when absent"
    )
    copy_domain: Count | None = Field(
        default=None, description="ranks of a domain that copies stay in, `realtime` alone; all when absent"
    )
    relays: Index | None = Field(
        default=None,
        description="ranks along which excess comes to one that hands it on, `realtime` alone; any when absent",
    )
    micro_batch_tokens: Count | None = Field(
        default=None, description="of a rank, `realtime` alone; a window of the loads is a micro-batch when absent"
    )
    loads: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="file of recorded loads, needed to solve"
    )
    array: Annotated[str, Field(min_length=1)] | None = Field(default=None, description="of several in an .npz")
    resident: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="placement file of the layout that runs now; few experts then move"
    )
    groups: Count = Field(default=1, description="routing groups of the model, which rise and fall together")
    interval_s: Annotated[float, Field(gt=0)] | None = Field(default=None, description="between periodic layouts")

    @model_validator(mode="after")
    def one_of_each_rank(self) -> "ExpertsOptions":
        each = () if isinstance(self.slots_per_rank, int) else (self.slots_by_rank,)
        by_rank: dict[str, tuple[tuple[float, ...], ...]] = {"slots_per_rank": self.slots_by_layer or each}
        by_rank |= {name: (given,) for name in ("rank_speeds", "node_of_rank") if (given := getattr(self, name))}
        for name, figures in by_rank.items():
            for given in figures:
                if len(given) != self.ep:
                    raise refuse(f"{len(given)} figures for {self.ep} ranks", "give one for every rank", name)
        return self

    @property
    def slots_by_layer(self) -> tuple[tuple[int, ...], ...]:
        """Slots of every rank in each layer, where layers differ."""
        given = self.slots_per_rank
        return tuple(row for row in given if isinstance(row, tuple)) if isinstance(given, tuple) else ()

    @property
    def slots_by_rank(self) -> tuple[int, ...]:
        """Slots of every rank, in the layer where it has most."""
        given = self.slots_per_rank
        if isinstance(given, int):
            return (given,) * self.ep
        rows = self.slots_by_layer
        return tuple(map(max, zip(*rows, strict=False))) if rows else tuple(s for s in given if isinstance(s, int))


class LayerLayout(Spec):
    """Layers laid out alike: the expert in every slot, slots counted rank by rank, and the share of each copy."""

    first_layer: Index
    num_layers: Count = 1
    window: Index = Field(
        default=0, exclude_if=operator.not_, description="or micro-batch, of those that the plan lays out"
    )
    expert_of_slot: Annotated[tuple[Annotated[int, Field(ge=-1)], ...], Field(min_length=1)] = Field(
        description="-1: empty, where layers differ in slots and in micro-batches"
    )
    quota: tuple[Amount, ...] | None = Field(default=None, description="by slot; equal shares of copies when absent")

    @model_validator(mode="after")
    def aligned(self) -> "LayerLayout":
        if self.quota is not None and len(self.quota) != len(self.expert_of_slot):
            raise refuse(f"{len(self.quota)} quotas for {len(self.expert_of_slot)} slots", "give one a slot", "quota")
        return self


class ExpertsDecision(Decision):
    """The layout of every expert layer of one role, inline or as the side file `expert_of_slot` ([layer, slot])."""

    policy: Policy = "static"
    num_experts: Count
    num_windows: Count = Field(
        default=1, exclude_if=lambda count: count == 1, description="or micro-batches, each with layouts of its own"
    )
    num_layers: Count = Field(description="layers with experts, counted from 0 without the dense ones")
    layer_ids: tuple[Index, ...] = Field(default=(), description="their numbers in the model")
    mtp_layer_ids: tuple[Index, ...] = Field(default=(), description="those of multi-token prediction in the model")
    num_model_layers: Index = Field(default=0, description="dense ones too, without multi-token prediction")
    slots_per_rank: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(description="one figure, or one by rank")
    slots_by_layer: tuple[SlotsOfRanks, ...] = Field(
        default=(), exclude_if=operator.not_, description="by rank, where layers differ"
    )
    home_slots_per_rank: Index = Field(default=0, description="first slots of each rank whose expert never moves")
    interval_s: Annotated[float, Field(gt=0)] | None = Field(default=None, description="between two periodic layouts")
    moved_bytes: Amount = Field(default=0.0, description="to come here from the layout that runs now")
    layouts: tuple[LayerLayout, ...] = ()
