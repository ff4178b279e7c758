"""The built-in length shapes derived from their traces, as `planner/problem/shapes.yaml`.

    python benchmarks/length_shapes.py --azure-code AzureLLMInferenceTrace_code.csv > planner/problem/shapes.yaml
    python benchmarks/length_shapes.py --table

The traces of the other three lie in `../shared/data/traces`; that of code is data/AzureLLMInferenceTrace_code.csv of
github.com/Azure/AzurePublicDataset at b469a113. `--table` holds the shapes against the traces at hand, beside what the
first two moments of a trace alone (a log-normal) make of it.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist

import numpy as np

from planner.arrays import Ints
from planner.problem.shapes import SHARES, find_shape
from planner.simulate.requests.traces import Trace, read_trace

TRACES = Path(__file__).parents[2] / "shared/data/traces"
SIDES = ("input_tokens", "output_tokens")
TOLD = (0.5, 0.9, 0.99)


@dataclass(frozen=True, slots=True)
class Origin:
    """The trace of a shape: its file, and where that comes from."""

    file: str
    source: str


ORIGINS = {
    "azure-code": Origin(
        "",
        "Azure LLM inference trace 2023, code (CC-BY 4.0; github.com/Azure/AzurePublicDataset; Splitwise, ISCA 2024)",
    ),
    "azure-conversation": Origin(
        "azure_llm_2023_conv.csv.gz",
        "Azure LLM inference trace 2023, conversation (CC-BY 4.0; github.com/Azure/AzurePublicDataset; Splitwise, "
        "ISCA 2024)",
    ),
    "mooncake-conversation": Origin(
        "mooncake_fast25_conversation.jsonl.gz",
        "Mooncake conversation trace (Apache-2.0; github.com/kvcache-ai/Mooncake FAST25-release; FAST 2025)",
    ),
    "sharegpt": Origin(
        "sharegpt_lengths_helix.csv.gz",
        "ShareGPT under vLLM's filter, prompts below 1024 tokens (lengths of Helix, Apache-2.0)",
    ),
}


def quantiles(tokens: Ints) -> list[int]:
    """The least length that each of `SHARES` is no longer than [20]."""
    return [int(tokens_at) for tokens_at in np.quantile(tokens, SHARES, method="inverted_cdf")]


def traces(azure_code: Path | None) -> dict[str, Trace]:
    """The traces at hand by shape, rows without tokens left out."""
    files = {name: TRACES / origin.file if origin.file else azure_code for name, origin in ORIGINS.items()}
    return {
        name: read_trace(str(file), drop_empty=True)
        for name, file in files.items()
        if file is not None and file.exists()
    }


def as_yaml(by_name: dict[str, Trace]) -> str:
    """The file of shapes."""
    lines = [
        "# Quantiles of lengths in tokens, at the shares of `SHARES` in shapes.py.",
        "# Made by benchmarks/length_shapes.py.",
    ]
    for name, trace in by_name.items():
        lines += [f"{name}:", f"  requests: {len(trace)}", f'  source: "{ORIGINS[name].source}"']
        lines += [f"  {side}: {quantiles(getattr(trace, side))}" for side in SIDES]
    return "\n".join(lines)


def table(by_name: dict[str, Trace]) -> str:
    """Mean, CV and quantiles of every side: of the trace, of the shape, of a log-normal of the trace's moments."""
    rows = ["| shape | lengths | of | mean | cv | p50 | p90 | p99 |", "|---|---|---|---|---|---|---|---|"]
    for name, trace in by_name.items():
        for side in SIDES:
            tokens = getattr(trace, side)
            mean, cv = float(tokens.mean()), float(tokens.std() / tokens.mean())
            sigma = math.sqrt(math.log1p(cv**2))
            drawn = [mean * math.exp(sigma * NormalDist().inv_cdf(share) - sigma**2 / 2.0) for share in TOLD]
            shape = np.array(find_shape(name).lengths(side))
            figures = {
                "trace": (mean, cv, *np.quantile(tokens, TOLD)),
                "shape": (shape.mean(), shape.std() / shape.mean(), *np.quantile(shape, TOLD)),
                "log-normal": (mean, cv, *drawn),
            }
            rows += [
                f"| {name} | {side} | {of} | {told[0]:.0f} | {told[1]:.2f} | "
                + " | ".join(f"{value:.0f}" for value in told[2:])
                + " |"
                for of, told in figures.items()
            ]
    return "\n".join(rows)


def main() -> None:
    """Prints the file, or the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--azure-code", type=Path, help="the trace of code; its shape is left out without it")
    parser.add_argument("--table", action="store_true", help="hold the shapes against their traces")
    given = parser.parse_args()
    at_hand = traces(given.azure_code)
    print(table(at_hand) if given.table else as_yaml(at_hand))


if __name__ == "__main__":
    main()
