"""An OpenAI-compatible server with known latencies, on loopback alone: streams chunks at set times.

Runs inside a test (`serve`), and as a program where a test starts an engine: `stub_server.py --port P --ttft-s 0.1`.
"""

import argparse
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Behaviour:
    """How the server answers; times of every request alike."""

    ttft_s: float = 0.2
    tpot_s: float = 0.02
    status: int = 200  # of completions
    ready: bool = True
    health_page: bool = True
    die_after: int | None = None  # completions that are still answered; then the process ends
    model: str = "stub"
    answered: int = field(default=0)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128  # connections that wait; one too many is tried again by TCP only a second later

    def __init__(self, port: int, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the base class's signature
        """A client that hangs up is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - the signature of the base class
        return

    def do_GET(self) -> None:
        known = self.server.behaviour
        if self.path == "/health" and not known.health_page:
            self._answer(404, {})
        elif self.path in ("/health", "/v1/models"):
            self._answer(200 if known.ready else 503, {"object": "list", "data": [{"id": known.model}]})
        else:
            self._answer(404, {})

    def do_POST(self) -> None:
        known = self.server.behaviour
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if known.die_after is not None and known.answered >= known.die_after:
            print("CUDA error: an illegal memory access was encountered", flush=True)
            os._exit(7)
        known.answered += 1
        if known.status != 200:
            self._answer(known.status, {"error": "injected"})
            return
        tokens = int(body.get("max_completion_tokens") or body.get("max_tokens") or 8)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        start = time.monotonic()
        for token in range(tokens):
            time.sleep(max(0.0, start + known.ttft_s + token * known.tpot_s - time.monotonic()))
            self._event({"choices": [{"index": 0, "delta": {"content": "a "}, "finish_reason": None}]})
        usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _event(self, data: dict[str, Any]) -> None:
        named = {"id": "1", "object": "chat.completion.chunk", "model": self.server.behaviour.model, **data}
        self.wfile.write(f"data: {json.dumps(named)}\n\n".encode())
        self.wfile.flush()

    def _answer(self, status: int, data: dict[str, Any]) -> None:
        text = json.dumps(data).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@contextmanager
def serve(behaviour: Behaviour) -> Iterator[str]:
    """The address of a server in this process, while the block runs."""
    server = _Server(0, behaviour)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ttft-s", type=float, default=0.2)
    parser.add_argument("--tpot-s", type=float, default=0.02)
    parser.add_argument("--die-after", type=int)
    parser.add_argument("--never-ready", action="store_true")
    parser.add_argument("--refuse-to-start", action="store_true")
    given, _ = parser.parse_known_args()  # the flags of the engine that it stands for are not its own
    if given.refuse_to_start:
        print("ValueError: free memory on device cuda:0 is less than desired", flush=True)
        raise SystemExit(3)
    print("loading weights", flush=True)
    behaviour = Behaviour(given.ttft_s, given.tpot_s, ready=not given.never_ready, die_after=given.die_after)
    _Server(given.port, behaviour).serve_forever()


if __name__ == "__main__":
    _main()
