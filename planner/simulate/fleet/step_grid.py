"""Step-time table of one kind of instance: seconds by decode batch, context and prefill tokens.

Shapes: N decode batches 0..largest, C decode contexts, T prefill tokens of a step, M tokens that each of those attends
to on average (a prompt of n tokens behind c cached ones: c + (n + 1) / 2); N' batches of steps that prefill.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple, NotRequired, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from planner.arrays import Floats, Ints

if TYPE_CHECKING:
    from planner.costs.operators.work import Shards, Work
    from planner.costs.rates.engine_overheads import EngineOverheads
    from planner.costs.rates.pricer import Pricer
    from planner.costs.serving.speculation import Drafter
    from planner.models.architecture import Architecture

NUM_AXES = 4  # of batches, contexts, tokens and those that they attend to


class GridAxes(TypedDict):
    """How far the axes of a table go: two values a doubling of batch, context and tokens.

    Batches and chunks go up to those given, sequences up to `longest_tokens`; with `draft_tokens`, steps verify so many
    of each decoding sequence. With `shortest_context`, the axis of contexts is its first value.
    """

    most_sequences: int
    longest_tokens: int
    chunk_tokens: int
    draft_tokens: NotRequired[int]
    shortest_context: NotRequired[bool]


@dataclass(frozen=True, slots=True, eq=False)
class StepGrid:
    """Seconds of a step; between the values of an axis they are linear.

    Decode steps are stored for every batch, padded to the CUDA graph that runs them; steps that prefill run without.
    What instances that step together do together (experts that they share) may stand apart: `joint_s` by the new tokens
    of the mean one, beyond the other seconds of the slowest. No step with prompts is then shorter than `least_s` by the
    new tokens of an instance that prefills.
    """

    decode_s: Floats  # [N, C]
    mixed_s: Floats  # [N', C, T, M]
    batches: Floats  # [N']
    contexts: Floats  # [C]
    tokens: Floats  # [T]
    attended: Floats  # [M]
    joint_s: Floats = field(default_factory=lambda: np.zeros(1))  # [J]
    rank_tokens: Floats = field(default_factory=lambda: np.zeros(1))  # [J]
    least_s: Floats = field(default_factory=lambda: np.zeros(1))  # [J]

    def __post_init__(self) -> None:
        axes = (self.batches, self.contexts, self.tokens, self.attended)
        if self.mixed_s.shape != tuple(len(axis) for axis in axes) or self.decode_s.shape[1:] != self.contexts.shape:
            raise ValueError("step times do not fit their axes")
        if not self.joint_s.shape == self.least_s.shape == self.rank_tokens.shape:
            raise ValueError("joint seconds do not fit their axis")
        if any(axis.ndim != 1 or not np.all(np.diff(axis) > 0) for axis in (*axes, self.rank_tokens)):
            raise ValueError("an axis of step times does not increase")

    @property
    def most_sequences(self) -> int:
        """The largest decode batch."""
        return len(self.decode_s) - 1

    def prefill_s(self, tokens: float, attended: float) -> float:
        """A step that only prefills tokens that attend to so many each on average."""
        by_tokens = interpolated(self.attended, self.mixed_s[0, 0], np.array([attended]))[:, 0]
        own_s = interpolated(self.tokens, by_tokens, np.array([tokens]))[0]
        joint_s, least_s = (
            interpolated(self.rank_tokens, values, np.array([tokens]))[0] for values in (self.joint_s, self.least_s)
        )
        return float(max(own_s + joint_s, least_s))

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
    drafter: "Drafter | None" = None,
    joint_apart: bool = False,
    **axes: Unpack[GridAxes],
) -> StepGrid:
    """Prices the steps of one shape.

    A step of several prompts is priced as such, by the mean tokens that each token attends to. The drafter makes what
    steps verify before them; where they verify nothing, prompts alone go through it. With `joint_apart`, what ranks
    that share experts do together is left to be added for all of them.
    """
    if drafter is None:
        (grid,) = step_grids(arch, pricer, shards, engine, joint_apart=joint_apart, **axes)
        return grid

    def seconds_of(work: "Work") -> Floats:
        many = shards.take(np.zeros(len(work.tokens), dtype=np.intp))
        own_s = _own_seconds(arch, pricer, many, work, engine, joint_apart=joint_apart)
        return own_s + drafting_s(drafter, pricer, many, work)

    grids = [grid_of(seconds_of, **axes)]
    (grid,) = _joint_apart(grids, arch, pricer, shards, engine, _most_tokens(axes)) if joint_apart else grids
    return grid


def step_grids(
    arch: "Architecture",
    pricer: "Pricer",
    shards: "Shards",
    engine: "EngineOverheads",
    *,
    joint_apart: bool = False,
    **axes: Unpack[GridAxes],
) -> list[StepGrid]:
    """The tables of several shapes [S], whose axes are the same: those of `step_grid` of each, priced together."""
    several = shards.reshaped(len(shards), *(1,) * NUM_AXES)

    def seconds_of(work: "Work") -> Floats:
        return _own_seconds(arch, pricer, several, work, engine, joint_apart=joint_apart)

    grids = grids_of(seconds_of, apart=True, **axes)
    return _joint_apart(grids, arch, pricer, shards, engine, _most_tokens(axes)) if joint_apart else grids


def _most_tokens(axes: GridAxes) -> int:
    """New tokens of a step at the most."""
    return axes["chunk_tokens"] + axes["most_sequences"] * (axes.get("draft_tokens", 0) + 1)


def _own_seconds(
    arch: "Architecture",
    pricer: "Pricer",
    shards: "Shards",
    work: "Work",
    engine: "EngineOverheads",
    *,
    joint_apart: bool,
) -> Floats:
    """Seconds of steps, with `joint_apart` without what ranks that share experts do together."""
    from planner.costs.rates.step import host_s, joint_of, step_time

    times = step_time(arch, pricer, shards, work, engine)
    return times.device_s + host_s(shards, work, engine) - joint_of(times) if joint_apart else times.seconds


def _joint_apart(
    grids: Sequence[StepGrid],
    arch: "Architecture",
    pricer: "Pricer",
    shards: "Shards",
    engine: "EngineOverheads",
    most_tokens: int,
) -> list[StepGrid]:
    """The tables of shapes [S] with what their ranks do together, for up to so many tokens of the mean one."""
    from planner.costs.rates.step import joint_step
    from planner.costs.serving.axes import geometric_axis

    bends = engine.captured_tokens * np.array([1.0, 1.5])  # of the least that a step takes
    ranks = geometric_axis(most_tokens)
    ranks = np.unique(np.concatenate([ranks, bends[(bends > 0.0) & (bends < ranks[-1])]]))
    joint_SJ, least_SJ = joint_step(arch, pricer, shards, engine, ranks)
    return [
        replace(grid, joint_s=joint_s, rank_tokens=ranks, least_s=least_s)
        for grid, joint_s, least_s in zip(grids, joint_SJ, least_SJ, strict=True)
    ]


def grid_of(seconds_of: "Callable[[Work], Floats]", **axes: Unpack[GridAxes]) -> StepGrid:
    """The steps of an instance whose work [N] takes `seconds_of` it."""
    (grid,) = grids_of(seconds_of, **axes)
    return grid


def grids_of(
    seconds_of: "Callable[[Work], Floats]",
    *,
    most_sequences: int,
    longest_tokens: int,
    chunk_tokens: int,
    draft_tokens: int = 0,
    shortest_context: bool = False,
    apart: bool = False,
) -> list[StepGrid]:
    """The steps of all instances whose work takes `seconds_of` it; axes as in `GridAxes`.

    With `apart`, the work has the four axes apart, of which each of its parts has those that it depends on, and its
    seconds have the instances on an axis before them.
    """
    from planner.costs.operators.work import Work
    from planner.costs.serving.axes import geometric_axis

    batches = geometric_axis(most_sequences)
    contexts = geometric_axis(longest_tokens)[1:]
    contexts = contexts[(contexts >= min(64.0, longest_tokens)) | (contexts == 1.0)]
    contexts = contexts[:1] if shortest_context else contexts
    tokens = geometric_axis(chunk_tokens)
    attended = geometric_axis(longest_tokens + chunk_tokens, 1)[1:]
    attended = attended[(attended >= min(32.0, longest_tokens)) | (attended == 1.0)]

    def price(batch: ArrayLike, context: ArrayLike, count: ArrayLike, mean: ArrayLike) -> Floats:
        mesh = np.meshgrid(batch, context, count, mean, indexing="ij", sparse=apart)
        batch_N, context_N, count_N, mean_N = mesh if apart else (axis.ravel() for axis in mesh)
        prompts_N = np.where(count_N > 0, np.clip(count_N / np.maximum(2.0 * mean_N - 1.0, 1.0), 1.0, None), 0.0)
        before_N = np.maximum(mean_N - (count_N / np.maximum(prompts_N, 1.0) + 1.0) / 2.0, 0.0)
        work = Work(count_N, prompts_N, np.where(count_N > 0, before_N, 0.0), batch_N, context_N)
        if draft_tokens:
            work = work.with_drafts(draft_tokens)
        return np.asarray(np.where(work.tokens > 0, seconds_of(work), 0.0), dtype=np.float64)

    shape = len(batches), len(contexts), len(tokens), len(attended)
    return [
        StepGrid(_by_batch(batches, mixed[:, :, 0, 0], most_sequences), mixed, batches, contexts, tokens, attended)
        for mixed in price(batches, contexts, tokens, attended).reshape(-1, *shape)
    ]


def drafting_s(drafter: "Drafter | None", pricer: "Pricer", shards: "Shards", work: "Work") -> Floats:
    """Seconds [N] of the drafts of steps; where these verify none, of prompts that go through the drafter."""
    from planner.costs.serving.speculation import drafting_step

    if drafter is None:
        return np.zeros(work.shape)
    if work.queries is None:
        work = replace(work, decode_sequences=np.zeros_like(work.decode_sequences)).with_drafts(1.0)
    return drafting_step(drafter, pricer, shards, work).device_s


def _by_batch(batches: Floats, seconds: Floats, most: int) -> Floats:
    """Decode steps [N, C] of every batch from those [N', C] on an axis."""
    return np.ascontiguousarray(interpolated(batches, seconds.T, np.arange(most + 1, dtype=np.float64)).T)


def interpolated(axis: Floats, values: Floats, points: Floats) -> Floats:
    """`values` [..., A] on an axis [A], at points [P] within it: [..., P]."""
    if len(axis) == 1:
        return np.repeat(values, len(points), axis=-1)
    low = np.clip(np.searchsorted(axis, points, side="right") - 1, 0, len(axis) - 2)
    share = (points - axis[low]) / (axis[low + 1] - axis[low])
    return np.asarray(values[..., low] * (1.0 - share) + values[..., low + 1] * share, dtype=np.float64)


class Tables(NamedTuple):
    """Several grids as the loop reads them [K, ..], padded to the largest."""

    decode_s: Floats
    mixed_s: Floats
    joint_s: Floats
    least_s: Floats
    axes: Floats  # [K, 5, longest]
    lengths: Ints  # [K, 5] of the axes


def stacked(grids: Sequence[StepGrid]) -> Tables:
    """The tables of grids."""
    axes_of = [(grid.batches, grid.contexts, grid.tokens, grid.attended, grid.rank_tokens) for grid in grids]
    lengths = np.array([[len(axis) for axis in axes] for axes in axes_of], dtype=np.int64)
    axes = np.zeros((len(grids), len(lengths[0]), int(lengths.max())))
    for row, each in enumerate(axes_of):
        for place, axis in enumerate(each):
            axes[row, place, : len(axis)] = axis
    names = ("decode_s", "mixed_s", "joint_s", "least_s")
    decode_s, mixed_s, joint_s, least_s = (_padded([getattr(grid, name) for grid in grids]) for name in names)
    return Tables(decode_s, mixed_s, joint_s, least_s, axes, lengths)


def _padded(arrays: Sequence[Floats]) -> Floats:
    """Arrays one above the other, zeros where another one is longer."""
    if len(arrays) == 1:
        return np.ascontiguousarray(arrays[0])[None]
    whole = np.zeros((len(arrays), *np.max([array.shape for array in arrays], axis=0)))
    for row, array in enumerate(arrays):
        whole[row][tuple(slice(0, length) for length in array.shape)] = array
    return whole
