"""How samples are drawn: cases by seed, tables by drawn factors of groups and noise of rows, as CSV text."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

Case = dict[str, Any]
SEED = 0
GROUP_DEVIATION, ROW_DEVIATION = 0.2, 0.05  # of the logarithm of a time: between groups, and between rows of one


class Noise:
    """Lognormal factors: one drawn for each group, times one of each row."""

    def __init__(self, stream: int, between: float = GROUP_DEVIATION) -> None:
        self.between = between
        self.draws = np.random.default_rng((SEED, stream))
        self.group_factors: dict[str, float] = {}

    def factor(self, group: str) -> float:
        """Of the next row of `group`."""
        if group not in self.group_factors:
            self.group_factors[group] = float(np.exp(self.draws.normal(0.0, self.between)))
        return self.group_factors[group] * float(np.exp(self.draws.normal(0.0, ROW_DEVIATION)))


def case_draws(stream: int) -> np.random.Generator:
    """Draws of one planning case."""
    return np.random.default_rng((SEED, 51, stream))


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """The rows as CSV; columns that a row lacks stay empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
