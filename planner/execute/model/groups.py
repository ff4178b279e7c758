"""Groups of ranks of a role on torch.distributed, or the same groups as one rank alone sees them.

A rank alone keeps the sizes of its groups; what the absent ranks would send is made up in the right shape
(`planner.execute.model.collectives`), and each such collective is counted in `Groups.skipped`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from torch import distributed as dist

from planner.execute.shards.spec import RankSpec, RoleSpec
from planner.models.architecture import GroupedQueryAttention


@dataclass(frozen=True, slots=True)
class Group:
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


@dataclass(frozen=True, slots=True)
class Groups:
    """All groups of one rank.

    expert: the moe_tp x ep ranks that hold one set of experts. data: ranks with the same dense weights and other
    tokens. expert_data: the same for expert weights. kv_replicas: by number of KV heads, the tp ranks that hold copies
    of one KV head. pipeline: the same place in every stage, in order of stages. ends: the first and last of them.
    """

    spec: RankSpec
    tp: Group
    dp: Group
    cp: Group
    expert: Group
    moe_tp: Group
    ep: Group
    data: Group
    expert_data: Group
    pipeline: Group
    ends: Group
    kv_replicas: dict[int, Group]
    skipped: Counter[str]


Members = Callable[[RankSpec, RankSpec], bool]


def make_groups(role: RoleSpec, rank: int, *, first_rank: int = 0, alone: bool = False) -> Groups:
    """The groups of rank `rank` of a replica whose ranks are the processes from `first_rank` on.

    Every process of the world must call this for the same replicas in the same order, members or not: use `rank` of
    any rank for a process outside. With `alone` nothing is created and no process group is needed.
    """
    everyone = list(role.ranks())
    own, skipped = everyone[rank], Counter[str]()

    def made(together: Members) -> Group:
        mine = Group((first_rank + rank,), 0, None, skipped)
        for members in _partition(everyone, together):
            ranks = tuple(first_rank + member for member in members)
            handle = None if alone or len(ranks) == 1 else _handle(ranks)
            if rank in members:
                mine = Group(ranks, members.index(rank), handle, skipped)
        return mine

    mixers = [layer.mixer for layer in role.arch.layers]
    heads = sorted({mixer.num_kv_heads for mixer in mixers if isinstance(mixer, GroupedQueryAttention)})
    return Groups(
        own,
        tp=made(_equal("pp", "dp", "cp")),
        dp=made(_equal("pp", "cp", "tp")),
        cp=made(_equal("pp", "dp", "tp")),
        expert=made(_experts()),
        moe_tp=made(lambda a, b: _experts()(a, b) and a.expert_part == b.expert_part),
        ep=made(lambda a, b: _experts()(a, b) and a.expert_slice == b.expert_slice),
        data=made(_equal("pp", "tp")),
        expert_data=made(_expert_data),
        pipeline=made(_equal("dp", "cp", "tp")),
        ends=made(_ends),
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


def _ends(a: RankSpec, b: RankSpec) -> bool:
    """The holders of embedding and output matrix; ranks between them stand alone."""
    if a.rank == b.rank:
        return True
    return _equal("dp", "cp", "tp")(a, b) and _holds_end(a) and _holds_end(b)


def _holds_end(rank: RankSpec) -> bool:
    return any(stage.embeds or stage.yields_logits for stage in rank.stages)


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


def forget_groups() -> None:
    """To be called after `torch.distributed.destroy_process_group`: handles do not outlive the world."""
    _handles.clear()
