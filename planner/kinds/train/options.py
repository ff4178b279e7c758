"""Schema of training problems (options)."""

from itertools import pairwise
from math import gcd, inf
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.costs.operators.experts import EVEN, ExpertLoad
from planner.costs.training.config import AHEAD, USABLE_SHARE, GraphScope, Loading
from planner.documents.units import BYTES, BYTES_PER_S
from planner.engines.training import Dispatcher, Reduction
from planner.kinds.train.checkpointing import Reliability
from planner.kinds.train.code import CodeSpec
from planner.kinds.train.figures import ROOM_COSTS, ROOMY_SHARE
from planner.kinds.train.samples import Frozen, Sample
from planner.kinds.train.search_options import Overlap, Precision, SearchSpec
from planner.kinds.train.unlike import CoreAttentionSpec, SparseHeadsSpec
from planner.plan.records import Count
from planner.schema.base import Spec, refuse
from planner.schema.fields import Positive


class InputLength(Spec):
    """Inputs of one length."""

    tokens: Count
    share: Annotated[float, Field(gt=0)] = Field(description="of the micro-batches, as a weight")


class BatchStage(Spec):
    """A global batch smaller than the last, for so many tokens."""

    global_batch: Count
    tokens: Annotated[float, Field(gt=0)]


class ExpertLoadSpec(Spec):
    """How unevenly tokens choose experts, and how many of them an expert takes."""

    fullest: Annotated[float, Field(ge=1)] = Field(
        default=1.0, description="load of the fullest expert over the mean of all, in a micro-batch"
    )
    capacity: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="the most that an expert takes of the mean load; the rest is dropped"
    )
    padded: bool = Field(default=False, description="every expert computes its capacity, needed or not")

    @model_validator(mode="after")
    def padded_to_something(self) -> "ExpertLoadSpec":
        if self.padded and self.capacity is None:
            raise refuse("experts padded to no capacity", "write `capacity`, or leave `padded` out", "padded")
        return self


class LoadingSpec(Spec):
    """How fast samples come; they are read and prepared ahead, while the step before runs."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "sample": ("sample_bytes", BYTES),
        "read": ("read_bytes_per_s", BYTES_PER_S),
    }
    sample_bytes: Positive | None = Field(
        default=None, description="of a sequence of the batch in the store, which crosses adapters that training shares"
    )
    read_bytes_per_s: Positive | None = Field(
        default=None, description="of the store, the whole job together; no limit when absent"
    )
    samples_per_s: Positive | None = Field(
        default=None, description="that the loader of one data-parallel rank prepares; no limit when absent"
    )

    @model_validator(mode="after")
    def of_samples_with_a_size(self) -> "LoadingSpec":
        if self.sample_bytes is None and self.samples_per_s is None:
            place = "loading" if self.read_bytes_per_s is None else "read"
            raise refuse("loading without samples", "write `sample: 2MB`, or `samples_per_s: 40`", place)
        if self.sample_bytes is None and self.read_bytes_per_s is not None:
            raise refuse("a store that is read by samples of no size", "write `sample: 2MB`", "read")
        return self

    def arriving(self) -> Loading:
        """As the costs know it."""
        return Loading(self.sample_bytes or 0.0, self.read_bytes_per_s or inf, self.samples_per_s or inf)


class DropoutSpec(Spec):
    """Shares of values that training sets to zero, by Megatron-LM's names."""

    hidden: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="of the outputs of attention and feed-forward part, whose masks are kept"
    )
    attention: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="of the weights of softmax attention, which fused kernels draw anew"
    )


