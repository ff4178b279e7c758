"""Checks of multi-model placements: every model has a group, its traffic is routed there, and memory suffices."""

from collections import Counter
from collections.abc import Iterator

from planner.documents.units import format_si
from planner.kinds.place.decision import PlaceDecision, PlaceOptions
from planner.kinds.place.layers.plan import check as check_layers
from planner.kinds.place.lora.plan import check as check_adapters
from planner.models.architecture import Architecture
from planner.plan.findings import Finding
from planner.plan.schema import Envelope, Role
from planner.problem.recorded import recorded_model, recorded_options, recorded_problem
from planner.problem.schema import Problem

REL_TOL = 1e-9


def check(envelope: Envelope, decision: PlaceDecision) -> list[Finding]:
    """One finding a rule and group or model, or of layers a rule and way."""
    if not decision.hosts:
        problem = recorded_problem(envelope.inputs)
        if decision.roles[0].function == "mix":
            return []  # what it serves is judged where it is stated again
        if decision.roles[0].function == "adapters":
            options = recorded_options(problem, PlaceOptions)
            lora = None if options is None else options.lora
            return [*check_adapters(decision, None if lora is None else lora.slots)]
        model = None if problem is None else recorded_model(problem, decision.roles[0].model)
        return [*check_layers(decision, None if model is None else model.num_layers)]
    findings = [*_groups(decision), *_hosts(decision), *_shares(decision), *_memory(decision)]
    problem = recorded_problem(envelope.inputs)
    options = recorded_options(problem, PlaceOptions)
    if problem is None or options is None:
        return findings
    return [*findings, *_asked(decision, problem, options), *_layers(decision, problem)]


def _groups(decision: PlaceDecision) -> Iterator[Finding]:
    for role in decision.roles:
        right = role.function == "group" and role.replicas == 1 and role.model is None
        what = f"function `{role.function}`, {role.replicas} replicas, model {role.model}"
        hint = "write every group as a role `group` with one replica and no model of its own"
        yield Finding("place.group", right, what, f"roles.{role.name}", hint)


def _hosts(decision: PlaceDecision) -> Iterator[Finding]:
    groups = {role.name for role in decision.roles}
    pairs = Counter((host.group, host.model) for host in decision.hosts)
    strange = sorted(group for group, _ in pairs if group not in groups)
    what = f"no group is called `{strange[0]}`" if strange else "every host names a group"
    yield Finding("place.hosts", not strange, what, "hosts", f"use one of {', '.join(sorted(groups))}")
    twice = sorted(pair for pair, count in pairs.items() if count > 1)
    what = f"`{twice[0][1]}` lives twice on `{twice[0][0]}`" if twice else "a model lives once on a group"
    yield Finding("place.once", not twice, what, "hosts", "merge the two hosts")


def _shares(decision: PlaceDecision) -> Iterator[Finding]:
    for model in sorted({host.model for host in decision.hosts}):
        total = sum(host.share for host in decision.hosts if host.model == model)
        what = f"the groups of `{model}` serve {total:.6g} of its requests"
        hint = "make the shares of a model add up to 1"
        yield Finding("place.shares", abs(total - 1.0) <= REL_TOL, what, f"hosts.{model}", hint)


def _memory(decision: PlaceDecision) -> Iterator[Finding]:
    for role in decision.roles:
        stored = sum(host.weights_bytes for host in decision.hosts if host.group == role.name)
        where = f"roles.{role.name}.memory"
        if role.memory is None:
            yield Finding("place.memory", False, "the group states no memory", where, "state the memory of every group")
            continue
        stated = role.memory.weights_bytes
        what = f"hosts store {format_si(stored, 'B')} a device, the group states {format_si(stated, 'B')}"
        right = abs(stored - stated) <= REL_TOL * max(stored, stated)
        yield Finding("place.memory", right, what, where, "state the sum of the hosts' weights")


def _asked(decision: PlaceDecision, problem: Problem, options: PlaceOptions) -> Iterator[Finding]:
    wanted = {problem.model_of(workload) for workload in problem.workloads}
    homes = Counter(host.model for host in decision.hosts)
    unknown = sorted(set(homes) - set(problem.models))
    what = f"model `{unknown[0]}` is not in the problem" if unknown else "models are those of the problem"
    yield Finding("place.models", not unknown, what, "hosts", "name a model of `inputs`")
    for model in sorted(wanted):
        what = f"`{model}` lives on {homes[model]} groups, at least {options.min_replicas} wanted"
        hint = "add a host for the model"
        yield Finding("place.replicas", homes[model] >= options.min_replicas, what, f"hosts.{model}", hint)
    if options.max_group_gpus is not None:
        for role in decision.roles:
            devices = role.parallelism.devices
            what = f"{devices} devices, at most {options.max_group_gpus} allowed"
            right = devices <= options.max_group_gpus
            yield Finding("place.group_size", right, what, f"roles.{role.name}", "use smaller groups")


def _layers(decision: PlaceDecision, problem: Problem) -> Iterator[Finding]:
    """Every model has at least as many layers as its group has pipeline stages."""
    roles = {role.name: role for role in decision.roles}
    for host in decision.hosts:
        role, model = roles.get(host.group), recorded_model(problem, host.model)
        where = f"hosts.{host.group}.{host.model}"
        if role is None or model is None:
            what = f"not judged: the catalog does not know model `{host.model}`"
            yield Finding("place.layers", True, what, where, skipped=True)
        else:
            yield _pipeline(role, model, where)


def _pipeline(role: Role, model: Architecture, where: str) -> Finding:
    what = f"{model.num_layers} layers over {role.parallelism.pp} pipeline stages"
    right = role.parallelism.pp <= model.num_layers
    return Finding("place.layers", right, what, where, "use fewer stages")
