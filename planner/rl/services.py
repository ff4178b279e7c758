"""Servers beside generation and training that every sample passes once it is generated: models, rules, sandboxes.

A reference, a teacher or a reward model may have engines on GPUs of its own; a rule or a sandbox has workers on CPUs.
Samples wait in one queue for each of them, are taken in batches, and can be trained on when all have scored them, while
others are still generated (slime's `generate_and_rm`, verl's reward loop, NeMo-RL's environments). Services that take
batches whole get them from the trainer, which waits for one after the other (AReaL's `PPOTrainer.train`). A critic that
trains on GPUs of its own stands among them. Array suffixes: N samples of a batch.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

import numpy as np

from planner.arrays import Floats, Ints
from planner.rl.compiled.batches import run_batches
from planner.rl.curves import Learner, Service, TrainingOption
from planner.rl.trajectories import SampleBatch

Services = tuple[Service | Learner, ...]
"""One for each part that has GPUs or workers of its own, in the order of the problem."""


def scorers(services: Services) -> tuple[Service, ...]:
    """Those that score."""
    return tuple(service for service in services if isinstance(service, Service))


def as_generated(services: Services) -> tuple[Service, ...]:
    """Those that are sent samples as they are generated."""
    return tuple(service for service in scorers(services) if not service.whole)


def handed_over(services: Services) -> tuple[Service, ...]:
    """Those that take batches whole."""
    return tuple(service for service in scorers(services) if service.whole)


def learner_of(services: Services) -> Learner | None:
    """The critic on GPUs of its own; None where it trains on the actor's, or there is none."""
    return next((part for part in services if isinstance(part, Learner)), None)


def handed_s(services: Services, tokens_N: Ints) -> float:
    """Seconds for which training waits for those that take a batch whole, of these samples in their order."""
    none_N = np.zeros(len(tokens_N))
    return sum(float(passed_s(service, none_N, tokens_N).max()) for service in handed_over(services))


def handed_bound_s(services: Services, tokens_N: Ints, needed: int, batches: int = 1) -> float:
    """The same for any `needed` samples of a batch, at least, or on average where `batches` take all that they need
    from the same samples."""
    tokens = float(np.sort(tokens_N)[: needed * batches].sum()) / batches
    return sum(_work_s(service, needed, tokens) for service in handed_over(services))


def scored_s(services: Services, generated_s_N: Floats, tokens_N: Ints) -> Floats:
    """When every sample is scored by all services that it is sent to as it is generated [N]."""
    ready_s_N = generated_s_N
    for service in as_generated(services):
        ready_s_N = np.maximum(ready_s_N, passed_s(service, generated_s_N, tokens_N))
    return ready_s_N


def passed_s(service: Service, generated_s_N: Floats, tokens_N: Ints) -> Floats:
    """When the service is done with every sample [N].

    Jobs that share it send it samples that are as long at the same times, and those of this job wait behind the others.
    """
    order, jobs = np.argsort(generated_s_N, kind="stable"), service.shared_by
    done_s_Q = run_batches(
        np.repeat(generated_s_N[order].astype(float), jobs),
        np.repeat(tokens_N[order].astype(np.int64), jobs),
        service.servers,
        service.batch,
        service.step_s,
        service.token_s,
    )
    passed_s_N = np.empty(len(order))
    passed_s_N[order] = done_s_Q[jobs - 1 :: jobs]
    return passed_s_N


def busy_s(services: Services, tokens_N: Ints) -> float:
    """Seconds of the busiest servers for samples sent as they are generated, at least: all their batches are full."""
    return max((service_s(service, tokens_N) for service in as_generated(services)), default=0.0)


def flowing_busy_s(services: Services, batches: Sequence[SampleBatch]) -> float:
    """The same of a mean iteration where samples flow, whose batches of servers hold samples of several iterations."""
    return max((flowing_service_s(service, batches) for service in as_generated(services)), default=0.0)


def flowing_service_s(service: Service, batches: Sequence[SampleBatch]) -> float:
    """Seconds of the servers of one part for a mean batch of samples that flow, at least."""
    steps = sum(batch.size for batch in batches) / service.batch
    tokens = sum(float(batch.tokens_N.sum()) for batch in batches)
    jobs = service.shared_by / service.servers / len(batches)
    return jobs * (steps * service.step_s + tokens * service.token_s)


def service_s(service: Service, tokens_N: Ints) -> float:
    """Seconds of the servers of one part for these samples, at least."""
    return _work_s(service, len(tokens_N), float(tokens_N.sum()))


def _work_s(service: Service, samples: int, tokens: float) -> float:
    """The same for so many samples of so many tokens, in batches that are full but for the last."""
    jobs = service.shared_by
    batches = -(-samples * jobs // service.batch)
    return (batches * service.step_s + jobs * tokens * service.token_s) / service.servers


def bound_s(services: Services, batch: SampleBatch, needed: int, generated_s: Floats) -> Floats:
    """`needed` samples are scored no sooner than this, if as many are generated no sooner than `generated_s`.

    The last of them takes a batch of its own, of the shortest sample; and servers are busy with the shortest ones.
    """
    sent = as_generated(services)
    if not sent or needed <= 0:
        return generated_s
    shortest = np.sort(batch.tokens_N)[:needed]
    alone_s = max(service.step_s + service.token_s * float(shortest[0]) for service in sent)
    return np.asarray(np.maximum(generated_s + alone_s, busy_s(services, shortest)))


def carried_bound_s(services: Services, batches: Sequence[SampleBatch], needed: int) -> float:
    """No mean iteration is shorter whose rollouts carry samples over: all together train on the shortest of them."""
    shortest = np.sort(np.concatenate([batch.tokens_N for batch in batches]))[: needed * len(batches)]
    return busy_s(services, shortest) / len(batches)


def apart(services: Iterable[Service | Learner]) -> str:
    """The parts with GPUs of their own, as `TrainingOption.apart` names them."""
    return " ".join(sorted(service.part for service in services if service.gpus))


def service_sets(services: Services, training: Sequence[TrainingOption]) -> tuple[Services, ...]:
    """Every choice of one service a part; parts with GPUs may be left out where some training has them beside it."""
    known = {option.apart for option in training} or {""}
    parts = list(dict.fromkeys(service.part for service in services))
    choices = [[service for service in services if service.part == part] for part in parts]
    optional = [[*choice, None] if choice[0].gpus else choice for choice in choices]
    sets = (tuple(service for service in chosen if service is not None) for chosen in product(*optional))
    return tuple(chosen for chosen in sets if apart(chosen) in known)


def gpus_of_services(services: Services) -> dict[str, int]:
    """GPUs that services take, by pool."""
    taken: dict[str, int] = {}
    for service in services:
        if service.gpus:
            taken[service.pool] = taken.get(service.pool, 0) + service.gpus * service.servers
    return taken


def service_roles(services: Services) -> Iterator[tuple[str, int, int]]:
    """Pool, GPUs and GPUs of a tensor-parallel group of services that have some."""
    for service in services:
        if service.gpus:
            yield service.pool, service.gpus * service.servers, service.width


def charged_gpus(services: Services) -> dict[str, float]:
    """Those of them that this job pays for: jobs that share a service share its price."""
    charged: dict[str, float] = {}
    for service in services:
        if service.gpus:
            charged[service.pool] = charged.get(service.pool, 0.0) + service.gpus * service.servers / service.shared_by
    return charged
