"""`planner trace replicas`: copies of one service over a day, a book of them, and what to do now."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import INPUT, Json, Output, fraction, seconds
from planner.cli.output import write_result
from planner.cli.render.columns import table
from planner.documents.units import PER_S, parse_quantity, significant
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.simulate.plans.book import Book
    from planner.solvers.schedules.replicas import Service

File = Annotated[str, typer.Argument(metavar="FILE", help="Trace of a day, as of `planner trace describe`.")]


def replicas(
    file: File,
    *,
    copy_rate: Annotated[
        str, typer.Option("--copy-rate", metavar="RATE", help="A copy serves it within limits.", rich_help_panel=INPUT)
    ],
    start_up: Annotated[
        str, typer.Option("--start-up", metavar="TIME", help="Of a copy, 10 min at most.", rich_help_panel=INPUT)
    ] = "5min",
    attainment: Annotated[
        str, typer.Option("--attainment", metavar="SHARE", help="Of requests to be served.", rich_help_panel=INPUT)
    ] = "99%",
    copy_gpus: Annotated[
        int, typer.Option("--copy-gpus", metavar="N", min=1, help="GPUs of a copy.", rich_help_panel=INPUT)
    ] = 1,
    scale: Annotated[
        float,
        typer.Option("--scale", metavar="X", min=0.0, help="Times the rates of the trace.", rich_help_panel=INPUT),
    ] = 1.0,
    spread: Annotated[
        str, typer.Option("--spread", metavar="SHARE", help="By which days differ in level.", rich_help_panel=INPUT)
    ] = "20%",
    change: Annotated[
        float, typer.Option("--change", metavar="X", min=0.0, help="Copy-slots a change costs.", rich_help_panel=INPUT)
    ] = 0.0,
    now: Annotated[
        str | None, typer.Option("--now", metavar="RATE", help="The rate now: what to do?", rich_help_panel=INPUT)
    ] = None,
    at: Annotated[str | None, typer.Option("--at", metavar="HH:MM", help="Now.", rich_help_panel=INPUT)] = None,
    running: Annotated[
        int | None, typer.Option("--running", metavar="N", min=0, help="Copies now.", rich_help_panel=INPUT)
    ] = None,
    as_json: Json = False,
    output: Output = None,
) -> int:
    """Plan how many copies of a service run when: the fewest GPU-hours, a book of copies by load, and what to do now.

    The bound holds for every schedule of this day. The book looks ahead by the day's shape and the level of the hour;
    it is chosen on 20 days drawn anew, and judged on 50 others beside a threshold autoscaler with the same start-up.

    Examples:

      planner trace replicas day.csv.gz --copy-rate 3/s --scale 8 --copy-gpus 8

      planner trace replicas day.csv.gz --copy-rate 3/s --now 20/s --at 14:30 --running 6
    """
    from planner.simulate.plans.copies import SLOT_S, decided, planned
    from planner.solvers.schedules.replicas import schedule

    asked = (now, at, running)
    if any(part is not None for part in asked) and None in asked:
        raise PlannerError("what to do now takes all three", where="--now", hint="give `--now`, `--at` and `--running`")
    service = _service(file, copy_rate, start_up, attainment, scale, change)
    if now is not None:
        minute, rate = _minute(str(at)), parse_quantity(now, PER_S, where="--now")
        told = decided(_book(service, fraction(spread, "--spread")), minute, rate, running or 0)
        write_result(told, lambda: _told(told), output, as_json=as_json)
        return 0
    result = schedule(service)
    if result.solution is None:
        what = f"not even {service.most} copies all day serve {attainment}"
        raise PlannerError(what, where="--start-up", hint="start copies faster, or ask for less")
    share = fraction(spread, "--spread")
    document = planned(service, _book(service, share), result.solution, result.objective, result.bound, share)
    hours = copy_gpus * SLOT_S / 3600.0
    document["gpu_hours_of_a_copy_slot"] = hours
    write_result(document, lambda: _text(document, hours), output, as_json=as_json)
    return 0


def _service(file: str, copy_rate: str, start_up: str, attainment: str, scale: float, change: float) -> "Service":
    """The service of the first day of a trace."""
    from planner.simulate.plans.copies import SLOT_S, requests_by_slot
    from planner.simulate.requests.traces import read_trace
    from planner.solvers.schedules.replicas import Service

    trace = read_trace(file)
    if not trace.timed:
        raise PlannerError("has lengths and no times", where=file, hint="give a trace with arrivals")
    rate = parse_quantity(copy_rate, PER_S, where="--copy-rate")
    share = (seconds(start_up, "--start-up") or 0.0) / SLOT_S
    if not rate > 0.0:
        raise PlannerError("a copy serves nothing", where="--copy-rate", hint="write for example `--copy-rate 3/s`")
    if share > 1.0:
        raise PlannerError(f"found {start_up}", where="--start-up", hint="a start-up takes 10 minutes at most")
    load_T = requests_by_slot(trace) * scale
    service = Service(load_T, rate * SLOT_S, fraction(attainment, "--attainment"), share, change)
    if not load_T.any():
        raise PlannerError("no request comes within the day", where=file, hint="give a trace of a day")
    return service


def _text(document: dict[str, Any], hours: float) -> str:
    """The schedule and the book in tables of at most 80 columns."""
    unseen = document["unseen_days"]
    rows = [
        ("least of any schedule", document["least_of_any_schedule"], None, "this day"),
        ("schedule", document["copy_slots"], document["served_share"], "this day"),
        ("least of any schedule", unseen["least_of_any_schedule"], None, f"{unseen['days']} unseen days"),
        *(
            (name, unseen[key]["copy_slots"], unseen[key]["served_share"], f"{unseen['days']} unseen days")
            for name, key in (("book", "book"), ("threshold autoscaler", "threshold"))
            if key in unseen
        ),
    ]
    cells = [
        (name, f"{slots * hours:.1f}", "-" if share is None else f"{100 * share:.2f} %", where)
        for name, slots, share, where in rows
    ]
    steps = [
        (str(each["copies"]), significant(each["more_above_per_s"]), significant(each["fewer_below_per_s"]))
        for each in document["book"]
    ]
    hourly = [max(document["copies"][hour * 6 : hour * 6 + 6]) for hour in range(24)]
    return "\n\n".join(
        (
            table(("copies of a service", "GPU-hours a day", "served", "on"), cells),
            f"  most copies by hour: {' '.join(map(str, hourly))}",
            table(("copies", "more above /s", "fewer below /s"), steps),
        )
    )


def _book(service: "Service", spread: float) -> "Book":
    """The book of a service; raises PlannerError where none serves enough."""
    from planner.simulate.plans.copies import book_of

    book = book_of(service, spread)
    if book is None:
        what = f"no book serves {100 * service.share:g} % of days like this one"
        raise PlannerError(what, where="--attainment", hint="ask for less, or start copies faster")
    return book


def _minute(at: str) -> int:
    """The minute of the day."""
    hours, _, minutes = at.partition(":")
    if not (hours.isdigit() and minutes.isdigit() and int(hours) < 24 and int(minutes) < 60):
        raise PlannerError(f"found `{at}`", where="--at", hint="write the hour as 14:30")
    return int(hours) * 60 + int(minutes)


def _told(document: dict[str, Any]) -> str:
    """What to do now, in a sentence."""
    change, copies, running = document["decision"], document["copies"], document["running"]
    told = f"keep {running} copies" if change == "keep" else f"{change} {abs(copies - running)} copies, to {copies}"
    expected = significant(document["expected_per_s"])
    return f"{told}: up to {expected} requests/s are expected until copies that start now are of use"
