"""What a plan made of other plans rests on."""

from collections.abc import Iterable, Mapping

from planner.plan.schema import Basis, Shares


def weighted_shares(parts: Iterable[tuple[float, Mapping[Basis, float]]]) -> Shares:
    """Shares by basis of parts with their weights; empty where nothing has a weight."""
    summed: Shares = {}
    weighted = [(weight, shares) for weight, shares in parts if weight > 0.0]
    whole = sum(weight for weight, _ in weighted)
    for weight, shares in weighted:
        for name, share in shares.items():
            summed[name] = summed.get(name, 0.0) + share * weight / whole
    return {name: min(share, 1.0) for name, share in summed.items()}
