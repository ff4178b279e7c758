"""Lengths of documents, or what sequences hold beside text, read from a file as rows of a training problem.

One JSON object a line: `tokens` of a document; or, of a sequence, `images` and `generated` (`width`, `height`, `count`)
and `audio_s`, all of them left out where it is text alone. Equal records become one row with their number as share.
Where more differ than rows are wanted, records are sorted by size (tokens, or pixels and then seconds), cut into groups
of alike size in sum, and each group stands for its record that is nearest to its mean size. The largest stays a row of
its own: plans must have room for it.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from planner.documents.files import read_text
from planner.documents.read import given_document
from planner.errors import PlannerError
from planner.kinds.train.samples import Images, Sounds
from planner.plan.records import Count
from planner.schema.base import Spec
from planner.schema.keys import validated

ROWS = 16


class Recorded(Spec):
    """One line: a document, or a sequence."""

    tokens: Count | None = Field(default=None, description="of a document")
    images: tuple[Images, ...] = ()
    audio_s: Sounds = ()
    generated: tuple[Images, ...] = ()

    @property
    def size(self) -> tuple[float, float]:
        """What records are sorted and grouped by."""
        pixels = sum(image.width * image.height * image.count for image in (*self.images, *self.generated))
        return (float(self.tokens), 0.0) if self.tokens is not None else (float(pixels), sum(self.audio_s))


@dataclass(frozen=True, slots=True)
class RecordedLengths:
    """Rows for `options.documents` or `options.samples`, and how far their mean size is from that of the records."""

    option: str
    rows: tuple[dict[str, Any], ...]
    records: int
    distinct: int
    mean_size: float  # tokens, or pixels, of a record; seconds where none has pixels
    rows_mean_size: float


def recorded_lengths(path: str | Path, rows: int = ROWS) -> RecordedLengths:
    """The rows of a file; raises PlannerError for lines that are none, and for a file of both kinds or of nothing."""
    records = _read(path)
    option = "documents" if records[0].tokens is not None else "samples"
    counts = Counter(records)
    weighted = sorted(counts.items(), key=lambda item: (item[0].size, item[0].model_dump_json()))
    grouped = [[item] for item in weighted] if len(weighted) <= rows else _groups(weighted, rows)
    made = [(_nearest(group), sum(number for _, number in group)) for group in grouped]
    return RecordedLengths(
        option,
        tuple({"share": number, **record.model_dump(mode="json", exclude_defaults=True)} for record, number in made),
        len(records),
        len(counts),
        _mean(weighted),
        _mean(made),
    )


def _read(path: str | Path) -> list[Recorded]:
    records: list[Recorded] = []
    lines = read_text(path).splitlines()
    hint = 'write one object a line, such as {"tokens": 4096} or {"images": [{"width": 512, "height": 512}]}'
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except json.JSONDecodeError as problem:
            raise PlannerError(f"not valid JSON: {problem.msg}", where=f"{path}:{number}", hint=hint) from None
        if not isinstance(data, dict):
            raise PlannerError(f"`{line.strip()[:40]}` is no object", where=f"{path}:{number}", hint=hint)
        record = _record(data, f"{path}:{number}")
        if record.tokens is not None and (record.images or record.audio_s or record.generated):
            raise PlannerError("a document with images or sounds", where=f"{path}:{number}", hint="leave `tokens` out")
        if records and (record.tokens is None) != (records[0].tokens is None):
            what = "documents and sequences in one file"
            raise PlannerError(what, where=f"{path}:{number}", hint="give `tokens` in every line or in none")
        records.append(record)
    if not records:
        raise PlannerError("no records", where=str(path), hint=hint)
    return records


def _record(data: dict[str, Any], where: str) -> Recorded:
    document = given_document(data, where)
    return validated(Recorded, document.data, lambda path: ": ".join((where, ".".join(map(str, path)))))


Weighted = Sequence[tuple[Recorded, int]]


def _groups(weighted: Weighted, rows: int) -> list[list[tuple[Recorded, int]]]:
    """Ascending groups of about equal size in sum, the largest record alone."""
    *rest, largest = weighted
    amount = _scale(weighted)
    total = sum(amount(record) * number for record, number in rest)
    groups: list[list[tuple[Recorded, int]]] = [[]]
    done = 0.0
    for item in rest:
        wanted = min(int(done / total * (rows - 1)) if total else 0, rows - 2)
        if groups[-1] and wanted >= len(groups):
            groups.append([])
        groups[-1].append(item)
        done += amount(item[0]) * item[1]
    return [*groups, [largest]]


def _scale(weighted: Weighted) -> Callable[[Recorded], float]:
    """The part of sizes that counts: pixels and tokens, or seconds where no record has any."""
    part = 0 if any(record.size[0] for record, _ in weighted) else 1
    return lambda record: record.size[part]


def _mean(weighted: Weighted) -> float:
    amount = _scale(weighted)
    return float(sum(amount(record) * number for record, number in weighted)) / sum(number for _, number in weighted)


def _nearest(group: Weighted) -> Recorded:
    """Of a group of documents the mean, in whole tokens; of sequences the one nearest to the mean."""
    mean = _mean(group)
    if group[0][0].tokens is not None:
        return Recorded(tokens=max(1, round(mean)))
    amount = _scale(group)
    return min((record for record, _ in group), key=lambda record: abs(amount(record) - mean))
