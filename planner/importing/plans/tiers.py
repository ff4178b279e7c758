"""Tiers of a deployment as `cache` of its problem: sizes as read, prices and bandwidths as given beside it.

Tiers of a problem are shared by all engines that keep prefixes. Memory of an engine's own is one only where there is
one engine.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.documents.units import format_si
from planner.errors import PlannerError
from planner.importing.plans.question import Question
from planner.importing.records import PREFIX_TIERS, Reading
from planner.importing.tiers import OWN, SHARED, SSD, STORE, UNREAD

WHERE = "--cache"
ORDER = ("host", "ssd", "pool")
NEEDED = {"usd_per_gb_hour": "usd_per_gb_hour=0.001", "bandwidth": "bandwidth=25GB/s"}
SIZE = "size"


def cache_of(reading: Reading, question: Question) -> dict[str, Any] | None:
    """The section `cache` of the problem; None where there is no memory, or nothing was said of it beside.

    Raises PlannerError for what neither says, and for memory that no problem has.
    """
    if not question.cache:
        return None
    sizes = _sizes(reading)
    if not sizes:
        raise PlannerError("the artifact keeps no prefixes beside devices", where=WHERE, hint="leave it out")
    tiers, missing = [], list[str]()
    for name, size in sizes.items():
        given = question.cache.get(name)
        stated = dict(given) if isinstance(given, Mapping) else {}
        size = stated.pop(SIZE, None) or size
        lacking = [example for key, example in NEEDED.items() if key not in stated]
        missing += [f"{name}.{example}" for example in (*([] if size else ["size=512GB"]), *lacking)]
        tiers.append({"name": name, "unit": size, "max_units": 1, **stated})
    if missing:
        what = f"sizes, prices and bandwidths of {', '.join(sizes)} are not all known"
        raise PlannerError(what, where=WHERE, hint=f"add `{','.join(missing)}`")
    others = {key: value for key, value in question.cache.items() if key not in sizes}
    unknown = [name for name in ORDER if name in others]
    if unknown:
        raise PlannerError(f"the artifact has no tier `{unknown[0]}`", where=WHERE, hint=f"it has {', '.join(sizes)}")
    return {"tiers": tiers, **others}


def tier_notes(reading: Reading, question: Question) -> list[str]:
    """What of the memory for prefixes a plan leaves out, by role, and what would have it."""
    notes = []
    for role in _readers(reading):
        tiers = role[PREFIX_TIERS]
        notes += [f"{role['role']}: {what} is not read" for what in tiers.get(UNREAD, ())]
        pairs = (("host", OWN), ("ssd", SSD))
        kept = [f"{name} {format_si(tiers[key], 'B')} a GPU" for name, key in pairs if key in tiers]
        kept += ["a pool"] if STORE in tiers else []
        if kept and not question.cache:
            notes.append(f"{role['role']}: prefixes in {', '.join(kept)} are left out; `--cache` prices them")
    return list(dict.fromkeys(notes))


def _sizes(reading: Reading) -> dict[str, int | None]:
    """Bytes of each tier, all engines together, fastest first; None where nothing says how many."""
    readers = _readers(reading)
    sizes: dict[str, int | None] = {}
    own = [role for role in readers if any(key in role[PREFIX_TIERS] for key in (OWN, SSD))]
    engines = sum(role["replicas"] or 1 for role in own)
    for name, key in (("host", OWN), ("ssd", SSD)):
        parts = [role[PREFIX_TIERS][key] * _gpus(role) for role in readers if key in role[PREFIX_TIERS]]
        if parts:
            sizes[name] = sum(parts)
    if engines > 1 and not all(role[PREFIX_TIERS].get(SHARED) for role in own):
        raise PlannerError(
            f"{engines} engines keep prefixes in memory of their own, and tiers of a problem are shared by all",
            where=WHERE,
            hint="leave `--cache` out, and state what hits as `prefix_hits` of the workload",
        )
    if any(STORE in role[PREFIX_TIERS] for role in readers):
        sizes["pool"] = None
    return sizes


def _readers(reading: Reading) -> Sequence[Mapping[str, Any]]:
    return [role for role in reading.fields["roles"] if role.get(PREFIX_TIERS)]


def _gpus(role: Mapping[str, Any]) -> int:
    return (role["replicas"] or 1) * (role["gpus_per_replica"] or 1)
