"""Expert placements read off a plan of the kind `experts`: which expert each slot of a layer holds.

Slots are counted rank by rank over the expert-parallel ranks. A copy of an expert serves its quota of the expert's
tokens; where the plan gives none, copies share evenly. Plans say nothing of how often each expert is chosen, so loads
here are those of experts that are chosen equally often, as the random router of a shard chooses them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from planner.costs.operators.kernels import Experts, Operator
from planner.errors import PlannerError
from planner.models.architecture import Architecture, Layer, MoeFfn
from planner.plan.records import PlanDocument

SIDE_FILE = "expert_of_slot"
QUOTA_TOLERANCE = 1e-6  # of the shares of one expert: plans keep quotas to single precision


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """One layer: expert and quota of every slot, and how many slots each expert-parallel rank has."""

    expert_of_slot: tuple[int, ...]
    quota: tuple[float, ...]
    slots_per_rank: tuple[int, ...]

    @property
    def num_experts(self) -> int:
        return max(self.expert_of_slot) + 1

    @property
    def first_slots(self) -> tuple[int, ...]:
        """The first slot of every rank, and the number of all slots."""
        return (0, *accumulate(self.slots_per_rank))

    def slots_of(self, rank: int) -> range:
        """The slots of one expert-parallel rank."""
        first = self.first_slots
        return range(first[rank], first[rank + 1])

    def load_of_slot(self, slot: int) -> float:
        """Share of all token copies that goes to a slot, when all experts are chosen equally often."""
        return self.quota[slot] / self.num_experts

    def load_of_rank(self, rank: int) -> float:
        """The same of a rank; 1 / ranks where the layout is balanced."""
        return sum(self.load_of_slot(slot) for slot in self.slots_of(rank))


def read_layouts(plan: PlanDocument, num_ranks: int, num_experts: int) -> tuple[ExpertLayout, ...]:
    """The layouts of a plan, in the order in which it has them.

    Raises PlannerError for layouts in a side file and for those that do not hold every expert of the model.
    """
    where = f"{plan.source}: decision.layouts"
    if SIDE_FILE in plan.side_files:
        raise PlannerError(
            f"layouts in the side file `{SIDE_FILE}` cannot be executed",
            where=where,
            hint="give a plan with its layouts inline",
        )
    given = plan.extra.get("layouts")
    if not isinstance(given, Sequence) or not given:
        raise PlannerError("has no layout", where=where, hint="lay out every expert layer")
    slots = _slots_per_rank(plan, num_ranks)
    return tuple(_layout(data, slots, num_experts, f"{where}.{index}") for index, data in enumerate(given))


def _slots_per_rank(plan: PlanDocument, num_ranks: int) -> tuple[int, ...]:
    where = f"{plan.source}: decision.slots_per_rank"
    given = plan.extra.get("slots_per_rank")
    if not isinstance(given, Sequence) or not all(_is_count(count) and count > 0 for count in given):
        raise PlannerError("must be a list of whole numbers of at least 1", where=where, hint="write for example `[9]`")
    if len(given) not in (1, num_ranks):
        raise PlannerError(
            f"{len(given)} slot counts for {num_ranks} ranks", where=where, hint=f"give one, or {num_ranks}"
        )
    return tuple(given) if len(given) == num_ranks else tuple(given) * num_ranks


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _layout(given: object, slots: tuple[int, ...], num_experts: int, where: str) -> ExpertLayout:
    data: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    experts = data.get("expert_of_slot")
    if not isinstance(experts, Sequence) or len(experts) != sum(slots) or not all(map(_is_count, experts)):
        raise PlannerError(
            f"`expert_of_slot` must name the expert of each of {sum(slots)} slots",
            where=where,
            hint="lay out every slot of every rank",
        )
    copies = Counter(experts)
    most = max(num_experts, max(experts) + 1)
    wrong = next((expert for expert in range(most) if (expert in copies) != (expert < num_experts)), None)
    if wrong is not None:
        raise PlannerError(
            f"expert {wrong} has no slot" if wrong < num_experts else f"expert {wrong} of {num_experts}",
            where=where,
            hint="give every expert of the model at least one slot",
        )
    return ExpertLayout(tuple(experts), _quota(data.get("quota"), experts, copies, where), slots)


def _quota(given: object, experts: Sequence[int], copies: Mapping[int, int], where: str) -> tuple[float, ...]:
    if given is None:
        return tuple(1.0 / copies[expert] for expert in experts)
    if not isinstance(given, Sequence) or len(given) != len(experts) or not all(map(_is_share, given)):
        raise PlannerError(f"`quota` must be {len(experts)} shares", where=where, hint="give one share a slot")
    totals: dict[int, float] = {}
    for expert, share in zip(experts, given, strict=True):
        totals[expert] = totals.get(expert, 0.0) + share
    wrong = next((expert for expert, total in totals.items() if abs(total - 1.0) > QUOTA_TOLERANCE), None)
    if wrong is not None:
        raise PlannerError(
            f"the shares of expert {wrong} add up to {totals[wrong]:.6g}",
            where=where,
            hint="make the shares of every expert's copies add up to 1",
        )
    return tuple(float(share) for share in given)


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value >= 0


def laid_out(operators: Sequence[Operator], layouts: Sequence[ExpertLayout], ep_rank: int) -> list[Operator]:
    """The operators of expert layers under their layouts: a rank's own slots, and its share of the tokens.

    The cost model spreads tokens evenly over the ranks; one with the share s of ep ranks has s x ep times as many.
    """
    if not layouts:
        return list(operators)
    num_ranks = len(layouts[0].slots_per_rank)
    share = float(np.mean([layout.load_of_rank(ep_rank) for layout in layouts]))
    num_slots = len(layouts[0].slots_of(ep_rank)) * num_ranks
    return [
        replace(op, tokens=op.tokens * share * num_ranks, num_experts=num_slots) if isinstance(op, Experts) else op
        for op in operators
    ]


def slotted(arch: Architecture, layouts: Sequence[ExpertLayout], ep_rank: int) -> Architecture:
    """The model with so many experts that each rank holds as many as this one has slots; `arch` without layouts."""
    if not layouts:
        return arch
    num_experts = len(layouts[0].slots_of(ep_rank)) * len(layouts[0].slots_per_rank)

    def of(layer: Layer) -> Layer:
        ffn = layer.ffn
        return replace(layer, ffn=replace(ffn, num_experts=num_experts)) if isinstance(ffn, MoeFfn) else layer

    return replace(arch, layers=tuple(of(layer) for layer in arch.layers))
