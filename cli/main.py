"""The `planner` command: registers all verbs, and turns exceptions into error texts and exit codes."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from planner.cli import completion
from planner.cli.agents import mcp
from planner.cli.artifacts import audit, import_, watch
from planner.cli.catalogs import doctor, hardware, models
from planner.cli.completion import COMPLETE
from planner.cli.errors import render_error, usage_error
from planner.cli.experts import experts
from planner.cli.measured import calibrate, profile, profiles, trace
from planner.cli.options import INPUT, NO_FILES, OUTPUT, READ, SOLVER, WRITTEN, refuse_unknown_variables
from planner.cli.output import refuse_overwriting, say_infeasible
from planner.cli.plans import check, diff, emit, execute, explain, init, report, schema, show, solve
from planner.cli.plans.check_engine import ENGINE
from planner.cli.rl import rl
from planner.cli.what_if import cache as prefix_cache
from planner.cli.what_if import estimate, faults, simulate, sweep
from planner.cli.what_if.sweep_options import GATE
from planner.errors import Infeasible, PlannerError, did_you_mean

EXIT_USAGE, EXIT_BUG, EXIT_INTERRUPTED, EXIT_PIPE = 2, 4, 130, 141

# The base of all exceptions of the parser that typer carries; its module differs between versions of typer.
_PARSER_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

_HELP = """Plan LLM serving and training on GPU clusters: problem file in, proven plan out.

Examples:

  planner solve examples/serve-qwen3-32b-h200.yaml -o plan.json

  planner check plan.json

Exit codes: 0 yes, 1 the answer is no, 2 bad flag or bad file, 3 stopped at a limit with no plan, 4 a bug of planner.
"""


class _Verb(TyperCommand):
    """A command whose help has headings (Input, Solver ...), which writes over nothing that it reads, and whose errors
    name the variable that gave a flag."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - parser types differ between versions of typer
        _refuse_overwriting(ctx)
        try:
            return super().invoke(ctx)
        except PlannerError as error:
            variable = _variable_of(ctx, error.where)
            if variable is None:
                raise
            raise error.at(variable) from None

    def format_options(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - parser types differ between versions of typer
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                argument = parameter.param_type_name == "argument"
                panel = getattr(parameter, "rich_help_panel", None)
                sections.setdefault("Arguments" if argument else panel or "Options", []).append(record)
        for heading in sorted(sections, key=_place_of_section):
            if sections[heading]:
                with formatter.section(heading):
                    formatter.write_dl(sections[heading])


def _variable_of(ctx: Any, flag: str) -> str | None:  # noqa: ANN401 - parser types differ between versions of typer
    """The environment variable that gave the value of `flag`, where one did."""
    given = (parameter for parameter in ctx.command.params if flag in parameter.opts)
    names = (p.envvar for p in given if getattr(ctx.get_parameter_source(p.name), "name", "") == "ENVIRONMENT")
    return next(names, None)


def _refuse_overwriting(ctx: Any) -> None:  # noqa: ANN401 - parser types differ between versions of typer
    written: list[tuple[str, str]] = []
    read: list[tuple[str, str]] = []
    for parameter in ctx.command.params:
        flag, value = parameter.opts[0], ctx.params[parameter.name]
        paths = [path for path in (value if isinstance(value, list) else [value]) if isinstance(path, str)]
        if flag in WRITTEN:
            written += [(flag, path) for path in paths]
        elif flag in READ:
            read += [(flag, path) for path in paths]
        elif parameter.param_type_name == "argument" and parameter.metavar not in NO_FILES:
            read += [(parameter.metavar.strip("[]."), path) for path in paths]
    refuse_overwriting(written, read)


def _place_of_section(heading: str) -> int:
    order = ("Arguments", INPUT, SOLVER, GATE, ENGINE, OUTPUT)
    return order.index(heading) if heading in order else len(order)


class _Verbs(TyperGroup):
    """Commands whose unknown names are refused with the nearest known ones."""

    def resolve_command(self, ctx: Any, args: Any) -> Any:  # noqa: ANN401 - parser types differ between versions of typer
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            raise PlannerError(
                f"unknown command `{args[0]}`",
                hint=did_you_mean(args[0], list(self.commands), otherwise=f"see `{ctx.command_path} --help`"),
            )
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: Any) -> Any:  # noqa: ANN401 - parser types differ between versions of typer
        with _past_the_parser():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 - parser types differ between versions of typer
        with _past_the_parser():
            return super().invoke(ctx)


