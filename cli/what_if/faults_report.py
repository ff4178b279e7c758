"""Text output of `planner faults`."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from planner.cli.render.columns import table
from planner.documents.units import format_si, significant

if TYPE_CHECKING:
    from planner.reliability.effective import AtScale, Job
    from planner.reliability.replan import Replanned
    from planner.reliability.tiers import Tier
    from planner.reliability.traces import Fault


def effective_table(outcomes: "Sequence[AtScale]", tokens: float | None) -> str:
    """One row a tier: interval, spares, and where wall-clock time goes."""

    header = ["tier", "snapshot every", "spares", "effective", "pauses", "rework", "restarts", "waiting", "slow"]
    header += ["days"] if tokens else []
    rows = []
    for outcome in outcomes:
        shares = (
            outcome.effective_share,
            outcome.pause_share,
            outcome.rework_share,
            outcome.restart_share,
            outcome.waiting_share,
        )
        row = [outcome.tier, f"{outcome.interval} steps ({format_si(outcome.interval_s, 's')})", str(outcome.spares)]
        row += [_percent(share) for share in (*shares, outcome.slow_share)]
        rows.append(row + ([significant(outcome.days_to(tokens))] if tokens else []))
    best = max(outcomes, key=lambda outcome: outcome.machine_yield)
    gap = "never" if best.mean_gap_s is None else f"every {format_si(best.mean_gap_s / 3600.0, 'h')}"
    nodes = f"best for the machines held, spares included: {best.tier}, {_percent(best.machine_yield)} of their time"
    return f"{table(header, rows)}\n\n  a fault {gap}; {nodes}"


def simulate_tiers(
    job: "Job", trace: "Sequence[Fault]", tiers: "Sequence[Tier]", spares: int | None
) -> list[dict[str, Any]]:
    """Each tier simulated on the trace at its best interval, beside the closed formula for the rates of the trace."""

    from planner.reliability.effective import at_scale
    from planner.reliability.simulation import Policy, simulate_run
    from planner.reliability.tiers import saving
    from planner.reliability.traces import classes_of

    duration_s = trace[-1].time_s
    seen = replace(job, faults=classes_of(trace, job.fleet), state=job.state)
    rows = []
    for tier in tiers:
        formula = at_scale(seen, tier, spares=spares)
        policy = Policy(tier, saving(tier, job.state, job.storage, job.step_s), formula.interval, formula.spares)
        simulated = simulate_run(trace, duration_s, policy, job.state, job.storage)
        rows.append(
            {"tier": tier, "interval": formula.interval, "formula": formula.effective_share, **asdict(simulated)}
        )
    return rows


def simulated_table(rows: Sequence[dict[str, Any]]) -> str:
    """One row a tier: what the simulation says, what the formula says, and the difference in points."""

    header = ("tier", "snapshot every", "faults", "effective", "formula", "off by", "rework", "restarts", "waiting")
    lines = []
    for row in rows:
        off = f"{100.0 * (row['formula'] - row['effective']):+.2f} points"
        cells = [row["tier"], f"{row['interval']} steps", str(row["num_faults"])]
        cells += [_percent(row["effective"]), _percent(row["formula"]), off]
        lines.append(cells + [_percent(row[name]) for name in ("rework", "restart", "waiting")])
    return table(header, lines)


def replanned_rows(replanned: "Replanned") -> dict[str, float]:
    """What a plan becomes after a loss, by name."""
    return {
        "lost_gpus": replanned.lost_gpus,
        "replicas": replanned.replicas,
        "cells_that_load": replanned.moves.loads,
        "cells_idle": len(replanned.moves.idle),
        "loaded_bytes": replanned.loaded_bytes,
        "resharded_share": replanned.resharded_share,
        "only_in_checkpoint_share": replanned.only_in_checkpoint_share,
        "fewest_micro_batches": min(replanned.micro_batches),
        "most_micro_batches": max(replanned.micro_batches),
        "speed": replanned.speed,
    }


def _percent(share: float) -> str:
    return f"{100.0 * share:.2f} %"
