"""Plans with equal engines simulated as elastic instances: from the operation file to the figures, and refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from planner.cli.main import main
from planner.load.problems import load_plan
from planner.simulate.fleet.operation_spec import OperationSpec
from planner.simulate.plans.fleet import fleet_of_plan
from planner.simulate.plans.setting import Policies
from planner.simulate.requests.stream import Requests

PROBLEM = """
schema: planner.problem/1
kind: serve
models: {llama: {name: meta-llama/Llama-3.1-8B-Instruct}}
cluster: {pools: [{gpu: h100, nodes: 1}]}
workloads:
  - {input_tokens: 4000, output_tokens: 100, load: {rate: 8/s}}
objective: {minimize: gpus}
options: OPTIONS
"""
ELASTIC = OperationSpec.model_validate({"elastic": {}})
REQUESTS = Requests.open_stream([*np.arange(39) / 8.0, 60.0], [4_000] * 39 + [100_000], np.full(40, 100))


def solved(folder: Path, options: str) -> Path:
    (folder / "problem.yaml").write_text(PROBLEM.replace("OPTIONS", options))
    assert main(["solve", str(folder / "problem.yaml"), "-o", str(folder / "plan.json")]) == 0
    plan = json.loads((folder / "plan.json").read_text())
    role = plan["decision"]["roles"][0]
    role["replicas"] = 4  # as many engines as are to share a cache, for longer prompts than the plan was made for
    role["limits"]["max_context_tokens"] = 131_072
    (folder / "plan.json").write_text(json.dumps(plan))
    return folder / "plan.json"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return solved(tmp_path_factory.mktemp("elastic"), "{modes: [colocated], tp: [1], max_batch: [32]}")


def trace(folder: Path) -> str:
    rows = zip(REQUESTS.arrival_s, REQUESTS.input_tokens, REQUESTS.output_tokens, strict=True)
    lines = ["arrival_s,input_tokens,output_tokens", *(",".join(map(str, row)) for row in rows)]
    (folder / "trace.csv").write_text("\n".join(lines) + "\n")
    return str(folder / "trace.csv")


def operation(folder: Path, text: str) -> str:
    (folder / "operation.yaml").write_text(text)
    return str(folder / "operation.yaml")


def test_a_plan_is_simulated_end_to_end_with_elastic_instances(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = ["simulate", str(plan), "--trace", trace(tmp_path), "--json"]
    file = operation(tmp_path, "schema: planner.operation/1\nelastic: {scale_up_above: 8}\n")
    capsys.readouterr()
    assert main([*whole, "--operation", file, "--requests", str(tmp_path / "requests.csv")]) == 0
    shared = json.loads(capsys.readouterr().out)
    assert main(whole) == 0
    apart = json.loads(capsys.readouterr().out)
    assert shared["complete"] == apart["complete"] == 40
    assert shared["prefill_degree"] > apart["prefill_degree"] == 1.0
    last = (tmp_path / "requests.csv").read_text().splitlines()[-1].split(",")
    assert last[-1] == "4"  # all prefill the long prompt together
    assert shared["times"]["ttft_s"]["p99"]["value"] < 0.7 * apart["times"]["ttft_s"]["p99"]["value"]


def test_instances_of_a_plan_exchange_over_the_links_of_their_node(plan: Path) -> None:
    fleet = fleet_of_plan(*load_plan(plan), REQUESTS, Policies(operation=ELASTIC)).fleet
    assert fleet.elastic is not None
    assert len(fleet.instances) == 4
    bytes_a_token = 2 * 32 * 8 * 128 * 2  # of Llama 3.1 8B
    assert fleet.elastic.ring_tokens_per_s == pytest.approx(450e9 / bytes_a_token)
    assert 32 * 1e-6 < fleet.elastic.exchange_s < 32 * 1e-5
    assert fleet.instances[0].grid.tokens[-1] >= 100_000


@pytest.mark.parametrize(
    ("options", "text", "message"),
    [
        ("", "elastic: {}\nspeculation: {draft_tokens: 2, acceptance: 50%}", "speculative decoding with elastic"),
        ("", "elastic: {}\ncontrol: {period: 5s}", "autoscaling with elastic"),
        ("", "elastic: {}\nadapters: {count: 3, slots: 2}", "adapters on elastic"),
        ("", "elastic: {scale_up_above: 0}", "operation.yaml:1"),
        ("", "elastic: {borrow: true}", "borrows"),
        ("{modes: [disaggregated], tp: [1], max_batch: [32]}", "elastic: {}", "do not share a cache"),
        ("{modes: [colocated], tp: [1], pp: [2], max_batch: [32]}", "elastic: {}", "pipelines of 2 stages"),
    ],
)
def test_what_cannot_be_elastic_is_refused(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: str, text: str, message: str
) -> None:
    chosen = solved(tmp_path, options) if options else plan
    assert main(["simulate", str(chosen), "--trace", trace(tmp_path), "--operation", operation(tmp_path, text)]) == 2
    assert message in capsys.readouterr().err
