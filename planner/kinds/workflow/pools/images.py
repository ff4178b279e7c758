"""Pools for images: streams of requests, and when their first tokens and the others come. R request."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from pydantic import JsonValue

from planner.errors import PlannerError
from planner.kinds.workflow.decision import WorkflowDecision
from planner.kinds.workflow.images_options import ImagesOptions
from planner.kinds.workflow.pools.form import PoolsForm, narrowed, percentile_limit, require_one_stream, require_pools
from planner.problem.resolve import Resolved
from planner.simulate.plans.workload import drawn_lengths
from planner.solvers.result import SolveResult
from planner.solvers.workflow.cover import Cover
from planner.solvers.workflow.image_pools import (
    MAY_BE_LEFT_OUT,
    STAGES,
    EncodePool,
    ImagePlan,
    ImagePools,
    PrefillPool,
    TokenLimits,
    cheapest_pools,
    served,
)
from planner.solvers.workflow.pool_search import SOLVER
from planner.solvers.workflow.speech_pools import DecodePool


@dataclass(frozen=True, slots=True)
class ImagesForm(PoolsForm[ImagePlan]):
    """A percentile of TTFT and one of TPOT are limited."""

    key: ClassVar[str] = "images"
    stages: ClassVar[tuple[str, ...]] = STAGES
    idle: ClassVar[frozenset[str]] = MAY_BE_LEFT_OUT
    solver: ClassVar[str] = SOLVER
    assumptions: ClassVar[tuple[str, ...]] = (
        "stages take requests, or images that are split, first come, first served",
        "a token takes as long as with all slots full; the wait for a slot of decode is part of the time per token",
    )

    @property
    def images(self) -> ImagesOptions:
        assert self.options.images is not None
        return self.options.images

    @property
    def axes(self) -> dict[str, list[JsonValue]]:
        """As `PoolsForm` states."""
        words = {True: "split", False: "together"}
        encodes = [f"{pool}, {words[split]}" for pool in self.pools_of("encode") for split in self.splits]
        none: list[JsonValue] = ["none"] if self.options.may("encode", "none") else []
        return {"encode": [*none, *encodes], **{stage: self.pools_of(stage) for stage in STAGES[1:]}}

    @property
    def splits(self) -> tuple[bool, ...]:
        """Whether images of a request may be encoded side by side."""
        return (True, False) if self.images.split_images is None else (self.images.split_images,)

    def cheapest(self, seed: int, factor: float, time_limit_s: float, cover: Cover) -> SolveResult[ImagePlan]:
        """As `PoolsForm` states."""
        problem = pools_on(self, seed)
        limits = replace(problem.limits, ttft_s=problem.limits.ttft_s * factor, tpot_s=problem.limits.tpot_s * factor)
        return cheapest_pools(replace(problem, limits=limits), time_limit_s=time_limit_s, cover=cover)

    def measured(self, seed: int, plan: ImagePlan) -> tuple[float, ...]:
        """As `PoolsForm` states."""
        return served(pools_on(self, seed), plan)

    def plan_with(self, pools: tuple[tuple[int, int], ...], decision: WorkflowDecision) -> ImagePlan:
        """As `PoolsForm` states."""
        encodes = bool(pools[0][1])
        right = decision.split_images in self.splits if encodes else decision.split_images is None
        if not right or decision.first_chunk_tokens is not None:
            what = "splits images as the problem does not let it, or states a first chunk of speech"
            raise PlannerError(what, where="decision.split_images", hint="solve again")
        if not encodes and self.images.prefill[pools[1][0]].encode_base_s is None:
            what = "has no encode pool, and an option of prefill that does not encode"
            raise PlannerError(what, where="decision.stages", hint="solve again")
        return ImagePlan(pools, bool(decision.split_images))

    def any_of(self, pools: tuple[tuple[int, int], ...]) -> ImagePlan:
        """As `PoolsForm` states; without an encode pool a prefill that encodes."""
        if not pools[0][1]:
            able = [o for o, row in enumerate(self.images.prefill) if row.encode_base_s is not None]
            pools = (pools[0], (able[0] if able else 0, pools[1][1]), pools[2])
        return ImagePlan(pools, self.splits[0])

    def details(self, plan: ImagePlan) -> dict[str, Any]:
        """As `PoolsForm` states."""
        return {"split_images": plan.split_images} if plan.pools[0][1] else {}


def read_images(resolved: Resolved) -> ImagesForm:
    """Raises PlannerError for problems without a rate, limits on TTFT and TPOT, or prices."""
    options = narrowed(resolved, "images", STAGES)
    assert options.images is not None
    require_one_stream(resolved, "a stream with images")
    limits = list(resolved.workloads[0].spec.slo.limits())
    if [name for name, _, _ in limits] != ["ttft", "tpot"] or any(statistic == "mean" for _, statistic, _ in limits):
        hint = "write `slo: {ttft: {p90: 2s}, tpot: {p90: 50ms}}`"
        what = "pools for images are sized for one percentile of TTFT and one of TPOT"
        raise PlannerError(what, where=resolved.where(("workloads", 0, "slo")), hint=hint)
    form = ImagesForm(
        resolved,
        options,
        tuple(percentile_limit(name, statistic, bound_s, name.upper()) for name, statistic, bound_s in limits),
    )
    require_pools(form)
    return form


def pools_on(form: ImagesForm, seed: int) -> ImagePools:
    """The problem on the stream of a seed."""
    images, usd = form.images, form.usd_per_hour
    count, rng = form.options.simulated_requests, np.random.default_rng(seed)
    images_R = rng.choice(len(images.shares), count, p=np.array(images.shares) / sum(images.shares))
    answers_R = drawn_lengths(form.workload, "output_tokens", count, rng)
    prompts_R = drawn_lengths(form.workload, "input_tokens", count, rng) + images.image_tokens * images_R
    ttft, tpot = form.limits
    return ImagePools(
        arrival_s_R=form.arrivals_s(seed),
        images_R=images_R,
        output_tokens_R=answers_R,
        feature_move_s_R=np.asarray(images.move_per_image_s * images_R, float),
        cache_move_s_R=np.asarray(images.move_per_token_s * prompts_R, float),
        encode=tuple(EncodePool(usd(o), o.base_s, o.per_image_s, form.part_of(o)) for o in images.encode),
        prefill=tuple(
            PrefillPool(
                usd(o),
                np.asarray(o.base_s + o.per_token_s * prompts_R, float),
                None if o.encode_base_s is None else (o.encode_base_s, o.encode_per_image_s),
                form.part_of(o),
            )
            for o in images.prefill
        ),
        decode=tuple(DecodePool(usd(o), o.slots, o.step_s, form.part_of(o)) for o in images.decode),
        replicas=tuple(form.counts(stage) for stage in STAGES),
        may_skip=form.options.may("encode", "none"),
        split=form.splits,
        limits=TokenLimits(ttft.bound, ttft.quantile, tpot.bound, tpot.quantile),
    )
