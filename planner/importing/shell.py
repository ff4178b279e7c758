"""Shell scripts followed without running them: the words of every command, and what they wait for.

The tree is tree-sitter's. Variables, arrays, defaults, arithmetic, heredocs and conditions are followed; nothing of the
script is executed, no file is opened, and what only a run would tell (`$(...)`, unset variables) is marked. A condition
that cannot be decided is left to `planner.importing.worlds`, which follows both answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.importing.arithmetic import arithmetic
from planner.importing.unknown import is_unknown, mark, renamed, unknown_names

if TYPE_CHECKING:
    from tree_sitter import Node

OPAQUE = "$()"
MAX_COMMANDS = 20_000
MAX_DEPTH = 150
MAX_TURNS = 64  # of a loop
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_REQUIRES = re.compile(
    r"(check|require|need|ensure|assert)\w*(env|var)|env\w*(check|require)|(env|var)s?_?(set|required)"
)
_MISSING = re.compile(r"-z\s+\"?\$\{?([A-Za-z_]\w*)")  # a script that exits without it requires it
_ESCAPE = re.compile(r"\\(.)", re.S)
_IGNORED = frozenset({"source", ".", "echo", "printf", "set", "cd", "mkdir", "shift", "trap", "wait", "sleep", "kill"})


class UndecidedError(Exception):
    """A condition that rests on what nobody knows yet: its text, and the variables that it waits for."""

    def __init__(self, condition: str) -> None:
        super().__init__(condition)
        self.condition = condition


class StoppedError(Exception):
    """The script exits here."""


@dataclass(frozen=True)
class Command:
    """The words of one command, the variables set for it alone, and its first and last line from 1."""

    words: tuple[str, ...]
    environment: Mapping[str, str]
    line: int
    last_line: int


@dataclass
class Shell:
    """One way through a script: `decided` answers conditions by their text, `given` are variables the user names."""

    given: Mapping[str, str]
    decided: Mapping[str, bool]
    positional: Mapping[str, str] = field(default_factory=dict)
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    files: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)
    used: list[str] = field(default_factory=list)
    depth: int = 0

    def run(self, root: Node) -> None:
        """Follows the whole script."""
        try:
            self._body(root)
        except StoppedError:
            return

    # statements

    def _body(self, node: Node) -> None:
        for child in node.named_children:
            self._statement(child)

    def _statement(self, node: Node) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH or len(self.commands) > MAX_COMMANDS:
            raise StoppedError
        try:
            handler = _STATEMENTS.get(node.type)
            if handler is not None:
                handler(self, node)
        finally:
            self.depth -= 1

    def _assign(self, node: Node) -> None:
        name_node = node.child_by_field_name("name") or node.named_children[0]
        name = _text(name_node)
        if not _NAME.match(name):
            return
        value_node = node.child_by_field_name("value")
        appends = any(child.type == "+=" for child in node.children)
        value: str | list[str]
        if value_node is None:
            value = ""
        elif value_node.type == "array":
            value = [word for child in value_node.named_children for word in self.words(child)]
        else:
            value = self._settled(name, self.string(value_node))
        if appends:
            value = _appended(self.variables.get(name, []), value)
        self.variables[name] = value

    def _settled(self, name: str, value: str) -> str:
        """A value that only a run would tell waits for the variable that takes it, unless the user gives that."""
        if OPAQUE not in unknown_names(value):
            return value
        return self.given[name] if name in self.given else renamed(value, OPAQUE, name)

    def _declare(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assign(child)

    def _if(self, node: Node) -> None:
        children = node.named_children
        condition, body = children[0], children[1:]
        if any(re.match(r"exit\b", _text(child)) for child in body):
            self.required |= set(_MISSING.findall(_text(condition))) - self.variables.keys()
        if self.holds(condition):
            self._branch([child for child in body if child.type not in ("elif_clause", "else_clause")])
            return
        for child in body:
            if child.type == "elif_clause":
                if self.holds(child.named_children[0]):
                    self._branch(child.named_children[1:])
                    return
            elif child.type == "else_clause":
                self._branch(child.named_children)

    def _branch(self, nodes: list[Node]) -> None:
        for node in nodes:
            self._statement(node)

    def _case(self, node: Node) -> None:
        subject = self.string(node.named_children[0])
        for item in node.named_children[1:]:
            patterns = item.children_by_field_name("value")
            body = [child for child in item.named_children if child not in patterns]
            texts = [self.string(pattern) for pattern in patterns]
            if any(self._matches(subject, text) for text in texts):
                self._branch(body)
                return

    def _matches(self, subject: str, pattern: str) -> bool:
        if pattern == "*":
            return True
        if is_unknown(subject) or is_unknown(pattern):
            return self._ask(f"{subject} = {pattern}")
        return re.fullmatch(_glob(pattern), subject) is not None

    def _for(self, node: Node) -> None:
        name = _text(node.named_children[0])
        body = node.child_by_field_name("body")
        values = [word for child in node.children_by_field_name("value") for word in self.words(child)]
        if body is None or node.type != "for_statement":
            return
        for value in values[:MAX_TURNS]:
            self.variables[name] = value
            self._body(body)

    def _c_for(self, node: Node) -> None:
        """`for ((i = 0; i < N; i++))`, as far as all three parts are arithmetic; else the body once."""
        body = node.child_by_field_name("body")
        parts = re.match(r"for\s*\(\(\s*(\w+)\s*=([^;]*);\s*\w+\s*(<=?)([^;]*);[^;]*\)\)", _text(node))
        if body is None:
            return
        bounds = (arithmetic(parts[2], self.look), arithmetic(parts[4], self.look)) if parts else ([], [])
        first, last = bounds
        if parts is None or not isinstance(first, int) or not isinstance(last, int):
            self._body(body)
            return
        for value in range(first, min(last + (parts[3] == "<="), first + MAX_TURNS)):
            self.variables[parts[1]] = str(value)
            self._body(body)

    def _list(self, node: Node) -> None:
        """`a && b` and `a || b`: b runs as far as a is a test that decides it; commands are taken to succeed."""
        left, *rest = node.named_children
        succeeded = self.holds(left) if left.type == "test_command" else True
        if left.type != "test_command":
            self._statement(left)
        operator = next((child.type for child in node.children if child.type in ("&&", "||")), "&&")
        if succeeded == (operator == "&&"):
            self._branch(rest)

    def _function(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[_text(name)] = body

    def _redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body") or node.named_children[0]
        target = next((child for child in node.named_children if child.type == "file_redirect"), None)
        heredoc = next((child for child in node.named_children if child.type == "heredoc_redirect"), None)
        if heredoc is not None:
            target = target or next((child for child in heredoc.named_children if child.type == "file_redirect"), None)
            text = self._heredoc(heredoc)
            if target is not None and body.type == "command":
                path, appends = self.string(target.named_children[-1]), _text(target).startswith(">>")
                self.files[path] = (self.files.get(path, "") if appends else "") + text
                return
            words = [word for child in body.named_children for word in self.words(child)]
            if "tee" in words:
                self.files[words[-1]] = text
                return
        self._statement(body)

    def _heredoc(self, node: Node) -> str:
        start = next(child for child in node.children if child.type == "heredoc_start")
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        if body is None:
            return ""
        return _text(body) if _text(start)[:1] in "'\"\\" else self._interpolated(body)

    def _command(self, node: Node) -> None:
        environment: dict[str, str] = {}
        words: list[str] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                value = child.child_by_field_name("value")
                name = _text(child.named_children[0])
                environment[name] = "" if value is None else self.string(value)
            elif child.type == "command_name":
                words += [word for part in child.named_children for word in self.words(part)]
            elif child.type not in ("file_redirect", "herestring_redirect"):
                words += self.words(child)
        if words:
            self._called(words, environment, (node.start_point[0] + 1, node.end_point[0] + 1))

    def _called(self, words: list[str], environment: dict[str, str], lines: tuple[int, int]) -> None:
        name = words[0]
        if name in self.functions:
            body = self.functions[name]
            outer, self.positional = self.positional, {str(k): w for k, w in enumerate(words)}
            self._body(body)
            self.positional = outer
        elif name in ("exit", "return"):
            if name == "exit":
                raise StoppedError
        elif _REQUIRES.search(name.lower()) and all(_NAME.match(word) for word in words[1:]):
            self.required |= set(words[1:])
        elif name not in _IGNORED:
            self.commands.append(Command(tuple(words), environment, *lines))

    # conditions

    def holds(self, node: Node) -> bool:
        """Whether a condition holds; raises UndecidedError where nobody knows and `decided` says nothing."""
        if node.type in ("test_command", "parenthesized_expression") and node.named_children:
            return self.holds(node.named_children[0])
        if node.type == "negated_command" or (node.type == "unary_expression" and node.children[0].type == "!"):
            return not self.holds(node.named_children[-1])
        if node.type in ("binary_expression", "list"):
            return self._binary(node)
        if node.type == "unary_expression":
            return self._unary(node)
        if node.type in ("command", "redirected_statement", "pipeline"):
            return self._ask(f"{mark([OPAQUE])}{_text(node)}")
        return self.string(node) != ""

    def _binary(self, node: Node) -> bool:
        operator = next((c for c in node.children if c.type in _OPERATORS or c.type == "test_operator"), None)
        left, right = node.named_children[0], node.named_children[-1]
        sign = "" if operator is None else _text(operator)
        if sign in ("&&", "-a"):
            return self.holds(left) and self.holds(right)
        if sign in ("||", "-o"):
            return self.holds(left) or self.holds(right)
        if sign in _NUMERIC:
            one_text, other_text = self.string(left), self.string(right)
            values = arithmetic(one_text, self.look), arithmetic(other_text, self.look)
            if isinstance(values[0], int) and isinstance(values[1], int):
                return _NUMERIC[sign](values[0], values[1])
            return self._ask(f"{one_text} {sign} {other_text}")
        texts = self._tested(left), self._tested(right)
        if is_unknown("".join(texts)):
            return self._ask(f"{texts[0]} = {texts[1]}") != (sign == "!=")
        same = re.fullmatch(_glob(texts[1]), texts[0]) is not None
        return same != (sign == "!=")

    def _unary(self, node: Node) -> bool:
        sign, text = _text(node.children[0]), self._tested(node.named_children[-1])
        if sign in ("-n", "-z"):
            if is_unknown(text):
                return sign == "-n"
            return (text != "") == (sign == "-n")
        return self._ask(f"{mark([OPAQUE])}{sign} {text}")

    def _tested(self, node: Node) -> str:
        """A word of a test, where a variable that nobody requires and nobody sets is empty."""
        text = self.string(node)
        for name in unknown_names(text):
            if name not in self.required and name not in self.variables and name != OPAQUE:
                text = text.replace(mark([name]), "")
        return text

    def _ask(self, condition: str) -> bool:
        if condition not in self.decided:
            raise UndecidedError(condition)
        self.used.append(condition)
        return self.decided[condition]

    # words

    def look(self, name: str) -> str | None:
        """The text of a variable; None where nothing sets it."""
        value = self.variables.get(name, self.positional.get(name, self.given.get(name)))
        return value[0] if isinstance(value, list) and value else "" if isinstance(value, list) else value

    def words(self, node: Node) -> list[str]:
        """The words that one node becomes: arrays are spread, unquoted expansions split at blanks."""
        spread = self._spread(node)
        if spread is not None:
            return spread
        if node.type == "comment":
            return []
        text = self.string(node)
        if node.type in ("simple_expansion", "expansion", "command_substitution"):
            return text.split()
        return [text]

    def _spread(self, node: Node) -> list[str] | None:
        """The words of `${NAME[@]}` and `$@`, quoted or not; None for everything else."""
        quoted = node.type == "string" and len(node.named_children) == 1
        inner = node.named_children[0] if quoted else node
        if quoted and _text(inner) != _text(node)[1:-1]:
            return None
        if (
            inner.type == "expansion"
            and inner.named_children
            and inner.named_children[0].type == "subscript"
            and re.search(r"\[[@*]\]", _text(inner))
        ):
            name = _text(inner.named_children[0].named_children[0])
            value = self.variables.get(name)
            if isinstance(value, list):
                return value if quoted else [part for word in value for part in word.split()]
            return [] if value is None else [value]
        if _text(inner) in ("$@", "$*", "${@}"):
            return [self.positional[key] for key in self.positional if key.isdigit() and key != "0"]
        return None

    def string(self, node: Node) -> str:
        """The text of one word, with marks where it waits for a variable."""
        handler = _WORDS.get(node.type)
        if handler is not None:
            return handler(self, node)
        if node.type in ("string", "concatenation", "command_name", "heredoc_body", "translated_string"):
            return self._interpolated(node)
        return _ESCAPE.sub(lambda match: "" if match[1] == "\n" else match[1], _text(node))

    def _interpolated(self, node: Node) -> str:
        """The text of a node with its expansions replaced; text between them stands as it is."""
        content = node.text or b""
        start, parts, end = node.start_byte, [], node.start_byte
        for child in node.named_children:
            parts.append(self._plain(node, content[end - start : child.start_byte - start]))
            literal = child.type in ("string_content", "heredoc_content")
            parts.append(self._plain(node, child.text or b"") if literal else self.string(child))
            end = child.end_byte
        parts.append(self._plain(node, content[end - start :]))
        return "".join(parts)

    def _plain(self, node: Node, content: bytes) -> str:
        text = content.decode(errors="replace")
        if node.type == "string":
            text = re.sub(r'\A"|(?<!\\)"\Z', "", text) if text in ('"', '""') else text.strip("\x00")
            return re.sub(r'\\(["\\$`\n])', lambda match: "" if match[1] == "\n" else match[1], text)
        return text

    def _variable(self, node: Node) -> str:
        name = _text(node)[1:].strip("{}")
        value = self.look(name)
        return mark([name]) if value is None else value

    def _expansion(self, node: Node) -> str:
        match = re.match(r"\$\{([#!]?)([A-Za-z0-9_@*]+)(\[[^\]]*\])?", _text(node))
        if match is None or match[1]:
            return mark([OPAQUE])
        name = match[2]
        value = self.look(name)
        if match[3] is not None and match[3] not in ("[@]", "[*]"):
            return self._element(name, match[3][1:-1])
        if match[3] is not None:
            words = self._spread(node)
            return " ".join(words) if words is not None else (value or "")
        rest = _text(node)[match.end() : -1]
        if not rest:
            return mark([name]) if value is None else value
        operator = ":" + rest[1] if rest[0] == ":" else rest[0]
        return self._with_operator(node, name, value, operator, rest)

    def _element(self, name: str, index: str) -> str:
        """One word of an array; a mark where the array or the index is not known."""
        value, place = self.variables.get(name), arithmetic(index, self.look)
        if not isinstance(value, list) or not isinstance(place, int):
            return mark([name])
        return value[place] if -len(value) <= place < len(value) else ""

    def _with_operator(self, node: Node, name: str, value: str | None, operator: str, rest: str) -> str:
        missing = value is None or (operator[0] == ":" and value == "")
        if operator[-1] in "-=":
            if not missing:
                return value or ""
            if name in self.required:
                return mark([name])
            kept = self._operand(node)
            if operator[-1] == "=":
                self.variables[name] = kept
            return kept
        if operator[-1] == "+":
            return "" if missing else self._operand(node)
        if operator[-1] == "?":
            if missing:
                self.required.add(name)
            return mark([name]) if missing else value or ""
        if value is None or is_unknown(value):
            return mark([name]) if value is None else value
        return _trimmed(value, rest)

    def _operand(self, node: Node) -> str:
        """What stands after the operator of `${NAME:-...}`."""
        seen, parts = False, []
        end = None
        for child in node.children:
            if seen and child.type != "}":
                gap = (node.text or b"")[
                    (end or child.start_byte) - node.start_byte : child.start_byte - node.start_byte
                ]
                parts.append(gap.decode(errors="replace") + self.string(child))
                end = child.end_byte
            seen = seen or child.type in (":-", "-", ":=", "=", ":+", "+")
        return "".join(parts)

    def _substituted(self, node: Node) -> str:
        """`$(seq A B)` and `$(echo WORDS)`, whose output follows from their words; a mark for every other command."""
        inner = node.named_children[0] if len(node.named_children) == 1 else None
        if inner is None or inner.type != "command":
            return mark([OPAQUE])
        name, *words = [word for child in inner.named_children for word in self.words(child)] or [""]
        if name == "echo" and words and not words[0].startswith("-"):
            return " ".join(words)
        if name == "seq" and 1 <= len(words) <= 3 and all(re.fullmatch(r"-?\d{1,6}", word) for word in words):
            numbers = [int(word) for word in words]
            first, step, last = {1: (1, 1, numbers[0]), 2: (numbers[0], 1, numbers[-1])}.get(
                len(numbers), (numbers[0], numbers[len(numbers) // 2], numbers[-1])
            )
            return " ".join(map(str, range(first, last + (1 if step > 0 else -1), step)[:1000])) if step else ""
        return mark([OPAQUE])

    def _arithmetic(self, node: Node) -> str:
        inner = _text(node)
        inner = inner[3:-2] if inner.startswith("$((") else inner[2:-1]
        value = arithmetic(inner, self.look, required=self.required)
        return str(value) if isinstance(value, int) else mark(value)


def _text(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def _appended(old: str | list[str], value: str | list[str]) -> str | list[str]:
    if isinstance(value, list):
        return [*(old if isinstance(old, list) else [old]), *value]
    return old + value if isinstance(old, str) else value if not old else [old[0] + value, *old[1:]]


def _glob(pattern: str) -> str:
    return "".join(".*" if sign == "*" else "." if sign == "?" else re.escape(sign) for sign in pattern)


def _trimmed(value: str, rest: str) -> str:
    """`${NAME##*/}`, `${NAME%.*}`, `${NAME,,}` and `${NAME^^}`; a mark for other operators."""
    if rest in (",,", "^^"):
        return value.lower() if rest == ",," else value.upper()
    sign = re.match(r"##?|%%?", rest)
    if sign is None:
        return mark([OPAQUE])
    pattern = rest[sign.end() :]
    cuts: Iterator[int] = iter(range(len(value) + 1))
    order = list(cuts) if (sign[0] in ("#", "%%")) else list(range(len(value), -1, -1))
    for cut in order:
        part, left = (value[:cut], value[cut:]) if sign[0][0] == "#" else (value[cut:], value[:cut])
        if re.fullmatch(_glob(pattern), part):
            return left
    return value


_OPERATORS = frozenset({"=", "==", "!=", "=~", "&&", "||", "<", ">", "<=", ">=", "-a", "-o"})
_NUMERIC: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda a, b: a == b, "-ne": lambda a, b: a != b, "-gt": lambda a, b: a > b, "-ge": lambda a, b: a >= b,
    "-lt": lambda a, b: a < b, "-le": lambda a, b: a <= b, "<": lambda a, b: a < b, ">": lambda a, b: a > b,
    "<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b,
}  # fmt: skip
_STATEMENTS: dict[str, Callable[[Shell, Node], None]] = {
    "command": Shell._command, "variable_assignment": Shell._assign, "variable_assignments": Shell._declare,
    "declaration_command": Shell._declare, "if_statement": Shell._if, "case_statement": Shell._case,
    "for_statement": Shell._for, "c_style_for_statement": Shell._c_for, "list": Shell._list,
    "while_statement": lambda shell, node: None,
    "function_definition": Shell._function, "redirected_statement": Shell._redirected, "pipeline": Shell._body,
    "compound_statement": Shell._body, "subshell": Shell._body, "negated_command": Shell._body,
    "do_group": Shell._body,
}  # fmt: skip
_WORDS: dict[str, Callable[[Shell, Node], str]] = {
    "simple_expansion": Shell._variable, "expansion": Shell._expansion, "arithmetic_expansion": Shell._arithmetic,
    "raw_string": lambda shell, node: _text(node)[1:-1],
    "command_substitution": Shell._substituted,
    "process_substitution": lambda shell, node: mark([OPAQUE]),
}  # fmt: skip
