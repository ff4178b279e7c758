"""Lengths of requests of known services by name: 20 quantiles of a published trace for prompts, and 20 for answers.

`shapes.yaml` holds them with their sources; `benchmarks/length_shapes.py` derives it. Between two quantiles the
logarithm of a length is linear in the share. Prompts and answers of a shape are independent, unlike those of a row of a
trace.
"""

from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from planner.documents.read import parse_document
from planner.errors import require_known

SHARES = (0.0, 0.01, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)
"""Of all requests, those that are no longer than each quantile."""

LENGTHS = 1000  # equally likely ones that stand for a side


@dataclass(frozen=True, slots=True)
class LengthShape:
    """Lengths of one service: quantiles at `SHARES`, in tokens, and how many requests they are of."""

    name: str
    requests: int
    source: str
    input_tokens: tuple[int, ...]
    output_tokens: tuple[int, ...]

    def lengths(self, side: str) -> tuple[int, ...]:
        """Equally likely lengths of `input_tokens` or `output_tokens` that stand for all, ascending."""
        quantiles = self.input_tokens if side == "input_tokens" else self.output_tokens
        middles = (np.arange(LENGTHS) + 0.5) / LENGTHS
        tokens = np.exp(np.interp(middles, SHARES, np.log(quantiles)))
        return tuple(np.rint(tokens).astype(int).tolist())


@cache
def known_shapes() -> dict[str, LengthShape]:
    """All built-in shapes by name."""
    text = resources.files("planner.problem").joinpath("shapes.yaml").read_text(encoding="utf-8")
    data = parse_document(text, "planner/problem/shapes.yaml").data
    return {
        name: LengthShape(
            name, entry["requests"], entry["source"], tuple(entry["input_tokens"]), tuple(entry["output_tokens"])
        )
        for name, entry in data.items()
    }


def find_shape(name: str, *, where: str = "") -> LengthShape:
    """The shape of this name; raises UnknownNameError with the nearest."""
    shapes = known_shapes()
    require_known("length shape", name, shapes, listing="`planner trace shapes` lists", where=where)
    return shapes[name]
