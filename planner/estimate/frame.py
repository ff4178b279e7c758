"""Serving deployments and their loads as arrays [N] beside their step times, and the benchmark inputs made of both."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from planner.arrays import Floats
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.step import launched_share
from planner.estimate.closed_loop import ClosedLoops
from planner.estimate.mean_field import Dynamics, Settled, settle

EAGER_LAUNCH_S = 41e-6
"""Of the host for each kernel of a decoding step outside graphs: Llama-2-7B's 294 in 12 ms a token under vLLM without
graphs, 10.5 ms with them (github.com/vllm-project/vllm/pull/1440). What fits find for steps with prompts (`launch_s`)
is no launch alone: their batches are prepared meanwhile, and engines run them compiled in pieces."""


@dataclass(frozen=True, slots=True)
class Frame:
    """Deployments with their loads [N]; lengths are means."""

    clients: Floats  # 0 where the load is open
    rate_per_s: Floats
    requests_per_client: Floats
    isl: Floats
    osl: Floats
    isl_cv: Floats
    osl_cv: Floats
    disaggregated: Floats  # 1 where prefill runs apart
    decode_instances: Floats
    decode_ranks: Floats  # attention ranks of all instances
    prefill_ranks: Floats
    prefill_members: Floats  # of those, that make their steps together
    prefill_stages: Floats  # pipeline stages of an instance that prefills
    most_decoding: Floats  # sequences that a decoding rank admits
    full_batch: Floats  # those that it has when all clients decode
    chunks: Floats  # steps that a lone prompt is priced in
    prompts: Floats  # prompts in a step full of them
    moved_s: Floats  # moving a request's cache between pools
    chunk_tokens: Floats  # prompt tokens of a step; 0: the engine's default
    poll_steps: Floats  # decode steps between looks at new requests; 0: the engine's default
    hold_steps: Floats  # decode steps for which prompts wait to be batched
    staggered: Floats  # 1 where clients start one after the other
    in_process: Floats  # 1 where requests pass no front end
    mixed_steps: Floats  # 1 where prompts share steps with decoding on an engine that has them apart
    launches: Floats  # kernels of a step
    latent_layers: Floats  # of a step
    triton_layers: Floats  # of a step: those of experts in Triton's kernels
    prefix_hits: Floats  # share of prompt tokens that need no computing
    captured_tokens: Floats  # of the largest step that CUDA graphs hold
    most_sequences: Floats  # that a decoding rank simulates: more than it admits at rest where it preempts
    cache_tokens: Floats  # of a decoding rank, where it preempts; infinite elsewhere
    graph_batch: Floats  # sequences of the largest decoding step that CUDA graphs hold
    whole_prompts: Floats  # 1 where a step cuts no prompts
    jitter: Floats  # coefficient of variation of the time of a step
    yielded: Floats  # tokens of a sequence in a step; 1 without drafts

    @property
    def output_steps(self) -> Floats:
        """Steps that take the place of the tokens of an output: the first, and those that yield the others."""
        return self.steps_of(self.osl)

    def steps_of(self, osl: Floats) -> Floats:
        """Steps that outputs of so many tokens take."""
        return np.where(self.yielded == 1.0, osl, 1.0 + (osl - 1.0) / self.yielded)

    @classmethod
    def gathered(cls, frames: Sequence["Frame"], members: Sequence[Sequence[int]]) -> "Frame":
        """One frame of several, each at its members' places."""
        place = np.argsort(np.concatenate([np.asarray(group, dtype=np.intp) for group in members]))
        columns = (np.concatenate([getattr(frame, column.name) for frame in frames])[place] for column in fields(cls))
        return cls(*columns)


@dataclass(frozen=True, slots=True)
class Added:
    """What the engine of each deployment adds [N]; see EngineOverheads."""

    step_s: Floats
    sequence_s: Floats
    prefill_s: Floats
    launch_s: Floats
    latent_launch_s: Floats
    triton_launch_s: Floats
    frontend_s: Floats
    frontend_token_s: Floats
    tokenises_together: Floats
    arrival_s: Floats
    poll_steps: Floats
    output_steps: Floats
    handover_s: Floats
    router_s: Floats
    step_tokens: Floats
    prefill_first: Floats

    @classmethod
    def of(cls, engines: Sequence[EngineOverheads]) -> "Added":
        """One row an engine given."""
        known: dict[int, int] = {}
        distinct: list[EngineOverheads] = []
        rows = np.zeros(len(engines), dtype=np.intp)
        for i, engine in enumerate(engines):
            if id(engine) not in known:
                known[id(engine)] = len(distinct)
                distinct.append(engine)
            rows[i] = known[id(engine)]
        return cls(
            *(np.array([getattr(e, column.name) for e in distinct], dtype=np.float64)[rows] for column in fields(cls))
        )


