"""What plans ask of a launcher of RL and it does otherwise: refusals, by what `planner.engines.rl_launchers` says."""

from collections.abc import Callable, Iterator
from functools import partial

from planner.emit.refusals import refuse
from planner.emit.rl.job import RlJob
from planner.engines.rl_launchers import RL_LAUNCHERS, RlLauncher
from planner.engines.serving.registry import SERVING_ENGINES
from planner.errors import PlannerError
from planner.kinds.rl.names import BETWEEN_TURNS


def _use_target(able: Callable[[RlLauncher], bool]) -> str:
    """The remedy of a target that is able to; all are named, so that remedies of several refusals hold together."""
    return "use the target " + " or ".join(f"`{each.name}`" for each in RL_LAUNCHERS.values() if able(each))


def _moves(part: str, engine: str, launcher: RlLauncher) -> bool:
    return launcher.moves_scorers and part in launcher.beside and engine in launcher.engines


def _serves(part: str, launcher: RlLauncher) -> bool:
    return part in launcher.served


def _cuts_apart(part: str, launcher: RlLauncher) -> bool:
    return part in launcher.cut_apart


def runs_otherwise(job: RlJob, launcher: RlLauncher) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of engines that a framework does not start, and of rollouts that go on otherwise than its own."""
    title, engines = launcher.title, " or ".join(SERVING_ENGINES[name].title for name in launcher.engines)
    hint = f"plan with `engine: {{name: {launcher.engines[0]}}}`"
    yield job.engine not in launcher.engines, refuse(f"{title} runs {engines}", "roles", hint)
    streams = job.decision.synchrony == "stream" and "stream" not in launcher.synchrony
    hint = f"plan with `synchrony: [{', '.join(launcher.synchrony)}]`"
    yield streams, refuse(f"{title} does not stream minibatches", "synchrony", hint)
    most = launcher.most_staleness
    far = most is not None and job.decision.staleness > most
    yield far, refuse(f"{title} runs at most {most} ahead", "staleness", f"plan with `max_staleness: {most}`")
    hint = f"{_use_target(lambda each: each.in_flight)}, or plan without `in_flight_updates`"
    ends = job.in_flight and not launcher.in_flight
    yield ends, refuse(f"{title} ends a rollout before it updates weights", "in_flight_updates", hint)


def off_the_gpus(job: RlJob, launcher: RlLauncher) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of roles that leave the devices between their turns, for a framework that keeps them there."""
    for role in job.decision.roles:
        yield (
            job.in_host_memory(role),
            refuse(
                f"{launcher.title} keeps `{role.name}` on the GPUs where training has its own",
                f"roles.{role.name}.limits.{BETWEEN_TURNS}",
                f"solve with `launcher: {launcher.name}`, or {_use_target(partial(_moves, role.function, job.engine))}",
            ),
        )


def elsewhere(job: RlJob, launcher: RlLauncher) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of scoring models where a framework does not run them: with engines of their own, on training GPUs."""
    served, beside = launcher.served, launcher.beside
    for part in ("reference", "reward", "teacher"):
        without = f"`served` for the {part}" if part in beside else f"the {part}"
        yield (
            job.served(part) is not None and part not in served,
            refuse(
                f"{launcher.title} gives the {part} no GPUs of its own",
                f"roles.{part}",
                f"solve without {without}, or {_use_target(partial(_serves, part))}",
            ),
        )
        yield (
            job.beside(part) is not None and part not in beside,
            refuse(
                f"{launcher.title} has no {part} on the training GPUs",
                f"roles.{part}",
                f"solve with `served: [{{part: {part}}}]`" if part in served else f"solve without the {part}",
            ),
        )


def cut_otherwise(job: RlJob, launcher: RlLauncher) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of models beside the actor in other degrees, where a framework starts them in its own."""
    shape = job.shape
    for part in ("critic", "reference", "reward", "teacher"):
        role = job.beside(part)
        if role is None or part in launcher.cut_apart:
            continue
        own = role.parallelism
        what = f"{launcher.title} cuts the {part} as the actor, tp{shape.tp} pp{shape.pp} cp{shape.cp}"
        target = _use_target(partial(_cuts_apart, part))
        hint = f"{target}, or solve with `training_tp`, `training_pp` and `training_cp` that cut both"
        yield (
            (own.tp, own.pp, own.cp) != (shape.tp, shape.pp, shape.cp),
            refuse(f"{what}, and not tp{own.tp} pp{own.pp} cp{own.cp}", f"roles.{role.name}", hint),
        )


def trains_otherwise(job: RlJob, framework: str) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of a critic that differs from the actor in what one flag of a framework says of both."""
    critic = job.beside("critic")
    again = critic is not None and job.recomputes(critic) != job.recomputes(job.actor)
    what = f"{framework} has one flag for what actor and critic compute again"
    yield again, refuse(what, "roles.critic.limits", "solve with `recompute: full`")
    ends = critic is not None and job.end_stages(critic) != job.end_stages(job.actor)
    what = f"{framework} has one flag for the layers that pipelines of actor and critic end with"
    yield ends, refuse(what, "roles.critic.limits", "solve with a `training_pp` that divides the layers of both")


def other_formats(job: RlJob, launcher: RlLauncher) -> Iterator[tuple[bool, PlannerError]]:
    """Refusals of formats, beside bf16, in which a framework does not train or generate."""
    for part, name, able, option in (
        ("train", job.precision, launcher.precisions, "training_precision"),
        ("generate", job.rollout_weights, launcher.rollout_weights, "rollout_weights"),
    ):
        hint = f"solve with `{option}: [{', '.join(able)}]`"
        yield name not in able, refuse(f"{launcher.title} does not {part} in {name}", "roles", hint)


def sleeps_otherwise(job: RlJob, launcher: RlLauncher) -> Iterator[tuple[bool, PlannerError]]:
    """Refusal of engines that are asked to sleep otherwise than those of a framework do."""
    on_host = job.engine in launcher.host_sleepers
    asked = "engine_sleep" in job.options.model_fields_set and job.decision.arrangement != "disaggregated"
    does = "keeps weights of engines that sleep in host memory" if on_host else "drops weights of engines that sleep"
    hint = f"solve with `engine_sleep: [{'host' if on_host else 'drop'}]`"
    yield asked and job.sleeps_on_host != on_host, refuse(f"{launcher.title} {does}", "turns", hint)
