"""`planner trace replicas`: schedules and books of a service, and what to do now."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome

    Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A day with a busy evening, some 20,000 requests."""
    path = tmp_path_factory.mktemp("day") / "day.csv"
    draws = np.random.default_rng(0)
    hours = 0.1 + 0.4 * np.sin(np.linspace(0.0, np.pi, 144)) ** 4
    arrival_s = np.sort(np.concatenate([600.0 * (k + draws.random(draws.poisson(600 * hours[k]))) for k in range(144)]))
    path.write_text("arrival_s,input_tokens,output_tokens\n" + "".join(f"{second:.3f},8,8\n" for second in arrival_s))
    return str(path)


def test_no_schedule_and_no_book_needs_less_than_the_bound(run: "Run", trace: str) -> None:
    told = json.loads(run("trace", "replicas", trace, "--copy-rate", "0.05/s", "--json").out)
    assert told["least_of_any_schedule"] <= told["bound"] <= told["cost"]
    assert told["served_share"] >= 0.99
    unseen = told["unseen_days"]
    for name in ("book", "threshold"):
        assert unseen[name]["served_share"] > 0.98
        assert unseen[name]["copy_slots"] >= 0.98 * unseen["least_of_any_schedule"]
    assert all(each["fewer_below_per_s"] < each["more_above_per_s"] for each in told["book"])


def test_what_to_do_now_follows_rate_and_copies(run: "Run", trace: str) -> None:
    def now(rate: str, running: str) -> dict[str, object]:
        done = run(
            "trace", "replicas", trace, "--copy-rate", "0.05/s", "--now", rate, "--at", "09:00", "--running", running,
            "--json",
        )  # fmt: skip
        answer: dict[str, object] = json.loads(done.out)
        return answer

    assert now("0.3/s", "2")["decision"] == "start"
    assert now("0.3/s", "40")["decision"] == "drain"
    copies = now("0.3/s", "2")["copies"]
    assert now("0.3/s", str(copies))["decision"] == "keep"


def test_a_schedule_fits_the_screen(run: "Run", trace: str) -> None:
    shown = run("trace", "replicas", trace, "--copy-rate", "0.05/s").out
    assert "threshold autoscaler" in shown
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (["--copy-rate", "0/s"], "serves nothing"),
        (["--copy-rate", "1/s", "--start-up", "20min"], "10 minutes at most"),
        (["--copy-rate", "1/s", "--now", "2/s"], "all three"),
        (["--copy-rate", "1/s", "--now", "2/s", "--at", "25:00", "--running", "1"], "write the hour as"),
    ],
)
def test_options_of_no_service_are_refused(run: "Run", trace: str, options: list[str], what: str) -> None:
    done = run("trace", "replicas", trace, *options)
    assert done.code == 2
    assert what in done.err


def test_lengths_alone_have_no_day(run: "Run", tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("input_tokens,output_tokens\n8,8\n")
    done = run("trace", "replicas", str(tmp_path / "lengths.csv"), "--copy-rate", "1/s")
    assert done.code == 2
    assert "no times" in done.err
