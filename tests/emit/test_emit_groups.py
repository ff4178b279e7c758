"""Launch scripts of placements: an engine of each model of each group, on its GPUs, with its part of their memory."""

import json
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.api import solve
from planner.check import check_plan
from planner.emit.options import ClusterOptions
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.kinds.registry import find_kind
from planner.load.problems import load_problem
from planner.plan.findings import FAILED
from planner.plan.schema import Envelope

FOUR = Path(__file__).parent.parent.parent / "examples" / "place-four-models.yaml"
QUICK = ["options.simulated_requests=300"]


@pytest.fixture(scope="module")
def plan() -> tuple[Envelope, PlaceDecision]:
    envelope = solve(load_problem(FOUR, overrides=QUICK))
    return envelope, PlaceDecision.model_validate(envelope.decision)


def engines(script: str) -> list[dict[str, str]]:
    """Flags of every engine of a script, with its devices and its checkpoint."""
    commands = re.findall(r"CUDA_VISIBLE_DEVICES=(\S+) \\\nvllm serve (\S+) \\\n((?:  --.*\n)+)", script)
    return [
        {"devices": devices, "checkpoint": checkpoint} | dict(re.findall(r"--([a-z-]+) (\S+)", flags.replace("\\", "")))
        for devices, checkpoint, flags in commands
    ]


def test_every_host_has_an_engine_on_the_devices_of_its_group(plan: tuple[Envelope, PlaceDecision]) -> None:
    envelope, decision = plan
    rows = engines(emit(envelope, decision, "vllm-groups")["launch-node-00.sh"])
    assert len(rows) == len(decision.hosts)
    first = {block.role: block.first_device for block in decision.placement}
    size = {role.name: role.parallelism.tp for role in decision.roles}
    wanted = sorted(
        (",".join(map(str, range(first[host.group], first[host.group] + size[host.group]))), str(host.max_batch))
        for host in decision.hosts
    )
    assert sorted((row["devices"], row["max-num-seqs"]) for row in rows) == wanted
    assert len({row["port"] for row in rows}) == len(rows)


def test_engines_of_a_gpu_take_no_more_of_it_than_the_problem_allows(plan: tuple[Envelope, PlaceDecision]) -> None:
    envelope, decision = plan
    taken = defaultdict[str, float](float)
    caches = defaultdict[str, float](float)
    for row in engines(emit(envelope, decision, "vllm-groups")["launch-node-00.sh"]):
        taken[row["devices"]] += float(row["gpu-memory-utilization"])
        caches[row["devices"]] += float(row["kv-cache-memory-bytes"])
    assert all(share == pytest.approx(0.9, abs=1e-3) for share in taken.values())
    stated = sorted(role.memory.kv_cache_bytes for role in decision.roles if role.memory is not None)
    assert sorted(caches.values()) == pytest.approx(stated, rel=1e-6)


def test_routes_name_every_engine_once_and_share_all_requests(plan: tuple[Envelope, PlaceDecision]) -> None:
    envelope, decision = plan
    files = emit(envelope, decision, "vllm-groups")
    routes = json.loads(files["routes.json"])
    ports = {row["port"] for row in engines(files["launch-node-00.sh"])}
    told = {str(each["port"]) for model in routes["models"].values() for each in model["engines"]}
    assert told == ports
    for model in routes["models"].values():
        assert sum(each["expected_share"] for each in model["engines"]) == pytest.approx(1.0)
    assert files["launch-router.sh"].count("--policy power_of_two") == len(routes["models"])


def test_groups_of_one_pass_have_no_engine(plan: tuple[Envelope, PlaceDecision]) -> None:
    envelope, decision = plan
    options = {"batching": False, "simulated_requests": 300}
    other = envelope.model_copy(update={"inputs": {**envelope.inputs, "options": options}})
    with pytest.raises(PlannerError, match="one by one"):
        emit(other, decision, "vllm-groups")
    with pytest.raises(PlannerError, match="cannot express plans of kind `place`"):
        emit(envelope, decision, "sglang")


