"""`planner profile`: benchmarks the kernels of models on this machine's GPU and stores them as tables."""

import datetime
from pathlib import Path
from typing import Annotated

import typer

from planner.cli.options import INPUT, Json, seconds
from planner.cli.output import say
from planner.errors import PlannerError, errors_at

MODELS = "llama-3.1-8b,llama-3.1-70b,qwen3-30b-a3b,deepseek-v3"


def profile(
    output: Annotated[str, typer.Option("--output", "-o", metavar="FOLDER", help="Where the profile is to lie.")],
    models: Annotated[
        str, typer.Option("--models", metavar="NAMES", help="Models whose kernels are measured.", rich_help_panel=INPUT)
    ] = MODELS,
    tp: Annotated[
        str, typer.Option("--tp", metavar="DEGREES", help="Tensor-parallel degrees.", rich_help_panel=INPUT)
    ] = "1,2,4,8",
    ep: Annotated[
        str, typer.Option("--ep", metavar="DEGREES", help="Degrees of wide expert parallelism.", rich_help_panel=INPUT)
    ] = "8,32",
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="Stop measuring after this long.", rich_help_panel=INPUT)
    ] = "4m",
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="`cuda` or `cpu`.", rich_help_panel=INPUT)
    ] = "cuda",
    accelerator: Annotated[
        str | None,
        typer.Option("--accelerator", metavar="NAME", help="Its name in the catalog.", rich_help_panel=INPUT),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the profile in the folder.", rich_help_panel=INPUT)
    ] = False,
    as_json: Json = False,
) -> int:
    """Measure kernels on the device at hand and write them as kernel tables.

    Examples:

      planner profile --models llama-3.1-8b --tp 1,2 -o profiles/mine

      planner profile --device cpu --models llama-3.2-1b --tp 1 --budget 1m -o profiles/cpu
    """
    from planner.cli.measured.profile_report import print_profile
    from planner.costs.shape_list import shape_list
    from planner.hardware.profiling.collectives import collective_families, num_devices
    from planner.hardware.profiling.device import describe, open_device
    from planner.hardware.profiling.measure import measure
    from planner.models.library import find_model

    budget_s = seconds(f"{budget}in" if budget[:-1].isdigit() and budget.endswith("m") else budget, "--budget")
    assert budget_s is not None
    degrees, wide = _degrees(tp, "--tp"), _degrees(ep, "--ep")
    with errors_at("--models"):
        archs = [find_model(name.strip()) for name in models.split(",") if name.strip()]
    listed = shape_list(archs, tp=degrees, ep=wide)
    name = accelerator or catalog_name(describe(open_device(device)).name, device)
    measured = measure(
        [*listed.families, *collective_families(num_devices(device))],
        Path(output),
        accelerator=name,
        device=device,
        budget_s=budget_s,
        version=profile_version(),
        resume=resume,
        tell=say,
    )
    print_profile(listed, measured, name, as_json=as_json)
    return 0


def _degrees(text: str, flag: str) -> tuple[int, ...]:
    """`1,2,4` as numbers; raises PlannerError for anything else."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) >= 1 for part in parts):
        raise PlannerError(
            f"must be positive whole numbers with commas between, found `{text}`",
            where=flag,
            hint=f"write `{flag} 1,2,4`",
        )
    return tuple(int(part) for part in parts)


def profile_version() -> str:
    """Today's date as a version, so that the newest profile is the one that is taken."""

    return datetime.datetime.now(datetime.UTC).strftime("%Y.%m.%d")


def catalog_name(device_name: str, kind: str) -> str:
    """The catalog's name of a device by what its driver calls it; raises PlannerError when it has none."""
    from planner.hardware.library import find_accelerator

    if kind == "cpu":
        return "cpu"
    try:
        return find_accelerator(device_name.removeprefix("NVIDIA ")).name
    except PlannerError as error:
        raise PlannerError(
            f"the catalog does not know the device `{device_name}`",
            hint="name it with `--accelerator`; `planner hardware list` tells the names",
        ) from error
