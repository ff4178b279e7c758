"""Workloads in the words of the load generators."""

import sys
from pathlib import Path

import pytest
from engine_plans import program

from planner.emit.loads.drive import Drive, TokenCounts
from planner.emit.loads.generators import GeneratorRun
from planner.engine_check.generators import find_generator
from planner.errors import PlannerError

OPEN = Drive("chat", "lab/model", TokenCounts(512, 64), TokenCounts(128), rate_per_s=2.5, concurrency=None)
CLOSED = Drive("chat", "lab/model", TokenCounts(300, 58, 200, 400), TokenCounts(128), rate_per_s=None, concurrency=12)
EVEN = Drive("chat", "lab/model", TokenCounts(512), TokenCounts(128), 4.0, None, arrival_cv=0.0)


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both generators, first on the search path."""
    for name in ("guidellm", "aiperf"):
        program(tmp_path / name, "fake_guidellm.py")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def flags(name: str, drive: Drive) -> dict[str, str]:
    """The command's flags with what follows each; those without a value have an empty one."""
    run = GeneratorRun(drive, "http://127.0.0.1:8000", "lab/tokenizer", 60.0, Path("out"))
    words = find_generator(name).command(run)
    return {
        flag: "" if value.startswith("--") else value
        for flag, value in zip(words, [*words[1:], "--"], strict=True)
        if flag.startswith("--")
    }


def test_aiperf_is_told_rate_lengths_and_where_to_report() -> None:
    given = flags("aiperf", OPEN)
    assert given["--request-rate"] == "2.5"
    assert given["--arrival-pattern"] == "poisson"
    assert given["--model"] == "lab/model"
    assert given["--url"] == "http://127.0.0.1:8000"
    assert given["--tokenizer"] == "lab/tokenizer"
    assert (given["--synthetic-input-tokens-mean"], given["--synthetic-input-tokens-stddev"]) == ("512", "64")
    assert (given["--output-tokens-mean"], given["--output-tokens-stddev"]) == ("128", "0")
    assert given["--benchmark-duration"] == "60"
    assert given["--artifact-dir"] == "out"
    assert given["--extra-inputs"] == "ignore_eos:true"
    assert {"--streaming", "--concurrency"} & set(given) == {"--streaming"}


def test_a_closed_loop_has_clients_and_no_rate() -> None:
    assert flags("aiperf", CLOSED)["--concurrency"] == "12"
    assert "--request-rate" not in flags("aiperf", CLOSED)
    assert flags("guidellm", CLOSED)["--profile"].startswith("kind=concurrent,streams=12,")


def test_guidellm_takes_bounds_or_a_deviation() -> None:
    assert "prompt_tokens=300,prompt_tokens_min=200,prompt_tokens_max=400" in flags("guidellm", CLOSED)["--data"]
    assert flags("guidellm", OPEN)["--data"] == (
        "kind=synthetic_text,prompt_tokens=512,prompt_tokens_stdev=64,output_tokens=128"
    )


@pytest.mark.parametrize(("drive", "pattern"), [(OPEN, "poisson"), (EVEN, "constant")])
def test_arrivals_without_variance_come_at_a_constant_rate(drive: Drive, pattern: str) -> None:
    assert flags("aiperf", drive)["--arrival-pattern"] == pattern
    assert flags("guidellm", drive)["--profile"].startswith(f"kind={pattern},rate={drive.rate_per_s:g},")


def test_the_first_generator_that_is_installed_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_generator(None).name == "guidellm"
    (tmp_path / "guidellm").unlink()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nowhere" / "python"))
    assert find_generator(None).name == "aiperf"
    assert find_generator(str(tmp_path / "aiperf")).executable == str(tmp_path / "aiperf")


@pytest.mark.parametrize(("name", "words"), [("wrk", "unknown load generator `wrk`"), ("guidellm", "is not installed")])
def test_a_generator_that_is_not_there_is_one_error(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing" / "python"))
    with pytest.raises(PlannerError, match=words):
        find_generator(name)
