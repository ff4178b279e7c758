"""Readers of traces, what is said of them, and draws."""

import gzip
import json
import re
from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pytest

from planner.errors import PlannerError
from planner.simulate.fleet.instances import Fleet, Instance
from planner.simulate.fleet.step_grid import StepGrid
from planner.simulate.requests.arrivals import PROCESSES, arrivals
from planner.simulate.requests.stream import Requests
from planner.simulate.requests.trace_facts import describe, fit, reuse, sample
from planner.simulate.requests.traces import Trace, read_trace, trace_csv, trace_jsonl
from planner.simulate.run.engine import simulate

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
)
AZURE_2024 = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
    "2024-05-10 00:00:03+00:00,2399,6\n2024-05-10 02:00:04.5+02:00,76,15\n2024-05-10T00:00:05Z,76,15\n"
)
BURST = (
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,x\n45,GPT-4,1087,230,1317,x\n"
)
PLAIN = "arrival_s,input_tokens,output_tokens,priority\n0,10,5,1\n1.5,20,6,0\n"
MOONCAKE = (
    '{"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}\n'
    '{"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [0, 2]}\n'
)


def shared(name: str) -> Path:
    if not (SHARED / name).exists():
        pytest.skip(f"needs the shared trace {name}")
    return SHARED / name


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "form", "arrival_s", "inputs", "outputs"),
    [
        (AZURE, "azure", [0.0, 4.314579], [374, 396], [44, 109]),
        (AZURE_2024, "azure", [0.0, 2.99007, 4.49007, 4.99007], [2162, 2399, 76, 76], [5, 6, 15, 15]),
        (BURST, "burstgpt", [0.0, 40.0], [472, 1087], [18, 230]),
        (PLAIN, "plain", [0.0, 1.5], [10, 20], [5, 6]),
        (MOONCAKE, "mooncake", [0.0, 3.0], [700, 600], [5, 7]),
        ("input_tokens,output_tokens\n3,4\n", "lengths", [0.0], [3], [4]),
    ],
)
def test_every_format_is_known_by_its_columns(
    tmp_path: Path, text: str, form: str, arrival_s: list[float], inputs: list[int], outputs: list[int]
) -> None:
    trace = read_trace(written(tmp_path, text))
    assert trace.format == form
    assert trace.arrival_s == pytest.approx(arrival_s)
    assert (trace.input_tokens.tolist(), trace.output_tokens.tolist()) == (inputs, outputs)


def test_gzipped_traces_read_like_plain_ones(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(PLAIN.encode()))
    trace = read_trace(path)
    assert trace.priority is not None
    assert trace.priority.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("when,how_much\n1,2\n", 1, "has the columns when, how_much"),
        (PLAIN + "1.0,4,4,0\n", 4, "comes at 1 s, after one at 1.5 s"),
        ("arrival_s,input_tokens,output_tokens\n-1,4,4\n", 2, "`arrival_s` is -1"),
        ("arrival_s,input_tokens,output_tokens\n1,0,4\n", 2, "`input_tokens` is 0"),
        ("arrival_s,input_tokens,output_tokens\n1,4,2.5\n", 2, "`output_tokens` is 2.5"),
        ("arrival_s,input_tokens,output_tokens\n1,4,many\n", 2, "`output_tokens` is 'many'"),
        ("arrival_s,input_tokens,output_tokens\nsoon,4,4\n", 2, "`arrival_s` is 'soon'"),
        ("arrival_s,input_tokens,output_tokens\ninf,4,4\n", 2, "`arrival_s` is inf"),
        (AZURE + "yesterday,4,4\n", 4, "`TIMESTAMP` is 'yesterday'"),
        (AZURE + "2023-11-16 18:15:61,4,4\n", 4, "`TIMESTAMP` is '2023-11-16 18:15:61'"),
        (MOONCAKE + "[1]\n", 3, "is no JSON object"),
        (MOONCAKE + '{"timestamp": 4000, "input_length": 1}\n', 3, "`output_length` is None"),
    ],
)
def test_bad_rows_are_refused_with_their_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(PlannerError) as caught:
        read_trace(path)
    assert message in str(caught.value)
    assert f"{path}:{line}" in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x1f\x8bcut", b"\xff\xfe\x00", b"arrival_s,input_tokens,output_tokens\n"])
def test_files_that_hold_no_trace_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(content)
    with pytest.raises(PlannerError):
        read_trace(path)


def test_rows_without_tokens_are_left_out_on_request_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, PLAIN + "2,0,4,0\n3,4,4,0\n"), drop_empty=True)
    assert (len(trace), trace.dropped) == (3, 1)


def test_converted_traces_read_the_same(tmp_path: Path) -> None:
    for text, convert in ((PLAIN, trace_csv), (AZURE, trace_csv), (MOONCAKE, trace_jsonl), (PLAIN, trace_jsonl)):
        trace = read_trace(written(tmp_path, text))
        other = read_trace(written(tmp_path, convert(trace), "converted"))
        assert trace.arrival_s.tolist() == other.arrival_s.tolist()
        assert trace.input_tokens.tolist() == other.input_tokens.tolist()
        assert trace.output_tokens.tolist() == other.output_tokens.tolist()
        assert trace.blocks == other.blocks


