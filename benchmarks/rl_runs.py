"""Public RL runs as problem files: what a published row and its recipe say, with every degree as it was run.

Usage: rl_runs.py MEASURED.csv FOLDER. Writes a problem for every row that publishes its degrees and the mean length of
its samples. Rows do not say what the recipe of their launcher sets: what is computed again, the memory of the engine,
samples generated for one trained on (the batch multiplier of dynamic sampling). `data/rl_run_settings.csv` has these
from NVIDIA-NeMo/RL, examples/configs/recipes/llm/performance, file and commit by row, and grpo_math_1B.yaml below them.

What nothing publishes is assumed: prompts of 150 tokens, and log-normal outputs (cv 1 before the cap) cut at the
published longest sequence, with the mean of what is left as published. Engines are vLLM 0.11.2, which pyproject.toml of
NeMo-RL pins at commit 00efe664.
"""

import csv
import math
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import NormalDist
from typing import Any

import yaml

PROMPT_TOKENS, OUTPUT_CV = 150, 1.0
ENGINE_VERSION = "0.11.2"
MODELS = {
    "LLAMA3.1_8B": "meta-llama/Meta-Llama-3.1-8B",
    "DeepSeek V3": "deepseek-ai/DeepSeek-V3",
    "Qwen3-30B3A": "Qwen/Qwen3-30B-A3B",
    "Qwen3-32B": "Qwen/Qwen3-32B",
    "Qwen3-235B": "Qwen/Qwen3-235B-A22B",
    "Nemotron-3-Nano-30B-A3B": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
}
NODES = {"H100": "hgx_h100", "GB200": "gb200_nvl72"}
STATED = ("gen_tp", "gen_dp", "train_tp", "train_pp", "train_cp", "train_ep", "gpus_gen", "gpus_train")
SETTINGS = Path(__file__).parent / "data" / "rl_run_settings.csv"
Row = dict[str, str]


def read_rows(path: Path) -> list[Row]:
    """The rows of a table of measured steps."""
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def missing(row: Row) -> str:
    """What a row does not publish, or no model of ours can be priced from; empty where nothing is missing."""
    if not row["mean_seq_len"]:
        return "mean length"
    unknown = [name for name in STATED if not row[name]]
    if unknown:
        return ", ".join(unknown)
    return "which FP8 it trains in" if row["precision"] == "FP8" else ""


def settings(row: Row) -> Row:
    """What the recipe of a row sets beyond it; empty where none is known."""
    return _settings().get((row["model"], row["algo"], row["sync_mode"]), {})


@cache
def _settings() -> dict[tuple[str, str, str], Row]:
    return {(each["model"], each["algo"], each["sync_mode"]): each for each in read_rows(SETTINGS)}


def mean_before_cap(mean: float, cap: float, cv: float) -> float:
    """Mean of the log-normal lengths of this cv whose mean is `mean` once they are cut at `cap` (all in tokens).

    E[min(Y, c)] = m Phi(z - sigma) + c Phi(-z), with z = (ln(c / m) + sigma^2 / 2) / sigma; by bisection, as it grows
    with m. Raises ValueError where `mean` is not below `cap`.
    """
    if not 0 < mean < cap:
        raise ValueError(f"a mean of {mean:g} tokens under a cap of {cap:g}")
    sigma, phi = math.sqrt(math.log1p(cv**2)), NormalDist().cdf

    def cut(uncut: float) -> float:
        z = (math.log(cap / uncut) + sigma**2 / 2) / sigma
        return uncut * phi(z - sigma) + cap * phi(-z)

    low, high = mean, 2 * mean
    while cut(high) < mean:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if cut(middle) < mean else (low, middle)
    return high


def staleness(row: Row) -> int:
    """Iterations by which the run's generation is ahead of its training."""
    return 0 if row["sync_mode"] == "sync" else int(float(row["staleness"]))


