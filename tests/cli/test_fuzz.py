"""A small draw of `benchmarks/fuzz.py`: mutated files end in the right exit code and leave nothing half-written."""

import random
from pathlib import Path

import fuzz
import pytest

CASES = 150  # `make fuzz` has 10,000


def test_no_mutated_file_ends_in_a_traceback_a_wrong_code_or_half_a_file() -> None:
    tally = fuzz.run_cases(range(CASES), seed=1)
    assert tally.failures == []
    assert sum(tally.codes.values()) == CASES
    verbs = {outcome.split()[0] for outcome in tally.codes}
    assert {"solve", "check", "show", "diff", "explain", "emit", "sweep"} <= verbs
    refused = sum(count for outcome, count in tally.codes.items() if outcome.endswith(" 2"))
    assert 0.3 * CASES < refused < 0.9 * CASES  # most mutations are mistakes, and enough files stay valid


def test_the_same_case_is_the_same_file() -> None:
    first, second = (fuzz.mutated(fuzz.SMALL, random.Random(7)) for _ in range(2))
    assert first == second


@pytest.mark.parametrize(
    ("code", "out", "err", "left", "said"),
    [
        (4, "", "error: internal error", {}, "exit code 4"),
        (1, "", "Traceback (most recent call last)", {}, "a traceback"),
        (2, "half a table", "error: bad", {}, "without an error alone"),
        (2, "", "warning: bad", {}, "without an error alone"),
        (0, "", "", {".planner-1234.tmp": ""}, "files left behind"),
        (0, "", "", {"out.json": '{"schema": '}, "half-written"),
        (2, "", "error: bad", {"out.json": "{}"}, "wrote its output"),
        (0, "", "", {"out.json": "{}"}, ""),
        (1, "no", "", {}, ""),
    ],
)
def test_what_is_wrong_is_seen(tmp_path: Path, code: int, out: str, err: str, left: dict[str, str], said: str) -> None:
    for name, text in left.items():
        (tmp_path / name).write_text(text)
    complaint = fuzz._wrong(["solve", "problem.yaml"], code, out, err, tmp_path, set())
    assert (said in complaint) if said else not complaint
