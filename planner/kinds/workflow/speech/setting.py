"""A speech problem as streams of requests and prices. R request."""

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError, require_known
from planner.kinds.workflow.options import WorkflowOptions
from planner.kinds.workflow.speech_options import PoolOption, SpeechOptions
from planner.problem.resolve import Resolved
from planner.problem.schema import TraceLengths
from planner.problem.statistics import quantile_of
from planner.simulate.plans.workload import drawn_lengths
from planner.simulate.requests.arrivals import arrivals
from planner.solvers.workflow.speech_pools import (
    STAGES,
    DecodePool,
    RequestPool,
    Speech,
    SpeechPools,
    VocodePool,
)


@dataclass(frozen=True, slots=True)
class SpeechSetting:
    """What the problem says, and the limit on first audio."""

    resolved: Resolved
    options: WorkflowOptions
    speech: SpeechOptions
    first_audio_s: float
    quantile: float
    rate_per_s: float

    def rows(self, stage: str) -> tuple[PoolOption, ...]:
        """The options of a stage."""
        options: tuple[PoolOption, ...] = getattr(self.speech, stage)
        return options

    def pool_of(self, option: PoolOption) -> int:
        """The number of the pool that an option stands on."""
        names = [pool.name for pool in self.resolved.pools]
        return names.index(option.pool) if option.pool is not None else 0

    def usd_per_hour(self, option: PoolOption) -> float:
        """Of a replica."""
        price = self.resolved.pools[self.pool_of(option)].usd_per_gpu_hour
        assert price is not None
        return price * option.gpus

    @property
    def statistic(self) -> str:
        return f"p{100 * self.quantile:.10g}"


def read_speech(resolved: Resolved) -> SpeechSetting:
    """Raises PlannerError for problems without a rate, a limit on first audio or prices, and for impossible chunks."""
    options = WorkflowOptions.model_validate(resolved.problem.options)
    assert options.speech is not None
    where = resolved.where
    if resolved.problem.objective.minimize != "cost":
        raise PlannerError("pools of stages minimise cost", where=where(("objective",)), hint="write `minimize: cost`")
    if len(resolved.workloads) != 1 or len(resolved.models) != 1:
        what = f"{len(resolved.workloads)} workloads and {len(resolved.models)} models, where pools serve one of each"
        raise PlannerError(what, where=where(("workloads",)), hint="give one of each")
    spec = resolved.workloads[0].spec
    if spec.load is None or spec.load.rate_per_s is None:
        raise PlannerError("speech has no rate", where=where(("workloads", 0)), hint="write `load: {rate: 2/s}`")
    limits = list(spec.slo.limits())
    if len(limits) != 1 or limits[0][0] != "ttft" or limits[0][1] == "mean":
        hint = "write `slo: {ttft: {p95: 700ms}}`: the first audio of 95 % of the replies"
        what = "pools for speech are sized for one percentile of the time to first audio"
        raise PlannerError(what, where=where(("workloads", 0, "slo")), hint=hint)
    for side in ("input_tokens", "output_tokens"):
        if isinstance(getattr(spec, side), TraceLengths):
            hint = "write its `mean` and `cv`"
            raise PlannerError("streams are drawn, and a trace is one", where=where(("workloads", 0, side)), hint=hint)
    quantile = quantile_of(limits[0][1])
    assert quantile is not None
    setting = SpeechSetting(resolved, options, options.speech, limits[0][2], quantile, spec.load.rate_per_s)
    _require_pools(setting)
    return setting


def _require_pools(setting: SpeechSetting) -> None:
    """Refuses pools without a price, and options that name none where there are several."""
    resolved, names = setting.resolved, [pool.name for pool in setting.resolved.pools]
    for stage in STAGES:
        for index, option in enumerate(setting.rows(stage)):
            where = resolved.where(("options", "speech", stage, index))
            if option.pool is None and len(names) > 1:
                raise PlannerError(
                    f"option `{option.name}` names no pool", where=where, hint=f"one of {', '.join(names)}"
                )
            if option.pool is not None:
                require_known("pool", option.pool, names, listing="pools are", where=where)
            pool = resolved.pools[setting.pool_of(option)]
            if pool.usd_per_gpu_hour is None:
                place = resolved.where(("cluster", "pools", setting.pool_of(option)))
                raise PlannerError(f"pool `{pool.name}` has no price", where=place, hint="write `price: 2.50USD/h`")
            if option.gpus > pool.node.num_gpus:
                what = f"a replica of {option.gpus} GPUs, and nodes of `{pool.name}` have {pool.node.num_gpus}"
                raise PlannerError(what, where=where, hint="keep a replica inside a node")


def pools_on(setting: SpeechSetting, seed: int) -> SpeechPools:
    """The problem on the stream of a seed; raises PlannerError for first chunks longer than any reply."""
    speech, spec = setting.speech, setting.resolved.workloads[0].spec
    count, rng = setting.options.simulated_requests, np.random.default_rng(seed)
    audio_s_R = _audio(setting, rng, count)
    replies_R = drawn_lengths(spec, "output_tokens", count, rng)
    prompts_R = drawn_lengths(spec, "input_tokens", count, rng) + speech.audio_tokens_per_s * audio_s_R
    _require_chunk(setting, replies_R)
    assert spec.load is not None
    cv = spec.load.arrival_cv
    arrival = (
        arrivals("gamma", setting.rate_per_s, count, cv=cv, seed=seed + 1)
        if cv > 0.0
        else np.arange(1, count + 1) / setting.rate_per_s
    )
    return SpeechPools(
        arrival,
        replies_R,
        tuple(RequestPool(setting.usd_per_hour(o), o.base_s + o.per_audio_s * audio_s_R) for o in speech.encode),
        tuple(RequestPool(setting.usd_per_hour(o), o.base_s + o.per_token_s * prompts_R) for o in speech.prefill),
        tuple(DecodePool(setting.usd_per_hour(o), o.slots, o.step_s) for o in speech.decode),
        tuple(VocodePool(setting.usd_per_hour(o), o.base_s, o.per_token_s) for o in speech.vocode),
        (speech.most_replicas,) * 4,
        Speech(
            setting.first_audio_s,
            setting.quantile,
            speech.late_share,
            speech.first_chunks,
            speech.chunk_tokens,
            speech.context_tokens,
            speech.audio_tokens_per_s,
            speech.slack_s,
        ),
    )


def _audio(setting: SpeechSetting, rng: np.random.Generator, count: int) -> Floats:
    audio = setting.speech.audio
    variance = math.log1p(audio.cv**2)
    drawn = rng.lognormal(math.log(audio.mean_s) - variance / 2.0, math.sqrt(variance), count)
    return np.clip(drawn, audio.low_s, audio.high_s)


def _require_chunk(setting: SpeechSetting, replies_R: Ints) -> None:
    longest, first = int(replies_R.max()), max(setting.speech.first_chunks)
    if first > longest:
        what = f"a first chunk of {first} tokens, where the longest answer of a stream has {longest}"
        place = setting.resolved.where(("options", "speech", "first_chunks"))
        raise PlannerError(what, where=place, hint=f"give first chunks of {longest} tokens at most")


def faster(problem: SpeechPools, factor: float) -> SpeechPools:
    """The problem with a limit on first audio and a share of late chunks that are so much stricter."""
    speech = problem.speech
    stricter = replace(speech, first_audio_s=speech.first_audio_s * factor, late_share=speech.late_share * factor**4)
    return replace(problem, speech=stricter)
