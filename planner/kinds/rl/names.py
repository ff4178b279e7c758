"""Names of the parts of RL plans in words; two parts of a problem with the same name are the same."""

from math import isfinite
from typing import Literal

from planner.plan.schema import Role
from planner.rl.curves import GenerationOption, Learner, Service
from planner.rl.plan import GenerationGroup, RlMode, TrainingChoice
from planner.rl.rollouts.rollout import RolloutPolicy

LATE = "rollout-late"
"""The role of replicas that end a rollout."""
BETWEEN_TURNS = "between_turns"
"""The limit of a role that says where its weights lie while others are in turn: `host`, or on its devices."""
WEIGHTS = "weights"
"""The limit of a generating role that has its weights in a format of `rollout_weights`."""
PRECISION = "precision"
"""The limit of an actor that computes in another format than bf16."""
END_STAGES = ("first_stage_layers", "last_stage_layers")
"""Limits of a model that is trained in stages of unequal layers: those of the ends, between which all are equal."""
BATCH_SAMPLES = "batch_samples"
"""The limit of a role that has engines of its own to score with: the most samples of a batch."""
TAKES = "takes"
"""The limit of such a role that says what its engines are sent, where not samples as they are generated: `batches`."""
GPUS = "gpus"
"""The limit of a critic that trains on GPUs of its own: `own`."""
OFFLOADED = "-offloaded"
"""The end of the label of a training whose scoring models lie in host memory between their turns."""


def stands_apart(role: Role) -> bool:
    """Whether a role beside generation and the actor has GPUs of its own."""
    return BATCH_SAMPLES in role.limits or GPUS in role.limits


def mode_name(mode: RlMode) -> str:
    """Such as `disaggregated, asynchronous by 1`."""
    ahead = f"asynchronous by {mode.staleness}{', updated in flight' if mode.in_flight else ''}"
    known = {"sync": "synchronous", "stream_sync": "stream", "k_step_async": ahead, "one_step_async": "one step ahead"}
    kept = ", weights of engines on the host" if mode.keeps else ""
    return f"{mode.placement}, {known[mode.sync]}{kept}"


def replica_name(option: GenerationOption) -> str:
    """Such as `h800 tp2 pp1 ep1`, with what tells apart replicas of the same degrees."""
    return f"{option.pool} tp{option.tp} pp{option.pp} ep{option.ep} {option.label}".strip()


def group_name(group: GenerationGroup) -> str:
    """Such as `8 x tp2 h20`."""
    option = group.option
    degrees = [("tp", option.tp), ("pp", option.pp), ("ep", option.ep)]
    return f"{group.replicas} x {_degrees(degrees)} {option.pool} {option.label}".strip()


def training_label(cp: int, ep: int, recomputed: object, precision: object = "bf16") -> str:
    """What tells trainings of the same tp and pp apart, such as `cp1ep8-full-fp8_block`."""
    return f"cp{cp}ep{ep}-{recomputed}" + (f"-{precision}" if precision != "bf16" else "")


def service_name(service: Service) -> str:
    """Such as `2 x tp4 h800, batches of 32`, or `64 workers`."""
    if not service.gpus:
        return f"{service.servers} workers"
    handed = ", handed over by training" if service.whole else ""
    return f"{service.servers} x tp{service.gpus} {service.pool}, batches of {service.batch}{handed}"


def learner_name(learner: Learner) -> str:
    """Such as `4 x tp2 h800`, of a critic on GPUs of its own."""
    return choice_name(TrainingChoice(learner.option, learner.dp))


def choice_name(choice: TrainingChoice) -> str:
    """Such as `4 x tp2 pp4 h800`, and what else tells the option apart."""
    option = choice.option
    known = f"{choice.dp} x {_degrees([('tp', option.tp), ('pp', option.pp)])} {option.pool}"
    return f"{known} {option.label}" if option.label else known


def priority_of(policy: RolloutPolicy) -> Literal["fifo", "longest_first"]:
    """The order in which engines take samples."""
    return "longest_first" if policy.longest_first else "fifo"


def moves_of(threshold: float) -> str:
    """Such as `from 1.2 times on`."""
    return f"from {threshold:g} times on" if isfinite(threshold) else "never"


def _degrees(degrees: list[tuple[str, int]]) -> str:
    return " ".join(f"{name}{size}" for name, size in degrees if size > 1) or "tp1"
