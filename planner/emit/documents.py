"""The header of every emitted file (plan, digest, software), and emitted YAML documents."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, cast

from planner.emit.shell import comment
from planner.plan.schema import Envelope
from planner.plan.store import plan_digest, plan_json

if TYPE_CHECKING:
    import yaml


def plan_title(envelope: Envelope) -> str:
    """Which plan a file was made from, and by what."""
    return f'Plan "{envelope.name}", {plan_digest(plan_json(envelope))}, by planner {envelope.software.planner}'


def commented(header: Iterable[str]) -> str:
    """Lines of comments, as bash, Python and YAML have them."""
    return "".join(f"{comment(line)}\n" for line in header)


def yaml_document(header: Iterable[str], data: Mapping[str, object]) -> str:
    """The data in YAML, in its own order, below the header."""
    import yaml

    return commented(header) + yaml.safe_dump(dict(data), sort_keys=False)


_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_./-]+")
"""Text that no version of YAML reads as anything else, but for the words that PyYAML quotes by itself."""


@cache
def _writer() -> "type[yaml.SafeDumper]":
    """libyaml's emitter where PyYAML has it: ten times as fast, and the same text."""
    import yaml

    def text(writer: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        style = "|" if "\n" in value else None if _PLAIN.fullmatch(value) else "'"
        return writer.represent_scalar("tag:yaml.org,2002:str", value, style=style)

    base: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    writer = cast("type[yaml.SafeDumper]", type("Writer", (base,), {"ignore_aliases": lambda self, data: True}))
    writer.add_representer(str, text)
    return writer


def manifest(header: Iterable[str], documents: Iterable[Mapping[str, object]]) -> str:
    """Documents for readers of any version of YAML, below the header: text quoted wherever one could take it for more.

    Go's readers take `1e3` for a number and `y` for true, which PyYAML writes plain.
    """
    import yaml

    texts = [yaml.dump(dict(data), Dumper=_writer(), sort_keys=False, width=1000) for data in documents]
    return commented(header) + "---\n".join(texts)
