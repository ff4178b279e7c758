"""Writes results to stdout or to a file; messages and progress go to stderr."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.errors import plain
from planner.documents.files import write_text_atomic
from planner.errors import Infeasible, PlannerError

if TYPE_CHECKING:
    from planner.documents.trace_events import Span

EXIT_NO, EXIT_STOPPED = 1, 3


def write_data(text: str, path: str | None = None) -> None:
    """`text`, ending in one newline, to stdout or whole to the file `path`; a written file is named on stderr."""
    write_text_atomic(path or "-", text if text.endswith("\n") else f"{text}\n")
    if path not in (None, "-"):
        say(f"wrote {path}")


def write_json(document: object, path: str | None = None) -> None:
    """One JSON document, indented, with its keys in their own order."""
    write_data(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False), path)


def write_result(document: object, text: Callable[[], str], path: str | None = None, *, as_json: bool) -> None:
    """One result in the form that was asked for: `document` as JSON, else `text`."""
    if as_json:
        write_json(document, path)
    else:
        write_data(text(), path)


def say_infeasible(answer: Infeasible, *, as_json: bool) -> int:
    """Prints the limits in conflict; the exit code of an answer that is no, or of none where that is not proven."""
    from planner.cli.render.findings import render_infeasible

    document = {"schema": "planner.infeasible/1", "proved": answer.proved, "conflict": answer.conflict}
    write_result(document, lambda: render_infeasible(answer), as_json=as_json)
    return EXIT_NO if answer.proved else EXIT_STOPPED


def refuse_unwritable(output: str | None) -> None:
    """Raises PlannerError for a file that cannot be written: before the search, not after it."""
    if output is None or output == "-":
        return
    path = Path(output)
    if path.is_dir():
        raise PlannerError("cannot be written: it is a directory", where=output, hint="name a file")
    if not path.parent.is_dir():
        raise PlannerError(
            f"cannot be written: there is no directory `{path.parent}`",
            where=output,
            hint=f"create `{path.parent}` first",
        )
    if not os.access(path.parent, os.W_OK):
        raise PlannerError(
            f"cannot be written: no permission to write into `{path.parent}`",
            where=output,
            hint="check its permissions, or name another file",
        )


def refuse_overwriting(written: Sequence[tuple[str, str]], read: Sequence[tuple[str, str]]) -> None:
    """Raises PlannerError for a path to write, behind its flag, that the same command reads or writes elsewhere."""
    taken = {Path(path).resolve(): name for name, path in read if path != "-"}
    for flag, path in written:
        if path == "-":
            continue
        other = taken.setdefault(Path(path).resolve(), flag)
        if other != flag:
            raise PlannerError(f"is the file of {other} too", where=f"{flag} {path}", hint="name another file")


def write_spans(path: str | None, spans: "Callable[[], Iterable[Span]]") -> None:
    """A trace for ui.perfetto.dev in the file `path`, where one is named."""
    if path is not None:
        from planner.documents.trace_events import write_trace

        write_trace(path, spans())
        say(f"wrote {path}")


def say(message: str) -> None:
    """One line for the person at the terminal."""

    print(plain(message), file=sys.stderr, flush=True)


def write_folder(files: Mapping[str, str], folder: str) -> None:
    """All `files` into `folder`, whole or not at all; says how many."""
    from planner.documents import folders

    folders.write_folder(files, folder)
    say(f"wrote {len(files)} {'file' if len(files) == 1 else 'files'} to {folder}")
