"""What the problem of a day says: windows, nodes in reserve, and jobs with what they are worth."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from planner.documents.units import FRACTION, TIME_S, clock
from planner.errors import PlannerError
from planner.kinds.fleet.beside_options import ElasticSpec, OpportunisticSpec, SharedSpec, require_own_names
from planner.schema.base import Spec, refuse
from planner.schema.errors import LABEL
from planner.schema.fields import Count, Name, Positive

SLOT_S = 600.0  # of the rates that are read off a trace
ELASTIC = "elastic"  # the name under which elastic jobs have nodes together
Nodes = Annotated[int, Field(ge=0)]
Usd = Annotated[float, Field(ge=0)]


class DayLoadSpec(Spec):
    """Requests of a day: rates of equal slots, or a trace that they are counted in, at each of some levels."""

    rates_per_s: tuple[Annotated[float, Field(ge=0)], ...] | None = Field(
        default=None, description="of equal slots of the whole day, one or more to a window"
    )
    trace: Name | None = Field(default=None, description="requests of the day, counted by 10 minutes")
    scale: Positive = Field(default=1.0, description="by which all rates are multiplied")
    levels: tuple[Positive, ...] = Field(
        default=(1.0,), description="factors of days that are as likely as one another, such as [0.8, 1.0, 1.2]"
    )

    @model_validator(mode="after")
    def one_form(self) -> "DayLoadSpec":
        if (self.rates_per_s is None) == (self.trace is None):
            raise refuse("a load of a day is either `rates_per_s` or `trace`", "give one of the two")
        if (self.rates_per_s is not None and not self.rates_per_s) or not self.levels:
            raise refuse("a load of a day without rates or levels", "give one at least")
        return self


class StatedRateSpec(Spec):
    """What a job makes of a number of nodes, where it is stated."""

    nodes: Count
    units_per_hour: Annotated[float, Field(ge=0)]
    pool: Name | None = Field(default=None, description="of these nodes; of every pool of the job if absent")


class JobSpec(Spec):
    """A job of the day: a problem of its own kind or a stated curve, and what its work is worth."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {
        "deadline": ("deadline_s", TIME_S),
        "start_up": ("start_up_s", TIME_S),
        "safety": ("safety", FRACTION),
    }
    name: Annotated[str, Field(pattern=LABEL)] = Field(description="lower-case letters, digits and `-`")
    problem: Name | dict[str, JsonValue] | None = Field(
        default=None, description="path of a problem of kind serve, train or rl, or such a problem; its cluster is ours"
    )
    curve: tuple[StatedRateSpec, ...] | None = Field(
        default=None, description="units an hour by number of nodes, in place of a problem"
    )
    nodes: tuple[Count, ...] | None = Field(
        default=None, description="numbers of nodes that it can have beside none; multiples of `unit_nodes` if absent"
    )
    unit_nodes: Count = Field(default=1, description="of serving, nodes of one copy of the plan")
    least_nodes: Nodes = Field(default=0, description="that it has in every window")
    level: Literal["static", "verified"] = Field(
        default="static", description="of serving, what judges the plan of a copy: formulas, or simulation"
    )
    usd_per_unit: Usd | None = Field(
        default=None, description="worth of a request served, a thousand million tokens trained, an iteration of RL"
    )
    usd_per_missing: Usd = Field(default=0.0, description="cost of a unit of load not served, of the target not made")
    load: DayLoadSpec | None = Field(default=None, description="what there is to serve; no more is worth anything")
    safety: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.0, description="share of what a serving plan serves that is kept free"
    )
    target: Positive | None = Field(default=None, description="units wanted by the deadline; no more is worth anything")
    deadline_s: Positive | None = Field(default=None, description="from the start of the day; its end when absent")
    start_up_s: Annotated[float, Field(ge=0)] = Field(default=0.0, description="in which nodes that arrive do nothing")
    restarts: Literal["nodes", "job"] | None = Field(
        default=None, description="what starts up after a change: nodes that arrive (serving), or the whole job"
    )
    least_windows: Count = Field(default=1, description="that it keeps a number of nodes")
    nodes_before: Nodes = Field(default=0, description="that it had before the day, of the first of its pools")
    pools: tuple[Name, ...] | None = Field(
        default=None, min_length=1, description="that it may run on, one at a time; all if absent"
    )
    shared: SharedSpec | None = Field(default=None, description="that opportunistic jobs may run on its GPUs")

    @model_validator(mode="after")
    def whole(self) -> "JobSpec":
        if (self.problem is None) == (self.curve is None):
            raise refuse("a job is either a `problem` or a `curve`", "give one of the two")
        if self.usd_per_unit is None:
            raise refuse(f"job `{self.name}` has no value", "write `usd_per_unit:`, what a unit of its work is worth")
        if self.load is not None and self.target is not None:
            raise refuse(f"job `{self.name}` has a load and a target", "keep one of the two", "target")
        if self.curve is not None:
            self._require_rising(self.curve)
        return self

    def _require_rising(self, curve: tuple[StatedRateSpec, ...]) -> None:
        if not curve:
            raise refuse(f"the curve of job `{self.name}` is empty", "give units an hour by number of nodes", "curve")
        own = [[each for each in curve if each.pool == pool] for pool in dict.fromkeys(each.pool for each in curve)]
        for fewer, more in (step for points in own for step in pairwise(points)):
            if more.nodes <= fewer.nodes:
                what = f"the curve of job `{self.name}` has {more.nodes} nodes after {fewer.nodes}"
                raise refuse(what, "give each number of nodes once, from the fewest up", "curve")
            if more.units_per_hour < fewer.units_per_hour:
                raise refuse(
                    f"job `{self.name}` makes {more.units_per_hour:g} units an hour on {more.nodes} nodes, and "
                    f"{fewer.units_per_hour:g} on {fewer.nodes}: a curve never falls with more nodes",
                    "leave out the numbers of nodes that make less than fewer do",
                    "curve",
                )


