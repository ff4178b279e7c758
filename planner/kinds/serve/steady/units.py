"""Candidate units of attention-FFN disaggregation (AFD), priced: attention and feed-forward on separate GPUs.

A unit has so many attention ranks and so many groups of feed-forward devices, and micro-batches that take turns
between them (`planner.costs.serving.attention_ffn`). Both sides together fill a power of two of devices inside one
domain, or each fills whole domains. Arrays are over points [N], a unit with a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np

from planner.arrays import Bools, Floats, Indices
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.step import StepTime
from planner.costs.serving.attention_ffn import RemoteFfn, Units, UnitStep, ffn_weight_bytes, unit_step
from planner.costs.serving.memory import activation_bytes, kv_cache_bytes, weight_bytes
from planner.hardware.cluster import Pool
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.demand import Target
from planner.kinds.serve.steady.evaluate import StepTimes
from planner.kinds.serve.steady.points import CONTEXT_RULE, Points, PoolCosts, Tally, decode_batches
from planner.kinds.serve.steady.shapes import InstanceShape, filling_rule, group_devices, heads_rule, width_rule
from planner.models.architecture import MoeFfn
from planner.solvers.stochastic.gap_averages import SteadySteps

MICRO_BATCHES = (2, 3, 4)
WHOLE_DOMAINS = tuple(sorted({base << power for base in (1, 3) for power in range(12)}))
FUNCTION = "attention"
JOINING_STEPS = 1.0  # of a batch, at most, until the first one with a request that comes from elsewhere
JOINING_AHEAD = 2.0  # the same where each step is formed while the one before it runs; never of units


@dataclass(frozen=True, slots=True, order=True)
class FfnPart:
    """The feed-forward side of a unit, and how many micro-batches take turns between its sides."""

    shape: InstanceShape
    micro_batches: int
    pool_costs: PoolCosts = field(compare=False)
    weights_bytes: float = field(default=0.0, compare=False)  # on one of its devices
    activations_bytes: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """Degrees of the attention side, of the feed-forward side, and the micro-batches."""

    attention: InstanceShape
    ffn: InstanceShape
    micro_batches: int


@dataclass(frozen=True, slots=True)
class Sides:
    """Where the two sides of a unit stand; the same place twice where they share a pool."""

    attention: PoolCosts
    ffn: PoolCosts

    @property
    def shared(self) -> bool:
        """Whether both stand in one pool."""
        return self.attention.index == self.ffn.index

    def units(self, attention: InstanceShape, ffn: InstanceShape, micro_batches: int, count: int = 1) -> Units:
        """The same unit `count` times, for pricing."""
        return self.arrays([Unit(attention, ffn, micro_batches)]).take(np.zeros(count, dtype=np.intp))

    def arrays(self, units: Sequence[Unit]) -> Units:
        """Units as arrays."""
        rows = [
            (unit.attention.tp, unit.attention.dp, unit.ffn.tp, unit.ffn.dp, unit.micro_batches, unit.ffn.redundant)
            for unit in units
        ]
        tp, ranks, ffn_tp, groups, turns, redundant = np.array(rows, dtype=np.float64).T
        return Units.within(tp, ranks, ffn_tp, groups, turns, self.attention.pool.node.scale_up_size, redundant)

    def step(self, units: Units, work: Work) -> UnitStep:
        """A step of units whose ranks do `work` for each micro-batch [N]."""
        costs, far = self.attention.costs, None
        if not self.shared:
            far = RemoteFfn(self.ffn.costs.pricer, self.attention.port, self.ffn.port)
        return unit_step(costs.arch, costs.pricer, costs.engine, units, work, far)

    def decode_step(self, units: Units, batch: Floats, context: float) -> UnitStep:
        """A step of units whose ranks hold `batch` sequences each, all micro-batches together [N]."""
        return self.step(units, Work.decode(batch / units.micro_batches, np.full(len(batch), context)))

    def tpot_s(self, units: Units, batch: Floats, context: float) -> Floats:
        """Time per output token [N] of units whose ranks hold `batch` sequences each."""
        return self.decode_step(units, batch, context).seconds


@dataclass(frozen=True, slots=True)
class UnitPoints:
    """Units with a batch [N]; points of the same split of devices compete with each other."""

    sides: Sides
    units: tuple[Unit, ...]
    unit_of: Indices
    points: Points
    ffn_weights_bytes: Floats
    ffn_activations_bytes: Floats
    timed: tuple[StepTimes, ...]  # by target
    tally: Tally

    def parts(self, row: int) -> tuple[InstanceShape, FfnPart]:
        """The two sides of one point."""
        unit = self.units[int(self.unit_of[row])]
        memory = float(self.ffn_weights_bytes[row]), float(self.ffn_activations_bytes[row])
        return unit.attention, FfnPart(unit.ffn, unit.micro_batches, self.sides.ffn, *memory)


def attention_shape(tp: int, ranks: int) -> InstanceShape:
    """Attention ranks as a shape; its ranks hold no experts."""
    return InstanceShape(tp, 1, ranks, 1, 1)


def ffn_shape(tp: int, groups: int, *, experts: bool) -> InstanceShape:
    """Groups of devices that share the experts, each expert and dense layer split inside a group."""
    return InstanceShape(tp, 1, groups, tp, groups) if experts else InstanceShape(tp, 1, groups, 1, 1)


def splits(sides: Sides, options: ServeOptions) -> list[tuple[int, int]]:
    """Devices for attention and for feed-forward.

    In one pool parts of a domain together, or whole domains each; on two pools a power of two inside a domain or whole
    domains of either.
    """
    attention, ffn = sides.attention.pool, sides.ffn.pool
    domain = group_devices(attention)
    if sides.shared:
        inside = [1 << power for power in range(1, domain.bit_length())]
        pairs = [(part, size - part) for size in inside for part in range(1, size)]
        pairs += [(a * domain, b * domain) for a in WHOLE_DOMAINS for b in WHOLE_DOMAINS]
        most = (attention.num_gpus,) * 3
    else:
        pairs = [(a, b) for a in _alone(domain) for b in _alone(group_devices(ffn))]
        most = (attention.num_gpus, ffn.num_gpus, attention.num_gpus + ffn.num_gpus)
    total = min(most[2], options.max_gpus_per_instance or most[2])
    wanted = (options.attention_gpus, options.ffn_gpus)
    return [
        pair
        for pair in pairs
        if sum(pair) <= total
        and all(size <= room for size, room in zip(pair, most, strict=False))
        and all(asked is None or size in asked for size, asked in zip(pair, wanted, strict=True))
    ]


def _alone(domain: int) -> list[int]:
    """Devices of one side that has a pool to itself."""
    return [*(1 << power for power in range(domain.bit_length() - 1)), *(count * domain for count in WHOLE_DOMAINS)]


def units_of(sides: Sides, options: ServeOptions) -> list[Unit]:
    """Every unit whose degrees divide heads and experts and whose feed-forward weights fit."""
    arch, room = sides.attention.costs.arch, sides.ffn.room_bytes
    experts = any(isinstance(layer.ffn, MoeFfn) for layer in arch.layers)
    own, others = _degrees(sides.attention.pool), _degrees(sides.ffn.pool)
    units = []
    for attention_gpus, ffn_gpus in splits(sides, options):
        parts = [ffn_shape(tp, ffn_gpus // tp, experts=experts) for tp in others if ffn_gpus % tp == 0]
        parts = [replace(part, redundant=copies) for part in parts for copies in options.searched_copies]
        parts = [part for part in parts if (width_rule(part, arch) or filling_rule(part, arch)) is None]
        fitting = [part for part in parts if float(ffn_weight_bytes(arch, Shards.of(*part.degrees))[0]) <= room]
        wanted = [tp for tp in own if options.tp is None or tp in options.tp]
        ranks = [attention_shape(tp, attention_gpus // tp) for tp in wanted if attention_gpus % tp == 0]
        ranks = [attention for attention in ranks if heads_rule(attention, arch) is None]
        units += [
            Unit(attention, part, turns)
            for attention in ranks
            for part in fitting
            for turns in options.micro_batches or MICRO_BATCHES
        ]
    return units


def _degrees(pool: Pool) -> list[int]:
    """Tensor-parallel degrees that stay inside a scale-up domain."""
    most = min(group_devices(pool), pool.node.scale_up_size)
    return [1 << power for power in range(most.bit_length())]


def price_units(sides: Sides, options: ServeOptions, targets: Sequence[Target], copies: int) -> UnitPoints:
    """All units with all batches that fit in memory for some target, priced for each."""
    units, tally = units_of(sides, options), Tally()
    if not units:
        return _nothing(sides, tally)
    batches = decode_batches(options, targets)
    unit_of = np.repeat(np.arange(len(units), dtype=np.intp), len(batches))
    many, batch = sides.arrays(units).take(unit_of), np.tile(batches, len(units))
    memory = UnitMemory.of(sides, many, batch, [target.resident_tokens for target in targets])
    held = kv_cache_bytes(sides.attention.costs.arch, many.attention, np.full(len(batch), sides.attention.held_tokens))
    short = (memory.room >= 0.0) & (held > memory.room)
    fits = tuple(fit & ~short for fit in memory.fits)
    tally.evaluated = len(batch) * len(targets) * copies
    tally.drop("KV cache does not fit in memory", sum(int(np.sum(~fit & ~short)) for fit in fits) * copies)
    tally.drop(CONTEXT_RULE, int(np.sum(short)) * len(fits) * copies)
    kept = np.logical_or.reduce(fits)
    if not kept.any():
        return _nothing(sides, tally)
    many, batch, unit_of = many.take(kept), batch[kept], unit_of[kept]
    splits_of = {split: index for index, split in enumerate(dict.fromkeys(map(_split, units)))}
    split_of_unit = np.array([splits_of[_split(unit)] for unit in units], dtype=np.intp)
    points = Points(
        shape=split_of_unit[unit_of],
        shards=Shards.of(many.tp, 1, many.ranks, 1, 1),
        batch=batch,
        chunk=np.zeros(len(batch)),
        drafts=np.zeros(len(batch)),
        weight_bytes=memory.weights[kept],
        activation_bytes=memory.activations[kept],
        kv_bytes=tuple(kv[kept] for kv in memory.kv),
        fits=tuple(fit[kept] for fit in fits),
    )
    timed = tuple(_timed(sides, many, batch, target) for target in targets)
    return UnitPoints(
        sides, tuple(units), unit_of, points, memory.ffn_weights[kept], memory.ffn_activations[kept], timed, tally
    )


def _split(unit: Unit) -> tuple[int, int]:
    return unit.attention.devices, unit.ffn.devices


def _nothing(sides: Sides, tally: Tally) -> UnitPoints:
    none = np.zeros(0)
    points = Points(none.astype(np.intp), Shards(*(none,) * len(fields(Shards))), none, none, none, none, none, (), ())
    return UnitPoints(sides, (), points.shape, points, none, none, (), tally)


@dataclass(frozen=True, slots=True)
class UnitMemory:
    """Bytes of one device of each side [N], and what is left for the cache of an attention device."""

    weights: Floats
    activations: Floats
    kv: tuple[Floats, ...]  # by length of a sequence
    room: Floats  # below 0 where either side has no room for what it must hold
    ffn_weights: Floats
    ffn_activations: Floats

    @property
    def fits(self) -> tuple[Bools, ...]:
        """Whether all fits, by length."""
        return tuple(kv <= self.room for kv in self.kv)

    @classmethod
    def of(cls, sides: Sides, units: Units, batch: Floats, lengths: Sequence[float]) -> "UnitMemory":
        arch = sides.attention.costs.arch
        most, ffn_most = sides.attention.room_bytes, sides.ffn.room_bytes
        attention, ffn, each = units.attention, units.ffn, batch / units.micro_batches
        weights = weight_bytes(arch, attention) - ffn_weight_bytes(arch, attention)
        activations = activation_bytes(arch, attention, each, each)
        ffn_weights = ffn_weight_bytes(arch, ffn)
        tokens = each * units.ranks / ffn.dp
        ffn_activations = units.micro_batches * activation_bytes(arch, ffn, tokens, 0.0)
        room = np.where(ffn_weights + ffn_activations <= ffn_most, most - weights - activations, -1.0)
        kv = tuple(kv_cache_bytes(arch, attention, np.full(len(batch), length)) * batch for length in lengths)
        return cls(weights, activations, kv, room, ffn_weights, ffn_activations)


def _timed(sides: Sides, units: Units, batch: Floats, target: Target) -> StepTimes:
    none, step = np.zeros(len(batch)), sides.decode_step(units, batch, target.context)
    full = SteadySteps(step.seconds, step.seconds, batch, none + 1.0, none + 1.0, none, none, JOINING_STEPS)
    return StepTimes(none, none, none, none, step.seconds, both_sides(step.attention, step.ffn), decoding=full)


def both_sides(attention: StepTime, ffn: StepTime) -> StepTime:
    """The work of both sides as one: what predictions rest on."""
    named = dict(attention.by_operator)
    for name, seconds in ffn.by_operator.items():
        named[name] = named.get(name, np.zeros_like(seconds)) + seconds
    return StepTime(
        attention.device_s + ffn.device_s, attention.host_s + ffn.host_s, named, attention.by_basis + ffn.by_basis
    )
