"""Encode, prefill and decode instances for requests with images: the highest rate whose requests keep both limits.

Source      Singh et al., "Efficiently Serving Large Multimodal Models Using EPD Disaggregation", ICML 2025
            (arXiv:2501.05460), section 3; images of a request encoded in parallel: section 3.2
Sets        r in R requests, of the stream at each rate of a rising list;  G instances of one GPU
Parameters  m_r images, n_r prompt tokens, o_r tokens of the answer;  E_1 + E_2 m [s] to encode m images
            p_r [s] to prefill;  a_r, b_r [s] to move features and caches;  D_1 + D_2 z [s] a step of z slots
            limits on TTFT and on TPOT, and the share of requests that keep both
Variables   e encode instances (none: prefill instances encode), p prefill, d = G - e - p decode;  z slots in Z
            whether images of a request are encoded in parallel
Maximise    the last rate of the list up to which every rate keeps the share
(C1) every pool takes its jobs first come, first served: images, prompts, then a slot for o_r steps
(C2) TTFT = end of prefill - arrival;  TPOT = (end of decode - end of prefill) / o_r

All instances are used: more servers of the last queue start no job later (their free times in order fall one by one:
Kiefer and Wolfowitz, Transactions of the American Mathematical Society 78, 1955), and both limits look at nothing else.
Every split and every z is tried: at the next rate first, and only where that holds at those up to it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.solvers.result import SolveResult, Status

WHERE = "encode"
SOLVER = "every split simulated"


@dataclass(frozen=True, slots=True, eq=False)
class ImageRequests:
    """A stream: arrivals, images, seconds of prefill, of moves, and tokens of answers, of each request [R]."""

    arrival_s_R: Floats
    images_R: Ints
    prefill_s_R: Floats
    feature_move_s_R: Floats
    cache_move_s_R: Floats
    output_tokens_R: Floats


@dataclass(frozen=True, slots=True)
class ImageLimits:
    """TTFT and TPOT, and the share of requests that keep both."""

    ttft_s: float
    tpot_s: float
    attainment: float


@dataclass(frozen=True, slots=True)
class EncodeSplit:
    """Instances of each role and slots of a decode instance; no encode instances: prefill instances encode."""

    encode: int
    prefill: int
    decode: int
    slots: int
    parallel_images: bool


@dataclass(frozen=True, slots=True, eq=False)
class EncodePools:
    """The problem; `stream_at` gives the requests at a rate, of equal number and order at every rate."""

    stream_at: Callable[[float], ImageRequests]
    rates_per_s: tuple[float, ...]
    instances: int
    slots: tuple[int, ...]
    encode_base_s: float
    encode_image_s: float
    decode_base_s: float
    decode_slot_s: float
    limits: ImageLimits

    def __post_init__(self) -> None:
        if self.instances < 2:
            what = f"{self.instances} instances"
            raise PlannerError(what, where=WHERE, hint="give at least 2, for prefill and decode")
        if not self.rates_per_s or sorted(set(self.rates_per_s)) != list(self.rates_per_s):
            raise PlannerError("rates must rise, and there must be one at least", where=WHERE)
        if not self.slots or min(self.slots) < 1:
            raise PlannerError("slots must be 1 or more, and there must be a choice", where=WHERE)


@dataclass(slots=True, eq=False)
class _Fronts:
    """Streams, and ends of prefill with the requests in time by split before decode, as they are asked for."""

    problem: EncodePools
    stream_of: dict[int, ImageRequests] = field(default_factory=dict)
    front_of: dict[tuple[int, int, int, bool], tuple[Floats, Bools]] = field(default_factory=dict)

    def stream(self, step: int) -> ImageRequests:
        if step not in self.stream_of:
            self.stream_of[step] = self.problem.stream_at(self.problem.rates_per_s[step])
        return self.stream_of[step]

    def front(self, step: int, split: EncodeSplit) -> tuple[Floats, Bools]:
        key = (step, split.encode, split.prefill, split.parallel_images)
        if key not in self.front_of:
            requests = self.stream(step)
            first_s_R = first_tokens_s(self.problem, requests, split)
            in_time_R = first_s_R - requests.arrival_s_R <= self.problem.limits.ttft_s
            self.front_of[key] = (first_s_R, in_time_R)
        return self.front_of[key]

    def holds(self, step: int, split: EncodeSplit) -> bool:
        first_s_R, in_time_R = self.front(step, split)
        limits = self.problem.limits
        if np.mean(in_time_R) < limits.attainment:
            return False
        requests = self.stream(step)
        tpot_s_R = tokens_s(self.problem, requests, split, first_s_R)
        return bool(np.mean(in_time_R & (tpot_s_R <= limits.tpot_s)) >= limits.attainment)


def encode_s(images_R: Ints | Floats, base_s: float, image_s: float) -> Floats:
    """Seconds to encode the images of a request together [R]; or tokens of them, in a time of each."""
    return np.asarray(np.where(images_R > 0, base_s, 0.0) + image_s * images_R)


def encoded_s(
    arrival_s_R: Floats, images_R: Ints, base_s: float, image_s: float, servers: int, *, split: bool
) -> Floats:
    """When all images of a request are encoded [R], each a job of its own where they are split."""
    from planner.solvers.compiled.tandem import starts

    if not split:
        service_s_R = encode_s(images_R, base_s, image_s)
        return np.asarray(starts(arrival_s_R, service_s_R, servers) + service_s_R)
    owner_J = np.repeat(np.arange(len(images_R)), images_R)
    image_s_J = np.full(len(owner_J), base_s + image_s)
    end_s_J = starts(arrival_s_R[owner_J], image_s_J, servers) + image_s_J
    encoded_s_R = arrival_s_R.copy()
    np.maximum.at(encoded_s_R, owner_J, end_s_J)
    return encoded_s_R


def first_tokens_s(problem: EncodePools, requests: ImageRequests, split: EncodeSplit) -> Floats:
    """Ends of prefill [R]."""
    from planner.solvers.compiled.tandem import starts

    images_R, base_s, image_s = requests.images_R, problem.encode_base_s, problem.encode_image_s
    if not split.encode:
        service_s_R = requests.prefill_s_R + encode_s(images_R, base_s, image_s)
        return np.asarray(starts(requests.arrival_s_R, service_s_R, split.prefill) + service_s_R)
    ends_s_R = encoded_s(requests.arrival_s_R, images_R, base_s, image_s, split.encode, split=split.parallel_images)
    ready_s_R = ends_s_R + requests.feature_move_s_R
    return np.asarray(starts(ready_s_R, requests.prefill_s_R, split.prefill) + requests.prefill_s_R)


def tokens_s(problem: EncodePools, requests: ImageRequests, split: EncodeSplit, first_s_R: Floats) -> Floats:
    """TPOT [s] of each request [R]: from its first token to its last, over its tokens."""
    from planner.solvers.compiled.tandem import starts

    held_s_R = requests.output_tokens_R * (problem.decode_base_s + problem.decode_slot_s * split.slots)
    begin_s_R = starts(first_s_R + requests.cache_move_s_R, held_s_R, split.decode * split.slots)
    return np.asarray((begin_s_R + held_s_R - first_s_R) / requests.output_tokens_R)


def splits(problem: EncodePools) -> Iterator[EncodeSplit]:
    """Every split that uses all instances, without an encode pool first."""
    for encode in range(problem.instances - 1):
        for prefill in range(1, problem.instances - encode):
            for parallel in (True, False) if encode else (False,):
                for slots in problem.slots:
                    yield EncodeSplit(encode, prefill, problem.instances - encode - prefill, slots, parallel)


def highest_rate(problem: EncodePools, candidates: Sequence[EncodeSplit] | None = None) -> SolveResult[EncodeSplit]:
    """The split, of all or of these, that keeps the limits up to the highest rate; INFEASIBLE where none keeps one."""
    started_s = time.perf_counter()
    fronts = _Fronts(problem)
    best, kept = None, 0  # rates kept by the best
    for split in splits(problem) if candidates is None else candidates:
        if kept == len(problem.rates_per_s) or not fronts.holds(kept, split):
            continue
        if not all(fronts.holds(step, split) for step in range(kept)):
            continue
        best, kept = split, kept + 1
        while kept < len(problem.rates_per_s) and fronts.holds(kept, split):
            kept += 1
    solve_s = time.perf_counter() - started_s
    if best is None:
        return SolveResult(Status.INFEASIBLE, "finished", None, None, None, solve_s, SOLVER)
    rate = problem.rates_per_s[kept - 1]
    return SolveResult(Status.OPTIMAL, "finished", best, rate, rate, solve_s, SOLVER)
