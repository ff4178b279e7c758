"""Candidate instances of every role: priced for every workload of a model, pruned by limits and by dominance.

For each shape the points survive that no other point of it dominates: in the rate of every workload and, where clients
wait for answers, in how long a request stays. A dominated point does less on the same devices, so nothing is lost.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from planner.arrays import Floats, Indices
from planner.costs.serving.speculation import Drafter
from planner.engines.release import Release
from planner.kinds.serve.options import ServeOptions
from planner.kinds.serve.steady.demand import Channel, Target, TransferPath
from planner.kinds.serve.steady.engine_rules import handover_rule, side_of
from planner.kinds.serve.steady.evaluate import (
    LimitedRates,
    StepTimes,
    judge_colocated,
    judge_decode,
    judge_prefill,
    shared_queues,
    time_points,
)
from planner.kinds.serve.steady.points import Points, PoolCosts, Tally, make_points
from planner.kinds.serve.steady.shapes import InstanceShape, ShapeSpace
from planner.kinds.serve.steady.steps.first_tokens import Engines
from planner.kinds.serve.steady.steps.pipelines import Bubbles, Holds
from planner.kinds.serve.steady.units import FUNCTION as ATTENTION
from planner.kinds.serve.steady.units import FfnPart, Sides, UnitPoints, price_units
from planner.plan.instance_types import type_name, unit_name
from planner.plan.schema import Queueing
from planner.simulate.loop.elastic.fields import MOST_INSTANCES
from planner.solvers.pareto import non_dominated
from planner.solvers.stochastic.routed_queues import Routing

MOST_TOGETHER = 64
PricedPoints: TypeAlias = tuple[Points, Sequence[StepTimes], Tally, UnitPoints | None]


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one instance does for one target when used up to its limits."""

    rate_per_s: float  # requests per second of the whole instance; 0 where it cannot keep the limits
    utilisation: float  # of its prefill, at that rate
    service_s: float  # time to first token without waiting, transfer included; 0 for decode
    queue_s: float  # time that one request occupies the prefill of an attention rank
    stretch_s: float  # time that one prefill adds to the decode steps of its rank
    prefill_steps: float  # of its rank that one prefill takes
    tpot_s: float  # at the full batch; 0 for prefill
    stay_s: float  # mean time that a request stays, at that rate
    kv_bytes: float  # cache of the full batch on one device
    bubbles: Bubbles | None = None  # of prefill in stages
    holds: Holds | None = None  # of batches in stages that prefill and decode
    engines: Engines | None = None  # of roles that prefill and decode
    varied_s: float = 0.0  # of the time to first token of prefill alone, what grows with a prompt


