"""What every profiled kernel has: sizes, FLOPs, bytes, and the table it is written to.

`row` gives the columns of the table in the layout of `planner.hardware.profiles.layout`; `flop` and `size_bytes` are
what any implementation must compute and move, and serve as yardstick of the interpolation and of utilisation.
Activations and caches are 2 bytes a value unless a precision says otherwise.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from planner.errors import PlannerError

Row = dict[str, int | str]

DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp32": "float32", "int4": "int4_wo"}
"""Name of a precision in the tables."""
VALUE_BYTES = {"bf16": 2.0, "fp8": 1.0, "fp32": 4.0, "int4": 0.5}


def check_precision(precision: str) -> None:
    """Raises PlannerError for a precision that no table has."""
    if precision not in DTYPES:
        raise PlannerError(f"precision must be one of {', '.join(DTYPES)}, found `{precision}`")


@dataclass(frozen=True, slots=True)
class KernelShape:
    """A kernel with all its sizes: what is run once, and where its time stands in a table."""

    own_table: ClassVar[str]
    columns: ClassVar[Mapping[str, str]]  # of the table, by field
    constants: ClassVar[Mapping[str, str]] = {}  # further columns, the same for all shapes of the kind

    @property
    def table(self) -> str:
        """The table that holds its time."""
        return self.own_table

    @property
    def flop(self) -> float:
        """Floating-point operations of one run."""
        return 0.0

    @property
    def size_bytes(self) -> float:
        """Bytes that one run moves at least."""
        raise NotImplementedError

    @property
    def memory_bytes(self) -> float:
        """What one set of inputs takes of the device, outputs and what lies between included."""
        return self.size_bytes

    def row(self) -> Row:
        """Its columns in the table."""
        sizes = {column: getattr(self, name) for name, column in self.columns.items()}
        if "precision" in self.columns:
            sizes[self.columns["precision"]] = DTYPES[sizes[self.columns["precision"]]]
        return {**sizes, **self.constants}
