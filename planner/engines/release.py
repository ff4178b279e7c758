"""What an engine can run in a range of its releases, as typed data.

Rules stand by name; `handover`, `parallelism` and `formats` say what each name means. Every entry names where the
engine says so: file and line of the release that was read, or a page of its documentation.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import PlannerError, did_you_mean

_NUMBER = re.compile(r"v?(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that an engine does not do."""

    name: str
    why: str  # in words that stand alone
    source: str


@dataclass(frozen=True, slots=True)
class Connector:
    """A way of the KV cache from prefill to decode."""

    name: str
    started_by: str  # `prefill` writes, `decode` reads
    roles: Mapping[str, str]  # what the engine calls each side
    config: Mapping[str, str]  # more that both sides are told
    settings: Mapping[str, str]  # environment of both sides where layers keep a recurrent state
    rules: tuple[Rule, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Router:
    """What stands in front of instances, and how it may choose among them."""

    program: str
    policies: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Dispatcher:
    """Kernels that move tokens to the ranks of their experts, and the roles that steps across nodes take them for."""

    name: str
    functions: tuple[str, ...]
    source: str


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """A format of weights by compute capability of NVIDIA's GPUs."""

    loads_from: str  # the least capability with a kernel for it
    multiplies_from: str  # the least whose kernels multiply in it; below, weights alone are stored in it
    below: str  # what the engine runs there
    source: str


@dataclass(frozen=True, slots=True)
class Asynchronous:
    """Whether a scheduler forms its next step while one runs, where nobody says otherwise."""

    default: bool
    off: str  # the flag that has it wait for each step
    source: str


@dataclass(frozen=True, slots=True)
class Release:
    """What an engine can run from `first` up to `before`, as the source of `read` says."""

    engine: str
    title: str
    read: str
    first: str
    before: str
    connectors: tuple[Connector, ...]  # the first that can is taken
    routers: tuple[Router, ...]
    shapes: tuple[Rule, ...]
    drafts: tuple[Rule, ...]
    dispatchers: tuple[Dispatcher, ...]
    weights: Mapping[str, WeightFormat]
    asynchronous: Asynchronous | None  # None: not read

    @property
    def name(self) -> str:
        """Such as `vLLM 0.33`."""
        return f"{self.title} {self.first}"

    def covers(self, version: str | None) -> bool:
        """Whether the rules were read for a version; absent, it is the newest."""
        return version is None or numbers(self.first) <= numbers(version) < numbers(self.before)

    def router(self, program: str, policy: str) -> Router:
        """The router of that program; raises PlannerError where the engine has none, or it has no such policy."""
        for router in self.routers:
            if router.program == program:
                if policy not in router.policies:
                    raise PlannerError(
                        f"`{program}` of {self.name} has no policy `{policy}`",
                        where="emit",
                        hint=did_you_mean(
                            policy, list(router.policies), otherwise=f"take one of {', '.join(router.policies)}"
                        ),
                    )
                return router
        known = [router.program for router in self.routers]
        raise PlannerError(
            f"{self.name} has no router `{program}`",
            where="emit",
            hint=did_you_mean(program, known, otherwise="send requests to the instances themselves"),
        )

    def dispatcher(self, function: str) -> str | None:
        """The kernels for steps of a role across nodes; None leaves the engine's own."""
        return next((kernels.name for kernels in self.dispatchers if function in kernels.functions), None)


def numbers(version: str) -> tuple[int, ...]:
    """The numbers of a release, such as (0, 33, 0); empty where it begins with none."""
    match = _NUMBER.match(version)
    return tuple(map(int, match[1].split("."))) if match else ()


def judged_by(release: Release, version: str | None) -> str | None:
    """In words, that a version is judged by the rules of another one; None where it has its own."""
    if release.covers(version):
        return None
    return (
        f"what {release.title} {version} can run is not known here: it is judged by the rules of {release.read}, the"
        " nearest release whose source was read"
    )
