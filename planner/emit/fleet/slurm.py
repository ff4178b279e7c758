"""Emits a day for Slurm: a daily reservation of nodes for every job and phase, and the jobs' files.

Reservations are named JOB-HH-MM, of several pools JOB-POOL-HH-MM; the account that may use those of a job is
`ACCOUNT_JOB`, or else the job's name.
"""

import re

from planner.emit.documents import commented, plan_title
from planner.emit.fleet.beside import beside_files
from planner.emit.fleet.day import EmittedDay, Phase, clock, job_files, read_day
from planner.emit.registry import EmitTarget
from planner.emit.shell import argument
from planner.plan.schema import Decision, Envelope


def files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """A script that makes the reservations, one that takes them back, and the jobs' files."""
    day, title = read_day(envelope, decision), plan_title(envelope)
    spans = [(job, phase, pool) for phase in day.phases for job in day.jobs for pool in phase.pools[job]]
    head = "#!/bin/bash\n" + commented([title]) + "set -euo pipefail\n"
    made = "".join(_reservation(day, job, phase, pool) for job, phase, pool in spans)
    gone = "".join(f"scontrol delete ReservationName={_name(day, *span)}\n" for span in spans)
    own = {"reserve.sh": head + made, "release.sh": head + gone}
    return own | beside_files(envelope, decision) | dict(job_files(day))


def _name(day: EmittedDay, job: str, phase: Phase, pool: str) -> str:
    """With the pool, where jobs have nodes of several."""
    return f"{job}-{phase.label}" if len(day.gpus_per_node) == 1 else f"{job}-{pool}-{phase.label}"


def _reservation(day: EmittedDay, job: str, phase: Phase, pool: str) -> str:
    """Nodes of one job from the start of a phase to its end, every day."""
    minutes = round((phase.end_s - phase.start_s) / 60.0)
    several = len(day.gpus_per_node) > 1
    partition = f"PARTITION_{re.sub('[^A-Z0-9]', '_', pool.upper())}" if several else "PARTITION"
    account = f'"${{ACCOUNT_{job.upper().replace("-", "_")}:-{job}}}"'
    return (
        f"scontrol create reservation ReservationName={_name(day, job, phase, pool)} "
        f"StartTime={clock(phase.start_s)}:00 Duration={minutes} "
        f"NodeCnt={phase.pools[job][pool]} Accounts={account} Flags=DAILY "
        f'PartitionName="${{{partition}:-{argument(pool, what="pool")}}}"\n'
    )


TARGETS = (EmitTarget("fleet-slurm", "a day as Slurm's daily reservations, and the jobs' files", ("fleet",), files),)
