"""Response lengths of successive iterations, sampled by the problem's seed, within the context of the models.

Array suffixes: N samples of one iteration, T turns.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.documents.files import digest
from planner.errors import PlannerError
from planner.kinds.rl.agents.stated import trajectories_of
from planner.kinds.rl.options import RecordedSamples, RlOptions, ToolCalls
from planner.kinds.rl.setting import RlSetting
from planner.problem.lengths import end_of_samples
from planner.problem.schema import Problem
from planner.rl.trajectories import SampleBatch, Trajectories
from planner.simulate.plans.workload import drawn_lengths


def samples(options: RlOptions) -> int:
    """Samples that an iteration trains on."""
    return options.prompts * options.samples_per_prompt


def generated(options: RlOptions) -> int:
    """Samples that an iteration generates."""
    return max(samples(options), round(samples(options) * options.over_sampling))


def recorded(records: tuple[RecordedSamples, ...]) -> tuple[SampleBatch, ...]:
    """Lengths as they were recorded."""
    return tuple(
        SampleBatch(
            np.broadcast_to(np.array(row.input_tokens, np.int64), len(row.output_tokens)).copy(),
            np.array(row.output_tokens, np.int64),
            None if row.predicted is None else np.array(row.predicted, np.float64),
        )
        for row in records
    )


def draw_periods(problem: Problem, options: RlOptions) -> list[tuple[SampleBatch, ...]]:
    """Lengths of every period of the horizon: the same draw, outputs scaled; of one period without a horizon.

    Those recorded, where the problem states them.
    """
    if options.horizon is not None and options.horizon.periods[0].records:
        return [recorded(period.records) for period in options.horizon.periods]
    if options.agents is not None:
        return [tuple(trajectories_of(batch).whole for batch in options.agents.batches)]
    if options.records:
        return [recorded(options.records)]
    scales = [period.output_scale for period in options.horizon.periods] if options.horizon is not None else [1.0]
    return [draw_batches(problem, options, scale) for scale in scales]


def draw_batches(problem: Problem, options: RlOptions, output_scale: float = 1.0) -> tuple[SampleBatch, ...]:
    """Lengths of successive iterations. Raises PlannerError for lengths that are read from a trace.

    Samples of one prompt share its length. Log-normal lengths are cut at mean x (1 + 4 cv), outputs at
    `max_output_tokens`. Tool waits make turns of a sample: geometrically many calls at even distances in its
    output, each waiting an exponential time.
    """
    rng = np.random.default_rng(problem.seed)
    return tuple(_batch(problem, options, rng, output_scale) for _ in range(options.iterations))


def longest_sample(problem: Problem, options: RlOptions, batches: Sequence[SampleBatch]) -> int:
    """Tokens of the longest sample that a job of these lengths may get, drawn or not: prompt and output where each is
    cut off in the period of the longest, and the observations of as many calls as any sample drawn has."""
    drawn = max(int(batch.tokens_N.max()) for batch in batches)
    if not problem.workloads:
        return drawn
    output = end_of_samples(problem.workloads[0], "output_tokens")
    periods = options.horizon.periods if options.horizon is not None else ()
    output = round(output * max((period.output_scale for period in periods), default=1.0))
    return max(drawn, beside_output(problem, batches) + min(output, options.max_output_tokens or output))


def beside_output(problem: Problem, batches: Sequence[SampleBatch]) -> int:
    """Tokens of the longest sample that its model does not write: the prompt, and what tools say."""
    observed = [_observed(batch.turns) for batch in batches if batch.turns is not None]
    return end_of_samples(problem.workloads[0], "input_tokens") + max(observed, default=0)


def require_context(setting: RlSetting, batches: Sequence[SampleBatch], longest: int) -> None:
    """Refuses samples longer than the model of any part takes: engines do not start with more, nor do positions that a
    model was not trained at teach it anything. Raises PlannerError with the output that would do."""
    part = min(setting.keys, key=lambda part: setting.resolved.models[setting.keys[part]].max_context_tokens)
    arch = setting.resolved.models[setting.keys[part]]
    if longest <= arch.max_context_tokens:
        return
    output = arch.max_context_tokens - beside_output(setting.resolved.problem, batches)
    stated = setting.options.max_output_tokens is not None
    path: tuple[str | int, ...] = ("options", "max_output_tokens") if stated else ("workloads", 0, "output_tokens")
    shorter = f"write `max_output_tokens: {output}`"
    if output < 1:
        path, shorter = ("workloads", 0, "input_tokens"), "shorten prompts, or what `tools` say"
    raise PlannerError(
        f"samples have up to {longest} tokens, and {arch.name}, the {part}, takes {arch.max_context_tokens}",
        where=setting.resolved.where(path),
        hint=f"{shorter}, or name a model with a longer context: by `config`, whose `rope_scaling` may extend it",
    )


def _observed(turns: Trajectories) -> int:
    """Tokens of what tools say in the sample that has most of them."""
    return int(np.add.reduceat(turns.observation_T, turns.first_N[:-1]).max())


def digest_of(batches: tuple[SampleBatch, ...]) -> str:
    """Says whether lengths are those of another draw: generators of random numbers may change with their version."""
    return digest([[batch.prompt_tokens_N.tolist(), batch.output_tokens_N.tolist()] for batch in batches])


def trained_tokens(batches: tuple[SampleBatch, ...], options: RlOptions) -> float:
    """Output tokens that a mean iteration trains on, generated ones that are not trained on left out by number."""
    mean = sum(float(batch.output_tokens_N.mean()) for batch in batches) / len(batches)
    return mean * samples(options)


def _batch(problem: Problem, options: RlOptions, rng: np.random.Generator, output_scale: float) -> SampleBatch:
    count = generated(options)
    prompts = -(-count // options.samples_per_prompt)
    workload = problem.workloads[0]
    prompt = drawn_lengths(workload, "input_tokens", prompts, rng)
    prompt = np.repeat(np.minimum(prompt, end_of_samples(workload, "input_tokens")), options.samples_per_prompt)[:count]
    output = drawn_lengths(workload, "output_tokens", count, rng)
    output = np.minimum(output, end_of_samples(workload, "output_tokens"))
    output = np.maximum(1, np.rint(output * output_scale)).astype(np.int64)
    if options.max_output_tokens is not None:
        output = np.minimum(output, options.max_output_tokens)
    key: Floats | None = None
    if options.length_error is not None:
        key = output.astype(np.float64) * np.exp(rng.normal(0.0, options.length_error, count))
    batch = SampleBatch(prompt, output, key)
    if options.tools is not None:
        batch = _with_tools(prompt, output, key, options.tools, rng)
    if options.useful_share == 1.0:
        return batch
    useful_P = rng.random(prompts) < options.useful_share
    of_N = np.arange(count) // options.samples_per_prompt
    whole_N = of_N < count // options.samples_per_prompt
    return replace(batch, prompt_N=np.where(useful_P[of_N] & whole_N, of_N, -1))


def _with_tools(
    prompt_N: Ints,
    output_N: Ints,
    key_N: "Floats | None",
    tools: ToolCalls,
    rng: np.random.Generator,
) -> SampleBatch:

    calls_N = np.minimum(rng.geometric(1.0 / (1.0 + tools.calls), len(output_N)) - 1, output_N - 1)
    turns_N = calls_N + 1
    first_N = np.concatenate([np.zeros(1, np.int64), np.cumsum(turns_N)])
    of_T = np.repeat(np.arange(len(output_N)), turns_N)
    turn_T = np.arange(len(of_T)) - first_N[of_T]
    output_T = output_N[of_T] * (turn_T + 1) // turns_N[of_T] - output_N[of_T] * turn_T // turns_N[of_T]
    called_T = turn_T < calls_N[of_T]
    wait_T = np.where(called_T, rng.exponential(tools.wait_s or 1e-12, len(of_T)), 0.0)
    observed_T = np.where(called_T, tools.observation_tokens, 0).astype(np.int64)
    predicted = output_N.astype(float) if key_N is None else key_N
    left_T = predicted[of_T] * (1.0 - turn_T / turns_N[of_T])
    turns = Trajectories(prompt_N, first_N, output_T, wait_T, observed_T, left_T)
    context_N = prompt_N + calls_N * tools.observation_tokens
    return SampleBatch(context_N, output_N, key_N, turns)
