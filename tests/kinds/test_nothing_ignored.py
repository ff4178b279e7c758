"""Every field of the problem, limit, flag and variable, for each kind of plan: two values with two plans, or a refusal.

`field_cases.READ` holds the overrides of two problems for every field that a kind says it reads
(`planner.kinds.<kind>.reads`); all others are refused. The names come from the schemas, so that a new field stands
there or fails.
"""

import json
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from field_cases import AHEAD, BASES, HORIZON, ONE_NODE, ONE_PASS, READ, REFUSED, TIGHT, TWO_NODES
from fleet_options import FAR
from option_cases import LAUNCHED, OPTIONS
from place_options import MIXED
from problem_changes import OTHER_BASE
from schema_leaves import FIELDS, leaves
from serve_options import SIMULATED
from small_configs import SMALL_CONFIGS
from static_level import solve

from planner.check import check_plan
from planner.cli.main import built_command, main
from planner.documents.files import digest
from planner.documents.read import given_document
from planner.errors import Infeasible, PlannerError, Stopped
from planner.kinds.registry import find_kind, kind_names
from planner.load.problems import resolve_document
from planner.plan.schema import Envelope
from planner.problem.reads import FLAGS, unread_fields
from planner.problem.recorded import AtHand
from planner.problem.schema import Problem
from planner.progress import Limits
from planner.schema.base import Where

NOT_THE_PLAN = ("inputs", "digests", "seed", "software")  # these repeat the problem

LIMITS: dict[str, dict[str, tuple[Limits, Limits, str]]] = {
    "serve": {
        "time_limit_s": (Limits(), Limits(time_limit_s=1e-9), ""),
        "gap": (Limits(), Limits(gap=0.9), TWO_NODES + " ; options={pp: [1], chunk_tokens: [2048]}"),
        "seed": (Limits(seed=1), Limits(seed=2), SIMULATED),
        "backend": (Limits(), Limits(backend="mathopt-highs"), ""),
    },
    "train": {
        "time_limit_s": (Limits(), Limits(time_limit_s=0.0), ""),
        "gap": (Limits(), Limits(gap=0.9), ONE_NODE + " ; options.search={}"),
    },
    "rl": {
        "time_limit_s": (Limits(), Limits(time_limit_s=0.0), ""),
        "gap": (Limits(), Limits(gap=0.9), AHEAD),
        "seed": (Limits(seed=1), Limits(seed=2), ""),
    },
    "experts": {"gap": (Limits(), Limits(gap=0.5), ""), "seed": (Limits(seed=1), Limits(seed=2), TIGHT)},
    "fleet": {
        "time_limit_s": (Limits(), Limits(time_limit_s=1e-9), FAR),
        "gap": (Limits(), Limits(gap=0.5), FAR),
    },
    "place": {
        "seed": (Limits(seed=1), Limits(seed=2), ""),
        "time_limit_s": (Limits(), Limits(time_limit_s=1e-9), MIXED % (3, 3, 2, 1, 1, 1)),
    },
    "workflow": {
        "seed": (Limits(seed=1), Limits(seed=2), ""),
        "time_limit_s": (Limits(), Limits(time_limit_s=0.0), ""),
    },
}
"""Two limits that give two plans of a problem; `threads` must not change a plan, and has tests of its own."""

