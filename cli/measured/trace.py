"""`planner trace`: statistics of request traces, conversion, workloads from them; lengths of training data."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.measured.trace_replicas import replicas
from planner.cli.options import INPUT, DrawSeed, DropEmpty, First, Json, Output
from planner.cli.output import write_data, write_json, write_result
from planner.cli.render.columns import table
from planner.documents.units import PER_S, parse_quantity
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.simulate.requests.traces import Trace

HELP = "Request traces: what they hold, as fields of a problem, in another form, draws from them; lengths; replicas."

File = Annotated[str, typer.Argument(metavar="FILE", help="Azure, BurstGPT or Mooncake trace, or plain CSV or JSONL.")]
TraceForm = Annotated[str, typer.Option("--to", metavar="FORM", help="csv, or jsonl, which keeps prompt blocks.")]


def describe(
    file: File, drop_empty: DropEmpty = False, first: First = None, as_json: Json = False, output: Output = None
) -> int:
    """Describe a trace: requests, rate, burstiness, lengths, and how many prompt blocks recur.

    Examples:

      planner trace describe azure_llm_2023_conv.csv.gz

      planner trace describe conversation.jsonl --first 1000 --json
    """
    from planner.simulate.requests.trace_facts import describe as facts_of

    _print(facts_of(_read(file, drop_empty, first)), "planner.trace/1", as_json, output)
    return 0


def fit(
    file: File, drop_empty: DropEmpty = False, first: First = None, as_json: Json = False, output: Output = None
) -> int:
    """Fit a trace: lengths and arrivals by their moments, as fields of a workload in a problem file.

    Examples:

      planner trace fit azure_llm_2023_conv.csv.gz

      planner trace fit burstgpt.csv --drop-empty --json
    """
    from planner.simulate.requests.trace_facts import fit as fitted

    _print(fitted(_read(file, drop_empty, first)), "planner.trace_fit/1", as_json, output)
    return 0


def convert(
    file: File,
    output: Output = None,
    to: TraceForm = "csv",
    drop_empty: DropEmpty = False,
    first: First = None,
    as_json: Json = False,
) -> int:
    """Convert a trace to plain CSV (arrival_s, input_tokens, output_tokens) or JSON lines.

    Examples:

      planner trace convert AzureLLMInferenceTrace_conv.csv -o conv.csv

      planner trace convert conversation.jsonl --first 1000 --to jsonl -o short.jsonl
    """
    _write(_read(file, drop_empty, first), to, as_json, output)
    return 0


def sample(
    file: File,
    count: Annotated[
        int, typer.Option("--requests", "-n", metavar="N", min=1, help="How many.", rich_help_panel=INPUT)
    ] = 1000,
    rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="Such as 5/s; that of the trace.", rich_help_panel=INPUT)
    ] = None,
    process: Annotated[
        str, typer.Option(metavar="NAME", help="poisson, gamma or weibull.", rich_help_panel=INPUT)
    ] = "poisson",
    cv: Annotated[float, typer.Option(metavar="CV", help="Of the gaps.", rich_help_panel=INPUT)] = 1.0,
    seed: DrawSeed = 0,
    to: TraceForm = "csv",
    drop_empty: DropEmpty = False,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Sample a trace: requests drawn from it, arriving at a rate.

    Examples:

      planner trace sample conv.csv -n 10000 --rate 12/s --process gamma --cv 2 -o bursty.csv

      planner trace sample sharegpt_lengths.csv --rate 4/s --to jsonl
    """
    from planner.simulate.requests.trace_facts import sample as drawn

    trace = _read(file, drop_empty, None)
    rate_per_s = _rate(rate)
    if rate_per_s is None and not trace.arrival_s[-1] > 0.0:
        raise PlannerError("has no rate of its own", where=file, hint="give one: `--rate 5/s`")
    _write(drawn(trace, count, rate_per_s=rate_per_s, process=process, cv=cv, seed=seed), to, as_json, output)
    return 0


