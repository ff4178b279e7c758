"""The schema of `problem.yaml`: models, cluster, workloads with SLOs, objective, and options of the kind.

Fields common to all kinds stand here; what only one kind needs stands in that kind's own `options`.
"""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, GetJsonSchemaHandler, JsonValue, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from planner.documents.units import BYTES, BYTES_PER_S, FRACTION, PER_S, TIME_S, USD_PER_HOUR
from planner.engines.serving.registry import ServingEngineName
from planner.engines.training import TrainingEngineName
from planner.problem.media import Amounts, ImagesSpec
from planner.problem.prefix_tiers import PrefixCacheSpec
from planner.problem.slo import SloSpec
from planner.problem.wiring import TopologySpec
from planner.progress import MAX_SEED
from planner.schema.base import Spec, refuse
from planner.schema.fields import Count, Name, Positive
from planner.schema.formats import format_field

SCHEMA: Final = "planner.problem/1"

WeightFormat = Literal["bf16", "fp16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4", "int8"]
KvFormat = Literal["bf16", "fp16", "fp8"]
Weights = Annotated[WeightFormat | None, format_field(WeightFormat, "weight format", own=True)]
KvCache = Annotated[KvFormat | None, format_field(KvFormat, "KV cache format", own=True)]
MOST_ARRIVAL_CV = 20.0  # of streams that can be drawn: beyond it a few gaps are nearly all of the time
MAX_NODES, MAX_GPUS = 100_000, 1_000_000  # of a pool: beyond any cluster, within what can be laid out one by one


class ModelSpec(Spec):
    """A model by catalog name or by its own `config.json`, with the formats it is served in."""

    name: Name | None = Field(default=None, description="catalog or Hugging Face name")
    config: Name | None = Field(default=None, description="path to a config.json or a folder that holds one")
    contents: dict[str, JsonValue] | None = Field(
        default=None, description="what that file says, which is then not read; plans carry it"
    )
    weights: Weights = Field(default=None, description="weight format; the checkpoint's own when absent")
    kv_cache: KvCache = Field(default=None, description="KV cache format; the checkpoint's own when absent")

    @model_validator(mode="after")
    def one_source(self) -> "ModelSpec":
        if (self.name is None) == (self.config is None):
            raise refuse("a model needs either `name` or `config`", "give one of the two")
        if self.contents is not None and self.config is None:
            raise refuse("`contents` are of a `config.json`", "name the model by `config`, or leave `contents` out")
        return self


class PoolSpec(Spec):
    """Equal nodes; give `nodes`, or `gpus` when only their number matters."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "price": ("usd_per_gpu_hour", USD_PER_HOUR),
        "nic_bandwidth": ("nic_bandwidth_bytes_per_s", BYTES_PER_S),
    }
    gpu: Name = Field(
        description="accelerator, node type or cloud instance of the hardware catalog; `unspecified` where the options "
        "of the kind state every figure that is needed"
    )
    name: Name | None = Field(default=None, description="defaults to what `gpu` says")
    nodes: Annotated[int, Field(ge=1, le=MAX_NODES)] | None = None
    gpus: Annotated[int, Field(ge=1, le=MAX_GPUS)] | None = Field(
        default=None, description="total GPUs; whole nodes, or one part of a node"
    )
    gpus_per_node: Annotated[int, Field(ge=1, le=1024)] | None = None
    node_names: tuple[Name, ...] | None = Field(default=None, description="host names, used by emitted launch scripts")
    out_of_service: tuple[int | Name, ...] = Field(default=(), description="nodes not to use, by index or name")
    usd_per_gpu_hour: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="that of the cloud instance when absent"
    )
    fabric: Name | None = Field(default=None, description="fabric of the hardware catalog between the nodes")
    nic_bandwidth_bytes_per_s: Positive | None = Field(default=None, description="per GPU and direction")
    oversubscription: Annotated[float, Field(ge=1)] = 1.0
    topology: TopologySpec | None = Field(default=None, description="what joins the nodes, beyond their type")

    @model_validator(mode="after")
    def sized(self) -> "PoolSpec":
        if (self.nodes is None) == (self.gpus is None):
            raise refuse("a pool needs either `nodes` or `gpus`", "give one of the two")
        if self.node_names is not None and self.nodes is not None and len(self.node_names) != self.nodes:
            raise refuse(
                f"{len(self.node_names)} node names for {self.nodes} nodes", "name every node once", "node_names"
            )
        if self.node_names is not None and len(set(self.node_names)) != len(self.node_names):
            raise refuse("a node is named twice", "name every node once", "node_names")
        return self

    @property
    def label(self) -> str:
        """The name by which plans call the pool."""
        return self.name or self.gpu


class PoolLinkSpec(Spec):
    """The network between two pools, where it is narrower than their own fabrics."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "bandwidth": ("bandwidth_bytes_per_s", BYTES_PER_S),
        "latency": ("latency_s", TIME_S),
    }
    pools: tuple[Name, Name]
    bandwidth_bytes_per_s: Positive = Field(description="all traffic of one direction together")
    latency_s: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def between_two(self) -> "PoolLinkSpec":
        if self.pools[0] == self.pools[1]:
            hint = "name two pools, or write the `nic_bandwidth` of this one"
            raise refuse(f"a link joins pool `{self.pools[0]}` to itself", hint, "pools")
        return self


