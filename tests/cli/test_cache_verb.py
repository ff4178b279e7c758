"""`planner cache`: what it says of a trace, what it buys, and bad input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Outcome

    Run = Callable[..., Outcome]

TIERS = """schema: planner.cache/1
block: 1MB
compute: 100ms
instance: 10USD/h
window: 10s
tiers:
  - {name: host, unit: 4MB, max_units: 8, usd_per_gb_hour: PRICE, bandwidth: 1GB/s}
"""


def trace(path: Path, rows: int = 60) -> Path:
    """Prompts of three blocks, the first of them alike, over a minute."""
    lines = (
        json.dumps(
            {"timestamp": 1000 * r, "input_length": 1536, "output_length": 10, "hash_ids": [0, 1 + r % 5, 9 + r]}
        )
        for r in range(rows)
    )
    path.write_text("\n".join(lines) + "\n")
    return path


def tiers(path: Path, text: str = TIERS, price: str = "0.5") -> str:
    path.write_text(text.replace("PRICE", price))
    return str(path)


def test_a_trace_is_described_and_the_memory_that_it_is_worth_is_bought(run: "Run", tmp_path: Path) -> None:
    shown = run("cache", str(trace(tmp_path / "t.jsonl")), "--tiers", tiers(tmp_path / "c.yaml"), "--json")
    assert shown.code == 0, shown.err
    report = json.loads(shown.out)
    assert report["accesses"] == 180
    assert report["reused_share"] == pytest.approx((59 + 55) / 180)
    assert report["heavy_blocks"]["largest"][0] == {"block": "0", "share_of_requests": 1.0}
    curve = {row["blocks"]: row["lru"] for row in report["hits_by_size"]}
    assert curve[max(curve)] == report["reused_share"]
    bought = report["tiers"]
    # a distance below 12 (4 units are 16 blocks) holds all that recurs; each hit saves .1 s of 10 USD/h less 1 ms
    assert bought["units"]["host"] * 4 >= 11
    assert bought["usd_per_hour"] < bought["usd_per_hour_without"]
    assert bought["none_above_price_factor"] > 1.0


def test_a_tier_that_costs_more_than_it_saves_is_not_bought_and_the_screen_says_so(run: "Run", tmp_path: Path) -> None:
    file = tiers(tmp_path / "c.yaml", price="100000")
    shown = run("cache", str(trace(tmp_path / "t.jsonl")), "--tiers", file)
    assert shown.code == 0
    assert "buy none: no tier saves what it costs" in shown.out


def test_memory_is_bought_up_to_the_price_that_is_told_and_not_beyond(run: "Run", tmp_path: Path) -> None:
    file = str(trace(tmp_path / "t.jsonl"))

    def bought(price: float) -> dict[str, float]:
        shown = run("cache", file, "--tiers", tiers(tmp_path / "c.yaml", price=str(price)), "--json")
        tiers_of: dict[str, dict[str, float]] = json.loads(shown.out)["tiers"]
        return {"units": tiers_of["units"]["host"], "none_above": tiers_of["none_above_price_factor"] or 0.0}  # type: ignore[dict-item]

    factor = bought(0.5)["none_above"]
    assert bought(0.5 * factor * 0.99)["units"] > 0
    assert bought(0.5 * factor * 1.01)["units"] == 0


def test_turns_of_conversations_share_the_blocks_before_them(run: "Run", tmp_path: Path) -> None:
    file = tmp_path / "turns.csv"
    rows = [(0, 250, "a"), (1, 120, "b"), (2, 420, "a"), (3, 460, "b")]
    lines = [f"{t},{tokens},5,{name}" for t, tokens, name in rows]
    file.write_text("arrival_s,input_tokens,output_tokens,conversation_id\n" + "\n".join(lines) + "\n")
    shown = run("cache", str(file), "--block-tokens", "100", "--json")
    report = json.loads(shown.out)
    assert report["accesses"] == 2 + 1 + 4 + 4
    assert report["reused_share"] == pytest.approx(3 / 11)


def test_a_trace_that_shares_nothing_is_said_to_share_nothing(run: "Run", tmp_path: Path) -> None:
    shown = run("cache", str(trace(tmp_path / "t.jsonl", 1)))
    assert shown.code == 0
    assert "no block is requested twice" in shown.out


def test_other_policies_stand_beside(run: "Run", tmp_path: Path) -> None:
    arguments = ("--policy", "farthest", "--policy", "pgdsf", "--json")
    report = json.loads(run("cache", str(trace(tmp_path / "t.jsonl")), *arguments).out)
    assert all(row["farthest"] >= max(row["lru"], row["pgdsf"]) for row in report["hits_by_size"])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("arrival_s,input_tokens,output_tokens\n0,100,5\n", "neither `hash_ids` nor `conversation_id`"),
        ("input_tokens,output_tokens,conversation_id\n600,5,a\n", "has no arrival times"),
        (
            "arrival_s,input_tokens,output_tokens,conversation_id\n5,600,5,a\n1,600,5,a\n",
            "comes at 1 s, after one at 5 s",
        ),
        ("arrival_s,input_tokens,output_tokens,conversation_id\n0,100,5,a\n", "no prompt fills a block of 512 tokens"),
        (
            "arrival_s,input_tokens,output_tokens,conversation_id\n0,600,5,a\n1,600,5,\n",
            "t.csv:3: has no `conversation_id`, as other rows have",
        ),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 5, "hash_ids": []}\n',
            "t.csv: `hash_ids` names no block of any prompt",
        ),
    ],
)
def test_traces_that_say_nothing_of_prefixes_are_refused(run: "Run", tmp_path: Path, rows: str, said: str) -> None:
    file = tmp_path / "t.csv"
    file.write_text(rows)
    shown = run("cache", str(file))
    assert shown.code == 2
    assert said in shown.err
    assert str(file) in shown.err
    assert "hint: " in shown.err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("unit: 4MB", "unit: 0.5MB", "c.yaml:7: tiers.0.unit: a unit of `host` has 500 kB, and a block 1.00 MB"),
        (", bandwidth: 1GB/s", "", "hint: add `bandwidth: 400Gb/s`"),
        ("compute: 100ms\n", "compute: 100ms\ncompte: 1s\n", "unknown key"),
        ("bandwidth: 1GB/s", "bandwidth: 0GB/s", "c.yaml:7: tiers.0.bandwidth: must be above 0"),
        ("max_units: 8", "max_units: -1", "must be at least 0"),
        ("compute: 100ms", "compute: -1ms", "c.yaml:3: compute: must be at least 0"),
        ("compute: 100ms", "compute: 100", "compute"),
    ],
)
def test_tiers_that_cannot_be_are_refused_at_their_place(
    run: "Run", tmp_path: Path, old: str, new: str, said: str
) -> None:
    assert old in TIERS
    file = tiers(tmp_path / "c.yaml", TIERS.replace(old, new))
    shown = run("cache", str(trace(tmp_path / "t.jsonl")), "--tiers", file)
    assert shown.code == 2
    assert said in shown.err
    assert "c.yaml" in shown.err


def test_a_trace_without_a_span_and_an_unknown_policy_are_refused(run: "Run", tmp_path: Path) -> None:
    file = tiers(tmp_path / "c.yaml")
    assert "all requests come at one time" in run("cache", str(trace(tmp_path / "t.jsonl", 1)), "--tiers", file).err
    assert "unknown policy `fifo`" in run("cache", str(tmp_path / "t.jsonl"), "--policy", "fifo").err
