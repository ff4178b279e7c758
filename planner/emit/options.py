"""What whoever launches a plan on a cluster adds to it: images, a namespace, volumes and secrets by their names."""

import re
from dataclasses import dataclass, fields

from planner.errors import PlannerError

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A label of RFC 1123, as Kubernetes names things."""
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]*")
ON_KUBERNETES = ("image", "router_image", "namespace", "model_cache", "token_secret", "gpus")
"""What targets whose pods are written whole take."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """None where nothing was said; raises PlannerError for what no cluster can be told."""

    image: str | None = None  # of the engine or the training program
    router_image: str | None = None
    namespace: str | None = None
    model_cache: str | None = None  # claim of a volume with checkpoints
    token_secret: str | None = None  # secret with the key HF_TOKEN
    gpus: str | None = None  # `counts` of a vendor's resource, or `claims` of dynamic allocation

    def __post_init__(self) -> None:
        for name in ("image", "router_image"):
            value = getattr(self, name)
            if value is not None and not _IMAGE.fullmatch(value):
                raise PlannerError(f"is no container image: `{value}`", where=flag(name), hint="write NAME:TAG")
        for name in ("namespace", "model_cache", "token_secret"):
            require_label(getattr(self, name), flag(name))
        if self.gpus not in (None, "counts", "claims"):
            raise PlannerError(f"found `{self.gpus}`", where=flag("gpus"), hint="write `counts` or `claims`")

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the options that say something."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is not None)


def flag(name: str) -> str:
    """An option as the command line calls it."""
    return f"--{name.replace('_', '-')}"


def require_label(value: str | None, where: str) -> None:
    """Raises PlannerError for a name that Kubernetes would refuse."""
    if value is not None and not LABEL.fullmatch(value):
        raise PlannerError(
            f"is no DNS label: `{value}`", where=where, hint="use up to 63 lower-case letters, digits and `-`"
        )
