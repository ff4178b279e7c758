"""Axes of decisions that people name, such as `tp=4` or `role.prefill.tp=4`, and the options that hold them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import JsonValue

from planner.errors import Infeasible, PlannerError, did_you_mean, errors_at
from planner.kinds.registry import find_kind
from planner.problem.resolve import Resolved
from planner.problem.schema import Problem

_TRAIN = ("tp", "pp", "vpp", "dp", "cp", "ep", "moe_tp", "micro_batch", "schedule", "zero_stage", "recompute")
_DEGREES = ("tp", "pp", "dp", "ep")
_FUNCTIONS = ("colocated", "prefill", "decode", "attention")

AXES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "serve": {
        "mode": ("modes",),
        **{axis: (axis,) for axis in (*_DEGREES, "max_batch", "chunk_tokens")},
        **{f"role.{role}.{axis}": ("roles", role, axis) for role in _FUNCTIONS for axis in _DEGREES},
    },
    "train": {
        **{axis: ("search", axis) for axis in _TRAIN},
        **{f"role.job.{axis}": ("search", axis) for axis in _TRAIN},
    },
    "rl": {
        "arrangement": ("arrangements",),
        "synchrony": ("synchrony",),
        "role.rollout.tp": ("generation_tp",),
        "role.actor.tp": ("training_tp",),
        "role.actor.pp": ("training_pp",),
    },
    "place": {"tp": ("tp",), "pp": ("pp",)},
    "experts": {"ep": ("ep",), "slots_per_rank": ("slots_per_rank",)},
}
"""The path in a problem's `options` that lists the values of each axis, by kind."""
_CHOSEN = {"speech": ("encode", "prefill", "decode", "vocode"), "images": ("encode", "prefill", "decode")}
"""Stages of the pools of a workflow, by the option that asks for them."""
_SINGLE = frozenset({("experts", "ep"), ("experts", "slots_per_rank")})
"""Axes whose option is one value and no list."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A value that an axis is to have."""

    axis: str
    value: int | str
    path: tuple[str, ...]
    single: bool = False  # whether the option is one value and no list

    @property
    def text(self) -> str:
        """As people write it."""
        return f"{self.axis}={self.value}"


def axes_of(problem: Problem) -> Mapping[str, tuple[str, ...]]:
    """The axes of a kind; of a workflow its stages, by the names that they have, and their servers."""
    return _stages_of(problem.options) if problem.kind == "workflow" else AXES.get(problem.kind, {})


def _stages_of(options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    pools = next((stages for form, stages in _CHOSEN.items() if options.get(form) is not None), ())
    own = () if options.get("servers") or options.get("engines") else options.get("stages") or ()
    axes: dict[str, tuple[str, ...]] = {}
    for name in (*pools, *(str(stage["name"]) for stage in own)):
        axes[name] = ("choices", name, "options")
        axes[f"{name}.servers"] = ("choices", name, "servers")
    return axes


def read_wishes(
    texts: Sequence[str], problem: Problem, flag: str, functions: Mapping[str, str] | None = None
) -> list[Wish]:
    """Wishes from texts such as `tp=4,pp=1`; `functions` gives that of a role by its name.

    Raises PlannerError for an axis that plans of the kind do not have, and for what is no `axis=value`.
    """
    wishes = [_wish(part, problem, flag, functions or {}) for text in texts for part in text.split(",")]
    paths = [wish.path for wish in wishes if wish.single]
    for wish in wishes:
        if paths.count(wish.path) > 1:
            raise PlannerError(
                f"`{wish.axis}` has one value", where=flag, hint=f"write for example `{flag} {wish.text}`"
            )
    return wishes


def _fleet_wish(text: str, flag: str) -> Wish:
    """Nodes of a job of a day, `chat=12` or `chat@00:00-02:00=12`; whether there is such a job its options say."""
    axis, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not axis or not (value.isascii() and value.isdigit()):
        what = f"`{text}` gives no job a number of nodes"
        raise PlannerError(what, where=flag, hint=f"write for example `{flag} chat=12` or `{flag} chat@00:00-02:00=12`")
    return Wish(axis, int(value), ("fixed", axis), single=True)


def _wish(text: str, problem: Problem, flag: str, functions: Mapping[str, str]) -> Wish:
    if problem.kind == "fleet":
        return _fleet_wish(text, flag)
    kind, known = problem.kind, axes_of(problem)
    if not known:
        what = f"plans of kind `{kind}`"
        if kind == "workflow":
            what = "schedules of graphs that run once"
        raise PlannerError(
            f"{what} have no axes whose values can be fixed", where=flag, hint="change the problem: `--set options...`"
        )
    axis, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not axis or not value:
        raise PlannerError(f"`{text}` is no `axis=value`", where=flag, hint=f"write for example `{flag} tp=4`")
    name = axis
    head, _, rest = axis.partition(".")
    if head == "role":
        role, _, field = rest.partition(".")
        name = f"role.{functions.get(role, role)}.{field}"
    if name not in known:
        listing = f"the axes are {', '.join(f'`{each}`' for each in known)}"
        raise PlannerError(
            f"unknown axis `{axis}`", where=flag, hint=did_you_mean(axis, list(known), otherwise=listing)
        )
    whole = value.isascii() and value.isdigit()
    return Wish(axis, int(value) if whole else value, known[name], (kind, name) in _SINGLE)


def with_wishes(options: Mapping[str, JsonValue], wishes: Sequence[Wish]) -> dict[str, JsonValue]:
    """The options with the values that were wished for and no others; wishes for one axis are values of it."""
    changed: dict[str, Any] = dict(options)
    for path in dict.fromkeys(wish.path for wish in wishes):
        values = [wish.value for wish in wishes if wish.path == path]
        single = any(wish.single for wish in wishes if wish.path == path)
        changed = placed(changed, path, values[0] if single else values)
    return changed


def placed(options: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:  # noqa: ANN401 - parsed JSON
    """The options with a value at a path."""
    head, *rest = path
    inner = options.get(head)
    below = placed(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value
    return {**options, head: below}


def wished(resolved: Resolved, wishes: Sequence[Wish], where: str) -> Resolved:
    """The problem whose options are these wishes; raises PlannerError at `where` for values that the kind refuses."""
    from planner.api import with_options

    with errors_at(where):
        return with_options(resolved, with_wishes(resolved.problem.options, wishes))


def fixed(resolved: Resolved, texts: Sequence[str], flag: str = "--fix") -> Resolved:
    """The problem with parts of its plan fixed by hand.

    Raises PlannerError for unknown axes and for values that the kind refuses, Infeasible for those that its rules
    forbid.
    """
    wishes = read_wishes(texts, resolved.problem, flag)
    changed = wished(resolved, wishes, f"{flag} {','.join(texts)}")
    rules = find_kind(resolved.problem.kind).rules_against(changed)
    if rules:
        limit = f"{', '.join(stated_wishes(wishes))}: {', '.join(rules)}"
        raise Infeasible([{"limit": limit, "nearest": ""}], proved=True)
    return changed


def roles_by_name(roles: Sequence[Any]) -> dict[str, str]:
    """The function of each role of a plan."""
    return {role.name: role.function for role in roles}


def unfixed(resolved: Resolved, options: Mapping[str, JsonValue]) -> Resolved:
    """The problem with other options, not validated again."""
    return replace(resolved, problem=resolved.problem.model_copy(update={"options": dict(options)}))


def stated_wishes(wishes: Sequence[Wish]) -> Iterator[str]:
    """The texts of wishes, each once."""
    yield from dict.fromkeys(wish.text for wish in wishes)