CLAIMS = ClusterOptions(image="e:1", router_image="r:1", gpus="claims")
EXAMPLES = FOUR.parent


def documents(text: str) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(text) if each]


def of_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def test_pods_of_a_group_name_one_claim_and_start_one_after_the_other(plan: tuple[Envelope, PlaceDecision]) -> None:
    envelope, decision = plan
    files = emit(envelope, decision, "kubernetes", (), CLAIMS)
    objects = documents(files["plan.yaml"])
    sets, claims = of_kind(objects, "StatefulSet"), of_kind(objects, "ResourceClaim")
    assert len(sets) == len(decision.hosts)
    number = Counter(host.group for host in decision.hosts)
    named, first = Counter[str](), Counter[str]()
    for each in sets.values():
        spec = each["spec"]["template"]["spec"]
        (claim,) = spec["resourceClaims"]
        if "resourceClaimName" in claim:
            named[claim["resourceClaimName"]] += 1
            first[claim["resourceClaimName"]] += "initContainers" not in spec
            waits = [container["command"][-1] for container in spec.get("initContainers", ())]
            addresses = [re.fullmatch(r"http://(.*)-0\.\1:8000/health", url) for url in waits]
            assert all(address is not None and address[1] in sets for address in addresses)
    assert sorted(named.values()) == sorted(count for count in number.values() if count > 1)
    assert set(first.values()) == {1}
    assert set(named) == set(claims)
    routes = json.loads(files["routes.json"])
    hosts = {row["host"].split(".")[1] for model in routes["models"].values() for row in model["engines"]}
    assert hosts == set(sets)
    with pytest.raises(PlannerError, match="which counts of GPUs cannot say"):
        emit(envelope, decision, "kubernetes", (), ClusterOptions(router_image="r:1"))


