"""Drawn RL plans whose training runs ahead: lengths, curves, replicas, trainers about as fast as they, three modes."""

from dataclasses import replace

import numpy as np

from planner.arrays import Floats
from planner.rl.curves import CurvePool, DecodeCurve, GenerationOption, TrainingOption
from planner.rl.evaluate import evaluate
from planner.rl.plan import GenerationGroup, RlMode, RlPlan, TrainingChoice
from planner.rl.problem import RlProblem
from planner.rl.trajectories import SampleBatch

KINDS = ("lockstep", "batchwise", "in flight")


def coupled_case(seed: int, kind: str, samples: int) -> tuple[RlProblem, RlPlan]:
    """A plan of `kind` with about so many samples in a batch; training takes half to twice as long as generation."""
    draw = np.random.default_rng(seed)
    per_prompt = int(draw.choice([1, 4, 8]))
    batches = tuple(_batch(draw, per_prompt * (samples // per_prompt)) for _ in range(int(draw.integers(1, 4))))
    longest = max(int(batch.tokens_N.max()) for batch in batches)
    curve = DecodeCurve(
        draw.uniform(0.005, 0.03),
        draw.uniform(0.0, 4e-4),
        draw.uniform(0.0, 2e-7),
        draw.uniform(5e3, 3e4),
        int(draw.choice([8, 32, 256])),
        int(draw.choice([2, 6, 50])) * longest,
    )
    generator = GenerationOption("gpus", 1, curve, 1)
    trainer = TrainingOption("gpus", 1, 1e4, 4e4, 8192, 1, int(draw.choice([1, 2])))
    mode = _mode(kind, int(draw.integers(1, 5)))
    minibatches, dp = int(draw.choice([1, 2, 4])), int(draw.choice([1, 2, 4]))
    problem = RlProblem(
        (CurvePool("gpus", 64),),
        (generator,),
        (trainer,),
        batches,
        minibatches,
        (mode,),
        {("gpus", "gpus"): 0.0},
        bool(draw.integers(2)),
        samples_per_prompt=per_prompt,
    )
    plan = RlPlan(mode, (GenerationGroup(generator, int(draw.choice([1, 2, 4, 8]))),), TrainingChoice(trainer, dp))
    alone = evaluate(problem, plan)
    faster = alone.training_s / alone.generation_s * np.exp(draw.uniform(-0.7, 0.7))
    trainer = replace(trainer, train_tokens_per_s=1e4 * faster, forward_tokens_per_s=4e4 * faster)
    sent_s = float(draw.choice([0.0, 0.02, 0.1])) * alone.generation_s
    problem = replace(problem, training=(trainer,), weight_sync_s={("gpus", "gpus"): sent_s})
    return problem, replace(plan, training=TrainingChoice(trainer, dp))


def _batch(draw: np.random.Generator, samples: int) -> SampleBatch:
    """Log-normal outputs up to a cap."""
    mean, sigma = draw.uniform(200, 3000), draw.choice([0.3, 0.8, 1.1])
    output: Floats = np.minimum(draw.lognormal(np.log(mean) - sigma**2 / 2, sigma, samples), 5 * mean)
    return SampleBatch(np.full(samples, draw.integers(50, 500)), np.maximum(1, output).astype(np.int64))


def _mode(kind: str, staleness: int) -> RlMode:
    if kind == "lockstep":
        return RlMode("disaggregated", "one_step_async", 1)
    return RlMode("disaggregated", "k_step_async", staleness, kind == "in flight", stops=True)