def job(row: Row) -> dict[str, Any]:
    """The row as a problem whose space holds its arrangement, and any degrees."""
    ahead = staleness(row)
    samples, longest = int(row["global_samples"]), int(row["max_seq_len"])
    cap = longest - PROMPT_TOKENS
    output = mean_before_cap(float(row["mean_seq_len"]) - PROMPT_TOKENS, cap, OUTPUT_CV)
    group, recipe = int(row["samples_per_prompt"]), settings(row)
    generated = {"over_sampling": float(recipe["over_sampling"])} if recipe.get("over_sampling", "1") != "1" else {}
    flows = {"in_flight_updates": True} if ahead and recipe.get("in_flight") == "yes" else {}
    engine = {"memory_utilisation": float(recipe["memory_utilisation"])} if recipe else {}
    return {
        "schema": "planner.problem/1",
        "kind": "rl",
        "name": name(row),
        "models": {"policy": {"name": MODELS[row["model"]], "weights": "bf16"}},
        "cluster": {"pools": [{"name": "gpus", "gpu": NODES[row["hw"]], "gpus": int(row["gpus_total"])}]},
        "workloads": [{"input_tokens": PROMPT_TOKENS, "output_tokens": {"mean": round(output, 1), "cv": OUTPUT_CV}}],
        "objective": {"minimize": "iteration_time"},
        "engine": {"name": "vllm", "version": ENGINE_VERSION, **engine},
        "options": {
            "algorithm": row["algo"].lower(),
            **({"reference": "policy"} if row["algo"] == "GRPO" else {}),
            "prompts": samples // group,
            "samples_per_prompt": group,
            **generated,
            **flows,
            "minibatches": samples // int(row["train_gbs"]),
            "arrangements": ["disaggregated" if ahead else "colocated"],
            "synchrony": ["asynchronous" if ahead else "synchronous"],
            "max_staleness": ahead,
            "max_output_tokens": cap,
            "iterations": max(2, ahead + 1),
        },
    }


def problem(row: Row) -> dict[str, Any]:
    """The row as a problem with the degrees of the run."""
    document, recipe = job(row), settings(row)
    degrees = {f"training_{cut}": [int(row[f"train_{cut}"])] for cut in ("tp", "pp", "cp", "ep")}
    pinned = {"generation_tp": [int(row["gen_tp"])], **degrees}
    again = {"recompute": recipe["recompute"]} if recipe else {}
    return {**document, "options": {**document["options"], **pinned, **again}}


def name(row: Row) -> str:
    """Of the problem and its file."""
    mode = "colocated" if row["sync_mode"] == "sync" else f"{staleness(row)}-ahead"
    model = row["model"].replace(" ", "-").replace("_", "-")
    run = f"{row['framework']}-{row['version']}-{row['algo']}-{model}-{row['gpus_total']}x{row['hw']}"
    return f"{run.lower()}-{mode}"


def text(row: Row) -> str:
    """The problem file of a row: where it is from, what was run, and the problem."""
    split = f"{row['gpus_gen']} GPUs generate, {row['gpus_train']} train"
    generation = f"{row['gen_dp']} replicas of tp{row['gen_tp']}"
    training = " ".join(f"{cut}{row[f'train_{cut}']}" for cut in ("tp", "cp", "ep", "pp", "dp") if row[f"train_{cut}"])
    recipe = settings(row).get("recipe", "none known")
    head = (
        f"{row['framework']} {row['version']}: a step took {row['step_time_s']} s. Row {row['id']} of measured.csv.",
        f"Published in {row['source']}.",
        f"Run as: {split}; {generation}; training {training}.",
        f"Recipe: {recipe} of NVIDIA-NeMo/RL.",
        "Assumed: prompts of 150 tokens, log-normal outputs (cv 1 before the cap).",
        "Without the lines from `generation_tp` on, the same job with any degrees.",
    )
    body = yaml.safe_dump(problem(row), sort_keys=False, default_flow_style=None, width=110)
    return "".join(f"# {line}\n" for line in head) + body


def files(rows: list[Row]) -> Iterator[tuple[str, str]]:
    """Name and text of the problem of every row that says enough."""
    return ((f"{name(row)}.yaml", text(row)) for row in rows if not missing(row))


if __name__ == "__main__":
    for file, content in files(read_rows(Path(sys.argv[1]))):
        (Path(sys.argv[2]) / file).write_text(content, encoding="utf-8")
