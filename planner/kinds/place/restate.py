"""States a placement again from its problem and its own groups and hosts, and derives its bound again."""

from collections import defaultdict
from collections.abc import Iterator

from planner.errors import PlannerError
from planner.kinds.place.bounds import fewest_devices, most_on_time
from planner.kinds.place.choose import Choice, claimed_streams, placed
from planner.kinds.place.decision import PlaceDecision, PlaceOptions
from planner.kinds.place.floor import require_laid
from planner.kinds.place.layers import plan as layers_plan
from planner.kinds.place.layers.setting import read_setting as layers_setting
from planner.kinds.place.lora import plan as lora_plan
from planner.kinds.place.mix import plan as mix_plan
from planner.kinds.place.reached import reached
from planner.kinds.place.setting import PlaceSetting, read_setting, widest_setting
from planner.kinds.place.solve import envelope, fewest
from planner.plan.findings import Finding
from planner.plan.placement import devices
from planner.plan.restated import LeftOut, Restated, unproven
from planner.plan.schema import Envelope
from planner.problem.recorded import AtHand, resolved_again
from planner.problem.resolve import Resolved
from planner.solvers.placement.floor import Devices
from planner.solvers.placement.group_streams import Group

BOUND = LeftOut("certificate.bound", "whether no groups do better than the bound")
REL_TOL = 1e-9  # of a bound that is computed again


def restate(stated: Envelope, decision: PlaceDecision, hand: AtHand) -> Restated:
    """The plan of these groups and hosts on the streams of its problem, or of these layers, adapters or instances.

    Raises NotAtHand for inputs that are not, PlannerError for groups that the problem cannot have.
    """
    resolved = _resolved(stated, hand)
    options = PlaceOptions.model_validate(resolved.problem.options)
    if options.mix is not None:
        return mix_plan.restate(resolved, stated, decision)
    if options.lora is not None:
        return lora_plan.restate(resolved, stated, decision)
    if options.layers is not None:
        return layers_plan.restate(layers_setting(resolved), stated, decision)
    setting = stated_setting(resolved, decision)
    groups = groups_of(setting, decision)
    places = _stated_places(setting, groups, decision)
    got = reached(setting.groups, groups, claimed_streams(setting))
    made = envelope(Choice(setting, groups, places, got, stated.certificate.bound))
    if stated.certificate.bound is None:
        return Restated(made.model_copy(update={"certificate": unproven(made.certificate.objective)}))
    return Restated(made, (BOUND,))


def prove(stated: Envelope, decision: PlaceDecision, hand: AtHand) -> Iterator[Finding]:
    """Whether the bound follows from the problem: computed again."""
    del decision
    if stated.certificate.bound is None:
        return
    resolved = _resolved(stated, hand)
    options = PlaceOptions.model_validate(resolved.problem.options)
    if options.mix is not None:
        yield from mix_plan.prove(resolved, stated)
        return
    if options.lora is not None:
        yield from lora_plan.prove(resolved, stated)
        return
    if options.layers is not None:
        yield from layers_plan.prove(layers_setting(resolved), stated)
        return
    setting = widest_setting(resolved)
    streams = claimed_streams(setting)
    again = float(fewest_devices(setting, streams)) if fewest(setting) else most_on_time(setting, streams)
    bound, value = stated.certificate.bound, stated.certificate.objective.value
    loosened = again if value is None else (min(again, value) if fewest(setting) else max(again, value))
    right = abs(bound - loosened) <= REL_TOL * max(abs(bound), abs(loosened))
    what = f"states the bound {bound:.9g}, its streams give {loosened:.9g}"
    yield Finding("certificate.bound_again", right, what, "certificate.bound", "solve again")


def _stated_places(setting: PlaceSetting, groups: tuple[Group, ...], decision: PlaceDecision) -> tuple[Devices, ...]:
    """Where the groups stand by the plan, which the floor must allow; in order where the problem has none."""
    if setting.floor is None:
        return placed(setting, groups)
    stated = {block.role: tuple(devices(block)) for block in decision.placement}
    places = tuple(stated.get(role.name, ()) for role in decision.roles)
    names = [workload.model for workload in setting.workloads]
    require_laid(setting.floor, setting.kinds(groups), places, setting.options, names)
    return places


def _resolved(stated: Envelope, hand: AtHand) -> Resolved:
    return resolved_again(stated.inputs, PlaceOptions, hand)


def stated_setting(resolved: Resolved, decision: PlaceDecision) -> PlaceSetting:
    """The setting with the sequences that the engines of a plan take.

    Raises PlannerError for engines of a model that differ in them, and for more than the problem allows.
    """
    options = PlaceOptions.model_validate(resolved.problem.options)
    if not options.batching:
        return read_setting(resolved)
    sequences = []
    for workload in resolved.workloads:
        sizes = sorted({host.max_batch for host in decision.hosts if host.model == workload.model})
        if len(sizes) > 1 or max(sizes, default=0) > options.max_batch:
            taken = " and ".join(map(str, sizes))
            what = f"engines of `{workload.model}` take {taken} sequences, and the problem allows {options.max_batch}"
            hint = "give engines of a model one `max_batch` within that, or solve"
            raise PlannerError(what, where="decision.hosts", hint=hint)
        sequences += sizes or [options.max_batch]
    return read_setting(resolved, sequences)


def groups_of(setting: PlaceSetting, decision: PlaceDecision) -> tuple[Group, ...]:
    """Groups in the order of the roles; raises PlannerError for shapes and models that the problem does not have."""
    shapes = {(each.tp, each.pp): index for index, each in enumerate(setting.prices.degrees)}
    models = {workload.model: index for index, workload in enumerate(setting.workloads)}
    hosts = defaultdict(list)
    for host in decision.hosts:
        if host.model not in models:
            raise PlannerError(f"`{host.model}` is no model of the problem", where="decision.hosts")
        hosts[host.group].append(models[host.model])
    groups = []
    for role in decision.roles:
        degrees = (role.parallelism.tp, role.parallelism.pp)
        if degrees not in shapes:
            what = f"a group of tp {degrees[0]} and pp {degrees[1]} is not among those of the problem"
            raise PlannerError(what, where=f"decision.roles.{role.name}.parallelism")
        groups.append(Group(shapes[degrees], tuple(sorted(hosts[role.name]))))
    if not setting.groups.feasible(groups):
        raise PlannerError("the groups hold more than their devices do", where="decision.hosts")
    return tuple(groups)
