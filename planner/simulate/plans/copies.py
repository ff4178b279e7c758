"""How many copies of a service run when, on the day of a trace: a schedule with its bound, a book, and what to do now.

Books are chosen on days drawn anew around the day, and judged on others that they have not seen, beside a threshold
autoscaler chosen on the same days.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from planner.arrays import Floats
from planner.simulate.plans.book import Book, fit_book, judge, redrawn
from planner.simulate.requests.traces import Trace
from planner.solvers.schedules.replicas import Service, fewest_copy_slots

SLOTS = 144  # of 10 minutes
DAY_S = 86_400.0
SLOT_S = DAY_S / SLOTS
FITTED, JUDGED = 20, 50  # days that books are chosen on, and judged on
UNSEEN = 1000  # between the seeds of those


def requests_by_slot(trace: Trace) -> Floats:
    """Requests in each slot of the first day of a trace with times [T]."""
    counts, _ = np.histogram(trace.arrival_s, bins=SLOTS, range=(0.0, DAY_S))
    return counts.astype(np.float64)


def book_of(service: Service, spread: float) -> Book | None:
    """The book of a service whose days differ by `spread` in level; None where none serves enough."""
    chosen = fit_book(redrawn(service, FITTED, spread, 1), service.share, service.load_T)
    return None if chosen is None else chosen.book


def planned(
    service: Service, book: Book, copies_T: Sequence[int], cost: float | None, bound: float | None, spread: float
) -> dict[str, Any]:
    """A schedule with its cost and bound in copy-slots, the book, and what books serve of days not seen, as data."""
    unseen = redrawn(service, JUDGED, spread, 1 + UNSEEN)
    threshold = fit_book(redrawn(service, FITTED, spread, 1), service.share, None)
    books = {"book": judge(book, unseen)}
    if threshold is not None:
        books["threshold"] = judge(threshold.book, unseen)
    return {
        "schema": "planner.replicas/1",
        "copies": list(copies_T),
        "copy_slots": sum(copies_T),
        "cost": cost,
        "bound": bound,
        "least_of_any_schedule": fewest_copy_slots(service),
        "served_share": service.served(copies_T) / float(service.load_T.sum()),
        "book": [
            {"copies": copies, "more_above_per_s": more / SLOT_S, "fewer_below_per_s": fewer / SLOT_S}
            for copies, more, fewer in book.table(service.most)
        ],
        "unseen_days": {
            "days": JUDGED,
            "least_of_any_schedule": float(np.mean([fewest_copy_slots(day) for day in unseen])),
            **{name: {"copy_slots": each.copy_slots, "served_share": each.share} for name, each in books.items()},
        },
    }


def decided(book: Book, minute: int, rate_per_s: float, running: int) -> dict[str, Any]:
    """What the book says at a minute of the day under this rate, with so many copies, as data."""
    slot, load_D = minute * SLOTS // 1440, np.array([rate_per_s * DAY_S / SLOTS])
    wanted = int(book.decide(slot + 1, load_D, np.array([float(running)]))[0])
    return {
        "schema": "planner.replicas_now/1",
        "decision": "start" if wanted > running else "drain" if wanted < running else "keep",
        "copies": wanted,
        "running": running,
        "expected_per_s": float(book.expected(slot + 1, load_D)[0]) * SLOTS / DAY_S,
    }
