"""Plan books of one service: how many copies at which load, with hysteresis, ahead of what is to come; judged by slots.

A book takes the rate of the day's forecast from now until copies that start now are of use, times how the rate now
compares with the forecast, and runs as many copies as serve it with a margin; it gives up only what a larger margin has
no use for. Without a forecast it is a threshold autoscaler: copies by the rate at hand, with two thresholds.
D days, T slots.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from planner.arrays import Floats
from planner.solvers.schedules.replicas import Service

MARGINS = tuple(round(0.05 * step, 2) for step in range(-4, 17))
"""Shares of what a copy serves that are looked at: below 0, copies are run above it."""
BANDS = (0.05, 0.1, 0.2, 0.3, 0.5)  # between the two margins
LEAST_FORECAST = 0.05  # of the mean rate: less says nothing about the level of a day


@dataclass(frozen=True, slots=True)
class Book:
    """Copies by rate: what serves it with `margin` to spare at least, and with `margin + band` at most."""

    capacity: float  # requests that a copy serves in a slot
    margin: float
    band: float
    forecast_T: tuple[float, ...] | None = None  # requests of each slot of a day; None for the rate at hand
    ahead: int = 1  # slots that are looked ahead

    def expected(self, slot: int, load_D: Floats) -> Floats:
        """Requests a slot to be ready for, by day, as the slot that has ended had these loads. [D]"""
        if self.forecast_T is None:
            return load_D
        size, mean = len(self.forecast_T), sum(self.forecast_T) / len(self.forecast_T)
        now = self.forecast_T[(slot - 1) % size]
        level_D = load_D / now if now > LEAST_FORECAST * mean else np.ones(len(load_D))
        return np.asarray(level_D * max(self.forecast_T[(slot + step) % size] for step in range(self.ahead + 1)))

    def decide(self, slot: int, load_D: Floats, running_D: Floats) -> Floats:
        """Copies to run in a slot, by day. [D]"""
        expected_D = self.expected(slot, load_D)
        least_D = np.maximum(np.ceil(expected_D / (self.capacity * (1.0 - self.margin)) - 1e-9), 1.0)
        most_D = np.ceil(expected_D / (self.capacity * max(1.0 - self.margin - self.band, 0.05)) - 1e-9)
        return np.asarray(np.minimum(np.maximum(running_D, least_D), np.maximum(most_D, least_D)))

    def run(self, load_DT: Floats, before: int) -> Floats:
        """Copies of days by slot, decided on the load of the slot before; a threshold knows that of the slot. [D, T]"""
        running_D, last_D = np.full(len(load_DT), float(before)), load_DT[:, 0]
        copies = []
        for slot in range(load_DT.shape[1]):
            seen_D = load_DT[:, slot] if self.forecast_T is None else last_D
            running_D = self.decide(slot, seen_D, running_D)
            copies.append(running_D)
            last_D = load_DT[:, slot]
        return np.array(copies).T

    def table(self, most: int) -> list[tuple[int, float, float]]:
        """Copies, and the rates (requests a slot) above which there are more and below which there are fewer."""
        return [
            (
                copies,
                copies * self.capacity * (1.0 - self.margin),
                max(copies - 1, 0) * self.capacity * max(1.0 - self.margin - self.band, 0.05),
            )
            for copies in range(1, most + 1)
        ]


@dataclass(frozen=True, slots=True)
class Judged:
    """A book on days: copy-slots a day and the share that it serves, in the mean."""

    book: Book
    copy_slots: float
    share: float


def judge(book: Book, days: Sequence[Service]) -> Judged:
    """Means over days of one service."""
    load_DT, first = np.array([service.load_T for service in days]), days[0]
    copies_DT = book.run(load_DT, first.before)
    early_DT = np.minimum(np.hstack((np.full((len(days), 1), float(first.before)), copies_DT[:, :-1])), copies_DT)
    early, late = (np.minimum(load_DT, book.capacity * each).sum() for each in (early_DT, copies_DT))
    served = first.start_up * early + (1.0 - first.start_up) * late
    return Judged(book, float(copies_DT.sum(axis=1).mean()), float(served / max(load_DT.sum(), 1e-12)))


def fit_book(days: Sequence[Service], share: float, forecast_T: Floats | None, ahead: int = 1) -> Judged | None:
    """The book with fewest copy-slots that serves the share on these days; None where none does."""
    capacity = days[0].capacity
    forecast = None if forecast_T is None else tuple(map(float, forecast_T))
    books = (
        Book(capacity, margin, band, forecast, ahead if forecast is not None else 0)
        for margin, band in itertools.product(MARGINS, BANDS)
    )
    enough = [judged for judged in (judge(book, days) for book in books) if judged.share >= share]
    return min(enough, key=lambda judged: judged.copy_slots, default=None)


def redrawn(service: Service, count: int, spread: float, seed: int) -> list[Service]:
    """Days with counts drawn anew, each at a level of its own up to `spread` above or below."""
    draws = np.random.default_rng(seed)
    levels = draws.uniform(1.0 - spread, 1.0 + spread, count)
    return [replace(service, load_T=draws.poisson(level * service.load_T).astype(np.float64)) for level in levels]
