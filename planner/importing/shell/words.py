"""Words of a shell: variables, arrays, defaults and arithmetic expanded, what nobody knows yet marked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from planner.importing.shell.arithmetic import arithmetic
from planner.importing.shell.filters import output_of
from planner.importing.shell.syntax import decoded, node_text
from planner.importing.values import is_unknown, mark

if TYPE_CHECKING:
    from tree_sitter import Node

OPAQUE = "$()"
FIRST_RANKS = frozenset({
    "NODE_RANK", "RANK", "SLURM_NODEID", "SLURM_PROCID", "SLURM_LOCALID", "SKYPILOT_NODE_RANK", "LWS_WORKER_INDEX",
    "PET_NODE_RANK", "JOB_COMPLETION_INDEX",
})  # fmt: skip
"""What launchers call the number of a node or of a process: scripts are followed on the first."""
_ESCAPE = re.compile(r"\\(.)", re.S)


@dataclass
class Words:
    """The words of commands under the variables that are set; `given` are variables the user names."""

    given: Mapping[str, str]
    positional: Mapping[str, str] = field(default_factory=dict)
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    required: set[str] = field(default_factory=set)
    files: dict[str, str] = field(default_factory=dict)

    def look(self, name: str) -> str | None:
        """The text of a variable; None where nothing sets it."""
        value = self.variables.get(name, self.positional.get(name, self.given.get(name)))
        if value is None:
            absent = name.isdigit() and bool(self.positional)  # an argument that a call leaves out
            return "0" if name in FIRST_RANKS else "" if absent else None
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
        if quoted and node_text(inner) != node_text(node)[1:-1]:
            return None
        if (
            inner.type == "expansion"
            and not node_text(inner).startswith("${#")
            and inner.named_children
            and inner.named_children[0].type == "subscript"
            and re.search(r"\[[@*]\]", node_text(inner))
        ):
            name = node_text(inner.named_children[0].named_children[0])
            value = self.variables.get(name)
            if isinstance(value, list):
                return value if quoted else [part for word in value for part in word.split()]
            return [] if value is None else [value]
        return self._arguments() if node_text(inner) in ("$@", "$*", "${@}", "${*}") else None

    def _arguments(self) -> list[str]:
        return [self.positional[key] for key in self.positional if key.isdigit() and key != "0"]

    def string(self, node: Node) -> str:
        """The text of one word, with marks where it waits for a variable."""
        handler = _WORDS.get(node.type)
        if handler is not None:
            return handler(self, node)
        if node.type in ("string", "concatenation", "command_name", "heredoc_body", "translated_string"):
            return self._interpolated(node)
        return _ESCAPE.sub(lambda match: "" if match[1] == "\n" else match[1], node_text(node))

    def _interpolated(self, node: Node) -> str:
        """The text of a node with its expansions replaced; text between them stands as it is."""
        content = node.text or b""
        first, last = node.start_byte, node.end_byte
        if node.type == "string":  # without its quotes, which blanks may follow inside the same gap
            first, last = first + content.index(b'"') + 1, last - content.endswith(b'"')
        parts, end = list[str](), first
        for child in node.named_children:
            parts.append(self._plain(node, content[end - node.start_byte : child.start_byte - node.start_byte]))
            literal = child.type in ("string_content", "heredoc_content")
            parts.append(self._plain(node, child.text or b"") if literal else self.string(child))
            end = max(child.end_byte, first)
        parts.append(self._plain(node, content[end - node.start_byte : last - node.start_byte]))
        return "".join(parts)

    def _plain(self, node: Node, content: bytes) -> str:
        escaped = {"string": r'\\(["\\$`\n])', "heredoc_body": r"\\([\\$`\n])"}.get(node.type)
        text = decoded(content)
        return re.sub(escaped, lambda match: "" if match[1] == "\n" else match[1], text) if escaped else text

    def _variable(self, node: Node) -> str:
        return self._named(node_text(node)[1:].strip("{}"))

    def _named(self, name: str) -> str:
        """The text of a variable, or the mark of it; of `$#`, `$@` and the like what is known."""
        if name in ("@", "*"):
            return " ".join(self._arguments())
        if name == "#" and self.positional:
            return str(len(self._arguments()))
        if not re.match(r"\w", name):
            return mark([OPAQUE])
        value = self.look(name)
        return mark([name]) if value is None else value

    def _expansion(self, node: Node) -> str:
        """`${...}`; blanks ahead of it in a string are part of its node."""
        text = node_text(node)
        bare = text.lstrip()
        return text[: len(text) - len(bare)] + self._expanded(node, bare)

    def _expanded(self, node: Node, text: str) -> str:
        match = re.match(r"\$\{([#!]?)(\w+|[@*#])(\[[^\]]*\])?", text)
        if match is None:
            return mark([OPAQUE])
        name = match[2]
        if match[1]:
            return self._counted(name, match[3]) if match[1] == "#" else self._named(self.look(name) or "")
        value = self.look(name)
        if match[3] is not None and match[3] not in ("[@]", "[*]"):
            return self._element(name, match[3][1:-1])
        if match[3] is not None:
            words = self._spread(node)
            return " ".join(words) if words is not None else (value or "")
        rest = text[match.end() : -1]
        if not rest:
            return self._named(name)
        operator = ":" + rest[1] if rest[0] == ":" else rest[0]
        return self._with_operator(node, name, value, operator, rest)

    def _counted(self, name: str, index: str | None) -> str:
        """`${#NAME}` in letters, `${#NAME[@]}` in words."""
        value = self.variables.get(name, self.given.get(name))
        if value is None or is_unknown("".join(value)):
            return mark([name])
        return str(len(value) if index is None or isinstance(value, list) else 1)

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

    def heredoc(self, node: Node) -> str:
        """The text of a heredoc, with its variables unless its name is quoted; `<<-` without tabs ahead."""
        start = next(child for child in node.children if child.type == "heredoc_start")
        body = next((child for child in node.children if child.type == "heredoc_body"), None)
        if body is None:
            return ""
        text = node_text(body) if node_text(start)[:1] in "'\"\\" else self._interpolated(body)
        return re.sub(r"(?m)^\t+", "", text) if node_text(node).startswith("<<-") else text

    def _operand(self, node: Node) -> str:
        """What stands after the operator of `${NAME:-...}`."""
        seen, parts = False, []
        end = None
        for child in node.children:
            if seen and child.type != "}":
                gap = (node.text or b"")[
                    (end or child.start_byte) - node.start_byte : child.start_byte - node.start_byte
                ]
                parts.append(decoded(gap) + self.string(child))
                end = child.end_byte
            seen = seen or child.type in (":-", "-", ":=", "=", ":+", "+")
        return "".join(parts)

    def _substituted(self, node: Node) -> str:
        """`$(...)` of small programs, whose output follows from their words; a mark for every other command."""
        inner = node.named_children[0] if len(node.named_children) == 1 else None
        output = None if inner is None else self._output(inner, None)
        return mark([OPAQUE]) if output is None else output.rstrip("\n")

    def _output(self, node: Node, given: str | None) -> str | None:
        """What a command or a pipe of commands prints; None where a run alone would tell."""
        if node.type == "pipeline":
            for part in node.named_children:
                given = self._output(part, given)
                if given is None:
                    return None
            return given
        if node.type == "redirected_statement":
            heredoc = next((child for child in node.named_children if child.type == "heredoc_redirect"), None)
            return self.heredoc(heredoc) if heredoc is not None and node_text(node).startswith("cat ") else None
        if node.type != "command":
            return None
        words = [word for child in node.named_children for word in self.words(child)] or [""]
        if words[0] == "cat" and len(words) == 2 and given is None:
            return self.files.get(words[1])
        if is_unknown(" ".join(words[1:])) and words[0] not in ("echo", "basename"):
            return None
        return output_of(words, given)

    def _arithmetic(self, node: Node) -> str:
        inner = node_text(node)
        inner = inner[3:-2] if inner.startswith("$((") else inner[2:-1]
        value = arithmetic(inner, self.look, required=self.required)
        return str(value) if isinstance(value, int) else mark(value)


def appended(old: str | list[str], value: str | list[str]) -> str | list[str]:
    """What `NAME+=value` makes of a variable."""
    if isinstance(value, list):
        return [*(old if isinstance(old, list) else [old]), *value]
    return old + value if isinstance(old, str) else value if not old else [old[0] + value, *old[1:]]


_WRAPPERS = frozenset({"exec", "command", "builtin", "time", "nohup", "env", "sudo"})


def unwrapped(words: list[str], environment: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """The words behind `exec`, `env A=1` and the like, with the variables that these set."""
    while len(words) > 1 and words[0] in _WRAPPERS and not words[1].startswith("-"):
        wrapper, *words = words
        while wrapper in ("env", "sudo") and len(words) > 1 and re.match(r"[A-Za-z_]\w*=", words[0]):
            name, _, value = words[0].partition("=")
            environment, words = environment | {name: value}, words[1:]
    return words, environment


def numbered(words: list[str]) -> list[tuple[str, str]]:
    """Words as arguments by their number."""
    return [(str(number), word) for number, word in enumerate(words)]


def _trimmed(value: str, rest: str) -> str:
    """`${NAME##*/}`, `${NAME%.*}`, `${NAME/a/b}`, `${NAME:0:4}`, `${NAME,,}`; a mark for other operators."""
    if rest in (",,", "^^"):
        return value.lower() if rest == ",," else value.upper()
    replaced = re.fullmatch(r"(//?)([^/*?\[\\]+)/([^/]*)", rest)
    if replaced is not None:
        return value.replace(replaced[2], replaced[3], -1 if replaced[1] == "//" else 1)
    span = re.fullmatch(r":\s*(\d+)(?::(\d+))?", rest)
    if span is not None:
        return value[int(span[1]) :][: int(span[2]) if span[2] else None]
    sign = re.match(r"##?|%%?", rest)
    if sign is None:
        return mark([OPAQUE])
    pattern = rest[sign.end() :]
    cuts: Iterator[int] = iter(range(len(value) + 1))
    order = list(cuts) if (sign[0] in ("#", "%%")) else list(range(len(value), -1, -1))
    for cut in order:
        part, left = (value[:cut], value[cut:]) if sign[0][0] == "#" else (value[cut:], value[:cut])
        if fnmatchcase(part, pattern):
            return left
    return value


_WORDS: dict[str, Callable[[Words, Node], str]] = {
    "simple_expansion": Words._variable, "expansion": Words._expansion, "arithmetic_expansion": Words._arithmetic,
    "raw_string": lambda words, node: node_text(node)[1:-1],
    "command_substitution": Words._substituted,
    "process_substitution": lambda words, node: mark([OPAQUE]),
}  # fmt: skip
