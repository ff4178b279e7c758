"""`planner check --level engine`: command-line options turned into settings of the engine check."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner.cli.options import fraction, seconds
from planner.cli.plans.check_levels import require_level
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.plan.findings import Finding


ENGINE = "Level engine"
EngineUrl = Annotated[str | None, typer.Option(metavar="URL", help="Measure the server here.", rich_help_panel=ENGINE)]
EngineTarget = Annotated[
    str | None, typer.Option(metavar="NAME", help="Engine to start; that of the plan.", rich_help_panel=ENGINE)
]
ReportFile = Annotated[
    str | None, typer.Option(metavar="FILE", help="Judge this report, start nothing.", rich_help_panel=ENGINE)
]
Generator = Annotated[str | None, typer.Option(metavar="NAME", help="guidellm or aiperf.", rich_help_panel=ENGINE)]
Tokenizer = Annotated[
    str | None, typer.Option(metavar="NAME", help="For prompts; that of the model.", rich_help_panel=ENGINE)
]
Duration = Annotated[str | None, typer.Option(metavar="TIME", help="How long to drive, 60s.", rich_help_panel=ENGINE)]
Ready = Annotated[str | None, typer.Option(metavar="TIME", help="How long it may load, 20min.", rich_help_panel=ENGINE)]


def check_on_engine(
    plan: str,
    *,
    tolerance: str | None,
    url: str | None,
    target: str | None,
    report: str | None,
    generator: str | None,
    tokenizer: str | None,
    duration: str | None,
    ready: str | None,
) -> "tuple[list[Finding], dict[str, Any]]":
    """The findings on a running engine, and the `planner.engine_check/1` document; absent flags take the defaults."""
    from planner.engine_check.check import Settings, check_engine, judge_report
    from planner.load.problems import load_plan

    if url is not None and not url.startswith(("http://", "https://")):
        raise PlannerError(f"must be an address, found `{url}`", where="--url", hint="write `http://127.0.0.1:8000`")
    driven = {"--url": url, "--target": target, "--generator": generator, "--tokenizer": tokenizer}
    driven |= {"--duration": duration, "--ready": ready}
    idle = next((flag for flag, value in driven.items() if value is not None), None) if report is not None else None
    if idle is not None:
        what, hint = "a report is judged, and nothing is started or driven", f"leave `{idle}` or `--report` out"
        raise PlannerError(what, where=idle, hint=hint)
    envelope, decision = load_plan(plan)
    require_level("engine", envelope, decision)
    given: dict[str, Any] = {
        "url": url,
        "target": target,
        "generator": generator,
        "tokenizer": tokenizer,
        "duration_s": seconds(duration, "--duration"),
        "ready_s": seconds(ready, "--ready"),
        "tolerance": fraction(tolerance, "--tolerance") if tolerance is not None else None,
    }
    settings = Settings(**{name: value for name, value in given.items() if value is not None})
    if report is not None:
        verdict = judge_report(envelope, report, settings.tolerance)
    else:
        verdict = check_engine(envelope, decision, settings)
    return verdict.findings, verdict.result
