"""Requests as arrays: what arrives, when, and with which prompt. R requests, H prefix blocks of all of them."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Bools, Floats, Ints
from planner.errors import PlannerError
from planner.problem.encoded import Media

SIDES = ("input", "output")
_COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "predicted_tokens", "priority", "think_s", "successor")


@dataclass(frozen=True, slots=True, eq=False)
class Requests:
    """An open stream of requests by arrival, or, with `clients`, the list that a closed loop works off.

    A request may have a `successor` that its session sends `think_s` (of the successor) after it has finished; only the
    first `num_open` requests come by themselves. `prefix` holds ids of prompt blocks, equal where prompts agree up to
    the end of the block; `prefix_tokens` their sizes by id.
    """

    arrival_s: Floats  # [R] of the first `num_open`; increasing
    input_tokens: Ints  # [R]
    output_tokens: Ints  # [R]
    predicted_tokens: Ints  # [R] of output, as schedulers believe
    priority: Ints  # [R] lower goes first
    think_s: Floats  # [R]
    successor: Ints  # [R] -1: none
    num_open: int
    clients: int = 0  # of a closed loop; 0 for an open stream
    prefix_of: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))  # [R + 1], or [1] for none
    prefix: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # [H] ids 0..U-1
    prefix_tokens: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # [U]
    model: Ints | None = None  # [R] that each is for; all for model 0
    adapter: Ints | None = None  # [R] that each needs, -1 for none; none at all
    workload: Ints | None = None  # [R] that each is of; all of workload 0
    hit_tokens: Ints | None = None  # [R] of each prompt that every prefix cache holds; none at all
    encoded: Floats | None = None  # [R] tokens of a tower that each has encoded before its prompt; none at all

    def __len__(self) -> int:
        return len(self.input_tokens)

    @classmethod
    def open_stream(
        cls,
        arrival_s: ArrayLike,
        input_tokens: ArrayLike,
        output_tokens: ArrayLike,
        *,
        predicted_tokens: ArrayLike | None = None,
        priority: ArrayLike | None = None,
    ) -> "Requests":
        """Requests that come at given times, whatever happens to those before; raises PlannerError for bad ones."""
        arrival = np.ascontiguousarray(arrival_s, dtype=np.float64)
        lengths = _lengths(input_tokens, output_tokens, len(arrival))
        bad = np.flatnonzero(~(np.isfinite(arrival) & (arrival >= 0.0)))
        if len(bad):
            raise _bad(bad[0], f"an arrival of {arrival[bad[0]]:g} s", "times start at 0 and are finite")
        late = np.flatnonzero(np.diff(arrival) < 0.0)
        if len(late):
            raise _bad(
                late[0] + 1,
                f"arrives at {arrival[late[0] + 1]:g} s, after one at {arrival[late[0]]:g} s",
                "sort requests by arrival",
            )
        predicted, urgency, think, successor = _extras(lengths, predicted_tokens, priority)
        return cls(arrival, *lengths, predicted, urgency, think, successor, num_open=len(arrival))

    @classmethod
    def closed_loop(
        cls, input_tokens: ArrayLike, output_tokens: ArrayLike, *, clients: int, think_s: ArrayLike = 0.0
    ) -> "Requests":
        """A list of requests that clients send one after another, each `think_s` after it has its answer."""
        count = max(np.size(input_tokens), np.size(output_tokens))
        lengths = _lengths(input_tokens, output_tokens, count)
        if clients < 1:
            raise PlannerError(f"a closed loop needs at least 1 client, found {clients}")
        predicted, priority, _, successor = _extras(lengths, None, None)
        think = np.ascontiguousarray(np.broadcast_to(np.asarray(think_s, dtype=np.float64), count))
        if not np.all(np.isfinite(think) & (think >= 0.0)):
            raise PlannerError("think times must be finite and at least 0")
        first = min(clients, count)
        return cls(np.zeros(count), *lengths, predicted, priority, think, successor, first, clients)

    def of_workloads(self, numbers: Sequence[int]) -> "Requests":
        """The requests of these workloads as one, without sessions and prefixes."""
        chosen = self.is_of(numbers)
        stream = Requests.open_stream(
            np.zeros(int(chosen.sum())), self.input_tokens[chosen], self.output_tokens[chosen]
        )
        return replace(stream, arrival_s=self.arrival_s[chosen], clients=self.clients)

    def is_of(self, numbers: Sequence[int]) -> Bools:
        """Which requests are of one of these workloads [R]."""
        return np.isin(np.zeros(len(self)) if self.workload is None else self.workload, numbers)

    def with_hits(self, share: float) -> "Requests":
        """The same requests with that share of each prompt in every prefix cache, all but its last token at most."""
        if share <= 0.0:
            return self
        hits = np.minimum(np.rint(share * self.input_tokens), self.input_tokens - 1)
        return replace(self, hit_tokens=hits.astype(np.int64))

    def with_media(self, media: Media | None) -> "Requests":
        """The same requests with what they bring beside text, the longest prompts most."""
        return self if media is None else replace(self, encoded=media.of_prompts(self.input_tokens))

    def with_prefixes(self, blocks: Sequence[Sequence[Hashable]], *, block_tokens: int) -> "Requests":
        """The same requests with the prompt blocks of each, any names that are equal where prompts agree up to there.

        Blocks have `block_tokens` tokens, the last one of a prompt what is left. Raises PlannerError for prompts with
        more blocks than tokens fill.
        """
        ids: dict[Hashable, int] = {}
        sizes: list[int] = []
        prefix: list[int] = []
        ends = [0]
        for request, names in enumerate(blocks):
            tokens = int(self.input_tokens[request])
            if len(names) > -(-tokens // block_tokens):
                raise _bad(request, f"{len(names)} blocks for {tokens} tokens", f"give blocks of {block_tokens} tokens")
            for index, name in enumerate(names):
                number = ids.setdefault(name, len(ids))
                if number == len(sizes):
                    sizes.append(min(block_tokens, tokens - index * block_tokens))
                prefix.append(number)
            ends.append(len(prefix))
        arrays = (np.array(values, dtype=np.int64) for values in (ends, prefix, sizes))
        prefix_of, flat, prefix_tokens = arrays
        return replace(self, prefix_of=prefix_of, prefix=flat, prefix_tokens=prefix_tokens)


def together(streams: Sequence[Requests]) -> Requests:
    """Streams of requests and sessions as one, each a workload: first those that come by themselves, by arrival."""
    workload = np.repeat(np.arange(len(streams)), [len(stream) for stream in streams])
    opens = np.concatenate([np.arange(len(stream)) < stream.num_open for stream in streams])
    starts = np.repeat(np.cumsum([0, *(len(stream) for stream in streams[:-1])]), [len(stream) for stream in streams])
    whole = {name: np.concatenate([getattr(stream, name) for stream in streams]) for name in _COLUMNS}
    order = np.lexsort((whole["arrival_s"], ~opens))
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    after = np.where(whole["successor"] < 0, -1, place[np.maximum(whole["successor"] + starts, 0)])
    columns: dict[str, Any] = {name: values[order] for name, values in (whole | {"successor": after}).items()}
    if any(stream.hit_tokens is not None for stream in streams):
        hits = [
            stream.hit_tokens if stream.hit_tokens is not None else np.zeros(len(stream), int) for stream in streams
        ]
        columns["hit_tokens"] = np.concatenate(hits)[order]
    if any(stream.encoded is not None for stream in streams):
        encoded = [stream.encoded if stream.encoded is not None else np.zeros(len(stream)) for stream in streams]
        columns["encoded"] = np.concatenate(encoded)[order]
    return Requests(**columns, num_open=int(opens.sum()), workload=workload[order])


def all_requests(streams: Sequence[Requests]) -> Requests:
    """All requests of some streams, coming at once: what a fleet must have step times for to take any of them."""
    inputs, outputs = (np.concatenate([getattr(each, f"{side}_tokens") for each in streams]) for side in SIDES)
    stream = Requests.open_stream(np.zeros(len(inputs)), inputs, outputs)
    workloads = [each.workload for each in streams if each.workload is not None]
    clients = max(each.clients for each in streams)
    return replace(stream, clients=clients, workload=np.concatenate(workloads) if workloads else None)


def _lengths(input_tokens: ArrayLike, output_tokens: ArrayLike, count: int) -> tuple[Ints, Ints]:
    pair = []
    for name, given in (("input_tokens", input_tokens), ("output_tokens", output_tokens)):
        values = np.ascontiguousarray(np.broadcast_to(np.asarray(given), count), dtype=np.int64)
        bad = np.flatnonzero(values < 1)
        if len(bad):
            raise _bad(bad[0], f"{name} {values[bad[0]]}", "a request has at least one token in and one out")
        pair.append(values)
    return pair[0], pair[1]


def _extras(
    lengths: tuple[Ints, Ints], predicted: ArrayLike | None, priority: ArrayLike | None
) -> tuple[Ints, Ints, Floats, Ints]:
    count = len(lengths[0])
    believed = lengths[1] if predicted is None else np.asarray(predicted)
    urgency = np.zeros(count, dtype=np.int64) if priority is None else np.asarray(priority)
    return (
        np.ascontiguousarray(np.broadcast_to(believed, count), dtype=np.int64),
        np.ascontiguousarray(np.broadcast_to(urgency, count), dtype=np.int64),
        np.zeros(count),
        np.full(count, -1, dtype=np.int64),
    )


def _bad(request: int, what: str, hint: str) -> PlannerError:
    return PlannerError(f"request {request}: {what}", hint=hint)
