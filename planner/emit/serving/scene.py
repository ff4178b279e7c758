"""A serving plan as its launch scripts see it: instances, addresses, ports that never collide, and the engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from planner.emit.nodes import Cluster, Node, NodeId
from planner.emit.serving.checkpoints import loaded_name
from planner.emit.serving.instances import EngineInstance, NodeRanks
from planner.emit.serving.placed_experts import PlacedExperts
from planner.emit.shell import Command, Word, reference
from planner.engines.load import release_of
from planner.engines.release import Connector, Release
from planner.engines.serving.description import EngineDescription
from planner.problem.schema import ModelSpec

API_PORT = 8000  # + slot: requests, and health on the other nodes of an instance
ROUTER_PORT = 8500  # + router
BOOTSTRAP_PORT = 9000  # + slot
RENDEZVOUS_PORT = 20000  # + 100 x slot: the engine's own sockets between the nodes of an instance
SIDE_CHANNEL_PORT = 24000  # + 100 x slot: KV handshakes, one port a data-parallel rank
METRICS_PORT = 29000  # + router
SSD_FOLDER = "/var/cache/prefixes"  # of the blocks that an engine keeps on SSDs of its own
STORE = (
    "mooncake-master:50051"  # where the master of a store of prefixes answers, by a name that whoever starts it gives
)
MAX_SLOTS = 40  # keeps every range above below the next one and below 32768, where Linux takes ephemeral ports from

FUNCTIONS = ("colocated", "prefill", "decode")


@dataclass(frozen=True, slots=True)
class Scene:
    """The plan as launch scripts see it."""

    cluster: Cluster
    instances: list[EngineInstance]
    nodes: dict[NodeId, Node]
    experts: Mapping[str, PlacedExperts]  # by role that starts from a layout of its experts
    connectors: Mapping[str, Connector] = field(default_factory=dict)  # by role that hands caches over or takes them

    def node(self, part: NodeRanks) -> Node:
        return self.nodes[part.place]

    def address(self, part: NodeRanks, *, before: str = "", after: str = "") -> Word:
        """The address of a part's node as a shell word."""
        return reference(self.node(part).variable, before=before, after=after)

    def url(self, instance: EngineInstance) -> Word:
        """Where `instance` answers."""
        return self.address(instance.head, before="http://", after=f":{API_PORT + instance.head.slot}")

    def model_key(self, instance: EngineInstance) -> str:
        """The key of the problem's models that `instance` serves."""
        models = self.cluster.problem.models
        key = instance.role.model
        if key is None and len(models) == 1:
            return next(iter(models))
        if key is None or key not in models:
            known = ", ".join(f"`{name}`" for name in models)
            raise instance.refuse(f"unknown model `{key}`", f"the plan's models are {known}")
        return key

    def model(self, instance: EngineInstance) -> ModelSpec:
        return self.cluster.problem.models[self.model_key(instance)]

    def model_name(self, instance: EngineInstance) -> str:
        """The name that the engine loads the model by."""
        return loaded_name(self.model(instance))


@dataclass(frozen=True, slots=True)
class RouterGroup:
    """Instances behind one router: those of one model that serve whole requests, or its prefill and decode ones."""

    index: int
    model: str
    colocated: tuple[EngineInstance, ...]
    prefill: tuple[EngineInstance, ...]
    decode: tuple[EngineInstance, ...]

    @property
    def instances(self) -> tuple[EngineInstance, ...]:
        return self.colocated + self.prefill + self.decode

    @property
    def needs_router(self) -> bool:
        """Whether there is anything to choose between; a single instance is called directly."""
        return len(self.instances) > 1

    @property
    def title(self) -> str:
        kind = "prefill and decode" if self.prefill else "colocated"
        return f'router of the {kind} instances of "{self.model}"'


Host = Callable[[EngineInstance], str]
"""Host and port at which an instance answers."""
FRONT_FILE = "disaggregated.yaml"