class FleetOptions(Spec):
    """A day of windows, and the jobs that share the nodes in it."""

    quantities: ClassVar[dict[str, tuple[str, dict[str, float]]]] = {"window": ("window_s", TIME_S)}
    window_s: Positive = Field(default=3600.0, description="between two changes")
    windows: Annotated[int, Field(ge=1, le=288)] = 24
    reserve_nodes: Nodes = Field(default=0, description="of every pool, that no job has, for those that fail")
    jobs: Annotated[tuple[JobSpec, ...], Field(max_length=1024)] = ()
    elastic: ElasticSpec | None = Field(default=None, description="jobs of logical workers, on nodes left to them")
    opportunistic: OpportunisticSpec | None = Field(default=None, description="jobs on GPUs of jobs that are `shared`")
    fixed: dict[Name, Nodes] = Field(
        default={}, description="nodes held by hand, of a job all day or in hours: `chat`, `chat@07:00-09:30`"
    )
    without: tuple[Name, ...] = Field(
        default=(), description="numbers of nodes that jobs do without, such as `chat/14`"
    )

    @classmethod
    def located(cls, options: dict[str, Any], base: Path) -> dict[str, Any]:
        """Problems and traces read from their files, so that a plan holds all that it is about."""
        return {**options, "jobs": [_embedded(job, base) for job in options.get("jobs", ())]}

    @model_validator(mode="after")
    def jobs_fit(self) -> "FleetOptions":
        own = [job.name for job in self.jobs]
        beside = [job.name for job in self.opportunistic.jobs] if self.opportunistic else []
        require_own_names("opportunistic", beside)
        twice = next((name for name in own if own.count(name) > 1 or name in beside), None)
        if twice is not None:
            raise refuse(f"two jobs are called `{twice}`", "give each a name of its own", "jobs")
        if self.elastic is None and not own:
            raise refuse("a day without jobs", "write `jobs:` or `elastic:`", "jobs")
        if self.elastic is not None and (ELASTIC in own or self.elastic.start_up_s >= self.window_s):
            what = f"a job is called `{ELASTIC}`" if ELASTIC in own else "elastic jobs start up for a window and more"
            raise refuse(what, "give it another name" if ELASTIC in own else "make windows longer", "jobs")
        if self.opportunistic is not None and not any(job.shared for job in self.jobs):
            raise refuse(
                "no job leaves anything to opportunistic ones",
                "write `shared: {busy: 60%, free_memory: 20GB}` in the jobs whose GPUs they may use",
                "opportunistic",
            )
        self._require_contention()
        for job in self.jobs:
            if job.start_up_s >= self.window_s:
                raise refuse(
                    f"job `{job.name}` starts up for {job.start_up_s:g} s, and windows are {self.window_s:g} s",
                    "make windows longer than every start-up",
                    "window_s",
                )
            deadline = self.deadline_windows(job)
            if deadline is not None and (deadline > self.windows or deadline < 1 or deadline % 1.0):
                raise refuse(
                    f"the deadline of job `{job.name}`, {job.deadline_s:g} s, is no end of a window",
                    f"give a multiple of {self.window_s:g} s up to {self.window_s * self.windows:g} s",
                    "jobs",
                )
            if job.load is not None and job.load.rates_per_s and len(job.load.rates_per_s) % self.windows:
                raise refuse(
                    f"job `{job.name}` has {len(job.load.rates_per_s)} rates for {self.windows} windows",
                    f"give {self.windows} or a multiple of them, as many to every window",
                    "jobs",
                )
        return self

    def _require_contention(self) -> None:
        """Raises where the contention of an opportunistic job is listed for other things than the shared jobs are."""
        hosts = list(dict.fromkeys(job.shared.like or job.name for job in self.jobs if job.shared is not None))
        for job in self.opportunistic.jobs if self.opportunistic else ():
            listed = job.contention if isinstance(job.contention, dict) else dict.fromkeys(hosts, 0.0)
            odd = next((name for name in [*listed, *hosts] if name not in listed or name not in hosts), None)
            if odd is not None:
                what = f"the contention of `{job.name}` is {'listed' if odd in listed else 'not listed'} for `{odd}`"
                hint = f"list it for {', '.join(f'`{name}`' for name in hosts)}, or write one share for all"
                raise refuse(what, hint, "opportunistic")

    @model_validator(mode="after")
    def held(self) -> "FleetOptions":
        names = [job.name for job in self.jobs] + ([ELASTIC] if self.elastic else [])
        for key in self.fixed:
            job, _, hours = key.partition("@")
            if job not in names or (hours and not self.windows_of(hours)):
                known = ", ".join(f"`{name}`" for name in names)
                hint = (
                    f"write a job ({known}), or with hours from one change to another, such as "
                    f"`{names[0]}@{clock(0.0)}-{clock(min(2, self.windows) * self.window_s)}`"
                )
                raise refuse(f"`{key}` is no job in hours of the day", hint, "fixed")
        for text in self.without:
            job, slash, nodes = text.rpartition("/")
            if not slash or job not in names or not nodes.isdigit():
                raise refuse(f"`{text}` is no job with nodes", f"write for example `{names[0]}/4`", "without")
        return self

    def windows_of(self, hours: str) -> range:
        """The windows of `07:00` or `07:00-09:30`; none where these are no hours from one change to another."""
        first, dash, last = hours.partition("-")
        low, high = _minutes(first), _minutes(last) if dash else None
        if low is None or (dash and high is None):
            return range(0)
        start = 60.0 * low / self.window_s
        end = start + 1 if high is None else 60.0 * high / self.window_s
        if start % 1.0 or end % 1.0 or end > self.windows:
            return range(0)
        return range(round(start), round(end))

    def nodes_held(self, job: str) -> list[int | None]:
        """The nodes that a job is to have by window, None where it is free; what is said of hours counts first."""
        held: list[int | None] = [self.fixed.get(job)] * self.windows
        for key, nodes in self.fixed.items():
            name, at, hours = key.partition("@")
            for window in self.windows_of(hours) if at and name == job else ():
                held[window] = nodes
        return held

    def left_out(self, job: str) -> frozenset[int]:
        """Numbers of nodes that a job does without."""
        split = (text.rpartition("/") for text in self.without)
        return frozenset(int(nodes) for name, _, nodes in split if name == job)

    def deadline_windows(self, job: JobSpec) -> float | None:
        """Windows before the deadline of a job."""
        return None if job.deadline_s is None else job.deadline_s / self.window_s

    @property
    def window_h(self) -> float:
        return self.window_s / 3600.0


