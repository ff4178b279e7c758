"""An instance type that an answer was chosen from, and what became of it."""

from dataclasses import dataclass
from typing import Literal

Standing = Literal["proof", "dominated", "limit"]
"""Kept for the mix; worse than another batch or chunk of its shape; cannot keep the limits."""


@dataclass(frozen=True, slots=True)
class Considered:
    """A type by its name, alone at its full load, or at its full batch where it cannot keep the limits."""

    name: str
    pool: str
    standing: Standing
    tokens_per_s_per_user: float
    tokens_per_s_per_gpu: float