class ClusterSpec(Spec):
    pools: tuple[PoolSpec, ...] = Field(description="one at least, where plans stand on any")
    links: tuple[PoolLinkSpec, ...] = ()

    @model_validator(mode="after")
    def joined_once(self) -> "ClusterSpec":
        joined: set[frozenset[str]] = set()
        for index, link in enumerate(self.links):
            if frozenset(link.pools) in joined:
                what = f"link {index} joins `{link.pools[0]}` and `{link.pools[1]}`, which another link joins already"
                raise refuse(what, "keep one of the two, with the bandwidth of both together", "links")
            joined.add(frozenset(link.pools))
        return self


class UniformLengths(Spec):
    """Every length of [low, high] equally likely."""

    low: Count
    high: Count

    @model_validator(mode="after")
    def ordered(self) -> "UniformLengths":
        if self.low > self.high:
            raise refuse(f"low {self.low} is above high {self.high}", "swap them")
        return self


class MomentLengths(Spec):
    """Log-normal lengths of the given mean and coefficient of variation, as long as they come."""

    mean: Annotated[float, Field(ge=1)]
    cv: Annotated[float, Field(ge=0)] = 0.0


class TraceLengths(Spec):
    """The lengths in a column of a trace (CSV, optionally gzipped, or JSON lines)."""

    trace: Name
    column: Name | None = Field(default=None, description="defaults to input_tokens or output_tokens")


class ShapeLengths(Spec):
    """Lengths of a known service, by the name of a built-in shape."""

    shape: Name = Field(description="such as `sharegpt`; `planner trace shapes` lists them")


Lengths = (
    Annotated[Count, Field(description="every request alike")]
    | UniformLengths
    | MomentLengths
    | TraceLengths
    | ShapeLengths
)


