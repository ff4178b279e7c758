"""Cost curves of RL replicas as functions of batch and tokens: decoding, training, scoring, a critic beside the actor.

Any cost model, or a measurement, can state them; nothing else of `planner.rl` knows a GPU or a model.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

NEVER_FITS = sys.maxsize
"""`min_dp` of training whose unsharded part alone exceeds memory."""


@dataclass(frozen=True, slots=True)
class CurvePool:
    """GPUs of one kind that any split may use.

    Where roles take whole nodes, in each pool every role has all GPUs of its nodes, or all roles together lie on one
    node; no replica straddles nodes that it does not fill. Launchers are told nodes and GPUs of a node for each role.
    Tensor-parallel groups straddle no scale-up domain that they do not fill, where `domains` says them.
    """

    name: str
    gpus: int
    usd_per_gpu_hour: float = 0.0
    host_bytes: float = inf  # of host memory, for each GPU
    whole_node_gpus: int = 0  # of a node, where roles take whole nodes; 0: any number of GPUs
    domains: tuple[int, ...] = ()  # GPUs in successive scale-up domains, nodes or racks; none where any group may lie
    domain_gpus: int = 0  # of a domain that has all of them

    def fills_nodes(self, gpus: int, replica: int) -> bool:
        """Whether a role of so many GPUs, in replicas of `replica`, has all of its nodes."""
        node = self.whole_node_gpus
        return node == 0 or (gpus % node == 0 and (node % replica == 0 or replica % node == 0))

    def may_hold(self, gpus: int, replica: int) -> bool:
        """Whether some plan can have this role: on whole nodes, or within one."""
        return self.fills_nodes(gpus, replica) or gpus <= self.whole_node_gpus


@dataclass(frozen=True, slots=True)
class DecodeCurve:
    """What a replica takes: a step of b sequences holding S tokens costs step_s + sequence_s * b + token_s * S.

    Admitted prompts block decoding for tokens / prefill_tokens_per_s; prompt and output are reserved on admission.
    """

    step_s: float
    sequence_s: float
    token_s: float
    prefill_tokens_per_s: float
    max_running: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class GenerationOption:
    """One kind of generating replica; `label` tells apart options of the same degrees.

    While it sleeps with its weights on the host, they take `host_bytes` there for each GPU; `sleep_s` are both moves.
    """

    pool: str
    gpus: int
    curve: DecodeCurve
    tp: int
    pp: int = 1
    ep: int = 1
    label: str = ""
    sleep_s: float = 0.0
    host_bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class TrainingOption:
    """One kind of training replica, `dp` of which train together; dp from min_dp on fits in memory.

    A minibatch of t tokens takes, with t' = t / dp and M = max(1, ceil(t' / micro_tokens)) micro-batches,
    t' / forward_tokens_per_s * (M + pp - 1) / M + t' / train_tokens_per_s * (M + u) / M + optimizer_s, where u, the
    bubble of an update, is pp - 1 too, but where a critic trains in turn or `RlProblem.bubbles` says. Forward passes of
    references, rewards and critics enter forward_tokens_per_s harmonically. `offload_s` and `offload_sharded_s` / dp
    are what taking turns with generation on the same GPUs adds to `RlProblem.switch_s`.
    """

    pool: str
    gpus: int
    train_tokens_per_s: float
    forward_tokens_per_s: float
    micro_tokens: int
    tp: int
    pp: int = 1
    min_dp: int = 1
    optimizer_s: float = 0.0
    offload_s: float = 0.0
    offload_sharded_s: float = 0.0
    label: str = ""
    ranks: int = 1  # data-parallel ranks of a replica, where experts spread over several
    score_gpu_s: float = 0.0  # GPU seconds a token of references, rewards and values, part of forward_tokens_per_s
    critic_share: float = 0.0  # of an update without bubbles: a critic trained in turn
    critic_bubble: float = 0.0  # what it waits in its own pipeline, in micro-batches of the replica
    host_bytes: float = 0.0  # of host memory for each GPU: of states out of turn, and of models that wait there
    host_sharded_bytes: float = 0.0  # with dp 1, falling as 1 / dp
    beside_tp: int = 1  # GPUs of the widest tensor-parallel group of a model beside it
    apart: str = ""  # parts that score on GPUs of their own, and take none of this training's time: `reference teacher`

    @property
    def widest(self) -> int:
        """GPUs of the widest tensor-parallel group on its GPUs."""
        return max(self.tp, self.beside_tp)

    @property
    def update_bubble(self) -> float:
        """Micro-batches that an update waits, actor and critic in turn."""
        return (self.pp - 1) * (1.0 - self.critic_share) + self.critic_bubble


@dataclass(frozen=True, slots=True)
class Service:
    """`servers` equal ones that score samples of a part: a batch of t tokens takes step_s + token_s t.

    A server stands on `gpus` GPUs of a pool, on none where it is a worker of a CPU, and takes at most `batch` samples
    at once. `shared_by` jobs send it their samples: each as it is generated, or, where it takes them `whole`, all of a
    batch once training takes that up, which waits for the scores.
    """

    part: str
    pool: str
    gpus: int
    servers: int
    batch: int
    step_s: float
    token_s: float
    shared_by: int = 1
    whole: bool = False

    @property
    def width(self) -> int:
        """GPUs of its tensor-parallel groups."""
        return self.gpus


@dataclass(frozen=True, slots=True)
class Learner:
    """A critic on GPUs of its own: `dp` replicas, which give values and train while the actor's do the same."""

    option: TrainingOption
    dp: int

    @property
    def part(self) -> str:
        return "critic"

    @property
    def pool(self) -> str:
        return self.option.pool

    @property
    def gpus(self) -> int:
        """Of a replica."""
        return self.option.gpus

    @property
    def servers(self) -> int:
        """Replicas."""
        return self.dp

    @property
    def width(self) -> int:
        """GPUs of its tensor-parallel groups."""
        return self.option.tp

    @property
    def shared_by(self) -> int:
        """Jobs that train it."""
        return 1


