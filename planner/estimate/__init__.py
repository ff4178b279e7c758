"""Predictions for given deployments, without a search: JSON lines of requests, or a table of measured runs."""

from collections.abc import Iterable, Iterator

from planner.errors import PlannerError


def estimate_jsonl(lines: Iterable[str], *, profiles: tuple[str, ...] = (), percentiles: bool = False) -> Iterator[str]:
    """One JSON line of prediction or error for every line of request, in order, priced with the tables in `profiles`.

    Predictions are means in SI units; with `percentiles`, with percentiles of TTFT and TPOT beside them.
    """
    from planner.estimate.answers import answer_lines
    from planner.estimate.requests import cases_of_lines

    yield from answer_lines(cases_of_lines(lines), profiles, percentiles=percentiles)


def estimate_measured(path: str, *, profiles: tuple[str, ...] = (), percentiles: bool = False) -> Iterator[str]:
    """One JSON line of prediction or error for every row of a table of measured deployments or training runs, in order.

    The columns tell which of the two it is. Raises PlannerError when the file is none; what is wrong with a row stands
    in its own line.
    """
    from planner.estimate.answers import answer_lines
    from planner.estimate.measured import cases_of_table
    from planner.estimate.training import is_training_table, training_lines

    if is_training_table(path):
        if percentiles:
            raise PlannerError(
                "percentiles are of requests, and these are training runs", where=path, hint="leave `--percentiles` out"
            )
        yield from training_lines(path, profiles)
        return
    yield from answer_lines(cases_of_table(path), profiles, percentiles=percentiles)
