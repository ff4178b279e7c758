"""Placement files of expert layouts: `phy2log` ([..., P], slots rank by rank, -1 empty), and `quota` of free shares."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from planner.arrays import Ints
from planner.documents.files import write_bytes_atomic
from planner.errors import PlannerError
from planner.experts.instance import ExpertsPlacement


@contextmanager
def opened(path: str | Path, noun: str, hint: str) -> Iterator[Any]:
    """The content of an .npz file; PlannerError where there is none, or its content is not read as that of a `noun`."""
    where = str(path)
    try:
        with np.load(path, allow_pickle=False) as content:
            yield content
    except FileNotFoundError:
        raise PlannerError("there is no such file", where=where, hint=f"name the file of the {noun}") from None
    except (OSError, ValueError, KeyError, EOFError, RecursionError, BadZipFile) as problem:
        raise PlannerError(f"is no {noun}: {problem}", where=where, hint=hint) from None


def read_resident(path: str | Path) -> Ints:
    """[L, P] the layout in a placement file; of windows, the last."""
    with opened(path, "placement", "it holds `phy2log`") as content:
        layout = np.asarray(content["phy2log"])
    if layout.ndim not in (2, 3) or layout.size == 0 or layout.dtype.kind not in "iu":
        raise PlannerError(
            f"has a layout of shape {layout.shape} and type {layout.dtype}",
            where=str(path),
            hint="give whole numbers as [layer, slot]",
        )
    least = int(layout.min())
    if least < -1:
        raise PlannerError(
            f"names expert {least}", where=str(path), hint="experts count from 0, and -1 is an empty slot"
        )
    resident: Ints = (layout[-1] if layout.ndim == 3 else layout).astype(np.int64)
    return resident


def write_placement(placement: ExpertsPlacement, path: str | Path) -> None:
    """`phy2log` (int32) and, where shares are free, `quota` as compressed `.npz`, whole or not at all."""
    arrays: dict[str, npt.NDArray[Any]] = {"phy2log": placement.expert_P.astype(np.int32)}
    if placement.quota_P is not None:
        arrays["quota"] = placement.quota_P
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # the stub takes keywords for the flag
    write_bytes_atomic(path, buffer.getvalue())