class TrainOptions(Spec):
    """The job: a plan must train this batch of sequences of this length in this precision."""

    global_batch: Count = Field(description="sequences per optimizer step")
    sequence_tokens: Count
    precision: Precision = "bf16"
    train_tokens: Annotated[float, Field(gt=0)] | None = Field(default=None, description="of the whole run")
    optimizer: Literal["adamw", "lamb", "sgd", "muon"] = "adamw"
    task: Literal["pretrain", "sft", "lora"] = "pretrain"
    lora_rank: Count = Field(default=16, description="with task `lora`")
    memory_utilisation: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description=f"share of device memory that a plan may fill; when absent {USABLE_SHARE:g}, and rather "
        f"{ROOMY_SHARE:g} where that costs at most {100 * ROOM_COSTS:g} % of the goal",
    )
    overlap: tuple[Overlap, ...] = Field(
        default=("grad_reduce", "param_gather", "p2p"),
        description="communication that the framework runs behind computation",
    )
    reduce_gradients: Reduction | None = Field(
        default=None,
        description="what gradients are summed in between ranks; the engine's own when absent, with Megatron fp32, "
        "where NVIDIA's measured recipes have bf16",
    )
    dispatcher: Dispatcher | None = Field(
        default=None, description="what sends tokens to their experts; the engine's own on these GPUs when absent"
    )
    experts: ExpertLoadSpec | None = Field(
        default=None, description="how tokens choose experts; evenly and without a limit when absent"
    )
    documents: tuple[InputLength, ...] = Field(
        default=(), description="that sequences are packed of, with `task: sft` or `lora`; each attends to itself"
    )
    samples: tuple[Sample, ...] = Field(
        default=(), description="what sequences hold beside text, for models with towers or generators"
    )
    frozen: tuple[Frozen, ...] = Field(default=(), description="what does not learn, of models with samples")
    degrees_by_document: bool = Field(
        default=False, description="each of `documents` on context-parallel ranks of its own number"
    )
    core_attention_apart: CoreAttentionSpec | None = Field(
        default=None, description="ranges of `documents` whose core attention runs on other replicas"
    )
    sparse_heads: SparseHeadsSpec | None = Field(
        default=None, description="attention heads of unlike sparsity on head x sequence ranks of a context"
    )
    schedule_by_modality: bool = Field(
        default=False, description="passes of towers and language in an order of their own on every pipeline rank"
    )
    step_spread: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="standard deviation of a GPU's step over its mean: all wait for the slowest"
    )
    loading: LoadingSpec | None = Field(
        default=None, description="how fast samples come; there before they are needed when absent"
    )
    in_network_reduction: bool = Field(
        default=False, description="switches of the fabric add up gradients that all ranks sum (SHARP)"
    )
    cuda_graphs: bool | Annotated[tuple[GraphScope, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="capture parts of layers as CUDA graphs, by name or the usual ones; when absent where a named "
        "engine does, on racks of 72",
    )
    window_tokens: Count | None = Field(
        default=None,
        description="that a token attends to in every layer of softmax attention; the model's when absent",
    )
    mtp: bool | None = Field(
        default=None,
        description="whether heads that predict further tokens are trained; by engines that have them when absent",
    )
    dropout: DropoutSpec | None = Field(
        default=None, description="what training drops; nothing when absent, or what `code` does"
    )
    code: CodeSpec | None = Field(
        default=None, description="another training code than the engine's, such as an older one; priced, not emitted"
    )
    batch_ramp: tuple[BatchStage, ...] = Field(
        default=(), description="batches before `global_batch`, rising, each for so many tokens"
    )
    lengths: tuple[InputLength, ...] = Field(
        default=(), description="of inputs, where they vary: the plan then says what to recompute at each"
    )
    search: SearchSpec = SearchSpec()
    choice: Literal["measured", "fastest"] = Field(
        default="measured",
        description="the fastest plan, or where predictions do not tell them apart one whose like was measured, with "
        "room in memory",
    )
    reliability: Reliability | None = Field(
        default=None, description="where checkpoints go and what fails; a plan then decides its checkpoints"
    )

    @property
    def usable_share(self) -> float:
        """Of device memory, that a plan may fill."""
        return USABLE_SHARE if self.memory_utilisation is None else self.memory_utilisation

    @property
    def wanted_dispatcher(self) -> Dispatcher | None:
        """That which is named, or which the era's code has; None: the engine's own."""
        return self.dispatcher or (self.code.dispatcher() if self.code else None)

    @property
    def expert_load(self) -> ExpertLoad:
        """As the costs know it."""
        return EVEN if self.experts is None else ExpertLoad(**self.experts.model_dump())

    @property
    def arriving(self) -> Loading:
        """What brings samples, as the costs know it."""
        return AHEAD if self.loading is None else self.loading.arriving()

    @property
    def document_tokens(self) -> float:
        """Length of equal documents that attend as much as those of a sequence, sum of l^2 over sum of l; 0: one."""
        if not self.documents:
            return 0.0
        whole = sum(each.share * each.tokens for each in self.documents)
        return sum(each.share * each.tokens**2 for each in self.documents) / whole

    @property
    def longest_document_tokens(self) -> int:
        """Of what attends to itself as a whole; of sequences where no documents are stated."""
        return max((each.tokens for each in self.documents), default=self.sequence_tokens)

    @property
    def common_batch(self) -> int:
        """What the batch is a multiple of while it grows."""
        return gcd(self.global_batch, *(stage.global_batch for stage in self.batch_ramp))

    @property
    def common_tokens(self) -> int:
        """What every length is a multiple of."""
        return gcd(self.sequence_tokens, *(length.tokens for length in self.lengths))

    @model_validator(mode="after")
    def made_for_the_longest(self) -> "TrainOptions":
        if not self.lengths:
            return self
        sizes = [length.tokens for length in self.lengths]
        if max(sizes) != self.sequence_tokens:
            raise refuse(
                f"the longest input has {max(sizes)} tokens, `sequence_tokens` is {self.sequence_tokens}",
                f"write `sequence_tokens: {max(sizes)}`",
                "lengths",
            )
        if len(set(sizes)) != len(sizes):
            raise refuse("two lengths are the same", "add their shares up", "lengths")
        if self.loading is not None:
            raise refuse("loading of several lengths", "leave `loading` or `lengths` out", "loading")
        if self.search.layerwise:
            raise refuse(
                "strategies by layer have no table by length", "leave `search.layerwise` or `lengths` out", "lengths"
            )
        return self

    @model_validator(mode="after")
    def modules_as_they_run(self) -> "TrainOptions":
        if not self.samples:
            if self.frozen or self.search.modules != ("colocated",):
                place = "frozen" if self.frozen else "search"
                raise refuse("towers and generators without data for them", "write `samples`", place)
            return self
        problems = (
            (bool(self.lengths), "samples with several lengths", "leave `lengths` or `samples` out", "lengths"),
            (self.search.layerwise, "samples with strategies by layer", "leave `layerwise` out", "search"),
            (self.code is not None, "samples in another training code", "leave `code` out", "code"),
        )
        for applies, what, hint, place in problems:
            if applies:
                raise refuse(what, hint, place)
        return self

    @model_validator(mode="after")
    def by_document_where_codes_can(self) -> "TrainOptions":
        search, wide = self.search, "context-parallel ranks by document and ranges on other replicas"
        problems = (
            (not self.documents, "without documents", "write `documents`"),
            (self.degrees_by_document and self.task != "sft", f"with task `{self.task}`", "write `task: sft`"),
            (not {0, 1} & set(search.zero_stage or (1,)), "with FSDP", "write `zero_stage: 1`"),
            (bool(self.degrees_by_document and self.core_attention_apart), wide, "leave one of them out"),
            (bool(self.core_attention_apart) and 1 not in (search.cp or (1,)), "with cp", "write `search: {cp: 1}`"),
        )
        if self.degrees_by_document or self.core_attention_apart is not None:
            name = "degrees_by_document" if self.degrees_by_document else "core_attention_apart"
            self._only_one_stage(name, problems)
        return self

    @model_validator(mode="after")
    def sparse_where_codes_can(self) -> "TrainOptions":
        heads = {"degrees_by_document": self.degrees_by_document, "core_attention_apart": self.core_attention_apart}
        also = next((name for name, asked in heads.items() if asked), "")
        problems = (
            (bool(also), f"with `{also}`", "leave one of them out"),
            (bool(self.documents), "with packed documents", "leave `documents` out"),
            (1 not in (self.search.tp or (1,)), "with tp", "write `search: {tp: 1}`: cp shares the heads out"),
        )
        if self.sparse_heads is not None:
            self._only_one_stage("sparse_heads", problems)
        return self

    def _only_one_stage(self, name: str, problems: tuple[tuple[bool, str, str], ...]) -> None:
        """Refuses `name` with what only a stage of like layers and steps allows, beside `problems`."""
        what, search = name.replace("_", " "), self.search
        common = (
            (1 not in (search.pp or (1,)), "in a pipeline", "write `search: {pp: 1}`"),
            (bool(self.cuda_graphs), "in CUDA graphs", "leave `cuda_graphs` out"),
            (bool(self.samples), "with samples", "leave `samples` out"),
            (bool(self.lengths), "with several lengths", "leave `lengths` out"),
            (search.layerwise, "with strategies by layer", "leave `layerwise` out"),
            (bool(self.batch_ramp), "with a batch that grows", "leave `batch_ramp` out"),
        )
        for applies, setting, hint in (*problems, *common):
            if applies:
                raise refuse(f"{what} {setting}", hint, name)

    @model_validator(mode="after")
    def scheduled_as_passes_are(self) -> "TrainOptions":
        search = self.search
        problems = (
            (
                not any(sample.images or sample.audio_s for sample in self.samples),
                "without inputs of towers",
                "write `samples`",
            ),
            (any(sample.generated for sample in self.samples), "with generated images", "leave `generated` out"),
            (search.modules != ("colocated",), "with modules apart", "write `search: {modules: colocated}`"),
            (not search.pp or 1 in search.pp, "without a pipeline", "write two ranks or more, as `search: {pp: 4}`"),
            (set(search.vpp or ()) - {1} != set(), "with several stages a rank", "write `search: {vpp: 1}`"),
            (set(search.schedule or ()) - {"1f1b"} != set(), "with another schedule", "write `schedule: 1f1b`"),
            (bool(search.offload), "with offloads", "leave `offload` out"),
            (bool(self.batch_ramp), "with a batch that grows", "leave `batch_ramp` out"),
        )
        for applies, setting, hint in problems:
            if self.schedule_by_modality and applies:
                raise refuse(f"a schedule by modality {setting}", hint, "schedule_by_modality")
        return self

    @model_validator(mode="after")
    def packed_as_codes_pack(self) -> "TrainOptions":
        if not self.documents:
            return self
        longest = max(each.tokens for each in self.documents)
        problems = (
            (self.task == "pretrain", "documents apart in pre-training", "write `task: sft` or `task: lora`"),
            (bool(self.lengths), "packed documents with several lengths", "leave `lengths` or `documents` out"),
            (
                longest > self.sequence_tokens,
                f"a document of {longest} tokens in shorter sequences",
                f"cut documents at {self.sequence_tokens} tokens, or write `sequence_tokens: {longest}`",
            ),
            (
                any(size > 1 for size in self.search.micro_batch or ()),
                "packed sequences in micro-batches of several",
                "write `search: {micro_batch: 1}`: packed sequences are one row",
            ),
        )
        for applies, what, hint in problems:
            if applies:
                raise refuse(what, hint, "documents")
        return self

    @model_validator(mode="after")
    def rising(self) -> "TrainOptions":
        batches = [stage.global_batch for stage in self.batch_ramp]
        if not batches:
            return self
        if any(later <= earlier for earlier, later in pairwise([*batches, self.global_batch])):
            raise refuse(
                f"batches {', '.join(map(str, batches))} do not rise to {self.global_batch}",
                "list smaller batches first, all below `global_batch`",
                "batch_ramp",
            )
        tokens = sum(stage.tokens for stage in self.batch_ramp)
        if self.train_tokens is not None and tokens >= self.train_tokens:
            raise refuse(
                f"the batch grows over {tokens:.4g} tokens, the run has {self.train_tokens:.4g}",
                "let it reach `global_batch` before the end of the run",
                "batch_ramp",
            )
        if self.lengths:
            raise refuse("a growing batch with several lengths", "leave `batch_ramp` or `lengths` out", "batch_ramp")
        return self
