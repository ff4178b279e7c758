"""Whole-number arithmetic of shells, by Python's own parser of expressions and nothing evaluated by it."""

import ast
import re
from collections.abc import Callable, Collection

from planner.importing.values import is_unknown, unknown_names

_BRACED = re.compile(r"\$\{([A-Za-z_]\w*)(?::?-([^{}$]*))?\}|\$([A-Za-z_]\w*|\d+)")
MAX_DIGITS = 18
_OPERATIONS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: int(a / b), ast.FloorDiv: lambda a, b: int(a / b), ast.Mod: lambda a, b: a - int(a / b) * b,
    ast.LShift: lambda a, b: a << min(b, 62), ast.RShift: lambda a, b: a >> min(b, 62),
}  # fmt: skip
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Gt: lambda a, b: a > b, ast.GtE: lambda a, b: a >= b, ast.Lt: lambda a, b: a < b, ast.LtE: lambda a, b: a <= b,
    ast.Eq: lambda a, b: a == b, ast.NotEq: lambda a, b: a != b,
}  # fmt: skip
_TERNARY = re.compile(r"\A([^?:]+)\?([^?:]+):([^?:]+)\Z")


def arithmetic(
    text: str, look: Callable[[str], str | None], *, required: Collection[str] = (), depth: int = 0
) -> int | list[str]:
    """The number that `text` comes to, or the names of the variables that it waits for (none: not a number)."""
    if is_unknown(text):
        return unknown_names(text)
    waits: list[str] = []

    def value(name: str, default: str | None) -> str:
        text = look(name)
        if text in (None, "") and default is not None and name not in required:
            text = default
        number = [name] if text is None or depth > 20 else arithmetic(text, look, required=required, depth=depth + 1)
        if isinstance(number, int):
            return str(number)
        waits.extend(number or [name])
        return "0"

    plain = _BRACED.sub(lambda match: value(match[1] or match[3], match[2]), text)
    plain = re.sub(r"(?<![\w.])[A-Za-z_]\w*", lambda match: value(match[0], None), plain).strip()
    if waits:
        return list(dict.fromkeys(waits))
    plain = _TERNARY.sub(r"(\2) if (\1) else (\3)", plain).replace("&&", " and ").replace("||", " or ")
    try:
        return _value(ast.parse(plain or "0", mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError):
        return []


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int and len(str(node.value)) <= MAX_DIGITS:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        number = _value(node.operand)
        return -number if isinstance(node.op, ast.USub) else number
    if isinstance(node, ast.IfExp):
        return _value(node.body) if _value(node.test) else _value(node.orelse)
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
        return int(_COMPARISONS[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    if isinstance(node, ast.BoolOp):
        return int((all if isinstance(node.op, ast.And) else any)(_value(part) for part in node.values))
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        number = _OPERATIONS[type(node.op)](_value(node.left), _value(node.right))
        if len(str(number)) <= MAX_DIGITS:
            return number
    raise ValueError
