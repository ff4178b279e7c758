"""What `planner import` reads of public launch artifacts, beside one regular expression a flag.

Fields are the leaves of the truth files: every field of every role, and those of the whole. A field is exact when it
equals the truth, invented when the truth has none and the reading has one. Findings are recalled when one of ours holds
all the numbers and names of theirs.

    python benchmarks/imports.py [FOLDER]
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from inputs import SHARED, required

from planner.errors import PlannerError
from planner.importing.files import read_files

ARTIFACTS = SHARED / "imports"
ASIDE = frozenset({"id", "file", "note", "with_env", "resolved", "audit", "guesses"})
FLAGS = {
    "tp": r"(?:--tensor-parallel-size|--tp(?:-size)?|tensor-parallel-size:|--tensor-model-parallel-size)[= ]+\"?(\d+)",
    "pp": r"(?:--pipeline-parallel-size|pipeline-parallel-size:|--pipeline-model-parallel-size)[= ]+\"?(\d+)",
    "dp": r"(?:--data-parallel-size|--dp(?:-size)?|data-parallel-size:)[= ]+\"?(\d+)",
    "ep": r"(?:--ep-size|ep-size:)[= ]+\"?(\d+)",
    "max_num_seqs": r"(?:--max-num-seqs|max-num-seqs:|--max-running-requests)[= ]+\"?(\d+)",
    "max_model_len": r"(?:--max-model-len|max-model-len:|--context-length)[= ]+\"?(\d+)",
    "chunk_tokens": r"(?:--max-num-batched-tokens|max-num-batched-tokens:|--chunked-prefill-size)[= ]+\"?(\d+)",
    "kv_dtype": r"(?:--kv-cache-dtype|kv-cache-dtype:)[= ]+\"?(\w+)",
    "memory_utilisation": r"(?:--gpu-memory-utilization|gpu-memory-utilization:|--mem-fraction-static)[= ]+\"?([\d.]+)",
    "model": r"(?:--model-path|--model|vllm serve)[= ]+\"?([\w./-]+)",
    "replicas": r"replicas: (\d+)",
    "gpus_per_replica": r"nvidia.com/gpu: \"?(\d+)",
    "micro_batch": r"--micro-batch-size (\d+)",
    "global_batch": r"--global-batch-size (\d+)",
    "sequence": r"--seq-length (\d+)",
}


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """The fields below `value` by path; roles by their names, names of variables as one sorted field."""
    if isinstance(value, dict):
        for key, below in value.items():
            if key not in ASIDE:
                yield from leaves(below, f"{path}.{key}" if path else str(key))
    elif path == "unresolved":
        yield path, sorted(str(name) for name in value) if isinstance(value, list) else value
    elif isinstance(value, list):
        for index, below in enumerate(value):
            name = below.get("role", index) if isinstance(below, dict) else index
            yield from leaves(below, f"{path}[{name}]")
    else:
        yield path, value


def score(read: Mapping[str, Any], truth: Mapping[str, Any]) -> tuple[int, int, list[str]]:
    """Exact fields, all fields, and what is wrong, with `invented` in front where the truth has no value."""
    ours, wanted = dict(leaves(dict(read))), dict(leaves(dict(truth)))
    wrong = []
    for path in wanted:
        if ours.get(path) != wanted[path]:
            invented = wanted[path] is None and ours.get(path) is not None
            wrong.append(f"{'invented ' if invented else ''}{path}: {ours.get(path)!r}, truth {wanted[path]!r}")
    exact = len(wanted) - len(wrong)
    wrong += [
        f"invented {path}: {ours[path]!r}" for path in ours if path not in wanted and ours[path] not in (None, [])
    ]
    return exact, len(wanted), wrong


def by_regular_expressions(text: str, truth: Mapping[str, Any]) -> dict[str, Any]:
    """The reading of one regular expression a flag, the first match for every role of the truth."""
    values: dict[str, Any] = {}
    for field, pattern in FLAGS.items():
        match = re.search(pattern, text)
        if match is not None:
            values[field] = float(match[1]) if re.fullmatch(r"\d+\.\d+", match[1]) else match[1]
            values[field] = int(match[1]) if match[1].isdigit() else values[field]
    engine = next((name for name in ("vllm", "sglang", "trtllm", "verl", "megatron") if name in text), None)
    roles = [values | {"role": role["role"]} for role in truth.get("roles", ())]
    return values | {"kind": truth["kind"], "engine": engine, "roles": roles, "unresolved": []}


def recalled(ours: list[str], theirs: list[str]) -> int:
    """How many of the findings of the truth one of ours tells."""

    def numbers(text: str) -> set[str]:
        return set(re.findall(r"\d+", text))

    return sum(any(numbers(text) & numbers(wanted) == numbers(wanted) for text in ours) for wanted in theirs)


def main() -> None:
    """Prints the score of every truth file, and what the files without one come to."""
    folder = required(sys.argv[1] if len(sys.argv) > 1 else ARTIFACTS)
    totals, plain, invented, findings = [0, 0], [0, 0], 0, [0, 0, 0]
    for path in sorted((folder / "truth").glob("*.json")):
        truth = json.loads(path.read_text())
        file = folder / truth["file"]
        cases = [({}, truth)] + ([(truth["with_env"], truth["resolved"])] if "resolved" in truth else [])
        for given, wanted in cases:
            read = read_files([str(file)], given).summary()
            exact, fields, wrong = score(read, wanted)
            simple = score(by_regular_expressions(file.read_text(), wanted), wanted)
            totals, plain = [totals[0] + exact, totals[1] + fields], [plain[0] + simple[0], plain[1] + simple[1]]
            invented += sum(text.startswith("invented") for text in wrong)
            found_here = recalled(read["audit"], wanted["audit"])
            findings = [findings[0] + found_here, findings[1] + len(wanted["audit"]), findings[2] + len(read["audit"])]
            print(f"{path.stem:<32} {exact:>4} of {fields:>4}", *wrong, sep="\n    " if wrong else " ")
    imported, refused = 0, []
    for row in json.loads((folder / "index.json").read_text()):
        try:
            read_files([str(folder / row["file"])], {})
            imported += 1
        except PlannerError as error:
            refused.append(f"{row['id']}: {error.what}")
    print(f"fields exact {totals[0]} of {totals[1]} ({totals[0] / totals[1]:.1%}), invented {invented}")
    print(f"one regular expression a flag {plain[0]} of {plain[1]} ({plain[0] / plain[1]:.1%})")
    print(f"findings recalled {findings[0]} of {findings[1]}, told {findings[2]}")
    print(f"files imported {imported}, refused {len(refused)}", *refused, sep="\n  ")


if __name__ == "__main__":
    main()
