"""Fault traces: sampled from fault classes by a seed, read and written as CSV.

Columns of a file: time_s, name of the class, what it takes (process, node, rack), nodes taken, copied (1 where every
shard had a copy left), detect_s, repair_s.
"""

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner.arrays import Floats
from planner.documents.files import read_text
from planner.errors import PlannerError
from planner.reliability.faults import FaultClass, JobMachines, Takes
from planner.reliability.tiers import State

MOST_FAULTS = 10_000_000


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a trace."""

    time_s: float
    name: str
    takes: Takes
    nodes: int
    copied: bool
    detect_s: float
    repair_s: float

    @property
    def fault_class(self) -> FaultClass:
        """The class as if it were the only fault; its rate is not known from one."""
        return FaultClass(self.name, self.takes, 0.0, self.detect_s, self.repair_s)


def generate(
    faults: Sequence[FaultClass], fleet: JobMachines, state: State, duration_s: float, *, seed: int, shape: float = 1.0
) -> list[Fault]:
    """Faults of a job over `duration_s`, in order of time.

    Every node is a renewal process of its own for each class that takes nodes, every job for the others; gaps are
    Weibull distributed of this `shape` (1: without memory; below 1: faults come in bursts), after a start in the
    middle of a gap. Repair times are exponential.
    """
    rng = np.random.default_rng(seed)
    expected = sum(fault.rate_per_gpu_s for fault in faults) * fleet.num_gpus * duration_s
    if expected > MOST_FAULTS or shape <= 0.0:
        raise PlannerError(f"a trace of about {expected:.3g} faults", hint="ask for a shorter time or fewer faults")
    trace: list[Fault] = []
    for fault in faults:
        sources = 1 if fault.takes is Takes.PROCESS else max(1, fleet.num_nodes // fleet.nodes_taken(fault.takes))
        gap_s = sources / (fault.rate_per_gpu_s * fleet.num_gpus) if fault.rate_per_gpu_s else math.inf
        for time_s in _times(rng, sources, gap_s, duration_s, shape):
            repair_s = float(rng.exponential(fault.repair_s)) if fault.repair_s else 0.0
            copied = bool(rng.random() < state.kept(fault.takes))
            nodes = fleet.nodes_taken(fault.takes)
            trace.append(Fault(float(time_s), fault.name, fault.takes, nodes, copied, fault.detect_s, repair_s))
    return sorted(trace, key=lambda fault: fault.time_s)


def _times(rng: np.random.Generator, sources: int, gap_s: float, duration_s: float, shape: float) -> Floats:
    """Arrival times of `sources` renewal processes of mean gap `gap_s`, all together."""
    if shape == 1.0:
        return rng.uniform(0.0, duration_s, rng.poisson(sources * duration_s / gap_s))
    scale_s = gap_s / math.gamma(1.0 + 1.0 / shape)
    now_S = rng.uniform(size=sources) * scale_s * _length_biased(rng, sources, shape)
    arrivals = []
    while np.any(now_S < duration_s):
        now_S = now_S[now_S < duration_s]
        arrivals.append(now_S)
        now_S = now_S + scale_s * rng.weibull(shape, len(now_S))
    return np.concatenate(arrivals) if arrivals else np.zeros(0)


def _length_biased(rng: np.random.Generator, count: int, shape: float) -> Floats:
    """Weibull gaps as an observer meets them who comes any time: x^shape is Gamma(1 + 1/shape), long ones more often.

    The rest of such a gap is uniform over it, so a process that starts in its middle is stationary.
    """
    gaps: Floats = rng.gamma(1.0 + 1.0 / shape, size=count) ** (1.0 / shape)
    return gaps


def to_csv(trace: Sequence[Fault]) -> str:
    """The trace as text of a CSV file."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in fields(Fault)])
    for fault in trace:
        row = (f"{fault.time_s:.3f}", fault.name, fault.takes, fault.nodes, int(fault.copied))
        writer.writerow((*row, f"{fault.detect_s:.3f}", f"{fault.repair_s:.3f}"))
    return out.getvalue()


def load(path: str) -> list[Fault]:
    """The faults of a CSV file; PlannerError where it cannot be read."""
    return read_csv(read_text(path, hint="draw a trace with `planner faults trace`"), where=path)


def read_csv(text: str, *, where: str) -> list[Fault]:
    """The faults of a CSV file in order of time; PlannerError names the line and the column that is wrong."""
    reader = csv.DictReader(io.StringIO(text))
    wanted = [field.name for field in fields(Fault)]
    missing = [name for name in wanted if name not in (reader.fieldnames or [])]
    if missing:
        raise PlannerError(f"no column `{missing[0]}`", where=where, hint=f"the columns are {', '.join(wanted)}")
    trace = [_fault(row, f"{where}:{line}") for line, row in enumerate(reader, start=2)]
    return sorted(trace, key=lambda fault: fault.time_s)


def _fault(row: dict[str, str | None], where: str) -> Fault:
    takes = row["takes"] or ""
    if takes not in list(Takes):
        raise PlannerError(f"a fault takes `{takes}`", where=where, hint=f"write one of {', '.join(Takes)}")
    times = [_number(row, name, where) for name in ("time_s", "detect_s", "repair_s")]
    nodes = int(_number(row, "nodes", where))
    return Fault(times[0], row["name"] or "", Takes(takes), nodes, row["copied"] == "1", times[1], times[2])


def _number(row: dict[str, str | None], name: str, where: str) -> float:
    text = row[name]
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0.0):
        raise PlannerError(f"column `{name}` holds {text!r}", where=where, hint="write a number that is not negative")
    return value


def classes_of(trace: Sequence[Fault], fleet: JobMachines) -> tuple[FaultClass, ...]:
    """The classes of the faults of a trace, with their mean rates and times."""
    duration_s = max((fault.time_s for fault in trace), default=0.0)
    of_class: dict[tuple[str, Takes], list[Fault]] = {}
    for fault in trace:
        of_class.setdefault((fault.name, fault.takes), []).append(fault)
    return tuple(
        FaultClass(
            name,
            takes,
            len(faults) / duration_s / fleet.num_gpus,
            sum(fault.detect_s for fault in faults) / len(faults),
            sum(fault.repair_s for fault in faults) / len(faults),
        )
        for (name, takes), faults in of_class.items()
    )
