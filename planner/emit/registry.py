"""Registry of emission targets: every module of `planner.emit` that defines `TARGETS`.

Adding a target adds a module and edits nothing here.
"""

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from pydantic import ValidationError

from planner.emit.model_paths import loaded_from, told_as
from planner.emit.options import ClusterOptions, flag
from planner.errors import PlannerError, did_you_mean
from planner.plan.schema import Decision, Envelope
from planner.schema.base import planner_error


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """A plan of expert layouts to launch with a serving plan, and the role that it is named for."""

    source: str
    role: str | None
    envelope: Envelope
    decision: Decision


@dataclass(frozen=True, slots=True)
class EmitTarget:
    """One form in which plans leave: `emit` gives file names and their text."""

    name: str
    purpose: str  # one line
    kinds: tuple[str, ...]  # plan kinds that it can express
    emit: Callable[[Envelope, Decision], dict[str, str]]
    emit_with: Callable[[Envelope, Decision, Sequence[LayoutPlan]], dict[str, str]] | None = None  # expert layouts
    emit_on: Callable[[Envelope, Decision, Sequence[LayoutPlan], ClusterOptions], dict[str, str]] | None = None


@cache
def targets() -> dict[str, EmitTarget]:
    """All targets by name, sorted."""
    import planner.emit

    names = [module.name for module in pkgutil.walk_packages(planner.emit.__path__, "planner.emit.")]
    modules = [importlib.import_module(name) for name in names]
    known: list[EmitTarget] = [target for module in modules for target in getattr(module, "TARGETS", ())]
    return {target.name: target for target in sorted(known, key=lambda target: target.name)}


def emit(
    envelope: Envelope,
    decision: Decision,
    target: str,
    layouts: Sequence[LayoutPlan] = (),
    options: ClusterOptions | None = None,
    model_paths: Sequence[str] = (),
) -> dict[str, str]:
    """File name -> text of `decision`, the validated decision of `envelope`, for `target`, with `layouts` in force.

    `model_paths` say where models of a config.json lie, each `MODEL=PATH`, or PATH of the only one. Raises PlannerError
    for an unknown target, a plan kind that the target cannot express, layouts or options of a
    cluster for a target that takes none, and a decision that the target's own rules refuse.
    """
    chosen = _chosen(envelope, target)
    if layouts and chosen.emit_with is None:
        able = [f"`{other.name}`" for other in targets().values() if other.emit_with is not None]
        raise PlannerError(
            f"target `{target}` takes no expert layouts", where="--experts", hint=f"those that do are {', '.join(able)}"
        )
    placed = loaded_from(envelope, model_paths) if model_paths else envelope
    try:
        files = _emitted(chosen, placed, decision, layouts, options)
    except ValidationError as error:  # of plans and problems that a plan carries, which targets read as they need them
        raise planner_error(error, lambda path: ".".join(("in a part of the plan", *map(str, path)))) from None
    return told_as(envelope, placed, files) if model_paths else files


def _emitted(
    chosen: EmitTarget,
    envelope: Envelope,
    decision: Decision,
    layouts: Sequence[LayoutPlan],
    options: ClusterOptions | None,
) -> dict[str, str]:
    """The files of a target that takes these layouts."""
    if options is not None and options.given:
        if chosen.emit_on is None:
            able = [f"`{other.name}`" for other in targets().values() if other.emit_on is not None]
            hint = f"those that do are {', '.join(able)}"
            raise PlannerError(f"target `{chosen.name}` starts no containers", where=flag(options.given[0]), hint=hint)
        return chosen.emit_on(envelope, decision, layouts, options)
    if chosen.emit_with is not None and layouts:
        return chosen.emit_with(envelope, decision, layouts)
    return chosen.emit(envelope, decision)


def _chosen(envelope: Envelope, target: str) -> EmitTarget:
    """The target of that name, which must take plans of the envelope's kind."""
    known = targets()
    if target not in known:
        listing = f"the targets are {', '.join(f'`{name}`' for name in known)}"
        raise PlannerError(
            f"unknown target `{target}`", where="--target", hint=did_you_mean(target, list(known), otherwise=listing)
        )
    chosen = known[target]
    if envelope.kind not in chosen.kinds:
        able = [f"`{other.name}`" for other in known.values() if envelope.kind in other.kinds]
        kinds = ", ".join(f"`{kind}`" for kind in chosen.kinds)
        raise PlannerError(
            f"target `{target}` cannot express plans of kind `{envelope.kind}`",
            where="kind",
            hint=f"use {' or '.join(able)}" if able else f"`{target}` takes plans of kind {kinds}",
        )
    return chosen
