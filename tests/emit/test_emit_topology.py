"""Topologies as Slurm and Kueue read them: read back to the nodes, racks and ranks of the plan; bad input."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.emit.registry import emit
from planner.emit.topology.kueue import DOMAIN, HOST, RACK
from planner.errors import PlannerError
from planner.kinds.train.decision import RackPlacement
from planner.plan.placement import role_devices
from planner.plan.schema import Axis, Block, Decision, Envelope, Role

PLANS = Path(__file__).parent.parent / "plans"
NODES, OUT = 36, (3,)


def plan(**pool: Any) -> Envelope:  # noqa: ANN401 - fields of a pool
    """The envelope of a plan whose problem has two NVL72 racks with a node out."""
    data = json.loads((PLANS / "train.json").read_text())
    names = [f"gb-{node:02}" for node in range(NODES)]
    stated = {"name": "p", "gpu": "gb200-nvl72", "nodes": NODES, "node_names": names, "out_of_service": list(OUT)}
    data["inputs"]["cluster"] = {"pools": [{**stated, **pool}]}
    return Envelope.model_validate(data)


def decided(nodes: list[int], *, pool: str = "p", replicas: int = 1) -> Decision:
    """Four ranks on each of the nodes, in that order, one block a node."""
    axes = (Axis(name="dp", size=4, stride=1),)
    blocks = tuple(Block(role="job", pool=pool, first_device=4 * node, axes=axes) for node in nodes)
    return Decision(
        roles=(Role(name="job", function="train", model="m", pool=pool, replicas=replicas),), placement=blocks
    )


USED = [20, 19, 0, 1, 2, 4, 5, 6, 21, 22]  # 6 of the first rack, 4 of the second


def test_a_host_file_gives_every_rank_its_node_in_rank_order() -> None:
    decision = decided(USED)
    hosts = emit(plan(), decision, "slurm-topology")["hostfile"].split()
    nodes = [device // 4 for _, device in role_devices(decision.placement, "job")]
    assert hosts == [f"gb-{node:02}" for node in nodes]


def test_blocks_and_switches_of_slurm_hold_the_nodes_in_service_of_each_rack() -> None:
    files = emit(plan(), decided(USED), "slurm-topology")
    blocks, tree = yaml.safe_load(files["topology.yaml"])
    racks = {
        f"rack{rack}": ",".join(f"gb-{node:02}" for node in range(NODES) if node // 18 == rack and node not in OUT)
        for rack in (0, 1)
    }
    assert {row["block"]: row["nodes"] for row in blocks["block"]["blocks"]} == racks
    assert blocks["block"]["block_sizes"] == [17]
    assert {row["switch"]: row["nodes"] for row in tree["tree"]["switches"][:-1]} == racks
    assert tree["tree"]["switches"][-1] == {"switch": "spine", "children": "rack0,rack1"}
    assert "#SBATCH --nodes=10\n" in files["slurm-options"]
    assert "#SBATCH --segment=2\n" in files["slurm-options"]


@pytest.mark.parametrize(
    ("nodes", "wanted"),
    [
        (USED, {"podset-slice-required-topology": RACK, "podset-slice-size": "2"}),
        ([18, 19, 20], {"podset-required-topology": RACK}),
    ],
)
def test_pods_of_a_job_ask_for_one_rack_or_for_slices_that_divide_the_share_of_each(
    nodes: list[int], wanted: dict[str, str]
) -> None:
    files = emit(plan(), decided(nodes), "kueue-topology")
    job_set = patched(yaml.safe_load(files["jobset-patch.yaml"]))
    template = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]
    assert {of_kueue(name): value for name, value in template["annotations"].items()} == wanted
    assert template["labels"] == {"a": "b"}
    assert job_set["metadata"]["annotations"].pop("planner/plan-digest") == "d"
    assert job_set["metadata"]["annotations"] == yaml.safe_load(files["lws-patch.yaml"])["metadata"]["annotations"]


@pytest.mark.parametrize(
    ("nodes", "replicas", "wanted"),
    [
        (USED, 1, {"podset-preferred-topology": RACK, "podset-group-name": "instance"}),
        ([18, 19, 0, 1], 2, {"podset-required-topology": RACK, "podset-group-name": "instance"}),
        ([18, 0, 1], 3, {"podset-required-topology": RACK}),
    ],
)
def test_leaders_and_workers_of_an_instance_are_one_group_that_asks_for_the_rack_of_the_plan(
    nodes: list[int], replicas: int, wanted: dict[str, str]
) -> None:
    """Kueue refuses slices of more than one pod for a leader, and groups whose members ask for different levels."""
    patch = yaml.safe_load(emit(plan(), decided(nodes, replicas=replicas), "kueue-topology")["lws-patch.yaml"])
    templates = patch["spec"]["leaderWorkerTemplate"]
    given = templates["workerTemplate"]["metadata"]["annotations"]
    assert {of_kueue(name): value for name, value in given.items()} == wanted
    assert templates.get("leaderTemplate") == (templates["workerTemplate"] if len(wanted) > 1 else None)


def of_kueue(name: str) -> str:
    return name.removeprefix("kueue.x-k8s.io/")


def patched(patch: list[dict[str, Any]]) -> dict[str, Any]:
    """A job set in short after a JSON patch of additions, each to a member that is there."""
    job_set: dict[str, Any] = {
        "metadata": {"annotations": {"planner/plan-digest": "d"}},
        "spec": {"replicatedJobs": [{"template": {"spec": {"template": {"metadata": {"labels": {"a": "b"}}}}}}]},
    }
    for change in patch:
        *path, last = [part.replace("~1", "/") for part in change["path"].split("/")[1:]]
        at: Any = job_set
        for part in path:
            at = at[int(part)] if isinstance(at, list) else at[part]
        at[last] = change["value"]
    return job_set


def test_levels_nest_from_racks_to_hosts_and_labels_name_the_rack_of_every_node_in_service() -> None:
    files = emit(plan(), decided(USED), "kueue-topology")
    topology, flavor = yaml.safe_load_all(files["kueue-topology.yaml"])
    assert [level["nodeLabel"] for level in topology["spec"]["levels"]] == [RACK, DOMAIN, HOST]
    assert flavor["spec"]["topologyName"] == topology["metadata"]["name"]
    labelled = {line.split()[4]: line.split()[5] for line in files["label-nodes.sh"].splitlines() if "kubectl" in line}
    assert labelled == {f"gb-{n:02}": f"{RACK}=rack-{n // 18}" for n in range(NODES) if n not in OUT}


@pytest.mark.parametrize(("nodes", "how"), [(USED, "preferred"), ([18, 19, 20], "required")])
def test_kai_finds_its_topology_by_name_from_the_owner_of_the_pods(nodes: list[int], how: str) -> None:
    """Kinds, versions and annotations as KAI-Scheduler documents them, on its page on topology."""
    files = emit(plan(), decided(nodes), "kueue-topology")
    (topology,) = yaml.safe_load_all(files["kai-topology.yaml"])
    assert (topology["apiVersion"], topology["kind"]) == ("kai.scheduler/v1alpha1", "Topology")
    assert [level["nodeLabel"] for level in topology["spec"]["levels"]] == [RACK, DOMAIN, HOST]
    given = yaml.safe_load(files["lws-patch.yaml"])["metadata"]["annotations"]
    assert given == {
        "kai.scheduler/topology": topology["metadata"]["name"],
        f"kai.scheduler/topology-{how}-placement": RACK,
    }


def test_labels_are_those_that_topograph_documents() -> None:
    """Tier 0 is the nearest to the node, and accelerators have a domain, as its engine for Kubernetes says."""
    assert (RACK, DOMAIN) == ("fabric.topograph.run/tier-0", "accelerator.topograph.run/domain")


def test_topologies_of_slurm_have_the_fields_of_its_manual_in_its_order() -> None:
    """topology.yaml(5): the name first, one type each, blocks with sizes, switches with nodes or children."""
    blocks, tree = yaml.safe_load(emit(plan(), decided(USED), "slurm-topology")["topology.yaml"])
    assert list(blocks) == ["topology", "cluster_default", "block"]
    assert list(tree) == ["topology", "cluster_default", "tree"]
    assert blocks["topology"] != tree["topology"]
    assert [entry["cluster_default"] for entry in (blocks, tree)] == [True, False]
    assert set(blocks["block"]) == {"block_sizes", "blocks"}
    assert all(set(row) == {"block", "nodes"} for row in blocks["block"]["blocks"])
    assert all(set(row) in ({"switch", "nodes"}, {"switch", "children"}) for row in tree["tree"]["switches"])
    options = emit(plan(), decided(USED), "slurm-topology")["slurm-options"]
    assert "--switches=2 stands in place of --segment" in options


def test_the_tree_for_older_releases_of_slurm_is_that_of_its_yaml() -> None:
    files = emit(plan(), decided(USED), "slurm-topology")
    lines = [line.split() for line in files["topology.conf"].splitlines() if not line.startswith("#")]
    rows = [dict(word.split("=") for word in line) for line in lines]
    _, tree = yaml.safe_load(files["topology.yaml"])
    named = {"SwitchName": "switch", "Nodes": "nodes", "Switches": "children"}
    assert [{named[name]: value for name, value in row.items()} for row in rows] == tree["tree"]["switches"]


@pytest.mark.slow
def test_a_controller_of_slurm_reads_the_racks_and_takes_the_job(tmp_path: Path) -> None:
    up = Path(__file__).parents[2].parent / "shared" / "validators" / "slurm_up.sh"
    if not up.is_file() or not all(map(shutil.which, ("slurmctld", "munged", "sbatch"))):
        pytest.skip("needs ../shared/validators and Slurm's controller")
    folder, stop = tmp_path / "slurm", up.with_name("slurm_down.sh")
    files = emit(plan(node_names=[f"gpu{node + 1:03}" for node in range(NODES)]), decided(USED), "slurm-topology")
    folder.mkdir()
    (folder / "topology.conf").write_text(files["topology.conf"])
    starter = tmp_path / up.name  # with the plugin, and a port of its own
    starter.write_text(up.read_text().replace("16817", "16827\nTopologyPlugin=topology/tree"))
    job = [line for line in files["slurm-options"].splitlines() if "--segment" not in line]
    batch = tmp_path / "job.sbatch"
    batch.write_text("\n".join(["#!/bin/bash", *job, "#SBATCH --switches=2", "true"]) + "\n")

    def told(*command: str) -> str:
        environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
        return ran.stdout + ran.stderr

    try:
        told("bash", str(starter), str(folder), str(NODES), "4")
        rows = [
            dict(word.split("=") for word in line.split()) for line in told("scontrol", "show", "topo").splitlines()
        ]
        assert "gpu[001-003,005-007,020-023]" in told("sbatch", "--test-only", str(batch))
    finally:
        told("bash", str(stop), str(folder))
    racks = yaml.safe_load(files["topology.yaml"])[1]["tree"]["switches"][:-1]
    assert {row["SwitchName"]: row["Nodes"] for row in rows[:-1]} == {each["switch"]: each["nodes"] for each in racks}


class OnRacks(Decision):
    """A decision with the rack of every node."""

    racks: RackPlacement


def on_racks(*rows: tuple[int, ...]) -> OnRacks:
    placed = RackPlacement(rack_of_node=rows, busiest_uplink_s=0.0, bound_s=0.0, rank_order_s=0.0)
    return OnRacks(**dict(decided(USED)), racks=placed)


def test_a_host_file_follows_the_racks_that_a_training_plan_decided() -> None:
    hosts = emit(plan(), on_racks((1, 0), (0, 1)), "slurm-topology")["hostfile"].split()
    assert hosts[::4] == ["gb-18", "gb-00", "gb-01", "gb-19"]
    assert [int(host[3:]) // 18 for host in hosts[::4]] == [1, 0, 0, 1]
    with pytest.raises(PlannerError, match="more nodes of rack 0 than are in service"):  # one of them is out
        emit(plan(), on_racks((0,) * 18), "slurm-topology")


def test_racks_of_unequal_sizes_are_read_back_from_both_launchers() -> None:
    sizes = [7, 20, 9]
    envelope = plan(gpu="h100", topology={"racks": sizes})
    rack_of = [rack for rack, size in enumerate(sizes) for _ in range(size)]
    blocks, _ = yaml.safe_load(emit(envelope, decided(USED), "slurm-topology")["topology.yaml"])
    slurm = {name: row["block"] for row in blocks["block"]["blocks"] for name in row["nodes"].split(",")}
    labels = emit(envelope, decided(USED), "kueue-topology")["label-nodes.sh"].splitlines()
    kueue = {line.split()[4]: line.split()[5].rpartition("=rack-")[2] for line in labels if "kubectl" in line}
    wanted = {f"gb-{node:02}": rack for node, rack in enumerate(rack_of) if node not in OUT}
    assert slurm == {name: f"rack{rack}" for name, rack in wanted.items()}
    assert kueue == {name: str(rack) for name, rack in wanted.items()}


@pytest.mark.parametrize("target", ["slurm-topology", "kueue-topology"])
def test_nodes_without_names_and_plans_on_no_single_pool_are_refused(target: str) -> None:
    with pytest.raises(PlannerError, match="nodes of pool `p` have no names"):
        emit(plan(node_names=None), decided(USED), target)
    with pytest.raises(PlannerError, match="stands on 0 pools"):
        emit(plan(), decided([]), target)
