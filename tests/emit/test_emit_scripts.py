"""What the emitted scripts do when they run: devices, ports, addresses, stopping, exit codes."""

import re
import signal
import subprocess
import time
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from emit_plans import ALL, BY_TARGET, Case, RolePlan
from emit_runs import Stage

from planner.emit.registry import emit
from planner.plan.schema import Axis

PORTS = re.compile(r"(?:-port |--dist-init-addr \S*:|SIDE_CHANNEL_PORT=)(\d+)")
TWO = Case((RolePlan(replicas=2, degrees={"tp": 1}),), {"default": {"name": "org/model"}}, gpus_per_node=2)
SPLIT = Case((RolePlan(degrees={"tp": 4}),), {"default": {"name": "org/model"}}, 2, gpus_per_node=2)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


@pytest.mark.parametrize(("target", "case_name"), ALL)
def test_every_placed_gpu_is_visible_to_exactly_one_instance(target: str, case_name: str) -> None:
    envelope, decision = BY_TARGET[target][case_name].build()
    for name, text in emit(envelope, decision, target).items():
        visible = [gpus.split(",") for gpus in re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", text)]
        assert max(Counter(chain.from_iterable(visible)).values(), default=1) == 1
        assert bool(visible) == name.startswith("launch-node")
    texts = emit(envelope, decision, target).values()
    num_visible = sum(gpus.count(",") + 1 for text in texts for gpus in re.findall(r"CUDA_VISIBLE_DEVICES=(\S+)", text))
    assert num_visible == sum(role.replicas * role.parallelism.devices for role in decision.roles)


@pytest.mark.parametrize(("target", "case_name"), ALL)
def test_no_two_sockets_of_a_node_share_a_port(target: str, case_name: str) -> None:
    for text in emit(*BY_TARGET[target][case_name].build(), target).values():
        ports = PORTS.findall(text)
        assert ports
        assert len(set(ports)) == len(ports)


def test_ranks_are_listed_in_the_order_of_the_engine() -> None:
    role = RolePlan(degrees={"tp": 2, "pp": 2}, order=("tp", "pp"))
    case = Case((role,), {"default": {"name": "org/model"}}, gpus_per_node=4)
    assert "CUDA_VISIBLE_DEVICES=0,2,1,3 " in emit(*case.build(), "vllm")["launch-node-00.sh"]


def test_axes_of_one_name_count_on_as_one() -> None:
    envelope, decision = Case((RolePlan(degrees={"tp": 4}),), {"default": {"name": "org/model"}}).build()
    axes = (Axis(name="tp", size=2, stride=4), Axis(name="tp", size=2, stride=1))
    placement = (decision.placement[0].model_copy(update={"axes": axes}),)
    text = emit(envelope, decision.model_copy(update={"placement": placement}), "vllm")["launch-node-00.sh"]
    assert "CUDA_VISIBLE_DEVICES=0,1,4,5 " in text


def test_a_node_without_a_name_takes_its_address_from_the_environment(stage: Stage) -> None:
    text = emit(*SPLIT.build(), "vllm")["launch-node-01.sh"]
    (call,) = stage.run(text, NODE_00="10.0.0.7", NODE_01="10.0.0.8")
    assert call.arguments[call.arguments.index("--master-addr") + 1] == "10.0.0.7"
    assert call.environment["VLLM_HOST_IP"] == "10.0.0.8"


def test_host_names_become_addresses_where_they_resolve(stage: Stage) -> None:
    text = emit(*SPLIT.build(), "vllm")["launch-node-01.sh"]
    (call,) = stage.run(text, NODE_00="known.example")
    assert call.arguments[call.arguments.index("--master-addr") + 1] == "10.1.2.3"
    assert call.environment["VLLM_HOST_IP"] == "node-01"


def test_stopping_a_script_stops_what_it_started(stage: Stage) -> None:
    script = subprocess.Popen(
        ["bash", "-c", emit(*TWO.build(), "vllm")["launch-node-00.sh"]],
        env=stage.environment(THEN=str(_sleeper(stage))),
    )
    pids = _wait_for_pids(stage, 2)
    script.send_signal(signal.SIGTERM)
    assert script.wait(timeout=120) == 143
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_script_fails_when_an_engine_fails(stage: Stage) -> None:
    text = emit(*TWO.build(), "sglang")["launch-node-00.sh"]
    environment = stage.environment(THEN="false")
    assert subprocess.run(["bash", "-c", text], env=environment, timeout=120, check=False).returncode == 1


def test_a_router_knows_every_instance_by_its_function(stage: Stage) -> None:
    case = BY_TARGET["sglang"]["disaggregated-2p1d"]
    (router,) = stage.run(emit(*case.build(), "sglang")["launch-router.sh"])
    urls = [
        router.arguments[place + 1] for place, word in enumerate(router.arguments) if word in ("--prefill", "--decode")
    ]
    bootstraps = [router.arguments[place + 2] for place, word in enumerate(router.arguments) if word == "--prefill"]
    servers = stage.run(emit(*case.build(), "sglang")["launch-node-00.sh"])
    listening = {_value(call.arguments, "--port") for call in servers}
    assert {url.rsplit(":", 1)[1] for url in urls} == listening
    assert bootstraps == sorted(
        filter(None, (_value(call.arguments, "--disaggregation-bootstrap-port") for call in servers))
    )


def test_instances_that_share_no_load_need_no_router() -> None:
    assert list(emit(*SPLIT.build(), "sglang")) == ["launch-node-00.sh", "launch-node-01.sh"]
    files = emit(*BY_TARGET["vllm"]["two-models-one-instance-each"].build(), "vllm")
    assert list(files) == ["launch-node-00.sh"]
    assert 'Clients of "Qwen/Qwen3-8B" talk to port 8001 of node 00.' in files["launch-node-00.sh"]


@pytest.mark.parametrize("target", ["vllm", "sglang"])
def test_the_scripts_of_a_large_plan_are_written_at_once(target: str) -> None:
    role = RolePlan(replicas=512, degrees={"tp": 4})
    files = emit(*Case((role,), {"default": {"name": "org/model"}}, 256).build(), target)
    assert len(files) == 257
    assert "launch-node-255.sh" in files


def _value(arguments: tuple[str, ...], flag: str) -> str:
    return arguments[arguments.index(flag) + 1] if flag in arguments else ""


def _sleeper(stage: Stage) -> Path:
    sleeper = stage.programs / "sleeper"
    sleeper.write_text('#!/bin/bash\necho $$ >"$NOTES/$$.pid"\nexec sleep 60\n')
    sleeper.chmod(0o755)
    return sleeper


def _wait_for_pids(stage: Stage, count: int) -> list[str]:
    deadline = time.monotonic() + 120
    while len(pids := [path.stem for path in stage.notes.glob("*.pid")]) < count:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return pids
