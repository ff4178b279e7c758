"""Schema of what training plans decide on unlike samples and documents: modules, orders, degrees, ranges and passes."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from planner.documents.units import FRACTION, TIME_S
from planner.kinds.train.samples import ModulesUse
from planner.plan.records import Amount, Count, Index
from planner.plan.schema import Block, Memory
from planner.schema.base import Spec


class CoreAttentionSpec(Spec):
    """Core attention of packed documents on whichever replica has time for it."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"tolerance": ("tolerance", FRACTION)}
    tolerance: Annotated[float, Field(ge=0)] = Field(
        default=0.1, description="of the busiest replica above the mean; DistCA runs best at 0.10 to 0.15"
    )
    block_tokens: Count = Field(default=128, description="ranges of queries begin and end on blocks of so many tokens")


class HeadSparsity(Spec):
    """Attention heads that compute alike few scores."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"sparsity": ("sparsity", FRACTION)}
    heads: Count = 1
    sparsity: Annotated[float, Field(ge=0, lt=1)] = Field(description="share of the scores that is left out")


class SparseHeadsSpec(Spec):
    """How sparse the attention heads of the model are, in the order of the heads."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"gather_overhead": ("gather_overhead_s", TIME_S)}
    heads: Annotated[tuple[HeadSparsity, ...], Field(min_length=1)]
    gather_overhead_s: Amount = Field(
        default=0.0, description="of a layer that picks the keys and values which other sequence ranks are to send"
    )


class OperatorTime(Spec):
    """What one kind of operator of a network takes of a micro-batch."""

    name: str
    forward_s: Amount
    backward_s: Amount


class ModuleRun(Spec):
    """A tower or a generator of the model: where it runs, what it takes of a micro-batch, and what it holds."""

    name: str
    place: ModulesUse = Field(description="on the first (towers) or last stage (generators), or on GPUs of its own")
    tp: Count
    dp: Count
    parameters: Count = Field(description="of the whole network")
    trained_parameters: Index = Field(description="of these, those that learn")
    tokens: Amount = Field(description="of the mean sequence, its own; pixels of a generator")
    operators: tuple[OperatorTime, ...]
    activations_bytes: Amount = Field(description="that one of its ranks keeps of a micro-batch")
    frozen_bytes: Amount = Field(description="of the weights of one of its ranks that do not learn")
    first_rank: Index | None = Field(
        default=None, description="with `apart`: of all ranks, behind the language model's"
    )
    block: Block | None = Field(default=None, description="of devices, with `apart`")
    memory: Memory | None = Field(default=None, description="of one of its ranks, with `apart`")


class SampleOrder(Spec):
    """Which samples every replica takes in which order, and how long its pipeline takes of them."""

    micro_batches: tuple[tuple[Index, ...], ...] = Field(
        description="that differ: the samples of each, by their places among those of the problem"
    )
    orders: tuple[tuple[Index, ...], ...] = Field(description="by replica, micro-batches by their places above")
    span_s: Amount = Field(description="of the replica that takes longest, transfers left out")
    bound_s: Amount = Field(description="no order has a shorter one")
    dealt_s: Amount = Field(description="of micro-batches dealt to the replicas in turn, dearest first")
    proven: bool = Field(description="no order is shorter")


class DocumentDegree(Spec):
    """Documents of one length, and the ranks that share out each of them."""

    tokens: Count
    documents: Index = Field(description="of a step")
    degree: Count


class SequenceDegrees(Spec):
    """Context-parallel degrees by document, and what they are worth beside one degree for all."""

    max_tokens_per_rank: Count = Field(description="a document takes the least power of two of ranks that keeps it")
    documents: tuple[DocumentDegree, ...]
    span_s: Amount = Field(description="of the fullest rank's documents in a step")
    packed_s: Amount = Field(description="of packed sequences at the degree of the role")
    free_s: Amount = Field(description="of the best degrees and blocks that were found for each document alone")
    bound_s: Amount = Field(description="no degrees on these ranks have a shorter one")


