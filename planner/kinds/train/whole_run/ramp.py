"""Batch-size ramp-up: one layout for all of its stages, the schedule of each, and their days.

Layers, degrees and recomputation stay as they are made for the last batch. A smaller one has fewer micro-batches, which
hold no more at once; it runs under the fastest schedule of the same stages that suits their number.
"""

from collections.abc import Iterator
from dataclasses import replace

from planner.kinds.train.decision import PlannedBatch
from planner.kinds.train.evaluation.evaluate import evaluate
from planner.kinds.train.evaluation.evaluation import Evaluation, fits
from planner.kinds.train.evaluation.mixes import LayerwiseSpace, evaluate_mix
from planner.kinds.train.figures import DAY_S, scaled
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.space.space import same_stages
from planner.kinds.train.space.tables import CostTable
from planner.plan.schema import Envelope, Prediction


def with_ramp(envelope: Envelope, best: Evaluation) -> Envelope:
    """The plan with every stage of its batch, and with their days, where the problem lets it grow."""
    options = best.choice.table.job.options
    if not options.batch_ramp:
        return envelope
    stages = tuple(planned_batches(best))
    made = [stage.model_dump(mode="json") for stage in stages]
    days = _longer(envelope.predictions, options, stages, best.step_s)
    update = {"decision": {**envelope.decision, "planned_batches": made}, "predictions": tuple(days)}
    return envelope.model_copy(update=update)


def planned_batches(best: Evaluation) -> Iterator[PlannedBatch]:
    """Every stage before the last, in order."""
    for stage in best.choice.table.job.options.batch_ramp:
        evaluation = at_batch(best, stage.global_batch)
        yield PlannedBatch(
            global_batch=stage.global_batch,
            tokens=stage.tokens,
            num_micro_batches=evaluation.choice.num_micro_batches,
            schedule=evaluation.choice.schedule,
            step_time_s=evaluation.step_s,
        )


def at_batch(best: Evaluation, global_batch: int) -> Evaluation:
    """The plan with a smaller global batch, under the fastest schedule of its stages that suits it and fits."""
    choice = best.choice
    options = choice.table.job.options.model_copy(update={"global_batch": global_batch})
    job = replace(choice.table.job, options=options)
    if best.strategies:
        shape = choice.table.shape
        sequences = choice.dp * shape.micro_batch
        space = LayerwiseSpace(job, choice.pp, shape.cp, shape.context, choice.num_gpus // choice.pp, sequences)
        return evaluate_mix(space, best.counts_S, best.strategies)
    smaller = replace(choice, table=CostTable(job, choice.table.shape))
    able = same_stages(job, choice.schedule, choice.pp, choice.vpp, smaller.num_micro_batches)
    evaluations = [evaluate(replace(smaller, schedule=schedule), best.counts_S) for schedule in able]
    return min((evaluation for evaluation in evaluations if fits(evaluation)), key=lambda evaluation: evaluation.step_s)


def _longer(
    predictions: tuple[Prediction, ...], options: TrainOptions, stages: tuple[PlannedBatch, ...], step_s: float
) -> Iterator[Prediction]:
    """Predictions with the days of all batches in place of those of the last."""
    for prediction in predictions:
        whole = prediction.metric == "train_days"
        yield scaled(prediction, _days(options, stages, step_s)) if whole else prediction
    yield Prediction(metric="ramp_days", value=_ramp_days(options, stages))


def _ramp_days(options: TrainOptions, stages: tuple[PlannedBatch, ...]) -> float:
    """Until the last batch is reached."""
    steps = ((stage.tokens / (stage.global_batch * options.sequence_tokens), stage.step_time_s) for stage in stages)
    return sum(number * step_s for number, step_s in steps) / DAY_S


def _days(options: TrainOptions, stages: tuple[PlannedBatch, ...], step_s: float) -> float:
    """Of the whole run."""
    left = (options.train_tokens or 0.0) - sum(stage.tokens for stage in stages)
    return _ramp_days(options, stages) + left / (options.global_batch * options.sequence_tokens) * step_s / DAY_S
