"""How many edits of a plan `planner check` names: seeded edits of every kind, drawn over all leaves and lists.

An edit changes one number (scaled by 0.5 to 2), one name, one truth value, one digest or one list of the plan's JSON;
scales all figures of a section alike, so that sums and shares inside it still hold; or puts another name in a name's
place that the plan has under the same key.
`python benchmarks/edits.py` solves an example of each kind, makes 100 edits of each plan, and prints how many fail at
the static level, how many more at the level `proof`, by which rules, and which fail at neither. Beside them stands what
validation by the schema alone refuses. A digest of the whole file would tell of every edit, and of none what is wrong.
`--quick` makes 20 edits of each; `--time` prints the CPU seconds of a check of each plan, at both levels.
"""

import argparse
import copy
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
EXAMPLES = {
    "serve": "serve-qwen3-32b-h200",
    "train": "train-llama3-405b-h100",
    "rl": "rl-grpo-7b",
    "experts": "experts-deepseek-v3-ep32",
}
CHECKSUM = "certificate.checksum"  # tells that something of a certificate was changed, and not what
WANTED = 0.97  # of the edits of each kind
LISTS = 0.1  # share of edits that change a list, where the plan has one
SECTIONS = 0.1  # that scale all figures of a section alike
NAMES = 0.1  # that put another name of the plan in a name's place
Path_ = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """One change of a plan: where, from what, to what."""

    path: Path_
    before: Any
    after: Any

    @property
    def text(self) -> str:
        """In words."""
        return f"{'.'.join(map(str, self.path))}: {str(self.before)[:40]} -> {str(self.after)[:40]}"

    def applied(self, plan: dict[str, Any]) -> dict[str, Any]:
        """A copy of the plan with the change."""
        edited = copy.deepcopy(plan)
        place: Any = edited
        for step in self.path[:-1]:
            place = place[step]
        place[self.path[-1]] = self.after
        return edited


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of an edit: refused by the schema, failed by a rule at a level, or neither."""

    edit: Edit
    level: str  # schema, static, proof; empty where nothing was said
    rule: str = ""


def places(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:  # noqa: ANN401 - parsed JSON
    """Every leaf that an edit changes, and every list of more than one entry."""
    if isinstance(value, dict):
        for key, below in value.items():
            yield from places(below, (*path, key))
    elif isinstance(value, list):
        if len(value) > 1 and any(entry != value[0] for entry in value):
            yield path, value
        for index, below in enumerate(value):
            yield from places(below, (*path, index))
    elif value is not None and value != 0:
        yield path, value


def edits_of(plan: dict[str, Any], number: int, seed: int) -> list[Edit]:
    """So many edits of a plan, the same for the same seed."""
    draw = random.Random(seed)
    known = list(places(plan))
    leaves = [place for place in known if not isinstance(place[1], list)]
    lists = [place for place in known if isinstance(place[1], list)]
    sections = list(_sections(plan))
    names: dict[str | int, set[str]] = {}
    for path, value in leaves:
        if isinstance(value, str):
            names.setdefault(path[-1], set()).add(value)
    named = [place for place in leaves if isinstance(place[1], str) and len(names[place[0][-1]]) > 1]
    made: list[Edit] = []
    before: Any
    after: Any
    while len(made) < number:
        sort = draw.random()
        if sections and sort < SECTIONS:
            path, before = draw.choice(sections)
            after = _scaled(before, draw.uniform(0.5, 2.0))
        elif named and sort < SECTIONS + NAMES:
            path, before = draw.choice(named)
            after = draw.choice(sorted(names[path[-1]] - {before}))
        else:
            path, before = draw.choice(lists if lists and draw.random() < LISTS else leaves)
            after = _changed(before, draw)
        if after != before:
            made.append(Edit(path, before, after))
    return made


def _sections(value: Any, path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:  # noqa: ANN401 - parsed JSON
    """Every mapping below the plan's own that holds more than one figure other than zero."""
    if isinstance(value, dict):
        if path and sum(isinstance(below, float) and below != 0.0 for below in value.values()) > 1:
            yield path, value
        for key, below in value.items():
            yield from _sections(below, (*path, key))
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _sections(below, (*path, index))


