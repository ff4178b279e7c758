"""CPU seconds of the test suite by folder, by file and by test: who makes it slow, however busy the machine is.

    python benchmarks/suite_time.py [--most 30] [ARGUMENTS OF PYTEST]     such as tests/solvers, -k mix or -n 2

User and system time of the process that runs a test and of the processes that it started and that have ended; of
fixtures, it counts with the test that comes to them first. numba's compilations are in it where no cache holds them.
"""

import argparse
import os
import sys
from collections import defaultdict
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent / "tests"


def cpu_s() -> float:
    """Of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


class Clock:
    """A plugin of pytest; with xdist, each worker has one that measures, and the controller one that adds up."""

    def __init__(self) -> None:
        self.began_s = cpu_s()
        self.collected_s = 0.0
        self.by_test: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self) -> None:
        self.collected_s = cpu_s() - self.began_s

    def pytest_runtest_logstart(self) -> None:
        self.began_s = cpu_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now_s = cpu_s()
        report.__dict__["cpu_s"] = now_s - self.began_s  # what a report holds goes from workers to the controller
        self.began_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_test[report.nodeid] += getattr(report, "cpu_s", 0.0)


CLOCK = Clock()


def pytest_configure(config: pytest.Config) -> None:
    """Of this module as a plugin, which xdist loads in each worker."""
    config.pluginmanager.register(CLOCK, "cpu seconds")


def table(title: str, by_name: dict[str, float], most: int) -> Iterable[str]:
    total_s = sum(by_name.values())
    yield f"\n{'CPU s':>8}  {'share':>6}  {title}"
    for name, seconds in sorted(by_name.items(), key=lambda pair: -pair[1])[:most]:
        yield f"{seconds:8.1f}  {seconds / max(total_s, 1e-9):6.1%}  {name}"
    yield f"{total_s:8.1f}          all {len(by_name)}"


def summed(by_test: dict[str, float], parts: int | None) -> dict[str, float]:
    """By file, or by so many first parts of its path."""
    sums: dict[str, float] = defaultdict(float)
    for test, seconds in by_test.items():
        path = Path(test.partition("::")[0])
        sums[str(path if parts is None else Path(*path.parent.parts[:parts]))] += seconds
    return sums


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=30, help="rows of a table")
    own, given = parser.parse_known_args()
    sys.path.insert(0, str(Path(__file__).parent))
    code = pytest.main(["-q", "-p", "suite_time", *(given or [str(TESTS)])])
    import suite_time  # itself, under the name by which pytest has loaded it

    clock = suite_time.CLOCK
    tables = {"folder": summed(clock.by_test, 3), "file": summed(clock.by_test, None), "test": dict(clock.by_test)}
    for title, by_name in tables.items():
        print("\n".join(table(title, by_name, own.most)))
    if clock.collected_s:  # by this process itself
        print(f"\n{clock.collected_s:8.1f}  CPU s to collect")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
