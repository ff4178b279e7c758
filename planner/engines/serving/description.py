"""What of a serving engine is data.

Its rules by release stand in `planner/engines/NAME.yaml`, what it sets by itself in `planner/engines/settings.yaml`,
and the code that writes for it in `planner/emit/serving/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

SchedulingPolicy = Literal["mixed", "prefill-first"]


@dataclass(frozen=True, slots=True)
class RoleFlags:
    """Flags of a role as its scripts have them: degrees, experts that are spread, and the most of a step."""

    degrees: tuple[str, str, str]  # tp, pp, dp
    experts: str  # with a place for their degree, where the flag takes one
    step: tuple[str, str]  # sequences, tokens


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """An engine as everything that reads or writes its artifacts knows it."""

    name: str  # as problems and plans call it
    title: str  # as its makers write it
    target: str  # of `planner emit`, for its scripts; layouts of experts have a form of this name
    modules: tuple[str, ...]  # of Python, that start it
    policy: SchedulingPolicy  # by which its scheduler makes up a step
    flags: RoleFlags
    settings: Mapping[str, tuple[str, ...]]
    """Names of the settings behind fields of a role, in flags and files alike, with underscores; the usual first."""
    config_flags: tuple[str, ...]  # that name a file of settings
    config_keys: tuple[str, ...]  # settings by which such a file is told from those of other engines
    bench_backend: str  # of `vllm bench serve`, that drives it
    also_named: tuple[str, ...] = ()  # in reports of load generators
    image: str | None = None  # that its makers publish, of a release; None where none is known
    quantises: Mapping[str, str] = field(default_factory=dict)
    """Weight formats that it makes of a checkpoint in bf16 while loading it, and its names for them."""
    unpriced: tuple[str, ...] = ()
    """Settings that change times or memory of a role and that no plan has a field for, with underscores."""
    unread: tuple[str, ...] = ()
    """Settings beside those that may change them: kernels, graphs, schedulers' own rules. No summary lists them."""
    vendors: tuple[str, ...] = ()  # whose GPUs alone it runs on; empty: not bound to any
    reserves: bool = False  # its scheduler admits a request only with room for its whole length
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of metrics that it serves, the newest first; empty where none are known."""
