"""What an audit says, as plain records; `document` is its JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of a role (of the whole where `role` is empty), as it is and as it should be."""

    role: str
    field: str
    before: Any
    after: Any

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {"role": self.role, "field": self.field, "from": self.before, "to": self.after}


@dataclass(frozen=True, slots=True)
class Answer:
    """One deployment with what it does: in words, in figures, and the settings in which it differs from what runs."""

    title: str
    roles: tuple[str, ...]
    figures: Mapping[str, Any]
    settings: tuple[Setting, ...] = ()

    def document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "title": self.title,
            "roles": list(self.roles),
            **self.figures,
            "settings": [setting.document() for setting in self.settings],
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """Findings that stand in the text, those of the costs, and answers where there was a question."""

    findings: tuple[str, ...]
    blocking: tuple[str, ...]  # of these, what keeps it from running
    unresolved: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    now: Answer | None = None
    change: Answer | None = None
    free: tuple[Answer, ...] = ()
    apart: tuple[str, ...] = ()  # decisions that change answers, such as formats of weights
    runs: tuple[str, ...] = ()
    changed: Mapping[str, str] = field(default_factory=dict)  # texts of files with the change, by name
    diff: str = ""

    @property
    def runs_as_written(self) -> bool:
        """Whether nothing found keeps it from running."""
        return not self.blocking

    def document(self) -> dict[str, Any]:
        """As JSON of `planner.audit/1`."""
        rows = [{"finding": text, "runs": text not in self.blocking} for text in self.findings]
        answers: dict[str, Any] = {}
        for name, answer in (("now", self.now), ("change", self.change)):
            answers |= {name: answer.document()} if answer is not None else {}
        answers |= {"free": [answer.document() for answer in self.free]} if self.free else {}
        rest: Sequence[tuple[str, Any]] = (
            ("notes", list(self.notes)), ("apart", list(self.apart)), ("runs", list(self.runs)), ("diff", self.diff),
        )  # fmt: skip
        return {
            "schema": "planner.audit/1",
            "ok": self.runs_as_written,
            "findings": rows,
            "unresolved": list(self.unresolved),
            **answers,
            **{name: value for name, value in rest if value},
        }
