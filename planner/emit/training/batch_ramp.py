"""Batch-size ramp-up as launchers take it: equal increments, each for equally many samples."""

from math import ceil

from planner.emit.refusals import refuse
from planner.emit.training.job import LaunchJob
from planner.engines.training import uneven_ramp


def steps(job: LaunchJob) -> int | None:
    """Optimizer steps of the whole run, those of smaller batches among them; None where its tokens are not given."""
    options = job.options
    if options.train_tokens is None:
        return None
    stages = [(stage.global_batch, stage.tokens) for stage in options.batch_ramp]
    left = options.train_tokens - sum(tokens for _, tokens in stages)
    whole = [*stages, (options.global_batch, left)]
    return sum(ceil(int(tokens) / (batch * options.sequence_tokens)) for batch, tokens in whole)


def samples(job: LaunchJob) -> int | None:
    """Sequences of the whole run; None where its tokens are not given."""
    options = job.options
    return None if options.train_tokens is None else ceil(int(options.train_tokens) / options.sequence_tokens)


def rampup(job: LaunchJob) -> tuple[int, int, int] | None:
    """First batch, increment and samples until the last batch is reached; None where the batch does not grow.

    Raises PlannerError for growth that Megatron cannot express: it has one schedule for all batches, and they grow
    evenly (`uneven_ramp`).
    """
    stages, options = job.decision.planned_batches, job.options
    if not stages:
        return None
    where, batches = "planned_batches", [*(stage.global_batch for stage in stages), options.global_batch]
    others = sorted({stage.schedule for stage in stages} - {job.decision.schedule})
    if others:
        raise refuse(
            f"batches run under `{others[0]}` and `{job.decision.schedule}`",
            where,
            f"write `search: {{schedule: {job.decision.schedule}}}`, or batches that it runs",
        )
    uneven = uneven_ramp(batches, [round(stage.tokens / options.sequence_tokens) for stage in stages])
    if uneven is not None:
        raise refuse(uneven[0], where, uneven[1])
    return batches[0], batches[1] - batches[0], round(sum(stage.tokens for stage in stages) / options.sequence_tokens)


def require_constant(job: LaunchJob, launcher: str) -> None:
    """Raises PlannerError where the batch grows, for a launcher that has one batch."""
    if job.decision.planned_batches:
        raise refuse(f"{launcher} has one batch for the whole run", "planned_batches", "use `--target megatron-lm`")
