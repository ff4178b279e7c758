"""Emitted commands under the engines' own argument parsers and configuration classes."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from emit_plans import BY_TARGET

from planner.emit.registry import emit

VALIDATORS = Path(__file__).parents[2].parent / "shared" / "validators"
HOME = Path(os.environ.get("VALIDATORS_HOME", Path.home() / ".cache" / "planner-validators"))
PROGRAMS = {"vllm": "vllm serve ", "sglang": "python3 -m sglang.launch_server "}


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(BY_TARGET))
def test_the_engine_accepts_every_emitted_command(target: str, tmp_path: Path) -> None:
    python, validator = HOME / target / "bin" / "python", VALIDATORS / f"validate_{target}.py"
    if not validator.is_file():
        pytest.skip("the validators lie beside the repository, in ../shared/validators, and are not here")
    if not python.is_file():
        pytest.skip(
            f"no environment in {HOME / target}: run ../shared/validators/setup.sh {target}, or set VALIDATORS_HOME"
        )
    texts = [
        text
        for case in BY_TARGET[target].values()
        for name, text in emit(*case.build(), target).items()
        if name != "launch-router.sh"
    ]
    scripts = tmp_path / "all.sh"
    scripts.write_text("\n".join(texts))
    num_commands = sum(text.count(PROGRAMS[target]) for text in texts)
    ran = subprocess.run([python, validator, scripts], capture_output=True, text=True, timeout=600, check=False)
    refused = re.findall(r"^BAD .*\n.*", ran.stdout, re.MULTILINE)
    assert not refused, refused[0]
    assert f"{num_commands}/{num_commands} ok" in ran.stdout, ran.stdout[-2000:] + ran.stderr[-2000:]