GIVEN = {
    "time_limit_s": Limits(time_limit_s=60.0),
    "gap": Limits(gap=0.1),
    "seed": Limits(seed=7),
    "threads": Limits(threads=2),
    "backend": Limits(backend="pulp-cbc"),
}
KINDS = tuple(name for name in kind_names() if find_kind(name).solvable)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the files that the problems name."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path_factory.mktemp("problems")
    draw = np.random.default_rng(0)
    loads = {name: draw.lognormal(0, 0.8, (2, 48, 128)) * 1000 for name in ("load", "one", "two")}
    np.savez(path / "loads.npz", load=loads["load"])
    np.savez(path / "both.npz", one=loads["one"], two=loads["two"])
    np.savez(path / "windows.npz", load=loads["one"][:1] * draw.lognormal(0, 0.5, (8, 48, 128)))
    np.savez(path / "resident.npz", np.tile(np.arange(132) % 128, (48, 1)))
    small = draw.lognormal(0, 0.8, (2, 2, 16)) * 1000
    np.savez(path / "small.npz", load=small)
    np.savez(path / "steps.npz", src=np.repeat(small[:, :, None] / 4, 4, axis=2))
    np.savez(path / "tokens.npz", topk_ids=draw.integers(0, 16, (64, 2, 2)))
    (path / "day.csv").write_text("arrival_s,input_tokens,output_tokens\n60,8,8\n40000,8,8\n40001,8,8\n")
    (path / "a.csv").write_text("input_tokens,output_tokens,other\n100,100,50\n200,90,60\n")
    talks = [f"{second},c{second % 4},{600 * (1 + second // 4)},50" for second in range(40)]
    (path / "talks.csv").write_text("arrival_s,conversation_id,input_tokens,output_tokens\n" + "\n".join(talks))
    (path / "b.csv").write_text("input_tokens,output_tokens,other,media\n150,120,50,5\n200,90,60,1\n")
    rows = {"calm": range(100), "bursts": [index // 20 * 20 for index in range(100)]}
    for name, times in rows.items():
        lines = "".join(f"{time},1,1\n" for time in times)
        (path / f"{name}.csv").write_text(f"arrival_s,input_tokens,output_tokens\n{lines}")
    for name, fields_of_config in SMALL_CONFIGS.items():
        (path / name).mkdir()
        (path / name / "config.json").write_text(json.dumps(fields_of_config))
    table = path / "profiles" / "h100_sxm" / "gemm" / "vllm" / "1.0.0" / "gemm_perf.parquet"
    table.parent.mkdir(parents=True)
    sizes = {
        "m": [1, 1, 65536, 65536],
        "n": [64, 262144] * 2,
        "k": [64, 64, 65536, 65536],
        "latency": [1.0, 2.0, 3.0, 4.0],
    }
    pq.write_table(pa.table({"gemm_dtype": ["bfloat16"] * 4, **sizes}), table)
    (path / "plan.json").write_text(_running(path))
    return path


def _running(folder: Path) -> str:
    """The plan that runs before a horizon: one with other degrees than the base allows."""
    return solved(folder, "rl", HORIZON + " ; options.generation_tp=[2]").model_dump_json(by_alias=True)


def written(kind: str, changes: str) -> tuple[dict[str, Any], list[str]]:
    """The base problem of a kind, and overrides as `--set` takes them."""
    texts = [text for text in changes.split(" ; ") if text]
    if texts and texts[0].startswith(OTHER_BASE):  # of problems that leave out what the base of the kind has
        return base(f"{kind}/{texts[0].removeprefix(OTHER_BASE)}"), texts[1:]
    return base(kind), texts


@cache
def _base_json(kind: str) -> str:
    """Read once: YAML takes as long as the check of what it says."""
    named = {"schema": "planner.problem/1", "kind": kind.partition("/")[0]}
    return json.dumps({**named, **yaml.safe_load(BASES[kind])})


def base(kind: str) -> dict[str, Any]:
    """The base problem of a kind, for its caller alone."""
    problem: dict[str, Any] = json.loads(_base_json(kind))
    return problem


def solved(folder: Path, kind: str, changes: str, limits: Limits | None = None) -> Envelope:
    data, overrides = written(kind, changes)
    return solve(resolve_document(given_document(data, "problem"), folder, overrides=overrides), limits)


@cache
def base_plan(folder: Path, kind: str) -> Envelope:
    """The plan of the base problem of a kind, solved once for all that read it."""
    return solved(folder, kind, "")


@cache
def outcome(folder: Path, kind: str, changes: str, limits: Limits | None = None) -> object:
    """What a user gets, without what repeats the problem; the name of the solver stays."""
    try:
        unchanged = not changes and limits in (None, Limits())
        envelope = base_plan(folder, kind) if unchanged else solved(folder, kind, changes, limits)
    except (PlannerError, Infeasible, Stopped) as answer:
        return str(answer)
    told = envelope.model_dump(mode="json", exclude=set(NOT_THE_PLAN))
    return {**told, "solver": envelope.software.solver}


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_holds_every_field_that_a_kind_reads_and_no_other(kind: str) -> None:
    reads = find_kind(kind).reads
    assert set(READ[kind]) == {name for name in FIELDS if reads.reads(name)}
    assert set(LIMITS[kind]) | ({"threads"} & reads.limits) == reads.limits
    assert set(GIVEN) == set(FLAGS) == {field.name for field in fields(Limits)} - {"tell", "explain"}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in KINDS for name in READ[kind]],
)
def test_two_values_of_a_field_that_is_read_have_two_plans(folder: Path, kind: str, name: str) -> None:
    first, second = READ[kind][name]
    if second is REFUSED:
        data, overrides = written(kind, first)
        with pytest.raises(PlannerError, match=r"workloads\.0"):
            solve(resolve_document(given_document(data, "problem"), folder, overrides=overrides))
        return
    one_way, other_way = (outcome(folder, kind, changes) for changes in (first, second))
    assert not (isinstance(one_way, str) and isinstance(other_way, str)), (one_way, other_way)
    assert one_way != other_way