def _minutes(clock: str) -> int | None:
    """Minutes of `07:30`, None where it is no time of the day."""
    hours, colon, minutes = clock.partition(":")
    if not colon or not hours.isdigit() or not minutes.isdigit() or int(minutes) > 59 or int(hours) > 99:
        return None
    return 60 * int(hours) + int(minutes)


def _embedded(job: dict[str, Any], base: Path) -> dict[str, Any]:
    """The job with its problem and the rates of its load in place of the names of files."""
    from planner.documents.read import file_not_found, load_document

    made = dict(job)
    if isinstance(job.get("problem"), str):
        path = base / job["problem"]
        if not path.is_file():
            error = file_not_found(path, otherwise="write the path as seen from the problem of the day")
            what = f"{error.what}, which job `{job.get('name')}` names as its problem"
            raise PlannerError(what, where=error.where, hint=error.hint)
        made["problem"] = load_document(path).data
        base_of_files = path.parent
    else:
        base_of_files = base
    if isinstance(made.get("problem"), dict):
        made["problem"] = with_files(made["problem"], lambda name: str(base_of_files / name))
    load = job.get("load")
    if isinstance(load, dict) and load.get("trace") is not None:
        made["load"] = {
            **{key: value for key, value in load.items() if key != "trace"},
            **_counted(base / load["trace"]),
        }
    return made


