"""Load generators that can drive an engine (guidellm, aiperf): command lines, and where reports lie.

Options as of guidellm 0.8 (`guidellm run --help`) and aiperf 0.13 (`aiperf profile --help`).
"""

import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from planner.engine_check.drive import Drive, TokenCounts
from planner.errors import PlannerError

GUIDELLM_REPORT = "report.json"  # in the folder of the run
WARM_UP = 0.1  # of the duration is not counted: guidellm opens with a burst while its workers start


@dataclass(frozen=True, slots=True)
class GeneratorRun:
    """One measurement: what is sent, where to, for how long, and the folder for the report."""

    drive: Drive
    url: str
    tokenizer: str
    duration_s: float
    folder: Path


@dataclass(frozen=True, slots=True)
class Generator:
    """A load generator: its executable, the arguments of a run, and its report in the run's folder."""

    name: str
    executable: str
    arguments: Callable[[GeneratorRun], list[str]]
    report: str

    def command(self, run: GeneratorRun) -> list[str]:
        """The command line of `run`."""
        return [self.executable, *self.arguments(run)]


def find_generator(asked: str | None) -> Generator:
    """The generator of that name or path; without one, the first that is installed.

    Raises PlannerError when it is none that is known, or not installed.
    """
    if asked is not None and Path(asked).name not in _KNOWN:
        known = ", ".join(f"`{name}`" for name in _KNOWN)
        raise PlannerError(f"unknown load generator `{asked}`", where="--generator", hint=f"known are {known}")
    for wanted in [asked] if asked is not None else list(_KNOWN):
        path = _executable(wanted)
        if path is not None:
            name = Path(wanted).name
            arguments, report = _KNOWN[name]
            return Generator(name, path, arguments, report)
    missing = f"`{asked}`" if asked is not None else " nor ".join(f"`{name}`" for name in _KNOWN)
    raise PlannerError(
        f"{missing} is not installed" if asked is not None else f"neither {missing} is installed",
        where="--generator",
        hint="install the extra `engine`, or give a report with `--report`",
    )


def _executable(name: str) -> str | None:
    """Where the program lies: on the search path, or beside the Python that runs this."""
    path = shutil.which(name)
    return path if path is not None else shutil.which(name, path=str(Path(sys.executable).parent))


def guidellm(run: GeneratorRun) -> list[str]:
    """The command line of a run by guidellm, wherever it is installed."""
    return ["guidellm", *_guidellm(run)]


def _guidellm(run: GeneratorRun) -> list[str]:
    drive = run.drive
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


def _aiperf(run: GeneratorRun) -> list[str]:
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


_KNOWN: dict[str, tuple[Callable[[GeneratorRun], list[str]], str]] = {
    "guidellm": (_guidellm, GUIDELLM_REPORT),
    "aiperf": (_aiperf, "profile_export_aiperf.json"),
}
