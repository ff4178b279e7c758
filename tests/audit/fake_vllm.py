"""`vllm bench serve` on real HTTP requests, reported in vLLM's format; knows only the flags that audits write.

`STUB_REQUESTS` cuts the number of requests, `STUB_URL` is the address, `STUB_FULLER` the share of the engine that each
request a second takes: a token takes one over what they leave, as the steps of engines do.
"""

import http.client
import json
import os
import statistics
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit


def request(url: str, tokens: int) -> tuple[float, float]:
    """TTFT and TPOT of one streamed request, in ms."""
    split = urlsplit(url)
    connection = http.client.HTTPConnection(str(split.hostname), split.port, timeout=20)
    start = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps({"max_tokens": tokens, "stream": True}))
    response, times = connection.getresponse(), []
    while line := response.readline():
        if b'"content"' in line:
            times.append(time.monotonic())
    connection.close()
    return 1e3 * (times[0] - start), 1e3 * (times[-1] - times[0]) / (len(times) - 1)


def main() -> None:
    words = sys.argv[1:]
    assert words[:2] == ["bench", "serve"]
    flags = {words[k]: words[k + 1] for k in range(len(words) - 1) if words[k].startswith("--")}
    facts = dict(word.split("=", 1) for word in words[words.index("--metadata") + 1 :])
    rate, tokens = float(flags["--request-rate"]), int(flags["--random-output-len"])
    count = min(int(flags["--num-prompts"]), int(os.environ["STUB_REQUESTS"]))
    times: list[tuple[float, float]] = []
    threads = [
        threading.Thread(target=lambda: times.append(request(os.environ["STUB_URL"], tokens))) for _ in range(count)
    ]
    for thread in threads:
        thread.start()
        time.sleep(min(1.0 / rate, 0.05))
    for thread in threads:
        thread.join()
    report: dict[str, Any] = {
        "date": "20261125-120000", "backend": flags["--backend"], "model_id": flags["--model"], "num_prompts": count,
        "request_rate": rate, "completed": count, "failed": 0, "request_throughput": rate,
        "output_throughput": rate * tokens, "total_input_tokens": count * int(flags["--random-input-len"]),
        "total_output_tokens": count * tokens, **facts,
    }  # fmt: skip
    longer = {"ttft": 1.0, "tpot": 1.0 / (1.0 - rate * float(os.environ["STUB_FULLER"]))}
    for name, values in zip(("ttft", "tpot"), zip(*times, strict=True), strict=True):
        means = {"median": statistics.median(values), "mean": statistics.mean(values)}
        report |= {f"{of}_{name}_ms": value * longer[name] for of, value in means.items()}
    with open(flags["--result-filename"], "w", encoding="utf-8") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