def with_files(problem: dict[str, Any], placed: Callable[[str], str]) -> dict[str, Any]:
    """The problem of a job with the names of its files changed: configs of models, traces of lengths and of media."""
    made = dict(problem)
    if isinstance(made.get("models"), dict):
        made["models"] = {key: _placed(spec, "config", placed) for key, spec in made["models"].items()}
    if isinstance(made.get("workloads"), list):
        made["workloads"] = [
            {key: _traced(key, value, placed) for key, value in workload.items()}
            if isinstance(workload, dict)
            else workload
            for workload in made["workloads"]
        ]
    return made


def _traced(key: str, value: Any, placed: Callable[[str], str]) -> Any:  # noqa: ANN401 - parsed, not yet validated
    """A field of a workload with the names of its traces changed."""
    if key in ("input_tokens", "output_tokens", "audio_s"):
        return _placed(value, "trace", placed)
    if key == "images" and isinstance(value, dict) and "count" in value:
        return {**value, "count": _placed(value["count"], "trace", placed)}
    return value


def _placed(spec: Any, key: str, placed: Callable[[str], str]) -> Any:  # noqa: ANN401 - parsed, not yet validated
    if not isinstance(spec, dict) or not isinstance(spec.get(key), str):
        return spec
    return {**spec, key: placed(spec[key])}


def _counted(path: Path) -> dict[str, list[float]]:
    """Requests a second of a trace by slots of a day; those behind it are left out."""
    import numpy as np

    from planner.simulate.requests.traces import read_trace

    slots = round(86_400.0 / SLOT_S)
    arrival_s = read_trace(str(path)).requests().arrival_s
    counts, _ = np.histogram(arrival_s, bins=slots, range=(0.0, 86_400.0))
    return {"rates_per_s": [round(float(count) / SLOT_S, 6) for count in counts]}
