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
from planner.kinds.train.evaluation.evaluation import Evaluation
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
    step = Prediction(metric="core_attention_step_time_s", value=best.with_span_s(made.span_s))
    return envelope.model_copy(
        update={
            "decision": {**envelope.decision, "core_attention": made.model_dump(mode="json")},
            "predictions": (*envelope.predictions, step),
            "assumptions": (*envelope.assumptions, APART),
        }
    )


def apart_step_s(best: Evaluation) -> float:
    """Seconds of a step with the best ranges moved; raises PlannerError where the layers have no such attention."""
    return best.with_span_s(decided(Servers(best), None).span_s)


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
    problems = [servers.problem(sequences) for sequences, _ in servers.batches]
    packed_s = _packed_s(servers)
    moves = _stated_moves(problems, given) if given is not None else [_searched(servers, own) for own in problems]
    if given is None and _span_s(servers, problems, moves) >= packed_s:
        moves = [()] * len(problems)
    other_s, each_s = servers.passes
    number, dp = sum(number for _, number in servers.batches), servers.best.choice.dp
    total = sum(number * sum(own.loads) for own, (_, number) in zip(problems, servers.batches, strict=True))
    return CoreAttentionApart(
        tolerance=servers.tolerance,
        batches=tuple(
            _stated(servers, problem, repeats, moved)
            for problem, (_, repeats), moved in zip(problems, servers.batches, moves, strict=True)
        ),
        span_s=_span_s(servers, problems, moves) if any(moves) else packed_s,
        packed_s=packed_s,
        bound_s=number * other_s + total / dp * each_s,
        received_bytes=max(_transfers(servers, own, moved)[1] for own, moved in zip(problems, moves, strict=True)),
    )


Moves = list[tuple[Moved, ...]]
"""Of each micro-batch that differs."""


def _span_s(servers: Servers, problems: list[CoreAttention], moves: Moves) -> float:
    """Passes of a step whose replicas wait for each other in every micro-batch."""
    other_s, each_s = servers.passes
    span_s = 0.0
    for problem, moved, (_, number) in zip(problems, moves, servers.batches, strict=True):
        computing_s = other_s + max(loads_after(problem, moved)) * each_s
        span_s += number * max(computing_s, _transfers(servers, problem, moved)[0])
    return span_s


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


def _stated(servers: Servers, problem: CoreAttention, number: int, moved: tuple[Moved, ...]) -> AttentionBatch:
    """A micro-batch with its ranges."""
    loads, sent = loads_after(problem, moved), sent_bytes(problem, moved)
    return AttentionBatch(
        micro_batches=number,
        sequences=problem.tokens,
        ranges=tuple(
            AttentionRange(home=m.home, document=m.document, first=m.first, last=m.last, replica=m.server)
            for m in moved
        ),
        busiest_over_mean=max(loads) * len(loads) / sum(loads),
        moved_bytes=sent,
        bound_bytes=min(bound_bytes(problem), sent),
        transfer_s=_transfers(servers, problem, moved)[0],
    )


def _searched(servers: Servers, problem: CoreAttention) -> tuple[Moved, ...]:
    """Ranges that relieve every replica; none where these are no faster, or take more room than there is.

    Raises PlannerError for a tolerance that whole blocks do not keep.
    """
    moved = move_ranges(problem).solution
    if moved is None:
        raise _too_tight(servers, problem)
    other_s, each_s = servers.passes
    transfer_s, received = _transfers(servers, problem, moved)
    moved_s = max(other_s + max(loads_after(problem, moved)) * each_s, transfer_s)
    better = moved_s < other_s + max(problem.loads) * each_s
    return moved if better and received <= servers.room_bytes else ()


def _too_tight(servers: Servers, problem: CoreAttention) -> PlannerError:
    """With the nearest tolerance of some that works."""
    wider = (round(problem.most_over_mean + more, 6) for more in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5))
    kept = (most for most in wider if move_ranges(replace(problem, most_over_mean=most)).solution is not None)
    return PlannerError(
        f"no ranges of whole blocks of {problem.block} tokens leave every replica within {servers.tolerance:.4g} above"
        " the mean",
        where=servers.best.choice.table.job.resolved.where(("options", "core_attention_apart", "tolerance")),
        hint=f"write `tolerance: {next(kept, 2.0) - 1.0:.4g}`, or smaller `block_tokens`",
    )


def _stated_moves(problems: list[CoreAttention], given: CoreAttentionApart) -> Moves:
    """The ranges of a plan; raises PlannerError where its micro-batches are not those of the step."""
    if [row.sequences for row in given.batches] != [problem.tokens for problem in problems]:
        raise _unlike("its micro-batches of core_attention are not those of the step")
    return [_judged(problem, row) for problem, row in zip(problems, given.batches, strict=True)]


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


def _judged(problem: CoreAttention, given: AttentionBatch) -> tuple[Moved, ...]:
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