@pytest.mark.parametrize("kind", KINDS)
def test_the_options_of_a_kind_all_stand_in_the_table(kind: str) -> None:
    assert {*OPTIONS[kind], *LAUNCHED.get(kind, ())} == set(leaves(find_kind(kind).options))


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in OPTIONS[kind]])
def test_two_values_of_an_option_have_two_plans(folder: Path, kind: str, name: str) -> None:
    one_way, other_way = (outcome(folder, kind, changes) for changes in OPTIONS[kind][name])
    assert isinstance(one_way, dict)
    assert one_way != other_way


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_that_is_not_read_is_refused_with_what_to_do(kind: str) -> None:
    """All fields of the schema at once, each with a value that the schema takes."""
    reads, where = find_kind(kind).reads, Where({}, "problem")
    refused, idle = {}, set[str]()
    for problem in EVERYTHING:
        engine = problem["engine"] | ({"name": "megatron-lm"} if kind == "train" else {})
        made = Problem.model_validate(problem | {"kind": kind, "engine": engine})
        idle |= {unread.name for unread in reads.unread(made)}
        for error in unread_fields(reads, made, where):
            refused[error.where.removeprefix("problem: ")] = error.hint
    assert all(refused.values())
    patterns = {_pattern(place) for place in refused}
    below = {name for name in FIELDS if any(name == each or name.startswith(f"{each}.") for each in idle)}
    assert patterns == {name for name in FIELDS if not reads.reads(name)} | below


@pytest.mark.parametrize("kind", KINDS)
def test_the_inputs_of_a_plan_are_a_problem_with_the_same_plan(folder: Path, kind: str) -> None:
    plan = base_plan(folder, kind)
    again = solve(resolve_document(given_document(plan.inputs, "inputs"), folder))
    assert (again.inputs, again.decision, again.predictions) == (plan.inputs, plan.decision, plan.predictions)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [("train", "seed", 7), ("train", "limits", {"usd_per_hour": 1e9}), ("experts", "limits", {"gpus": 3})],
)
def test_what_the_inputs_of_a_plan_set_and_nobody_reads_fails_its_check(
    folder: Path, kind: str, name: str, value: object
) -> None:
    plan = base_plan(folder, kind)
    inputs: dict[str, Any] = {**plan.inputs, name: value}
    digests = plan.digests.model_copy(update={"problem": digest(inputs)})
    for envelope, failing in ((plan, set()), (plan.model_copy(update={"inputs": inputs, "digests": digests}), {name})):
        decision = find_kind(kind).decision.model_validate(envelope.decision)
        findings = check_plan(envelope, decision, hand=AtHand((folder,)))
        unread = {finding.where for finding in findings if finding.rule == "inputs.read"}
        assert {".".join(place.split(".")[:2]) for place in unread} == {f"inputs.{name}" for name in failing}


def _pattern(place: str) -> str:
    keys = place.split(".")
    return ".".join(
        "*" if key.isdigit() or (index == 1 and keys[0] == "models") else key for index, key in enumerate(keys)
    )


