"""Rules of engines as data: which release judges a version, what a file must say, and what routers there are."""

import os
from pathlib import Path

import pytest
import yaml

from planner.documents.read import parse_document
from planner.emit.clusters.engines import ENGINES as WRITTEN
from planner.engines.load import read_releases, release_of
from planner.engines.parallelism import shape_rule
from planner.engines.release import Release, judged_by
from planner.engines.serving.registry import SERVING_ENGINES
from planner.engines.settings import setting_rows
from planner.errors import PlannerError
from planner.kinds.serve.steady.shapes import InstanceShape
from planner.models.library import find_model

ENGINES = tuple(SERVING_ENGINES)
FOLDER = Path(__file__).parents[2] / "planner" / "engines"
VALIDATORS = Path(os.environ.get("VALIDATORS_HOME", Path.home() / ".cache" / "planner-validators"))


def sources(release: Release) -> list[str]:
    rules = [*release.shapes, *release.drafts, *(rule for moves in release.connectors for rule in moves.rules)]
    return [
        *(rule.source for rule in rules),
        *(connector.source for connector in release.connectors),
        *(router.source for router in release.routers),
        *(dispatcher.source for dispatcher in release.dispatchers),
        *(weights.source for weights in release.weights.values()),
    ]


def test_every_engine_that_is_described_has_settings_of_its_own_a_writer_and_fields_to_read() -> None:
    assert set(setting_rows()) == set(WRITTEN) == set(ENGINES)
    for engine in SERVING_ENGINES.values():
        assert WRITTEN[engine.name].rank_order
        assert {"tp", "pp", "max_num_seqs", "chunk_tokens", "kv_dtype", "model"} <= set(engine.settings)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_entry_has_a_source(engine: str) -> None:
    release = release_of(engine, None)
    assert release.covers(release.read)
    assert all(sources(release))
    for connector in release.connectors:
        assert set(connector.roles) == {"prefill", "decode"}
        assert "kv_both" not in connector.roles.values()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("tp", "ep", "runs"), [(4, 1, True), (8, 1, False), (8, 8, True)])
def test_no_shard_cuts_blocks_of_128_that_share_a_scale(engine: str, tp: int, ep: int, *, runs: bool) -> None:
    """Experts of Qwen3-235B are 1,536 wide: 192 on each of 8 ranks, which engines refuse to load in blocks."""
    shape = InstanceShape(tp, 1, 1, tp // ep, ep)
    arch = find_model("Qwen/Qwen3-235B-A22B-FP8")
    assert (shape_rule(release_of(engine, None), shape, arch) is None) == runs
    assert shape_rule(release_of(engine, None), shape, find_model("Qwen/Qwen3-235B-A22B")) is None


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_files_and_lines_of_sources_are_there(engine: str) -> None:
    places = list((VALIDATORS / engine).glob("lib/python3*/site-packages"))
    if not places or not (places[0] / engine).is_dir():
        pytest.skip(f"{engine} is not installed in {VALIDATORS / engine}")
    for source in sources(release_of(engine, None)):
        if not source.startswith("github.com/"):
            path, _, line = source.partition(":")
            lines = (places[0] / path).read_text(encoding="utf-8").splitlines()
            assert lines[int(line) - 1].strip(), source


@pytest.mark.parametrize(
    ("engine", "version", "read", "own"),
    [
        ("vllm", None, "0.33.0", True),
        ("vllm", "0.33.2", "0.33.0", True),
        ("vllm", "v0.33.0rc1", "0.33.0", True),
        ("vllm", "0.10.2", "0.33.0", False),
        ("vllm", "0.34", "0.33.0", False),
        ("sglang", "0.5.23", "0.5.23", True),
        ("sglang", "0.5.9", "0.5.23", False),
        ("trtllm", "1.3.0", "1.3", True),
    ],
)
def test_a_version_is_judged_by_its_rules_or_by_the_nearest_that_are_named(
    engine: str, version: str | None, read: str, own: bool
) -> None:
    release = release_of(engine, version)
    told = judged_by(release, version)
    assert release.read == read
    assert told is None if own else version is not None and version in (told or "") and read in (told or "")


def test_of_several_releases_the_nearest_below_judges_or_else_the_oldest() -> None:
    text = (FOLDER / "vllm.yaml").read_text()
    data = yaml.safe_load(text)
    older = {**data["releases"][0], "read": "0.20.1", "first": "0.20", "before": "0.21"}
    both = read_releases(parse_document(yaml.safe_dump({**data, "releases": [*data["releases"], older]}), "two.yaml"))
    assert [release.read for release in both] == ["0.20.1", "0.33.0"]


@pytest.mark.parametrize("version", ["nightly", "main", "-1"])
def test_a_version_that_is_no_release_is_refused(version: str) -> None:
    with pytest.raises(PlannerError, match=f"`{version}` is no release of vLLM") as raised:
        release_of("vllm", version)
    assert "0.33.0" in raised.value.hint


def test_an_engine_without_rules_is_refused() -> None:
    with pytest.raises(PlannerError, match="no rules of engine `ollama`"):
        release_of("ollama", None)


@pytest.mark.parametrize(
    ("program", "policy", "what"),
    [
        ("nginx", "power_of_two", "has no router `nginx`"),
        ("vllm-routr", "power_of_two", "has no router"),
        ("vllm-router", "bucket", "has no policy `bucket`"),
    ],
)
def test_a_router_or_policy_that_the_engine_lacks_is_refused(program: str, policy: str, what: str) -> None:
    with pytest.raises(PlannerError, match=what) as raised:
        release_of("vllm", None).router(program, policy)
    assert raised.value.hint
    assert release_of("vllm", None).router("vllm-router", "power_of_two").program == "vllm-router"


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("rule: tp-divides", "rule: tp-divide", "unknown rule `tp-divide`"),
        ("started_by: decode", "started_by: both", "prefill or decode"),
        ("    source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/connector.py:350\n", "", "`source` is missing"),
        ("  drafts:", "  draughts:", "`drafts` is missing"),
        ("schema: planner.engine/1", "schema: planner.engine/2", "must be planner.engine/1"),
        ('loads_from: "8.0"', "loads_from: 8.0", "must be text"),
    ],
)
def test_a_file_that_says_too_little_is_refused_with_its_line(old: str, new: str, what: str) -> None:
    text = (FOLDER / "vllm.yaml").read_text()
    assert old in text
    with pytest.raises(PlannerError, match=what) as raised:
        read_releases(parse_document(text.replace(old, new, 1), "vllm.yaml"))
    assert raised.value.where.startswith("vllm.yaml:")
