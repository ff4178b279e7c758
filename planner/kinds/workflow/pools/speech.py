"""Pools for speech: streams of requests, and what is heard of them. R request."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from pydantic import JsonValue

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.pools.form import (
    PoolLimit,
    PoolsForm,
    narrowed,
    percentile_limit,
    require_one_stream,
    require_pools,
)
from planner.kinds.workflow.speech_options import SpeechOptions
from planner.problem.resolve import Resolved
from planner.simulate.plans.workload import drawn_lengths
from planner.solvers.result import SolveResult
from planner.solvers.workflow.cover import Cover
from planner.solvers.workflow.pool_search import SOLVER
from planner.solvers.workflow.speech_pools import (
    STAGES,
    DecodePool,
    RequestPool,
    Speech,
    SpeechPlan,
    SpeechPools,
    VocodePool,
    cheapest_pools,
    heard,
)


@dataclass(frozen=True, slots=True)
class SpeechForm(PoolsForm[SpeechPlan]):
    """A percentile of the time to first audio, and the share of later chunks that are late, are limited."""

    key: ClassVar[str] = "speech"
    stages: ClassVar[tuple[str, ...]] = STAGES
    idle: ClassVar[frozenset[str]] = frozenset()
    solver: ClassVar[str] = SOLVER
    assumptions: ClassVar[tuple[str, ...]] = (
        "stages take requests first come, first served; a reply holds a slot of decode from its first token to its "
        "last",
        "a token takes as long as with all slots full; moves between stages are part of their times as stated",
        "a later chunk is late where it is ready after it is to be played, slack included",
    )

    @property
    def speech(self) -> SpeechOptions:
        assert self.options.speech is not None
        return self.options.speech

    @property
    def axes(self) -> dict[str, list[JsonValue]]:
        """As `PoolsForm` states."""
        return {stage: self.pools_of(stage) for stage in STAGES} | {"first_chunk": [*self.speech.first_chunks]}

    def cheapest(self, seed: int, factor: float, time_limit_s: float, cover: Cover) -> SolveResult[SpeechPlan]:
        """As `PoolsForm` states."""
        return cheapest_pools(faster(pools_on(self, seed), factor), time_limit_s=time_limit_s, cover=cover)

    def measured(self, seed: int, plan: SpeechPlan) -> tuple[float, ...]:
        """As `PoolsForm` states."""
        told = heard(pools_on(self, seed), plan)
        return told.first_audio_s, told.late_share

    def plan_with(self, pools: tuple[tuple[int, int], ...], decision: WorkflowDecision) -> SpeechPlan:
        """As `PoolsForm` states."""
        if decision.first_chunk_tokens not in self.speech.first_chunks or decision.split_images is not None:
            what = "states a first chunk that is none of the problem's, or images"
            raise PlannerError(what, where="decision.first_chunk_tokens", hint="solve again")
        return SpeechPlan(pools, decision.first_chunk_tokens or 0)

    def any_of(self, pools: tuple[tuple[int, int], ...]) -> SpeechPlan:
        """As `PoolsForm` states."""
        return SpeechPlan(pools, min(self.speech.first_chunks))

    def details(self, plan: SpeechPlan) -> dict[str, Any]:
        """As `PoolsForm` states."""
        return {"first_chunk_tokens": plan.first_chunk}


def read_speech(resolved: Resolved) -> SpeechForm:
    """Raises PlannerError for problems without a rate, a limit on first audio or prices, and for impossible chunks."""
    options = narrowed(resolved, "speech", STAGES)
    assert options.speech is not None
    require_one_stream(resolved, "speech")
    limits = list(resolved.workloads[0].spec.slo.limits())
    if len(limits) != 1 or limits[0][0] != "ttft" or limits[0][1] == "mean":
        hint = "write `slo: {ttft: {p95: 700ms}}`: the first audio of 95 % of the replies"
        what = "pools for speech are sized for one percentile of the time to first audio"
        raise PlannerError(what, where=resolved.where(("workloads", 0, "slo")), hint=hint)
    first = percentile_limit("ttft", limits[0][1], limits[0][2], "first audio")
    late = PoolLimit(
        "late", "late_chunk_share", "mean", "share of later chunks late", options.speech.late_share, "{:.2%}".format
    )
    form = SpeechForm(resolved, options, (first, late))
    require_pools(form)
    return form


def pools_on(form: SpeechForm, seed: int) -> SpeechPools:
    """The problem on the stream of a seed; raises PlannerError for first chunks longer than any reply."""
    speech, spec = form.speech, form.workload
    count, rng = form.options.simulated_requests, np.random.default_rng(seed)
    audio_s_R = _audio(form, rng, count)
    replies_R = drawn_lengths(spec, "output_tokens", count, rng)
    prompts_R = drawn_lengths(spec, "input_tokens", count, rng) + speech.audio_tokens_per_s * audio_s_R
    _require_chunk(form, replies_R)
    return SpeechPools(
        form.arrivals_s(seed),
        replies_R,
        tuple(
            RequestPool(form.usd_per_hour(o), o.base_s + o.per_audio_s * audio_s_R, form.part_of(o))
            for o in speech.encode
        ),
        tuple(
            RequestPool(form.usd_per_hour(o), o.base_s + o.per_token_s * prompts_R, form.part_of(o))
            for o in speech.prefill
        ),
        tuple(DecodePool(form.usd_per_hour(o), o.slots, o.step_s, form.part_of(o)) for o in speech.decode),
        tuple(VocodePool(form.usd_per_hour(o), o.base_s, o.per_token_s, form.part_of(o)) for o in speech.vocode),
        tuple(form.counts(stage) for stage in STAGES),
        Speech(
            form.limits[0].bound,
            form.limits[0].quantile,
            speech.late_share,
            speech.first_chunks,
            speech.chunk_tokens,
            speech.context_tokens,
            speech.audio_tokens_per_s,
            speech.slack_s,
        ),
    )


def _audio(form: SpeechForm, rng: np.random.Generator, count: int) -> Floats:
    audio = form.speech.audio
    variance = math.log1p(audio.cv**2)
    drawn = rng.lognormal(math.log(audio.mean_s) - variance / 2.0, math.sqrt(variance), count)
    return np.clip(drawn, audio.low_s, audio.high_s)


def _require_chunk(form: SpeechForm, replies_R: Ints) -> None:
    longest, first = int(replies_R.max()), max(form.speech.first_chunks)
    if first > longest:
        what = f"a first chunk of {first} tokens, where the longest answer of a stream has {longest}"
        place = form.resolved.where(("options", "speech", "first_chunks"))
        raise PlannerError(what, where=place, hint=f"give first chunks of {longest} tokens at most")


def faster(problem: SpeechPools, factor: float) -> SpeechPools:
    """The problem with a limit on first audio and a share of late chunks that are so much stricter."""
    speech = problem.speech
    stricter = replace(speech, first_audio_s=speech.first_audio_s * factor, late_share=speech.late_share * factor**4)
    return replace(problem, speech=stricter)