@dataclass(frozen=True, slots=True)
class Candidate:
    """One instance type: a role, a shape, its limits, and what it serves of each target."""

    function: str  # colocated, prefill, decode, attention
    model: str
    pool: int
    shape: InstanceShape
    channel: Channel | None  # None for colocated
    max_batch: int  # sequences that an attention rank holds
    chunk_tokens: int  # prefill tokens per step; 0 for decode
    draft_tokens: int  # of a sequence in a step
    capacities: tuple[Capacity | None, ...]  # by target of the problem; None for targets of other models
    weights_bytes: float
    activations_bytes: float
    workspace_bytes: float
    basis: dict[str, float]  # share of step time by evidence
    memory_share: float  # of what the engine may use of its fullest device, with full batches
    ffn: FfnPart | None = None  # where feed-forward layers stand on devices of their own; `shape` is attention's
    together: int = 1  # instances behind one router at least, whose waits are so much shorter
    routing: Routing = Routing.POWER_OF_TWO  # of that router
    queueing: Queueing = "fcfs"  # of all engines of a plan, as are the router's choice and a shared cache
    elastic: bool = False

    @property
    def name(self) -> str:
        """What tells this instance type from all others of its pool; behind `#` the channel, and the least together."""
        handing = "" if self.channel is None else str(self.channel.index)
        limits = (self.max_batch, self.chunk_tokens, self.draft_tokens)
        name = type_name(self.function, self.model, self.shape.degrees, *limits)
        if self.ffn is not None:
            name = unit_name(name, self.ffn.shape.degrees, self.ffn.micro_batches, self.ffn_pool)
        return f"{name}#{handing}{f'*{self.together}' if self.together > 1 else ''}"

    def is_alike(self, other: "Candidate") -> bool:
        """Whether its instances are those of the other, whatever way they hand over and however many stand together."""
        return (self.name.partition("#")[0], self.pool) == (other.name.partition("#")[0], other.pool)

    @property
    def rates_per_s(self) -> tuple[float, ...]:
        """Requests of each target that an instance takes; 0 of those that it does not serve."""
        return tuple(0.0 if capacity is None else capacity.rate_per_s for capacity in self.capacities)

    def capacity(self, target: Target) -> Capacity:
        """What one instance does for a target of its model."""
        capacity = self.capacities[target.index]
        assert capacity is not None
        return capacity

    @property
    def most_instances(self) -> int | None:
        """That a plan may have: engines that share a cache are simulated up to so many."""
        return MOST_INSTANCES if self.elastic else None

    @property
    def label(self) -> str:
        """Its shape, such as `tp4`, or `tp1 x 16 + ffn tp8ep2 x 16 GPUs`."""
        if self.ffn is None:
            return self.shape.label
        return f"tp{self.shape.tp} x {self.shape.dp} + ffn {self.ffn.shape.label} x {self.ffn.micro_batches}"

    @property
    def devices(self) -> int:
        """Of an instance, both sides together."""
        return self.shape.devices + (0 if self.ffn is None else self.ffn.shape.devices)

    @property
    def devices_of_pool(self) -> tuple[tuple[int, int], ...]:
        """(pool, devices) of an instance, its own pool first."""
        if self.ffn is None or self.ffn_pool is None:
            return ((self.pool, self.devices),)
        return ((self.pool, self.shape.devices), (self.ffn.pool_costs.index, self.ffn.shape.devices))

    @property
    def ffn_pool(self) -> str | None:
        """The pool of its feed-forward side, where that is not the pool of its attention."""
        return None if self.ffn is None or self.ffn.pool_costs.index == self.pool else self.ffn.pool_costs.pool.name

    def sides(self, pool_costs: PoolCosts) -> Sides:
        """Where its two sides stand, given the place of its attention."""
        return Sides(pool_costs, pool_costs if self.ffn is None else self.ffn.pool_costs)

    @property
    def decodes(self) -> bool:
        """Whether it takes requests that were prefilled elsewhere."""
        return self.function in ("decode", ATTENTION)


@dataclass(frozen=True, slots=True)
class JudgedPoints:
    """Every point of a role that fits in memory, for the first target of its model, before any is left out."""

    function: str
    pool: int
    model: str
    shapes: Sequence[InstanceShape]
    points: Points
    units: UnitPoints | None  # where feed-forward layers stand on devices of their own
    target: Target
    timed: StepTimes
    rates: LimitedRates
    kept: Indices  # those that no other of the same shape dominates

    def shape_of(self, row: int) -> tuple[InstanceShape, FfnPart | None]:
        """The shape of a point, and its feed-forward side where that stands apart."""
        return (self.shapes[int(self.points.shape[row])], None) if self.units is None else self.units.parts(row)


