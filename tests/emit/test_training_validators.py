"""Emitted training files under the configuration classes of the launchers' own packages."""

import os
import subprocess
from pathlib import Path

import pytest
from training_plans import TRAINING

from planner.emit.registry import emit

VALIDATORS = Path(__file__).parents[2].parent / "shared" / "validators"
HOME = Path(os.environ.get("VALIDATORS_HOME", Path.home() / ".cache" / "planner-validators"))
PACKAGES = {
    "megatron-core": ("megatron-lm", "megatron.core"),
    "megatron-bridge": ("megatron-bridge", "megatron.core"),
    "deepspeed": ("deepspeed", "deepspeed"),
    "torchtitan": ("torchtitan", "torchtitan.trainer"),
}


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_the_launchers_own_classes_take_every_emitted_file(package: str, tmp_path: Path) -> None:
    target, module = PACKAGES[package]
    python = HOME / "training" / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"no environment in {HOME / 'training'} that holds {package}; VALIDATORS_HOME names another folder")
    if subprocess.run([python, "-c", f"import {module}"], capture_output=True, timeout=300, check=False).returncode:
        pytest.skip(f"the environment in {HOME / 'training'} has no working {package}")
    for name, case in TRAINING[target].items():
        folder = tmp_path / name
        folder.mkdir()
        for file, text in emit(*case.build(), target).items():
            (folder / file).write_text(text)
    program = Path(__file__).parent / "check_training_files.py"
    ran = subprocess.run([python, program, package, tmp_path], capture_output=True, text=True, timeout=600, check=False)
    verdicts = [line for line in ran.stdout.splitlines() if line.startswith(("ok ", "BAD "))]
    assert sorted(verdicts) == sorted(f"ok {name}" for name in TRAINING[target]), (
        ran.stdout[-2000:] + ran.stderr[-2000:]
    )


@pytest.mark.slow
@pytest.mark.parametrize("case_name", TRAINING["slurm"])
def test_slurm_takes_the_batch_file(case_name: str, tmp_path: Path) -> None:
    validator = VALIDATORS / "validate_slurm.sh"
    if not validator.is_file():
        pytest.skip("the validators lie beside the repository, in ../shared/validators, and are not here")
    if subprocess.run(["which", "slurmctld"], capture_output=True, check=False).returncode:
        pytest.skip("slurmctld is not installed: run ../shared/validators/setup.sh slurm")
    files = emit(*TRAINING["slurm"][case_name].build(), "slurm")
    text = "\n".join(line for line in files["train.sbatch"].splitlines() if "--nodelist" not in line)
    (tmp_path / "train.sbatch").write_text(text)
    ran = subprocess.run(
        ["bash", validator, tmp_path / "train.sbatch"], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
