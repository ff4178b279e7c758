"""Overlays of llm-d built by Kustomize itself, over bases that have the names and containers of llm-d's recipes."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

PROGRAM = shutil.which("kubectl")
"""Has Kustomize built in, and needs no cluster for it."""
_RECIPES = "llm-d/guides/recipes/modelserver/base"


def _container(name: str) -> dict[str, Any]:
    return {"name": name, "image": "REPLACE_MODEL_SERVER_IMAGE", "command": [], "args": [], "env": []}


def _deployment(side: str, *, proxy: bool = False) -> dict[str, Any]:
    labels = {"llm-d.ai/role": side}
    spec: dict[str, Any] = {"containers": [_container("modelserver")], "serviceAccountName": "sa"}
    if proxy:
        sidecar = {"name": "routing-proxy", "image": "REPLACE_ROUTING_SIDECAR_IMAGE", "restartPolicy": "Always"}
        spec["initContainers"] = [sidecar]
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": side, "labels": labels},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": spec}},
    }


_ACCOUNT = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "sa"}}
_SET = {
    "apiVersion": "leaderworkerset.x-k8s.io/v1",
    "kind": "LeaderWorkerSet",
    "metadata": {"name": "decode", "labels": {"llm-d.ai/role": "decode"}},
    "spec": {
        "replicas": 1,
        "leaderWorkerTemplate": {
            "size": 2,
            "leaderTemplate": {
                "metadata": {"labels": {"role": "leader"}},
                "spec": {"serviceAccountName": "sa", "containers": [_container("modelserver-leader")]},
            },
            "workerTemplate": {
                "spec": {"serviceAccountName": "sa", "containers": [_container("modelserver-worker")]},
            },
        },
    },
}
_BASES: dict[str, list[dict[str, Any]]] = {
    "multi-host/default": [_ACCOUNT, _SET],
    "single-host/default": [_ACCOUNT, _deployment("decode")],
    "single-host/pd/vllm": [_ACCOUNT, _deployment("decode", proxy=True), _deployment("prefill")],
}


def kustomized(files: Mapping[str, str], folder: Path) -> list[dict[str, Any]]:
    """The documents that `kubectl kustomize` prints of an overlay, written into `folder`."""
    assert PROGRAM is not None
    for name, text in files.items():
        (folder / name).write_text(text)
    for name, objects in _BASES.items():
        base = folder / _RECIPES / name
        base.mkdir(parents=True)
        (base / "kustomization.yaml").write_text("resources: [all.yaml]\n")
        (base / "all.yaml").write_text(yaml.safe_dump_all(objects))
    ran = subprocess.run([PROGRAM, "kustomize", str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
    return list(yaml.load_all(ran.stdout, Loader=yaml.CSafeLoader))
