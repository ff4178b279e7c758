"""Devices that keep their weights when one plan replaces another, and those that must load new ones."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from planner.plan.placement import devices
from planner.plan.schema import Block, Decision, Envelope, Role

Device = tuple[str, int]  # pool and device in it
Shard = tuple[object, ...]  # model, its degrees of parallelism, and the place of the rank in them


@dataclass(frozen=True, slots=True)
class KeptWeights:
    """Of the devices that the later plan uses, how many hold every shard they need already; devices of each plan."""

    kept: int
    before: int
    after: int


def kept_weights(before: tuple[Envelope, Decision], after: tuple[Envelope, Decision]) -> KeptWeights:
    """Devices of `after` that hold all their shards under `before`; O(ranks).

    A shard is the part of a model that a rank keeps: the same part for the same model (by digest) in the same degrees
    of parallelism. Which layers a stage and which experts a slot holds is not looked at.
    """
    old, new = _shards(*before), _shards(*after)
    kept = sum(bool(shards) and shards <= old.get(device, frozenset()) for device, shards in new.items())
    return KeptWeights(kept, len(old), len(new))


def _shards(envelope: Envelope, decision: Decision) -> dict[Device, frozenset[Shard]]:
    """The shards on every device in use."""
    roles = {role.name: role for role in decision.roles}
    resident: dict[Device, set[Shard]] = {}
    for block in decision.placement:
        role = roles[block.role]
        models = _models(role, envelope, decision)
        for device, place in zip(devices(block), _places(block, role), strict=True):
            resident.setdefault((block.pool, device), set()).update((*model, *place) for model in models)
    return {device: frozenset(shards) for device, shards in resident.items()}


def _models(role: Role, envelope: Envelope, decision: Decision) -> list[Shard]:
    """The models on a role: its own, or those that entries of the kind's own lists bring to it by its name."""
    keys = [role.model] if role.model is not None else _guests(role.name, decision)
    known = envelope.digests.models
    return [(key, known.get(key, "")) for key in keys] or [(role.function, "")]


def _guests(name: str, decision: Decision) -> list[str]:
    own = decision.model_dump(mode="json", exclude=set(Decision.model_fields))
    entries = (entry for value in own.values() if isinstance(value, list) for entry in value if isinstance(entry, dict))
    return [str(entry["model"]) for entry in entries if "model" in entry and name in _texts(entry)]


def _texts(entry: dict[str, Any]) -> set[str]:
    return {value for key, value in entry.items() if key != "model" and isinstance(value, str)}


def _places(block: Block, role: Role) -> Iterator[Shard]:
    """What of a model each rank of a block keeps, in rank order; replicas and data-parallel ranks keep the same."""
    shape = role.parallelism
    degrees = (shape.tp, shape.pp, shape.vpp, shape.moe_tp, shape.ep)
    experts = shape.moe_tp * shape.ep
    sizes = [axis.size for axis in block.axes]
    names = [axis.name for axis in block.axes]
    for steps in product(*(range(size) for size in sizes)):
        position = {"tp": 0, "pp": 0, "dp": 0, "cp": 0}
        for name, size, step in zip(names, sizes, steps, strict=True):
            position[name] = position.get(name, 0) * size + step
        rank = (position["dp"] * shape.cp + position["cp"]) * shape.tp + position["tp"]
        yield (*degrees, position["tp"], position["pp"], rank % experts)
