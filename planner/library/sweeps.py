"""A sweep of a problem given as data, and its table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planner.documents.read import Document, given_document
from planner.interchange.formats import problem_document
from planner.progress import Limits
from planner.schema.base import Where
from planner.schema.keys import validated
from planner.sweep.base_problem import BaseProblem
from planner.sweep.results import ResultTable, make_table
from planner.sweep.runner import SweepOptions, finish_sweep, start_sweep
from planner.sweep.schema import SweepFile, SweepSpec


@dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """A finished sweep: one row for every point, with its values, its status and the figures of its plan."""

    table: ResultTable

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [dict(row) for row in self.table.rows]

    def to_frame(self) -> Any:  # noqa: ANN401 - a pandas.DataFrame, where pandas is installed
        """The rows as a pandas DataFrame; raises ModuleNotFoundError without pandas."""
        import pandas

        return pandas.DataFrame(self.rows, columns=list(self.table.columns))


def _document(problem: str | Path | Mapping[str, Any]) -> tuple[Document, Path]:
    """The problem as a document, and the folder that its paths are relative to."""
    if isinstance(problem, Mapping):
        return given_document(dict(problem), "problem"), Path()
    return problem_document(problem), Path(problem).parent


def swept(
    problem: str | Path | Mapping[str, Any],
    axes: Mapping[str, Iterable[Any]],
    limits: Limits | None,
    *,
    profiles: Sequence[str],
    workers: int,
) -> Sweep:
    """See `planner.library.verbs.sweep`."""
    given = given_document(
        {"base": "problem", "axes": [{"field": field, "values": list(values)} for field, values in axes.items()]},
        "axes",
    )
    file = SweepFile(validated(SweepSpec, given.data, Where({}, "axes")), given, "-")
    base = BaseProblem(file, *_document(problem), (), tuple(profiles))
    options = SweepOptions(workers=workers, keep=False)
    runner, made, points = start_sweep(file, options, limits=limits, base=base)
    try:
        return Sweep(make_table(finish_sweep(runner, made, points)))
    finally:
        runner.close()
