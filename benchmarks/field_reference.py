"""The field reference of problems and plans, from their schemas: names, values, defaults and descriptions.

python benchmarks/field_reference.py            writes docs/problem-and-plan.md
python benchmarks/field_reference.py --check    writes nothing; exits 1 where the page says something else

A field is described in its schema, or in planner/schema/meanings.yaml.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from written_pages import write_or_check

from planner.kinds.registry import Kind, find_kind, kind_names
from planner.plan.schema import Decision, Envelope
from planner.problem.reads import FLAGS
from planner.problem.schema import Problem
from planner.schema.base import Spec
from planner.schema.keys import forms_of
from planner.schema.meanings import meaning_of
from planner.simulate.prefixes.tiers_spec import CacheSpec

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests" / "oracles"))

from schema_leaves import FIELDS  # noqa: E402

PAGE = ROOT / "docs" / "problem-and-plan.md"
INTRODUCTION = """\
# Problem and plan, field by field

What `planner schema problem` and `planner schema plan` print as JSON Schema for editors, as tables
(`python benchmarks/field_reference.py` writes this page).

Quantities are written with their unit under a short name (`price: 2.50USD/h`, `bandwidth: 400Gb/s`) or as an SI number
under the full name (`usd_per_gpu_hour: 2.5`). A bare number under the short name is refused, since its unit would be a
guess. Plans hold SI numbers only. Unknown keys are refused everywhere.

| what | units |
|---|---|
| times | `ns` `us` `ms` `s` `min` `h` `d` |
| sizes | `kB` `MB` `GB` `TB` (powers of ten), `KiB` `MiB` `GiB` (powers of two) |
| bandwidths | `GB/s`, `Gb/s`, `Gbps` |
| rates | `/s`, `req/s`, `/min`, `/h` |
| prices | `USD/h`, `$/h`, `USD/d` |
| shares | `90%` or `0.9` |

Formats may have the names that engines, Hugging Face and NVIDIA's tools give them (`bfloat16`, `float8_e4m3fn`,
`modelopt_fp4`, `w4a16`, `awq`); `auto` is the checkpoint's own. A name that means two formats, such as `fp4`, is
refused with the nearest.
"""
READS = """\
## What each kind reads

A field without effect is refused rather than ignored, and so are flags and environment variables; the message says
what to write instead. `schema`, `kind` and `options` belong to all. Some are read only beside others, which the message
names too: `seed` and `--gap` of layouts with `policy: static`, `--time-limit` and `--gap` of RL plans without a
`horizon`, `--threads` with `fused_training` or `--backend pulp-cbc`.
"""
PLAN = """\
## Plan

