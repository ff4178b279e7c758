"""Passes of towers and of the language model on the ranks of a training plan's pipeline, in an order of their own.

Source: DIP, formerly PipeWeaver (arXiv:2504.14145), by `solvers.modalities.passes`. Towers stand on all ranks, as
evenly as their blocks allow, patches on the first and projectors on the last; the language model is laid out without
them. The inputs of a micro-batch go through the towers in as many parts as keep 95 % of their speed. A schedule is
decided for the replica with most work of those that micro-batches are dealt to in turn, within the memory that states
leave.
Schedules of a plan that is checked are kept, and their figures derived again; a proven bound is taken over.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

import numpy as np

from planner.arrays import Floats
from planner.costs.operators.towers import TowerLoad
from planner.costs.training.modalities.networks import PATCHES, PROJECTOR, NetworkCost, tower_cost
from planner.errors import PlannerError
from planner.kinds.train.evaluation.choice_layouts import lay_out, work_of
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.evaluation.stages import stage_costs
from planner.kinds.train.job import TrainJob
from planner.kinds.train.samples import Sample, inputs_of, tower_load
from planner.kinds.train.space.tables import CostTable
from planner.kinds.train.unlike import ModalitySchedule, ScheduledMicroBatch, ScheduledPass
from planner.kinds.train.whole_run.sample_order import Made, micro_batches, order_problem
from planner.models.architecture import Encoder
from planner.plan.schema import Envelope, Prediction
from planner.solvers.modalities.passes import Orders, PassProblem, best_schedule, schedule_s, work_bound_s
from planner.solvers.modalities.sample_orders import dealt_orders, longest_span_s
from planner.solvers.modalities.segments import Key, MicroBatch, PartTimes, pass_problem
from planner.solvers.result import Status

SCHEDULED = (
    "batches have samples in the shares of the problem, and the replica with most work sets the step; towers stand on"
    " all ranks of the pipeline"
)
EFFICIENT, MOST_PARTS = 0.95, 8  # of the speed of all inputs at once, and of the parts of a micro-batch
STARTS = 2


def with_schedule(envelope: Envelope, best: Evaluation, given: ModalitySchedule | None = None) -> Envelope:
    """The plan with the order of its passes, where the problem asks for one."""
    if not best.choice.table.job.options.schedule_by_modality:
        return envelope
    made = decided(Spread(best, None if given is None else given.layers_of_rank), given)
    step = Prediction(metric="modality_schedule_step_time_s", value=best.with_span_s(made.span_s))
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "modality_schedule": made.model_dump(mode="json")},
            "predictions": (*envelope.predictions, step),
            "assumptions": (*envelope.assumptions, SCHEDULED),
        }
    )


@dataclass(frozen=True)
class Spread:
    """A plan with its towers on all ranks of its pipeline."""

    best: Evaluation
    given: tuple[int, ...] | None = None  # layers of each rank

    @property
    def job(self) -> TrainJob:
        return self.best.choice.table.job

    @cached_property
    def language(self) -> Evaluation:
        """The language model alone on the same ranks; raises PlannerError where it does not fit."""
        choice = self.best.choice
        alone = replace(self.job, networks=replace(self.job.networks, apart=True))
        table = CostTable(alone, choice.table.shape)
        own = replace(choice, table=table)
        counts = self.given or lay_out(own)
        if counts is None or len(counts) != choice.pp or sum(counts) != self.job.arch.num_layers:
            raise PlannerError(
                "`layers_of_rank` of modality_schedule is no layout of the language model on these ranks",
                where="decision.modality_schedule.layers_of_rank",
                hint="solve the problem again",
            )
        return evaluate(own, counts)

    @cached_property
    def held_R(self) -> Floats:
        """Bytes of a micro-batch of the language model on each rank."""
        return stage_costs(self.language.choice, self.language.counts_S).activations_S

    @cached_property
    def room_R(self) -> Floats:
        """Bytes of each rank that states and what is at work leave."""
        alone, pp = self.language, self.best.choice.pp
        work = work_of(alone.choice)
        left_R: Floats = alone.capacity_R - alone.memory.state_R - alone.memory.workspace_R
        for (tower, _), cost in zip(self.job.networks.towers, self.best.choice.table.towers, strict=True):
            states = cost.trained_elements * alone.choice.sharing.state_2[0] + cost.frozen_bytes
            left_R = left_R - states * _blocks_of_rank(tower, pp) / tower.num_layers
            left_R = left_R - max(0.0, cost.work_bytes - work.layer_bytes)
        return left_R

    @cached_property
    def replica(self) -> tuple[Made, ...]:
        """Micro-batches of the replica with most work, in turn."""
        made_N, dp = micro_batches(self.best), self.best.choice.dp
        rows = [made_N[first::dp] for first in range(dp)]
        return max(rows, key=lambda row: sum(_work_s(self.batch(made)) for made in row))

    @cached_property
    def colocated_s(self) -> float:
        """Of 1F1B with the towers on the first rank, micro-batches dealt in turn."""
        problem = order_problem(self.best, micro_batches(self.best))
        return longest_span_s(problem, dealt_orders(problem))

    @cached_property
    def _known(self) -> dict[Made, MicroBatch]:
        return {}

    def batch(self, made: Made) -> MicroBatch:
        """The parts of a micro-batch of these samples."""
        if made not in self._known:
            self._known[made] = MicroBatch(self._tower_parts(made), (self._language_part(),))
        return self._known[made]

    def _language_part(self) -> PartTimes:
        pass_R3 = self.language.pass_R3
        return PartTimes(_row(pass_R3[:, 0]), _row(pass_R3[:, 1:].sum(axis=1)), _row(self.held_R))

    def _tower_parts(self, made: Made) -> tuple[PartTimes, ...]:
        """As many as keep the towers' speed; none where the samples have no inputs for them."""
        samples = tuple(self.job.options.samples[kind].model_copy(update={"share": 1.0}) for kind in made)
        pieces = sum(
            number for tower, _ in self.job.networks.towers for s in samples for _, number in inputs_of(tower, s)
        )
        if not pieces:
            return ()
        whole_s = _seconds(self._costs(samples, 1))
        fast = takewhile(
            lambda parts: parts * _seconds(self._costs(samples, parts)) * EFFICIENT <= whole_s,
            range(1, min(pieces, MOST_PARTS) + 1),
        )
        parts = max(fast, default=1)
        return (self._part(self._costs(samples, parts)),) * parts

    def _costs(self, samples: tuple[Sample, ...], parts: int) -> list[tuple[Encoder, NetworkCost]]:
        """Each tower on one of so many parts of the inputs of these samples."""
        table, job = self.best.choice.table, self.job
        shard, rows = replace(table.dense_shard, sequences=1), []
        for tower, _ in job.networks.towers:
            mean = tower_load(tower, samples)
            load = TowerLoad(mean.tokens * len(samples) / parts, mean.attended)
            if load.tokens:
                rows.append((tower, tower_cost(job.machine, tower, shard, load, job.rates, job.networks.learns)))
        return rows

    def _part(self, costs: Sequence[tuple[Encoder, NetworkCost]]) -> PartTimes:
        """A part on every rank."""
        pp = self.best.choice.pp
        forward_R, backward_R, held_R = np.zeros(pp), np.zeros(pp), np.zeros(pp)
        for tower, cost in costs:
            share_R = _blocks_of_rank(tower, pp) / tower.num_layers
            for name, forward_s, input_s, weight_s in cost.seconds_of:
                on_R = {PATCHES: np.eye(pp)[0], PROJECTOR: np.eye(pp)[-1]}.get(name, share_R)
                forward_R += on_R * forward_s
                backward_R += on_R * (input_s + weight_s)
            held_R += share_R * cost.in_flight_bytes
        return PartTimes(_row(forward_R), _row(backward_R), _row(held_R))


