"""Elastic sequence parallelism: instances that join for a prefill and part again for decoding, batch by batch.

Source: Wu et al., LoongServe, SOSP 2024 (arXiv:2404.09526), section 5. Instances share one KV cache, token by token.
Whenever an instance is between steps:
 (1) requests that wait are taken in order, as long as the instances that are free or borrowed have room for their whole
     lengths, and tokens for a step;
 (2) instances that decode are borrowed, those of fewest tokens first, where no other is free, or where that shortens
     the wait of the requests, for each token of their prompts, by more than the wait of the answers that stand still,
     for each token that they have (gain and cost of the paper, section 5.2);
 (3) the requests are cut into batches that share the instances (`solvers.shared_batches`), or are one batch where the
     instances of such a batch have too little room;
 (4) a prefilled batch stays on as few of its instances as have room, those with most of it, whose decoding batches it
     joins; what is computed elsewhere is kept there as it is made, so that parting costs nothing.
A step of k instances: each works on its share of the tokens; keys and values go round a ring behind the work, which the
step waits for where it takes longer. Decoding sequences are shared by the instances that hold them, which exchange
queries and partial results in every layer. Written for hundreds of requests, not for millions: one event at a time.
"""

import heapq
import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.errors import PlannerError
from planner.simulate.requests import Requests
from planner.simulate.step_grid import StepGrid
from planner.solvers.shared_batches import FloatArray, share_batches

MOST_JOBS = 12  # requests that share instances at once


