"""Attention heads of unlike sparsity on the context-parallel ranks of a training plan: head ranks x sequence ranks.

Source: DSV (arXiv:2502.07590, section 7), by `solvers.contexts.sparse_heads`. Head h computes the share 1 - sparsity of
its scores. Of N ranks, g_h share heads out and g_s the sequence: a rank exchanges queries, keys, values and outputs of
its heads among head ranks (forward and backward alike), and gathers the keys and values that its scores need among
sequence ranks (forward, again for the backward pass, and their gradients back). Dense scores take what the plan's
layers price, a head its part of them; a head of keys and values goes with each of its queries' heads. Groups of ranks
lie side by side or across, on the links of a node or out of it. Finding out which scores matter is not priced. Sizes
and heads of a plan that is checked are kept, and their figures derived again; a proven bound is taken over.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from planner.arrays import Floats
from planner.costs.training.layer_costs import kernel_seconds
from planner.errors import PlannerError
from planner.kinds.train.evaluation.evaluation import Evaluation
from planner.kinds.train.options import TrainOptions
from planner.kinds.train.unlike import SparseHeadGroups
from planner.kinds.train.whole_run.links import rank_bytes_per_s
from planner.models.architecture import GroupedQueryAttention, Layer
from planner.plan.schema import Envelope, Prediction
from planner.solvers.contexts.sparse_heads import HeadLayout, fullest_s, place_heads

SPARSE = "attention heads leave out the stated shares of their scores; finding out which takes `gather_overhead` alone"
MOST_NODES = 2_000_000
EXCHANGED, GATHERED = 2.0, 3.0  # passes: forward and backward; forward, again for the backward pass, gradients back
BF16_BYTES = 2.0
Axis = Literal["head", "sequence"]


def with_sparse_heads(envelope: Envelope, best: Evaluation, given: SparseHeadGroups | None = None) -> Envelope:
    """The plan with its heads on ranks, where the problem says how sparse they are."""
    if best.choice.table.job.options.sparse_heads is None:
        return envelope
    context = Context(best)
    made = decided(context, given)
    step = Prediction(metric="sparse_heads_step_time_s", value=_step_s(best, made))
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "sparse_heads": made.model_dump(mode="json")},
            "predictions": (*envelope.predictions, step),
            "assumptions": (*envelope.assumptions, SPARSE),
        }
    )


def sparse_step_s(best: Evaluation) -> float:
    """Seconds of a step with the best heads on ranks; raises PlannerError where they fit no sizes."""
    return _step_s(best, decided(Context(best), None))


def _step_s(best: Evaluation, made: SparseHeadGroups) -> float:
    saved_s = made.dense_s - made.attention_s
    layers = best.choice.num_micro_batches * best.choice.table.job.arch.num_layers
    return best.with_samples_s(best.alone_s - layers * saved_s)


@dataclass(frozen=True, slots=True)
class Sizes:
    """So many head ranks times sequence ranks; those of `inner` lie side by side."""

    head_ranks: int
    sequence_ranks: int
    inner: Axis


@dataclass(frozen=True)
class Context:
    """The context-parallel ranks of a plan, and what attention takes on them."""

    best: Evaluation

    @property
    def ranks(self) -> int:
        return self.best.choice.table.shape.cp

    @property
    def options(self) -> TrainOptions:
        return self.best.choice.table.job.options

    @cached_property
    def attention(self) -> GroupedQueryAttention:
        """Of the layers; raises PlannerError where they are not alike, or have other heads than the problem says."""
        job, spec = self.best.choice.table.job, self.options.sparse_heads
        assert spec is not None
        (mixer, *others) = {layer.mixer for layer in job.arch.layers}
        where = job.resolved.where(("options", "sparse_heads"))
        if others or not isinstance(mixer, GroupedQueryAttention) or mixer.window_tokens:
            raise PlannerError(
                f"`{job.arch.name}` has layers without full attention of grouped heads",
                where=where,
                hint="leave `sparse_heads` out",
            )
        stated = sum(row.heads for row in spec.heads)
        if stated != mixer.num_heads:
            raise PlannerError(
                f"{stated} sparse heads, `{job.arch.name}` has {mixer.num_heads} in a layer",
                where=where,
                hint=f"state the sparsity of {mixer.num_heads} heads",
            )
        return mixer

    @cached_property
    def density_H(self) -> Floats:
        """Share of the scores that each head computes."""
        assert self.options.sparse_heads is not None
        return np.array([1.0 - row.sparsity for row in self.options.sparse_heads.heads for _ in range(row.heads)])

    @cached_property
    def dense_s(self) -> tuple[float, float]:
        """Seconds of a layer's core attention on one rank, and of the exchange for it, as the plan is priced.

        Both of a micro-batch, forward and backward, with what is computed again.
        """
        choice, table = self.best.choice, self.best.choice.table
        core = exchanged = 0.0
        for layer, count in zip(table.job.kinds, table.job.count_of_kind, strict=True):
            own = self._core_s(layer)
            core, exchanged = core + count * own[0], exchanged + count * own[1]
        layers = table.job.arch.num_layers
        mode, again = choice.mode.recompute, 0.0
        if mode.granularity == "full" or choice.full_layers or "core_attention" in mode.modules:
            share = choice.full_layers / layers if choice.full_layers else 1.0
            again = share * sum(
                count * cost.forward_of_module.get("core_attention", 0.0)
                for count, cost in zip(table.job.count_of_kind, table.layers, strict=True)
            )
        return (core + again) / layers, exchanged / layers

    def _core_s(self, layer: Layer) -> tuple[float, float]:
        job, table = self.best.choice.table.job, self.best.choice.table
        columns, second_K = kernel_seconds("layer", job.machine, table.dense_shard, 0, job.rates, layer)
        core = sum(
            float(s) for name, kind, s in zip(columns.modules, columns.kinds, second_K, strict=True)
            if name == "core_attention" and not kind.startswith("cp")
        )  # fmt: skip
        exchanged = sum(float(s) for kind, s in zip(columns.kinds, second_K, strict=True) if kind.startswith("cp"))
        return core, exchanged

    @property
    def room_bytes(self) -> float:
        """That a rank has left."""
        return float((self.best.capacity_R - self.best.memory.total_R).min())

    def layouts(self) -> Iterator[tuple[HeadLayout, Sizes]]:
        """Every size of groups, and both ways to lay them over nodes where these differ."""
        heads = self.attention.num_heads
        for head_ranks in (size for size in range(1, min(self.ranks, heads) + 1) if self.ranks % size == 0):
            sequence_ranks = self.ranks // head_ranks
            inner: tuple[Axis, ...] = ("head", "sequence")
            for axis in inner if min(head_ranks, sequence_ranks) > 1 else inner[:1]:
                sizes = Sizes(head_ranks, sequence_ranks, axis)
                yield self._layout(sizes), sizes

    def _layout(self, sizes: Sizes) -> HeadLayout:
        options, mixer, shape = self.options, self.attention, self.best.choice.table.shape
        assert options.sparse_heads is not None
        of_head = {"head": sizes.head_ranks, "sequence": sizes.sequence_ranks}
        job = self.best.choice.table.job
        rate = {axis: rank_bytes_per_s(job, of_head[axis] if axis == sizes.inner else self.ranks) for axis in of_head}
        tokens = shape.micro_batch * options.sequence_tokens / sizes.sequence_ranks
        exchanged = 4.0 * tokens * mixer.head_dim * BF16_BYTES
        away = (sizes.sequence_ranks - 1) / sizes.sequence_ranks
        whole = shape.micro_batch * options.sequence_tokens
        gathered_H = 2.0 * self.density_H * away * whole * mixer.head_dim * BF16_BYTES
        core_s = self.dense_s[0] * self.ranks / mixer.num_heads
        seconds_H = self.density_H * core_s / sizes.sequence_ranks
        seconds_H = seconds_H + EXCHANGED * exchanged * (sizes.head_ranks - 1) / sizes.head_ranks / rate["head"]
        seconds_H = seconds_H + GATHERED * gathered_H / rate["sequence"]
        own_s = options.sparse_heads.gather_overhead_s if sizes.sequence_ranks > 1 else 0.0
        name = f"{sizes.head_ranks}x{sizes.sequence_ranks}"
        return HeadLayout(name, sizes.head_ranks, seconds_H, exchanged + gathered_H, own_s)


def decided(context: Context, given: SparseHeadGroups | None) -> SparseHeadGroups:
    """Sizes and heads: those given, or the best.

    Raises PlannerError where the heads fit no sizes.
    """
    rows = [*context.layouts()]
    layouts = [layout for layout, _ in rows]
    room = context.room_bytes
    if given is not None:
        at, group_of_head = _judged(rows, given, room)
        least_s = min(given.bound_s, fullest_s(layouts[at], group_of_head))
        least_s = max(least_s, min(layout.bound_s for layout in layouts))
    else:
        result = place_heads(layouts, room, most_nodes=MOST_NODES)
        if result.solution is None or result.bound is None:
            raise _no_room(context, layouts, room)
        at, group_of_head = result.solution.layout, result.solution.group_of_head
        least_s = result.bound
    layout, sizes = rows[at]
    heads = tuple(tuple(np.flatnonzero(np.array(group_of_head) == group).tolist()) for group in range(layout.groups))
    return SparseHeadGroups(
        head_ranks=sizes.head_ranks,
        sequence_ranks=sizes.sequence_ranks,
        inner=sizes.inner,
        heads=heads,
        attention_s=fullest_s(layout, group_of_head),
        bound_s=least_s,
        longest_first_s=min(fullest_s(own, _longest_first(own)) for own in layouts),
        dense_s=sum(context.dense_s),
        held_bytes=float(np.bincount(group_of_head, layout.held_bytes_H, layout.groups).max()),
    )


def _longest_first(layout: HeadLayout) -> list[int]:
    """Each head, longest first, in the group with least to do (DSV's rule)."""
    load_G, group_H = np.zeros(layout.groups), [0] * len(layout.seconds_H)
    for head in np.argsort(-layout.seconds_H, kind="stable").tolist():
        group_H[head] = int(load_G.argmin())
        load_G[group_H[head]] += layout.seconds_H[head]
    return group_H


def _judged(
    rows: Sequence[tuple[HeadLayout, Sizes]], given: SparseHeadGroups, room: float
) -> tuple[int, tuple[int, ...]]:
    """The place of the sizes of a plan, and the group of each head; raises PlannerError for what cannot be."""
    wanted = Sizes(given.head_ranks, given.sequence_ranks, given.inner)
    at = next((at for at, (_, sizes) in enumerate(rows) if sizes == wanted), None)
    if at is None:
        raise _unlike(f"{given.head_ranks} x {given.sequence_ranks} ranks are no sizes of this group")
    layout = rows[at][0]
    group_of = {head: group for group, own in enumerate(given.heads) for head in own}
    stated = sum(len(own) for own in given.heads)
    if (
        len(given.heads) != layout.groups
        or sorted(group_of) != [*range(len(layout.seconds_H))]
        or stated > len(group_of)
    ):
        raise _unlike("the heads are not each on one head rank")
    group_H = tuple(group_of[head] for head in range(len(layout.seconds_H)))
    if np.bincount(group_H, layout.held_bytes_H, layout.groups).max() > room * (1.0 + 1e-9):
        raise _unlike("a rank has no room for its heads")
    return at, group_H


def _no_room(context: Context, layouts: Sequence[HeadLayout], room: float) -> PlannerError:
    least = min(float(layout.held_bytes_H.sum()) / layout.groups for layout in layouts)
    return PlannerError(
        f"heads hold {least / 1e9:.3g} GB a rank or more while they compute, {room / 1e9:.3g} GB are left",
        where=context.best.choice.table.job.resolved.where(("options", "sparse_heads")),
        hint="write `search: {recompute: full}`, or more `cp`",
    )


def _unlike(what: str) -> PlannerError:
    return PlannerError(what, where="decision.sparse_heads", hint="take over what the plan said, or solve it again")
