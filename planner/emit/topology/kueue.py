"""Emits racks for Kubernetes: topologies of Kueue and KAI, annotations of workloads, and labels of nodes.

Every replica of a LeaderWorkerSet is a workload of Kueue's, whose leader and workers are one group of pod sets: slices
of a pod set have to divide it, which the single pod of a leader forbids. A JobSet of a plan has one pod set.

Labels are Topograph's, `fabric.topograph.run/tier-0` for racks and `accelerator.topograph.run/domain` for scale-up
domains. Kueue's annotations (`kueue.x-k8s.io/podset-...`) stand on pod templates; KAI reads its own from the top owner
of pods, with the name of a Topology of kai.scheduler/v1alpha1 (the pages on topology of its repository,
and its design of topology awareness). Kueue's Topology and ResourceFlavor are of kueue.x-k8s.io/v1beta2.
"""

from planner.emit.documents import commented, manifest, plan_title
from planner.emit.registry import EmitTarget
from planner.emit.shell import argument
from planner.emit.topology.nodes import PlacedNodes, placed_nodes
from planner.plan.schema import Decision, Envelope

RACK, DOMAIN, HOST = "fabric.topograph.run/tier-0", "accelerator.topograph.run/domain", "kubernetes.io/hostname"
GPUS = {"nvidia.com/gpu.present": "true"}
API, KAI = "kueue.x-k8s.io/v1beta2", "kai.scheduler/v1alpha1"
PODSET = "kueue.x-k8s.io/podset"
NAME = "planner-racks"


def objects() -> list[dict[str, object]]:
    """The levels from the outside in, and a flavor of nodes with GPUs that follows them."""
    levels = [{"nodeLabel": label} for label in (RACK, DOMAIN, HOST)]
    return [
        {"apiVersion": API, "kind": "Topology", "metadata": {"name": NAME}, "spec": {"levels": levels}},
        {
            "apiVersion": API,
            "kind": "ResourceFlavor",
            "metadata": {"name": NAME},
            "spec": {"nodeLabels": GPUS, "topologyName": NAME},
        },
    ]


def kai_topology() -> dict[str, object]:
    """The same levels as KAI reads them."""
    levels = [{"nodeLabel": label} for label in (RACK, DOMAIN, HOST)]
    return {"apiVersion": KAI, "kind": "Topology", "metadata": {"name": NAME}, "spec": {"levels": levels}}


def in_one_rack(placed: PlacedNodes) -> bool:
    """Whether all nodes of the plan stand in one rack."""
    return len({placed.rack_of_node[node] for node in placed.used}) == 1


def annotations_of_instances(placed: PlacedNodes) -> dict[str, str]:
    """Kueue's, of the pods of an instance: one rack where each instance stands in one, else as few as can be."""
    near = all(len({placed.rack_of_node[node] for node in nodes}) == 1 for nodes in placed.instances)
    together = {f"{PODSET}-group-name": "instance"} if of_several_pods(placed) else {}
    return {**together, f"{PODSET}-{'required' if near else 'preferred'}-topology": RACK}


def of_several_pods(placed: PlacedNodes) -> bool:
    """Whether some instance stands on more than one node."""
    return any(len(nodes) > 1 for nodes in placed.instances)


def annotations(placed: PlacedNodes) -> dict[str, str]:
    """Kueue's, of a pod a node: all in one rack where they are, else slices of so many within a rack each."""
    if in_one_rack(placed):
        return {f"{PODSET}-required-topology": RACK}
    return {f"{PODSET}-slice-required-topology": RACK, f"{PODSET}-slice-size": str(placed.segment)}


def kai_annotations(placed: PlacedNodes) -> dict[str, str]:
    """KAI's, of the workload: one rack where all stand in one, else as few as can be."""
    how = "required" if in_one_rack(placed) else "preferred"
    return {"kai.scheduler/topology": NAME, f"kai.scheduler/topology-{how}-placement": RACK}


def labels(placed: PlacedNodes) -> str:
    """Commands that label every node in service, for clusters where Topograph does not run."""
    lines = [
        f"kubectl label node --overwrite {argument(placed.names[node], what='node name')} "
        f"{RACK}=rack-{placed.rack_of_node[node]} {DOMAIN}=domain-{placed.domain_of_node[node]}"
        for node in placed.in_service
    ]
    return "\n".join(lines) + "\n"


def files(envelope: Envelope, decision: Decision) -> dict[str, str]:
    """Objects, patches of the pod templates of LeaderWorkerSet and JobSet, and labels."""
    placed, title = placed_nodes(envelope, decision), plan_title(envelope)
    template = {"metadata": {"annotations": annotations_of_instances(placed)}}
    leader = {"leaderTemplate": template} if of_several_pods(placed) else {}
    lws = {
        "metadata": {"annotations": kai_annotations(placed)},
        "spec": {"leaderWorkerTemplate": {**leader, "workerTemplate": template}},
    }
    jobset = [
        {
            "op": "add",
            "path": "/spec/replicatedJobs/0/template/spec/template/metadata/annotations",
            "value": annotations(placed),
        },
        *(
            {"op": "add", "path": f"/metadata/annotations/{name.replace('/', '~1')}", "value": value}
            for name, value in kai_annotations(placed).items()
        ),
    ]
    import yaml

    patch = "For kubectl patch --type=json -p, of the first replicated job."
    return {
        "kueue-topology.yaml": manifest([title], objects()),
        "kai-topology.yaml": manifest([title, "For clusters scheduled by KAI."], [kai_topology()]),
        "lws-patch.yaml": manifest([title, "For kubectl patch leaderworkerset --type=merge."], [lws]),
        "jobset-patch.yaml": commented([title, patch]) + yaml.safe_dump(jobset, sort_keys=False),
        "label-nodes.sh": "#!/bin/bash\n" + commented([title]) + "set -euo pipefail\n" + labels(placed),
    }


TARGETS = (
    EmitTarget(
        "kueue-topology",
        "Kueue's topology and flavor, annotations for LeaderWorkerSet and JobSet, labels of nodes",
        ("serve", "train", "rl", "experts"),
        files,
    ),
)
