"""Schema of expert-placement problems (options) and plans (decision)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.documents.units import TIME_S
from planner.plan.records import Amount, Count, Index
from planner.plan.schema import Decision
from planner.schema.base import Spec, refuse


class ExpertsOptions(Spec):
    """How the experts are spread: the copies that fit, the loads they carry, and how often they may move."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"interval": ("interval_s", TIME_S)}
    paths: ClassVar[tuple[str, ...]] = ("loads", "resident")
    ep: Count = Field(description="ranks that share the experts of a layer")
    slots_per_rank: Count | Annotated[tuple[Count, ...], Field(min_length=1)] = Field(
        description="experts that fit on a rank in one layer; one figure, or one by rank"
    )
    rank_speeds: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] | None = Field(
        default=None, description="relative, one by rank; all alike when absent"
    )
    peak_tokens: Count | None = Field(
        default=None, description="most that a rank has memory for in one layer, in the units of the loads"
    )
    policy: Literal["static", "periodic", "realtime"] = "static"
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
        for name in ("slots_per_rank", "rank_speeds"):
            given = getattr(self, name)
            if isinstance(given, tuple) and len(given) != self.ep:
                raise refuse(f"{len(given)} figures for {self.ep} ranks", "give one for every rank", name)
        return self

    @property
    def slots_by_rank(self) -> tuple[int, ...]:
        """Slots of every rank."""
        given = self.slots_per_rank
        return given if isinstance(given, tuple) else (given,) * self.ep


class LayerLayout(Spec):
    """Layers laid out alike: the expert in every slot, slots counted rank by rank, and the share of each copy."""

    first_layer: Index
    num_layers: Count = 1
    expert_of_slot: Annotated[tuple[Index, ...], Field(min_length=1)]
    quota: tuple[Amount, ...] | None = Field(default=None, description="by slot; equal shares of copies when absent")

    @model_validator(mode="after")
    def aligned(self) -> "LayerLayout":
        if self.quota is not None and len(self.quota) != len(self.expert_of_slot):
            raise refuse(f"{len(self.quota)} quotas for {len(self.expert_of_slot)} slots", "give one a slot", "quota")
        return self


class ExpertsDecision(Decision):
    """The layout of every expert layer of one role, inline or as the side file `expert_of_slot` ([layer, slot])."""

    policy: Literal["static", "periodic", "realtime"] = "static"
    num_experts: Count
    num_layers: Count = Field(description="layers with experts, counted from 0 without the dense ones")
    layer_ids: tuple[Index, ...] = Field(default=(), description="their numbers in the model")
    mtp_layer_ids: tuple[Index, ...] = Field(default=(), description="those of multi-token prediction in the model")
    num_model_layers: Index = Field(default=0, description="dense ones too, without multi-token prediction")
    slots_per_rank: Annotated[tuple[Count, ...], Field(min_length=1)] = Field(description="one figure, or one by rank")
    home_slots_per_rank: Index = Field(default=0, description="first slots of each rank whose expert never moves")
    interval_s: Annotated[float, Field(gt=0)] | None = Field(default=None, description="between two periodic layouts")
    moved_bytes: Amount = Field(default=0.0, description="to come here from the layout that runs now")
    layouts: tuple[LayerLayout, ...] = ()