@dataclass(frozen=True, slots=True)
class Pace:
    """Step times of a rank [N]: base + slope D for D decoding sequences; start + token_s for each prompt token."""

    base_s: Floats
    slope_s: Floats
    start_s: Floats
    token_s: Floats
    prompt_s: Floats  # one prompt alone, from its first step to its first token


def half_of(batch: Floats) -> Floats:
    """Half a batch, one at least."""
    return np.maximum(np.floor(batch / 2.0), 1.0)


def pace_of(frame: Frame, seconds: Sequence[Floats], added: Added) -> Pace:
    """Step times from those of the four priced steps (`planner.estimate.batches`), host time included.

    A colocated prompt takes what it adds to the step of a full batch. Where prefill runs apart, prompts share the
    reading of weights: what a step full of them takes beyond one goes to each, the rest to the step.
    """
    full, half, single, many = seconds
    apart = frame.disaggregated > 0
    slope = np.maximum((full - half) / np.maximum(frame.full_batch - half_of(frame.full_batch), 1.0), 0.0)
    host = (added.sequence_s + added.prefill_s) * frame.prefill_stages
    alone = single - host - added.step_s * frame.prefill_stages
    several = frame.prompts > 1
    shared = np.where(several, (many - single) / np.maximum(frame.prompts - 1.0, 1.0), alone * frame.chunks)
    weights = np.maximum(alone - shared, 0.0) * several / frame.prefill_stages
    each = np.where(apart, shared, (single - full - host) * frame.chunks)
    return Pace(
        base_s=np.maximum(full - slope * frame.full_batch, 1e-6),
        slope_s=slope,
        start_s=added.prefill_s + apart * (weights + added.step_s),
        token_s=np.maximum(each, 0.0) / frame.isl / frame.prefill_stages * (1.0 - frame.prefix_hits),
        prompt_s=single * frame.chunks * (1.0 - frame.prefix_hits),
    )


def loop_of(frame: Frame, pace: Pace, added: Added) -> ClosedLoops:
    """The benchmark that each closed-loop deployment is."""
    spread, osl_spread = spread_of(frame.isl_cv), spread_of(frame.osl_cv)
    return ClosedLoops(
        clients=frame.clients,
        requests_per_client=frame.requests_per_client,
        isl=frame.isl * largest_of(spread),
        osl=frame.steps_of(frame.osl * largest_of(osl_spread)),
        spread=spread,
        osl_spread=osl_spread,
        disaggregated=frame.disaggregated,
        decode_instances=frame.decode_instances,
        decode_ranks=frame.decode_ranks,
        prefill_ranks=frame.prefill_ranks,
        most_decoding=frame.most_sequences,
        base_s=pace.base_s,
        slope_s=pace.slope_s,
        start_s=pace.start_s,
        token_s=pace.token_s,
        moved_s=_moved_s(frame, added),
        step_tokens=np.where(frame.chunk_tokens > 0, frame.chunk_tokens, added.step_tokens),
        frontend_s=_frontend_s(frame, added),
        arrival_s=added.arrival_s,
        poll_steps=np.where(frame.poll_steps > 0, frame.poll_steps, np.maximum(added.poll_steps, 1.0)),
        output_steps=added.output_steps,
        hold_steps=frame.hold_steps,
        prefill_first=_prefill_first(frame, added),
        staggered=frame.staggered,
        least_s=launching_s(frame, added),
        rate_per_s=np.where(frame.clients > 0, 0.0, frame.rate_per_s),
        cache_tokens=frame.cache_tokens,
        graph_batch=frame.graph_batch,
        whole_prompts=frame.whole_prompts,
        eager_s=EAGER_LAUNCH_S * frame.launches + added.triton_launch_s * frame.triton_layers,
        jitter=frame.jitter,
        frontend_token_s=_frontend_token_s(frame, added),
        tokenises_together=np.maximum(added.tokenises_together, frame.disaggregated),
        prefill_members=frame.prefill_members,
    )