STATISTICS = {f"{name}_s": 1.0 for name in ("mean", "p50", "p90", "p95", "p99")}
LENGTHS = (8, {"low": 1, "high": 2}, {"mean": 8, "cv": 1}, {"trace": "a.csv", "column": "other"}, {"shape": "s"})
AMOUNTS = (
    1.0,
    2.0,
    {"mean": 1.0, "cv": 1.0},
    {"values": [1.0], "shares": [1.0]},
    {"trace": "a.csv", "column": "other"},
)
EVERYTHING: list[dict[str, Any]] = [
    {
        "schema": "planner.problem/1",
        "name": "plan",
        "models": {"m": {"name": "m", "weights": "fp8", "kv_cache": "fp8"}, "n": {"config": "n", "contents": {}}},
        "cluster": {
            "pools": [
                {
                    "gpu": "h200", "name": "a", "nodes": 2, "gpus_per_node": 8, "node_names": ["a", "b"],
                    "out_of_service": [0], "usd_per_gpu_hour": 1.0, "fabric": "f", "nic_bandwidth_bytes_per_s": 1e9,
                    "oversubscription": 2.0,
                    "topology": {
                        "racks": [1, 1], "uplink_bytes_per_s": 1e9, "rails": {"nodes": 1, "oversubscription": 2.0},
                        "scale_up": {"kind": "ring", "hops": 1, "group": 1, "bandwidth_bytes_per_s": 1e9},
                        "circuits": {"ports": 1, "link_bytes_per_s": 1e9, "switching_s": 0.1},
                    },
                },
                {
                    "gpu": "h200", "name": "b", "gpus": 8,
                    "topology": {"scale_up": {"kind": "switch", "group": 1, "unit": 1}},
                },
            ],
            "links": [{"pools": ["a", "b"], "bandwidth_bytes_per_s": 1e9, "latency_s": 1.0}],
        },
        "workloads": [
            {
                "name": str(index), "model": "m", "input_tokens": length, "output_tokens": length, "share": 2.0,
                "priority": 1, "load": load, "prefix_hits": 0.5, "audio_s": amount,
                "images": {"count": amount, "tokens": 1} if index else {"width": 1, "height": 1},
                "slo": {
                    "ttft": STATISTICS, "tpot": STATISTICS, "itl": STATISTICS, "latency": STATISTICS, "attainment": 0.9,
                    "confidence": 0.9,
                },
            }
            for index, (length, amount, load) in enumerate(
                zip(
                    LENGTHS, AMOUNTS, ({"rate_per_s": 1.0, "arrival_cv": 2.0}, {"concurrency": 1}, *[None] * 3),
                    strict=True,
                )
            )
        ],
        "cache": {
            "tiers": [
                {
                    "name": "host", "unit_bytes": 1e9, "max_units": 1, "usd_per_gb_hour": 1.0,
                    "bandwidth_bytes_per_s": 1e9, "request_bandwidth_bytes_per_s": 1e9,
                },
            ],
            "window_s": 1.0,
            "block_tokens": 16,
        },
        "engine": {"name": "sglang", "version": "1", "memory_utilisation": 0.5, "max_context_tokens": 4096,
                   "async_scheduling": False, "host_cache_bytes_per_gpu": 8e9},
        "availability": {"level": "n+1", "per": "node"},
        "costs": {"profiles": ["p"], "calibration": "none"},
        "objective": objective,
        "limits": {"gpus": 1, "usd_per_hour": 1.0},
        "current": "plan.json",
        "seed": 1,
    }
    for objective in (
        {"maximize": "goodput_per_gpu", "expected": True},
        {"minimize": "gpus"},
        {"pareto": ["tokens_per_s_per_gpu", "tokens_per_s_per_user"]},
    )
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in LIMITS[kind]])
def test_two_values_of_a_limit_that_is_read_have_two_plans(folder: Path, kind: str, name: str) -> None:
    first, second, changes = LIMITS[kind][name]
    assert outcome(folder, kind, changes, first) != outcome(folder, kind, changes, second)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in KINDS for name in FLAGS])
def test_a_limit_that_is_not_read_is_refused_by_its_flag(folder: Path, kind: str, name: str) -> None:
    if name in find_kind(kind).reads.limits:
        return
    with pytest.raises(PlannerError, match="do not read") as raised:
        solved(folder, kind, "", GIVEN[name])
    assert raised.value.where == FLAGS[name]
    assert raised.value.hint


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_backend_is_refused_everywhere(folder: Path, kind: str) -> None:
    with pytest.raises(PlannerError, match="unknown backend `nonsense`"):
        solved(folder, kind, "", Limits(backend="nonsense"))


