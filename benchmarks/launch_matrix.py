"""Artifacts of every cluster target over models, modes and engines, put to validators that are not ours.

    python benchmarks/launch_matrix.py            eight models, three modes, every target, 200 random plans
    python benchmarks/launch_matrix.py --quick    20 random plans each

Plans are written by hand: whole requests, prefill and decode apart (nP:mD), and instances over several nodes. Each
artifact is put to `planner audit` first, then to `../shared/validators` in their environments under VALIDATORS_HOME
(the schema of a target is named in docs/launch-targets.md). A refusal says why a target cannot express a plan; it is
counted, and printed once for each reason. Then random plans are read back through a reader of the target's own form,
and must say roles, replicas, degrees, limits and formats of the plan (`tests/emit/cluster_read.py`, `cluster_jobs.py`).
Trivial: what a fixed sample of another plan says (the first of the random plans, taken for all) would be right in.
"""

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "emit"))

from cluster_jobs import JOBS, random_training  # noqa: E402 - of the tests beside
from emit_plans import Case, RolePlan  # noqa: E402
from emit_runs import Stage  # noqa: E402
from test_cluster_jobs import assert_as_planned as job_as_planned  # noqa: E402
from test_cluster_jobs import files_of as job_files  # noqa: E402
from test_cluster_targets import ENGINES_OF, files_of, random_case, read_case  # noqa: E402
from test_cluster_validators import HOME, SCRIPTS, VALIDATORS, judged  # noqa: E402
from test_rl_targets import RUNS  # noqa: E402
from test_rl_targets import plan as rl_plan  # noqa: E402
from training_plans import TRAINING  # noqa: E402

from planner.emit.options import ClusterOptions  # noqa: E402
from planner.emit.registry import emit  # noqa: E402
from planner.errors import PlannerError  # noqa: E402
from planner.importing.audit import blocks  # noqa: E402
from planner.importing.files import read_files  # noqa: E402

MODELS = {  # name: (tensor-parallel degree of an instance, whether experts can be spread)
    "Qwen/Qwen3-8B": (1, False),
    "Qwen/Qwen3-32B": (4, False),
    "meta-llama/Meta-Llama-3.1-70B": (8, False),
    "meta-llama/Meta-Llama-3.1-405B": (8, False),
    "openai/gpt-oss-120b": (4, True),
    "Qwen/Qwen3-30B-A3B": (2, True),
    "Qwen/Qwen3-235B-A22B": (8, True),
    "deepseek-ai/DeepSeek-V3": (8, True),
}
RL_LAUNCHERS = ("verl", "openrlhf", "slime", "nemo-rl", "areal")
RL_SETTINGS = tuple(
    (name, "/opt/x")
    for name in (
        *("VERL", "TRAIN_FILES", "VAL_FILES", "PROMPTS", "SAVE", "SLIME", "MODEL_ARGS", "CHECKPOINT"),
        *("NEMO_RL", "AREAL", "EXAMPLE", "EXAMPLE_CONFIG"),
    )
)
LIMITS = {
    "colocated": {"max_batch": 64, "chunk_tokens": 8192, "max_context_tokens": 8192},
    "prefill": {"max_batch": 8, "chunk_tokens": 16384, "max_context_tokens": 8192},
    "decode": {"max_batch": 128, "max_context_tokens": 8192},
}


def role(function: str, degrees: dict[str, int], replicas: int, first: int) -> RolePlan:
    return RolePlan(function, replicas, degrees, LIMITS[function], first=first)


def modes(model: str) -> dict[str, Case]:
    """The three plans of a model."""
    tp, spread = MODELS[model]
    narrow, wide = {"tp": tp}, {"dp": 16, "ep": 16} if spread else {"tp": 8, "pp": 2}
    names = {"default": {"name": model}}
    return {
        "whole requests": Case((role("colocated", narrow, 2, 0),), names, 2),
        "2P:1D": Case((role("prefill", narrow, 2, 0), role("decode", narrow, 1, 16)), names, 3),
        "over nodes": Case((role("colocated", wide, 1, 0),), names, 2),
    }


@dataclass
class Row:
    """What became of the plans of a target."""

    texts: list[str] = field(default_factory=list)
    written: int = 0
    plans: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def matrix(target: str) -> Row:
    """Every model, mode and engine of a serving target; of training and RL, every hand-written plan."""
    made = Row()
    for name, files in _plans(target, made):
        made.written += 1
        made.faults += [f"{name}: {text}" for text in (audited(files) if target in AUDITED else ())]
        made.texts += judged(target, files)
    return made


