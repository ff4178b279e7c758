"""`planner estimate`: predicted TTFT, TPOT, throughput or step time of given deployments, without a search."""

from typing import Annotated

import typer

from planner.cli.options import INPUT, Json, Output, Profiles, profile_paths
from planner.cli.output import EXIT_NO, say, write_data
from planner.cli.tables import say_tables
from planner.documents.files import read_text
from planner.errors import PlannerError


def estimate(
    requests: Annotated[str | None, typer.Argument(metavar="[JSONL]", help="One request a line; `-` is stdin.")] = None,
    measured: Annotated[
        str | None,
        typer.Option(
            "--measured",
            metavar="CSV",
            help="A table of measured deployments or training runs instead.",
            rich_help_panel=INPUT,
        ),
    ] = None,
    percentiles: Annotated[
        bool, typer.Option("--percentiles", help="p50, p90, p95 and p99 of TTFT, ITL, TPOT and latency too.")
    ] = False,
    profiles: Profiles = None,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Predict what given deployments will do, without a search.

    JSON lines in, JSON lines out. A request is {"id", ...fields of a problem..., "decision": {...}}; each line out has
    its "id" and either "prediction" or "error". With --json the lines stand in the `rows` of one document.
    Exits 1 when no line has a prediction.

    Examples:

      planner estimate requests.jsonl -o predictions.jsonl

      planner estimate --measured measured.csv --output predictions.jsonl

      planner estimate requests.jsonl --percentiles
    """

    from planner.estimate import estimate_jsonl, estimate_measured

    if (requests is None) == (measured is None):
        raise PlannerError(
            "an estimate needs either a JSONL file or `--measured FILE.csv`",
            hint="write `planner estimate requests.jsonl`",
        )
    paths = profile_paths(profiles)
    say_tables(paths)
    if measured is not None:
        lines = list(estimate_measured(measured, profiles=paths, percentiles=percentiles))
    else:
        lines = list(estimate_jsonl(read_text(str(requests)).splitlines(), profiles=paths, percentiles=percentiles))
    text = "".join(f"{line}\n" for line in lines)
    if as_json:
        text = f'{{"schema": "planner.estimates/1", "rows": [{",".join(lines)}]}}\n'
    write_data(text, output)
    unpriced = sum('"prediction": ' not in line for line in lines)
    if unpriced:
        say(f"note: {unpriced} of {len(lines)} have no prediction; their `error` says why")
    return EXIT_NO if lines and unpriced == len(lines) else 0
