"""Predictions for given decisions, without a search: JSON lines of requests, or a table of measured deployments."""

from collections.abc import Iterable, Iterator


def estimate_jsonl(lines: Iterable[str], *, profiles: tuple[str, ...] = ()) -> Iterator[str]:
    """One JSON line of prediction or error for every line of request, in order."""
    from planner.estimate.answers import answer_lines
    from planner.estimate.requests import cases_of_lines

    yield from answer_lines(cases_of_lines(lines), profiles)


def estimate_measured(path: str, *, profiles: tuple[str, ...] = ()) -> Iterator[str]:
    """One JSON line of prediction or error for every row of a table of measured deployments, in order.

    Raises PlannerError when the file is none; what is wrong with a row stands in its own line.
    """
    from planner.estimate.answers import answer_lines
    from planner.estimate.measured import cases_of_table

    yield from answer_lines(cases_of_table(path), profiles)
