"""Names of plans, roles and nodes as clusters take them."""

import hashlib
import re

from planner.emit.options import LABEL
from planner.errors import PlannerError

_OTHER = re.compile(r"[^a-z0-9]+")
_HOST = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?")


def label_of(name: str, longest: int) -> str:
    """`name` as a DNS label that starts with a letter; what had to change leaves a digest, so that no two are one."""
    plain = _OTHER.sub("-", name.lower()).strip("-")
    if plain == name and len(plain) <= longest and plain[:1].isalpha():
        return plain
    mark = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{('p-' + plain if not plain[:1].isalpha() else plain)[: longest - 7].strip('-')}-{mark}"


def require_host(name: str) -> str:
    """The name of a node as Kubernetes knows it; raises PlannerError for one that it could not have."""
    if not _HOST.fullmatch(name) or not all(LABEL.fullmatch(part) for part in name.split(".")):
        raise PlannerError(
            f"node name `{name}` is made of no DNS labels",
            where="inputs.cluster.pools",
            hint="write `node_names` as `kubectl get nodes` shows them",
        )
    return name
