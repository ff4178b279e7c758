"""`planner calibrate --propose`: benchmark runs that would settle a serving decision, and what their results say."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from planner.cli.output import say, write_folder, write_result
from planner.cli.progress import progress
from planner.errors import PlannerError

if TYPE_CHECKING:
    from planner.problem.resolve import Resolved
    from planner.propose.proposal import Proposal

FOLDER = "runs"  # in commands, where no folder is named


def propose_runs(
    given: list[str], count: int, results: list[str], profiles: tuple[str, ...], output: str | None, *, as_json: bool
) -> int:
    """Print the proposal, and write the plans of its runs where a folder is named; 1 where no plan meets the limits."""
    from planner.progress import Limits
    from planner.propose.deployments import question_of
    from planner.propose.proposal import document_of, lines_of, propose
    from planner.propose.results import read_results

    if len(given) != 1:
        raise PlannerError(
            f"takes one problem or one plan, found {len(given)} files",
            where="--propose",
            hint="give what was measured as `--results FILE`",
        )
    resolved = _resolved(given[0], profiles)
    with progress() as tell:
        question = question_of(resolved, Limits(tell=tell))
    known, left_out = read_results(results, question)
    for line in left_out:
        say(f"note: left out {line}")
    folder = output if output not in (None, "-") else FOLDER
    proposal = propose(question, known, count, str(folder), seed=resolved.problem.seed)
    if output not in (None, "-"):
        _write_plans(proposal, str(output))
    write_result(document_of(proposal), lambda: "\n".join(lines_of(proposal)), as_json=as_json)
    return 0


def _resolved(path: str, profiles: tuple[str, ...]) -> "Resolved":
    """The problem in a file, or the one that a plan carries."""
    from planner.documents.read import given_document, load_document
    from planner.load.problems import resolve_document, resolve_recorded

    document = load_document(path)
    data = document.data
    if isinstance(data, dict) and str(data.get("schema")).startswith("planner.plan/"):
        return resolve_recorded(given_document(data.get("inputs"), f"{path}: inputs"), profiles=profiles)
    return resolve_document(document, Path() if path == "-" else Path(path).parent, profiles=profiles)


def _write_plans(proposal: "Proposal", folder: str) -> None:
    """The plans of all runs, and the document of the proposal."""

    from planner.plan.store import plan_json
    from planner.propose.proposal import document_of

    files = {Path(run.plan).name: plan_json(run.envelope) for run in proposal.runs}
    files["proposal.json"] = json.dumps(document_of(proposal), indent=2, allow_nan=False) + "\n"
    write_folder(files, folder)
