"""Emits a day for Slurm: a daily reservation of nodes for every job and phase, and the jobs' files.

Reservations are named JOB-HH-MM; the account that may use those of a job is `ACCOUNT_JOB`, or else the job's name.
"""

from planner.emit.documents import commented, plan_title
from planner.emit.fleet.day import EmittedDay, Phase, clock, job_files, read_day
from planner.emit.registry import EmitTarget
from planner.emit.shell import argument
from planner.plan.schema import Decision, Envelope


def files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """A script that makes the reservations, one that takes them back, and the jobs' files."""
    day, title = read_day(envelope, decision), plan_title(envelope)
    spans = [(job, phase) for phase in day.phases for job in day.jobs if phase.nodes[job]]
    head = "#!/bin/bash\n" + commented([title]) + "set -euo pipefail\n"
    made = "".join(_reservation(day, job, phase) for job, phase in spans)
    gone = "".join(f"scontrol delete ReservationName={job}-{phase.label}\n" for job, phase in spans)
    return {"reserve.sh": head + made, "release.sh": head + gone} | dict(job_files(day, containers=False))


def _reservation(day: EmittedDay, job: str, phase: Phase) -> str:
    """Nodes of one job from the start of a phase to its end, every day."""
    minutes = round((phase.end_s - phase.start_s) / 60.0)
    account = f'"${{ACCOUNT_{job.upper().replace("-", "_")}:-{job}}}"'
    return (
        f"scontrol create reservation ReservationName={job}-{phase.label} StartTime={clock(phase.start_s)}:00 "
        f"Duration={minutes} NodeCnt={phase.nodes[job]} Accounts={account} Flags=DAILY "
        f'PartitionName="${{PARTITION:-{argument(day.pool, what="pool")}}}"\n'
    )


TARGETS = (EmitTarget("fleet-slurm", "a day as Slurm's daily reservations, and the jobs' files", ("fleet",), files),)
