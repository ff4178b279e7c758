"""Training plans for inputs of several lengths: recomputation by length, and the mean step."""

from collections.abc import Iterator

from planner.kinds.train.decision import RecomputeRow, RecomputeSet
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.figures import DAY_S, scaled
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.whole_run.recompute_table import WHOLE, Names, RecomputeTable, recompute_table
from planner.plan.schema import Envelope, Prediction

ONE_LENGTH = "a micro-batch holds inputs of one length, and its ranks share out its time as they do the mean's"


def with_lengths(envelope: Envelope, best: Evaluation) -> Envelope:
    """The plan with a row for each rank and length, and with the mean step in its days, where lengths vary."""
    options = best.choice.table.job.options
    if not options.lengths:
        return envelope
    table = recompute_table(best, [length.tokens for length in options.lengths])
    rows = [row.model_dump(mode="json", exclude_defaults=True) for row in _decided(table)]
    gpus = best.choice.num_gpus
    predicted = {prediction.metric: prediction for prediction in _predicted(table, options, gpus)}
    for prediction in envelope.predictions:
        if prediction.metric == "train_days":
            predicted["train_days"] = scaled(prediction, predicted["train_days"].value)
    kept = (prediction for prediction in envelope.predictions if prediction.metric not in predicted)
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "recompute_rows": rows},
            "predictions": (*kept, *predicted.values()),
            "assumptions": (*envelope.assumptions, ONE_LENGTH),
        }
    )


def _decided(table: RecomputeTable) -> Iterator[RecomputeRow]:
    """Rows as a plan holds them."""
    for row in table.rows:
        yield RecomputeRow(
            rank=row.rank,
            tokens=row.tokens,
            sets=tuple(_set(names, layers) for names, layers in row.layers_of_set.items()),
            recompute_s=row.recompute_s,
            memory_bytes=row.bytes,
        )


def _set(names: Names, layers: int) -> RecomputeSet:
    if names == (WHOLE,):
        return RecomputeSet(layers=layers, recompute="full")
    return RecomputeSet(layers=layers, recompute="selective" if names else "none", modules=names)  # type: ignore[arg-type]  # names of Module


def _predicted(table: RecomputeTable, options: TrainOptions, gpus: int) -> Iterator[Prediction]:
    """Figures over all lengths in their shares."""
    share_of = {length.tokens: length.share for length in options.lengths}
    shares = [share_of[tokens] for tokens in table.sizes]
    step_s = table.step_s(shares)
    tokens = options.global_batch * sum(length.tokens * length.share for length in options.lengths) / sum(shares)
    yield Prediction(metric="mean_step_time_s", value=step_s)
    yield Prediction(metric="mean_tokens_per_s", value=tokens / step_s)
    yield Prediction(metric="mean_tokens_per_s_per_gpu", value=tokens / step_s / gpus)
    yield Prediction(metric="recompute_rows_gain", value=table.gain(shares))
    if options.train_tokens is not None:
        yield Prediction(metric="train_days", value=options.train_tokens / tokens * step_s / DAY_S)