class AttentionRange(Spec):
    """Queries [first, last) of a document whose core attention runs on another replica."""

    home: Index = Field(description="replica whose sequence holds the document")
    document: Index = Field(description="place among the documents of that sequence")
    first: Index
    last: Count
    replica: Index = Field(description="that computes it")


class AttentionBatch(Spec):
    """Micro-batches with the same documents, a sequence on each replica, and what moves between them."""

    micro_batches: Count
    sequences: tuple[tuple[Count, ...], ...] = Field(description="by replica, tokens of the documents")
    ranges: tuple[AttentionRange, ...]
    busiest_over_mean: Amount = Field(description="operations of core attention once ranges have moved")
    moved_bytes: Amount = Field(description="of a layer, forward and backward, by all replicas together")
    bound_bytes: Amount = Field(description="no ranges within the tolerance take fewer")
    transfer_s: Amount = Field(description="of all layers on the busiest link, beside computing")


class CoreAttentionApart(Spec):
    """Where core attention of packed documents runs, and what that is worth."""

    tolerance: Amount = Field(description="of the busiest replica above the mean, where ranges move")
    batches: tuple[AttentionBatch, ...]
    span_s: Amount = Field(description="of the passes of a step")
    packed_s: Amount = Field(description="with every document where it is packed, sequences dealt evenly")
    bound_s: Amount = Field(description="with all work shared out evenly: no ranges take less")
    received_bytes: Amount = Field(description="at most on a rank at a time, in the room that its memory leaves")


class SparseHeadGroups(Spec):
    """Head ranks x sequence ranks of a context-parallel group, and the heads of each head rank."""

    head_ranks: Count
    sequence_ranks: Count
    inner: Literal["head", "sequence"] = Field(description="which of the two lie side by side")
    heads: tuple[tuple[Index, ...], ...] = Field(description="by head rank")
    attention_s: Amount = Field(description="of a layer and micro-batch on the busiest rank, forward and backward")
    bound_s: Amount = Field(description="no heads and sizes take less")
    longest_first_s: Amount = Field(description="with heads given longest first, at the best sizes (DSV)")
    dense_s: Amount = Field(description="with every score computed, as the plan is priced otherwise")
    held_bytes: Amount = Field(description="of a rank at a time, in the room that its memory leaves")


class ScheduledPass(Spec):
    """A pass of a micro-batch, or of a part of its images, on one rank."""

    micro_batch: Index = Field(description="of the replica, dearest first")
    part: Index | None = Field(default=None, description="of its images; none: its language")
    backward: bool = False


class ScheduledMicroBatch(Spec):
    """Samples of a micro-batch, and in how many parts the tower takes their images."""

    samples: tuple[Index, ...] = Field(description="by their places among those of the problem")
    parts: Index


class ModalitySchedule(Spec):
    """The order of all passes on every rank of the replica with most work, towers spread over all ranks."""

    layers_of_rank: tuple[Index, ...] = Field(description="of the language model; of towers all hold alike many")
    micro_batches: tuple[ScheduledMicroBatch, ...] = Field(description="of the replica")
    passes: tuple[tuple[ScheduledPass, ...], ...] = Field(description="by rank, in order")
    span_s: Amount = Field(description="of the replica, transfers left out")
    bound_s: Amount = Field(description="no order of these passes has a shorter one")
    in_turn_s: Amount = Field(description="of one micro-batch after the other in 1F1B's order, towers spread as here")
    colocated_s: Amount = Field(
        description="of 1F1B with the towers on the first rank, as the plan is priced otherwise"
    )
    activation_bytes: Amount = Field(description="at most on a rank, of those that its states leave room for")
    room_bytes: Amount = Field(description="that states leave there")
    proven: bool = Field(description="no order is shorter")
