"""One serving deployment to estimate, as plain numbers: model, GPUs, parallelism, lengths, load."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from planner.costs.rates.engine_overheads import section_of
from planner.costs.rates.forms import Form, form_of
from planner.costs.rates.spread import group_of_runs
from planner.costs.serving.speculation import Drafter
from planner.hardware.cluster import Pool
from planner.models.architecture import Architecture
from planner.plan.records import BY_NUMBER

REQUESTS_PER_CLIENT = 10.0  # of a closed loop, where nothing says otherwise


@dataclass(frozen=True, slots=True)
class Part:
    """Equal instances of one role: how many, their degrees, and their limits (0 = the engine's default)."""

    replicas: int
    tp: int
    pp: int
    dp: int
    moe_tp: int
    ep: int
    max_batch: int = 0
    chunk_tokens: int = 0
    micro_batches: int = 1  # 2 where steps are cut in halves that hide each other's exchange between experts
    redundant: int = BY_NUMBER  # experts of a layer that are copied, all placed by load

    @property
    def devices(self) -> int:
        """Of one instance."""
        return self.tp * self.pp * self.dp

    @property
    def ranks(self) -> int:
        """Attention ranks of all instances."""
        return self.replicas * self.dp


@dataclass(frozen=True, slots=True)
class Case:
    """A deployment with its load; `prefill` is None when the decode instances prefill too."""

    id: str
    arch: Architecture
    pool: Pool
    engine: str
    version: str | None
    memory_utilisation: float  # share of a device that the engine may use
    isl: float
    osl: float
    isl_cv: float
    clients: int  # 0 where the load is open
    rate_per_s: float
    prefill: Part | None
    decode: Part
    gpus: int
    osl_cv: float | None = None  # None: that of prompts
    calibration: str = "default"
    requests_per_client: float = REQUESTS_PER_CLIENT  # that each sends, its first at the start
    in_process: bool = False  # requests are handed to the engine in its own process, past its front end
    mixed_steps: bool = False  # prompts share steps with decoding where the engine has them apart unless told otherwise
    staggered: bool = False  # the clients of a closed loop start one after the other, not at once
    hold_steps: float = 0.0  # decode steps for which the engine holds prompts to batch them
    poll_steps: float = 0.0  # decode steps between the scheduler's looks at new requests; 0: the engine's default
    captured_tokens: float | None = None  # of the largest step that CUDA graphs hold; None: the engine's default
    prefix_hits: float = 0.0  # share of prompt tokens that a prefix cache holds
    draft_tokens: int = 0  # of a sequence in a step that decodes
    drafter: Drafter | None = None  # None where there are none
    most_memory_utilisation: float = (
        0.0  # that it had where weights do not fit: deployments that ran, of unstated share
    )
    reserved_output: float = 0.5  # share of its output that a sequence has room for in the cache when it is admitted
    jitter: float = 0.0  # coefficient of variation of the time of a step
    graph_batch: float = math.inf  # sequences of a rank in the largest decoding step that CUDA graphs hold
    preempts: bool = False  # the cache is filled to its end, and sequences give their place up where it is full
    free_memory_share: float = 1.0  # of what weights and workspace leave of the memory that may be used: the cache's

    whole_tiles: float = 0.0  # the most tensor parallelism of experts that kernels compute in whole tiles
    triton_experts: bool = False  # Triton's kernels run experts in mxfp4 on Hopper
    whole_prompts: bool = False  # a step takes prompts that fit into it whole, and cuts none

    @property
    def section(self) -> str:
        """Where a calibration has the overheads of the engine."""
        return section_of(self.engine, self.version)

    @property
    def group(self) -> str:
        """What the errors of its predictions are common to."""
        return group_of_runs(self.arch, self.pool.node.accelerator.name, self.engine)


@dataclass(frozen=True, slots=True)
class Refused:
    """A deployment that cannot be estimated, and why in one line."""

    id: str
    reason: str


def measured_forms(cases: Iterable[Case]) -> Iterator[tuple[str, Form]]:
    """Function and form of every instance of these deployments; degrees of 0 are those of a model without experts."""
    for case in cases:
        parts = [("colocated" if case.prefill is None else "decode", case.decode)]
        parts += [] if case.prefill is None else [("prefill", case.prefill)]
        yield from ((function, form_of(part.tp, part.pp, part.dp, part.moe_tp, part.ep)) for function, part in parts)
