"""Audits of what comes on standard input, of clients in a closed loop, and runs of both sides of a deployment."""

import io
import shlex
from pathlib import Path

import pytest

from planner.audit.audit import changed_files
from planner.audit.closed import as_stream
from planner.audit.edit import changed_text
from planner.audit.runs import bench_commands
from planner.benchmark_reports.vllm_bench import FACTS
from planner.importing.files import gathered
from planner.importing.plans.question import Question
from planner.importing.plans.serving import serving_case
from planner.importing.registry import Artifact, read_artifact

SERVE = "#!/bin/bash\n# chat\nvllm serve Qwen/Qwen3-8B \\\n  --max-num-seqs 64\n"
GPU = "gpu=h100,gpus=1"


class Stdin:
    """Standard input that holds bytes, once."""

    def __init__(self, text: str) -> None:
        self.buffer = io.BytesIO(text.encode())


def test_a_script_on_standard_input_is_changed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", Stdin(SERVE))
    changed, diff, missing = changed_files(gathered(["-"]), {}, {}, {("colocated", "max_num_seqs"): 32})
    assert (changed, missing) == ({"<stdin>": SERVE.replace("64", "32")}, [])
    assert "+  --max-num-seqs 32" in diff


def test_a_file_of_a_folder_is_changed_under_what_stands_beside_it(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text("#!/bin/bash\nsource common.sh\nvllm serve Qwen/Qwen3-8B --max-num-seqs $N\n")
    (tmp_path / "common.sh").write_text("#!/bin/bash\nN=64\nexport TP=2\n")
    wanted = {("colocated", "chunk_tokens"): 512}
    changed, _, missing = changed_files(gathered([str(tmp_path)]), {}, {}, wanted)
    assert missing == []
    assert ["--max-num-batched-tokens 512" in text for text in changed.values()] == [True]


def test_clients_are_a_stream_of_the_rate_at_which_they_are_served() -> None:
    reading = read_artifact(Artifact(SERVE, "serve.sh", {}))
    rates = []
    for clients in (1, 16):
        question, (said,) = as_stream(reading, Question.of(f"input=1000,output=100,concurrency={clients}", cluster=GPU))
        rates.append(question.workload["load"]["rate_per_s"])
        assert f"{clients} clients" in said
    assert rates[0] < rates[1] < 16 * rates[0]
    rated = Question.of("input=1000,output=100,rate=2/s", cluster=GPU)
    assert as_stream(reading, rated) == (rated, ())


SIDE = 'vllm serve Qwen/Qwen3-8B -tp {tp} --kv-transfer-config \'{{"kv_role": "{role}"}}\' --port {tp} &\n'


def test_runs_of_both_sides_tell_the_degrees_of_each() -> None:
    script = "#!/bin/bash\n" + SIDE.format(tp=1, role="kv_producer") + SIDE.format(tp=2, role="kv_consumer")
    question = Question.of("input=1000,output=100,rate=2/s", cluster="gpu=h100,nodes=1")
    case = serving_case(read_artifact(Artifact(script, "serve.sh", {})), question)
    (command,) = bench_commands(case.resolved, case.instances, [2.0])
    words = shlex.split(command)
    facts = dict(fact.split("=") for fact in words[words.index("--metadata") + 1 :])
    assert facts == {"system": "h100_sxm", "gpus": "3", "prefill_tp": "1", "decode_tp": "2"}
    assert facts.keys() <= {*FACTS}


def test_runs_tell_the_copies_of_experts_that_they_are_of() -> None:
    script = "#!/bin/bash\nvllm serve Qwen/Qwen3-30B-A3B -dp 8 --enable-expert-parallel --enable-eplb\n"
    question = Question.of("input=1000,output=100,rate=2/s", cluster="gpu=h100,nodes=1")
    case = serving_case(read_artifact(Artifact(script, "serve.sh", {})), question)
    (command,) = bench_commands(case.resolved, case.instances, [2.0])
    assert "redundant_experts=0" in shlex.split(command)
    assert "redundant_experts" in FACTS


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ('services: {a: {image: "vllm/vllm-openai:v1", command: ["--model", "org/m"]}}', '"--max-num-seqs=32"]'),
        ("servingEngineSpec:\n  modelSpec:\n  - {modelURL: org/m, vllmConfig: {maxModelLen: 4096}}", "maxNumSeqs: 32}"),
        ("#!/bin/bash\nvllm serve org/m --port 1 &\nvllm serve org/m --port 2 &\n", "org/m --max-num-seqs 32 --port 2"),
        (
            "#!/bin/bash\nvllm serve org/m --max-num-seqs 64 &\nvllm serve org/m --max-num-seqs 64 &\n",
            "seqs 32 &\nvllm",
        ),
    ],
)
def test_settings_are_written_as_their_neighbours_are(text: str, changed: str) -> None:
    wanted = {("colocated", "max_num_seqs"): 32}
    edited, missing = changed_text(text, lambda each: read_artifact(Artifact(each, "artifact", {})), wanted)
    assert missing == []
    assert changed in edited
