"""A slow and plain simulator of engines whose stages form a pipeline, from the definition alone.

An engine is one attention rank of a replica, or several that step together. It has one scheduler, one waiting queue and
one KV cache a rank, and `pp` stages. A batch is in flight from its forming until it has left the last stage; at most
`pp` are. Stages keep the order of batches, and between stages there is room for all of them:
    start[k] = max(end[k-1], free[k]),  end[k] = start[k] + stage_s[k].
Tokens appear, and sequences are free for the next batch, when their batch leaves the last stage. At one moment batches
leave first, then requests arrive, then batches are formed. Where ranks step together, each forms a part of every batch,
and a stage takes as long as its slowest rank.

`vllm`: while fewer than pp batches are in flight, a batch is all decoding sequences that are in none, then the next
chunk of the prompt under way (its chunks follow each other in successive batches, in flight together), then waiting
prompts first come first served, within the token budget. The limit on sequences counts all of an engine's, the budget
those of a batch. (vLLM 0.33.0, v1/engine/core.py:708 `step_with_batch_queue`, v1/core/sched/scheduler.py:800-881 and
1067-1076.)

`sglang`: pp slots in rotation, each with decoding sequences of its own, at most most_sequences // pp; queue and prompt
under way are shared, so that chunks of a prompt go through successive slots, and it decodes in the slot of its last
one. A slot whose turn it is makes a batch of prompts alone if it can, or else decodes. Slots with nothing to do are
passed over. (SGLang 0.5.23, managers/scheduler_pp_mixin.py:91 `event_loop_pp`, managers/scheduler.py:1237, 3894, 4034.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False)
class Request:
    id: int
    arrival_s: float
    input: int
    output: int = 1
    generated: int = 0
    scheduled: int = 0  # tokens of its prompt in batches formed so far
    pending: int = 0  # batches in flight with tokens of it
    slot: int = 0
    blocks: int = 0
    preempted: int = 0
    started_s: float = -1.0
    first_s: float = -1.0
    finished_s: float = -1.0
    rank: "Rank | None" = None

    @property
    def prompt(self) -> int:
        """Tokens to prefill, those generated before a preemption among them."""
        return self.input + self.generated


@dataclass(frozen=True)
class Chunk:
    request: Request
    tokens: int
    before: int  # tokens of the prompt in earlier batches


@dataclass
class Part:
    """What one rank does in a batch."""

    chunks: list[Chunk] = field(default_factory=list)
    decodes: list[Request] = field(default_factory=list)
    context: int = 0  # tokens that the decoding sequences attend to

    @property
    def tokens(self) -> int:
        return sum(chunk.tokens for chunk in self.chunks)

    @property
    def pairs(self) -> float:
        """Tokens of prompts times those that each attends to."""
        return sum(chunk.tokens * (chunk.before + (chunk.tokens + 1) / 2) for chunk in self.chunks)

    def __bool__(self) -> bool:
        return bool(self.chunks or self.decodes)


@dataclass
class Batch:
    parts: list[Part]
    slot: int
    formed_s: float
    starts_s: list[float]
    ends_s: list[float]


@dataclass(frozen=True)
class Rules:
    """`stage_s` gives the seconds of each of the pp stages for what one rank does in a batch."""

    stage_s: Callable[[Part], Sequence[float]]
    pp: int = 1
    engine: str = "vllm"
    role: str = "colocated"  # prefill: done with the first token; decode: requests come with their prompts prefilled
    token_budget: int = 8192
    most_sequences: int = 256
    kv_tokens: int = 10**9
    block_tokens: int = 16
    ranks: int = 1
    looks_at_once: bool = True  # else at arrivals as batches leave, or when none is in flight


class Rank:
    """Queue, memory and sequences of one attention rank."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.free = rules.kv_tokens // rules.block_tokens
        self.queue: list[Request] = []
        self.decoding: list[Request] = []
        self.partial: Request | None = None  # prompt of which a part is in no batch yet
        self.ending: list[Request] = []  # prompts of which no part is left, in flight

    @property
    def outstanding(self) -> int:
        return len(self.queue) + self.running

    @property
    def running(self) -> int:
        return len(self.decoding) + len(self.ending) + (self.partial is not None)

    def needed(self, tokens: int) -> int:
        return -(-tokens // self.rules.block_tokens)

    def growing(self, sequences: list[Request]) -> list[Request]:
        return [r for r in sequences if (r.input + r.generated - 1) % self.rules.block_tokens == 0]

    def form(self, slot: int, now: float) -> Part:
        part = Part()
        own = [r for r in self.decoding if not r.pending and (self.rules.engine == "vllm" or r.slot == slot)]
        if self.rules.engine == "vllm":
            short = self.make_room(own)
            short |= self.go_on(part, own, self.rules.token_budget - len(own), slot)
            if not short or not (own or part.chunks):
                self.admit_waiting(part, own, self.rules.token_budget - len(own), slot, now)
            part.decodes = own
        else:
            self.fill(part, own, self.rules.token_budget, slot, now)
            if not part:
                if self.make_room(own) and not own:
                    self.fill(part, own, self.rules.token_budget, slot, now)
                part.decodes = own
        for r in self.growing(part.decodes):
            r.blocks += 1
            self.free -= 1
        part.context = sum(r.input + r.generated for r in part.decodes)
        for r in part.decodes:
            r.pending += 1
        return part

    def make_room(self, own: list[Request]) -> bool:
        """Whether sequences were preempted for the blocks that those of the batch need."""
        short = False
        while own and len(self.growing(own)) > self.free:
            short |= self.preempt(own)
        return short

    def preempt(self, own: list[Request]) -> bool:
        """The last that came: of the batch, or a prompt with no part in flight. Whether there is any."""
        idle = [self.partial] if self.partial is not None and not self.partial.pending else []
        if not own and not idle:
            return False
        r = max([*own, *idle], key=lambda r: (r.arrival_s, r.id))
        if r is self.partial:
            self.partial = None
        else:
            own.remove(r)
            self.decoding.remove(r)
        self.free += r.blocks
        r.blocks, r.scheduled, r.preempted = 0, 0, r.preempted + 1
        self.queue.append(r)
        return True

    def go_on(self, part: Part, own: list[Request], budget: int, slot: int) -> bool:
        """The next chunk of the prompt under way, which takes its blocks now; whether any was preempted for it."""
        short = False
        while self.partial is not None and budget > 0:
            tokens = min(self.partial.prompt - self.partial.scheduled, budget)
            margin = len(self.growing(own)) if self.rules.engine == "vllm" else 0
            if self.needed(self.partial.scheduled + tokens) - self.partial.blocks <= self.free - margin:
                self.add(part, self.partial, tokens, slot)
                break
            if not self.preempt(own):
                break
            short = True
        return short

    def fill(self, part: Part, own: list[Request], budget: int, slot: int, now: float) -> None:
        self.go_on(part, own, budget, slot)
        self.admit_waiting(part, own, budget, slot, now)

    def admit_waiting(self, part: Part, own: list[Request], budget: int, slot: int, now: float) -> None:
        while self.queue and self.has_place(part, own):
            r = min(self.queue, key=lambda r: (r.arrival_s, r.id))
            left = budget - part.tokens
            margin = len(self.growing(own)) if self.rules.engine == "vllm" else 0
            if self.rules.role == "decode":
                if self.needed(r.prompt) > self.free - margin:
                    return
                self.admit(r, r.prompt - 1, now)
                r.slot = slot
                self.decoding.append(r)
                own.append(r)
                continue
            if left <= 0 or self.partial is not None or self.needed(r.prompt) > self.free - margin:
                return
            self.admit(r, 0, now)
            self.add(part, r, min(r.prompt, left), slot)

    def has_place(self, part: Part, own: list[Request]) -> bool:
        if self.running >= self.rules.most_sequences:
            return False
        return self.rules.engine == "vllm" or len(own) + len(part.chunks) < max(
            self.rules.most_sequences // self.rules.pp, 1
        )

    def admit(self, r: Request, tokens: int, now: float) -> None:
        self.queue.remove(r)
        r.blocks = self.needed(tokens)
        self.free -= r.blocks
        if r.started_s < 0:
            r.started_s = now

    def add(self, part: Part, r: Request, tokens: int, slot: int) -> None:
        part.chunks.append(Chunk(r, tokens, r.scheduled))
        r.scheduled += tokens
        self.free -= self.needed(r.scheduled) - r.blocks
        r.blocks = self.needed(r.scheduled)
        r.pending += 1
        r.slot = slot
        self.partial = r if r.scheduled < r.prompt else None
        if self.partial is None:
            self.ending.append(r)

    def end(self, part: Part, now: float) -> None:
        for r in part.decodes:
            r.pending -= 1
            r.generated += 1
            if r.generated == r.output:
                self.decoding.remove(r)
                self.finish(r, now)
        for chunk in part.chunks:
            r = chunk.request
            r.pending -= 1
            if chunk.before + chunk.tokens < r.prompt:
                continue
            self.ending.remove(r)
            r.generated += 1
            if r.first_s < 0:
                r.first_s = now
            if self.rules.role == "prefill" or r.generated == r.output:
                self.finish(r, now)
            else:
                self.decoding.append(r)

    def finish(self, r: Request, now: float) -> None:
        self.free += r.blocks
        r.finished_s = now


class Engine:
    """Ranks that step together, and the stages they share."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.ranks = [Rank(rules) for _ in range(rules.ranks)]
        self.stage_free_s = [-math.inf] * rules.pp
        self.flight: list[Batch] = []
        self.batches: list[Batch] = []
        self.turn = 0
        self.left = False

    def end_all(self, now: float) -> None:
        self.left = False
        while self.flight and self.flight[0].ends_s[-1] <= now:
            batch = self.flight.pop(0)
            self.left = True
            for rank, part in zip(self.ranks, batch.parts, strict=True):
                rank.end(part, now)

    def form_all(self, now: float) -> None:
        if self.flight and not self.left and not self.rules.looks_at_once:
            return
        while len(self.flight) < self.rules.pp:
            for slot in self.slots():
                parts = [rank.form(slot, now) for rank in self.ranks]
                if any(parts):
                    self.launch(Batch(parts, slot, now, [], []), now)
                    break
            else:
                return

    def slots(self) -> list[int]:
        """Those whose turn comes next, up to the first in flight; vLLM's batches have none."""
        if self.rules.engine == "vllm":
            return [0]
        slots = []
        for ahead in range(self.rules.pp):
            slot = (self.turn + ahead) % self.rules.pp
            if any(batch.slot == slot for batch in self.flight):
                break
            slots.append(slot)
        return slots

    def launch(self, batch: Batch, now: float) -> None:
        seconds = [list(self.rules.stage_s(part)) for part in batch.parts if part]
        end = now
        for stage in range(self.rules.pp):
            start = max(end, self.stage_free_s[stage])
            end = start + max(own[stage] for own in seconds)
            self.stage_free_s[stage] = end
            batch.starts_s.append(start)
            batch.ends_s.append(end)
        self.flight.append(batch)
        self.batches.append(batch)
        self.turn = (batch.slot + 1) % self.rules.pp


def simulate(engines: Sequence[Engine], requests: Sequence[Request]) -> None:
    """Runs requests to their end; each goes to the rank with the fewest requests, of equal ones to the first."""
    to_come = sorted(requests, key=lambda r: (r.arrival_s, r.id))
    ranks = [rank for engine in engines for rank in engine.ranks]
    while to_come or any(engine.flight for engine in engines):
        ends = [engine.flight[0].ends_s[-1] for engine in engines if engine.flight]
        now = min([*ends, *(r.arrival_s for r in to_come[:1])])
        for engine in engines:
            engine.end_all(now)
        while to_come and to_come[0].arrival_s <= now:
            r = to_come.pop(0)
            r.rank = min(ranks, key=lambda rank: rank.outstanding)
            if engines[0].rules.role == "decode":
                r.generated = 1
            r.rank.queue.append(r)
        for engine in engines:
            engine.form_all(now)
    unanswered = [r.id for r in requests if r.finished_s < 0]
    if unanswered:
        raise ValueError(f"requests {unanswered} never fit")
