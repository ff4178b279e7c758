"""What frameworks send the engines that score: samples as they are generated, or batches once training takes them up.

verl's reward loop, NeMo-RL's environments and slime's `generate_and_rm` score a sample when it is generated, as a part
of its rollout. AReaL's `PPOTrainer.train` has reference and teacher score the batch that it has waited for, one after
the other; OpenRLHF's `make_experience` has all models score it at the same time, beside the actor's log-probabilities.
Without `colocate_all` its critic has a placement group of its own, and `ppo_train` fits it while it fits the actor.
"""

from collections.abc import Iterator

from planner.emit.refusals import refuse
from planner.emit.rl.job import RlJob
from planner.engines.rl_launchers import RlLauncher
from planner.errors import PlannerError
from planner.kinds.rl.names import TAKES

PARTS = ("reference", "reward", "teacher")


def takes_otherwise(job: RlJob, launcher: RlLauncher) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of engines that the plan sends other than what a framework sends them."""
    batches = launcher.batches
    does = "whole batches, once training takes them up" if batches else "samples as they are generated"
    for part in PARTS:
        role = job.served(part)
        yield (
            role is not None and (role.limits.get(TAKES) == "batches") != batches,
            refuse(
                f"{launcher.title} sends the {part} {does}",
                f"roles.{part}",
                f"solve with `takes: {'batches' if batches else 'samples'}` for the {part} in `served`",
            ),
        )


def critic_shares(job: RlJob, framework: str, *, does: str = "") -> tuple[bool, PlannerError]:
    """Refusal of a critic that trains on GPUs of its own while the actor does; `does`: what a framework does."""
    role = job.role("critic")
    return (
        role is not None and job.beside("critic") is None,
        refuse(
            f"{framework} {does or 'trains the critic on the GPUs of the actor, in turn with it'}",
            "roles.critic",
            "solve with `critic_gpus: [actor]`, or use the target `openrlhf`",
        ),
    )


def critic_apart(job: RlJob, framework: str) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals for a framework whose critic has GPUs of its own, cut as the actor is, unless all GPUs are shared."""
    role, shares = job.role("critic"), job.beside("critic") is not None
    wanted = "actor" if job.colocated else "own"
    does = "shares all GPUs where it shares some" if job.colocated else "gives the critic GPUs of its own"
    hint = f"solve with `critic_gpus: [{wanted}]`"
    yield role is not None and shares != job.colocated, refuse(f"{framework} {does}", "roles.critic", hint)
    actor, critic = (job.shape, None if role is None else role.parallelism)
    cut = critic is not None and (critic.tp, critic.cp, critic.pp) != (actor.tp, actor.cp, actor.pp)
    hint = f"solve with `training_tp: [{actor.tp}]`, `training_cp: [{actor.cp}]` and `training_pp: [1]`"
    yield not shares and cut, refuse(f"{framework} cuts the critic as the actor", "roles.critic", hint)


def said_of_batches(job: RlJob, framework: str) -> tuple[str, ...]:
    """A comment for a framework that scores beside log-probabilities, where the plan does one after the other."""
    if not any(job.served(part) for part in PARTS):
        return ()
    return (
        f"{framework} scores beside the log-probabilities of the actor: no later than the plan, which does so first",
    )
