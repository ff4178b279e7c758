"""Checks a placement: ranks on existing devices of nodes in service, who shares, tensor-parallel groups in nodes."""

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.plan import placement
from planner.plan.findings import Finding
from planner.plan.schema import Block, Decision, Role

if TYPE_CHECKING:
    from planner.hardware.cluster import Pool

AXES = ("replica", "pp", "dp", "cp", "tp")
SERVING = ("colocated", "prefill", "decode")
SHARE_DUST = 1e-6  # of a device


def placement_findings(decision: Decision, pools: "Mapping[str, Pool]") -> Iterator[Finding]:
    """One finding a rule and role; rules about devices are judged on blocks whose pool is in `pools`."""
    blocks = {role.name: [block for block in decision.placement if block.role == role.name] for role in decision.roles}
    legal = True
    for role in decision.roles:
        for finding in _shape_findings(role, blocks[role.name]):
            legal = legal and finding.ok
            yield finding
        known = [block for block in blocks[role.name] if block.pool in pools]
        for finding in _device_findings(role, known, pools) if legal else ():
            legal = legal and finding.ok
            yield finding
    if legal:
        yield from _sharing_findings(decision, pools)


def _shape_findings(role: Role, blocks: list[Block]) -> Iterator[Finding]:
    where = f"roles.{role.name}"
    wanted = role.replicas * role.parallelism.devices
    placed = sum(placement.num_ranks(block) for block in blocks)
    yield Finding(
        "placement.ranks",
        placed == wanted,
        f"{placed} ranks placed, {role.replicas} replicas x {role.parallelism.devices} devices = {wanted}",
        where,
        "lay as many ranks as the replicas have devices",
    )
    degrees = {name: getattr(role.parallelism, name) for name in AXES[1:]}
    strange = {axis.name for block in blocks for axis in block.axes} - set(AXES)
    wrong = [
        f"{name} {placement.degree(block, name)} instead of {size}"
        for block in blocks
        for name, size in degrees.items()
        if placement.degree(block, name) != size
    ]
    problems = [f"unknown axis `{name}`" for name in sorted(strange)] + wrong
    hint = f"name the axes {', '.join(AXES)} and give them the sizes of `parallelism`"
    yield Finding("placement.axes", not problems, problems[0] if problems else "axes match", where, hint)
    elsewhere = sorted({block.pool for block in blocks} - {role.pool})
    what = f"laid on {', '.join(f'`{pool}`' for pool in elsewhere)}" if elsewhere else f"on `{role.pool}`"
    yield Finding("placement.pool", not elsewhere, what, where, f"lay it on `{role.pool}` or change the role's pool")


def _device_findings(role: Role, blocks: list[Block], pools: "Mapping[str, Pool]") -> Iterator[Finding]:
    where = f"roles.{role.name}"
    size = {block.pool: _num_devices(pools[block.pool]) for block in blocks}
    beyond = [block for block in blocks if placement.last_device(block) >= size[block.pool]]
    what = "inside the pool"
    crowded = next((block for block in blocks if placement.num_ranks(block) > size[block.pool]), None)
    if crowded is not None:
        what = f"{placement.num_ranks(crowded)} ranks on pool `{crowded.pool}`, which has {size[crowded.pool]} devices"
        beyond = beyond or [crowded]
    elif beyond:
        worst = max(beyond, key=placement.last_device)
        what = f"device {placement.last_device(worst)} of pool `{worst.pool}`, which has {size[worst.pool]}"
    yield Finding("placement.range", not beyond, what, where, "use devices that the pool has")
    if beyond:
        return
    gone = sorted({node for block in blocks for node in _nodes_gone(block, pools[block.pool])})
    what = f"uses node {gone[0]}, which is out of service" if gone else "only nodes in service"
    yield Finding("placement.service", not gone, what, where, "leave that node out")
    yield from _tensor_parallel(role, blocks, pools)
    if role.function in SERVING and role.parallelism.pp > 1:
        yield _pieces(role, blocks, pools)


