"""Workflow plans leave as graphs of services that the projects' own schemas take."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.emit.options import ClusterOptions
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.registry import find_kind
from planner.load.problems import load_plan
from planner.plan.schema import Decision, Envelope

PLAN = Path(__file__).parents[1] / "plans" / "workflow.json"
VALIDATORS = Path(__file__).parents[2].parent / "shared" / "validators"
HOME = Path(os.environ.get("VALIDATORS_HOME", Path.home() / ".cache" / "planner-validators"))
OPTIONS = ClusterOptions(image="engine:1", router_image="router:1", namespace="serving")


def planned(image: str | None = None, after: list[str] | None = None) -> tuple[Envelope, Decision]:
    """The hand-written plan, with a container of its function, and other stages before its model."""
    envelope, decision = load_plan(PLAN)
    inputs: Any = json.loads(json.dumps(envelope.inputs))
    for stage in inputs["options"]["stages"]:
        for option in stage.get("options", ()) if image else ():
            option["image"] = image
        stage["after"] = after if after is not None and stage["name"] == "answer" else stage.get("after", [])
    return envelope.model_copy(update={"inputs": inputs}), decision


def documents(text: str) -> list[Any]:
    return [each for each in yaml.safe_load_all(text) if each]


@pytest.mark.parametrize("target", ["kserve-graph", "argo", "ray-serve-graph"])
def test_emitted_graphs_are_taken_by_the_schemas_at_hand(target: str, tmp_path: Path) -> None:
    if not (HOME / "k8s").is_dir() or not VALIDATORS.is_dir():
        pytest.skip("needs ../shared/validators and its environment `k8s` in VALIDATORS_HOME")
    options = ClusterOptions(image="engine:1") if target == "ray-serve-graph" else OPTIONS
    for name, text in emit(*planned("search:1"), target, options=options).items():
        if name in ("plan.yaml", "services.yaml"):  # there is no schema of Argo's workflows, nor of Ray's own file
            (tmp_path / name).write_text(text)
            python = HOME / "k8s" / "bin" / "python"
            command = [str(python), str(VALIDATORS / "validate_k8s.py"), str(tmp_path / name)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr


def test_an_inference_graph_calls_stages_in_order_at_their_services() -> None:
    *objects, graph = documents(emit(*planned("search:1"), "kserve-graph", options=OPTIONS)["plan.yaml"])
    steps = graph["spec"]["nodes"]["root"]["steps"]
    assert [step["name"] for step in steps] == ["search", "answer"]
    services = {each["metadata"]["name"] for each in objects if each["kind"] == "Service"}
    assert all(step["serviceUrl"].split("/")[2].partition(":")[0] in services for step in steps)
    (function,) = [each for each in objects if each["kind"] == "Deployment" and each["metadata"]["name"] == "search"]
    assert function["spec"]["replicas"] == 1
    assert function["spec"]["template"]["spec"]["containers"][0]["image"] == "search:1"


def test_stages_of_one_level_are_an_ensemble() -> None:
    *_, graph = documents(emit(*planned(after=[]), "kserve-graph", options=OPTIONS)["plan.yaml"])
    nodes = graph["spec"]["nodes"]
    assert nodes["root"]["steps"] == [{"nodeName": "level-0", "name": "level-0"}]
    assert nodes["level-0"]["routerType"] == "Ensemble"
    assert len(nodes["level-0"]["steps"]) == 2


def test_functions_without_a_container_are_named_as_what_must_be_there() -> None:
    text = emit(*planned(), "kserve-graph", options=OPTIONS)["plan.yaml"]
    assert 'Service "search" on port 8080 is not among these: option "small", 1 servers.' in text


def test_tasks_of_an_argo_workflow_wait_for_those_of_the_graph() -> None:
    files = emit(*planned(), "argo", options=OPTIONS)
    (workflow,) = documents(files["workflow.yaml"])
    graph, *templates = workflow["spec"]["templates"]
    tasks = {task["name"]: task.get("dependencies", []) for task in graph["dag"]["tasks"]}
    assert tasks == {"search": [], "answer": ["search"]}
    assert {template["name"] for template in templates} == set(tasks)
    assert all(template["http"]["url"].startswith("http://") for template in templates)


def test_a_ray_graph_has_an_application_a_model_and_replicas_of_functions() -> None:
    files = emit(*planned(), "ray-serve-graph", options=ClusterOptions(image="engine:1"))
    compile(files["graph.py"], "graph.py", "exec")
    (config,) = documents(files["serve.yaml"])
    graph, answer = config["applications"]
    assert {"name": "search", "num_replicas": 1, "max_ongoing_requests": 1} in graph["deployments"]
    assert answer["route_prefix"] == "/answer"
    (service,) = [each for each in documents(files["plan.yaml"]) if each["kind"] == "RayService"]
    assert documents(service["spec"]["serveConfigV2"]) == [config]
    assert len(service["spec"]["rayClusterConfig"]["workerGroupSpecs"]) == 1


def test_options_that_a_graph_has_no_place_for_are_refused() -> None:
    with pytest.raises(PlannerError, match="has no place for it"):
        emit(*planned(), "argo", options=ClusterOptions(measure="vllm"))
    with pytest.raises(PlannerError, match="cannot express plans of kind `workflow`"):
        emit(*planned(), "vllm")
    assert find_kind("workflow").name == "workflow"
