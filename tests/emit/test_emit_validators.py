"""Emitted commands, all at once, under the engines' own argument parsers and configuration classes, slow to load."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from emit_plans import BY_TARGET
from test_cluster_measure import told_to_vllm
from test_emit_speculation import PLANS, built

from planner.emit.registry import emit

VALIDATORS = Path(__file__).parents[2].parent / "shared" / "validators"
HOME = Path(os.environ.get("VALIDATORS_HOME", Path.home() / ".cache" / "planner-validators"))
PROGRAMS = {"vllm": "vllm serve ", "sglang": "python3 -m sglang.launch_server "}


MEASURES = """
import json, runpy, sys
told, sys.argv = json.loads(sys.argv[1]), sys.argv[2:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit:
    pass
from vllm.benchmarks.serve import add_cli_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
for words in told:
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    parser.parse_args(words)
print("every job that measures is understood")
"""
"""The validator, and after it the parser of vLLM's load generator, for the arguments of jobs that measure plans."""


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
    speculating = [emit(*built(case, speculation), target) for case, speculation in PLANS.values()]
    plain = [emit(*case.build(), target) for case in BY_TARGET[target].values()]
    texts = [text for files in (*plain, *speculating) for name, text in files.items() if name != "launch-router.sh"]
    scripts = tmp_path / "all.sh"  # the validators look for models in a folder, and for drafters as they are named
    named = r'("model": "|draft-model-path |vllm serve )([\w.-]+)/([\w.-]+)'
    scripts.write_text(re.sub(named, _local, "\n".join(texts)))
    num_commands = sum(text.count(PROGRAMS[target]) for text in texts)
    command: list[str | Path] = [python, validator, scripts]
    if target == "vllm":  # every model is a path: in a folder of models it takes a draft without one for the folder
        told = json.dumps(told_to_vllm())
        command = [python, "-c", MEASURES, told, validator, scripts, "--models", tmp_path / "none"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    refused = re.findall(r"^BAD .*\n.*", ran.stdout, re.MULTILINE)
    assert not refused, refused[0]
    assert f"{num_commands}/{num_commands} ok" in ran.stdout, ran.stdout[-2000:] + ran.stderr[-2000:]
    assert target != "vllm" or "every job that measures is understood" in ran.stdout, ran.stderr[-2000:]


def _local(named: re.Match[str]) -> str:
    return f"{named[1]}{VALIDATORS / 'models'}/{named[2]}--{named[3]}"