class _Interrupted(BaseException):
    """Ctrl-C, past the parser, which would end the command by itself and say nothing."""


@contextmanager
def _past_the_parser() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise _Interrupted from None


def _group(help_text: str) -> typer.Typer:
    settings = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
    return typer.Typer(
        cls=_Verbs, help=help_text, add_completion=False, rich_markup_mode=None, context_settings=settings
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        from planner import __version__

        typer.echo(f"planner {__version__}")
        raise typer.Exit(0)


_COMMANDS: tuple[Callable[..., int], ...] = (
    solve.solve, check.check, calibrate.calibrate, diff.diff, emit.emit, estimate.estimate, execute.execute,
    explain.explain, init.init, doctor.doctor, sweep.sweep, simulate.simulate, schema.schema, show.show,
    report.report, profile.profile, import_.import_, audit.audit, watch.watch, mcp.mcp, completion.completion,
    prefix_cache.cache,
)  # fmt: skip
_NOUNS: dict[str, Any] = {  # modules with a `HELP` and verbs as `COMMANDS`
    "hardware": hardware, "models": models, "profiles": profiles, "trace": trace, "experts": experts,
    "faults": faults, "rl": rl,
}  # fmt: skip


@cache
def built_command() -> Any:  # noqa: ANN401 - parser types differ between versions of typer
    """`planner` with all its verbs, for the parser; made once in a process."""
    app = _group(_HELP)

    @app.callback()
    def planner(
        version: bool = typer.Option(
            False, "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ) -> None:
        refuse_unknown_variables()

    for command in _COMMANDS:
        app.command(command.__name__.rstrip("_"), cls=_Verb)(command)
    for name, module in _NOUNS.items():
        noun = _group(module.HELP)
        for verb, command in module.COMMANDS.items():
            noun.command(verb, cls=_Verb)(command)
        app.add_typer(noun, name=name)
    return typer.main.get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error becomes text on stderr."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    _tolerate_encodings()
    try:
        return _run(arguments)
    except PlannerError as error:
        _print_error(render_error(error))
        return EXIT_USAGE
    except Infeasible as answer:
        return say_infeasible(answer, as_json="--json" in arguments)
    except (KeyboardInterrupt, _Interrupted, typer.Abort):
        _print_error("interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has left. Python would complain once more when it flushes stdout at exit.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - stays open until exit
        return EXIT_PIPE
    except Exception as error:  # noqa: BLE001 - the one place that turns our own bugs into exit code 4
        _report_bug(error)
        return EXIT_BUG


def _run(arguments: list[str]) -> int:
    if COMPLETE in os.environ:  # the shell asks what may follow; the parser answers and exits
        from typer.completion import completion_init  # type: ignore[attr-defined]  # typer does not say that it exports it

        completion_init()
    try:
        code = built_command().main(args=arguments, prog_name="planner", standalone_mode=False)
    except _PARSER_ERROR as error:
        raise usage_error(error) from None
    return code if isinstance(code, int) else 0


def _tolerate_encodings() -> None:
    """Characters that the terminal cannot show are escaped; they must not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _print_error(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # stderr is closed: the exit code still tells
        return


def _report_bug(error: Exception) -> None:
    if os.environ.get("PLANNER_DEBUG") == "1":
        import traceback

        _print_error("".join(traceback.format_exception(error)))
    summary = " ".join(str(error).split())[:200]
    _print_error(
        f"error: internal error: {type(error).__name__}: {summary}\n"
        "  hint: this is a bug of planner; please report it with the output of the same command under PLANNER_DEBUG=1"
    )


if __name__ == "__main__":
    sys.exit(main())