def settled(frame: Frame, pace: Pace, added: Added) -> Settled:
    """Every loop at rest, waiting in the mean; TPOT is the time per step, of which a token takes 1 / `yielded`.

    Clients that start together, with equal lengths, on an engine that prefills first stay in step: all prompts pass
    before all decode together, so that each waits for half of them before its first token and for half behind it.
    """
    rest = settle(_dynamics(frame, pace, added))
    together = (
        (_prefill_first(frame, added) > 0)
        & (frame.isl_cv == 0)
        & (frame.osl_cv == 0)
        & (frame.staggered == 0)
        & (frame.clients > 0)
    )
    together &= (frame.disaggregated == 0) & (frame.clients <= frame.most_decoding * frame.decode_ranks)
    decoding, steps = frame.clients / frame.decode_ranks, frame.output_steps
    prompts_s = decoding * (frame.isl * pace.token_s + pace.start_s)
    tpot = np.where(together, pace.base_s + pace.slope_s * decoding + prompts_s / 2.0 / steps, rest.tpot_s)
    ttft = np.where(together, prompts_s / 2.0 + _way_s(frame, added), rest.ttft_s)
    rate = np.where(together, frame.clients / (ttft + steps * tpot), rest.rate_per_s)
    return Settled(rate, ttft, tpot, np.where(together, decoding, rest.decoding))


def _dynamics(frame: Frame, pace: Pace, added: Added) -> Dynamics:
    """What decides the loop of each deployment in the mean."""
    prompt = frame.isl * pace.token_s + pace.start_s
    beside = pace.base_s + pace.slope_s * frame.full_batch
    prompt = np.maximum(prompt, launching_s(frame, added) - beside * (frame.disaggregated == 0))
    joining = prompt + pace.base_s + pace.slope_s * frame.full_batch
    apart = frame.disaggregated > 0
    looks = np.where(frame.poll_steps > 0, frame.poll_steps, added.poll_steps)
    waits = looks / 2.0 + frame.hold_steps + added.output_steps
    return Dynamics(
        clients=frame.clients,
        rate_per_s=frame.rate_per_s,
        osl=frame.output_steps,
        decode_ranks=frame.decode_ranks,
        prefill_ranks=frame.prefill_ranks,
        decode_base_s=pace.base_s,
        decode_slope_s=pace.slope_s,
        stretch_s=np.where(apart, 0.0, prompt),
        queue_s=prompt,
        service_s=np.where(apart, np.maximum(pace.prompt_s, prompt), joining)
        + _moved_s(frame, added)
        + _way_s(frame, added),
        first_steps=np.where(apart, 0.0, waits),
        service_cv2=frame.isl_cv**2,
        most_decoding=frame.most_decoding,
    )


def idle_ttft_s(frame: Frame, pace: Pace, added: Added) -> Floats:
    """Time to first token of a request that meets no other prompt: in a full batch, or that of an open load at rest."""
    dynamics = _dynamics(frame, pace, added)
    full = pace.base_s + pace.slope_s * frame.full_batch
    decode = np.where(frame.clients > 0, full, np.minimum(settle(dynamics).tpot_s, full))
    joined = np.where(frame.disaggregated > 0, 0.0, full - decode)
    return dynamics.service_s - joined + dynamics.first_steps * decode


def spread_of(cv: Floats) -> Floats:
    """s of the uniform lengths in [(1 - s) L, L] with this coefficient of variation, as far as uniform ones have it."""
    scaled = cv * 12.0**0.5
    return np.asarray(np.minimum(scaled / (1.0 + scaled / 2.0), 1.0))


def largest_of(spread: Floats) -> Floats:
    """The largest of such uniform lengths over their mean."""
    return 1.0 / (1.0 - spread / 2.0)


def taken(columns: Any, index: object) -> Any:  # noqa: ANN401 - any of the dataclasses of columns
    """The chosen rows of a dataclass of columns."""
    return type(columns)(*(getattr(columns, field.name)[index] for field in fields(columns)))


def launching_s(frame: Frame, added: Added | EngineOverheads) -> Floats:
    """The least that a step with prompts takes."""
    tokens = frame.isl + np.where(frame.disaggregated > 0, 0.0, frame.full_batch)
    layers_s = added.latent_launch_s * frame.latent_layers + added.triton_launch_s * frame.triton_layers
    return (added.launch_s * frame.launches + layers_s) * launched_share(tokens, frame.captured_tokens)


def _prefill_first(frame: Frame, added: Added) -> Floats:
    return added.prefill_first * (1.0 - frame.mixed_steps)


def _way_s(frame: Frame, added: Added) -> Floats:
    """From a client to the scheduler, where no other request is on its way."""
    return _frontend_s(frame, added) + _frontend_token_s(frame, added) * frame.isl + added.arrival_s


def _frontend_s(frame: Frame, added: Added) -> Floats:
    return np.where(frame.disaggregated > 0, added.router_s, added.frontend_s) * (1.0 - frame.in_process)


def _frontend_token_s(frame: Frame, added: Added) -> Floats:
    return added.frontend_token_s * (1.0 - frame.in_process)


def _moved_s(frame: Frame, added: Added) -> Floats:
    return (frame.moved_s + added.handover_s) * frame.disaggregated