@dataclass(frozen=True, slots=True)
class ServingEngine:
    """What a serving target adds: its rank order, the command of one part of an instance, and its router."""

    description: EngineDescription
    version: str  # whose flags are written
    rank_order: tuple[str, ...]
    launch: Callable[[Scene, EngineInstance, int], Command]  # the index is that of the part
    router: tuple[Word, ...]  # its program, of the name that ends it
    disaggregated: str  # the router's flag for prefill and decode apart
    prefill_address: Callable[[Scene, EngineInstance], Word | tuple[Word, ...]]  # for the router
    check_transfer: Callable[[Scene, EngineInstance, EngineInstance], None]  # raises where two sides draft apart
    expert_note: str  # what whoever starts from such a layout must know
    settings: Callable[[Scene, EngineInstance], Mapping[str, Mapping[str, object]]] | None = None
    """By the name of a YAML or JSON file that its commands read, what it says; None where flags say all."""
    front: Callable[[RouterGroup, str | None, Host], Mapping[str, object]] | None = None
    """What FRONT_FILE says of prefill and decode apart, from a policy and their hosts; others have routers' flags."""
    over_mpi: bool = False  # an instance over nodes is one program of MPI

    @property
    def name(self) -> str:
        """As its makers write it."""
        return self.description.title

    @property
    def key(self) -> str:
        """As problems and plans call it."""
        return self.description.name

    @property
    def release(self) -> Release:
        """What it can run."""
        return release_of(self.key, self.version)


def caches_prefixes(instance: EngineInstance) -> bool:
    """Whether the role is planned with prompts that its prefix cache holds; else every prompt is computed whole."""
    return instance.role.limits.get("prefix_caching") == "on"


@dataclass(frozen=True, slots=True)
class PrefixTiers:
    """Memory beside the device for prefixes that leave it; None where an instance has none of a kind."""

    host_bytes: int | None  # of a GPU
    ssd_bytes: int | None  # of a GPU
    pool_bytes: int | None  # of all that there is
    shared: bool  # several engines read host memory and SSDs of each other

    @property
    def some(self) -> bool:
        """Whether there is any."""
        return any(size is not None for size in (self.host_bytes, self.ssd_bytes, self.pool_bytes))

    @property
    def stored(self) -> bool:
        """Whether a store beside the engine keeps prefixes: for several engines, or in a pool."""
        return self.some and (self.shared or self.pool_bytes is not None)


def prefix_tiers(instance: EngineInstance) -> PrefixTiers:
    """Memory of an instance for prefixes that leave the device; raises PlannerError where no prefixes are kept."""
    host, ssd, pool = (limit(instance, f"{name}_cache_bytes") for name in ("host", "ssd", "pool"))
    tiers = PrefixTiers(host, ssd, pool, instance.role.limits.get("prefix_store") == "shared")
    if tiers.some and not caches_prefixes(instance):
        raise instance.refuse(
            "its memory tiers would keep prefixes, and it keeps none", "fix `limits.prefix_caching` or leave it out"
        )
    return tiers


def refuse_shared_ssd(instance: EngineInstance, tiers: PrefixTiers, engine: str) -> None:
    """Raises PlannerError for SSDs that several engines would have to read."""
    if tiers.shared and tiers.ssd_bytes is not None:
        raise instance.refuse(
            f"{engine} keeps prefixes on SSDs of its own, and the plan takes several engines to share them",
            "offer that memory as the tier `pool` of `cache`, or set `max_units` of `ssd` to 0",
        )


def limit(instance: EngineInstance, name: str, least: int = 1) -> int | None:
    """A limit of the instance's role as a whole number, None where the plan leaves it to the engine."""
    value = instance.role.limits.get(name)
    if value is None:
        return None
    if isinstance(value, str) or value != int(value) or value < least:
        kind = "positive whole number" if least else "whole number"
        raise instance.refuse(f"limit `{name}` must be a {kind}, found {value!r}", f"fix `limits.{name}`")
    return int(value)
