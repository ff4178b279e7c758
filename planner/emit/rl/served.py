"""What frameworks send the engines that score: samples as they are generated, or batches once training takes them up.

verl's reward loop, NeMo-RL's environments and slime's `generate_and_rm` score a sample when it is generated, as a part
of its rollout. AReaL's `PPOTrainer.train` has reference and teacher score the batch that it has waited for, one after
the other; OpenRLHF's `make_experience` has all models score it at the same time, beside the actor's log-probabilities.
"""

from collections.abc import Iterator

from planner.emit.refusals import refuse
from planner.emit.rl.job import RlJob
from planner.errors import PlannerError
from planner.kinds.rl.names import TAKES

PARTS = ("reference", "reward", "teacher")


def takes_otherwise(job: RlJob, framework: str, *, batches: bool) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of engines that the plan sends other than what a framework sends them."""
    does = "whole batches, once training takes them up" if batches else "samples as they are generated"
    for part in PARTS:
        role = job.served(part)
        yield (
            role is not None and (role.limits.get(TAKES) == "batches") != batches,
            refuse(
                f"{framework} sends the {part} {does}",
                f"roles.{part}",
                f"solve with `takes: {'batches' if batches else 'samples'}` for the {part} in `served`",
            ),
        )


def said_of_batches(job: RlJob, framework: str) -> tuple[str, ...]:
    """A comment for a framework that scores beside log-probabilities, where the plan does one after the other."""
    if not any(job.served(part) for part in PARTS):
        return ()
    return (
        f"{framework} scores beside the log-probabilities of the actor: no later than the plan, which does so first",
    )
