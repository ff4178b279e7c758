"""The timeline of a mean iteration of an RL plan."""

from collections.abc import Iterator

from planner.documents.units import format_si
from planner.kinds.rl.names import LATE
from planner.kinds.rl.plan.solved import Solved
from planner.plan.schema import Phase
from planner.rl.plan import Halves

TRAIN = "train "


def phases(solved: Solved) -> Iterator[Phase]:
    """The phases of a mean iteration, seconds from its start.

    Generation and training of a disaggregated plan overlap: asynchronous training works on an earlier batch, streaming
    training starts on the first minibatch. Models on the same devices take turns, but for scoring that is fused with
    generation: it begins on the replicas that are set free. Phases of no time are left out.
    """
    evaluation, fused = solved.evaluation, solved.fused
    yield from _generating(solved)
    yield from _serving(solved)
    if solved.plan.training is None:
        return
    if solved.asynchronous:
        clock = evaluation.handed_s
    elif solved.plan.mode.sync == "stream_sync":
        clock = max(evaluation.iteration_s - evaluation.handover_s - evaluation.training_s, 0.0)
    else:
        clock = max(evaluation.generation_s, evaluation.scored_s) + evaluation.handed_s
    if fused is not None:
        yield from _in_turn(_scores(solved), fused.free_s, fused.scored_s - fused.free_s)
    yield from _handed_over(solved, clock - evaluation.handed_s)
    turns = _turns(solved) if fused is None else [turn for turn in _turns(solved) if turn not in _scores(solved)]
    if evaluation.halves is not None:
        trained = list(_beside_critic(turns, clock, evaluation.training_s, evaluation.halves))
    else:
        trained = list(_in_turn(turns, clock, evaluation.training_s))
    yield from trained if solved.fused_training is None else _together(trained)
    action = "take turns" if solved.takes_turns else "send weights to rollout"
    if evaluation.handover_s > 0:
        end = clock + evaluation.training_s
        yield Phase(name="synchronise", start_s=end, duration_s=evaluation.handover_s, actions=(action,))


def _generating(solved: Solved) -> Iterator[Phase]:
    names, late = solved.rollout_names, solved.late
    if late is None:
        yield Phase(name="generate", start_s=0.0, duration_s=solved.generated_s, roles=names)
        return
    change_s = solved.formulated.problem.late_change_s
    yield Phase(name="generate", start_s=0.0, duration_s=late.changed_s, roles=names)
    yield Phase(
        name="generate the rest",
        start_s=late.changed_s,
        duration_s=late.generated_s - late.changed_s,
        roles=(LATE,),
        actions=(f"cut weights anew in {format_si(change_s, 's')}, prefill contexts again",),
    )


def _serving(solved: Solved) -> Iterator[Phase]:
    """Engines score samples while others are generated: for as long as they work, until all is scored."""
    busy = {} if solved.served is None else solved.served.busy_s
    for service in solved.engines:
        if not service.whole:
            busy_s = busy[service.part]
            start_s = max(solved.evaluation.scored_s - busy_s, 0.0)
            yield Phase(name=f"score by {service.part}", start_s=start_s, duration_s=busy_s, roles=(service.part,))


def _handed_over(solved: Solved, clock: float) -> Iterator[Phase]:
    """Engines that training hands its batch, one part after the other, with the seconds of all in proportion."""
    busy_s = {} if solved.served is None else solved.served.busy_s
    parts = {service.part: busy_s[service.part] for service in solved.engines if service.whole}
    for part, weight in parts.items():
        seconds = solved.evaluation.handed_s * weight / sum(parts.values())
        yield Phase(name=f"score by {part}", start_s=clock, duration_s=seconds, roles=(part,))
        clock += seconds


Turn = tuple[str, str, float]
"""What is done, by which role, and the GPU seconds that a token takes."""


def _in_turn(turns: list[Turn], start_s: float, seconds: float) -> Iterator[Phase]:
    """Phases one after the other that share `seconds` by what their tokens take."""
    total, clock = sum(weight for _, _, weight in turns), start_s
    for name, role, weight in turns:
        duration = seconds * weight / total
        yield Phase(name=name, start_s=clock, duration_s=duration, roles=(role,))
        clock += duration


def _beside_critic(turns: list[Turn], start_s: float, seconds: float, halves: Halves) -> Iterator[Phase]:
    """What the actor's GPUs do, and values and updates of a critic on its own meanwhile; the first done waits."""
    updates_s = start_s + seconds - max(halves.update_s, halves.learned_s)
    yield from _in_turn([turn for turn in turns if not turn[0].startswith(TRAIN)], start_s, halves.forward_s)
    yield Phase(name="values", start_s=start_s, duration_s=halves.values_s, roles=("critic",))
    yield from _in_turn([turn for turn in turns if turn[0].startswith(TRAIN)], updates_s, halves.update_s)
    yield Phase(name=f"{TRAIN}critic", start_s=updates_s, duration_s=halves.learned_s, roles=("critic",))


def _together(turns: list[Phase]) -> Iterator[Phase]:
    """The same, but for trainings, all of which take what they took in turn together."""
    training = [phase for phase in turns if phase.name.startswith(TRAIN)]
    start_s = min(phase.start_s for phase in training)
    seconds = sum(phase.duration_s or 0.0 for phase in training)
    for phase in turns:
        yield phase if phase not in training else phase.model_copy(update={"start_s": start_s, "duration_s": seconds})


def _scores(solved: Solved) -> list[Turn]:
    return [(f"score by {helper.part}", helper.part, helper.forward_gpu_s) for helper in solved.trainer.helpers]


def _turns(solved: Solved) -> list[Turn]:
    """Training split by what each model's part of a token costs."""
    train, forward = solved.trainer.actor_gpu_s
    learners = [helper for helper in solved.trainer.helpers if helper.train_gpu_s > 0]
    return [
        ("log-probabilities", "actor", forward),
        *_scores(solved),
        *((f"{TRAIN}{helper.part}", helper.part, helper.train_gpu_s) for helper in learners),
        (f"{TRAIN}actor", "actor", train),
    ]
