"""Conditions of a shell: what is known of a test decides it, and what nobody knows is asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from planner.importing.shell.arithmetic import arithmetic
from planner.importing.shell.syntax import node_text
from planner.importing.shell.words import OPAQUE, Words
from planner.importing.values import is_unknown, mark, unknown_names

if TYPE_CHECKING:
    from tree_sitter import Node

_OPERATORS = frozenset({"=", "==", "!=", "=~", "&&", "||", "<", ">", "<=", ">=", "-a", "-o"})
_NUMERIC: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
}  # fmt: skip


class UndecidedError(Exception):
    """A condition that rests on what nobody knows yet: its text, and the variables that it waits for."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


@dataclass(kw_only=True)
class Conditions(Words):
    """Conditions under the variables that are set: `decided` answers those that nobody knows, by their text.

    With `asks_unset`, a test of a variable that nothing sets is left undecided; else the variable is empty, as it would
    be. `used` are the answers taken.
    """

    decided: Mapping[str, bool]
    asks_unset: bool = False
    used: list[str] = field(default_factory=list)

    def holds(self, node: Node) -> bool:
        """Whether a condition holds; raises UndecidedError where nobody knows and `decided` says nothing."""
        if node.type == "compound_statement" and node_text(node).startswith("(("):
            value = arithmetic(node_text(node)[2:-2], self.look, required=self.required)
            return value != 0 if isinstance(value, int) else self.ask(mark(value or [OPAQUE]) + node_text(node))
        if node.type in ("test_command", "parenthesized_expression") and node.named_children:
            return self.holds(node.named_children[0])
        if node.type == "negated_command" or (node.type == "unary_expression" and node.children[0].type == "!"):
            return not self.holds(node.named_children[-1])
        if node.type in ("binary_expression", "list"):
            return self._binary(node)
        if node.type == "unary_expression":
            return self._unary(node)
        if node.type == "command" and node_text(node).strip() in ("true", ":", "false"):
            return node_text(node).strip() != "false"
        if node.type in ("command", "redirected_statement", "pipeline"):
            return self.ask(f"{mark([OPAQUE])}{node_text(node)}")
        return self.string(node) != ""

    def _binary(self, node: Node) -> bool:
        operator = next((c for c in node.children if c.type in _OPERATORS or c.type == "test_operator"), None)
        left, right = node.named_children[0], node.named_children[-1]
        sign = "" if operator is None else node_text(operator)
        if sign in ("&&", "-a"):
            return self.holds(left) and self.holds(right)
        if sign in ("||", "-o"):
            return self.holds(left) or self.holds(right)
        if sign in _NUMERIC:
            left_text, right_text = self.string(left), self.string(right)
            values = arithmetic(left_text, self.look), arithmetic(right_text, self.look)
            if isinstance(values[0], int) and isinstance(values[1], int):
                return _NUMERIC[sign](values[0], values[1])
            return self.ask(f"{left_text} {sign} {right_text}")
        texts = self._tested(left), self._tested(right)
        if is_unknown("".join(texts)):
            return self.ask(f"{texts[0]} = {texts[1]}") != (sign == "!=")
        same = _matches_regular(*texts) if sign == "=~" else fnmatchcase(texts[0], texts[1])
        return same != (sign == "!=")

    def _unary(self, node: Node) -> bool:
        sign, text = node_text(node.children[0]), self._tested(node.named_children[-1])
        if sign in ("-n", "-z"):
            if is_unknown(text):
                return sign == "-n"
            return (text != "") == (sign == "-n")
        return self.ask(f"{mark([OPAQUE])}{sign} {text}")

    def _tested(self, node: Node) -> str:
        """A word of a test, where a variable that nobody requires and nobody sets is empty."""
        text = self.string(node)
        for name in () if self.asks_unset else unknown_names(text):
            known = name in self.required or name in self.variables or name.isdigit()
            if not known and name != OPAQUE:
                text = text.replace(mark([name]), "")
        return text

    def ask(self, condition: str) -> bool:
        """What is decided of a condition; raises UndecidedError where nothing is."""
        if condition not in self.decided:
            raise UndecidedError(condition)
        self.used.append(condition)
        return self.decided[condition]


def _matches_regular(text: str, pattern: str) -> bool:
    try:
        return re.search(pattern, text) is not None
    except re.error:
        return False
