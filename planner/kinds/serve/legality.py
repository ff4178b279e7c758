"""Checks that the engine of a plan can run its roles: their shapes, hand-overs, and weights on their GPUs."""

from collections.abc import Iterator, Mapping

from planner.engines.formats import runs_on, unloadable, weight_formats
from planner.engines.handover import CacheTraits, Side, connector_between, why_apart
from planner.engines.load import release_of
from planner.engines.parallelism import shape_rule
from planner.engines.release import Release, judged_by
from planner.errors import PlannerError
from planner.kinds.serve.options import ServeDecision
from planner.kinds.serve.proof.stated import shape_of
from planner.kinds.serve.steady.shapes import placing_rule
from planner.models.architecture import Architecture
from planner.plan.findings import Finding
from planner.plan.schema import Role
from planner.problem.recorded import INPUTS, recorded_model
from planner.problem.resolve import resolve_pool
from planner.problem.schema import Problem

_SIDES = ("prefill", "decode")


def legality(decision: ServeDecision, problem: Problem) -> Iterator[Finding]:
    """One finding a rule and role, and one a prefill role and those that it hands over to."""
    try:
        release = release_of(problem.engine.name, problem.engine.version)
    except PlannerError as error:
        yield Finding("engine.release", False, error.what, "inputs.engine.version", error.hint)
        return
    other = judged_by(release, problem.engine.version)
    what = f"{release.title} {problem.engine.version or release.read}: rules of {release.read}"
    yield Finding("engine.release", True, other or what, "inputs.engine", skipped=other is not None)
    models = {role.name: recorded_model(problem, role.model) for role in decision.roles}
    for role in decision.roles:
        arch = models[role.name]
        if arch is not None and role.function in ("colocated", *_SIDES):
            why = shape_rule(release, shape_of(role), arch) or placing_rule(shape_of(role), arch)
            hint = "solve again, or change the parallelism of the role"
            yield Finding("engine.shape", why is None, why or f"{release.name} runs it", f"roles.{role.name}", hint)
        if arch is not None:
            yield from _formats(role, arch, problem, release)
    yield from _handovers(decision, models, release)


def _formats(role: Role, arch: Architecture, problem: Problem, release: Release) -> Iterator[Finding]:
    for index, spec in enumerate(problem.cluster.pools):
        try:
            gpu = resolve_pool(spec, index, INPUTS).node.accelerator if spec.label == role.pool else None
        except PlannerError:
            gpu = None
        if gpu is not None:
            missing = [name for name in sorted(weight_formats(arch)) if unloadable(release, name, gpu) is not None]
            what = f"no kernel for {missing[0]} weights on {gpu.name}" if missing else f"weights run on {gpu.name}"
            runs = runs_on(release.engine, gpu)
            what = what if runs else f"{release.title} does not run on {gpu.name}"
            hint = "plan other weights there, or leave that pool out" if runs else "plan another engine there"
            yield Finding("engine.formats", runs and not missing, what, f"roles.{role.name}", hint)


def _handovers(
    decision: ServeDecision, models: Mapping[str, Architecture | None], release: Release
) -> Iterator[Finding]:
    """Roles that hand over to each other, directly or not, stand behind one router, and need one connector."""
    roles = {role.name: role for role in decision.roles if role.function in _SIDES}
    pairs = [(roles[r.source], roles[r.to]) for r in decision.routing if r.source in roles and r.to in roles]
    together = {name: {name} for name in roles}
    for sender, receiver in pairs:
        joined = together[sender.name] | together[receiver.name]
        together |= dict.fromkeys(joined, joined)
    for names in {min(joined): joined for joined in together.values()}.values():
        senders, receivers = ([roles[n] for n in sorted(names) if roles[n].function == side] for side in _SIDES)
        arch = models[senders[0].name] if senders else None
        if arch is None or not receivers:
            continue
        traits, where = CacheTraits.of(arch), f"roles.{receivers[0].name}"
        connector = connector_between(release, map(_side, senders), [_side(role) for role in receivers], traits)
        if connector is not None:
            what = f"{connector.name} takes caches of {_named(senders)} to {_named(receivers)}"
        else:
            reasons = (why_apart(release, _side(a), _side(b), traits) for a in senders for b in receivers)
            why = next((rule.why for rule in reasons if rule is not None), "each pair needs another connector")
            what = f"{release.name} hands no caches of {_named(senders)} to {_named(receivers)}: {why}"
        hint = "solve again, or change the parallelism of these roles"
        yield Finding("engine.handover", connector is not None, what, where, hint)


def _side(role: Role) -> Side:
    return Side(role.parallelism.tp, role.parallelism.pp)


def _named(roles: list[Role]) -> str:
    return ", ".join(f"`{role.name}` (tp {role.parallelism.tp}, pp {role.parallelism.pp})" for role in roles)
