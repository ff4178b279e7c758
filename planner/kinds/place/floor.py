"""Where groups of models stand: NVLink domains of nodes with what others use of them, and racks; copies apart."""

from collections.abc import Sequence

from planner.errors import PlannerError
from planner.hardware.cluster import Pool
from planner.kinds.place.decision import FloorOptions, PlaceOptions
from planner.problem.resolve import Resolved
from planner.solvers.placement.floor import Devices, Floor, FloorNode, Kind, lay, spread


def read_floor(resolved: Resolved, options: PlaceOptions) -> Floor | None:
    """The floor of a problem that says something of it; raises PlannerError for nodes, GPUs and racks that are not."""
    if options.floor is None:
        return None
    pool, chosen = _racked(resolved, options.floor), options.floor
    taken = _taken(resolved, chosen, pool)
    size, racks = pool.node.num_gpus, pool.rack_of_node
    domain = size if pool.node.scale_up_kind == "pcie" else min(pool.node.scale_up_size, size)
    nodes = []
    for node in pool.healthy_nodes:
        gone = taken.get(node, frozenset())
        domains = tuple(
            tuple(node * size + gpu for gpu in range(first, first + domain) if gpu not in gone)
            for first in range(0, size, domain)
        )
        nodes.append(FloorNode(domains, not gone, int(racks[node]) if chosen.apart == "rack" else node))
    floor = Floor(tuple(nodes), domain)
    _require_units(resolved, options, floor)
    return floor


def places_of(pool: Pool, floor: Floor | None, groups: Sequence[Kind], options: PlaceOptions) -> tuple[Devices, ...]:
    """The devices of every group, as the floor has them; without one in order. None fit where the tuple is empty."""
    if floor is not None:
        return lay(floor, groups, units_of(options, groups)).solution or ()
    devices, first, places = pool.job_devices.tolist(), 0, []
    for size, _ in groups:
        places.append(tuple(devices[first : first + size]))
        first += size
    return tuple(places)


def units_of(options: PlaceOptions, groups: Sequence[Kind]) -> dict[int, int]:
    """On how many nodes or racks models are to live."""
    if options.floor is None or options.floor.apart is None:
        return {}
    return dict.fromkeys(sorted({m for _, models in groups for m in models}), options.min_replicas)


def require_laid(
    floor: Floor | None, groups: Sequence[Kind], places: Sequence[Devices], options: PlaceOptions, names: Sequence[str]
) -> None:
    """Raises PlannerError for groups on devices that are taken or of several domains, and for copies not apart."""
    if floor is None:
        return
    for group, (size, _) in enumerate(groups):
        if not _inside(floor, places[group], size):
            what = f"group {group} stands on GPUs that others use, or that several nodes or domains have"
            raise PlannerError(what, where="decision.placement", hint="solve again")
    lives = spread(floor, groups, places)
    for m, least in units_of(options, groups).items():
        if lives[m] < least:
            assert options.floor is not None
            what = f"`{names[m]}` lives on {lives[m]} {options.floor.apart}s, {least} are asked for"
            raise PlannerError(what, where="decision.placement", hint="solve again")


def stands(floor: Floor | None, groups: Sequence[Kind], places: Sequence[Devices], options: PlaceOptions) -> bool:
    """Whether copies are as far apart as is asked for."""
    if floor is None:
        return True
    lives = spread(floor, groups, places)
    return all(lives[m] >= least for m, least in units_of(options, groups).items())


def broken_nodes(floor: Floor, places: Sequence[Devices]) -> int:
    """Nodes of which nothing was taken, and now something is."""
    used = {device for place in places for device in place}
    return sum(node.whole and any(used & set(domain) for domain in node.domains) for node in floor.nodes)


def _inside(floor: Floor, place: Devices, size: int) -> bool:
    """In one domain; larger groups on whole ones of a node."""
    if len(place) != size:
        return False
    if size <= floor.domain_devices:
        return any(set(place) <= set(domain) for node in floor.nodes for domain in node.domains)
    whole = [
        {d for domain in node.domains if len(domain) == floor.domain_devices for d in domain} for node in floor.nodes
    ]
    return any(set(place) <= devices for devices in whole)


def _racked(resolved: Resolved, chosen: FloorOptions) -> Pool:
    (pool,) = resolved.pools
    if chosen.racks is None:
        return pool
    try:
        return pool.on_racks(chosen.racks)
    except PlannerError as error:
        place = resolved.where(("options", "floor", "racks"))
        raise PlannerError(error.what, where=place, hint=error.hint) from None


def _taken(resolved: Resolved, chosen: FloorOptions, pool: Pool) -> dict[int, frozenset[int]]:
    """GPUs in use, by node."""
    names = list(resolved.problem.cluster.pools[0].node_names or ())
    taken: dict[int, frozenset[int]] = {}
    for name, gpus in chosen.taken.items():
        where = resolved.where(("options", "floor", "taken", name))
        node = names.index(name) if name in names else int(name) if name.isdecimal() else -1
        if node not in pool.healthy_nodes or node in taken:
            what = f"node `{name}` is named twice" if node in taken else f"no node in service is `{name}`"
            known = ", ".join(names) or f"0 to {pool.num_nodes - 1}"
            raise PlannerError(what, where=where, hint=f"nodes are {known}; each once")
        beyond = sorted(gpu for gpu in gpus if gpu >= pool.node.num_gpus)
        if beyond:
            what = f"GPU {beyond[0]} of a node of {pool.node.num_gpus}"
            raise PlannerError(what, where=where, hint=f"count from 0 to {pool.node.num_gpus - 1}")
        taken[node] = frozenset(gpus)
    return taken


def _require_units(resolved: Resolved, options: PlaceOptions, floor: Floor) -> None:
    assert options.floor is not None
    apart, where = options.floor.apart, resolved.where(("options", "floor"))
    if not any(node.free for node in floor.nodes):
        raise PlannerError("all GPUs are taken", where=where, hint="leave some in `taken` out")
    if apart is None:
        return
    if options.min_replicas < 2:
        what, hint = f"one copy of a model is on one {apart}", "write `options.min_replicas: 2`, or leave `apart` out"
        raise PlannerError(what, where=where, hint=hint)
    units = len({node.unit for node in floor.nodes if node.free})
    if units < options.min_replicas:
        what = f"{options.min_replicas} copies apart, on {units} {apart}{'s' if units > 1 else ''} with free GPUs"
        raise PlannerError(what, where=where, hint=f"ask for {units} at most, or name more `racks`")