@dataclass(frozen=True, slots=True)
class Scoring:
    """Forward passes of references, rewards and values on generating GPUs of a pool.

    A token takes `gpu_s` GPU seconds; a replica begins `load_s` after it was set free. A trajectory of c tokens moves
    to another replica in move_s + move_token_s c. Parts `apart` have GPUs of their own, as of `TrainingOption`.
    """

    gpu_s: float
    load_s: float = 0.0
    move_s: float = 0.0
    move_token_s: float = 0.0
    apart: str = ""


@dataclass(frozen=True, slots=True)
class Critic:
    """A critic beside one kind of actor replica: replicas of `gpus` GPUs and `pp` stages.

    GPU seconds are of one token in training, forward and backward. What a micro-batch holds, and `room_bytes` for all
    of both models, are of one device.
    """

    pp: int
    gpus: int
    micro_tokens: int
    forward_gpu_s: float
    backward_gpu_s: float
    actor_forward_gpu_s: float
    actor_backward_gpu_s: float
    in_flight_bytes: float
    actor_in_flight_bytes: float
    room_bytes: float


@dataclass(frozen=True, slots=True)
class Curves:
    """What a cost model, or a measurement, says of a problem; the rest of it is stated by its author."""

    generation: tuple[GenerationOption, ...]
    training: tuple[TrainingOption, ...]
    weight_sync_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    switch_s: float = 0.0
    scoring: Mapping[str, tuple[Scoring, ...]] = field(default_factory=dict)
    critics: Mapping[TrainingOption, Critic] = field(default_factory=dict)
    move_s: float = 0.0  # of a sample with its KV to another replica, and what a token of it adds
    move_token_s: float = 0.0
    services: tuple[Service, ...] = ()
    learners: tuple[Learner, ...] = ()