def test_services_of_a_group_start_one_after_the_other_on_its_devices(plan: tuple[Envelope, PlaceDecision]) -> None:
    envelope, decision = plan
    files = emit(envelope, decision, "docker-compose", (), ClusterOptions(router_image="r:1"))
    services = documents(files["compose-node-00.yaml"])[0]["services"]
    assert len(services) == len(decision.hosts)
    of_devices = defaultdict[str, list[str]](list)
    for name, each in services.items():
        of_devices[str(each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"])].append(name)
    for names in of_devices.values():
        before = [name for each in names for name in services[each].get("depends_on", {})]
        assert len(set(before)) == len(before) == len(names) - 1
        assert set(before) <= set(names)
    assert "routes.json" in files


def test_every_group_is_a_worker_that_takes_one_replica_of_each_of_its_models(
    plan: tuple[Envelope, PlaceDecision],
) -> None:
    envelope, decision = plan
    alone = {"parallelism": decision.roles[0].parallelism.model_copy(update={"tp": 1})}
    single = decision.model_copy(
        update={
            "roles": tuple(role.model_copy(update=alone) for role in decision.roles),
            "hosts": tuple(host.model_copy(update={"kv_cache_bytes": 1e9}) for host in decision.hosts),
            "placement": tuple(
                block.model_copy(update={"axes": (), "first_device": index})
                for index, block in enumerate(decision.placement)
            ),
        }
    )
    files = emit(envelope, single, "ray-serve", (), ClusterOptions(image="e:1"))
    service = of_kind(documents(files["plan.yaml"]), "RayService")
    workers = next(iter(service.values()))["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert len(workers) == len(decision.roles)
    offered = [json.loads(json.loads(worker["rayStartParams"]["resources"])) for worker in workers]
    room = sum(map(Counter[str], offered), Counter[str]())
    wanted, shares = Counter[str](), dict[str, float]()
    for application in documents(files["serve.yaml"])[0]["applications"]:
        (config,) = application["args"]["llm_configs"]
        (bundle,) = config["placement_group_config"]["bundles"]
        (own,) = (name for name in bundle if name not in ("GPU", "CPU"))
        wanted[own] = config["deployment_config"]["autoscaling_config"]["max_replicas"] * bundle[own]
        shares[own] = bundle["GPU"]
    assert all(sum(share for name, share in shares.items() if name in own) <= 1.0 + 1e-9 for own in offered)
    assert wanted == room
    assert sorted(wanted.values()) == sorted(Counter(host.model for host in decision.hosts).values())


@pytest.mark.parametrize(
    ("example", "overrides", "told", "key"),
    [
        ("place-gpu-mix.yaml", [], "a mix counts instances", "buckets"),
        ("place-hetero-70b.yaml", ["options.layers={max_stages: 2}"], "unequal numbers of layers", "next"),
        ("place-lora.yaml", ["options.lora.merged=false"], "", "adapters"),
    ],
)
def test_shares_of_every_form_are_written_and_what_no_engine_starts_is_refused(
    example: str, overrides: list[str], told: str, key: str
) -> None:
    envelope = solve(load_problem(EXAMPLES / example, overrides=overrides))
    decision = PlaceDecision.model_validate(envelope.decision)
    rows = json.loads(emit(envelope, decision, "routes")["routes.json"])[key]
    for each in rows.values():
        assert sum(row.get("share", row.get("weight")) for row in each) == pytest.approx(1.0)
    if told:
        for target in ("vllm-groups", "kubernetes", "docker-compose", "ray-serve"):
            with pytest.raises(PlannerError, match=told) as raised:
                emit(envelope, decision, target)
            assert "--target routes" in (raised.value.hint or "")
    else:
        assert emit(envelope, decision, "kubernetes", (), CLAIMS)
        with pytest.raises(PlannerError, match="adapters of folders"):
            emit(envelope, decision, "ray-serve", (), ClusterOptions(image="e:1"))


PLANS = Path(__file__).parent.parent / "plans"


def test_routes_of_a_plan_by_hand_name_what_is_missing() -> None:
    envelope = Envelope.model_validate_json((PLANS / "place.json").read_text())
    decision = PlaceDecision.model_validate(envelope.decision)
    assert set(json.loads(emit(envelope, decision, "routes")["routes.json"])["models"]) == {"llama", "large", "small"}
    with pytest.raises(PlannerError, match="role `group-0` has no devices"):
        emit(envelope, decision.model_copy(update={"placement": ()}), "routes")
    with pytest.raises(PlannerError, match="role `group-0` does not say which layers it has"):
        emit(envelope, decision.model_copy(update={"hosts": ()}), "routes")


def test_a_plan_inside_a_plan_that_is_none_is_refused_with_its_place() -> None:
    data = json.loads((PLANS / "workflow.json").read_text())
    inner = next(stage["plan"] for stage in data["decision"]["stages"] if stage.get("plan"))
    inner["decision"]["roles"][0]["replicas"] = -3
    envelope = Envelope.model_validate(data)
    decision = find_kind("workflow").decision.model_validate(envelope.decision)
    with pytest.raises(PlannerError, match="must be at least 1, found -3") as raised:
        emit(envelope, decision, "argo")
    assert raised.value.where.endswith(".plan.decision.roles.0.replicas")
    (told,) = (each for each in check_plan(envelope, decision) if each.rule == "workflow.plan")
    assert (told.verdict, told.where) == (FAILED, raised.value.where)


def test_a_role_of_a_plan_inside_a_plan_that_differs_from_that_of_the_plan_fails_its_check() -> None:
    data = json.loads((PLANS / "workflow.json").read_text())
    role = data["decision"]["roles"][0]
    role["limits"] = {**role.get("limits", {}), "max_batch": 7}
    envelope = Envelope.model_validate(data)
    decision = find_kind("workflow").decision.model_validate(envelope.decision)
    (told,) = (each for each in check_plan(envelope, decision) if each.rule == "workflow.plan")
    assert told.verdict == FAILED
    assert role["name"] in told.what
