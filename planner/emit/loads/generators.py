"""Command lines of load generators: guidellm, aiperf, and vLLM's own benchmark.

Options as of guidellm 0.8 (`guidellm run --help`), aiperf 0.13 (`aiperf profile --help`) and vLLM 0.33 (`vllm bench
serve`, vllm/benchmarks/serve.py).
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.emit.loads.drive import Drive, TokenCounts
from planner.errors import PlannerError

GUIDELLM_REPORT, AIPERF_REPORT, VLLM_REPORT = "report.json", "profile_export_aiperf.json", "vllm.json"
"""In the folder of the run."""
REQUESTS_PER_CLIENT = 20  # of a closed loop, where a generator counts requests
WARM_UP = 0.1  # of the duration is not counted: guidellm opens with a burst while its workers start


@dataclass(frozen=True, slots=True)
class GeneratorRun:
    """One measurement: what is sent, where to, for how long, and the folder for the report."""

    drive: Drive
    url: str
    tokenizer: str
    duration_s: float
    folder: Path


def guidellm(run: GeneratorRun) -> list[str]:
    """The command line of a run by guidellm, wherever it is installed."""
    return ["guidellm", *guidellm_arguments(run)]


def guidellm_arguments(run: GeneratorRun) -> list[str]:
    """What guidellm is given; raises PlannerError for names that its own `key=value,...` would take for more."""
    drive = run.drive
    for name in (drive.model, run.tokenizer, run.url):
        if set(name) & set(",{}"):
            raise PlannerError(
                f"guidellm reads `{name}` as more than a name", where="inputs.models", hint="take another generator"
            )
    if drive.concurrency is not None:
        profile = f"kind=concurrent,streams={drive.concurrency},warmup={WARM_UP:g}"
    else:
        kind = "poisson" if drive.arrival_cv > 0 else "constant"
        profile = f"kind={kind},rate={drive.rate_per_s:.6g},warmup={WARM_UP:g}"
    lengths = ",".join(
        [*_guidellm_counts("prompt_tokens", drive.input), *_guidellm_counts("output_tokens", drive.output)]
    )
    return [
        "run",
        "--disable-console",
        *("--backend", f"kind=openai_http,target={run.url},model={drive.model}"),
        *("--profile", profile),
        *("--constraint", f"kind=max_duration,seconds={run.duration_s:g}"),
        *("--tokenizer", f"kind=huggingface_auto,model={run.tokenizer}"),
        *("--data", f"kind=synthetic_text,{lengths}"),
        *("--output", f"kind=json,path={run.folder / GUIDELLM_REPORT}"),
    ]


def _guidellm_counts(name: str, counts: TokenCounts) -> Iterator[str]:
    """Even lengths have bounds and no deviation."""
    yield f"{name}={counts.mean}"
    if counts.low is not None and counts.high is not None:
        yield f"{name}_min={counts.low}"
        yield f"{name}_max={counts.high}"
    elif counts.deviation > 0:
        yield f"{name}_stdev={counts.deviation}"


def aiperf_arguments(run: GeneratorRun) -> list[str]:
    """What aiperf is given."""
    drive = run.drive
    if drive.concurrency is not None:
        load = ["--concurrency", str(drive.concurrency)]
    else:
        pattern = "poisson" if drive.arrival_cv > 0 else "constant"
        load = ["--request-rate", f"{drive.rate_per_s:.6g}", "--arrival-pattern", pattern]
    return [
        "profile",
        *("--model", drive.model, "--url", run.url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", run.tokenizer, "--use-server-token-count", "--random-seed", "0", "--ui", "none"),
        *("--synthetic-input-tokens-mean", str(drive.input.mean)),
        *("--synthetic-input-tokens-stddev", str(drive.input.deviation)),
        *("--output-tokens-mean", str(drive.output.mean)),
        *("--output-tokens-stddev", str(drive.output.deviation)),
        *("--extra-inputs", "ignore_eos:true"),
        *load,
        *("--benchmark-duration", f"{run.duration_s:g}"),
        *("--artifact-dir", str(run.folder)),
    ]


def vllm_bench_arguments(run: GeneratorRun) -> list[str]:
    """What `vllm bench serve` is given: it counts requests, as many as the load sends in the time of the run.

    Its random lengths are even around the mean, so that a deviation becomes a range: half the width over the mean.
    """
    drive = run.drive
    if drive.concurrency is not None:
        load = ["--max-concurrency", str(drive.concurrency)]
        requests = REQUESTS_PER_CLIENT * drive.concurrency
    else:
        assert drive.rate_per_s is not None
        burstiness = 1.0 if drive.arrival_cv <= 0 else drive.arrival_cv**-2.0
        load = ["--request-rate", f"{drive.rate_per_s:.6g}", "--burstiness", f"{burstiness:.6g}"]
        requests = max(1, round(drive.rate_per_s * run.duration_s))
    ranges = {"input": _range_ratio(drive.input), "output": _range_ratio(drive.output)}
    return [
        *("bench", "serve", "--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", run.url, "--model", drive.model, "--tokenizer", run.tokenizer),
        *("--dataset-name", "random", "--seed", "0", "--ignore-eos"),
        *("--random-input-len", str(drive.input.mean), "--random-output-len", str(drive.output.mean)),
        *("--random-range-ratio", json.dumps(ranges)),
        *load,
        *("--num-prompts", str(requests), "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--metric-percentiles", "50,90,95,99", "--save-result", "--result-dir", str(run.folder)),
        *("--result-filename", VLLM_REPORT),
    ]


def _range_ratio(counts: TokenCounts) -> float:
    """Half the width of even lengths over their mean, below 1."""
    if counts.low is not None and counts.high is not None:
        return round(min((counts.high - counts.low) / (2.0 * counts.mean), 0.999), 4)
    return round(min(math.sqrt(3.0) * counts.deviation / counts.mean, 0.999), 4)