@dataclass(frozen=True, slots=True)
class CandidateSearch:
    """The candidates of one model on one pool."""

    model: str
    pool_costs: PoolCosts
    options: ServeOptions
    space: ShapeSpace
    channels: tuple[Channel, ...]
    paths: tuple[TransferPath, ...]  # from this pool to each pool
    others: tuple[PoolCosts, ...]  # pools that feed-forward layers could stand on, beside this one
    tally: Tally
    release: Release
    priced: "dict[tuple[str, int, str], PricedPoints]"  # what was priced before; times do not depend on limits
    longer_stays: bool  # clients must find room, so that of equal rates the longer stay is better
    most_gpus: int  # of this pool
    pooling: bool = True  # whether waits of equal prefill instances behind one router count as theirs together
    routing: Routing = Routing.POWER_OF_TWO
    judged: "list[JudgedPoints] | None" = None  # what was considered goes here too, if anywhere

    def candidates(self, targets: Sequence[Target], num_targets: int) -> list[Candidate]:
        """All candidates that keep the limits of at least one of `targets` (those of this model)."""
        for rule, count in self.space.pruned.items():
            self.tally.drop(f"shape: {rule}", count)
        if not self.space.shapes or not targets:
            return []
        modes = self.options.modes
        functions = ["colocated"] if "colocated" in modes else []
        functions += ["prefill"] if {"disaggregated", "attention-ffn"} & set(modes) else []
        functions += ["decode"] if "disaggregated" in modes else []
        roles: list[tuple[str, Sides | None]] = [(function, None) for function in functions]
        if "attention-ffn" in modes:
            roles += [(ATTENTION, Sides(self.pool_costs, other)) for other in (self.pool_costs, *self.others)]
        return [candidate for role in roles for candidate in self._of_role(*role, targets, num_targets)]

    def _of_role(
        self, function: str, sides: Sides | None, targets: Sequence[Target], num_targets: int
    ) -> Iterator[Candidate]:
        """Those of one role, by the channels whose prompts a drafter has seen, or has not."""
        shapes = [] if sides is not None else self._shapes(function)
        if not shapes and sides is None:
            return
        by_drafted = drafts_of(function, self.options.searched_drafts, self.pool_costs.costs.drafter)
        for drafted, drafts in by_drafted.items():
            channels = self._channels(function, drafted)
            role = f"{function}{' drafted' if drafted else ''}"
            key = (self.model, self.pool_costs.index, role if sides is None else f"{role} + {sides.ffn.index}")
            if key not in self.priced:
                self.priced[key] = self._price(function, drafts, shapes, targets, len(channels), sides)
            points, _, dropped, _ = self.priced[key]
            self.tally.add(dropped)
            counts = self._together(function, shapes)
            for channel in channels if len(points) else ():
                for together in counts:
                    yield from self._on_channel(
                        function, channel, shapes, targets, num_targets, self.priced[key], together
                    )

    def _together(self, function: str, shapes: Sequence[InstanceShape]) -> Sequence[int]:
        """Least numbers of equal instances that stand together, of those that the pool has room for."""
        if function != "prefill" or not self.pooling:
            return (1,)
        return counts_together(self.most_gpus // min(shape.devices for shape in shapes))

    def _on_channel(
        self,
        function: str,
        channel: Channel | None,
        shapes: Sequence[InstanceShape],
        targets: Sequence[Target],
        num_targets: int,
        priced: "PricedPoints",
        together: int,
    ) -> Iterator[Candidate]:
        points, timed, _, units = priced
        tally = self.tally if together == 1 else Tally()  # several together are the same points again
        judged = [
            self._judge(function, channel, target, points, i, timed[i], together, tally)
            for i, target in enumerate(targets)
        ]
        judged = self._joined(function, channel, shapes, points, judged, tally)
        if together > 1:
            pools = [shape.devices * together <= self.most_gpus and shape.pp == 1 for shape in shapes]
            room = np.array(pools, dtype=bool)[points.shape]
            judged = [replace(rates, good=rates.good & room) for rates in judged]
        kept = self._survivors(points, targets, judged)
        if self.judged is not None and together == 1:
            about = (function, self.pool_costs.index, self.model, shapes, points, units)
            self.judged.append(JudgedPoints(*about, targets[0], timed[0], judged[0], kept))
        dominated = sum(int(np.sum(rates.good)) - int(np.sum(rates.good[kept])) for rates in judged)
        tally.drop("another batch or chunk of the same shape is better", dominated)
        if together > 1:
            self.tally.evaluated += sum(int(np.sum(rates.good[kept])) for rates in judged)
        moved = [self._moved_s(function, channel, target, points) for target in targets]
        for row in kept.tolist():
            capacities: list[Capacity | None] = [None] * num_targets
            for i, target in enumerate(targets):
                capacities[target.index] = _capacity(timed[i], judged[i], row, moved[i][row], points.kv_bytes[i][row])
            best = int(np.argmax([rates.rate_per_s[row] * rates.good[row] for rates in judged]))
            shape, ffn = (shapes[int(points.shape[row])], None) if units is None else units.parts(row)
            kv = max(points.kv_bytes[i][row] for i, rates in enumerate(judged) if rates.good[row])
            yield Candidate(
                function=function,
                model=self.model,
                pool=self.pool_costs.index,
                shape=shape,
                channel=channel,
                max_batch=int(points.batch[row]),
                chunk_tokens=int(points.chunk[row]),
                draft_tokens=int(points.drafts[row]),
                capacities=tuple(capacities),
                weights_bytes=float(points.weight_bytes[row]),
                activations_bytes=float(points.activation_bytes[row]),
                workspace_bytes=self.pool_costs.costs.engine.workspace_bytes,
                basis=timed[best].step.shares(row),
                memory_share=self._memory_share(points.weight_bytes[row] + points.activation_bytes[row] + kv, ffn),
                ffn=ffn,
                together=together,
                routing=self.routing,
                queueing=self.options.queueing[0],
                elastic=self.options.elastic[0],
            )

    def _joined(
        self,
        function: str,
        channel: Channel | None,
        shapes: Sequence[InstanceShape],
        points: Points,
        judged: list[LimitedRates],
        tally: Tally,
    ) -> list[LimitedRates]:
        """Without the shapes that the channel's connector does not join with all others of it."""
        if channel is None or channel.way is None or function == ATTENTION:
            return judged
        joins = np.array([channel.way.takes(function, side_of(shape)) for shape in shapes], dtype=bool)[points.shape]
        if joins.all():
            return judged
        apart = sum(int(np.sum(rates.good & ~joins)) for rates in judged)
        tally.drop("no connector joins this shape with all others of its channel", apart)
        return [replace(rates, good=rates.good & joins) for rates in judged]

    def _memory_share(self, held_bytes: float, ffn: FfnPart | None) -> float:
        """How much of its memory the fullest device fills, of either side where they stand apart."""
        sides = [(held_bytes, self.pool_costs)]
        if ffn is not None:
            sides.append((ffn.weights_bytes + ffn.activations_bytes, ffn.pool_costs))
        return float(max((held + spot.costs.engine.workspace_bytes) / spot.memory_bytes for held, spot in sides))

    def _moved_s(self, function: str, channel: Channel | None, target: Target, points: Points) -> Floats:
        """How long the cache of a prompt is under way [N]."""
        if function != "prefill" or channel is None:
            return np.zeros(len(points))
        return self.paths[channel.target_pool].transfer_s(channel.moved_bytes(target), points.shards)

    def _price(
        self,
        function: str,
        drafts: Sequence[int],
        shapes: Sequence[InstanceShape],
        targets: Sequence[Target],
        copies: int,
        sides: Sides | None,
    ) -> "PricedPoints":
        if sides is not None:
            units = price_units(sides, self.options, targets, copies)
            return units.points, units.timed, units.tally, units
        tally = Tally()
        points = make_points(
            function,
            self.pool_costs,
            shapes,
            self.options,
            targets,
            tally,
            copies=copies,
            release=self.release,
            drafts=drafts,
        )
        timed = [time_points(function, self.pool_costs, target, points) for target in targets] if len(points) else []
        return points, timed, tally, None

    def _shapes(self, function: str) -> list[InstanceShape]:
        """The shapes that the engine can run in a role."""
        kept = []
        for shape in self.space.shapes:
            rule = handover_rule(function, shape, self.pool_costs.costs.arch, self.release)
            if rule is None:
                kept.append(shape)
            else:
                self.tally.drop(f"shape: {rule}", 1)
        return kept

    def _channels(self, function: str, drafted: bool) -> list[Channel | None]:
        """The hand-overs that a role takes part in: decode only those into its own pool."""
        if function == "colocated":
            return [None]
        own = self.pool_costs.index
        return [c for c in self.channels if c.drafted is drafted and (function == "prefill" or c.target_pool == own)]

    def _judge(
        self,
        function: str,
        channel: Channel | None,
        target: Target,
        points: Points,
        i: int,
        timed: StepTimes,
        together: int,
        tally: Tally,
    ) -> LimitedRates:
        fits, most_busy = points.fits[i], self.options.max_prefill_utilisation
        if target.margins.by_layout is not None:
            margin = self.pool_costs.margin(function, points.shards, target.margins.by_layout)
            timed = replace(timed, margin=margin)
        occupied = self.options.filled(target.clients)
        if channel is None:
            return judge_colocated(target, points, fits, timed, most_busy, occupied, tally)
        if function in ("decode", ATTENTION):
            return judge_decode(target.for_second_stage(channel.share), points, fits, timed, occupied, tally)
        moved = replace(target.for_first_stage(channel.share), transfer_bytes=channel.moved_bytes(target))
        path = self.paths[channel.target_pool]
        servers = shared_queues(self.pool_costs.costs.arch, points.shards.dp, points.shards.pp, together)
        return judge_prefill(moved, points, fits, timed, path, most_busy, tally, servers=servers, routing=self.routing)

    def _survivors(self, points: Points, targets: Sequence[Target], judged: Sequence[LimitedRates]) -> Indices:
        """For each shape its undominated good points; of equal ones the smallest batch and chunk."""
        sign = 1.0 if self.longer_stays else -1.0
        columns = [np.where(rates.good, rates.rate_per_s, 0.0) for rates in judged]
        columns += [
            np.where(rates.good, sign * rates.stay_s, -np.inf)
            for rates, target in zip(judged, targets, strict=True)
            if target.clients is not None
        ]
        good = np.logical_or.reduce([rates.good for rates in judged])
        if len(columns) == 1:
            return _best_of_each(points, columns[0], good)
        table = np.column_stack(columns)
        order = np.lexsort((points.drafts, points.chunk, points.batch, points.shape))
        order = order[good[order]]
        starts = np.flatnonzero(np.diff(points.shape[order], prepend=-1))
        kept = [
            rows[non_dominated(table[rows], maximise=(True,) * table.shape[1])]
            for rows in np.split(order, starts[1:])
            if len(rows)
        ]
        return np.sort(np.concatenate(kept)) if kept else np.zeros(0, dtype=np.intp)


def counts_together(most: int) -> list[int]:
    """Least numbers of instances that stand together: powers of two and halfway between them, up to `MOST_TOGETHER`.

    Waits of any number count as those of the largest of these that it reaches, so that none is counted too short; of
    more than the last they are nearly none.
    """
    powers = [1 << exponent for exponent in range(MOST_TOGETHER.bit_length())]
    halfway = [3 * power // 2 for power in powers[1:-1]]
    return [count for count in sorted([*powers, *halfway]) if count <= min(most, MOST_TOGETHER)]


def drafts_of(function: str, wanted: Sequence[int], drafter: Drafter | None) -> dict[bool, tuple[int, ...]]:
    """Drafts of a role, by whether the drafter has seen the prompts that come from elsewhere.

    A drafter that keeps a cache runs once over the prompt where that is prefilled, and hands its cache over.
    """
    if function == ATTENTION:
        return {False: (0,)}
    decodes = tuple(wanted) if function in ("colocated", "decode") else (0,)
    if function == "colocated" or drafter is None or not drafter.keeps_cache:
        return {False: decodes}
    without = {False: (0,)} if 0 in wanted else {}
    some = tuple(drafts for drafts in wanted if drafts)
    return without | ({True: (1,) if function == "prefill" else some} if some else {})


def _capacity(timed: StepTimes, judged: LimitedRates, row: int, moved_s: float, kv_bytes: float) -> Capacity:
    return Capacity(
        rate_per_s=float(judged.rate_per_s[row]) if judged.good[row] else 0.0,
        utilisation=float(judged.utilisation[row]),
        service_s=float(timed.service_s[row] + moved_s),
        queue_s=float(timed.queue_s[row]),
        stretch_s=float(timed.stretch_s[row]),
        prefill_steps=float(timed.prefill_steps[row]),
        tpot_s=float(timed.tpot_s[row]),
        stay_s=float(judged.stay_s[row]),
        kv_bytes=float(kv_bytes),
        bubbles=None if timed.bubbles is None else timed.bubbles.take(np.array([row])),
        holds=None if timed.holds is None else timed.holds.take(row),
        engines=None if timed.engines is None else timed.engines.take(np.array([row])),
        varied_s=0.0 if timed.varied_s is None else float(timed.varied_s[row]),
    )


def _best_of_each(points: Points, rate: Floats, good: "np.ndarray[tuple[int], np.dtype[np.bool_]]") -> Indices:
    """For each shape its good point of highest rate; of equal ones the smallest batch and chunk."""
    order = np.lexsort((points.drafts, points.chunk, points.batch, -rate))
    order = order[good[order]]
    _, first = np.unique(points.shape[order], return_index=True)
    return np.sort(order[first])