def _row(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _seconds(costs: Iterable[tuple[Encoder, NetworkCost]]) -> float:
    return sum(sum(cost.pass_s) for _, cost in costs)


def _work_s(batch: MicroBatch) -> float:
    return sum(sum(part.forward_s) + sum(part.backward_s) for own in batch.segments for part in own)


def _blocks_of_rank(tower: Encoder, pp: int) -> Floats:
    """Blocks of a tower on each rank, as even as they can be."""
    each, over = divmod(tower.num_layers, pp)
    return np.array([each + (rank < over) for rank in range(pp)], float)


def decided(spread: Spread, given: ModalitySchedule | None) -> ModalitySchedule:
    """The schedule: that given, or the best that is come to."""
    problem, keys = _problem(spread)
    in_turn_s = schedule_s(problem, problem.orders)
    assert in_turn_s is not None
    if given is not None:
        orders, least_s, proven = _judged(keys, given), work_bound_s(problem), given.proven
        least_s = max(least_s, given.bound_s) if proven else least_s
    else:
        result = best_schedule(problem, exact=False, starts=STARTS)
        assert result.solution is not None
        assert result.bound is not None
        orders, least_s, proven = result.solution, result.bound, result.status is Status.OPTIMAL
    span_s = schedule_s(problem, orders)
    if span_s is None:
        raise _unlike("the passes wait for each other, or hold more than a rank has room for")
    return ModalitySchedule(
        layers_of_rank=spread.language.counts_S,
        micro_batches=tuple(
            ScheduledMicroBatch(samples=made, parts=len(spread.batch(made).tower)) for made in spread.replica
        ),
        passes=tuple(tuple(_stated(keys[at]) for at in order) for order in orders),
        span_s=span_s,
        bound_s=min(least_s, span_s),
        in_turn_s=in_turn_s,
        colocated_s=spread.colocated_s,
        activation_bytes=max(_peak_bytes(problem, order) for order in orders),
        room_bytes=float(spread.room_R.min()),
        proven=proven,
    )


def _problem(spread: Spread) -> tuple[PassProblem, list[Key]]:
    try:
        return pass_problem([spread.batch(made) for made in spread.replica], _row(np.maximum(spread.room_R, 0.0)))
    except PlannerError as error:
        where = spread.job.resolved.where(("options", "schedule_by_modality"))
        raise PlannerError(error.what, where=where, hint="write `search: {recompute: full}`, or more `tp`") from error


def _peak_bytes(problem: PassProblem, order: Sequence[int]) -> float:
    """That a rank holds at its fullest."""
    given_back = {each.partner: each.held_bytes for each in problem.passes if each.partner is not None}
    held = most = 0.0
    for at in order:
        held += problem.passes[at].held_bytes
        most = max(most, held)
        held -= given_back.get(at, 0.0)
    return most


def _stated(key: Key) -> ScheduledPass:
    part = None if key.segment else key.part
    return ScheduledPass(micro_batch=key.micro_batch, part=part, backward=bool(key.backward))


def _judged(keys: list[Key], given: ModalitySchedule) -> Orders:
    """The orders of a plan; raises PlannerError where they do not have every pass of the step once."""
    at_of = {(key.rank, _stated(key)): at for at, key in enumerate(keys)}
    stated = [(rank, each) for rank, row in enumerate(given.passes) for each in row]
    if sorted(map(str, stated)) != sorted(map(str, at_of)):
        raise _unlike("the schedule does not have every pass of the step once")
    return tuple(tuple(at_of[rank, each] for each in row) for rank, row in enumerate(given.passes))


def _unlike(what: str) -> PlannerError:
    return PlannerError(
        what, where="decision.modality_schedule", hint="take over what the plan said, or solve it again"
    )