class LoadSpec(Spec):
    """How requests come: an open stream at a rate, or a fixed number of clients in a closed loop."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"rate": ("rate_per_s", PER_S)}
    rate_per_s: Positive | None = None
    concurrency: Count | None = None
    arrival_cv: Annotated[float, Field(ge=0, le=MOST_ARRIVAL_CV)] = Field(
        default=1.0, description="of the gaps; 1 is Poisson"
    )

    @model_validator(mode="after")
    def one_form(self) -> "LoadSpec":
        if (self.rate_per_s is None) == (self.concurrency is None):
            raise refuse("a load is either `rate` or `concurrency`", "give one of the two, or no load for the most")
        return self


class WorkloadSpec(Spec):
    """One stream of requests to one model."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"prefix_hits": ("prefix_hits", FRACTION)}
    name: Name = "default"
    model: Name | None = Field(default=None, description="key of `models`; the only one when absent")
    input_tokens: Lengths = Field(default=1, description="of a request; stated where any model answers it")
    output_tokens: Lengths = Field(default=1, description="of an answer; stated where any model gives it")
    images: ImagesSpec | None = Field(
        default=None, description="that a vision tower encodes of a request; what they become is among `input_tokens`"
    )
    audio_s: Amounts | None = Field(
        default=None, description="seconds of sound that an audio tower encodes of a request; likewise"
    )
    load: LoadSpec | None = Field(default=None, description="absent: as much as the cluster can serve")
    prefix_hits: Annotated[float, Field(ge=0, lt=1)] | None = Field(
        default=None, description="share of the tokens of a prompt that prefix caches hold when it comes"
    )
    share: Positive = Field(default=1.0, description="relative weight where the objective is throughput")
    priority: int = 0
    slo: SloSpec = SloSpec()


class EngineSpec(Spec):
    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"host_cache": ("host_cache_bytes_per_gpu", BYTES)}
    name: Literal[ServingEngineName, TrainingEngineName] = Field(
        default="vllm", description="of training, megatron-lm or megatron-bridge when absent"
    )
    version: Name | None = Field(default=None, description="the newest with costs when absent")
    memory_utilisation: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.9, description="share of device memory the engine may use"
    )
    max_context_tokens: Count | None = Field(
        default=None,
        description="prompt and answer that one request may have together; the model's own limit as far as memory "
        "allows when absent",
    )
    async_scheduling: bool | None = Field(
        default=None,
        description="whether the scheduler forms a step while the one before it runs; the engine's default when absent",
    )
    host_cache_bytes_per_gpu: Positive | None = Field(
        default=None,
        description="host memory a GPU in which engines keep cached prefixes that leave the device; none when absent",
    )


class CostsSpec(Spec):
    """What the costs rest on; no profile means the roofline."""

    profiles: tuple[Name, ...] = Field(
        default=(), description="kernel tables: imported stores, raw directories, or `none`"
    )
    calibration: Name = Field(default="default", description="`default`, `none`, or a calibration file")


Goal = Literal[
    "goodput_per_gpu",
    "gpus",
    "cost",
    "tokens_per_s_per_gpu",
    "tokens_per_usd",
    "step_time",
    "iteration_time",
    "imbalance",
    "attainment",
]
PER_GPU = ("goodput_per_gpu", "tokens_per_s_per_gpu")  # goals that count GPUs


class ObjectiveSpec(Spec):
    """One of: the most of something, the least of something, or the trade-off between two."""

    maximize: Goal | None = None
    minimize: Goal | None = None
    pareto: tuple[Literal["tokens_per_s_per_gpu"], Literal["tokens_per_s_per_user"]] | None = None
    expected: bool | None = Field(
        default=None,
        description="whether what counts is the most times the chance that all limits hold, as far as predictions err; "
        "by default where the calibration has own runs; `false`: limits without a confidence stand as they are",
    )

    @model_validator(mode="after")
    def exactly_one(self) -> "ObjectiveSpec":
        if sum(part is not None for part in (self.maximize, self.minimize, self.pareto)) != 1:
            hint = "keep one of them; on the command line `--set 'objective={minimize: gpus}'` takes the place of all"
            raise refuse("an objective is one of maximize, minimize, pareto", hint)
        return self


