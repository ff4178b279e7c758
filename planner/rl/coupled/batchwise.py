"""Generators that end a batch before they begin the next, and a trainer, simulated together."""

from collections import deque
from collections.abc import Sequence

from planner.rl.coupled.iterations import Coupling, Iterations, TrainSeconds, Work
from planner.rl.coupled.replica import Replica
from planner.rl.curves import DecodeCurve

Groups = Sequence[tuple[DecodeCurve, int]]


def simulate_batches(
    groups: Groups, batches: Sequence[Work], count: int, train_s: TrainSeconds, coupling: Coupling
) -> Iterations:
    """`count` iterations over `batches` in turn, on groups of (curve, replicas).

    Where generators stop for weights, they do between two batches, once for all versions sent since they last did;
    those that wait for a version anyway take it while it is sent.
    """
    done_s = [rollout(groups, work) for work in batches]
    rollout_s = [max(times) for times in done_s]
    training_s = [
        train_s(batch, sorted(range(len(times)), key=times.__getitem__)) for batch, times in enumerate(done_s)
    ]
    walk = _in_lockstep if coupling.lockstep else _ahead
    turns = [place % len(batches) for place in range(count)]
    return walk([rollout_s[turn] for turn in turns], [training_s[turn] for turn in turns], coupling)


def _in_lockstep(rollout_s: Sequence[float], training_s: Sequence[float], coupling: Coupling) -> Iterations:
    """A batch is generated while the one before is trained; then weights are sent, and both sides wait."""
    seen, now = Iterations([rollout_s[0]], []), rollout_s[0]
    for following_s, batch_s in zip([*rollout_s[1:], 0.0], training_s, strict=True):
        seen.generated_s.append(now + following_s)
        now = max(now + following_s, now + batch_s + coupling.delay_s) + coupling.stop_s
        seen.trained_s.append(now)
    return seen


def _ahead(rollout_s: Sequence[float], training_s: Sequence[float], coupling: Coupling) -> Iterations:
    seen, generators_s, trainer_s, taken = Iterations(), 0.0, 0.0, 0
    for batch, (generate_s, batch_s) in enumerate(zip(rollout_s, training_s, strict=True)):
        sent = sum(at <= generators_s for at in seen.trained_s)
        if coupling.stops and sent > taken:
            generators_s, taken = generators_s + coupling.stop_s, sent
        needed = batch - coupling.staleness
        arrived_s = seen.trained_s[needed - 1] + coupling.delay_s if needed > 0 else 0.0
        if arrived_s > generators_s:
            generators_s, taken = arrived_s, max(taken, needed)
        generators_s += generate_s
        trainer_s = max(trainer_s, generators_s) + batch_s + coupling.stop_s
        seen.generated_s.append(generators_s)
        seen.trained_s.append(trainer_s)
    return seen


def rollout(groups: Groups, work: Work) -> list[float]:
    """When each sample is done, from the start of the batch; the replicas of a group share a line."""
    done_s = [0.0] * len(work.lengths)
    for (curve, replicas), queue in zip(groups, work.queues, strict=True):
        line = deque(queue)
        group = [Replica(curve, line, work.lengths) for _ in range(replicas)]
        _deal(group, line)
        while busy := [replica for replica in group if replica.running]:
            first = min(busy, key=lambda replica: replica.ends_s)
            now = first.ends_s
            for sample in first.finish():
                done_s[sample] = now
            first.take_from_line()
    return done_s


def _deal(group: Sequence[Replica], line: deque[int]) -> None:
    """One sample at a time, each to the next replica that admits it, until none does."""
    refused = turn = 0
    while line and refused < len(group):
        replica = group[turn % len(group)]
        turn, refused = turn + 1, refused + 1
        if replica.fits(line[0]):
            replica.take(line.popleft())
            refused = 0