def _nodes_gone(block: Block, pool: "Pool") -> set[int]:
    """The nodes out of service that the block stands on."""
    gone = set(pool.out_of_service)
    return gone & {device // pool.node.num_gpus for device in placement.devices(block)} if gone else gone


def _tensor_parallel(role: Role, blocks: list[Block], pools: "Mapping[str, Pool]") -> Iterator[Finding]:
    """Groups stay in one scale-up domain, a node or an NVLink rack; larger ones fill whole domains."""
    torn = ""
    for block in blocks:
        node, domains = pools[block.pool].node, _domains(pools[block.pool])
        domain = max(node.num_gpus, node.scale_up_size)
        torn = torn or next(
            (
                f"devices {', '.join(map(str, group[:8]))} of one group lie in {spanned} domains"
                for group in placement.groups(block, "tp")
                if (spanned := len(set(map(domains, group)))) * domain > max(len(group), domain)
            ),
            "",
        )
    what = torn or f"groups of {role.parallelism.tp} lie inside one scale-up domain"
    hint = "start every tensor-parallel group at a multiple of its size inside a node"
    yield Finding("placement.tp_domain", not torn, what, f"roles.{role.name}", hint)


def _pieces(role: Role, blocks: list[Block], pools: "Mapping[str, Pool]") -> Finding:
    """Stages hand over between scale-up domains as often as the role's pieces were priced for, and no more often."""
    devices, allowed, crossed = role.parallelism.devices, 0, 0
    for block in blocks:
        node, domains = pools[block.pool].node, _domains(pools[block.pool])
        domain = max(node.num_gpus, node.scale_up_size)
        held = 1 << (domain.bit_length() - 1)  # the largest group that instances are placed in
        allowed = max(int(role.limits.get("pieces", 1)), -(-devices // held)) - 1
        for stages in placement.groups(block, "pp"):
            crossed = max(crossed, sum(a != b for a, b in pairwise(map(domains, stages))))
    what = f"stages of an instance hand over {crossed} times between scale-up domains, priced for {allowed}"
    hint = "place an instance in as many domains as it has pieces"
    return Finding("placement.pieces", crossed <= allowed, what, f"roles.{role.name}", hint)


def _domains(pool: "Pool") -> Callable[[int], int]:
    """The scale-up domain of a device of the pool."""
    of_node, size = pool.domain_of_node.tolist(), pool.node.num_gpus
    return lambda device: int(of_node[device // size])


def _sharing_findings(decision: Decision, pools: "Mapping[str, Pool]") -> Iterator[Finding]:
    """No device works for more ranks at a time than it has shares for: those that take turns need none."""
    phases = {
        role.name: {phase.name for phase in decision.phases if role.name in phase.roles} for role in decision.roles
    }
    share_of = {role.name: _gpu_share(role) for role in decision.roles}
    users: dict[tuple[str, int], list[str]] = {}
    clash = ""
    for block in decision.placement:
        for device in placement.devices(block) if block.pool in pools and not clash else ():
            others = users.setdefault((block.pool, device), [])
            beside = [name for name in others if not _take_turns(phases, name, block.role)]
            if beside and sum(share_of[name] for name in (*beside, block.role)) > 1.0 + SHARE_DUST:
                clash = f"device {device} of pool `{block.pool}` serves `{beside[0]}` and `{block.role}` at a time"
                break
            others.append(block.role)
    hint = "lay them on different devices, or give the roles `phases` of their own"
    yield Finding("placement.exclusive", not clash, clash or "no device serves two ranks at a time", "placement", hint)


def _gpu_share(role: Role) -> float:
    """Of each device that a replica stands on; all of it where the role says nothing that can be one."""
    share = role.limits.get(placement.GPU_SHARE)
    return share if isinstance(share, int | float) and 0.0 < share <= 1.0 else 1.0


def _take_turns(phases: Mapping[str, set[str]], role: str, other: str) -> bool:
    return role != other and bool(phases[role]) and bool(phases[other]) and not phases[role] & phases[other]


def _num_devices(pool: "Pool") -> int:
    return pool.num_nodes * pool.node.num_gpus
