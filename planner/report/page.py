"""Puts a page together: style, script and sections in one file that asks nothing of any network."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from planner.report.marks import prose, text

MOST_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, what stands below it as HTML, and a remark."""

    title: str
    body: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    """A page from the top: what it is of, the answer in a sentence, figures, and sections."""

    kicker: str
    title: str
    lead: str
    tiles: Sequence[tuple[str, str]]
    sections: Sequence[Section]


def html(page: Page) -> str:
    """The page as one document."""
    style, script = (
        resources.files("planner.report").joinpath(name).read_text(encoding="utf-8")
        for name in ("style.css", "script.js")
    )
    return "".join(_parts(page, style, script))


def _parts(page: Page, style: str, script: str) -> Iterable[str]:
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
    yield "script-src 'unsafe-inline'; img-src data:\">"
    yield f'<link rel="icon" href="data:,"><title>{text(page.title)}</title>\n<style>\n{style}</style></head>'
    yield "\n<body><main>"
    yield f'<header><div><p class="kicker">{text(page.kicker)}</p><h1>{text(page.title)}</h1></div>'
    yield f'<button id="theme" type="button">Light / dark</button></header>\n<p class="lead">{prose(page.lead)}</p>'
    tiles = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in page.tiles)
    yield f'<dl class="tiles">{tiles}</dl>\n'
    for section in page.sections:
        note = f'<p class="note">{prose(section.note)}</p>' if section.note else ""
        yield f"<section><h2>{text(section.title)}</h2>{section.body}{note}</section>\n"
    yield f'</main><div id="tip" role="status" hidden></div>\n<script>\n{script}</script></body></html>\n'
