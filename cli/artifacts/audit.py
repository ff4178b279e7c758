"""`planner audit`: whether what people run can run as it says."""

from planner.cli.artifacts.import_ import Environment, Files, Settings, read
from planner.cli.options import Json, Output
from planner.cli.output import EXIT_NO, refuse_overwriting, refuse_unwritable, write_result


def audit(
    files: Files, env: Environment = None, settings: Settings = None, as_json: Json = False, output: Output = None
) -> int:
    """Say what contradicts itself in what people run: ranks against GPUs, degrees, batches, sides, ignored flags.

    Judged from the text alone, without a cost model. Exits 1 when the artifact cannot run as it is written.

    Examples:

      planner audit deploy.yaml

      planner audit train.sh --env NNODES=4 --json
    """
    from planner.importing.audit import blocks

    refuse_unwritable(output)
    refuse_overwriting({"--output": output}, {f"FILE {name}": name for name in files})
    reading = read(files, env, settings)
    rows = [{"finding": text, "runs": not blocks(text)} for text in reading.findings]
    document = {
        "schema": "planner.audit/1",
        "ok": all(row["runs"] for row in rows),
        "findings": rows,
        "unresolved": list(reading.unresolved),
    }

    def text() -> str:
        lines = [f"{'note' if row['runs'] else 'FAIL'}  {row['finding']}" for row in rows]
        lines += [f"open  {name}: give it with `--env {name}=VALUE`" for name in reading.unresolved]
        return "\n".join(lines or ["ok    nothing contradicts itself"])

    write_result(document, text, output, as_json=as_json)
    return 0 if document["ok"] else EXIT_NO
