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

SLOTS = 144  # of 10 minutes
DAY_S = 86_400.0
FITTED, JUDGED = 20, 50  # days that books are chosen on, and judged on
UNSEEN = 1000  # between the seeds of those

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
    from planner.solvers.schedules.replicas import schedule

    asked = (now, at, running)
    if any(part is not None for part in asked) and None in asked:
        raise PlannerError("what to do now takes all three", where="--now", hint="give `--now`, `--at` and `--running`")
    service = _service(file, copy_rate, start_up, attainment, scale, change)
    if not service.load_T.any():
        raise PlannerError("no request comes within the day", where=file, hint="give a trace of a day")
    if now is not None:
        slot, load = _slot(str(at)), parse_quantity(now, PER_S, where="--now") * DAY_S / SLOTS
        book = _book(service, fraction(spread, "--spread"))
        return _decide(book, slot, load, running or 0, as_json=as_json, output=output)
    result = schedule(service)
    if result.solution is None:
        what = f"not even {service.most} copies all day serve {attainment}"
        raise PlannerError(what, where="--start-up", hint="start copies faster, or ask for less")
    document = _document(service, result.solution, result.objective, result.bound, fraction(spread, "--spread"))
    hours = copy_gpus * DAY_S / SLOTS / 3600.0
    document["gpu_hours_of_a_copy_slot"] = hours
    write_result(document, lambda: _text(document, hours), output, as_json=as_json)
    return 0


def _service(file: str, copy_rate: str, start_up: str, attainment: str, scale: float, change: float) -> "Service":
    """The service of the first day of a trace."""
    import numpy as np

    from planner.simulate.requests.traces import read_trace
    from planner.solvers.schedules.replicas import Service

    trace = read_trace(file)
    if not trace.timed:
        raise PlannerError("has lengths and no times", where=file, hint="give a trace with arrivals")
    counts, _ = np.histogram(trace.arrival_s, bins=SLOTS, range=(0.0, DAY_S))
    slot_s = DAY_S / SLOTS
    rate = parse_quantity(copy_rate, PER_S, where="--copy-rate")
    share = (seconds(start_up, "--start-up") or 0.0) / slot_s
    if not rate > 0.0:
        raise PlannerError("a copy serves nothing", where="--copy-rate", hint="write for example `--copy-rate 3/s`")
    if share > 1.0:
        raise PlannerError(f"found {start_up}", where="--start-up", hint="a start-up takes 10 minutes at most")
    return Service(counts * scale, rate * slot_s, fraction(attainment, "--attainment"), share, change)


def _document(
    service: "Service", copies_T: tuple[int, ...], cost: float | None, bound: float | None, spread: float
) -> dict[str, Any]:
    import numpy as np

    from planner.simulate.plans.book import fit_book, judge, redrawn
    from planner.solvers.schedules.replicas import fewest_copy_slots

    unseen, book = redrawn(service, JUDGED, spread, 1 + UNSEEN), _book(service, spread)
    threshold = fit_book(redrawn(service, FITTED, spread, 1), service.share, None)
    books = {"book": judge(book, unseen)}
    if threshold is not None:
        books["threshold"] = judge(threshold.book, unseen)
    slot_s = DAY_S / SLOTS
    return {
        "schema": "planner.replicas/1",
        "copies": list(copies_T),
        "copy_slots": sum(copies_T),
        "cost": cost,
        "bound": bound,
        "least_of_any_schedule": fewest_copy_slots(service),
        "served_share": service.served(copies_T) / float(service.load_T.sum()),
        "book": [
            {"copies": copies, "more_above_per_s": more / slot_s, "fewer_below_per_s": fewer / slot_s}
            for copies, more, fewer in book.table(service.most)
        ],
        "unseen_days": {
            "days": JUDGED,
            "least_of_any_schedule": float(np.mean([fewest_copy_slots(day) for day in unseen])),
            **{name: {"copy_slots": each.copy_slots, "served_share": each.share} for name, each in books.items()},
        },
    }


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
    """The book of a service, chosen on days drawn anew; raises PlannerError where none serves enough."""
    from planner.simulate.plans.book import fit_book, redrawn

    chosen = fit_book(redrawn(service, FITTED, spread, 1), service.share, service.load_T)
    if chosen is None:
        what = f"no book serves {100 * service.share:g} % of days like this one"
        raise PlannerError(what, where="--attainment", hint="ask for less, or start copies faster")
    return chosen.book


def _slot(at: str) -> int:
    """The slot of an hour."""
    hours, _, minutes = at.partition(":")
    if not (hours.isdigit() and minutes.isdigit() and int(hours) < 24 and int(minutes) < 60):
        raise PlannerError(f"found `{at}`", where="--at", hint="write the hour as 14:30")
    return (int(hours) * 60 + int(minutes)) * SLOTS // 1440


def _decide(book: "Book", slot: int, load: float, running: int, *, as_json: bool, output: str | None) -> int:
    """What the book says after a slot with this load, with so many copies."""
    import numpy as np

    load_D, running_D = np.array([load]), np.array([float(running)])
    wanted = int(book.decide(slot + 1, load_D, running_D)[0])
    expected = float(book.expected(slot + 1, load_D)[0]) * SLOTS / DAY_S
    change = "start" if wanted > running else "drain" if wanted < running else "keep"
    document = {
        "schema": "planner.replicas_now/1",
        "decision": change,
        "copies": wanted,
        "running": running,
        "expected_per_s": expected,
    }
    told = f"keep {running} copies" if change == "keep" else f"{change} {abs(wanted - running)} copies, to {wanted}"
    text = f"{told}: up to {significant(expected)} requests/s are expected until copies that start now are of use"
    write_result(document, lambda: text, output, as_json=as_json)
    return 0