def shapes(as_json: Json = False, output: Output = None) -> int:
    """List the built-in lengths of known services, for `input_tokens: {shape: NAME}` in a problem.

    Examples:

      planner trace shapes

      planner trace shapes --json
    """
    import numpy as np

    from planner.problem.shapes import SHARES, known_shapes
    from planner.simulate.requests.trace_facts import lengths

    sides = ("input_tokens", "output_tokens")
    known = known_shapes().values()
    facts = {(shape.name, side): lengths(np.array(shape.lengths(side))) for shape in known for side in sides}
    told = ("mean", "cv", "p50", "p90", "p99", "max")
    data = [
        {
            "name": shape.name,
            "requests": shape.requests,
            "source": shape.source,
            **{side: {**facts[shape.name, side], "quantiles": list(getattr(shape, side))} for side in sides},
        }
        for shape in known
    ]
    rows = [(name, side, *(f"{of[fact]:.4g}" for fact in told)) for (name, side), of in facts.items()]
    sources = "\n".join(f"{shape.name}: {shape.requests} requests of {shape.source}" for shape in known)
    write_result(
        {"schema": "planner.length_shapes/1", "shares": list(SHARES), "shapes": data},
        lambda: f"{table(('shape', 'lengths', *told), rows)}\n\n{sources}",
        output,
        as_json=as_json,
    )
    return 0


def lengths(
    file: Annotated[
        str,
        typer.Argument(metavar="FILE", help="A JSON object a line: `tokens` of a document, or `images`, `audio_s`."),
    ],
    rows: Annotated[
        int, typer.Option("--rows", metavar="N", min=2, help="At most so many rows.", rich_help_panel=INPUT)
    ] = 16,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Read lengths of training data: rows of `documents` or `samples` for the options of a training problem.

    Examples:

      planner trace lengths documents.jsonl

      planner trace lengths sequences.jsonl --rows 8 --json
    """
    from dataclasses import asdict

    from planner.importing.formats.lengths import recorded_lengths

    read = recorded_lengths(file, rows)

    def text() -> str:
        kept = f"# {read.records} records, {read.distinct} of them different: mean size {read.mean_size:.6g}, of these"
        told = [f"{kept} rows {read.rows_mean_size:.6g}", f"{read.option}:"]
        return "\n".join([*told, *(f"  - {json.dumps(row)}" for row in read.rows)])

    write_result({"schema": "planner.training_lengths/1", **asdict(read)}, text, output, as_json=as_json)
    return 0


def _rate(text: str | None) -> float | None:

    return None if text is None else parse_quantity(text, PER_S)


def _read(file: str, drop_empty: bool, first: int | None) -> "Trace":
    from planner.simulate.requests.traces import read_trace

    trace = read_trace(file, drop_empty=drop_empty)
    return trace if first is None else trace.first(first)


def _write(trace: "Trace", to: str, as_json: bool, output: str | None) -> None:

    from planner.simulate.requests.traces import trace_csv, trace_jsonl

    if to not in ("csv", "jsonl"):
        raise PlannerError(f"unknown form `{to}`", where="--to", hint="write `--to csv` or `--to jsonl`")
    if as_json:
        rows = [json.loads(line) for line in trace_jsonl(trace).splitlines()]
        write_json({"schema": "planner.requests/1", "requests": rows}, output)
    else:
        write_data(trace_csv(trace) if to == "csv" else trace_jsonl(trace), output)


def _print(facts: dict[str, object], schema: str, as_json: bool, output: str | None) -> None:

    write_result(
        {"schema": schema, **facts}, lambda: table(("field", "value"), list(_rows("", facts))), output, as_json=as_json
    )


def _rows(prefix: str, facts: dict[str, object]) -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in facts.items():
        if isinstance(value, dict):
            rows += _rows(f"{prefix}{name}.", value)
        else:
            rows.append((f"{prefix}{name}", f"{value:.4g}" if isinstance(value, float) else str(value)))
    return rows


COMMANDS = {
    "describe": describe,
    "fit": fit,
    "convert": convert,
    "sample": sample,
    "shapes": shapes,
    "lengths": lengths,
    "replicas": replicas,
}
