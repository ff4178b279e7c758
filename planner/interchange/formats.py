"""Which format a file of a problem is in, told by its content, and the problem that it states."""

from pathlib import Path
from zipfile import is_zipfile

from planner.documents.read import Document, given_document, load_document
from planner.errors import PlannerError


def problem_document(path: str | Path) -> Document:
    """The problem in a file (`-` is standard input): its own document, or that of another format made one.

    Raises PlannerError for a file that cannot be read, and for one of a format that states no problem.
    """
    if str(path) != "-" and Path(path).is_file() and is_zipfile(path):
        return _of_arrays(Path(path))
    return load_document(path)


def _of_arrays(path: Path) -> Document:
    """A problem instance of expert placement (`.npz`)."""
    from planner.interchange.experts_instance import instance_problem

    if not states_instance(path):
        raise PlannerError(
            "holds arrays and no problem: an instance has `meta` beside its loads",
            where=str(path),
            hint="write a problem of kind `experts` that names them: `options.loads`",
        )
    return given_document(instance_problem(path), str(path))


def states_instance(path: str | Path) -> bool:
    """Whether a file is an instance of expert placement: an .npz that holds `meta`."""
    import numpy as np

    if not Path(path).is_file() or not is_zipfile(path):
        return False
    try:
        with np.load(path, allow_pickle=False) as content:
            return "meta" in getattr(content, "files", ())
    except (OSError, ValueError, EOFError):
        return False
