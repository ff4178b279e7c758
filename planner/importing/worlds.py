"""Every way through a script that its open conditions leave: what all agree on is known."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from planner.errors import PlannerError
from planner.importing.shell import OPAQUE, Command, Shell, UndecidedError
from planner.importing.unknown import unknown_names

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

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


@cache
def _parser() -> "Parser":
    try:
        import tree_sitter_bash
        from tree_sitter import Language, Parser
    except ImportError:
        raise PlannerError(
            "shell is read by tree-sitter, which is not installed",
            hint="`pip install tree-sitter tree-sitter-bash`",
        ) from None
    return Parser(Language(tree_sitter_bash.language()))


def parse_shell(text: str) -> "Node":
    """The syntax tree of a script."""
    return _parser().parse(text.encode()).root_node


def broken_lines(node: "Node") -> list[int]:
    """The lines, from 1, at which the text is no shell."""
    if not node.has_error:
        return []
    own = [node.start_point[0] + 1] if node.is_missing or node.type == "ERROR" else []
    return own + [line for child in node.children for line in broken_lines(child)]


def worlds(
    text: str, given: Mapping[str, str], source: str, *, positional: Mapping[str, str] | None = None
) -> list[World]:
    """The ways through the script `text`; `given` are variables by name. Raises PlannerError above 64 ways.

    Where there are many, commands and files that a condition asks for are taken to succeed and to be there.
    """
    root = parse_shell(text)
    waiting: list[dict[str, bool]] = [{}]
    complete: list[World] = []
    while waiting:
        decided = waiting.pop()
        shell = Shell(given, decided, dict(positional or {}))
        try:
            shell.run(root)
        except UndecidedError as open_question:
            crowded = len(waiting) + len(complete) > MAX_WORLDS // 4
            assumed = crowded and set(unknown_names(open_question.condition)) <= {OPAQUE}
            answers = (True,) if assumed else (True, False)
            waiting += [decided | {open_question.condition: answer} for answer in answers]
        else:
            complete.append(World(tuple(shell.commands), shell.files, decided))
        if len(waiting) + len(complete) > MAX_WORLDS:
            names = sorted({name for world in waiting for text in world for name in unknown_names(text)} - {OPAQUE})
            raise PlannerError(
                f"has more than {MAX_WORLDS} ways through its conditions",
                where=source,
                hint=f"settle some of them with `--env NAME=VALUE`: {', '.join(names[:6])}",
            )
    return complete
