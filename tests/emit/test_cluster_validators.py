"""Artifacts for clusters under schemas that other projects publish: Kubernetes, custom resources, Compose."""

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cluster_read import llm_d_objects
from emit_plans import CASES
from llm_d_base import PROGRAM, kustomized
from test_cluster_targets import ENGINES_OF, files_of

from planner.emit.documents import manifest
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
