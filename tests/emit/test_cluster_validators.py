"""Artifacts for clusters under schemas that other projects publish: Kubernetes, custom resources, Compose."""

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from cluster_read import llm_d_objects
from emit_plans import CASES
from llm_d_base import PROGRAM, kustomized
from test_cluster_targets import ENGINES_OF, files_of
from test_emit_topology import USED, decided, plan

from planner.emit.documents import manifest
from planner.emit.registry import emit
from planner.errors import PlannerError

VALIDATORS = Path(__file__).parents[2].parent / "shared" / "validators"
HOME = Path(os.environ.get("VALIDATORS_HOME", Path.home() / ".cache" / "planner-validators"))


SCRIPTS = {"dynamo": "validate_dynamo.py"}


def judged(target: str, files: dict[str, str]) -> list[str]:
    """The documents of a target that have a schema: overlays merged with a base, and none that Ray alone reads."""
    if target == "llm-d" and PROGRAM is not None:
        with TemporaryDirectory() as folder:
            return [manifest((), [each]) for each in kustomized(files, Path(folder))]
    if target == "llm-d":
        return [manifest((), [each]) for each in llm_d_objects(files)]
    named = [name for name in files if name.endswith(".yaml") and name != "serve.yaml"]
    return [files[name] for name in named if not name.startswith("config-")]


@pytest.mark.slow
@pytest.mark.parametrize("target", ENGINES_OF)
def test_the_schemas_accept_every_artifact(target: str, tmp_path: Path) -> None:
    python, validator = HOME / "k8s" / "bin" / "python", VALIDATORS / SCRIPTS.get(target, "validate_k8s.py")
    if not validator.is_file() or not python.is_file():
        pytest.skip("needs ../shared/validators and its environments `k8s` and `dynamo` in VALIDATORS_HOME")
    texts = []
    for engine in ENGINES_OF[target]:
        for case in CASES.values():
            for options in ({}, {"model_cache": "models"}):
                with suppress(PlannerError):
                    texts += judged(target, files_of(case, target, engine, **options))
    assert len(texts) >= 10
    together = tmp_path / "all.yaml"
    documents = dict.fromkeys(each.strip("\n") for text in texts for each in f"{text}\n".split("\n---\n"))
    together.write_text("\n---\n".join(documents) + "\n")
    ran = subprocess.run([python, validator, together], capture_output=True, text=True, timeout=600, check=False)
    refused = re.findall(r"^BAD .*\n.*", ran.stdout, re.MULTILINE)
    assert not refused, refused[0]
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.slow
def test_schemas_accept_the_topology_of_kueue_and_sets_that_ask_for_its_racks(tmp_path: Path) -> None:
    """KAI, Topograph and Slurm publish no schema that stands beside the validators."""
    python, validator = HOME / "k8s" / "bin" / "python", VALIDATORS / "validate_k8s.py"
    if not validator.is_file() or not python.is_file():
        pytest.skip("needs ../shared/validators and its environment `k8s` in VALIDATORS_HOME")
    files = emit(plan(), decided(USED), "kueue-topology")
    patch, sets = yaml.safe_load(files["lws-patch.yaml"]), []
    for case in CASES.values():
        with suppress(PlannerError):
            each = [d for text in judged("lws", files_of(case, "lws")) for d in yaml.safe_load_all(text)]
            sets += [merged(d, patch) for d in each if d["kind"] == "LeaderWorkerSet"]
    sets = [each for each in sets if "spec" in each["spec"]["leaderWorkerTemplate"]["leaderTemplate"]]
    assert sets  # of several pods
    together = tmp_path / "all.yaml"
    together.write_text(files["kueue-topology.yaml"] + "---\n" + yaml.safe_dump_all(sets))
    ran = subprocess.run([python, validator, together], capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.count("OK") == 2 + len(sets)


def merged(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """A document after a merge patch."""
    return {
        **document,
        **{
            name: merged(document.get(name, {}), value) if isinstance(value, dict) else value
            for name, value in patch.items()
        },
    }
