"""Seconds that an engine encodes the images or sounds of requests before it prefills them. V amounts of a workload.

A request is encoded in one run of the tower, in the step that its prompt begins with: base_s + token_s x tokens of the
tower, the affine time of `planner.solvers.workflow.encode_pools`, between the mean request and one of twice as much.
Vision towers are cut by tensor parallelism where it divides their heads, as engines do by default; others, and audio
towers, run whole on every rank. They stand on the first stage of a pipeline, at whose pace all others then go.
"""

from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Bools, Floats
from planner.costs.operators.towers import TowerLoad, tower_operators
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.pricer import Pricer
from planner.costs.rates.step import StepTime, price_operators
from planner.models.architecture import Architecture, Encoder
from planner.problem.encoded import Media
from planner.solvers.workflow.encode_pools import encode_s


@dataclass(frozen=True, slots=True)
class EncodeTimes:
    """Encoding a request on an instance [N]."""

    base_s: Floats  # of a run, where there is anything to encode
    token_s: Floats  # of a token of the tower
    mean: StepTime  # what the mean request takes

    def of_tokens(self, tokens: Floats, point: int = 0) -> Floats:
        """Of requests with so many tokens, on one instance."""
        return encode_s(tokens, float(self.base_s[point]), float(self.token_s[point]))


def cut_by_ranks(encoder: Encoder, tp: Floats) -> Bools:
    """Whether tensor-parallel ranks share the tower out [N]."""
    return np.asarray((encoder.kind == "vision") & (encoder.num_heads % tp == 0))


def encode_times(arch: Architecture, pricer: Pricer, shards: Shards, media: Media) -> EncodeTimes:
    """What encoding takes on the first stage of instances."""
    ranks, inverse = np.unique(np.where(cut_by_ranks(media.encoder, shards.tp), shards.tp, 1.0), return_inverse=True)
    tokens, some = media.mean_tokens / media.some, media.some

    def run(load: float) -> StepTime:
        operators = tower_operators(arch, media.encoder, Shards.of(ranks), TowerLoad(load, media.attended))
        return price_operators(operators, pricer, len(ranks)).slower(pricer.slowdown)

    once = run(tokens)
    token_s = np.clip(run(2.0 * tokens).device_s - once.device_s, 0.0, once.device_s) / tokens
    base_s = once.device_s - tokens * token_s
    mean_s = some * once.device_s[inverse]
    name = f"{media.encoder.kind}_tower"
    mean = StepTime(mean_s, np.zeros(len(shards)), {name: mean_s}, some * once.by_basis[:, inverse])
    return EncodeTimes(base_s[inverse], token_s[inverse], mean)


@dataclass(frozen=True, slots=True)
class Encoding:
    """Media spread evenly over the tokens of mean prompts: what a step encodes goes with what it prefills."""

    media: Media
    prompt_tokens: float  # of the mean prompt

    def step(self, arch: Architecture, pricer: Pricer, shards: Shards, work: Work) -> StepTime:
        """What steps encode [N], at the pace of the first stage."""
        mean = encode_times(arch, pricer, shards, self.media).mean
        share = work.prefill_tokens / self.prompt_tokens * shards.pp
        by_operator = {name: share * seconds for name, seconds in mean.by_operator.items()}
        return replace(mean, device_s=share * mean.device_s, by_operator=by_operator, by_basis=share * mean.by_basis)
