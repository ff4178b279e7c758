"""The syntax tree of a script, by tree-sitter and its bash grammar; marks of unknown variables are letters in it."""

import re
from functools import cache
from typing import TYPE_CHECKING

from planner.errors import PlannerError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_LETTER = "\ue000"  # of private use, in place of the NUL of marks, at which a lexer stops

_MESSAGE = re.compile(r"\$\{\w+:?\?[^}\n]*")


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
    """The syntax tree of a script, without apostrophes in messages of `${NAME:?...}`, at which the grammar errs."""
    text = _MESSAGE.sub(lambda match: match[0].replace("'", ""), text)
    return _parser().parse(text.replace("\x00", _LETTER).encode()).root_node


def broken_lines(node: "Node") -> list[int]:
    """The lines, from 1, at which the text is no shell."""
    if not node.has_error:
        return []
    own = [node.start_point[0] + 1] if node.is_missing or node.type == "ERROR" else []
    return own + [line for child in node.children for line in broken_lines(child)]


def node_text(node: "Node") -> str:
    """The text of a node, with the marks that the script has."""
    return decoded(node.text or b"")


def decoded(content: bytes) -> str:
    """Bytes of a tree as text, with the marks that the script has."""
    return content.decode(errors="replace").replace(_LETTER, "\x00")
