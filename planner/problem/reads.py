"""What a kind of plan reads of a problem and of the limits of a solve; everything else that a user set is refused."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from pydantic import JsonValue

from planner.errors import PlannerError
from planner.problem.schema import Problem
from planner.progress import Limits
from planner.schema.base import Path, Spec

FLAGS = {
    "time_limit_s": "--time-limit",
    "gap": "--gap",
    "seed": "--seed",
    "threads": "--threads",
    "backend": "--backend",
}
"""Limits of a solve and their flags; `seed` is that of the problem."""

WHOLE = frozenset({"schema", "kind", "name", "models.*.name", "models.*.config", "models.*.contents", "options"})
"""Fields that all kinds read."""

NODES = frozenset(
    f"cluster.pools.*.{name}"
    for name in ("gpu", "name", "nodes", "gpus", "gpus_per_node", "node_names", "out_of_service")
)
"""Which devices there are; what joins them and what they cost is read by some kinds."""

WIRING = frozenset(f"cluster.pools.*.topology.{name}" for name in ("racks", "uplink_bytes_per_s", "scale_up"))
"""Racks, and groups of nodes in one scale-up domain; rails and circuits are read by some kinds of these."""

NETWORK = frozenset(f"cluster.pools.*.{name}" for name in ("fabric", "nic_bandwidth_bytes_per_s", "oversubscription"))


@dataclass(frozen=True, slots=True)
class Unread:
    """A field of the problem as a dotted path, or a limit of `FLAGS`, that has no effect here, and what to do.

    Of the kind's own `options` only those that are given are named.
    """

    name: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Reads:
    """`fields` are dotted paths with `*` for any key or index; what stands below one of them is read too."""

    plans: str  # such as `training plans`
    fields: frozenset[str]
    limits: frozenset[str]  # of `FLAGS`
    instead: dict[str, str] = field(default_factory=dict)  # what to do, by a field or limit that is not read
    own_defaults: frozenset[str] = frozenset()  # fields whose default is not the schema's: what is written counts
    unread: Callable[[Problem], Iterable[Unread]] = lambda problem: ()  # what other fields leave without effect
    models: Callable[[Problem], bool] = lambda problem: True  # whether it needs any, where plans read them
    pools: Callable[[Problem], bool] = lambda problem: True  # whether it needs any

    def reads(self, name: str) -> bool:
        """Whether plans depend on a field of the problem, by its dotted path, or on a limit of `FLAGS`."""
        return name in self.limits or any(above in self.fields for above in _prefixes(name))

    def remedy(self, name: str) -> str:
        """What to do about a field or limit that is not read."""
        return next((self.instead[above] for above in _prefixes(name) if above in self.instead), "")


def refuse_unread(reads: Reads, problem: Problem, where: Callable[[Path], str]) -> None:
    """Raises PlannerError for the first field of the problem that is set, and that its plan does not depend on."""
    for error in unread_fields(reads, problem, where, as_written=True):
        raise error


def unread_fields(
    reads: Reads, problem: Problem, where: Callable[[Path], str], *, as_written: bool = False
) -> Iterator[PlannerError]:
    """An error for every field of the problem that is set, and that its plan does not depend on.

    Of a problem `as_written`, and not as a plan carries it, with defaults filled in, defaults of the schema that
    are not those of the kind count too.
    """
    idle = {unread.name: unread for unread in reads.unread(problem)}
    for path in (*stated(problem), *(_as_default(reads, problem) if as_written else ())):
        name = pattern(path)
        place = where(path)
        written = place.rpartition(": ")[2]
        if not reads.reads(name):
            hint = reads.remedy(name) or f"remove `{written}`"
            yield PlannerError(f"{reads.plans} do not read `{written}`", where=place, hint=hint)
            continue
        unread = next((idle[above] for above in _prefixes(name) if above in idle), None)
        if unread is not None:
            yield PlannerError(f"`{written}` has no effect {unread.why}", where=place, hint=unread.remedy)
    for name, unread in idle.items():
        if name.startswith("options."):
            place = where(tuple(int(part) if part.isdigit() else part for part in name.split(".")))
            yield PlannerError(f"`{name}` has no effect {unread.why}", where=place, hint=unread.remedy)


def _as_default(reads: Reads, problem: Problem) -> Iterator[Path]:
    """What is written as the schema has it by default, in fields of which the kind has another default."""
    for name in sorted(reads.own_defaults):
        section, key = name.split(".")
        spec = getattr(problem, section)
        if key in spec.model_fields_set and getattr(spec, key) == type(spec).model_fields[key].default:
            yield section, key


def idle_options(options: JsonValue, *names: str, why: str, above: str = "options") -> Iterator[Unread]:
    """Those of the options called `names` that are given, and without effect."""
    given = [name for name in names if isinstance(options, dict) and options.get(name) is not None]
    return (Unread(f"{above}.{name}", why, f"remove `{name}`") for name in given)


def refuse_unread_limits(reads: Reads, problem: Problem, limits: Limits) -> None:
    """Raises PlannerError for the first limit of the solve that is given, and that solving `problem` does not read."""
    idle = {unread.name: unread for unread in reads.unread(problem)}
    usual = Limits(seed=problem.seed if limits.seed == problem.seed else None)
    for name, flag in FLAGS.items():
        if getattr(limits, name) == getattr(usual, name):
            continue
        if not reads.reads(name):
            hint = reads.remedy(name) or f"leave `{flag}` out"
            raise PlannerError(f"{reads.plans} do not read `{flag}`", where=flag, hint=hint)
        if name in idle:
            raise PlannerError(f"`{flag}` has no effect {idle[name].why}", where=flag, hint=idle[name].remedy)


def stated(spec: Spec, path: Path = (), *, given: bool = False) -> Iterator[Path]:
    """Paths of the fields that were given a value other than their default, which changes nothing, in the order of the
    schema, by SI names; `options` as a whole. Of what is absent by default (`given`) every value counts."""
    for name, about in type(spec).model_fields.items():
        value = getattr(spec, name)
        usual = about.get_default(call_default_factory=True)
        if name in spec.model_fields_set and (given or isinstance(value, Spec) or value != usual):
            yield from _below(value, (*path, about.alias or name), given=usual is None)
    yield from ((*path, name) for name, value in (spec.model_extra or {}).items() if value is not None)


def _below(value: object, path: Path, *, given: bool = False) -> Iterator[Path]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, tuple) else ()
    inner = [(key, part) for key, part in parts if isinstance(part, Spec)]
    if isinstance(value, Spec):
        yield from stated(value, path, given=given)
    elif inner:
        for key, part in inner:
            yield from stated(part, (*path, key))
    elif value is not None:
        yield path


def pattern(path: Path) -> str:
    """The dotted path with `*` for indices and for the keys of `models`."""
    any_key = {1} if path[:1] == ("models",) else set()
    keys = ("*" if isinstance(key, int) or index in any_key else key for index, key in enumerate(path))
    return ".".join(map(str, keys))


def _prefixes(name: str) -> Iterator[str]:
    """`name` and the dotted paths above it, the longest first."""
    keys = name.split(".")
    return (".".join(keys[:length]) for length in range(len(keys), 0, -1))
