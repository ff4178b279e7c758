"""What a plan that a target refuses is referred to: targets of engines that train it as it is planned."""

from planner.emit.training.job import LaunchJob
from planner.engines.training import TRAINING_ENGINES


def other_target(job: LaunchJob, *names: str) -> str:
    """The words ``use `--target NAME` `` of the first of these engines that trains the job; none where none does.

    That is, its task with its optimizer, precision and ZeRO stage, so that no remedy beside them asks for another.
    """
    decision, options, pp = job.decision, job.options, job.shape.pp
    for name in names:
        engine = TRAINING_ENGINES[name]
        trains = options.task in engine.tasks and options.optimizer in engine.optimizers
        shards = decision.zero_stage in engine.stages(pp, options.task)
        if trains and shards and decision.precision in engine.precisions:
            return f"use `--target {name}`"
    return ""


def or_other_target(job: LaunchJob, remedy: str, *names: str) -> str:
    """A remedy, and after it the target that needs none."""
    instead = other_target(job, *names)
    return f"{remedy}, or {instead}" if instead else remedy


def target_of_task(job: LaunchJob) -> str:
    """The remedy for a task that a target does not have; where no target takes the plan, to solve for one that does."""
    able = [name for name, engine in TRAINING_ENGINES.items() if job.options.task in engine.tasks]
    return other_target(job, "megatron-bridge", *able) or f"solve with `engine: {{name: {able[0]}}}`"
