"""The options that `import` and `audit` share: artifacts, what they leave open, and what is asked of them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from planner.cli.options import INPUT
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.importing.plans.question import Question


def _input(flag: str, metavar: str, text: str) -> Any:  # noqa: ANN401 - what typer takes
    return typer.Option(flag, metavar=metavar, help=text, rich_help_panel=INPUT)


@dataclass(frozen=True)
class Asked:
    """What was written on the command line."""

    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Scripts, manifests, recipes, configurations; folders of them; `-` is stdin."
        ),
    ]
    env: Annotated[
        list[str] | None,
        _input("--env", "NAME=VALUE", "A variable that the artifact leaves to its environment; repeatable."),
    ] = None
    settings: Annotated[
        list[str] | None,
        _input(
            "--set",
            "FIELD=VALUE",
            "A field that the artifact leaves open: model, gpu_type, gpus, ROLE.FIELD; repeatable.",
        ),
    ] = None
    workload: Annotated[
        str | None,
        _input(
            "--workload",
            "FIELDS",
            "The requests: `input=1500,output=300,rate=20/s`, or a file; fields of a problem's workload.",
        ),
    ] = None
    slo: Annotated[str | None, _input("--slo", "FIELDS", "Their limits: `ttft.p99=2s,itl=50ms`.")] = None
    cluster: Annotated[
        str | None,
        _input("--cluster", "FIELDS", "The machines, where the artifact does not say: `gpu=h100,nodes=4`."),
    ] = None
    model: Annotated[
        str | None,
        _input("--model", "NAME", "What the catalog calls the model, or the path of its config.json."),
    ] = None
    calibration: Annotated[str | None, _input("--calibration", "FILE", "Costs, as `planner calibrate -o` writes.")] = (
        None
    )

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the environment by name; raises PlannerError for other texts."""
        return _pairs(self.env, "--env")

    @property
    def given(self) -> dict[str, str]:
        """Fields by path; raises PlannerError for other texts."""
        return _pairs(self.settings, "--set")

    def question(self, cache: str | None = None) -> "Question":
        """What the artifacts do not say themselves; raises PlannerError, naming the flag and how it is written."""
        from planner.importing.plans.question import Question

        return Question.of(self.workload, self.slo, self.cluster, self.model, self.calibration, cache)


def of_artifacts(verb: Callable[..., int]) -> Callable[..., int]:
    """The verb, which takes `Asked` and options of its own, as a command with the options of both."""
    signature = inspect.signature(verb)
    hints, shared = get_type_hints(verb, include_extras=True), get_type_hints(Asked, include_extras=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "asked"]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    absent = {
        field.name: inspect.Parameter.empty if field.name == "files" else field.default for field in fields(Asked)
    }
    parameters = [inspect.Parameter(name, kind, default=absent[name], annotation=shared[name]) for name in absent]
    parameters += [parameter.replace(annotation=hints[parameter.name]) for parameter in own]

    def command(**values: Any) -> int:  # noqa: ANN401 - what the parser read
        asked = Asked(**{name: values.pop(name) for name in absent})
        return verb(asked, **values)

    command.__name__, command.__doc__ = verb.__name__, verb.__doc__
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | {"return": int}
    vars(command)["__signature__"] = signature.replace(parameters=parameters)
    return command


def _pairs(texts: list[str] | None, flag: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping."""
    named = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise PlannerError(
                f"must be NAME=VALUE, found `{text}`", where=flag, hint=f"write for example `{flag} TP=4`"
            )
        named[name] = value
    return named
