"""Where the core attention of packed documents runs, so that no replica of a training plan is busier than others.

Source: DistCA (arXiv:2510.18121), by `solvers.contexts.core_attention`. A step has documents in the shares of the
problem, those that fit its sequences, longest first into the fullest with room; others wait for the next step.
Sequences are sorted by their operations, and those next to each other make up a micro-batch. Layers beside core
attention take the same of every sequence; core attention takes seconds in proportion to its operations, as the plan's
layers price it.
A replica's core attention runs on all of its tp ranks. Transfers run beside the passes of the other half of a
micro-batch (DistCA's ping-pong), and a micro-batch takes the longer of both. Ranges of a plan that is checked are kept,
and their figures derived again.
"""

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from planner.errors import PlannerError
from planner.kinds.train.evaluation.evaluate import Evaluation
from planner.kinds.train.space.tables import CostTable
from planner.kinds.train.unlike import AttentionBatch, AttentionRange, CoreAttentionApart
from planner.kinds.train.whole_run.documents import Packed, micro_batches_of, packed_sequences
from planner.kinds.train.whole_run.links import rank_bytes_per_s
from planner.models.architecture import GroupedQueryAttention
from planner.plan.schema import Envelope, Prediction
from planner.solvers.contexts.core_attention import (
    CoreAttention,
    Moved,
    bound_bytes,
    loads_after,
    move_ranges,
    operations,
    sent_bytes,
)

APART = (
    "documents that fit the sequences of a step come in their shares, and ranges of their core attention move beside"
    " the passes of the other half of a micro-batch"
)
QUERY_VECTORS, KEY_VECTORS = 5.0, 6.0
"""Of a query: itself and its output forward, itself, the output's gradient and its own backward; of a key and value:
both forward, both again and both gradients backward. What a server received forward it does not keep."""
ELEMENT_BYTES = 2.0


def with_core_attention(envelope: Envelope, best: Evaluation, given: CoreAttentionApart | None = None) -> Envelope:
    """The plan with the ranges whose core attention runs elsewhere, where the problem asks for them."""
    if best.choice.table.job.options.core_attention_apart is None:
        return envelope
    made = decided(Servers(best), given)
    step = Prediction(metric="core_attention_step_time_s", value=best.step_s - best.pipeline_s + made.span_s)
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "core_attention": made.model_dump(mode="json")},
            "predictions": (*envelope.predictions, step),
            "assumptions": (*envelope.assumptions, APART),
        }
    )


