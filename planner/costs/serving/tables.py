"""Step times of one instance shape as a dense numeric table, for simulators that call no Python in their inner loop.

Shapes: B decode batches, C decode contexts, T prefill tokens, P prefill contexts; N query points, K = 16 corners.
"""

import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats, Ints
from planner.costs.operators.work import Shards, Work
from planner.costs.rates.engine_overheads import EngineOverheads
from planner.costs.rates.pricer import Pricer
from planner.costs.rates.step import step_time
from planner.documents.files import write_bytes_atomic
from planner.errors import PlannerError
from planner.models.architecture import Architecture

SCHEMA = "planner.step_table/1"
AXES = ("decode_batch", "decode_context_tokens", "prefill_tokens", "prefill_context_tokens")


@dataclass(frozen=True, slots=True, eq=False)
class StepTable:
    """Seconds of a step with that many decoding sequences at that mean context, and one prefill chunk behind a context.

    Multilinear between the values of the axes (linear in the value itself: step times are sums of terms linear in
    batch, tokens and bytes read); nothing beyond them.
    """

    axes: tuple[Floats, Floats, Floats, Floats]  # in the order of AXES, each increasing
    seconds: Floats  # [B, C, T, P]
    description: dict[str, str]  # model, source of kernel times, shards

    def save(self, path: str | Path) -> None:
        """Writes an .npz file whole or not at all; equal tables give equal bytes. Raises PlannerError."""
        content = io.BytesIO()
        header = json.dumps({"schema": SCHEMA, **self.description}, sort_keys=True)
        np.savez(
            content,
            header=np.frombuffer(header.encode(), dtype=np.uint8),
            seconds=self.seconds,
            decode_batch=self.axes[0],
            decode_context_tokens=self.axes[1],
            prefill_tokens=self.axes[2],
            prefill_context_tokens=self.axes[3],
        )
        write_bytes_atomic(path, content.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "StepTable":
        """The table that `save` wrote; raises PlannerError for any other file."""
        try:
            with np.load(io.BytesIO(Path(path).read_bytes()), allow_pickle=False) as file:
                header = json.loads(file["header"].tobytes())
                batch, context, tokens, before = (file[name] for name in AXES)
                seconds = file["seconds"]
            if header.pop("schema") != SCHEMA:
                raise PlannerError("has another schema", where=str(path), hint=f"write it again as {SCHEMA}")
            axes = (batch, context, tokens, before)
            table = cls(axes, seconds, {str(key): str(value) for key, value in header.items()})
            table._require_consistent(str(path))
            return table
        except OSError as problem:
            raise PlannerError(
                f"cannot be read: {problem.strerror}", where=str(path), hint="name a file that `StepTable.save` wrote"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
            raise PlannerError("is no step table", where=str(path), hint="save it again") from None

    def _require_consistent(self, where: str) -> None:
        fits = self.seconds.shape == tuple(len(axis) for axis in self.axes) and self.seconds.dtype == np.float64
        if not fits or any(axis.ndim != 1 or not np.all(np.diff(axis) > 0) for axis in self.axes):
            raise PlannerError("holds axes that do not fit its times", where=where, hint="save it again")

    def lookup(self, points: Sequence[ArrayLike]) -> Floats:
        """Seconds [N] at points given as four arrays in the order of AXES; raises PlannerError outside the table."""
        points_N = np.broadcast_arrays(*(np.atleast_1d(np.asarray(p, dtype=np.float64)) for p in points))
        brackets = [_bracket(name, axis, p) for name, axis, p in zip(AXES, self.axes, points_N, strict=True)]
        total_N = np.zeros(points_N[0].shape)
        for corner in range(2 ** len(AXES)):
            weight_N, place = np.ones(points_N[0].shape), []
            for bit, (low_N, share_N) in enumerate(brackets):
                upper = corner >> bit & 1
                weight_N = weight_N * (share_N if upper else 1.0 - share_N)
                place.append(np.minimum(low_N + upper, len(self.axes[bit]) - 1))
            total_N += weight_N * self.seconds[tuple(place)]
        return total_N


def geometric_axis(largest: float, per_doubling: int = 2) -> Floats:
    """0, 1 and whole numbers growing by 2^(1 / per_doubling) up to `largest`, itself included."""
    if largest < 1:
        return np.zeros(1)
    steps = int(np.ceil(np.log2(largest) * per_doubling))
    values = np.round(2.0 ** (np.arange(steps) / per_doubling))
    return np.unique(np.concatenate([[0.0], values[values < largest], [float(largest)]]))


def step_table(
    arch: Architecture,
    pricer: Pricer,
    shards: Shards,
    engine: EngineOverheads,
    axes: tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike],
) -> StepTable:
    """Prices every combination of `axes` (in the order of AXES) in one call, for the one shape in `shards`.

    Raises PlannerError for axes that do not increase and ValueError for more than one shape.
    """
    if len(shards) != 1:
        raise ValueError(f"a table holds one instance shape, found {len(shards)}")
    batch, context, tokens, before = (np.atleast_1d(np.asarray(axis, dtype=np.float64)) for axis in axes)
    shape = (len(batch), len(context), len(tokens), len(before))
    batch_N, context_N, tokens_N, before_N = (
        mesh.ravel() for mesh in np.meshgrid(batch, context, tokens, before, indexing="ij")
    )
    work = Work.of(tokens_N, (tokens_N > 0).astype(np.float64), before_N, batch_N, context_N)
    point = np.zeros(len(batch_N), dtype=np.intp)
    seconds = step_time(arch, pricer, shards.take(point), work, engine).seconds.reshape(shape)
    table = StepTable((batch, context, tokens, before), seconds, _description(arch, pricer, shards))
    table._require_consistent("axes")
    return table


def _description(arch: Architecture, pricer: Pricer, shards: Shards) -> dict[str, str]:
    degrees = {name: f"{getattr(shards, name)[0]:g}" for name in ("tp", "pp", "dp", "moe_tp", "ep")}
    return {"model": arch.name, "kernel_times": pricer.name, **degrees}


def _bracket(name: str, axis: Floats, point_N: Floats) -> tuple[Ints, Floats]:
    """The position below each point and how far it lies towards the next, in [0, 1]."""
    if not np.all((point_N >= axis[0]) & (point_N <= axis[-1])):
        raise PlannerError(
            f"{name} must lie in {axis[0]:g}..{axis[-1]:g}, found {point_N.min():g}..{point_N.max():g}",
            hint="build the table over a wider axis",
        )
    low_N = np.clip(np.searchsorted(axis, point_N, side="right") - 1, 0, max(len(axis) - 2, 0))
    if len(axis) == 1:
        return low_N, np.zeros(point_N.shape)
    return low_N, (point_N - axis[low_N]) / (axis[low_N + 1] - axis[low_N])
