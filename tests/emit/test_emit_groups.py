"""Launch scripts of placements: an engine of each model of each group, on its GPUs, with its part of their memory."""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from planner.api import solve
from planner.emit.registry import emit
from planner.errors import PlannerError
from planner.kinds.place.decision import PlaceDecision
from planner.load.problems import load_problem
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
