"""Metrics over HTTP, read-only: one GET of `/metrics` an engine, no credentials shown."""

import time
import urllib.error
import urllib.parse
import urllib.request

from planner.errors import PlannerError
from planner.watch.engines import Scrape, scrape_of
from planner.watch.exposition import parse_metrics

TIMEOUT_S = 10.0
MOST_BYTES = 32 * 2**20


def fetch(url: str) -> Scrape:
    """The metrics of an engine now. Raises PlannerError, naming the address without its credentials."""
    parts = urllib.parse.urlsplit(url if "://" in url else f"http://{url}")
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise PlannerError(f"is no address of an engine: `{shown}`", where="URL", hint="write http://host:8000")
    if parts.path in ("", "/"):
        parts = parts._replace(path="/metrics")
    try:
        with urllib.request.urlopen(parts.geturl(), timeout=TIMEOUT_S) as answer:
            content = answer.read(MOST_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise PlannerError(
            f"cannot be read: {reason}", where=shown, hint="is the engine up, and its port right?"
        ) from None
    if len(content) > MOST_BYTES:
        raise PlannerError("answers with more than 32 MiB", where=shown, hint="name an engine's own metrics")
    return scrape_of(parse_metrics(content.decode(errors="replace"), shown), time.monotonic(), shown)
