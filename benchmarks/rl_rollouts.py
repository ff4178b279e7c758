"""Rollouts: speed of the simulator; what dispatch, fusion and partial rollouts are worth; plans over a horizon.

Usage: rl_rollouts.py FOLDER, with the problems whose curves and lengths are used. Every table has the trivial answer
beside. Exits 1 where 512 trajectories of 20 k tokens on 64 replicas take 50 ms of CPU or more.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from inputs import exit_code, first_path

from planner.arrays import Ints
from planner.documents.read import load_document
from planner.interchange.rl_problem import read_problem
from planner.rl.curves import DecodeCurve
from planner.rl.partial import successive
from planner.rl.problem import RlProblem
from planner.rl.rollouts.dispatch import POLICIES, split_simulated
from planner.rl.rollouts.fusion import Inference, Move, change_workers, fuse
from planner.rl.rollouts.ranker import keys_of_recall
from planner.rl.rollouts.resume import subset
from planner.rl.rollouts.rollout import RolloutWorker, simulate
from planner.rl.search.horizon import ChangeCosts, HorizonProblem, Period, plan_horizon
from planner.rl.trajectories import SampleBatch, Trajectories

CPU_LIMIT_S, RUNS = 0.05, 9


def _curve(problem: RlProblem, tp: int) -> DecodeCurve:
    return next(option.curve for option in problem.generation if option.tp == tp)


def speed(problem: RlProblem) -> bool:
    """Prints the CPU time of the simulator; whether it is below the limit."""
    curve = _curve(problem, 2)
    draw = np.random.default_rng(0)
    ragged = np.minimum(20_000, draw.lognormal(9.0, 0.8, 512)).astype(np.int64) + 1
    turns = draw.integers(1, 40, 512)
    several = Trajectories(
        np.full(512, 300, np.int64),
        np.append(0, np.cumsum(turns)),
        np.maximum(1, np.repeat(20_000 // turns, turns)).astype(np.int64),
        draw.exponential(2.0, int(turns.sum())),
        draw.integers(20, 400, int(turns.sum())),
        np.repeat(20_000 // turns, turns).astype(float),
    )
    cases = {
        "512 x 20000 tokens": _batch(np.full(512, 20_000, np.int64)).trajectories,
        "512 up to 20000 tokens": _batch(ragged).trajectories,
        "512 x 20000 tokens in up to 40 turns": several,
    }
    worst = 0.0
    for name, trajectories in cases.items():
        workers, queues = (RolloutWorker(curve),) * 64, [np.arange(512)]
        took = []
        for _ in range(RUNS):
            before = time.process_time()
            simulate(workers, trajectories, queues)
            took.append(time.process_time() - before)
        worst = max(worst, float(np.median(took)))
        print(f"{name:38} on 64 replicas: {1e3 * float(np.median(took)):6.2f} ms (median of {RUNS})")
    return worst < CPU_LIMIT_S


def _batch(output: Ints) -> SampleBatch:
    return SampleBatch(np.full(len(output), 300, np.int64), output)


def dispatch(problem: RlProblem) -> None:
    """Prints rollout times by policy and by how well the ranker knows the tail."""
    few = replace(_curve(problem, 4), max_running=32)
    batch = problem.batches[0]
    samples, lengths = batch.trajectories, batch.output_tokens_N.astype(float)
    recalls = (1.0, 0.87, 0.5)
    mixed = (*(replace(_curve(problem, 8), max_running=32),) * 4, *(few,) * 8)
    for name, curves in (("16 replicas of tp4", (few,) * 16), ("4 of tp8 and 8 of tp4", mixed)):
        print(f"\n{name}: rollout seconds by recall of the longest 20 %")
        print(f"{'policy':20}" + "".join(f"{share:>9.0%}" for share in recalls))
        for policy, decide in POLICIES.items():
            row = []
            for share in recalls:
                dispatched = decide(curves, keys_of_recall(lengths, 0.2, share, seed=0))
                row.append(simulate(dispatched.workers, samples, dispatched.queues).end_s)
            print(f"{policy:20}" + "".join(f"{end_s:9.1f}" for end_s in row))
        row = []
        for share in recalls:
            dispatched = split_simulated(curves, keys_of_recall(lengths, 0.2, share, seed=0), recall=share, draws=8)
            row.append(simulate(dispatched.workers, samples, dispatched.queues).end_s)
        print(f"{'knowing the recall':20}" + "".join(f"{end_s:9.1f}" for end_s in row))


def fusion(problem: RlProblem) -> None:
    """Prints what RLHFuse's fusion and a change of TP during the rollout save."""
    curve, batch = _curve(problem, 4), problem.batches[0]
    samples = batch.trajectories
    workers, queues = (RolloutWorker(curve),) * 16, [np.arange(batch.size)]
    thresholds = [round(share * batch.size) for share in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3)]
    token_s = 262144 / 50e9  # KV bytes of a token of the 32B model over a 400 Gb/s link
    best = fuse(workers, samples, queues, Inference(20_000.0, 2.0), Move(0.1, token_s), thresholds=thresholds)
    fixed = fuse(workers, samples, queues, Inference(20_000.0, 2.0), Move(0.1, token_s), thresholds=thresholds[4:5])
    print("\ngeneration and inference of 16 replicas of tp4, seconds")
    print(f"  one after the other {best.unfused_s:.1f}; fused at 20 % left {fixed.end_s:.1f}")
    share = best.threshold / batch.size
    print(f"  best of {best.seen}: {best.end_s:.1f}, at {share:.0%} left, {best.kept} replicas kept")
    late = (RolloutWorker(_curve(problem, 8)),) * 8
    change = change_workers(workers, late, samples, queues, thresholds=thresholds, change_s=4.0)
    only = simulate(late, samples, queues).end_s
    print(f"  rollout with tp4 {change.unchanged_s:.1f}, with tp8 {only:.1f}, ", end="")
    when = f"tp4 until {change.threshold / batch.size:.0%} are left" if change.threshold else "no change pays"
    print(f"first tp4 then tp8 {change.end_s:.1f} ({when}, 4 s to change)")


