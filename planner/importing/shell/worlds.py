"""Every way through a script that its open conditions leave: what all agree on is known."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner.errors import PlannerError
from planner.importing.shell.conditions import UndecidedError
from planner.importing.shell.follow import Command, Shell
from planner.importing.shell.syntax import parse_shell
from planner.importing.shell.words import OPAQUE
from planner.importing.values import unknown_names

MAX_WORLDS = 64


@dataclass(frozen=True)
class World:
    """One way through: its commands, the files that it writes, and its answers to open conditions."""

    commands: tuple[Command, ...]
    files: Mapping[str, str]
    decided: Mapping[str, bool]

    @property
    def names(self) -> list[str]:
        """The variables that its conditions rest on."""
        names = [name for condition in self.decided for name in unknown_names(condition)]
        return [name for name in dict.fromkeys(names) if name != OPAQUE]


def worlds(
    text: str, given: Mapping[str, str], source: str, files: Mapping[str, str], *, asks_unset: bool = False
) -> list[World]:
    """The ways through the script `text`; `given` are variables by name, `files` texts beside it by path.

    Where there are many, commands and files that a condition asks for are taken to succeed and to be there. Raises
    PlannerError above 64 ways.
    """
    root = parse_shell(text)
    waiting: list[dict[str, bool]] = [{}]
    complete: list[World] = []
    while waiting:
        decided = waiting.pop()
        shell = Shell(given=given, decided=decided, files=dict(files), asks_unset=asks_unset)
        try:
            shell.run(root)
        except UndecidedError as open_question:
            crowded = len(waiting) + len(complete) > MAX_WORLDS // 4
            assumed = crowded and set(unknown_names(open_question.condition)) <= {OPAQUE}
            answers = (True,) if assumed else (True, False)
            waiting += [decided | {open_question.condition: answer} for answer in answers]
        else:
            complete.append(World(tuple(shell.commands), shell.written, decided))
        if len(waiting) + len(complete) > MAX_WORLDS:
            names = sorted({name for world in waiting for text in world for name in unknown_names(text)} - {OPAQUE})
            raise PlannerError(
                f"has more than {MAX_WORLDS} ways through its conditions",
                where=source,
                hint=f"settle some of them with `--env NAME=VALUE`: {', '.join(names[:6])}",
            )
    return complete