def test_azures_conversations_are_described_as_known() -> None:
    facts = describe(read_trace(shared("azure_llm_2023_conv.csv.gz")))
    assert facts["requests"] == 19_366
    assert facts["rate_per_s"] == pytest.approx(5.530, abs=1e-3)
    assert facts["gap_cv"] == pytest.approx(1.094, abs=1e-3)
    assert facts["dispersion_60s"] == pytest.approx(16.1, abs=0.1)


def test_an_unlimited_prefix_cache_finds_what_the_trace_repeats() -> None:
    trace = read_trace(shared("mooncake_fast25_conversation.jsonl.gz"))
    total, distinct = reuse(trace)
    assert (total, total - distinct) == (288_500, 105_710)
    apart = Requests.open_stream(np.arange(len(trace)) * 1.0, trace.input_tokens, np.ones(len(trace)))
    requests = apart.with_prefixes(trace.blocks, block_tokens=trace.block_tokens)
    instance = Instance(StepGrid.affine(1e-3), 2**40, token_budget=2**20)
    run = simulate(Fleet((instance,), prefix_caching=True), requests)
    cached = run.cached_tokens + (run.cached_tokens == trace.input_tokens - 1)  # the last token is always computed
    known: set[Hashable] = set()
    short = 0  # repeated ends of prompts that fill no KV block, of which there are none in a cache
    for blocks, tokens in zip(trace.blocks, trace.input_tokens.tolist(), strict=True):
        end = tokens - trace.block_tokens * (len(blocks) - 1)
        short += blocks[-1] in known and end < Fleet((instance,)).block_tokens
        known.update(blocks)
    assert int(np.sum(-(-cached // trace.block_tokens))) == 105_710 - short


def test_prompts_with_more_blocks_than_tokens_are_refused() -> None:
    with pytest.raises(PlannerError, match="2 blocks for 4 tokens"):
        Requests.open_stream([0.0], [4], [1]).with_prefixes([[1, 2]], block_tokens=4)


@pytest.mark.parametrize("process", PROCESSES)
def test_arrivals_have_the_rate_and_the_cv_asked_for(process: str) -> None:
    cv = 1.0 if process == "poisson" else 2.5
    gaps = np.diff(arrivals(process, 4.0, 400_000, cv=cv, seed=3), prepend=0.0)
    assert float(gaps.mean()) == pytest.approx(0.25, rel=0.02)
    assert float(gaps.std() / gaps.mean()) == pytest.approx(cv, rel=0.03)


def test_streams_of_one_seed_are_the_same_draws_at_any_rate() -> None:
    assert arrivals("gamma", 2.0, 50, cv=2.0).tolist() == (arrivals("gamma", 4.0, 50, cv=2.0) * 2.0).tolist()


def test_a_fit_names_the_process_that_a_trace_was_drawn_from() -> None:
    count = 20_000
    ones = np.ones(count, dtype=np.int64)
    trace = Trace("drawn", "plain", arrivals("weibull", 3.0, count, cv=2.0), ones, ones)
    distances = fit(trace)["gaps"]
    assert isinstance(distances, dict)
    assert min(distances, key=lambda name: float(distances[name])) == "weibull"


def test_samples_keep_lengths_together_and_take_the_rate() -> None:
    trace = Trace("two", "plain", np.array([0.0, 1.0]), np.array([3, 8]), np.array([30, 80]))
    drawn = sample(trace, 4000, rate_per_s=20.0, seed=1)
    assert np.array_equal(drawn.output_tokens, drawn.input_tokens * 10)
    assert len(drawn) / float(drawn.arrival_s[-1]) == pytest.approx(20.0, rel=0.1)
    assert json.loads(trace_jsonl(drawn).splitlines()[0])["input_tokens"] in (3, 8)


def test_a_trace_of_lengths_alone_is_no_stream() -> None:
    trace = Trace("lengths", "lengths", np.zeros(1), np.array([3]), np.array([3]))
    with pytest.raises(PlannerError, match="no arrival times"):
        trace.requests()


@pytest.mark.parametrize(
    ("rows", "what"),
    [
        (["arrival_s,input_tokens,output_tokens,priority", "0,3,3,high"], "`priority` is 'high'"),
        (["arrival_s,input_tokens,output_tokens,priority", "0,3,3,1", "1,3,3,"], "has no `priority`"),
        (["arrival_s,input_tokens,output_tokens", "0,inf,3"], "`input_tokens` is 'inf'"),
        (["arrival_ms,input_tokens,output_tokens", "0,3,3"], "`arrival_ms` is no column of arrivals"),
        (["input_tokens,output_tokens,start_time", "3,3,0"], "`start_time` is no column of arrivals"),
    ],
)
def test_what_a_trace_says_is_read_or_refused(tmp_path: Path, rows: list[str], what: str) -> None:
    file = tmp_path / "trace.csv"
    file.write_text("\n".join(rows))
    with pytest.raises(PlannerError, match=re.escape(what)):
        read_trace(file)