class LimitsSpec(Spec):
    """Caps on what the plan may use."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"price": ("usd_per_hour", USD_PER_HOUR)}
    gpus: Count | None = None
    usd_per_hour: Positive | None = None


class AvailabilitySpec(Spec):
    """What may fail while the rest carries the whole load within every limit; a bare `n+1` means `{per: role}`."""

    level: Literal["n+1"] = Field(default="n+1", description="any one of what `per` says")
    per: Literal["role", "node", "rack"] = Field(
        default="role", description="one instance of every role, all that stands on one node, or in one rack"
    )

    @model_validator(mode="before")
    @classmethod
    def bare_level(cls, data: object) -> object:
        return {"level": data} if isinstance(data, str) else data

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        schema = super().__get_pydantic_json_schema__(core_schema, handler)
        return {"anyOf": [{"type": "string", "const": "n+1"}, dict(schema)]}

    @property
    def text(self) -> str:
        """As people say it."""
        return f"{self.level} per {self.per}"


class Problem(Spec):
    """A whole problem; `options` is validated by the kind's own schema."""

    schema_: Literal["planner.problem/1"] = Field(default=SCHEMA, alias="schema")
    kind: Name
    name: Name = "plan"
    models: dict[Name, ModelSpec] = Field(default_factory=dict, description="one at least, where the kind reads any")
    cluster: ClusterSpec = Field(default=ClusterSpec(pools=()), description="where plans stand on any")
    workloads: tuple[WorkloadSpec, ...] = ()
    cache: PrefixCacheSpec | None = Field(
        default=None, description="memory for prefixes that may be bought beside GPUs; none when absent"
    )
    engine: EngineSpec = EngineSpec()
    costs: CostsSpec = CostsSpec()
    objective: ObjectiveSpec = ObjectiveSpec(maximize="goodput_per_gpu")
    limits: LimitsSpec = LimitsSpec()
    availability: AvailabilitySpec | None = Field(
        default=None, description="what may fail without a limit being broken; nothing when absent"
    )
    current: Name | None = Field(default=None, description="path of the plan that runs now")
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] = 0
    options: dict[str, JsonValue] = Field(default_factory=dict, description="what only this kind of plan knows")

    @property
    def serves_rates(self) -> bool:
        """Whether rates per GPU are those of the GPUs in use: where all that is to be served is stated.

        Placements that simulation searches serve as much as they can.
        """
        stated = bool(self.workloads) and all(each.load is not None and each.load.rate_per_s for each in self.workloads)
        searched = self.options.get("judged_by") == "simulation"
        return stated and not searched and (self.objective.maximize in PER_GPU or self.objective.pareto is not None)

    @property
    def serves_loads(self) -> bool:
        """Whether plans serve stated loads with the least: their rates per GPU are of the GPUs in use."""
        return self.objective.minimize is not None or self.serves_rates

    @model_validator(mode="after")
    def references(self) -> "Problem":
        for index, workload in enumerate(self.workloads):
            for side in ("input_tokens", "output_tokens") if self.models else ():
                if side not in workload.model_fields_set:
                    raise _at_workload(index, f"`{side}` is missing", f"add `{side}:` to it")
            if workload.model is None and len(self.models) > 1:
                raise _at_workload(index, "several models and none named", "add `model:` to the workload")
            if workload.model is not None and workload.model not in self.models:
                known = ", ".join(f"`{key}`" for key in self.models)
                raise _at_workload(index, f"no model is called `{workload.model}`", f"use one of {known}")
        names = [workload.name for workload in self.workloads]
        if len(set(names)) != len(names):
            raise refuse("two workloads have the same name", "give each its own `name:`", "workloads")
        pools = [pool.label for pool in self.cluster.pools]
        if len(set(pools)) != len(pools):
            raise refuse("two pools have the same name", "give each its own `name:`", "cluster")
        unknown = [name for link in self.cluster.links for name in link.pools if name not in pools]
        if unknown:
            raise refuse(
                f"a link names the unknown pool `{unknown[0]}`", f"the pools are {', '.join(pools)}", "cluster"
            )
        return self

    def model_of(self, workload: WorkloadSpec) -> str:
        """The key of the model that serves `workload`; empty where there is none."""
        return workload.model if workload.model is not None else next(iter(self.models), "")


def _at_workload(index: int, what: str, hint: str) -> Exception:
    return refuse(f"workload {index}: {what}", hint, "workloads")
