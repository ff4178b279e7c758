"""What an artifact decides, in the form in which summaries are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX_TIERS = "prefix_tiers"  # of a role that sets any up: memory beside the device
QUANTIZATION = "quantization"  # of a role that makes its weights of another format: the engine's name for it
UNPRICED = "unpriced"  # of a role: flags that change its times or memory, and that no plan has a field for
AHEAD = "async_scheduling"  # of a role whose settings say whether its scheduler forms a step ahead
UNREAD = "unread"  # of a role: flags that may change its times a little, such as kernels
PLANS_ALONE = (AHEAD, UNREAD)  # of a role, for its plan alone
RELEASE = "release"  # of the engine of a deployment that names it, beside the fields
ROLE_ORDER = ("prefill", "decode", "colocated")


@dataclass(frozen=True)
class Reading:
    """What was read: `fields` in the order of a summary, and beside them what the text leaves open or only suggests.

    `unresolved` are names of variables (or of settings) that some field waits for; `findings` are contradictions that
    stand in the text itself; `guesses` rest on names and are no evidence; `beside` is what plans need and summaries
    have no field for, such as what communication overlaps.
    """

    fields: Mapping[str, Any]
    unresolved: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    guesses: tuple[str, ...] = field(default=())
    beside: Mapping[str, Any] = field(default_factory=dict)

    def summary(self) -> dict[str, Any]:
        """The fields, then `unresolved`, `audit` and, where there are any, `guesses`."""
        rest = {"guesses": list(self.guesses)} if self.guesses else {}
        fields = dict(self.fields)
        if "roles" in fields:
            fields["roles"] = [{k: v for k, v in role.items() if k not in PLANS_ALONE} for role in fields["roles"]]
        return fields | {"unresolved": list(self.unresolved), "audit": list(self.findings)} | rest
