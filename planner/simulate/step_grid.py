"""Step times of one kind of instance as the loop reads them.

Shapes: N decode batches 0..largest, C decode contexts, T prefill tokens of a step, M tokens that each of those attends
to on average (a prompt of n tokens behind c cached ones: c + (n + 1) / 2); N' batches of steps that prefill.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from planner.costs.graphs import pad_graph_batch
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.costs.parameters import EngineOverheads
    from planner.costs.shapes import Shards, Work
    from planner.costs.step import Pricer
    from planner.costs.tables import StepTable
    from planner.models.architecture import Architecture

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class StepGrid:
    """Seconds of a step; between the values of an axis they are linear.

    Decode steps are stored for every batch, padded to the CUDA graph that runs them; steps that prefill run without.
    """

    decode_s: FloatArray  # [N, C]
    mixed_s: FloatArray  # [N', C, T, M]
    batches: FloatArray  # [N']
    contexts: FloatArray  # [C]
    tokens: FloatArray  # [T]
    attended: FloatArray  # [M]

    def __post_init__(self) -> None:
        axes = (self.batches, self.contexts, self.tokens, self.attended)
        if self.mixed_s.shape != tuple(len(axis) for axis in axes) or self.decode_s.shape[1:] != self.contexts.shape:
            raise ValueError("step times do not fit their axes")
        if any(axis.ndim != 1 or not np.all(np.diff(axis) > 0) for axis in axes):
            raise ValueError("an axis of step times does not increase")

    @property
    def most_sequences(self) -> int:
        """The largest decode batch."""
        return len(self.decode_s) - 1

    def prefill_s(self, tokens: float, attended: float) -> float:
        """A step that only prefills tokens that attend to so many each on average."""
        by_tokens = _interpolated(self.attended, self.mixed_s[0, 0], np.array([attended]))[:, 0]
        return float(_interpolated(self.tokens, by_tokens, np.array([tokens]))[0])

    @classmethod
    def of_table(cls, table: "StepTable", *, most_sequences: int | None = None, padded: bool = True) -> "StepGrid":
        """The grid of a table by `planner.costs.tables.step_table`, for batches up to `most_sequences`.

        The table's prefill contexts become mean attended tokens of a single prompt; a step of several short prompts
        attends to fewer than its table knows and is priced as one prompt without context. Raises PlannerError for
        a batch beyond the table.
        """
        batches, contexts, tokens, before = table.axes
        most = int(batches[-1]) if most_sequences is None else most_sequences
        if most > batches[-1]:
            raise PlannerError(
                f"the step table ends at a batch of {batches[-1]:g}, found {most} sequences",
                hint="build the table over a wider axis",
            )
        decode = _by_batch(batches, table.seconds[:, :, 0, 0], most, padded)
        attended = _attended_axis(tokens, before)
        mixed = np.empty((len(batches), len(contexts), len(tokens), len(attended)))
        for at, count in enumerate(tokens):
            point = np.clip(attended - (count + 1.0) / 2.0, before[0], before[-1])
            mixed[:, :, at, :] = _interpolated(before, table.seconds[:, :, at, :], point)
        return cls(decode, mixed, batches, contexts, tokens, attended)

    @classmethod
    def affine(
        cls,
        base_s: float = 0.0,
        *,
        sequence_s: float = 0.0,
        context_s: float = 0.0,
        token_s: float = 0.0,
        pair_s: float = 0.0,
        prefill_s: float = 0.0,
        most_sequences: int = 256,
    ) -> "StepGrid":
        """Steps of base_s + sequence_s x sequences + context_s x tokens they attend to, and with prefill of
        prefill_s + token_s x tokens + pair_s x pairs of tokens more.

        Bilinear terms are exact, since linear interpolation is. A step of either kind alone has base_s too.
        """
        batches, contexts = np.array([0.0, float(most_sequences)]), np.array([0.0, 2.0**20])
        tokens, attended = np.array([0.0, 2.0**20]), np.array([0.0, 2.0**20])
        counts = np.arange(most_sequences + 1, dtype=np.float64)
        decode = base_s + counts[:, None] * (sequence_s + context_s * contexts)
        n, c, t, m = np.meshgrid(batches, contexts, tokens, attended, indexing="ij")
        mixed = base_s + prefill_s + n * (sequence_s + context_s * c) + t * (token_s + pair_s * m)
        return cls(decode, mixed, batches, contexts, tokens, attended)


def step_grid(
    arch: "Architecture",
    pricer: "Pricer",
    shards: "Shards",
    engine: "EngineOverheads",
    *,
    most_sequences: int,
    longest_tokens: int,
    chunk_tokens: int,
    padded: bool = True,
    draft_tokens: int = 0,
    draft_step_s: float = 0.0,
) -> StepGrid:
    """Prices the steps of one shape: batches and chunks up to those given, sequences of up to `longest_tokens`.

    Two values a doubling on the axes of batch, context and tokens; a step of several prompts is priced as such, by the
    mean tokens that each token attends to. With `draft_tokens`, a decoding sequence is a prompt of so many tokens and
    one behind its context, and the drafts take `draft_step_s` each before that.
    """
    from planner.costs.shapes import Work
    from planner.costs.step import step_time
    from planner.costs.tables import geometric_axis

    batches = geometric_axis(most_sequences)
    contexts = geometric_axis(longest_tokens)[1:]
    contexts = contexts[(contexts >= min(64.0, longest_tokens)) | (contexts == 1.0)]
    tokens = geometric_axis(chunk_tokens)
    attended = geometric_axis(longest_tokens + chunk_tokens, 1)[1:]
    attended = attended[(attended >= min(32.0, longest_tokens)) | (attended == 1.0)]

    def price(batch: ArrayLike, context: ArrayLike, count: ArrayLike, mean: ArrayLike) -> FloatArray:
        batch_N, context_N, count_N, mean_N = (
            mesh.ravel() for mesh in np.meshgrid(batch, context, count, mean, indexing="ij")
        )
        prompts_N = np.where(count_N > 0, np.clip(count_N / np.maximum(2.0 * mean_N - 1.0, 1.0), 1.0, None), 0.0)
        before_N = np.maximum(mean_N - (count_N / np.maximum(prompts_N, 1.0) + 1.0) / 2.0, 0.0)
        work = Work.of(count_N, prompts_N, np.where(count_N > 0, before_N, 0.0), batch_N, context_N)
        if draft_tokens:
            work = _verifying(work, draft_tokens + 1)
        times = step_time(arch, pricer, shards.take(np.zeros(len(batch_N), dtype=np.intp)), work, engine)
        drafting = np.where(batch_N > 0, draft_tokens * draft_step_s, 0.0)
        return np.asarray(times.seconds + drafting, dtype=np.float64)

    mixed = price(batches, contexts, tokens, attended).reshape(len(batches), len(contexts), len(tokens), len(attended))
    decode = _by_batch(batches, mixed[:, :, 0, 0], most_sequences, padded)
    return StepGrid(decode, mixed, batches, contexts, tokens, attended)


def _verifying(work: "Work", tokens: int) -> "Work":
    """The same steps with so many tokens of every decoding sequence, all behind its context, in place of one."""
    decoded = work.decode_sequences * tokens
    whole = np.maximum(work.prefill_tokens + decoded, 1.0)
    before = (work.prefill_tokens * work.prefill_context + decoded * work.decode_context) / whole
    sequences = work.prefill_sequences + work.decode_sequences
    return work.of(work.prefill_tokens + decoded, sequences, before, 0.0, 0.0)


def _by_batch(batches: FloatArray, seconds: FloatArray, most: int, padded: bool) -> FloatArray:
    """Decode steps [N, C] of every batch from those [N', C] on an axis."""
    counts = np.arange(most + 1, dtype=np.float64)
    runs = np.where(counts == 0, 0.0, pad_graph_batch(counts, most)) if padded else counts
    return np.ascontiguousarray(_interpolated(batches, seconds.T, runs).T)


def _interpolated(axis: FloatArray, values: FloatArray, points: FloatArray) -> FloatArray:
    """`values` [..., A] on an axis [A], at points [P] within it: [..., P]."""
    if len(axis) == 1:
        return np.repeat(values, len(points), axis=-1)
    low = np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)
    share = (points - axis[low]) / (axis[low + 1] - axis[low])
    return np.asarray(values[..., low] * (1.0 - share) + values[..., low + 1] * share, dtype=np.float64)