@dataclass(frozen=True)
class Servers:
    """The replicas of a plan as servers of core attention."""

    best: Evaluation

    @property
    def tolerance(self) -> float:
        spec = self.best.choice.table.job.options.core_attention_apart
        assert spec is not None
        return spec.tolerance

    @property
    def block_tokens(self) -> int:
        spec = self.best.choice.table.job.options.core_attention_apart
        assert spec is not None
        return spec.block_tokens

    @cached_property
    def attention(self) -> GroupedQueryAttention:
        """Of the layers; raises PlannerError where they are not alike."""
        job = self.best.choice.table.job
        mixers = {layer.mixer for layer in job.arch.layers}
        (mixer, *others) = mixers
        if others or not isinstance(mixer, GroupedQueryAttention) or mixer.window_tokens:
            raise PlannerError(
                f"`{job.arch.name}` has layers without full attention of grouped heads",
                where=job.resolved.where(("options", "core_attention_apart")),
                hint="leave `core_attention_apart` out, or train a model whose layers all attend to whole documents",
            )
        return mixer

    @cached_property
    def passes(self) -> tuple[float, float]:
        """Seconds of a micro-batch without core attention's operations, and of each operation, of all layers.

        From two prices of the same sequence, packed of short and of long documents.
        """
        whole = self.best.choice.table.job.options.sequence_tokens
        short, long = max(whole // 8, 1), whole
        (short_s, long_s), pairs = (self._seconds(short), self._seconds(long)), whole * (long - short) / 2.0
        each = max(long_s - short_s, 0.0) / pairs if pairs else 0.0
        return long_s - each * operations(0, whole), each

    def _seconds(self, tokens: int) -> float:
        """A packed sequence of documents of so many tokens, forward and backward, with what is computed again."""
        choice = self.best.choice
        documents = (choice.table.job.options.documents[0].model_copy(update={"tokens": tokens, "share": 1.0}),)
        options = choice.table.job.options.model_copy(update={"documents": documents})
        table = CostTable(replace(choice.table.job, options=options), choice.table.shape)
        mode = table.mode(choice.mode.recompute)
        again_s = sum(count * extra for count, extra in zip(table.job.count_of_kind, mode.extra_s, strict=True))
        if choice.full_layers:
            again_s = choice.full_layers * float(table.pass_K3[:, 0].max())
        return float(table.layers_3.sum()) + sum(table.first.pass_s) + sum(table.last.pass_s) + again_s

    @cached_property
    def batches(self) -> list[tuple[tuple[Packed, ...], int]]:
        """Micro-batches that differ, a sequence on each replica, and how many of each a step has."""
        options = self.best.choice.table.job.options
        return [*Counter(micro_batches_of(packed_sequences(options), self.best.choice.dp)).items()]

    def problem(self, sequences: tuple[Packed, ...]) -> CoreAttention:
        mixer = self.attention
        query = QUERY_VECTORS * mixer.num_heads * mixer.head_dim * ELEMENT_BYTES
        keys = KEY_VECTORS * mixer.num_kv_heads * mixer.head_dim * ELEMENT_BYTES
        return CoreAttention(sequences, query, keys, 1.0 + self.tolerance, self.block_tokens)

    @property
    def link_bytes_per_s(self) -> float:
        """Of the tp ranks of a replica together, to other replicas."""
        choice = self.best.choice
        return choice.table.shape.tp * rank_bytes_per_s(choice.table.job, choice.num_gpus)

    @property
    def room_bytes(self) -> float:
        """That a rank has left."""
        return float((self.best.capacity_R - self.best.memory.total_R).min())


def decided(servers: Servers, given: CoreAttentionApart | None) -> CoreAttentionApart:
    """The ranges of every micro-batch: those given, or those that cost fewest bytes; none where these are no faster."""
    stated = given.batches if given is not None else (None,) * len(servers.batches)
    if len(stated) != len(servers.batches):
        raise _unlike(f"{len(stated)} micro-batches that differ, the step has {len(servers.batches)}")
    rows = [
        _batch(servers, sequences, number, row)
        for (sequences, number), row in zip(servers.batches, stated, strict=True)
    ]
    other_s, each_s = servers.passes
    number, dp = sum(row.micro_batches for row, _, _ in rows), servers.best.choice.dp
    total = sum(
        row.micro_batches * sum(operations(0, tokens) for own in row.sequences for tokens in own) for row, _, _ in rows
    )
    return CoreAttentionApart(
        tolerance=servers.tolerance,
        batches=tuple(row for row, _, _ in rows),
        span_s=sum(row.micro_batches * span_s for row, span_s, _ in rows),
        packed_s=_packed_s(servers),
        bound_s=number * other_s + total / dp * each_s,
        received_bytes=max(received for _, _, received in rows),
    )


def _packed_s(servers: Servers) -> float:
    """Of the replica that takes longest where sequences go, dearest first, to the replica with least to do."""
    other_s, each_s = servers.passes
    loads = sorted(
        (sum(operations(0, tokens) for tokens in own) for row, number in servers.batches for own in row * number),
        reverse=True,
    )
    dp = servers.best.choice.dp
    each, load_of, count_of = len(loads) // dp, [0] * dp, [0] * dp
    for load in loads:
        replica = min((r for r in range(dp) if count_of[r] < each), key=lambda r: load_of[r])
        load_of[replica] += load
        count_of[replica] += 1
    return each * other_s + max(load_of) * each_s


def _batch(
    servers: Servers, sequences: tuple[Packed, ...], number: int, given: AttentionBatch | None
) -> tuple[AttentionBatch, float, float]:
    """A micro-batch with its ranges, the seconds that it takes, and bytes that a rank receives at most."""
    problem = servers.problem(sequences)
    moved = _searched(servers, problem) if given is None else _judged(servers, problem, given)
    other_s, each_s = servers.passes
    loads = loads_after(problem, moved)
    transfer_s, received = _transfers(servers, problem, moved)
    row = AttentionBatch(
        micro_batches=number,
        sequences=sequences,
        ranges=tuple(
            AttentionRange(home=m.home, document=m.document, first=m.first, last=m.last, replica=m.server)
            for m in moved
        ),
        busiest_over_mean=max(loads) * len(loads) / sum(loads),
        moved_bytes=sent_bytes(problem, moved),
        bound_bytes=min(bound_bytes(problem), sent_bytes(problem, moved)),
        transfer_s=transfer_s,
    )
    return row, max(other_s + max(loads) * each_s, transfer_s), received


def _searched(servers: Servers, problem: CoreAttention) -> tuple[Moved, ...]:
    """Ranges that relieve every replica; none where these are no faster, or take more room than there is."""
    moved = move_ranges(problem).solution or ()
    other_s, each_s = servers.passes
    transfer_s, received = _transfers(servers, problem, moved)
    moved_s = max(other_s + max(loads_after(problem, moved)) * each_s, transfer_s)
    better = moved_s < other_s + max(problem.loads) * each_s
    return moved if better and received <= servers.room_bytes else ()


def _transfers(servers: Servers, problem: CoreAttention, moved: tuple[Moved, ...]) -> tuple[float, float]:
    """Seconds on the busiest replica's links of all layers, and bytes that one of its ranks receives at a time."""
    job, tp = servers.best.choice.table.job, servers.best.choice.table.shape.tp
    sent_S, received_S = [0.0] * len(problem.tokens), [0.0] * len(problem.tokens)
    furthest: dict[tuple[int, int, int], int] = {}
    for each in moved:
        key = each.home, each.document, each.server
        keys = problem.kv_bytes * (max(each.last, furthest.get(key, 0)) - furthest.get(key, 0))
        furthest[key] = max(each.last, furthest.get(key, 0))
        size = problem.query_bytes * (each.last - each.first) + keys
        sent_S[each.home] += size
        received_S[each.server] += size
    busiest = max(sent + got for sent, got in zip(sent_S, received_S, strict=True))
    return job.arch.num_layers * busiest / servers.link_bytes_per_s, max(received_S) / tp


def _judged(servers: Servers, problem: CoreAttention, given: AttentionBatch) -> tuple[Moved, ...]:
    """The ranges of a plan; raises PlannerError for those that overlap, leave blocks or break the tolerance."""
    moved = tuple(Moved(r.home, r.document, r.first, r.last, r.replica) for r in given.ranges)
    places = [(home, d) for home, row in enumerate(problem.tokens) for d in range(len(row))]
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {place: [] for place in places}
    for each in moved:
        place = each.home, each.document
        if place not in rows or each.server >= len(problem.tokens) or each.server == each.home:
            raise _unlike(f"range {each.first} to {each.last} has no document or no other replica")
        whole = problem.tokens[each.home][each.document]
        if not 0 <= each.first < each.last <= whole or any(
            end % problem.block and end != whole for end in (each.first, each.last)
        ):
            raise _unlike(f"range {each.first} to {each.last} of a document of {whole} tokens is not of whole blocks")
        rows[place].append((each.first, each.last))
    for own in rows.values():
        own.sort()
        if any(last > first for (_, last), (first, _) in pairwise(own)):
            raise _unlike("ranges of a document overlap")
    if moved and max(loads_after(problem, moved)) > problem.capacity:
        raise _unlike(f"a replica is busier than {problem.most_over_mean:g} times the mean")
    return moved


def _unlike(what: str) -> PlannerError:
    return PlannerError(what, where="decision.core_attention", hint="take over what the plan said, or solve it again")
