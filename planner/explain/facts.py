"""The record of an explanation's sentence: its topic, the parts of the plan it is about, and its figures."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from planner.kinds.registry import Topic

HEADINGS: Mapping[Topic, str] = {
    "meaning": "what it says",
    "note": "note",
    "binding": "binding",
    "limit": "with room",
    "worth": "worth of a little more",
    "alternative": "instead",
    "change": "what would change it",
    "time": "time",
    "memory": "memory",
    "evidence": "evidence",
}
"""What facts of each topic stand under, in the order of a page."""
TIGHT = 0.999  # of a limit: used up
NEAR = 0.9  # of a limit: nearly used up


@dataclass(frozen=True, slots=True)
class Fact:
    """One sentence of an explanation, the parts of the plan that it is about, and its figures in SI units."""

    topic: Topic
    what: str
    about: tuple[str, ...] = ()  # roles, pools, workloads and fields
    rule: str = ""  # the line of the formulation, such as C4[0,1]
    figures: Mapping[str, float] = field(default_factory=dict)
