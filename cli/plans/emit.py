"""`planner emit`: writes a plan as launch scripts and configuration files of an engine or framework."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict

import typer

from planner.cli.options import INPUT, Json, Output, PlanFile, Profiles
from planner.cli.output import say, write_data, write_folder, write_json
from planner.cli.plans.at_hand import Inputs, inputs_at_hand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.emit.registry import LayoutPlan


class _Panel(TypedDict):
    rich_help_panel: str


_CLUSTER = _Panel(rich_help_panel="Cluster")


Target = Annotated[str, typer.Option("--target", metavar="NAME", help="Such as vllm or sglang.")]
Layouts = Annotated[
    list[str] | None,
    typer.Option(
        "--experts",
        metavar="[ROLE=]PLAN",
        help="A layout to start the experts from; repeatable.",
        rich_help_panel=INPUT,
    ),
]
ModelPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--model-path",
        metavar="[MODEL=]PATH",
        help="Where a model given by `config` lies on every node; repeatable.",
        rich_help_panel=INPUT,
    ),
]
Image = Annotated[str | None, typer.Option(metavar="IMAGE", help="Of the engine or the training program.", **_CLUSTER)]
RouterImage = Annotated[str | None, typer.Option(metavar="IMAGE", help="Of the router.", **_CLUSTER)]
Namespace = Annotated[str | None, typer.Option(metavar="NAME", help="That objects lie in.", **_CLUSTER)]
ModelCache = Annotated[
    str | None, typer.Option(metavar="NAME", help="Claim or volume that holds checkpoints.", **_CLUSTER)
]
TokenSecret = Annotated[str | None, typer.Option(metavar="NAME", help="Secret with the key HF_TOKEN.", **_CLUSTER)]
SshSecret = Annotated[
    str | None, typer.Option(metavar="NAME", help="Secret with the key by which pods start ranks.", **_CLUSTER)
]
Placement = Annotated[str | None, typer.Option(metavar="TYPE=LABEL", help="Such as ExclusiveSlice=rack.", **_CLUSTER)]
GpuRequests = Annotated[
    str | None, typer.Option(metavar="HOW", help="GPUs as `counts` of a resource, or by `claims`.", **_CLUSTER)
]
Measure = Annotated[str | None, typer.Option(metavar="NAME", help="Add a job: vllm, guidellm or aiperf.", **_CLUSTER)]
MeasureImage = Annotated[str | None, typer.Option(metavar="IMAGE", help="Of that job.", **_CLUSTER)]
MeasureUrl = Annotated[str | None, typer.Option(metavar="URL", help="Where it sends to.", **_CLUSTER)]
Launcher = Annotated[
    str | None, typer.Option(metavar="TARGET", help="Whose script the nodes of a job run.", **_CLUSTER)
]
Environment = Annotated[
    list[str] | None, typer.Option(metavar="NAME=VALUE", help="For that script; repeatable.", **_CLUSTER)
]
Arguments = Annotated[list[str] | None, typer.Option(metavar="TEXT", help="For that script; repeatable.", **_CLUSTER)]


def emit(
    plan: PlanFile,
    target: Target,
    experts: Layouts = None,
    model_path: ModelPaths = None,
    image: Image = None,
    router_image: RouterImage = None,
    namespace: Namespace = None,
    model_cache: ModelCache = None,
    token_secret: TokenSecret = None,
    ssh_secret: SshSecret = None,
    placement: Placement = None,
    gpus: GpuRequests = None,
    measure: Measure = None,
    measure_image: MeasureImage = None,
    measure_url: MeasureUrl = None,
    launcher: Launcher = None,
    env: Environment = None,
    argument: Arguments = None,
    inputs: Inputs = None,
    profiles: Profiles = None,
    output: Output = None,
    as_json: Json = False,
) -> int:
    """Write the launch scripts of a plan.

    `--output` names a folder; without it the files go to stdout. With `--experts`, plans of expert layouts, serving
    plans start with every expert where its layout says. Plans that fail `planner check` are refused; what of them
    cannot be verified here is told.

    Examples:

      planner emit plan.json --target vllm -o launch/

      planner emit plan.json --target sglang --experts layout.json -o launch/

      planner emit plan.json --target lws --namespace serving --model-cache models -o launch/
    """
    from planner.emit.options import ClusterOptions, read_settings
    from planner.emit.registry import LayoutPlan
    from planner.emit.registry import emit as emit_files
    from planner.load.problems import load_plan

    envelope, decision = load_plan(plan)
    layouts = [_layout(text, {role.name for role in decision.roles}) for text in experts or ()]
    options = ClusterOptions(
        *(image, router_image, namespace, model_cache, token_secret, ssh_secret, placement, gpus),
        *(measure, measure_image, measure_url, launcher),
        settings=read_settings(env) if env else None,
        arguments=tuple(argument) if argument else None,
    )
    files = emit_files(envelope, decision, target, layouts, options, model_path or ())
    notes = _unverified([LayoutPlan(plan, None, envelope, decision), *layouts], inputs, profiles)
    if output not in (None, "-"):
        write_folder(files, str(output))
    if as_json:
        write_json({"schema": "planner.emitted/1", "target": target, "files": files})
    elif output in (None, "-"):
        write_data("\n".join(f"==> {name} <==\n{text}" for name, text in files.items()))
    for note in notes:
        say(f"warning: {note}")
    return 0


def _unverified(plans: "Sequence[LayoutPlan]", inputs: list[str] | None, profiles: list[str] | None) -> list[str]:
    """What of these plans cannot be verified here; raises PlannerError for a plan that fails its check."""
    from planner.check.sound import require_sound

    notes: list[str] = []
    for own in plans:
        base = None if own.source == "-" else Path(own.source).parent
        notes += require_sound(own.envelope, own.decision, base, inputs_at_hand(own.source, inputs, profiles))
    return notes


def _layout(text: str, roles: set[str]) -> "LayoutPlan":
    """The plan of a layout, and the role that it is for where `text` names one: `ROLE=PLAN`."""
    from planner.emit.registry import LayoutPlan
    from planner.load.problems import load_plan

    role, _, path = text.partition("=")
    named = bool(path) and role in roles
    path = path if named else text
    return LayoutPlan(path, role if named else None, *load_plan(path))