JSON, readable without this program. Everything in it follows from the problem, the seed and the versions; wall time is
printed to stderr. What [`planner check`](checks.md) found lies beside it, in `PLAN.checks.json`, keyed by its digest.
"""
SOLVABLE = tuple(name for name in kind_names() if find_kind(name).solvable)
WORDS = {str: "text", int: "whole number", float: "number", bool: "`true` or `false`", Any: "any"}


def page() -> str:
    """The whole page."""
    seen: set[type[Spec]] = set()
    parts = [INTRODUCTION, READS, reads_table(), "## Problem\n", *_sections(Problem, "", seen)]
    parts += ["## Memory for prefixes, of `planner cache --tiers`\n", *_sections(CacheSpec, "", seen)]
    parts += [PLAN, *_sections(Envelope, "", seen), *_sections(Decision, "decision", seen)]
    for kind in (find_kind(name) for name in kind_names()):
        parts += [f"## Kind `{kind.name}`\n", *_of_kind(kind, seen)]
    return "\n".join(parts)


def _of_kind(kind: Kind, seen: set[type[Spec]]) -> Iterator[str]:
    if kind.solvable:
        yield from _sections(kind.options, "options", seen)
    yield from _sections(kind.decision, "decision", seen)


def _sections(spec: type[Spec], path: str, seen: set[type[Spec]]) -> Iterator[str]:
    """A table of the fields of a schema, then those of every schema below it that has none yet."""
    if spec in seen:
        return
    seen.add(spec)
    yield _section(path, spec)
    for name, field in _own_fields(spec):
        for place, form in _below(f"{path}.{name}" if path else name, field.annotation):
            yield from _sections(form, place, seen)


def _own_fields(spec: type[Spec]) -> list[tuple[str, FieldInfo]]:
    """Fields by the names that are written; of decisions without those that all kinds share."""
    shared = set(Decision.model_fields) if issubclass(spec, Decision) and spec is not Decision else set()
    fields = [(name, field) for name, field in spec.model_fields.items() if name not in shared]
    return [(field.alias or name, field) for name, field in fields]


def _below(path: str, annotation: object) -> Iterator[tuple[str, type[Spec]]]:
    """The schemas that a type is made of, by the path that leads to each."""
    for form in forms_of(annotation):
        if isinstance(form, type) and issubclass(form, Spec):
            yield path, form
        elif get_origin(form) in (tuple, list):
            yield from _below(f"{path}[]", get_args(form)[0])
        elif get_origin(form) is dict:
            yield from _below(f"{path}.<name>", get_args(form)[1])


def _section(path: str, spec: type[Spec]) -> str:
    said = (spec.__doc__ or "").split("\n\n")[0]
    title = f"`{path}` (`{spec.__name__}`)" if path else f"The whole (`{spec.__name__}`)"
    rows = [_row(spec, name, field) for name, field in _own_fields(spec)]
    head = "| field | value | default | meaning |\n|---|---|---|---|\n"
    about = f"{' '.join(said.split())}\n\n" if said else ""
    return f"### {title}\n\n{about}{head}{''.join(rows)}" if rows else f"### {title}\n\n{about}"


def _row(spec: type[Spec], name: str, field: FieldInfo) -> str:
    own = next(own for own, known in spec.model_fields.items() if known is field)
    shorts = [short for short, (stands_for, _) in spec.quantities.items() if stands_for == own and short != name]
    written = ", ".join(f"`{each}`" for each in (*shorts, name))
    cells = (
        written,
        values_of(field.annotation, field.metadata),
        _default(field),
        meaning_of(spec, own),
    )
    return f"| {' | '.join(_cell(cell) for cell in cells)} |\n".replace("|  |", "| |").replace("|  |", "| |")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def values_of(annotation: object, metadata: Sequence[object] = ()) -> str:
    """In words, what a field may hold."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return values_of(parts[0], [*metadata, *parts[1:]])
    if origin is Literal:
        return ", ".join(f"`{_plain(part)}`" for part in parts)
    if origin in (tuple, list):
        same = len(set(parts) - {Ellipsis}) == 1
        each = values_of(parts[0]) if same else f"[{', '.join(values_of(part) for part in parts)}]"
        return (f"list of {each}" if len(parts) < 2 or parts[1] is ... else f"{len(parts)} of {each}") if same else each
    if origin is dict:
        return f"{values_of(parts[1])} by name"
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return "fields"
    if annotation in WORDS:
        return f"{WORDS[annotation]}{_limits(metadata)}"
    members = [member for member in parts if member is not type(None)]
    return " or ".join(dict.fromkeys(values_of(member, metadata) for member in members)) if members else "any"


def _limits(metadata: Sequence[object]) -> str:
    signs = (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤"))
    flat = [part for each in metadata for part in (each.metadata if isinstance(each, FieldInfo) else [each])]
    told = {name: getattr(each, name) for each in flat for name, _ in signs if getattr(each, name, None) is not None}
    return "".join(f" {sign} {_plain(told[name])}" for name, sign in signs if name in told)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True) if field.default is PydanticUndefined else field.default
    return "" if value is None or isinstance(value, Spec) or value in ((), {}, "") else f"`{_plain(value)}`"


def _plain(value: object) -> str:
    """As YAML has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_plain(each) for each in value)}]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def reads_table() -> str:
    """Which kind reads which field and flag, as the kinds declare it; a row where all below a path have one answer."""
    rows = [
        (f"`{path.replace('.*', '[]').replace('models[]', 'models.<name>')}`", told) for path, told in _reads(FIELDS)
    ]
    rows += [(f"`{flag}`", _readers(name)) for name, flag in FLAGS.items() if name != "seed"]
    lines = [f"| field or flag | {' | '.join(f'`{kind}`' for kind in SOLVABLE)} |", f"|---|{'---|' * len(SOLVABLE)}"]
    lines += [f"| {name} | {' | '.join('x' if reads else '' for reads in told)} |" for name, told in rows]
    return "\n".join(lines).replace("|  |", "| |").replace("|  |", "| |") + "\n"


def _readers(name: str) -> tuple[bool, ...]:
    return tuple(find_kind(kind).reads.reads(name) for kind in SOLVABLE)


def _reads(names: tuple[str, ...], above: str = "") -> Iterator[tuple[str, tuple[bool, ...]]]:
    for key in dict.fromkeys(name.removeprefix(above).partition(".")[0] for name in names):
        path = above + key
        inside = tuple(name for name in names if name == path or name.startswith(path + "."))
        if len({_readers(name) for name in inside}) == 1:
            yield path, _readers(inside[0])
        else:
            yield from _reads(tuple(name for name in inside if name != path), path + ".")


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes the page, or compares it."""
    return write_or_check(PAGE, page, __doc__, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
