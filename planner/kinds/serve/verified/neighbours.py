"""Plans one step from a plan: another batch, chunk or router policy, or other numbers of its instances.

Steady state chooses these by formulas; simulation may prefer others. Batches and chunks are the points that the search
priced and that fit in memory, also those that it found worse or against the limits. Rates of varied types stay those
of the types that they vary: a plan is judged by what it keeps in simulation, and not by them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

import numpy as np

from planner.arrays import Indices
from planner.costs.operators.work import Shards
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.formulate import formulate, gpus_at_hand
from planner.kinds.serve.steady.points import Points
from planner.kinds.serve.steady.search import Outcome, ServeSetting
from planner.solvers.mix import MixObjective
from planner.solvers.stochastic.routed_queues import Routing

STRIDES = (1.25, 1.6, 2.5)  # of batches tried one after the other, as multiples and parts of that of the plan
FIXED_COUNTS = 2  # types of a mix, of whose instances some are exchanged for others

Direction: TypeAlias = tuple[Outcome, ...]
"""Plans ever further away on one axis; one that is no better ends it."""


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes on which a plan of a problem is varied."""

    setting: ServeSetting

    def directions(self, outcome: Outcome) -> Iterator[Direction]:
        """Along batches, then chunks, of every type, then numbers of instances and router policies."""
        rows = [row for row, count in enumerate(outcome.solution.counts) if count]
        if any(outcome.formulated.candidates[row].ffn is not None for row in rows):
            return
        for of in (self._batches, self._chunks):
            for row in rows:
                for candidates in of(outcome.formulated.candidates[row]):
                    yield tuple(self._with_type(outcome, row, candidate) for candidate in candidates)
        yield from self._splits(outcome, rows)
        if any(item.count > 1 for item in outcome.roles):
            yield (self._rerouted(outcome, rows),)

    def fewer(self, outcome: Outcome) -> Iterator[Outcome]:
        """Plans with one instance less of a type, of which they have several."""
        for row, count in enumerate(outcome.solution.counts):
            candidate = outcome.formulated.candidates[row]
            if count > 1 and candidate.ffn is None:
                yield self._with_counts(outcome, {row: count - 1})

    def at(self, candidate: Candidate, batch: int, chunk: int) -> Candidate | None:
        """The type with another batch and chunk; None where no point that fits in memory has them."""
        points, rows = self._alike(candidate)
        same = rows[(points.batch[rows] == batch) & (points.chunk[rows] == chunk)]
        return self._at_point(candidate, points, int(same[0])) if len(same) else None

    def _batches(self, candidate: Candidate) -> Iterator[list[Candidate]]:
        """The type with larger batches, then with smaller ones."""
        if candidate.function == "prefill":
            return
        points, rows = self._alike(candidate)
        rows = rows[points.chunk[rows] == candidate.chunk_tokens]
        for sign in (1.0, -1.0):
            beyond = rows[sign * (points.batch[rows] - candidate.max_batch) > 0.0]
            if len(beyond):
                wanted = (candidate.max_batch * stride**sign for stride in STRIDES)
                nearest = (int(beyond[np.argmin(np.abs(np.log(points.batch[beyond] / batch)))]) for batch in wanted)
                yield [self._at_point(candidate, points, row) for row in dict.fromkeys(nearest)]

    def _chunks(self, candidate: Candidate) -> Iterator[list[Candidate]]:
        """The type with larger chunks, then with smaller ones, and the largest batch up to its own that has room."""
        points, rows = self._alike(candidate)
        chunks = np.unique(points.chunk[rows])
        for further in (chunks[chunks > candidate.chunk_tokens], chunks[chunks < candidate.chunk_tokens][::-1]):
            varied = []
            for chunk in further:
                most = np.inf if candidate.function == "prefill" else candidate.max_batch
                room = rows[(points.chunk[rows] == chunk) & (points.batch[rows] <= most)]
                if len(room):
                    varied.append(self._at_point(candidate, points, int(room[np.argmax(points.batch[room])])))
            if varied:
                yield varied

    def _alike(self, candidate: Candidate) -> tuple[Points, Indices]:
        """The points that were priced of a type's role, and those of its shape and drafts that fit for its targets."""
        drafted = candidate.channel is not None and candidate.channel.drafted
        key = candidate.model, candidate.pool, f"{candidate.function}{' drafted' if drafted else ''}"
        points, shape = self.setting.priced[key][0], candidate.shape
        shards = points.shards
        same = points.drafts == candidate.draft_tokens
        for axis, degree in zip(fields(Shards), shape.all_degrees, strict=True):
            same = same & (getattr(shards, axis.name) == degree)
        return points, np.flatnonzero(same & np.logical_and.reduce(points.fits))

    def _at_point(self, candidate: Candidate, points: Points, row: int) -> Candidate:
        """The type with the batch, chunk and memory of a point of its shape."""
        capacities, of_model = list(candidate.capacities), 0
        for index, capacity in enumerate(capacities):
            if capacity is not None:
                capacities[index] = replace(capacity, kv_bytes=float(points.kv_bytes[of_model][row]))
                of_model += 1
        weights, activations = float(points.weight_bytes[row]), float(points.activation_bytes[row])
        held = weights + activations + max(float(kv[row]) for kv in points.kv_bytes)
        pool_costs = self.setting.costs_of_pool[candidate.model, candidate.pool]
        return replace(
            candidate,
            max_batch=int(points.batch[row]),
            chunk_tokens=int(points.chunk[row]),
            capacities=tuple(capacities),
            weights_bytes=weights,
            activations_bytes=activations,
            memory_share=(held + pool_costs.costs.engine.workspace_bytes) / pool_costs.memory_bytes,
        )

    def _splits(self, outcome: Outcome, rows: Sequence[int]) -> Iterator[Direction]:
        """More of the one of two types, and as many of the other as there is room for."""
        candidates, counts = outcome.formulated.candidates, outcome.solution.counts
        if len(rows) != FIXED_COUNTS or len(self.setting.resolved.pools) > 1:
            return
        gpus = outcome.solution.devices
        if outcome.formulated.problem.maximising:
            gpus = gpus_at_hand(self.setting.resolved.problem, self.setting.resolved.pools)
        for a, b in (rows, rows[::-1]):
            own, other = candidates[a].shape.devices, candidates[b].shape.devices
            further = []
            for count in range(counts[a] + 1, (gpus - other) // own + 1):
                further.append(self._with_counts(outcome, {a: count, b: (gpus - count * own) // other}))
            if further:
                yield tuple(further)

    def _rerouted(self, outcome: Outcome, rows: Sequence[int]) -> Outcome:
        """The plan with the other policy of its routers."""
        candidates = list(outcome.formulated.candidates)
        for row in rows:
            power = candidates[row].routing is Routing.POWER_OF_TWO
            candidates[row] = replace(candidates[row], routing=Routing.ROUND_ROBIN if power else Routing.POWER_OF_TWO)
        return self._of(outcome, candidates, outcome.solution.counts)

    def _with_type(self, outcome: Outcome, row: int, candidate: Candidate) -> Outcome:
        candidates = list(outcome.formulated.candidates)
        candidates[row] = candidate
        return self._of(outcome, candidates, outcome.solution.counts)

    def _with_counts(self, outcome: Outcome, instances: dict[int, int]) -> Outcome:
        """The plan with so many instances of some types."""
        candidates, counts = list(outcome.formulated.candidates), list(outcome.solution.counts)
        for row, count in instances.items():
            candidates[row] = replace(candidates[row], together=min(candidates[row].together, count))
            counts[row] = count
        return self._of(outcome, candidates, counts)

    def _of(self, outcome: Outcome, candidates: Sequence[Candidate], counts: Sequence[int]) -> Outcome:
        """The same loads on other types, with what their instances cost."""
        formulated = formulate(self.setting.resolved, self.setting.targets, candidates)
        rows = list(zip(formulated.problem.shapes, counts, strict=True))
        devices = sum(count * sum(slots.devices for slots in shape.slots) for shape, count in rows)
        price = sum(count * shape.price_per_hour for shape, count in rows)
        solution = replace(outcome.solution, counts=tuple(counts), devices=devices, price_per_hour=price)
        value = outcome.result.objective
        if not formulated.problem.maximising:
            value = float(devices) if formulated.problem.objective is MixObjective.DEVICES else price
        result = replace(outcome.result, solution=solution, objective=value, bound=None)
        return replace(outcome, formulated=formulated, searched=formulated.problem, result=result)
