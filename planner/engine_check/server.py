"""The serving engine under test: started from the plan's emitted scripts, or reached at a URL."""

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from planner.emit.registry import emit
from planner.emit.serving.scene import API_PORT, ROUTER_PORT
from planner.engine_check.processes import Program, running
from planner.errors import PlannerError
from planner.plan.schema import Decision, Envelope

LOOPBACK = "127.0.0.1"
PROBE_S = 0.5  # between two looks at whether an engine answers
PROBE_LIMIT_S = 5.0
_ROUTER = "launch-router.sh"


class NotReady(Exception):
    """The engine ended or stayed silent; the message says which and what it last printed."""


@dataclass(frozen=True, slots=True)
class Server:
    """Where requests go, and the programs behind it; none for a server that somebody else runs."""

    url: str
    programs: tuple[Program, ...] = ()

    def ended(self) -> Program | None:
        """A program that is no longer there."""
        return next((program for program in self.programs if program.exit_code() is not None), None)


def scripts_of(envelope: Envelope, decision: Decision, target: str) -> dict[str, str]:
    """The launch scripts of a plan that one machine can run; raises PlannerError for others."""
    files = emit(envelope, decision, target)
    nodes = sorted(set(files) - {_ROUTER})
    if len(nodes) != 1:
        raise PlannerError(
            f"the plan takes {len(nodes)} nodes, one can be started here",
            where="decision.placement",
            hint="start the emitted scripts on their nodes, and give the address with `--url`",
        )
    modes = {role.function == "colocated" for role in decision.roles}
    if len(modes) != 1 or len({role.model for role in decision.roles}) != 1:
        raise PlannerError(
            "the plan has several routers, and each takes its own share of the load",
            where="decision.roles",
            hint="drive them together, and judge the report with `--report`",
        )
    return files


@contextmanager
def launched(files: Mapping[str, str], decision: Decision, folder: Path, limit_s: float) -> Iterator[Server]:
    """The plan's engine and router, answering; stopped with everything they started when the block ends.

    Raises NotReady, and PlannerError where something else listens already.
    """
    instances = [
        f"http://{LOOPBACK}:{API_PORT + slot}" for slot in range(sum(role.replicas for role in decision.roles))
    ]
    routed = _ROUTER in files
    front = f"http://{LOOPBACK}:{ROUTER_PORT}" if routed else instances[0]
    for url in {*instances, front}:
        if answers(url):
            raise PlannerError(
                "another server answers where the plan's engine would",
                where=url,
                hint="stop it, or measure it with `--url`",
            )
    deadline = time.monotonic() + limit_s
    with ExitStack() as stack:
        programs: list[Program] = []
        for name in sorted(files):  # nodes before the router, which needs them
            script = folder / name
            script.write_text(files[name], encoding="utf-8")
            title = "the router" if name == _ROUTER else "the engine"
            settings = {"NODE_00": LOOPBACK}
            programs.append(
                stack.enter_context(running(title, ["bash", str(script)], folder / f"{name}.log", settings))
            )
            wait_ready([front] if name == _ROUTER else instances, programs, deadline)
        yield Server(front, tuple(programs))


def wait_ready(urls: Sequence[str], programs: Sequence[Program], deadline: float) -> None:
    """Returns when all of `urls` answer; raises NotReady when a program ends or the deadline passes."""
    start, waiting = time.monotonic(), list(urls)
    while waiting:
        ended = next((program for program in programs if program.exit_code() is not None), None)
        if ended is not None:
            raise NotReady(f"{ended.fate()} (before it was ready)")
        waiting = [url for url in waiting if not answers(url)]
        if waiting and time.monotonic() >= deadline:
            words = programs[-1].last_words() if programs else ""
            said = f"; it last printed: {words}" if words else ""
            raise NotReady(f"{waiting[0]} was not ready after {time.monotonic() - start:.0f} s{said}")
        if waiting:
            time.sleep(PROBE_S)


def answers(url: str) -> bool:
    """Whether an engine at `url` takes requests: `/health` says so, or `/v1/models` where there is no such page."""
    status = _status(f"{url.rstrip('/')}/health")
    return status == 200 or (status in (404, 405) and _status(f"{url.rstrip('/')}/v1/models") == 200)


def _status(url: str) -> int | None:
    """The HTTP status of a page; None where nothing answers. Proxies of the environment are left aside."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=PROBE_LIMIT_S) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except (OSError, http.client.HTTPException, ValueError):
        return None