def partial(problem: RlProblem) -> None:
    """Prints over-sampling and partial rollouts beside waiting for everyone."""
    workers = (RolloutWorker(_curve(problem, 4)),) * 16
    fresh = [batch.trajectories for batch in problem.batches * 4]
    size = fresh[0].size
    wanted = round(size / 1.25)
    few = [subset(batch, np.arange(wanted)) for batch in fresh]
    rows = {
        f"all of {wanted}": successive(workers, few, wanted, keep=False),
        f"first {wanted} of {size}": successive(workers, fresh, wanted, keep=False),
        f"first {wanted} of {size}, others carried over": successive(workers, fresh, wanted, keep=True),
    }
    print("\nmean of eight iterations   generation s   tokens/s   stale tokens   thrown away")
    for name, iterations in rows.items():
        seconds = float(np.mean([iteration.generation_s for iteration in iterations]))
        tokens = float(np.sum([iteration.tokens for iteration in iterations]))
        stale, wasted = (
            float(np.sum([getattr(iteration, key) for iteration in iterations]))
            for key in ("stale_tokens", "wasted_tokens")
        )
        rate = tokens / sum(iteration.generation_s for iteration in iterations)
        print(f"  {name:38} {seconds:8.1f} {rate:10.0f} {stale / tokens:13.1%} {wasted / tokens:12.1%}")


def horizon(problem: RlProblem) -> None:
    """Prints plans over lengths that grow threefold, for three costs of change."""
    lengths = problem.batches[0].output_tokens_N
    periods = []
    for scale in np.linspace(0.3, 1.0, 8):
        output = np.maximum(1, (lengths * scale).astype(np.int64))
        periods.append(Period((replace(problem.batches[0], output_tokens_N=output),), 20))
    print("\n160 iterations, lengths growing 3.3 times   fixed plan   best of each period   exact   changes")
    for seconds in (10.0, 60.0, 600.0):
        before = time.process_time()
        optimum = plan_horizon(HorizonProblem(problem, tuple(periods), ChangeCosts(seconds, 2 * seconds, seconds)))
        took = time.process_time() - before
        print(
            f"  {seconds:5.0f} s a change of replicas {'':12} {optimum.fixed_total:10.0f} {optimum.greedy_total:21.0f} "
            f"{optimum.total:7.0f} {optimum.changes:9d}   ({optimum.states} plans a period, {took:.1f} s)"
        )


def main(folder: Path) -> int:
    small = read_problem(load_document(folder / "p1_7b_32h800_sync.json"))
    large = read_problem(load_document(folder / "p3_32b_64h800_async_longtail.json"))
    fast = speed(small)
    dispatch(large)
    fusion(large)
    partial(large)
    horizon(large)
    return int(not fast)


if __name__ == "__main__":
    sys.exit(exit_code(main(first_path())))
