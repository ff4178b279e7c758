"""What a tower has to encode for the requests of a workload. V amounts, R requests."""

import math
from dataclasses import dataclass

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.models.architecture import Architecture, Encoder
from planner.problem.media import ImagesSpec, TraceAmounts, distribution
from planner.problem.schema import WorkloadSpec
from planner.schema.base import Where


@dataclass(frozen=True, slots=True)
class Media:
    """What a tower encodes for the requests of a workload, in tokens of its own, before they merge."""

    encoder: Encoder
    tokens: tuple[float, ...]  # of a request, ascending
    shares: tuple[float, ...]  # of the requests with so many
    attended: float  # tokens that one of them attends to
    prompt_tokens: float  # of the mean prompt that they become

    @property
    def some(self) -> float:
        """The share of requests that have any."""
        return sum(share for tokens, share in zip(self.tokens, self.shares, strict=True) if tokens > 0.0)

    @property
    def mean_tokens(self) -> float:
        """Of a request."""
        return sum(tokens * share for tokens, share in zip(self.tokens, self.shares, strict=True))

    def of_prompts(self, input_tokens: Ints) -> Floats:
        """What is encoded for requests with these prompts [R]: the longest have most."""
        place_R = np.empty(len(input_tokens))
        place_R[np.argsort(input_tokens, kind="stable")] = (np.arange(len(input_tokens)) + 0.5) / len(input_tokens)
        ends_V = np.cumsum(self.shares) / sum(self.shares)
        row_R = np.minimum(np.searchsorted(ends_V, place_R), len(ends_V) - 1)
        return np.array(self.tokens)[row_R]


def media_of(
    workload: WorkloadSpec, arch: Architecture, prompt_tokens: float, where: Where, index: int
) -> Media | None:
    """What the model's tower encodes for a workload with prompts of so many tokens on average; None for text alone.

    Raises PlannerError for models without a tower that is priced, and for prompts shorter than what media become.
    """
    if workload.images is None and workload.audio_s is None:
        return None
    key, kind = ("images", "vision") if workload.images is not None else ("audio_s", "audio")
    place = where(("workloads", index, key))
    if workload.images is not None and workload.audio_s is not None:
        raise PlannerError(
            "a workload has images or sounds, not both",
            where=place,
            hint="make two workloads of them, each with its load",
        )
    towers = [tower for tower in arch.encoders if tower.kind == kind]
    if not towers:
        raise PlannerError(
            f"`{arch.name}` has no {kind} tower", where=place, hint=f"leave `{key}` out, or name another model"
        )
    if not towers[0].is_priced:
        raise PlannerError(
            f"the {kind} tower of `{arch.name}` has no cost: what it takes in is not known",
            where=place,
            hint="name a model whose tower `planner models show` gives patches and projectors of",
        )
    media = _encoded(workload, towers[0])
    if media.prompt_tokens > prompt_tokens * (1.0 + 1e-9):
        raise PlannerError(
            f"{'images' if kind == 'vision' else 'sounds'} of a request become {media.prompt_tokens:,.0f} tokens on"
            f" average, and its prompt has {prompt_tokens:,.0f}, with them and the text",
            where=where(("workloads", index, "input_tokens")),
            hint=f"write `input_tokens: {math.ceil(media.prompt_tokens)}` or more, or fewer or smaller ones",
        )
    return media


def _encoded(workload: WorkloadSpec, tower: Encoder) -> Media:
    images = workload.images
    amounts = images.count if images is not None else workload.audio_s
    assert amounts is not None
    assert not isinstance(amounts, TraceAmounts), "problems are resolved"
    drawn = distribution(amounts)
    order = np.argsort(drawn.values, kind="stable")
    values, shares = np.array(drawn.values)[order], np.array(drawn.shares)[order]
    if images is not None:
        own = images.tokens * tower.merge if images.tokens else _of_size(tower, images)
        tokens, squares, kept = values * own, values * float(own) ** 2, values * own
    else:
        tokens = np.array([tower.tokens_of_sound(value) for value in values.tolist()], float)
        squares, kept = tokens**2, np.ceil(values * tower.tokens_per_s)
    total = float(shares @ tokens)
    attended = float(tower.chunk_tokens) if tower.chunk_tokens else float(shares @ squares) / total
    prompt = float(shares @ kept) / tower.merge
    return Media(tower, tuple(tokens.tolist()), tuple(shares.tolist()), attended, prompt)


def _of_size(tower: Encoder, images: ImagesSpec) -> int:
    assert images.width is not None
    assert images.height is not None
    return tower.tokens_of_image(images.width, images.height)