def _plans(target: str, made: Row) -> Iterator[tuple[str, dict[str, str]]]:
    if target in JOBS:
        for launcher in ("megatron-lm", "megatron-bridge", "torchtitan", "deepspeed", "torchrun"):
            for name, job in TRAINING[launcher].items():
                made.plans += 1
                settings = tuple((each, "/opt/x") for each in ("MEGATRON_LM", "TRAIN", "PRETRAINED", "DATA"))
                try:
                    yield f"{launcher}/{name}", job_files(job, target, launcher=launcher, settings=settings)
                except PlannerError as refusal:
                    made.refused[_reason(refusal)] += 1
        yield from _rl_plans(target, made)
        return
    for model in MODELS:
        for mode, case in modes(model).items():
            for engine in ENGINES_OF[target]:
                for options in ({}, {"model_cache": "models", "token_secret": "hub", "gpus": "claims"}):
                    made.plans += 1
                    given = {} if target == "docker-compose" else options
                    try:
                        yield f"{model} {mode} {engine}", files_of(case, target, engine, **given)
                    except PlannerError as refusal:
                        made.refused[_reason(refusal)] += 1


def _rl_plans(target: str, made: Row) -> Iterator[tuple[str, dict[str, str]]]:
    """Hand-written RL plans of every arrangement, by the scripts of every framework."""
    for launcher in RL_LAUNCHERS:
        options = ClusterOptions(image="example/trainer:1", launcher=launcher, settings=RL_SETTINGS)
        for name, run in RUNS.items():
            made.plans += 1
            try:
                engine = {"engine": "sglang"} if launcher == "slime" else {}
                yield f"{launcher}/{name}", emit(*rl_plan(**run, **engine), target, (), options)
            except PlannerError as refusal:
                made.refused[_reason(refusal)] += 1


def _reason(refusal: PlannerError) -> str:
    return re.sub(r"\d+", "N", re.sub(r"role `[^`]*`: |`[^`]*/[^`]*`", "", refusal.what))


AUDITED = ("lws", "dynamo")
"""Targets whose files `planner audit` reads whole: of StatefulSets it takes each for an instance."""


def audited(files: dict[str, str]) -> list[str]:
    """What `planner audit` says that cannot run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.yaml"
        path.write_text(files["plan.yaml"])
        return [text for text in read_files([str(path)], {}).findings if blocks(text)]


def validated(target: str, texts: list[str]) -> tuple[int, list[str]] | None:
    """How many documents the schema accepts, and what it refuses; None where it is not installed."""
    python, validator = HOME / "k8s" / "bin" / "python", VALIDATORS / SCRIPTS.get(target, "validate_k8s.py")
    if not validator.is_file() or not python.is_file():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.yaml"
        path.write_text("---\n".join(texts))
        ran = subprocess.run([python, validator, path], capture_output=True, text=True, check=False)
    bad = re.findall(r"^BAD .*\n.*", ran.stdout, re.MULTILINE)
    if ran.returncode and not bad:
        bad = [ran.stderr[-500:]]
    return len(re.findall(r"^OK ", ran.stdout, re.MULTILINE)), bad


def read_back(target: str, wanted: int) -> tuple[int, int, int]:
    """Random plans written and read back as planned, those refused, and those of which the first says as much."""
    draw, read, tried, alike = random.Random(f"matrix/{target}"), 0, 0, 0
    first = None
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        while read < wanted:
            tried += 1
            if target in JOBS:
                case = random_training(draw)
                job_as_planned(case, target, job_files(case, target), stage)
                said = repr((case.degrees, case.model, case.global_batch, case.sequence_tokens))
            else:
                serving = random_case(draw)
                engine = draw.choice(ENGINES_OF[target])
                if not read_case(serving, target, engine, draw):
                    continue
                said = repr((serving.roles, serving.models))
            read += 1
            first = first or said
            alike += said == first
    return read, tried - read, alike


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 random plans a target")
    parser.add_argument("--target", choices=(*ENGINES_OF, *JOBS), help="one of them alone")
    options = parser.parse_args()
    bad = 0
    for target in (options.target,) if options.target else (*ENGINES_OF, *JOBS):
        started = time.process_time()
        made = matrix(target)
        verdict = validated(target, made.texts)
        read, refused, alike = read_back(target, 20 if options.quick else 200)
        accepted = "validator not installed" if verdict is None else f"{verdict[0]} documents accepted"
        refusals = [] if verdict is None else verdict[1]
        print(
            f"{target}: {made.written} of {made.plans} plans written, {accepted}, {len(refusals)} refused by it, "
            f"{len(made.faults)} by `planner audit`; {read} random plans read back as planned, {refused} refused "
            f"(the first for all: {alike}); {time.process_time() - started:.0f} CPU-s of ours"
        )
        for reason, count in made.refused.most_common():
            print(f"    cannot express {count}: {reason}")
        for text in (*refusals[:3], *made.faults[:3]):
            print(f"    REFUSED {text}")
        bad += len(refusals) + len(made.faults)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
