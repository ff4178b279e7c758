"""The mean iteration of an asynchronous plan, its generators and trainer simulated together on the problem's curves."""

from collections.abc import Sequence
from math import ceil

from planner.rl.coupled.batchwise import simulate_batches
from planner.rl.coupled.in_flight import CoupledFlow
from planner.rl.coupled.iterations import Coupling, Iterations, Work
from planner.rl.coupled.servers import whole_batch_s
from planner.rl.curves import Learner, TrainingOption
from planner.rl.plan import RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.services import as_generated, handed_over, learner_of
from planner.rl.trajectories import SampleBatch

ASYNCHRONOUS = ("one_step_async", "k_step_async")
SAMPLES = 8192
"""Samples in the iterations whose mean is taken, at least; of many batches all equally often, twice or more."""
FEWEST, MOST = 6, 60  # such iterations


def why_not(problem: RlProblem, plan: RlPlan) -> str | None:
    """What of a plan has no coupled simulation; None where it has one."""
    if plan.mode.sync not in ASYNCHRONOUS or plan.training is None:
        return "training that waits for its own rollout"
    if problem.partial or problem.trained_samples < min(batch.size for batch in problem.batches):
        return "batches of which a part is trained on"
    if plan.late is not None or plan.fusion is not None:
        return "replicas that change on the way"
    if as_generated(plan.services) and not plan.mode.in_flight:
        return "servers that score samples of rollouts that end"
    if any(batch.turns is not None or batch.prompt_N is not None for batch in problem.batches):
        return "samples with turns, or prompts that are dropped"
    return None


def coupled_iteration_s(problem: RlProblem, plan: RlPlan, handover_s: float) -> float:
    """Seconds of a mean iteration in the long run; `handover_s` is what sending weights takes."""
    count, ahead, size = len(problem.batches), plan.mode.staleness + 1, problem.batches[0].size
    wanted = max(FEWEST, 2 * count, min(MOST, SAMPLES // size))
    first, measured = (count * ceil(each / count) for each in (max(2 * ahead, wanted // 2), wanted))
    return _iterations(problem, plan, handover_s, first + measured + ahead).mean_s(first, measured)


def _iterations(problem: RlProblem, plan: RlPlan, handover_s: float, count: int) -> Iterations:
    training = plan.training
    assert training is not None
    coupling = _coupling(plan.mode, handover_s, overlapped=problem.weight_sync_overlapped)
    batches = [_work(problem, plan, batch) for batch in problem.batches]

    def train_s(batch: int, order: Sequence[int]) -> float:
        tokens = [sum(batches[batch].lengths[sample]) for sample in order]
        handed_s = sum(whole_batch_s(service, tokens) for service in handed_over(plan.services))
        return handed_s + _training_s(problem, training, tokens, learner_of(plan.services))

    groups = [(group.option.curve, group.replicas) for group in plan.groups]
    if not plan.mode.in_flight:
        return simulate_batches(groups, batches, count, train_s, coupling)
    prompts = max(1, len(batches[0].lengths) // problem.samples_per_prompt)
    window, sent = plan.mode.staleness * prompts, as_generated(plan.services)
    return CoupledFlow(*groups[0], batches, problem.samples_per_prompt, window, count, train_s, coupling, sent).run()


def _coupling(mode: RlMode, handover_s: float, *, overlapped: bool) -> Coupling:
    lockstep = mode.sync == "one_step_async"
    stop_s, delay_s = (0.0, handover_s) if overlapped else (handover_s, 0.0)
    return Coupling(mode.staleness, lockstep, mode.stops or mode.in_flight, stop_s, delay_s)


def _work(problem: RlProblem, plan: RlPlan, batch: SampleBatch) -> Work:
    """Samples of a second group are those with the largest keys; each group in the order of the problem's dispatch."""
    lengths = list(zip(batch.prompt_tokens_N.tolist(), batch.output_tokens_N.tolist(), strict=True))
    keys = batch.predicted_N.tolist()
    longest = sorted(range(len(lengths)), key=lambda sample: -keys[sample])
    order = list(range(len(lengths))) if problem.dispatch == "fifo" else longest
    if len(plan.groups) == 1:
        return Work(lengths, [order])
    tail = set(longest[: round(plan.tail_fraction * len(lengths))])
    return Work(lengths, [[s for s in order if s not in tail], [s for s in order if s in tail]])


def _training_s(problem: RlProblem, training: TrainingChoice, tokens: Sequence[int], learner: Learner | None) -> float:
    """Minibatches of equally many samples in the order in which they were done, the last with the remainder.

    A critic on GPUs of its own begins each half of a minibatch with the actor, and the later of them ends it.
    """
    parts, seconds = problem.minibatches, 0.0
    size, bubble = len(tokens) // parts, problem.bubbles.get(training, training.option.update_bubble)
    for part in range(parts):
        total = sum(tokens[part * size : (part + 1) * size if part < parts - 1 else None])
        halves = [_halves_s(training.option, training.dp, total, bubble)]
        if learner is not None:
            halves.append(_halves_s(learner.option, learner.dp, total, learner.option.update_bubble))
        seconds += sum(map(max, zip(*halves, strict=True)))
    return seconds


def _halves_s(option: TrainingOption, dp: int, tokens: int, bubble: float) -> tuple[float, float]:
    """Forward passes of a minibatch, and its update."""
    share = tokens / dp
    micro = max(1, ceil(share / option.micro_tokens))
    forward_s = share / option.forward_tokens_per_s * (micro + option.pp - 1) / micro
    return forward_s, share / option.train_tokens_per_s * (micro + bubble) / micro + option.optimizer_s
