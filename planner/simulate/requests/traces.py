"""Reads request traces (Azure, Mooncake, BurstGPT ... files) as arrays. R requests.

Read are Azure's LLM inference traces (TIMESTAMP, ContextTokens, GeneratedTokens), BurstGPT (Timestamp, Request tokens,
Response tokens), Mooncake's JSON lines (timestamp in ms, input_length, output_length, hash_ids), and plain CSV or JSON
lines (arrival_s, input_tokens, output_tokens, and where known predicted_tokens, priority). All may be gzipped, and name
the conversation of a row (conversation_id).
"""

import csv
import gzip
import io
import json
import math
import re
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from planner.arrays import Floats, Ints
from planner.errors import PlannerError
from planner.simulate.requests.stream import Requests

MOONCAKE_BLOCK_TOKENS = 512
LENGTHS_ONLY = "lengths"
MOST_COUNT = 2**53
LENGTH_COLUMNS = ("tokens", "Tokens", "_length")
_TIMES = re.compile(
    r"(?i)(^|[ _-])(arrivals?|arrived|timestamp|datetime|ts)($|[ _-])|^(start_?|sent_?)?(time|date)(_m?s)?$"
)
_STAMP = re.compile(r"(?P<moment>[^.]*?\d:\d\d)(?P<fraction>\.\d+)?\s*(?P<zone>Z|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in order of arrival; `blocks` names prompt blocks where the trace knows them."""

    name: str
    format: str  # azure, burstgpt, mooncake, plain, lengths
    arrival_s: Floats  # [R] from the first request; all 0 where the trace holds lengths alone
    input_tokens: Ints  # [R]
    output_tokens: Ints  # [R]
    predicted_tokens: Ints | None = None  # [R]
    priority: Ints | None = None  # [R]
    blocks: tuple[tuple[Hashable, ...], ...] = ()  # of each request
    block_tokens: int = MOONCAKE_BLOCK_TOKENS
    dropped: int = 0  # rows without tokens that were left out
    conversations: tuple[str, ...] = ()  # of each request, where the trace names them
    path: str = ""  # of the file, where there is one
    partly: tuple[str, int] | None = None  # a column of shared prompts in some rows, and the line of the first without

    def __len__(self) -> int:
        return len(self.input_tokens)

    @property
    def timed(self) -> bool:
        """Whether the trace says when requests come."""
        return self.format != LENGTHS_ONLY

    @property
    def place(self) -> str:
        """Where errors of the whole trace lie."""
        return self.path or self.name

    def first(self, count: int) -> "Trace":
        """The first requests."""
        return self.take(np.arange(min(count, len(self))))

    def take(self, chosen: Ints) -> "Trace":
        """The chosen requests, in that order; they keep their times."""
        return replace(
            self,
            arrival_s=self.arrival_s[chosen],
            input_tokens=self.input_tokens[chosen],
            output_tokens=self.output_tokens[chosen],
            predicted_tokens=None if self.predicted_tokens is None else self.predicted_tokens[chosen],
            priority=None if self.priority is None else self.priority[chosen],
            blocks=tuple(self.blocks[r] for r in chosen.tolist()) if self.blocks else (),
            conversations=tuple(self.conversations[r] for r in chosen.tolist()) if self.conversations else (),
        )

    def at_rate(self, factor: float) -> "Trace":
        """The same requests, `factor` times as many a second."""
        if not 0.0 < factor < math.inf:
            raise PlannerError(f"a rate is scaled by a factor above 0, found {factor:g}")
        return replace(self, arrival_s=self.arrival_s / factor)

    def requests(self) -> Requests:
        """The trace as an open stream; raises PlannerError where it holds lengths alone."""
        if not self.timed:
            raise PlannerError(
                "has no arrival times",
                where=self.name,
                hint="sample arrivals for it: `planner trace sample FILE --rate 5/s`",
            )
        stream = Requests.open_stream(
            self.arrival_s,
            self.input_tokens,
            self.output_tokens,
            predicted_tokens=self.predicted_tokens,
            priority=self.priority,
        )
        return stream.with_prefixes(self.blocks, block_tokens=self.block_tokens) if self.blocks else stream


@dataclass(frozen=True, slots=True)
class _TraceColumns:
    """The columns of one kind of file, and how its times read."""

    name: str
    arrival: str
    input: str
    output: str
    seconds: Callable[[Any], float]


def _clock(text: object) -> float:
    """Seconds of a time stamp: `2023-11-16 18:15:46.6805900` (Azure 2023) or `2024-05-10 00:00:00.009930+00:00` (2024).

    The fraction, which may have more digits than Python reads, and the zone may each be absent.
    """
    stamp = _STAMP.fullmatch(str(text).strip())
    if stamp is None:
        raise ValueError(text)
    parsed = datetime.fromisoformat(stamp["moment"] + (stamp["zone"] or ""))
    start = datetime(2000, 1, 1, tzinfo=None if parsed.tzinfo is None else UTC)
    return (parsed - start).total_seconds() + float(f"0{stamp['fraction'] or ''}")


FORMATS = (
    _TraceColumns("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _clock),
    _TraceColumns("burstgpt", "Timestamp", "Request tokens", "Response tokens", float),
    _TraceColumns("mooncake", "timestamp", "input_length", "output_length", lambda value: float(value) / 1e3),
    _TraceColumns("plain", "arrival_s", "input_tokens", "output_tokens", float),
    _TraceColumns(LENGTHS_ONLY, "", "input_tokens", "output_tokens", float),
)


def read_trace(path: str | Path, *, drop_empty: bool = False) -> Trace:
    """The trace in a file, its format known by its columns.

    Raises PlannerError, with the line, for missing columns, times that are negative, out of order or no numbers, and
    lengths below 1; with `drop_empty` rows of length 0 are left out and counted.
    """
    name = str(path)
    rows = _rows(_text(path), name)
    first = next(rows, None)
    if first is None:
        raise PlannerError("has no requests", where=name, hint="give a trace with at least one request")
    form = _format(first[1], name)
    reader = _RowReader(form, name, drop_empty)
    reader.read(*first)
    for line, row in rows:
        reader.read(line, row)
    return reader.trace()


class _RowReader:
    """Rows of one file, checked as they come."""

    def __init__(self, form: _TraceColumns, name: str, drop_empty: bool) -> None:
        self.form, self.name, self.drop_empty = form, name, drop_empty
        self.arrival_s: list[float] = []
        self.input: list[int] = []
        self.output: list[int] = []
        self.more: dict[str, list[int]] = {"predicted_tokens": [], "priority": []}
        self.blocks: list[tuple[Hashable, ...]] = []
        self.conversations: list[str] = []
        self.first_without: dict[str, int] = {}  # the line, by what tells of shared prompts
        self.dropped = 0

    def read(self, line: int, row: Mapping[str, Any]) -> None:
        lengths = [self._length(row, column, line) for column in (self.form.input, self.form.output)]
        if 0 in lengths:
            self.dropped += 1
            return
        time_s = self._time(row, line) if self.form.arrival else 0.0
        if self.arrival_s and time_s < self.arrival_s[-1]:
            raise self._wrong(line, f"comes at {time_s:g} s, after one at {self.arrival_s[-1]:g} s", "sort the trace")
        self.arrival_s.append(time_s)
        self.input.append(lengths[0])
        self.output.append(lengths[1])
        for column, values in self.more.items():
            if row.get(column) not in (None, ""):
                values.append(self._count(row, column, line))
            else:
                self.first_without.setdefault(column, line)
        if isinstance(row.get("hash_ids"), list):
            self.blocks.append(tuple(row["hash_ids"]))
        else:
            self.first_without.setdefault("hash_ids", line)
        if row.get("conversation_id") not in (None, ""):
            self.conversations.append(str(row["conversation_id"]))
        else:
            self.first_without.setdefault("conversation_id", line)

    def trace(self) -> Trace:
        count = len(self.input)
        if not count:
            raise PlannerError("has no request with tokens", where=self.name)
        arrival = np.array(self.arrival_s, dtype=np.float64)
        sharing = {"hash_ids": len(self.blocks), "conversation_id": len(self.conversations)}
        partly = [(column, self.first_without[column]) for column, rows in sharing.items() if 0 < rows < count]
        for column, values in self.more.items():
            if 0 < len(values) < count:
                what = f"has no `{column}`, which other rows have"
                raise self._wrong(self.first_without[column], what, "give every row one, or none")
        more = {column: np.array(values) if values else None for column, values in self.more.items()}
        return Trace(
            Path(self.name).name,
            self.form.name,
            arrival - arrival[0],
            np.array(self.input, dtype=np.int64),
            np.array(self.output, dtype=np.int64),
            predicted_tokens=more["predicted_tokens"],
            priority=more["priority"],
            blocks=tuple(self.blocks) if len(self.blocks) == count else (),
            dropped=self.dropped,
            conversations=tuple(self.conversations) if len(self.conversations) == count else (),
            path=self.name,
            partly=partly[0] if partly else None,
        )

    def _length(self, row: Mapping[str, Any], column: str, line: int) -> int:
        tokens = self._count(row, column, line)
        if tokens < 1 and not (tokens == 0 and self.drop_empty):
            hint = "a request has at least one token in and one out; `--drop-empty` leaves rows of 0 out"
            raise self._wrong(line, f"`{column}` is {tokens}", hint)
        return tokens

    def _count(self, row: Mapping[str, Any], column: str, line: int) -> int:
        try:
            number = float(row[column])
        except (KeyError, TypeError, ValueError):
            number = math.nan
        if not (abs(number) <= MOST_COUNT and number == int(number)):
            hint = "write a whole number of tokens" if column.endswith(LENGTH_COLUMNS) else "write a whole number"
            said = f"{number:g}" if abs(number) < math.inf else repr(row.get(column))
            raise self._wrong(line, f"`{column}` is {said}", hint)
        return int(number)

    def _time(self, row: Mapping[str, Any], line: int) -> float:
        try:
            time_s = self.form.seconds(row[self.form.arrival])
        except (KeyError, TypeError, ValueError):
            raise self._wrong(
                line, f"`{self.form.arrival}` is {row.get(self.form.arrival)!r}", "write the time of each request"
            ) from None
        if not 0.0 <= time_s < math.inf:
            raise self._wrong(line, f"`{self.form.arrival}` is {time_s:g}", "times start at 0 and are finite")
        return time_s

    def _wrong(self, line: int, what: str, hint: str) -> PlannerError:
        return PlannerError(what, where=f"{self.name}:{line}", hint=hint)


def _format(row: Mapping[str, Any], name: str) -> _TraceColumns:
    for form in FORMATS:
        if all(column in row for column in (form.arrival, form.input, form.output) if column):
            untold = next((str(key) for key in row if not form.arrival and _TIMES.search(str(key))), None)
            if untold is not None:
                hint = "name it `arrival_s`, in seconds, or leave it out: lengths alone are read then"
                raise PlannerError(f"`{untold}` is no column of arrivals that is read", where=f"{name}:1", hint=hint)
            return form
    known = "; ".join(f"{form.arrival}, {form.input}, {form.output}" for form in FORMATS if form.arrival)
    columns = ", ".join(str(key) for key in row)
    raise PlannerError(f"has the columns {columns}", where=f"{name}:1", hint=f"a trace has one of: {known}")


def _text(path: str | Path) -> str:
    try:
        content = Path(path).read_bytes()
        if content[:2] == b"\x1f\x8b":
            content = gzip.decompress(content)
        return content.decode("utf-8-sig")
    except OSError as problem:
        reason = problem.strerror or "it is no whole gzip file"
    except (UnicodeDecodeError, EOFError, zlib.error):
        reason = "it is no UTF-8 text, gzipped or not"
    raise PlannerError(f"cannot be read: {reason}", where=str(path), hint="give a CSV file or JSON lines")


def _rows(text: str, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows with their line numbers, of JSON lines or of CSV."""
    if text.lstrip()[:1] == "{":
        for line, content in enumerate(text.splitlines(), 1):
            if content.strip():
                yield line, _object(content, f"{name}:{line}")
        return
    reader = csv.DictReader(io.StringIO(text), skipinitialspace=True)
    try:
        for row in reader:
            yield reader.line_num, row
    except csv.Error as problem:
        raise PlannerError(f"is no CSV: {problem}", where=f"{name}:{reader.line_num}") from None


def _object(content: str, where: str) -> Mapping[str, Any]:
    try:
        value = json.loads(content)
    except (json.JSONDecodeError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise PlannerError("is no JSON object", where=where, hint="write one request a line")
    return value


def trace_csv(trace: Trace) -> str:
    """The trace as plain CSV."""
    lines = ["arrival_s,input_tokens,output_tokens"]
    columns = (trace.arrival_s.tolist(), trace.input_tokens.tolist(), trace.output_tokens.tolist())
    lines += [f"{arrival!r},{tokens_in},{tokens_out}" for arrival, tokens_in, tokens_out in zip(*columns, strict=True)]
    return "\n".join(lines) + "\n"


def trace_jsonl(trace: Trace) -> str:
    """The trace as JSON lines; with prompt blocks as Mooncake writes them."""
    blocks: Sequence[tuple[Hashable, ...] | None] = trace.blocks or [None] * len(trace)
    lines = []
    for r, names in enumerate(blocks):
        lengths = int(trace.input_tokens[r]), int(trace.output_tokens[r])
        if names is None:
            row: dict[str, object] = {"arrival_s": float(trace.arrival_s[r])}
            row |= {"input_tokens": lengths[0], "output_tokens": lengths[1]}
        else:
            row = {"timestamp": float(trace.arrival_s[r]) * 1e3, "input_length": lengths[0]}
            row |= {"output_length": lengths[1], "hash_ids": list(names)}
        lines.append(json.dumps(row))
    return "\n".join(lines) + "\n"
