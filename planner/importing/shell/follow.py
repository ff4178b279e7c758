"""Shell scripts followed without running them: the words of every command, and what they wait for.

The tree is tree-sitter's. Variables, arrays, defaults, arithmetic, heredocs and conditions are followed; nothing of the
script is executed, no file is opened, and what only a run would tell (`$(...)`, unset variables) is marked. A condition
that cannot be decided is left to `planner.importing.shell.worlds`, which follows both answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from planner.importing.shell.arithmetic import arithmetic
from planner.importing.shell.conditions import Conditions, UndecidedError
from planner.importing.shell.syntax import node_text, parse_shell
from planner.importing.shell.words import OPAQUE, appended, numbered, unwrapped
from planner.importing.values import is_unknown, mark, renamed, unknown_names

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_COMMANDS = 20_000
MAX_DEPTH = 150
MAX_TURNS = 64  # of a loop
SHELLS = frozenset({"sh", "bash", "zsh", "dash"})
_RUNS_INPUT = SHELLS | {"ssh", "sbatch", "salloc"}  # programs that run the text that they are given
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_REQUIRES = re.compile(
    r"(check|require|need|ensure|assert)\w*(env|var)|env\w*(check|require)|(env|var)s?_?(set|required)"
)
_MISSING = re.compile(r"-z\s+\"?\$\{?([A-Za-z_]\w*)")  # a script that exits without it requires it
_COUNTED = re.compile(
    r"(?:\(\(|let)\s*[\"']?\s*(?:(\w+)\s*(\+\+|--)|(\+\+|--)\s*(\w+)|(\w+)\s*([-+]?)=\s*([^;]*?))\s*[\"']?\s*(?:\)\))?\Z"
)
_IGNORED = frozenset({"echo", "printf", "set", "cd", "mkdir", "trap", "wait", "sleep", "kill", "true", "false", ":"})


class StoppedError(Exception):
    """The script exits here."""


class ReturnedError(Exception):
    """A function, or a file that is sourced, ends here."""


class TurnEndedError(Exception):
    """A turn of a loop ends here, and with `last` the loop."""

    def __init__(self, *, last: bool) -> None:
        super().__init__()
        self.last = last


@dataclass(frozen=True)
class Command:
    """The words of one command, the variables set for it alone, its first and last line from 1, and its input.

    `variables` are those of the script when it runs.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    line: int
    last_line: int
    given: str = ""
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class Shell(Conditions):
    """One way through a script; `files` are texts by path that it can read, those that it writes among them."""

    written: dict[str, str] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    functions: dict[str, Node] = field(default_factory=dict)
    depth: int = 0

    def run(self, root: Node) -> None:
        """Follows the whole script."""
        try:
            self._body(root)
        except (StoppedError, ReturnedError, TurnEndedError):
            return

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
        name = node_text(name_node)
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
            value = appended(self.variables.get(name, []), value)
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
        if any(re.match(r"exit\b", node_text(child)) for child in body):
            self.required |= set(_MISSING.findall(node_text(condition))) - self.variables.keys()
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
            return self.ask(f"{subject} = {pattern}")
        return fnmatchcase(subject, pattern)

    def _for(self, node: Node) -> None:
        name = node_text(node.named_children[0])
        body = node.child_by_field_name("body")
        values = [word for child in node.children_by_field_name("value") for word in self.words(child)]
        if body is None or node.type != "for_statement":
            return
        for value in values[:MAX_TURNS]:
            self.variables[name] = value
            if self._turn(body):
                return

    def _turn(self, body: Node) -> bool:
        """Follows one turn of a loop; whether it was the last."""
        try:
            self._body(body)
        except TurnEndedError as ended:
            return ended.last
        return False

    def _while(self, node: Node) -> None:
        """`while` and `until` as long as their condition is decided; one turn of a loop without end.

        Loops that wait for a program to answer are taken to have waited.
        """
        condition, body = node.named_children[0], node.child_by_field_name("body") or node.named_children[-1]
        endless = node_text(condition).strip() in ("true", ":")
        for _ in range(MAX_TURNS):
            try:
                holds = self.holds(condition) != (node.children[0].type == "until")
            except UndecidedError:
                return
            before = len(self.commands)
            if not holds or self._turn(body):
                return
            started = [command.words for command in self.commands[before:]]
            if endless and (not started or started == [c.words for c in self.commands[before - len(started) : before]]):
                del self.commands[before:]
                return

    def _c_for(self, node: Node) -> None:
        """`for ((i = 0; i < N; i++))`, as far as all three parts are arithmetic; else the body once."""
        body = node.child_by_field_name("body")
        parts = re.match(r"for\s*\(\(\s*(\w+)\s*=([^;]*);\s*\w+\s*(<=?)([^;]*);([^;]*)\)\)", node_text(node))
        if body is None:
            return
        bounds = (arithmetic(parts[2], self.look), arithmetic(parts[4], self.look)) if parts else ([], [])
        first, last = bounds
        if parts is None or not isinstance(first, int) or not isinstance(last, int):
            self._turn(body)
            return
        step = re.search(r"\+=\s*(\w+)", parts[5])
        by = arithmetic(step[1], self.look) if step else 1
        for value in range(first, last + (parts[3] == "<="), by if isinstance(by, int) and by > 0 else 1)[:MAX_TURNS]:
            self.variables[parts[1]] = str(value)
            if self._turn(body):
                return

    def _list(self, node: Node) -> None:
        self._succeeds(node)

    def _succeeds(self, node: Node) -> bool:
        """Follows `a && b` and `a || b`: b as far as a is a test that decides it; commands are taken to succeed."""
        if node.type == "test_command":
            return self.holds(node)
        if node.type == "negated_command":
            return not self._succeeds(node.named_children[-1])
        if node.type != "list":
            self._statement(node)
            return node_text(node).strip() != "false"
        left, *rest = node.named_children
        succeeded = self._succeeds(left)
        operator = next((child.type for child in node.children if child.type in ("&&", "||")), "&&")
        for part in rest if succeeded == (operator == "&&") else ():
            succeeded = self._succeeds(part)
        return succeeded

    def _compound(self, node: Node) -> None:
        """`{ ...; }`, and `((NAME += 1))`."""
        if not self._counts(node_text(node)):
            self._body(node)

    def _counts(self, text: str) -> bool:
        """Whether the text counts a variable up or down, or sets it to a number, which is then done."""
        match = _COUNTED.match(text)
        if match is None:
            return False
        name = match[1] or match[4] or match[5]
        sign, more = (match[6], match[7]) if match[5] else ((match[2] or match[3])[0], "1")
        value = arithmetic(f"{name} {sign} ({more})" if sign else more, self.look, required=self.required)
        self.variables[name] = str(value) if isinstance(value, int) else mark(value or [OPAQUE])
        return True

    def _function(self, node: Node) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[node_text(name)] = body

    def _redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body") or node.named_children[0]
        target = next((child for child in node.named_children if child.type == "file_redirect"), None)
        heredoc = next((child for child in node.named_children if child.type == "heredoc_redirect"), None)
        if heredoc is None or body.type != "command":
            self._statement(body)
            return
        text = self.heredoc(heredoc)
        target = target or next((child for child in heredoc.named_children if child.type == "file_redirect"), None)
        then = [child for child in heredoc.named_children if child.type in ("pipeline", "command", "list")]
        words = [word for child in body.named_children for word in self.words(child)] or [""]
        piped = [word for child in then if child.type == "pipeline" for part in child.named_children
                 for below in part.named_children for word in self.words(below)]  # fmt: skip
        lines = (node.start_point[0] + 1, node.end_point[0] + 1)
        if target is not None:
            self._write(self.string(target.named_children[-1]), text, appends=node_text(target).startswith(">>"))
        elif "tee" in (*words, *piped):
            self._write((piped or words)[-1], text, appends="-a" in (piped or words))
        elif words[0] == "read":
            self.variables[words[-1]] = text.strip("\n")
        else:
            self._given(piped or words, text, lines)
        for child in then:
            if child.type != "pipeline":
                self._statement(child)

    def _given(self, words: list[str], text: str, lines: tuple[int, int]) -> None:
        """A command with a text as its input, which shells run."""
        names = {word.rpartition("/")[2] for word in words}
        runs = ("bash", "-c", text) if names & _RUNS_INPUT else ()
        self.commands.append(Command((*words, *runs), {}, *lines, text, self._texts()))

    def _write(self, path: str, text: str, *, appends: bool) -> None:
        self.files[path] = self.written[path] = (self.files.get(path, "") if appends else "") + text

    def _texts(self) -> dict[str, str]:
        """The variables that hold one text each."""
        return {name: value for name, value in self.variables.items() if isinstance(value, str)}

    def _command(self, node: Node) -> None:
        environment: dict[str, str] = {}
        words: list[str] = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                value = child.child_by_field_name("value")
                name = node_text(child.named_children[0])
                environment[name] = "" if value is None else self.string(value)
            elif child.type == "command_name":
                words += [word for part in child.named_children for word in self.words(part)]
            elif child.type not in ("file_redirect", "herestring_redirect"):
                words += self.words(child)
        if words:
            self._called(words, environment, (node.start_point[0] + 1, node.end_point[0] + 1))

    def _called(self, words: list[str], environment: dict[str, str], lines: tuple[int, int]) -> None:
        words, environment = unwrapped(words, environment)
        name = words[0]
        handler = _BUILTINS.get(name)
        if words[0] in self.functions:
            self._within(self.functions[words[0]], {str(k): w for k, w in enumerate(words)})
        elif handler is not None:
            handler(self, words)
        elif _REQUIRES.search(name.lower()) and all(_NAME.match(word) for word in words[1:]):
            self.required |= set(words[1:])
        elif not self._runs_file(words, environment) and name not in _IGNORED:
            self.commands.append(Command(tuple(words), environment, *lines, variables=self._texts()))

    def _within(self, body: Node, positional: dict[str, str] | None) -> None:
        """Follows a body that `return` leaves, under arguments of its own where there are any."""
        outer = self.positional
        self.positional = outer if positional is None else positional
        try:
            self._body(body)
        except ReturnedError:
            pass
        finally:
            self.positional = outer

    def _runs_file(self, words: list[str], environment: Mapping[str, str]) -> bool:
        """Whether the command runs a script that can be read, which is then followed."""
        rest = [word for word in words[1:] if not re.match(r"-[a-z]+\Z", word)] if words[0] in SHELLS else words
        text = self._script(rest[0]) if rest and "-c" not in words[:3] else None
        if text is not None:
            outer = dict(self.variables)
            self.variables |= environment
            self._within(parse_shell(text), dict(numbered(rest)))
            self.variables = outer
        return text is not None

    def _script(self, path: str) -> str | None:
        """The text of a file that is shell."""
        name = path.rpartition("/")[2]
        held = self.files.get(path) or next((t for p, t in self.files.items() if p.rpartition("/")[2] == name), None)
        return held if held and (name.endswith((".sh", ".bash", ".env")) or held.startswith("#!")) else None

    def _source(self, words: list[str]) -> None:
        text = self._script(words[1]) if len(words) > 1 else None
        if text is not None:
            self._within(parse_shell(text), None)

    def _eval(self, words: list[str]) -> None:
        self._body(parse_shell(" ".join(words[1:])))

    def _shift(self, words: list[str]) -> None:
        count = int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
        kept = [self.positional.get("0", ""), *self._arguments()[count:]]
        if self.positional:
            self.positional = dict(numbered(kept))

    def _leave(self, words: list[str]) -> None:
        if words[0] == "exit":
            raise StoppedError
        if words[0] == "return":
            raise ReturnedError
        raise TurnEndedError(last=words[0] == "break")

    def _let(self, words: list[str]) -> None:
        self._counts(" ".join(words))


_STATEMENTS: dict[str, Callable[[Shell, Node], None]] = {
    "command": Shell._command, "variable_assignment": Shell._assign, "variable_assignments": Shell._declare,
    "declaration_command": Shell._declare, "if_statement": Shell._if, "case_statement": Shell._case,
    "for_statement": Shell._for, "c_style_for_statement": Shell._c_for, "list": Shell._list,
    "while_statement": Shell._while,
    "function_definition": Shell._function, "redirected_statement": Shell._redirected, "pipeline": Shell._body,
    "compound_statement": Shell._compound, "subshell": Shell._body, "negated_command": Shell._body,
    "do_group": Shell._body,
}  # fmt: skip
_BUILTINS: dict[str, Callable[[Shell, list[str]], None]] = {
    "eval": Shell._eval, "source": Shell._source, ".": Shell._source, "shift": Shell._shift, "let": Shell._let,
    "exit": Shell._leave, "return": Shell._leave, "break": Shell._leave, "continue": Shell._leave,
}  # fmt: skip
