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
    document = load_document(path)
    return _of_curves(document) if states_curves(document) else document


def states_curves(document: Document) -> bool:
    """Whether a document is a benchmark problem of RL: its costs are curves of generation, and it has no kind."""
    data = document.data
    if not isinstance(data, dict) or "kind" in data or "schema" in data:
        return False
    cost = data.get("cost")
    return isinstance(cost, dict) and "gen" in cost and "workload" in data


def _of_curves(document: Document) -> Document:
    """A benchmark problem of RL: of one iteration, of agents, or over training time."""
    from planner.interchange.rl_agentic import is_agentic, rl_agentic_problem
    from planner.interchange.rl_horizon import is_horizon, rl_horizon_problem
    from planner.interchange.rl_problem import rl_problem

    if is_agentic(document):
        return given_document(rl_agentic_problem(document), document.source)
    problem = rl_horizon_problem(document) if is_horizon(document) else rl_problem(document)
    return given_document(problem, document.source)


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


def states_problem(path: str | Path) -> bool:
    """Whether a file is a problem of a kind, and neither arrays nor a recording: YAML, or JSON with a `kind`."""
    if str(path) == "-" or not str(path).endswith((".yaml", ".yml", ".json")) or not Path(path).is_file():
        return False
    data = load_document(path).data
    return isinstance(data, dict) and "kind" in data
