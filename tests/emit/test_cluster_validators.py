"""Artifacts for clusters under schemas that other projects publish: Kubernetes, custom resources, Compose."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from emit_plans import CASES
from test_cluster_targets import ENGINES_OF, files_of

from planner.errors import PlannerError

VALIDATORS = Path(__file__).parents[2].parent / "shared" / "validators"
HOME = Path(os.environ.get("VALIDATORS_HOME", Path.home() / ".cache" / "planner-validators"))


@pytest.mark.slow
@pytest.mark.parametrize("target", ENGINES_OF)
def test_the_schemas_accept_every_artifact(target: str, tmp_path: Path) -> None:
    python, validator = HOME / "k8s" / "bin" / "python", VALIDATORS / "validate_k8s.py"
    if not validator.is_file() or not python.is_file():
        pytest.skip("needs ../shared/validators and its environment `k8s` in VALIDATORS_HOME")
    texts = []
    for engine in ENGINES_OF[target]:
        for case in CASES.values():
            try:
                files = files_of(case, target, engine)
            except PlannerError:
                continue
            texts += [text for name, text in files.items() if name.endswith(".yaml")]
    assert len(texts) >= 18
    together = tmp_path / "all.yaml"
    together.write_text("---\n".join(texts))
    ran = subprocess.run([python, validator, together], capture_output=True, text=True, timeout=600, check=False)
    refused = re.findall(r"^BAD .*\n.*", ran.stdout, re.MULTILINE)
    assert not refused, refused[0]
    assert ran.returncode == 0, ran.stderr[-2000:]
