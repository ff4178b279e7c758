"""Generated launch commands with the truth about their flags, in the layout of the import benchmark."""

import json

import numpy as np

from samples.tables import SEED

COMMANDS = 3
MODEL = "Qwen/Qwen3-32B"


def index() -> str:
    """index.json: the commands."""
    rows = [{"id": f"sample-{number}", "file": f"sample-{number}.sh"} for number in range(COMMANDS)]
    return json.dumps(rows, indent=1) + "\n"


def files() -> dict[str, bytes]:
    """The commands, and under truth/ what they say."""
    draws = np.random.default_rng((SEED, 31))
    texts = {}
    for number in range(COMMANDS):
        tp, sequences = int(2 ** draws.integers(0, 4)), int(2 ** draws.integers(5, 9))
        length, share = int(1024 * draws.integers(4, 32)), float(draws.integers(80, 96)) / 100.0
        texts[f"sample-{number}.sh"] = (
            f"vllm serve {MODEL} --tensor-parallel-size {tp} --max-num-seqs {sequences} --max-model-len {length} "
            f"--gpu-memory-utilization {share}\n"
        )
        role = {
            **{"role": "colocated", "replicas": 1, "gpus_per_replica": tp, "nodes_per_replica": 1, "tp": tp, "pp": 1},
            **{"dp": 1, "ep": 1, "max_num_seqs": sequences, "max_model_len": length, "chunk_tokens": None},
            **{"kv_dtype": None, "memory_utilisation": share, "prefix_caching": None, "speculative": None},
        }
        truth = {
            **{"id": f"sample-{number}", "file": f"sample-{number}.sh", "kind": "serve", "engine": "vllm"},
            **{"model": MODEL, "gpus": tp, "gpu_type": None, "roles": [role], "unresolved": [], "audit": []},
        }
        texts[f"truth/sample-{number}.json"] = json.dumps(truth, indent=1) + "\n"
    return {name: text.encode() for name, text in texts.items()}
