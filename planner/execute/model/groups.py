"""Communicators of a role (process groups of torch.distributed), or stand-ins where one rank runs alone.

A rank alone keeps the sizes of its groups; what the absent ranks would send is made up in the right shape
(`planner.execute.model.collectives`), and each such collective is counted in `Communicators.skipped`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import distributed as dist

from planner.execute.shards.spec import RankSpec, RoleSpec
from planner.models.architecture import GroupedQueryAttention


@dataclass(frozen=True, slots=True)
class Communicator:
    """Global ranks that take part in a collective, in order, and the place of this rank among them."""

    ranks: tuple[int, ...]
    index: int
    handle: dist.ProcessGroup | None = None  # None for a group of one and for a rank alone
    skipped: Counter[str] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        return len(self.ranks)

    @property
    def absent(self) -> bool:
        """Whether the other ranks are missing."""
        return self.size > 1 and self.handle is None

    def skips(self, name: str) -> bool:
        """Whether the other ranks are missing; the collective of the operator `name` is then counted as skipped."""
        if self.absent:
            self.skipped[name] += 1
        return self.absent


@dataclass(frozen=True, slots=True)
class Communicators:
    """All groups of one rank.

    expert: the moe_tp x ep ranks that hold one set of experts. data: ranks with the same dense weights and other
    tokens. expert_data: the same for expert weights. kv_replicas: by number of KV heads, the tp ranks that hold copies
    of one KV head. pipeline: the same place in every stage, in order of stages.
    """

    tp: Communicator
    cp: Communicator
    expert: Communicator
    moe_tp: Communicator
    ep: Communicator
    data: Communicator
    expert_data: Communicator
    pipeline: Communicator
    kv_replicas: dict[int, Communicator]
    skipped: Counter[str]


Members = Callable[[RankSpec, RankSpec], bool]


def make_groups(role: RoleSpec, rank: int, *, alone: bool = False) -> Communicators:
    """The groups of rank `rank` of a replica, whose ranks are the processes of the world.

    Every process must call this for the same roles in the same order. With `alone` nothing is created and no process
    group is needed.
    """
    everyone = list(role.ranks())
    skipped = Counter[str]()

    def made(together: Members) -> Communicator:
        own = Communicator((rank,), 0)
        for ranks in _partition(everyone, together):
            handle = None if alone or len(ranks) == 1 else _handle(ranks)
            if rank in ranks:
                own = Communicator(ranks, ranks.index(rank), handle, skipped)
        return own

    mixers = [layer.mixer for layer in role.arch.layers]
    heads = sorted({mixer.num_kv_heads for mixer in mixers if isinstance(mixer, GroupedQueryAttention)})
    return Communicators(
        tp=made(_equal("pp", "dp", "cp")),
        cp=made(_equal("pp", "dp", "tp")),
        expert=made(_experts()),
        moe_tp=made(lambda a, b: _experts()(a, b) and a.expert_part == b.expert_part),
        ep=made(lambda a, b: _experts()(a, b) and a.expert_slice == b.expert_slice),
        data=made(_equal("pp", "tp")),
        expert_data=made(_expert_data),
        pipeline=made(_equal("dp", "cp", "tp")),
        kv_replicas={count: made(_kv_replicas(count)) for count in heads},
        skipped=skipped,
    )


def _equal(*axes: str) -> Members:
    return lambda a, b: all(a.coords[axis] == b.coords[axis] for axis in axes)


def _experts() -> Members:
    def together(a: RankSpec, b: RankSpec) -> bool:
        size = a.parallelism.moe_tp * a.parallelism.ep
        return a.coords["pp"] == b.coords["pp"] and a.stage_rank // size == b.stage_rank // size

    return together


def _expert_data(a: RankSpec, b: RankSpec) -> bool:
    """Same experts, other tokens: where an expert group is smaller than tp, its neighbours see the same tokens."""
    size = a.parallelism.moe_tp * a.parallelism.ep
    same_experts = a.coords["pp"] == b.coords["pp"] and a.stage_rank % size == b.stage_rank % size
    return same_experts and (size >= a.parallelism.tp or a.coords["tp"] == b.coords["tp"])


def _kv_replicas(num_kv_heads: int) -> Members:
    def together(a: RankSpec, b: RankSpec) -> bool:
        copies = max(a.parallelism.tp // num_kv_heads, 1)
        return _equal("pp", "dp", "cp")(a, b) and a.coords["tp"] // copies == b.coords["tp"] // copies

    return together


def _partition(ranks: Sequence[RankSpec], together: Members) -> Iterable[tuple[int, ...]]:
    """The classes of ranks that belong together, in order of their first members."""
    classes: list[list[RankSpec]] = []
    for rank in ranks:
        home = next((members for members in classes if together(members[0], rank)), None)
        if home is None:
            classes.append([rank])
        else:
            home.append(rank)
    return (tuple(member.rank for member in members) for members in classes)


_handles: dict[tuple[int, ...], dist.ProcessGroup] = {}


def _handle(ranks: tuple[int, ...]) -> dist.ProcessGroup:
    """The process group of these ranks, made once in the life of the default group."""
    if ranks not in _handles:
        _handles[ranks] = dist.new_group(list(ranks))
    return _handles[ranks]


def leave_world() -> None:
    """Ends the default process group where there is one; handles do not outlive it."""
    if dist.is_initialized():
        dist.destroy_process_group()
    _handles.clear()
