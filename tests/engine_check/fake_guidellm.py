"""A load generator that takes guidellm's flags, sends real HTTP requests, and reports in guidellm's format.

Stands in for guidellm where that is not installed; knows only the flags and fields that the engine check uses.
"""

import http.client
import json
import sys
import threading
import time
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit


def _flags(arguments: list[str]) -> dict[str, dict[str, str]]:
    """`--data kind=a,b=c` as {"data": {"kind": "a", "b": "c"}}."""
    flags: dict[str, dict[str, str]] = {}
    for flag, value in pairwise(arguments):
        if flag.startswith("--") and "=" in value:
            flags[flag[2:]] = dict(part.split("=", 1) for part in value.split(","))
    return flags


def _request(url: str, body: dict[str, Any]) -> dict[str, float] | None:
    """One streamed request: seconds and milliseconds as guidellm names them; None for one that failed."""
    split = urlsplit(url)
    connection = http.client.HTTPConnection(str(split.hostname), split.port, timeout=20)
    start = time.monotonic()
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        times = []
        while response.status == 200 and (line := response.readline()):
            if b'"content"' in line:
                times.append(time.monotonic())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    if len(times) < body["max_completion_tokens"]:
        return None
    gap = (times[-1] - times[0]) / (len(times) - 1)
    return {
        "time_to_first_token_ms": (times[0] - start) * 1e3,
        "inter_token_latency_ms": gap * 1e3,
        "request_latency": time.monotonic() - start,
    }


def main() -> None:
    flags = _flags(sys.argv[1:])
    profile, data = flags["profile"], flags["data"]
    duration_s = float(flags["constraint"]["seconds"])
    body = {
        "model": flags["backend"]["model"],
        "stream": True,
        "messages": [{"role": "user", "content": "a " * int(data["prompt_tokens"])}],
        "max_completion_tokens": int(data["output_tokens"]),
    }
    done: list[dict[str, float] | None] = []
    start = time.monotonic()

    def client() -> None:
        while time.monotonic() < start + duration_s:
            done.append(_request(flags["backend"]["target"], body))
            time.sleep(0.01 if done[-1] is None else 0.0)

    def request() -> None:
        done.append(_request(flags["backend"]["target"], body))

    threads = []
    if profile["kind"] == "concurrent":
        threads = [threading.Thread(target=client) for _ in range(int(profile["streams"]))]
        for thread in threads:
            thread.start()
    else:
        rate = float(profile["rate"])
        for sent in range(round(duration_s * rate)):  # however busy the machine is
            time.sleep(max(0.0, start + sent / rate - time.monotonic()))
            threads.append(threading.Thread(target=request))
            threads[-1].start()
    for thread in threads:
        thread.join()
    successful = [request for request in done if request is not None]
    totals = {
        "successful": len(successful),
        "errored": len(done) - len(successful),
        "incomplete": 0,
        "total": len(done),
    }
    run = {"metrics": {"request_totals": totals}, "requests": {"successful": successful}, "duration": duration_s}
    with open(flags["output"]["path"], "w", encoding="utf-8") as file:
        json.dump({"metadata": {"version": 2}, "benchmarks": [run]}, file)


if __name__ == "__main__":
    main()
