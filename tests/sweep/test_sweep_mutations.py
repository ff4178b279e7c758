"""Sweep files changed at random: results or a named error, never a crash and never half a file."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.cli.main import main
from planner.sweep import files, workers
from planner.sweep.journal import PointRecord
from planner.sweep.point import SolveTask

SWEEP = """
schema: planner.sweep/1
name: s
base: problem.yaml
set: {price: 2USD/h}
scenarios: [{name: now}, {name: peak, set: {rate: 12/s}}]
axes:
  - {field: slo.ttft, values: [200ms, 1s]}
  - {field: rate, from: 1/s, to: 9/s, steps: 3, log: true}
  - {field: lost_nodes, values: [0], name: lost}
  - {name: gpu, choice: true, cases: {a: {gpu: h200}, b: {gpu: h20, price: 1USD/h}}}
mode: grid
seed: 1
metrics: [usd_per_mtok]
breakeven: true
tolerance: 0.3
"""

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**20),
    st.floats(),
    st.sampled_from(
        ["", "1s", "1/s", "-1ms", "h200", "rate", "slo.ttft", "cluster.pools.0", "models", "\x07", "ü", "0%"]
    ),
    st.text(max_size=5),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401 - JSON
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, inner in below for place in places(inner, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> Any:  # noqa: ANN401 - JSON
    document = yaml.safe_load(SWEEP)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(document)))
        if not path:
            continue
        here = document
        for step in path[:-1]:
            here = here[step]
        change = draw(st.sampled_from(["replace", "remove", "rename", "repeat"]))
        if change == "replace":
            here[path[-1]] = draw(VALUES)
        elif change == "remove":
            del here[path[-1]]
        elif change == "rename" and isinstance(here, dict):
            here[draw(st.text(max_size=4)) or path[-1]] = here.pop(path[-1])
        elif isinstance(here, list):
            here.append(here[path[-1]])
    return document


def answer(job: SolveTask) -> PointRecord:
    """What a solve might say, made up from the digest of the problem."""
    luck = int(job.key[-4:], 16) / 0xFFFF
    if luck < 0.1:
        return {"status": "infeasible", "conflict": [{"limit": "ttft", "nearest": ""}], "proved": True}
    certificate = {
        "objective_metric": "usd_per_hour",
        "sense": "minimize",
        "objective": luck,
        "bound": luck,
        "gap": 0.0,
    }
    return {
        "status": "ok",
        **certificate,
        "metrics": {"usd_per_mtok": luck},
        "plan": f"{luck:.1f}",
        "mode": "colocated",
    }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mutated(), st.sampled_from(["out.json", "out.csv", "out.parquet"]))
def test_a_changed_sweep_gives_results_or_a_named_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch, document: object, name: str
) -> None:
    monkeypatch.setattr(workers, "solve_task", answer)
    output = folder / name
    output.unlink(missing_ok=True)
    (folder / "sweep.yaml").write_text(json.dumps(document))
    told = io.StringIO()
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO())), contextlib.redirect_stderr(told):
        code = main(["sweep", "sweep.yaml", "--workers", "0", "--no-cache", "-o", name])
    assert code in (0, 2), told.getvalue()
    assert "Traceback" not in told.getvalue()
    if output.exists():
        assert files.read_table(str(output)).rows
    else:
        assert code == 2
        assert told.getvalue().startswith("error: ")
    assert not list(folder.glob(".planner*"))
