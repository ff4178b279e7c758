"""The header of every emitted file (plan, digest, software), and emitted YAML documents."""

from collections.abc import Iterable, Mapping

from planner.emit.shell import comment
from planner.plan.schema import Envelope
from planner.plan.store import plan_digest, plan_json


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
