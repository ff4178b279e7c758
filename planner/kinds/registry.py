"""The registry of plan kinds: every package under `planner.kinds` that defines `KIND`.

Adding a kind adds a package and edits nothing here or in another kind.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from planner.errors import unknown_name
from planner.plan.findings import Finding
from planner.plan.schema import Decision, Envelope
from planner.schema.base import Spec

if TYPE_CHECKING:
    from planner.problem.resolve import Resolved
    from planner.progress import Limits


@dataclass(frozen=True, slots=True)
class Kind:
    """What the rest of the program knows of a kind; functions are imported when called."""

    name: str
    purpose: str  # one line
    options: type[Spec]  # schema of the problem's `options`
    decision: type[Decision]  # schema of the plan's `decision`
    check: Callable[[Envelope, Decision], list[Finding]]  # rules beyond those common to all kinds
    proofs: tuple[str, ...] = ()  # methods of proof that `check` derives again by itself
    solve: "Callable[[Resolved, Limits], Envelope] | None" = None  # None: plans of this kind are read, not yet made


@cache
def kind_names() -> tuple[str, ...]:
    """Names of all kinds, sorted."""
    import planner.kinds

    return tuple(sorted(module.name for module in pkgutil.iter_modules(planner.kinds.__path__) if module.ispkg))


def find_kind(name: str, *, where: str = "kind") -> Kind:
    """The kind called `name`; unknown names are refused with the nearest ones."""
    if name not in kind_names():
        known = list(kind_names())
        listing = f"the kinds are {', '.join(f'`{kind}`' for kind in known)}"
        raise unknown_name("kind", name, known, otherwise=listing, where=where)
    kind = importlib.import_module(f"planner.kinds.{name}").KIND
    assert isinstance(kind, Kind)
    return kind