@dataclass(frozen=True, slots=True)
class ElasticFleet:
    """Equal instances of one model that can work on a sequence together."""

    grid: StepGrid  # of one instance
    instances: int
    kv_tokens: int  # of one instance
    token_budget: int  # of a step of one instance; a longer prompt has a step of its own
    most_sequences: int = 256  # that decode together on one instance
    ring_tokens_per_s: float = math.inf  # keys and values from one instance to the next
    exchange_s: float = 0.0  # of a decode step that several instances share
    borrows: bool = True

    def __post_init__(self) -> None:
        if min(self.instances, self.kv_tokens, self.token_budget, self.most_sequences) < 1:
            raise PlannerError("instances, KV tokens, tokens of a step and sequences must be at least 1")
        if self.most_sequences > self.grid.most_sequences:
            what = f"step times end at {self.grid.most_sequences} sequences, an instance runs {self.most_sequences}"
            raise PlannerError(what, hint="build the grid for as many")

    def prefill_s(self, k: int, lengths: NDArray[np.int64]) -> float:
        """A step that prefills prompts on k instances."""
        total = float(lengths.sum())
        attended = float((lengths * (lengths + 1.0) / 2.0).sum()) / total
        work_s = self.grid.prefill_s(total / k, attended)
        return max(work_s, (k - 1) / k * total / self.ring_tokens_per_s)

    def decode_s(self, k: int, sequences: int, context: int) -> float:
        """A step that decodes sequences held by k instances."""
        share = -(-sequences // k)
        seconds = float(np.interp(context / sequences, self.grid.contexts, self.grid.decode_s[share]))
        return seconds + (self.exchange_s if k > 1 else 0.0)

    def fitted(self) -> NDArray[np.float64]:
        """A, B, C of A + B sum of lengths + C sum of squares [s] of a prefill on one instance, by least squares."""
        lengths = self.grid.tokens[self.grid.tokens >= 1.0]
        seconds = np.array([self.grid.prefill_s(length, (length + 1.0) / 2.0) for length in lengths])
        columns = np.stack([np.ones_like(lengths), lengths, lengths**2], axis=1) / seconds[:, None]
        found = np.linalg.lstsq(columns, np.ones_like(lengths), rcond=None)[0]
        return np.asarray(np.maximum(found, 0.0), dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class ElasticResult:
    """Times of requests [R]; NaN where a request is too long for all instances together."""

    requests: Requests
    started_s: FloatArray
    first_token_s: FloatArray
    finished_s: FloatArray
    degrees: NDArray[np.int64]  # [R] instances that prefilled it; 0 if rejected

    @property
    def ttft_s(self) -> FloatArray:
        return self.first_token_s - self.requests.arrival_s

    @property
    def tpot_s(self) -> FloatArray:
        """Seconds per output token after the first; NaN for a single one."""
        gaps = self.requests.output_tokens - 1.0
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(gaps > 0, (self.finished_s - self.first_token_s) / gaps, np.nan)


@dataclass(eq=False)
class _Batch:
    """What some instances do together until `end_s`: a prefill of `prompts`, or a decode step of all `decoding`."""

    instances: frozenset[int]
    prompts: list[int] = field(default_factory=list)
    decoding: list[int] = field(default_factory=list)


def simulate_elastic(fleet: ElasticFleet, requests: Requests) -> ElasticResult:
    """Plays an open stream of requests."""
    if requests.num_open != len(requests):
        raise PlannerError("elastic instances are played on requests that come at given times", hint="give a trace")
    run = _Run(fleet, requests)
    run.play()
    return ElasticResult(requests, run.started_s, run.first_s, run.finished_s, run.degrees)


class _Run:
    """The state of a run; instances are in exactly one of `free`, `paused` (holding batches between steps) and busy."""

    def __init__(self, fleet: ElasticFleet, requests: Requests) -> None:
        count = len(requests)
        self.fleet, self.requests = fleet, requests
        self.coefficients = fleet.fitted()
        self.room = [fleet.kv_tokens] * fleet.instances
        self.held: dict[int, dict[int, int]] = {}  # request -> instance -> tokens kept for it
        self.generated = [0] * count
        self.inputs, self.outputs = requests.input_tokens.tolist(), requests.output_tokens.tolist()
        self.known_groups: list[_Batch] | None = None
        self.started_s, self.first_s, self.finished_s = (np.full(count, math.nan) for _ in range(3))
        self.degrees = np.zeros(count, dtype=np.int64)
        self.waiting: list[int] = []
        self.decoding: set[int] = set()
        self.busy: set[int] = set()
        self.ends: list[tuple[float, int, _Batch]] = []
        self.number = 0
        self.now_s = 0.0

    def play(self) -> None:
        """Until nothing is left to do."""
        arrivals, at, count = self.requests.arrival_s.tolist(), 0, len(self.requests)
        while at < count or self.ends:
            self.now_s = min(arrivals[at] if at < count else math.inf, self.ends[0][0] if self.ends else math.inf)
            while self.ends and self.ends[0][0] <= self.now_s:
                self.end(heapq.heappop(self.ends)[2])
            while at < count and arrivals[at] <= self.now_s:
                if self.length(at) <= self.fleet.kv_tokens * self.fleet.instances:
                    self.waiting.append(at)
                at += 1
            self.prefill()
            self.decode()

    def length(self, r: int) -> int:
        """Tokens that are kept for a request."""
        return int(self.inputs[r] + self.outputs[r])

    def end(self, batch: _Batch) -> None:
        """Tokens of a step are there; requests that have all leave."""
        self.busy -= batch.instances
        for r in batch.prompts:
            self.first_s[r] = self.now_s
            self.decoding.add(r)
            self.known_groups = None
        for r in batch.prompts + batch.decoding:
            self.generated[r] += 1
            if self.generated[r] == self.outputs[r]:
                self.known_groups = None
                self.finished_s[r] = self.now_s
                self.decoding.discard(r)
                for instance, tokens in self.held.pop(r).items():
                    self.room[instance] += tokens

    def start(self, batch: _Batch, seconds: float) -> None:
        self.busy |= batch.instances
        self.number += 1
        heapq.heappush(self.ends, (self.now_s + seconds, self.number, batch))

    # --- prefill
    def prefill(self) -> None:
        """Takes requests that wait, and has instances prefill them."""
        while self.waiting:
            chosen = self.instances_for()
            taken = self.taken(chosen)
            if not taken:
                return
            lengths = self.requests.input_tokens[taken]
            shared = share_batches(lengths.tolist(), len(chosen), self.estimate).batches
            left = sorted(chosen, key=lambda instance: (-self.room[instance], instance))
            parts, at = [], 0
            for batch in shared:
                parts.append(([taken[job] for job in batch.jobs], left[at : at + batch.machines]))
                at += batch.machines
            if any(sum(map(self.length, mine)) > sum(self.room[i] for i in where) for mine, where in parts):
                parts, at = [(taken, left)], len(left)
            for mine, where in parts:
                self.start_prefill(mine, where)
            if at == len(left):
                return

    def estimate(self, k: int, total: FloatArray, squares: FloatArray) -> FloatArray:
        """Seconds of a batch as the batching believes (the fitted form of the paper)."""
        a, b, c = self.coefficients
        return np.asarray(a + (b * total + c * squares) / k, dtype=np.float64)

    def idle(self) -> list[int]:
        """Instances that neither step nor hold a batch that decodes."""
        decoding = {instance for group in self.groups() for instance in group.instances}
        return [i for i in range(self.fleet.instances) if i not in self.busy and i not in decoding]

    def taken(self, instances: list[int]) -> list[int]:
        """The first of the waiting requests that the instances have room and tokens for."""
        room = sum(self.room[i] for i in instances)
        tokens = self.fleet.token_budget * len(instances)
        found: list[int] = []
        for r in self.waiting[:MOST_JOBS]:
            prompt = self.inputs[r]
            if self.length(r) > room or not instances or (found and prompt > tokens):
                break
            room -= self.length(r)
            tokens -= prompt
            found.append(r)
        return found

    def instances_for(self) -> list[int]:
        """The idle instances, and those that decode and are worth borrowing."""
        chosen = self.idle()
        groups = [group for group in self.groups() if not group.instances & self.busy]
        if not self.fleet.borrows and chosen:
            return chosen
        groups.sort(key=lambda group: (sum(self.length(r) for r in group.decoding), min(group.instances)))
        reach, still = chosen, 0.0
        for group in groups:
            reach = [*reach, *sorted(group.instances)]
            still += sum(1.0 / max(self.generated[r], 1) for r in group.decoding)
            taken = self.taken(reach)
            if taken and (not self.taken(chosen) or self.saved(taken, len(chosen), len(reach)) > still):
                chosen, still = reach, 0.0
        return chosen

    def saved(self, taken: list[int], before: int, after: int) -> float:
        """How much less requests wait on more instances, for each token of their prompts; in times of their prefill."""
        lengths = self.requests.input_tokens[taken].astype(np.float64)
        slow, fast = (float(self.time(k, lengths)) for k in (before, after))
        return (slow - fast) / fast * float((1.0 / lengths).sum())

    def time(self, k: int, lengths: FloatArray) -> FloatArray:
        return self.estimate(k, lengths.sum(), (lengths**2).sum())

    def start_prefill(self, requests: list[int], instances: list[int]) -> None:
        """Room for whole lengths is kept on as few of the instances as have it; all of them prefill."""
        for r in requests:
            self.waiting.remove(r)
            self.started_s[r] = self.now_s
            self.degrees[r] = len(instances)
            left, self.held[r] = self.length(r), {}
            for instance in sorted(instances, key=lambda i: (-self.room[i], i)):
                tokens = min(left, self.room[instance])
                if tokens > 0:
                    self.held[r][instance] = tokens
                    self.room[instance] -= tokens
                    left -= tokens
        lengths = self.requests.input_tokens[requests]
        self.start(_Batch(frozenset(instances), prompts=requests), self.fleet.prefill_s(len(instances), lengths))

    # --- decode
    def groups(self) -> list[_Batch]:
        """Decoding requests that share instances, directly or by others, as one batch each."""
        if self.known_groups is not None:
            return self.known_groups
        found: list[_Batch] = []
        for r in sorted(self.decoding):
            instances, requests = frozenset(self.held[r]), [r]
            apart = []
            for group in found:
                if group.instances & instances:
                    instances |= group.instances
                    requests = group.decoding + requests
                else:
                    apart.append(group)
            found = [*apart, _Batch(instances, decoding=requests)]
        self.known_groups = [_Batch(group.instances, decoding=sorted(group.decoding)) for group in found]
        return self.known_groups

    def decode(self) -> None:
        """Starts the next step of every decoding batch whose instances are all between steps."""
        for group in self.groups():
            if group.instances & self.busy:
                continue
            k = len(group.instances)
            batch = group.decoding[: k * self.fleet.most_sequences]
            context = sum(self.inputs[r] + self.generated[r] for r in batch)
            self.start(_Batch(group.instances, decoding=batch), self.fleet.decode_s(k, len(batch), context))
