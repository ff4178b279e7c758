"""Which few settings to change: the best one and, where that is not enough, a second; all simulated on equal streams.

A change of a role is another shape on the same GPUs, another batch, another chunk, or, where prefill and decode stand
apart, an instance more of the one for the GPUs of the other. The best single change comes first; a second is looked for
where the stated load is not kept yet. Settings that turn out to matter little go back to what they were.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from planner.errors import PlannerError
from planner.kinds.serve.deployed.bench import Bench
from planner.kinds.serve.deployed.instances import Instances, outcome_of_types, type_of, types_at_hand
from planner.kinds.serve.plan.place import Unplaceable
from planner.kinds.serve.steady.candidates import Candidate
from planner.kinds.serve.steady.search import Outcome
from planner.kinds.serve.verified.capacity import UP
from planner.kinds.serve.verified.trials import Variants
from planner.kinds.serve.verified.verifiable import Unverified

WORTHWHILE = 1.03  # times the load kept so far: what another change must bring
MOST_CHANGES = 2
MOST_SHAPES = 6  # of a role that are tried
BATCH_FACTORS = (0.25, 0.5, 2.0, 4.0)
CHUNKS = (512, 1024, 2048, 4096, 8192, 16384)
MOST_TIMES = 64.0  # the load, beyond which no more is asked


@dataclass(frozen=True, slots=True)
class Tried:
    """Instances with the load that they keep, as a share of the stated one; 0 where they keep none."""

    instances: tuple[Instances, ...]
    outcome: Outcome
    variants: Variants
    scale: float
    binding: frozenset[str] = frozenset()


@dataclass(slots=True)
class Changes:
    """Tries instances of one deployment under one load."""

    bench: Bench
    rate_per_s: float
    known: list[Candidate] = field(default_factory=list)
    simulated: int = 0

    def __post_init__(self) -> None:
        self.known = types_at_hand(self.bench.setting)

    def tried(self, instances: Sequence[Instances], needed: float = 0.0) -> Tried:
        """What these keep; where they do not keep `needed`, nothing below it is looked for and 0 is said.

        Raises PlannerError for instances that cannot run, Unplaceable for those that have no regular place.
        """
        return self.simulated_outcome(instances, self._outcome(instances), needed)

    def tried_at_load(self, instances: Sequence[Instances]) -> Tried:
        """Whether these keep the stated load: 1 or 0 of it."""
        outcome = self._outcome(instances)
        variants = self.bench.variants(outcome)
        self.simulated += 1
        load = self.bench.load(variants, most=1.0, needed=1.0)
        return Tried(tuple(instances), outcome, variants, 0.0 if load.refuted else 1.0, load.binding)

    def _outcome(self, instances: Sequence[Instances]) -> Outcome:
        types = [type_of(self.bench.setting, self.known, part) for part in instances]
        return outcome_of_types(self.bench.setting, types, [part.replicas for part in instances], self.rate_per_s)

    def simulated_outcome(self, instances: Sequence[Instances], outcome: Outcome, needed: float) -> Tried:
        """An outcome of these instances with the load that it keeps."""
        variants = self.bench.variants(outcome)
        self.simulated += 1
        load = self.bench.load(variants, needed=needed)
        if load.refuted:
            return Tried(tuple(instances), outcome, variants, 0.0, load.binding)
        while load.scale * 1.001 >= (needed or 1.0) * UP[-1] and load.scale < MOST_TIMES:
            needed = load.scale
            load = self.bench.load(variants, needed=needed)
        return Tried(tuple(instances), outcome, variants, load.scale, load.binding)

    def best(self, now: Tried) -> Tried:
        """The deployment with as few settings changed as keep the load; `now` where none keeps enough more."""
        best = now
        for step in range(MOST_CHANGES):
            if step and best.scale >= 1.0:
                break
            better = self._best_step(best)
            if better is None:
                return best
            best = self._reverted(now, better)
        return best

    def _best_step(self, start: Tried) -> Tried | None:
        best: Tried | None = None
        for instances in self._steps(start.instances):
            needed = max(start.scale * WORTHWHILE, best.scale * 1.005 if best else 0.0)
            try:
                tried = self.tried(instances, needed)
            except (PlannerError, Unplaceable, Unverified):
                continue
            if tried.scale > 0.0:
                best = tried
        return best

    def _reverted(self, now: Tried, better: Tried) -> Tried:
        """Without the settings that bring next to nothing."""
        for index, (before, after) in enumerate(zip(now.instances, better.instances, strict=True)):
            for name in ("max_batch", "chunk_tokens"):
                if getattr(before, name) == getattr(after, name) or before.shape != after.shape:
                    continue
                back = replace(after, **{name: getattr(before, name)})
                parts = (*better.instances[:index], back, *better.instances[index + 1 :])
                try:
                    tried = self.tried(parts, better.scale / WORTHWHILE)
                except (PlannerError, Unplaceable, Unverified):
                    continue
                if tried.scale > 0.0 and parts != now.instances:
                    better = tried
        return better

    def _steps(self, instances: tuple[Instances, ...]) -> Iterator[tuple[Instances, ...]]:
        for index, part in enumerate(instances):
            for other in self._others(part):
                yield (*instances[:index], other, *instances[index + 1 :])
        yield from _splits(instances)

    def _others(self, part: Instances) -> Iterator[Instances]:
        gpus = part.replicas * part.shape.devices
        alike = [each for each in self.known if each.function == part.function and each.together == 1]
        shapes = [
            each.shape
            for each in sorted(alike, key=lambda each: -sum(each.rates_per_s) / each.shape.devices)
            if each.shape != part.shape and gpus % each.shape.devices == 0
        ]
        for shape in list(dict.fromkeys(shapes))[:MOST_SHAPES]:
            yield replace(part, shape=shape, replicas=gpus // shape.devices)
        if part.function != "decode":
            for chunk in CHUNKS:
                if chunk != part.chunk_tokens:
                    yield replace(part, chunk_tokens=chunk)
        if part.function != "prefill" and part.max_batch:
            grid = self.bench.setting.options.max_batch or ()
            for factor in BATCH_FACTORS:
                batch = min(grid, key=lambda each: abs(math.log(each / (part.max_batch * factor))))
                if batch != part.max_batch:
                    yield replace(part, max_batch=batch)


def _splits(instances: tuple[Instances, ...]) -> Iterator[tuple[Instances, ...]]:
    """An instance more of one side for the GPUs of the other, as far as both are whole."""
    if len(instances) != 2:
        return
    for more, less in ((0, 1), (1, 0)):
        wins, gives = instances[more], instances[less]
        lost = math.ceil(wins.shape.devices / gives.shape.devices)
        gained = lost * gives.shape.devices // wins.shape.devices
        if gives.replicas > lost:
            changed = {more: replace(wins, replicas=wins.replicas + gained),
                       less: replace(gives, replicas=gives.replicas - lost)}  # fmt: skip
            yield changed[0], changed[1]
