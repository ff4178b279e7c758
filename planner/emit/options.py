"""What whoever launches a plan on a cluster adds to it: images, a namespace, volumes and secrets by their names."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

from planner.emit.shell import refuse_unprintable
from planner.errors import PlannerError

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""A label of RFC 1123, as Kubernetes names things."""
_IMAGE = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._/:@-]*")
ON_KUBERNETES = (
    "image",
    "router_image",
    "namespace",
    "model_cache",
    "token_secret",
    "gpus",
    "measure",
    "measure_image",
    "measure_url",
)
"""What targets whose pods are written whole take."""
_URL = re.compile(r"https?://[A-Za-z0-9._:/%~\[\]-]+")
_PLACEMENT = re.compile(
    r"(ExclusiveSlice|ExclusiveTopology)=([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """None where nothing was said; raises PlannerError for what no cluster can be told."""

    image: str | None = None  # of the engine or the training program
    router_image: str | None = None
    namespace: str | None = None
    model_cache: str | None = None  # claim of a volume with checkpoints
    token_secret: str | None = None  # secret with the key HF_TOKEN
    ssh_secret: str | None = None  # of type kubernetes.io/ssh-auth, by which pods of an instance start ranks
    placement: str | None = None  # TYPE=LABEL, where the roles of a set may run
    gpus: str | None = None  # `counts` of a vendor's resource, or `claims` of dynamic allocation
    measure: str | None = None  # the load generator of a job that measures the plan
    measure_image: str | None = None
    measure_url: str | None = None  # where it sends requests
    launcher: str | None = None  # the target whose script the nodes of a job run
    settings: tuple[tuple[str, str], ...] | None = None  # variables of the environment of that script
    arguments: tuple[str, ...] | None = None  # of that script

    def __post_init__(self) -> None:
        for name in ("image", "router_image", "measure_image"):
            value = getattr(self, name)
            if value is not None and not _IMAGE.fullmatch(value):
                raise PlannerError(f"is no container image: `{value}`", where=flag(name), hint="write NAME:TAG")
        for name in ("namespace", "model_cache", "token_secret", "ssh_secret"):
            require_label(getattr(self, name), flag(name))
        if self.placement is not None and not _PLACEMENT.fullmatch(self.placement):
            raise PlannerError(
                f"found `{self.placement}`",
                where=flag("placement"),
                hint="write ExclusiveSlice=LABEL or ExclusiveTopology=LABEL, with a label of nodes",
            )
        if self.gpus not in (None, "counts", "claims"):
            raise PlannerError(f"found `{self.gpus}`", where=flag("gpus"), hint="write `counts` or `claims`")
        if self.measure_url is not None and not _URL.fullmatch(self.measure_url):
            raise PlannerError(
                f"is no address: `{self.measure_url}`", where=flag("measure_url"), hint="write http://HOST"
            )
        for text in (*(value for _, value in self.settings or ()), *(self.arguments or ())):
            refuse_unprintable(text)

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the options that say something."""
        return tuple(field.name for field in fields(self) if getattr(self, field.name) is not None)


def flag(name: str) -> str:
    """An option as the command line calls it."""
    return {"settings": "--env", "arguments": "--argument"}.get(name, f"--{name.replace('_', '-')}")


def read_settings(entries: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Variables from `NAME=VALUE`; raises PlannerError for other text, names given twice, and tokens in the open."""
    settings: dict[str, str] = {}
    for entry in entries:
        name, equals, value = entry.partition("=")
        if not equals or not _VARIABLE.fullmatch(name) or name in settings:
            what = "is given twice" if name in settings else "is no NAME=VALUE"
            raise PlannerError(f"`{entry}` {what}", where=flag("settings"), hint="write each NAME=VALUE once")
        if name == "HF_TOKEN":
            hint = f"name the secret that holds it: `{flag('token_secret')} NAME`"
            raise PlannerError(
                "a token would stand in the file as it is", where=f"{flag('settings')} HF_TOKEN", hint=hint
            )
        settings[name] = value
    return tuple(settings.items())


def require_label(value: str | None, where: str) -> None:
    """Raises PlannerError for a name that Kubernetes would refuse."""
    if value is not None and not LABEL.fullmatch(value):
        raise PlannerError(
            f"is no DNS label: `{value}`", where=where, hint="use up to 63 lower-case letters, digits and `-`"
        )