def _attended_axis(tokens: FloatArray, before: FloatArray) -> FloatArray:
    """Mean attended tokens of all combinations, thinned to distinct ones."""
    combined = (tokens[:, None] + 1.0) / 2.0 + before[None, :]
    return np.unique(np.concatenate([[1.0], combined.ravel()]))


def stacked(grids: Sequence[StepGrid]) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.int64]]:
    """decode_s, mixed_s, axes and their lengths of several grids, padded to the largest."""
    if len(grids) == 1:
        return _one(grids[0])
    axes_of = [(grid.batches, grid.contexts, grid.tokens, grid.attended) for grid in grids]
    lengths = np.array([[len(axis) for axis in axes] for axes in axes_of], dtype=np.int64)
    axes = np.zeros((len(grids), 4, int(lengths.max())))
    most = max(len(grid.decode_s) for grid in grids)
    decode = np.zeros((len(grids), most, int(lengths[:, 1].max())))
    mixed = np.zeros((len(grids), *(int(longest) for longest in lengths.max(axis=0))))
    for at, grid in enumerate(grids):
        decode[at, : grid.decode_s.shape[0], : grid.decode_s.shape[1]] = grid.decode_s
        b, c, t, m = grid.mixed_s.shape
        mixed[at, :b, :c, :t, :m] = grid.mixed_s
        for place, axis in enumerate(axes_of[at]):
            axes[at, place, : len(axis)] = axis
    return decode, mixed, axes, lengths


def _one(grid: StepGrid) -> tuple[FloatArray, FloatArray, FloatArray, NDArray[np.int64]]:
    lengths = np.array([grid.mixed_s.shape], dtype=np.int64)
    axes = np.zeros((1, 4, int(lengths.max())))
    for place, axis in enumerate((grid.batches, grid.contexts, grid.tokens, grid.attended)):
        axes[0, place, : len(axis)] = axis
    return np.ascontiguousarray(grid.decode_s)[None], np.ascontiguousarray(grid.mixed_s)[None], axes, lengths