@pytest.mark.parametrize(
    ("kind", "changes", "limits", "told"),
    [
        ("experts", "options.policy=realtime ; seed=3", None, "with `policy: realtime`"),
        ("experts", "options.groups=4", None, "`options.groups` has no effect with `policy: static`"),
        ("train", "options.lora_rank=4", None, "without `task: lora`"),
        ("train", "engine.name=sglang", None, "`sglang` serves"),
        ("train", "engine.name=vllm", None, "`vllm` serves"),
        ("train", "options.reliability={remote_write: 1GB/s, slow_speed: 0.5}", None, "without `slow_nodes`"),
        ("train", "options.optimizer=sgd", None, "`sgd` have no cost"),
        ("rl", "options.late_change=1s", None, "without `late_thresholds`"),
        ("serve", "options.simulated_requests=1000", None, "without `judged_by: simulation`"),
        ("serve", "options.judged_by=simulation ; options.choice=measured", None, "placements of all forms"),
        ("serve", "options.micro_batches=[2]", None, "without `attention-ffn`"),
        ("fleet", "options.jobs.1.usd_per_missing=2", None, "without a `load` or a `target`"),
        ("fleet", "options.jobs.0.target=2", None, "a load and a target"),
        ("fleet", "options.jobs.1.deadline=6h", None, "without a `target`"),
        ("fleet", "options.jobs.0.restarts=job", None, "without a `start_up`"),
        ("fleet", "options.jobs.0.unit_nodes=2", None, "with a `curve`"),
        ("fleet", "options.jobs.0.safety=5%", None, "with a `curve`"),
        ("fleet", "options.jobs.0.deadline=6h", None, "for a job with a load"),
        ("place", "options.pp=[1]", None, "where engines batch"),
        ("place", ONE_PASS + " ; options.max_batch=4", None, "with `batching: false`"),
        ("place", ONE_PASS + " ; models.m.kv_cache=fp8", None, "answer in one pass"),
        ("experts", "options.policy=realtime", Limits(gap=0.1), "with `policy: realtime`"),
        ("rl", HORIZON, Limits(time_limit_s=1.0), "on a horizon"),
        ("rl", HORIZON, Limits(gap=0.1), "on a horizon"),
        ("rl", "", Limits(threads=2), "without `fused_training`"),
        ("serve", "", Limits(threads=2), "`mathopt-gscip` runs on one thread"),
        ("serve", "", Limits(threads=2, backend="mathopt-highs"), "`mathopt-highs` runs on one thread"),
    ],
)
def test_what_other_choices_leave_without_effect_is_refused(
    folder: Path, kind: str, changes: str, limits: Limits | None, told: str
) -> None:
    with pytest.raises(PlannerError, match=told) as raised:
        solved(folder, kind, changes, limits)
    assert raised.value.where
    assert raised.value.hint


def test_threads_reach_the_backend_that_can_use_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from planner.solvers.backends import pulp_cbc
    from planner.solvers.backends.model import LinearModel
    from planner.solvers.backends.outcome import BackendLimits, BackendOutcome

    run, seen = pulp_cbc.run, set[int]()

    def listen(model: LinearModel, limits: BackendLimits) -> BackendOutcome:
        seen.add(limits.threads)
        return run(model, limits)

    monkeypatch.setattr(pulp_cbc, "run", listen)
    solved(folder, "serve", "", Limits(threads=2, backend="pulp-cbc"))
    assert seen == {2}


NOT_LIMITS = {"problem", "output", "as_json", "overrides", "level", "profiles", "show_config", "verbose"}
NOT_LIMITS |= {"fix", "most", "fewest_shapes", "running", "loss", "moves"}
"""What else `planner solve` takes: fields of the problem by other names, which plans are wanted, and where they go."""


def test_every_flag_of_solve_is_a_limit_that_some_kind_reads_or_names_fields_of_the_problem() -> None:
    verb = built_command().commands["solve"]
    flags = {parameter.opts[0] for parameter in verb.params if parameter.name not in NOT_LIMITS}
    assert flags == set(FLAGS.values())
    read = {parameter.envvar for parameter in verb.params if parameter.envvar} - {"PLANNER_LEVEL"}
    assert read | {"PLANNER_PROFILES"} == set(VARIABLES)


VARIABLES = {
    "PLANNER_TIME_LIMIT": ("time_limit_s", "9s"),
    "PLANNER_GAP": ("gap", "9%"),
    "PLANNER_SEED": ("seed", "9"),
    "PLANNER_THREADS": ("threads", "2"),
    "PLANNER_BACKEND": ("backend", "pulp-cbc"),
    "PLANNER_PROFILES": ("costs.profiles", "profiles"),
}


@pytest.mark.parametrize(("kind", "variable"), [(kind, variable) for kind in KINDS for variable in VARIABLES])
def test_a_variable_that_is_not_read_is_refused_by_its_name(
    folder: Path, kind: str, variable: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, value = VARIABLES[variable]
    if find_kind(kind).reads.reads(name):
        return
    path = folder / f"{kind}.json"
    path.write_text(json.dumps(written(kind, "")[0]))
    monkeypatch.setenv(variable, value)
    assert main(["solve", str(path)]) == 2
    error = capsys.readouterr().err
    assert variable in error.partition(": ")[2].partition(": ")[0]
    assert "do not read" in error


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", ["absent", "dense-8"])
def test_a_catalog_that_is_none_is_refused_by_the_name_of_its_variable(
    folder: Path, kind: str, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANNER_CATALOG", str(folder / wrong))
    with pytest.raises(PlannerError) as raised:
        solved(folder, kind, "")
    assert raised.value.where == "PLANNER_CATALOG"
