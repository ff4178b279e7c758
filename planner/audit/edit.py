"""An artifact with some of its settings changed, every other line as it was.

Every place is tried where the old value stands, and lines beside flags of the same program where it does not; a try
counts where the text, read again, says more of what is wanted and says nothing else differently. So nothing is known
here of any format but how lines of it look.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import unified_diff
from typing import Any

from planner.errors import PlannerError
from planner.importing.engines import flag_names
from planner.importing.records import Reading
from planner.importing.secrets import hidden

Wanted = Mapping[tuple[str, str], Any]
"""Fields by role ("" for the whole) as they should be."""
Read = Callable[[str], Reading]
MOST_PLACES = 400
MOST_EDITS = 12
_DERIVED = frozenset({"gpus", "gpus_per_replica", "nodes_per_replica", "ep", "dp"})  # follow from others


def changed_text(text: str, read: Read, wanted: Wanted) -> tuple[str, list[tuple[str, str]]]:
    """The text with as many of the wanted fields as it can say, and the fields that it cannot."""
    start = values_of(read(text))
    missing = _missing(values_of(read(text)), wanted)
    for _ in range(MOST_EDITS):
        if not missing:
            break
        better = _best_edit(text, read, wanted, start, len(missing))
        if better is None:
            break
        text = better
        missing = _missing(values_of(read(text)), wanted)
    return text, sorted(missing)


def diff_of(before: str, after: str, name: str) -> str:
    """A unified diff without the secrets of its lines, empty where nothing differs."""
    lines = unified_diff(before.splitlines(keepends=True), after.splitlines(keepends=True), name, f"{name} (changed)")
    return hidden("".join(line if line.endswith("\n") else f"{line}\n" for line in lines))


def values_of(reading: Reading) -> dict[tuple[str, str], Any]:
    """The fields of a reading by role and name; those of a mapping under names with dots."""
    values: dict[tuple[str, str], Any] = {}
    for key, value in reading.fields.items():
        if key == "roles":
            for number, role in enumerate(value):
                name = (
                    role["role"] if [r["role"] for r in value].count(role["role"]) == 1 else f"{role['role']}{number}"
                )
                values |= {(name, field): below for field, below in role.items()}
        elif isinstance(value, Mapping):
            values |= {("", f"{key}.{field}"): below for field, below in value.items()}
        else:
            values["", key] = value
    return values


def _missing(values: Mapping[tuple[str, str], Any], wanted: Wanted) -> set[tuple[str, str]]:
    return {place for place, value in wanted.items() if values.get(place) != value}


def _best_edit(text: str, read: Read, wanted: Wanted, start: Mapping[tuple[str, str], Any], missing: int) -> str | None:
    """The first edit after which less is missing and nothing else differs from the start."""
    now = values_of(read(text))
    for place in sorted(_missing(now, wanted), key=lambda place: place[1] in _DERIVED):
        for edited in _edits(text, place[1], now.get(place), wanted[place], engine=start.get(("", "engine"))):
            try:
                values = values_of(read(edited))
            except PlannerError:
                continue
            if len(_missing(values, wanted)) < missing and _same_elsewhere(values, start, wanted):
                return edited
    return None


def _same_elsewhere(
    values: Mapping[tuple[str, str], Any], start: Mapping[tuple[str, str], Any], wanted: Wanted
) -> bool:
    if values.keys() != start.keys():
        return False
    return all(value == start[place] or place in wanted or place[1] in _DERIVED for place, value in values.items())


def _edits(text: str, field: str, old: Any, new: Any, *, engine: object) -> Iterator[str]:  # noqa: ANN401 - plain data
    names = flag_names(str(engine), field)
    if old is not None:
        yield from _replaced(text, names, old, new)
    yield from _inserted(text, names, new)


def _replaced(text: str, names: Sequence[str], old: object, new: object) -> Iterator[str]:
    """The text with one place of the old value changed, those behind a name of the setting first; then all of those."""
    named = "|".join(re.escape(name) for name in names) or r"(?!)"
    token = rf"(?<![\w.]){re.escape(_written(old))}(?![\w.])"
    near = re.compile(rf"(?:{named})[\"']?\s*[=:\s]\s*[\"']?(?:\n\s*-\s*[\"']?)?(?:\$\{{\w+:-)?({token})", re.I)
    behind = [match.start(1) for match in near.finditer(text)]
    places = behind + [match.start() for match in re.finditer(token, text) if match.start() not in behind]
    for start in places[:MOST_PLACES]:
        yield _at(text, [start], len(_written(old)), _written(new))
    if len(behind) > 1:
        yield _at(text, behind, len(_written(old)), _written(new))


def _at(text: str, places: Sequence[int], length: int, new: str) -> str:
    """The text with so many signs at each place exchanged."""
    for start in sorted(places, reverse=True):
        text = text[:start] + new + text[start + length :]
    return text


def _written(value: object) -> str:
    return "true" if value is True else "false" if value is False else str(value)


_FLAG_LINE = re.compile(r"(?m)^(?P<indent>[ \t]*)(?P<dash>- )?(?P<quote>[\"']?)--(?P<name>[\w-]+)(?P<rest>[^\n]*)$")
_KEY_LINE = re.compile(r"(?m)^(?P<indent>[ \t]*)(?P<name>[a-z][\w-]*)(?P<sign>\s*[:=]\s+)(?P<rest>[^\n#]+)$")
_IN_LINE = re.compile(
    r"(--(?:model|model-path|tensor-parallel-size|tp|tp-size|port|host)[= ]|\bserve )[^\s\"'-][^\s\"']*"
)
_IN_LIST = re.compile(r"\[[^\[\]]*--[^\[\]]*(?=\])")
_IN_MAPPING = re.compile(r"[{,]\s*(?P<name>[a-z][\w-]*)(?P<sign>:\s+)[^,{}\[\]\n]+(?=[,}])")


def _inserted(text: str, names: Sequence[str], new: object) -> Iterator[str]:
    """The text with a line (or words) more, in the way of the line that it follows."""
    if not names:
        return
    flag, value = names[0].replace("_", "-"), _written(new)
    for match in list(_FLAG_LINE.finditer(text))[:MOST_PLACES]:
        for line in _flag_lines(match, flag, value):
            yield f"{text[: match.start()]}{line}\n{text[match.start() :]}"
    for match in list(_KEY_LINE.finditer(text))[:MOST_PLACES]:
        key = _like(match["name"], flag)
        yield f"{text[: match.start()]}{match['indent']}{key}{match['sign']}{value}\n{text[match.start() :]}"
    for match in list(_IN_LIST.finditer(text))[:MOST_PLACES]:
        yield f'{text[: match.end()]}, "--{flag}={value}"{text[match.end() :]}'
    for match in list(_IN_MAPPING.finditer(text))[:MOST_PLACES]:
        key = _like(match["name"], flag)
        yield f"{text[: match.end()]}, {key}{match['sign']}{value}{text[match.end() :]}"
    ends: dict[str, list[int]] = {}
    for match in _IN_LINE.finditer(text):
        ends.setdefault(match[1], []).append(match.end())
    for places in ends.values():
        yield from (_at(text, [end], 0, f" --{flag} {value}") for end in places)
        yield _at(text, places, 0, f" --{flag} {value}")


def _like(name: str, flag: str) -> str:
    """A flag in the way in which another name is written: with underscores, in camel case, or with dashes."""
    if re.search(r"[a-z][A-Z]", name):
        first, *rest = flag.split("-")
        return first + "".join(part.capitalize() for part in rest)
    return flag.replace("-", "_") if "_" in name else flag


def _flag_lines(match: "re.Match[str]", flag: str, value: str) -> Iterator[str]:
    """Lines that look like this one: of a list or of a command that goes on, with `=` or a blank."""
    indent, dash, quote, rest = match["indent"], match["dash"] or "", match["quote"], match["rest"]
    if dash:
        joined = "=" in rest.split("#")[0]
        if joined or not rest.strip(" \"'"):
            yield f"{indent}- {quote}--{flag}={value}{quote}"
        yield f'{indent}- {quote}--{flag}{quote}\n{indent}- "{value}"'
    else:
        end = " \\" if rest.rstrip().endswith("\\") else ""
        yield f"{indent}--{flag}{'=' if '=' in rest else ' '}{value}{end}"
        if not end:
            yield f"{indent}--{flag} {value} \\"
