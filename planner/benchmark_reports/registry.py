"""Registry of report parsers: detects a report's format by its content."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.benchmark_reports import aiperf, guidellm, inference_perf, llm_d, vllm_bench
from planner.benchmark_reports.fields import Fields
from planner.benchmark_reports.records import MeasuredRun
from planner.errors import PlannerError


@dataclass(frozen=True, slots=True)
class ReportReader:
    """One format: whether a document is of it, and its runs; `read` raises PlannerError for one that is cut off."""

    name: str
    belongs: Callable[[Mapping[str, Any]], bool]
    read: Callable[[Fields], list[MeasuredRun]]


READERS = (
    ReportReader(llm_d.NAME, llm_d.belongs, llm_d.read),
    ReportReader(inference_perf.NAME, inference_perf.belongs, inference_perf.read),
    ReportReader(guidellm.NAME, guidellm.belongs, guidellm.read),
    ReportReader(vllm_bench.NAME, vllm_bench.belongs, vllm_bench.read),
    ReportReader(aiperf.NAME, aiperf.belongs, aiperf.read),
)


def read_measured(path: str | Path) -> list[MeasuredRun]:
    """All runs in a report; raises PlannerError for a file that no known generator wrote or that holds no run."""
    source = str(path)
    return runs_of(report_text(path), source)


def report_text(path: str | Path) -> str:
    """The text of a file, of standard input for `-`."""
    source = str(path)
    try:
        content = sys.stdin.buffer.read() if source == "-" else Path(path).read_bytes()
        return content.decode("utf-8-sig")
    except OSError as error:
        raise PlannerError(f"cannot be read: {error.strerror}", where=source, hint="check the path") from None
    except ValueError:
        raise PlannerError("is no text in UTF-8", where=source, hint="give the report of a load generator") from None


def runs_of(text: str, source: str, others: Sequence[str] = ()) -> list[MeasuredRun]:
    """All runs in the text of a report, which errors call `source`; `others` are what else it might have been."""
    return [run for document in _documents(text, source) for run in _runs(document, source, others)]


def _runs(document: object, source: str, others: Sequence[str]) -> list[MeasuredRun]:
    data = document if isinstance(document, dict) else {}
    reader = next((candidate for candidate in READERS if candidate.belongs(data)), None)
    if reader is None:
        known = ", ".join([*(candidate.name for candidate in READERS), *others])
        raise PlannerError("is no report of a known load generator", where=source, hint=f"known are {known}")
    runs = reader.read(Fields(data, reader.name, source))
    if not runs:
        raise PlannerError(f"this report of {reader.name} holds no run", where=source, hint="run it again")
    return [run if run.completed else replace(run, times_s={}) for run in runs]


def _documents(text: str, source: str) -> list[object]:
    """The documents in a text: JSON, JSON lines (results appended to each other), or YAML."""
    if text.lstrip()[:1] not in ("{", "["):
        return [_yaml(text, source)]
    try:
        return [json.loads(text)]
    except json.JSONDecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        if error.msg != "Extra data" or len(lines) < 2:
            raise _no_json(f"{source}:{error.lineno}", error.msg) from None
    except (ValueError, RecursionError) as error:
        raise _no_json(source, str(error).split(":", maxsplit=1)[0]) from None
    return [_line(line, f"{source}:{number}") for number, line in enumerate(lines, 1)]


def _line(text: str, where: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_json(where, getattr(error, "msg", str(error))) from None


def _no_json(where: str, why: str) -> PlannerError:
    return PlannerError(f"is no JSON: {why}", where=where, hint="give the report as the load generator wrote it")


def _yaml(text: str, source: str) -> object:
    """One YAML document, by PyYAML's safe loader: reports hold `.inf`, which files of ours may not."""
    import yaml

    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError):
        raise PlannerError(
            "is neither JSON nor YAML", where=source, hint="give the report as the load generator wrote it"
        ) from None
