"""What a plan made of parts rests on."""

from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

from planner.plan.schema import Basis, Shares

Name = TypeVar("Name", bound=str)


def weighted_shares(parts: Iterable[tuple[float, Mapping[Name, float]]]) -> Shares:
    """Shares by basis (names of `Basis`) of parts with their weights; empty where nothing has a weight."""
    summed: dict[Name, float] = {}
    weighted = [(weight, shares) for weight, shares in parts if weight > 0.0]
    whole = sum(weight for weight, _ in weighted)
    for weight, shares in weighted:
        for name, share in shares.items():
            summed[name] = summed.get(name, 0.0) + share * weight / whole
    return {cast(Basis, name): min(share, 1.0) for name, share in summed.items()}