def _scaled(section: dict[str, Any], factor: float) -> dict[str, Any]:
    return {key: below * factor if isinstance(below, float) else below for key, below in section.items()}


def _changed(value: Any, draw: random.Random) -> Any:  # noqa: ANN401 - parsed JSON
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return round(value * draw.uniform(0.5, 2.0))
    if isinstance(value, float):
        return value * draw.uniform(0.5, 2.0)
    if isinstance(value, list):
        return draw.choice((value[:-1], [*value, value[-1]], [*value[1:], value[0]], value[::-1]))
    if value.startswith("sha256:"):
        return f"sha256:{draw.getrandbits(256):064x}"
    place = draw.randrange(len(value) + 1)
    return value[:place] + draw.choice("abcdefghijklmnopqrstuvwxyz") + value[place + draw.randrange(2) :]


def judge(plan: dict[str, Any], edit: Edit, folders: Sequence[Path], *, proof: bool = True) -> Verdict:
    """What schema, static check and, where that says nothing, the check with proofs say of an edited plan."""
    from pydantic import ValidationError

    from planner.check import check_plan
    from planner.errors import PlannerError
    from planner.kinds.registry import find_kind
    from planner.plan.findings import passed
    from planner.plan.schema import Envelope
    from planner.problem.recorded import AtHand

    try:
        envelope = Envelope.model_validate(edit.applied(plan))
        decision = find_kind(envelope.kind).decision.model_validate(envelope.decision)
    except (ValidationError, PlannerError) as error:
        return Verdict(edit, "schema", type(error).__name__)
    for level in ("static", "proof") if proof else ("static",):
        findings = check_plan(envelope, decision, hand=AtHand(tuple(folders)), proof=level == "proof")
        if not passed(findings):
            rules = [finding.rule for finding in findings if finding.verdict in ("failed", "unverifiable")]
            return Verdict(edit, level, next((rule for rule in rules if rule != CHECKSUM), CHECKSUM))
    return Verdict(edit, "")


def solved(kind: str) -> dict[str, Any]:
    """The plan of the kind's example as JSON."""
    from planner import solve

    plan: dict[str, Any] = json.loads(solve(ROOT / "examples" / f"{EXAMPLES[kind]}.yaml", level="static").to_json())
    return plan


def _time(plan: dict[str, Any]) -> str:
    """CPU seconds of a check at either level, imports and compilation left out."""
    nothing = Edit(("name",), plan["name"], plan["name"])
    seconds = []
    for proof in (False, False, True):
        started = time.process_time()
        judge(plan, nothing, (ROOT / "examples",), proof=proof)
        seconds.append(time.process_time() - started)
    return f"{seconds[1]:.2f} s static, {max(seconds[2] - seconds[1], 0.0):.2f} s with proof"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a kind is below what is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 edits of each kind")
    parser.add_argument("--kind", choices=[*EXAMPLES], action="append", help="only these; repeatable")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--time", action="store_true", help="print the CPU seconds of a check")
    given = parser.parse_args(argv)
    os.chdir(ROOT)
    number, short = 20 if given.quick else 100, 0
    for kind in given.kind or EXAMPLES:
        plan = solved(kind)
        verdicts = [judge(plan, edit, (ROOT / "examples",)) for edit in edits_of(plan, number, given.seed)]
        levels = Counter(verdict.level for verdict in verdicts)
        named = number - levels[""]
        short += named < WANTED * number
        print(
            f"{kind}: {named} of {number} named; schema alone {levels['schema']}, static check {levels['static']} more,"
            f" proof {levels['proof']} more{f'; {_time(plan)}' if given.time else ''}",
            flush=True,
        )
        rules = Counter(verdict.rule for verdict in verdicts if verdict.level in ("static", "proof"))
        print(f"  by {', '.join(f'{rule} {count}' for rule, count in rules.most_common())}", flush=True)
        for verdict in verdicts:
            if verdict.level in ("", "proof"):
                print(f"  {verdict.level or 'not named'}: {verdict.edit.text}", flush=True)
    return 1 if short else 0


if __name__ == "__main__":
    sys.exit(main())
