"""Schema of serving problems (options) and serving plans (decision)."""

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from planner.documents.units import FRACTION
from planner.plan.records import BY_NUMBER
from planner.plan.schema import Decision, Queueing
from planner.problem.speculation import SpeculationSpec
from planner.schema.base import Spec, refuse

Degrees = Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)]
Mode = Literal["colocated", "disaggregated", "attention-ffn"]
Overlap = Literal["off", "two-batch"]
Redundant = Literal["off"] | Annotated[int, Field(ge=0, le=4096)]


class RoleShapes(Spec):
    """The degrees that instances of a function may have; absent ones take those of all."""

    tp: Degrees | None = None
    pp: Degrees | None = None
    dp: Degrees | None = None
    ep: Degrees | None = None


class ServeOptions(Spec):
    """The axes of the search; absent axes take every value that the model and the nodes allow."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"memory_reserve": ("memory_reserve", FRACTION)}
    modes: Annotated[tuple[Mode, ...], Field(min_length=1)] = ("colocated", "disaggregated")
    tp: Degrees | None = Field(default=None, description="tensor parallel sizes of attention")
    pp: Degrees | None = Field(default=None, description="pipeline sizes")
    dp: Degrees | None = Field(default=None, description="attention data-parallel sizes inside one instance")
    ep: Degrees | None = Field(default=None, description="expert-parallel sizes")
    max_batch: Degrees | None = Field(default=None, description="decoding sequences per attention rank")
    chunk_tokens: Degrees | None = Field(default=None, description="prefill tokens per step")
    roles: dict[Literal["colocated", "prefill", "decode", "attention"], RoleShapes] = Field(
        default_factory=dict, description="values that instances of a function are held to, beside those of all"
    )
    without: tuple[str, ...] = Field(
        default=(), description="instance types that are left out, such as `decode/qwen3/tp2/h200`"
    )
    max_gpus_per_instance: Annotated[int, Field(ge=1)] | None = None
    max_shapes: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="most instance types of a plan: shapes with their batches and chunks, of all roles"
    )
    max_prefill_utilisation: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.95, description="how busy prefill may run, even where the limits would allow more"
    )
    max_decode_occupancy: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.95, description="share of the sequences of instances that requests fill on average; bursts need more"
    )
    memory_reserve: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.02, description="share of what the engine may use that instances leave free, for what no model counts"
    )
    attention_gpus: Degrees | None = Field(
        default=None, description="GPUs for attention of an instance with sides apart"
    )
    ffn_gpus: Degrees | None = Field(default=None, description="GPUs for feed-forward layers of such an instance")
    micro_batches: Annotated[tuple[Annotated[int, Field(ge=1, le=16)], ...], Field(min_length=1)] | None = Field(
        default=None, description="micro-batches that take turns between the sides"
    )
    overlap: Annotated[tuple[Overlap, ...], Field(min_length=1)] = Field(
        default=("off",), description="whether steps are cut in halves that hide each other's exchange between experts"
    )
    redundant_experts: Annotated[tuple[Redundant, ...], Field(min_length=1)] = Field(
        default=("off",),
        description="experts of a layer that the engine's load balancer (EPLB) copies, all placed by load; 0: none is "
        "copied; off: experts lie by number, and ranks wait for the fullest",
    )
    speculation: SpeculationSpec | None = Field(default=None, description="drafts of tokens, verified together")
    queueing: Annotated[tuple[Queueing, ...], Field(min_length=1)] = Field(
        default=("fcfs",),
        description="orders in which engines take requests; feedback: levels by the time they have had (FastServe)",
    )
    elastic: Annotated[tuple[bool, ...], Field(min_length=1)] = Field(
        default=(False,),
        description="whether engines share one KV cache, and join for long prefills and part again (LoongServe)",
    )
    choice: Literal["measured", "fastest"] = Field(
        default="measured",
        description="the best plan, or where predictions do not tell a better one from it that of which most roles are "
        "split as runs were; `judged_by: simulation` compares all, and sides apart are not held against a plan",
    )
    judged_by: Literal["queueing", "verification", "simulation"] | None = Field(
        default=None,
        description="what judges whether a plan keeps its limits: formulas of waits; simulation of what these propose; "
        "simulation of one placement after another; absent, simulation of what is proposed, or formulas where that "
        "cannot be",
    )
    simulated_requests: Annotated[int, Field(ge=100, le=1_000_000)] | None = Field(
        default=None, description="requests of a run; enough for the longest to matter little where absent"
    )

    @model_validator(mode="after")
    def plain_where_needed(self) -> "ServeOptions":
        if self.judged_by == "simulation" and max(self.searched_drafts):
            raise refuse(
                "simulation judges placements without drafts",
                "take `judged_by: queueing`; `planner simulate` simulates the plan's drafts",
                "speculation",
            )
        if self.judged_by == "simulation" and self.choice == "measured" and "choice" in self.model_fields_set:
            raise refuse(
                "simulation searches placements of all forms, whether runs were measured on them or not",
                "take `judged_by: queueing` or `verification`, or write `choice: fastest`",
                "choice",
            )
        if self.judged_by == "simulation" and self.max_shapes is not None:
            raise refuse(
                "simulation searches placements of any number of shapes",
                "take `judged_by: queueing` or `verification`, or leave `max_shapes` out",
                "max_shapes",
            )
        if self.judged_by == "simulation" and self.overlap != ("off",):
            raise refuse(
                "simulation judges placements whose steps are whole",
                "take `judged_by: queueing`; `planner simulate` simulates the plan's two batches",
                "overlap",
            )
        if self.reordered and self.judged_by in ("queueing", "simulation"):
            raise refuse(
                "formulas and placements by simulation know engines of their own, first come first served",
                "leave `judged_by` out: plans are verified by simulation",
                "queueing" if self.queueing != ("fcfs",) else "elastic",
            )
        if False not in self.elastic and (self.modes != ("colocated",) or max(self.searched_drafts)):
            raise refuse(
                "engines that share a KV cache do both prefill and decode, without drafts",
                "write `modes: [colocated]`, or add `false` to `elastic`",
                "elastic",
            )
        if "attention-ffn" in self.modes and 0 not in self.searched_drafts:
            raise refuse(
                "attention and feed-forward layers on devices of their own run without drafts",
                "add 0 to `draft_tokens`, or leave `attention-ffn` out of `modes`",
                "speculation",
            )
        return self

    @property
    def searched_drafts(self) -> tuple[int, ...]:
        """Drafts of a sequence in a step, ascending; 0 of them stands for none."""
        return tuple(sorted(set(self.speculation.draft_tokens))) if self.speculation is not None else (0,)

    @property
    def searched_copies(self) -> tuple[int, ...]:
        """Redundant experts of a layer, BY_NUMBER where no load places experts."""
        return tuple(BY_NUMBER if number == "off" else number for number in self.redundant_experts)

    @property
    def reordered(self) -> bool:
        """Whether engines may do what no formula prices: other orders of requests, or one cache for several."""
        return self.queueing != ("fcfs",) or self.elastic != (False,)

    def filled(self, clients: float | None) -> float:
        """The share of the sequences of instances that requests fill on average: all of clients that wait."""
        return self.max_decode_occupancy if clients is None else 1.0


class FrontierPoint(Spec):
    """One non-dominated choice between what a GPU yields and how fast a user reads."""

    tokens_per_s_per_gpu: float
    tokens_per_s_per_user: float
    bound_tokens_per_s_per_gpu: float
    roles: tuple[str, ...]  # such as `4 x decode tp2, batch 128`


class AttentionFfn(Spec):
    """The best unit of the search that decodes with attention and feed-forward apart, and what it is weighed against.

    Rates are output tokens a second and device of decoding alone, a step no longer than the limit.
    """

    pays: bool
    attention_gpus: int
    ffn_gpus: int
    attention_tp: int
    ffn_tp: int
    ep: int
    micro_batches: int
    sequences: int
    tokens_per_s_per_gpu: float
    limited_by: Literal["attention", "feed-forward", "network", "host", "latency"]
    together_tokens_per_s_per_gpu: float
    overlapped_tokens_per_s_per_gpu: float

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        other = f"{self.together_tokens_per_s_per_gpu:.0f} with both on every GPU"
        if not self.together_tokens_per_s_per_gpu:
            other = "no decode instance with both on every GPU was searched or keeps the limits"
        return (
            f"decoding with attention and feed-forward apart {'pays' if self.pays else 'does not pay'}: "
            f"{self.tokens_per_s_per_gpu:.0f} tokens/s/GPU on {self.attention_gpus} : {self.ffn_gpus} GPUs with "
            f"{self.micro_batches} micro-batches, limited by {self.limited_by}; {other}"
        )


class Drafting(Spec):
    """Who drafts tokens, how often a draft is right where those before it are, and what a step then yields."""

    drafter: str
    acceptance: float
    tokens_per_step: dict[str, float]  # expected, of a sequence, by role that decodes with drafts


class FailureOutcome(Spec):
    """Instances by role that one failure takes, and how busy it leaves the rest: at 1 a limit is used up."""

    lost: dict[str, int]  # of attention and ffn roles together under the name of the former
    busy: float


class SpareRoom(Spec):
    """What may fail without a limit being broken, and every such failure that is another, the busiest first."""

    level: Literal["n+1"]
    per: Literal["role", "node", "rack"]
    failures: tuple[FailureOutcome, ...]

    @property
    def text(self) -> str:
        """What is kept, and what the worst failure leaves."""
        if not self.failures:
            return f"{self.level} per {self.per}: nothing can fail"
        worst = self.failures[0]
        taken = " and ".join(f"{count} of `{role}`" for role, count in worst.lost.items())
        return (
            f"{self.level} per {self.per}: the failure that leaves least takes {taken}, and what is left works "
            f"{100.0 * worst.busy:.1f} % of what its limits allow"
        )


class ServeDecision(Decision):
    """Instances by role with their shapes and limits, where they stand, and how requests flow.

    Role functions: colocated, prefill, decode; attention and ffn, which decode together: replica by replica, as a route
    from the one to the other says. Limits of a role: max_batch (sequences per attention rank), chunk_tokens (prefill
    tokens per step), max_context_tokens, prefix_caching (`on` where hits are stated; else off), host_cache_bytes (of a
    GPU, for prefixes that leave the device), ssd_cache_bytes (of a GPU), pool_cache_bytes (of all), prefix_store
    (`shared` where several engines read these together), async_scheduling (`on` or `off` where the problem says so;
    else the engine's default), micro_batches (2 where a step is cut in halves that hide each other's exchange between
    experts), draft_tokens (of a sequence in a step; a prefill role that has some runs its prompts through the drafter),
    pieces (of an instance, each in a scale-up domain of its own at the most), redundant_experts (of a layer, where the
    engine places experts by load); of attention and ffn micro_batches and micro_batch_tokens (of all attention ranks of
    a replica).
    """

    mode: Literal["colocated", "disaggregated", "attention-ffn", "mixed"]
    kv_transfer_bytes_per_s: float = 0.0  # all prefill to decode traffic of the plan
    frontier: tuple[FrontierPoint, ...] = ()  # where the objective is a trade-off
    attention_ffn: AttentionFfn | None = None  # where the mode is searched, and a unit keeps the limits
    drafting: Drafting | None = None  # where roles speculate
    availability: SpareRoom | None = None  # where the problem asks for it

    def reasons(self) -> tuple[str, ...]:
        """What memory is bought; what drafts yield; what else the search chose; sides apart, or why not."""
        bought = () if self.cache is None else (self.cache.text,)
        chosen = (*self._drafted(), *self._halved(), *self._placed(), *self._cut(), *self._shared())
        return (*bought, *chosen, *self._apart())

    def _shared(self) -> Iterator[str]:
        if self.queueing == "feedback":
            yield (
                "engines keep a feedback queue (FastServe): long answers give way to short ones, "
                "which simulation found better here than first come first served"
            )
        if self.elastic:
            yield (
                "engines share one KV cache, join for long prefills and part again (LoongServe), "
                "which simulation found better here than engines of their own"
            )

    def _halved(self) -> Iterator[str]:
        for role in self.roles:
            if role.function not in ("attention", "ffn") and "micro_batches" in role.limits:
                yield (
                    f"`{role.name}` cuts its steps in two batches: one computes while tokens of the other are on their "
                    "way between experts, for reading weights twice and leaving multiprocessors to the exchange"
                )

    def _placed(self) -> Iterator[str]:
        for role in self.roles:
            copies = role.limits.get("redundant_experts")
            if copies is not None:
                taken = f", for the memory of {copies} more of each layer" if copies else ""
                yield f"the engine of `{role.name}` places experts by load: ranks wait less for the fullest{taken}"

    def _cut(self) -> Iterator[str]:
        for role in self.roles:
            if "pieces" in role.limits:
                yield (
                    f"instances of `{role.name}` stand in {role.limits['pieces']} pieces, which fill what whole ones "
                    "leave over in scale-up domains: stages hand over between them through the fabric"
                )

    def _drafted(self) -> Iterator[str]:
        if self.drafting is None:
            return
        for role in self.roles:
            tokens = self.drafting.tokens_per_step.get(role.name)
            if tokens is not None:
                yield (
                    f"`{role.name}` verifies {role.limits.get('draft_tokens')} drafts a step, each right with "
                    f"{self.drafting.acceptance:.0%} where those before it are: {tokens:.3g} tokens a step on average"
                )

    def _apart(self) -> tuple[str, ...]:
        best = self.attention_ffn
        if best is None:
            return ()
        reasons = [best.verdict]
        if best.pays and all(role.function != "attention" for role in self.roles):
            reasons[0] += "; in whole units, the GPUs at hand do more without"
        hidden = best.overlapped_tokens_per_s_per_gpu
        if hidden > max(best.tokens_per_s_per_gpu, best.together_tokens_per_s_per_gpu):
            reasons.append(
                f"with exchanges hidden behind a second micro-batch, both sides on every GPU would yield {hidden:.0f} "
                "tokens/s/GPU of decoding, more than any instance of the plan"
            )
        return tuple(reasons)
