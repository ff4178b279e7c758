"""The site has a place for every page, and every link of a page leads somewhere."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
ELSEWHERE = re.compile(r"[a-z]+:")


def _places(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        for target in entry.values():
            yield from [target] if isinstance(target, str) else _places(target)


def test_every_page_has_one_place_in_the_site() -> None:
    places = list(_places(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(f"docs/{place}" for place in places) == [page for page in PAGES if page.startswith("docs/")]


def _anchor(heading: str) -> str:
    words = re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()).strip()
    return re.sub(r"[ -]+", "-", words)


@pytest.mark.parametrize("page", PAGES)
def test_links_of_pages_lead_somewhere(page: str) -> None:
    for target in LINK.findall(re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)):
        path, _, anchor = target.partition("#")
        if ELSEWHERE.match(target):
            continue
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), f"{page}: {target}"
        if page.startswith("docs/"):
            assert (ROOT / "docs") in file.resolve().parents, f"{page}: {target} leaves the site"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
            assert re.sub("-+", "-", anchor) in map(_anchor, headings), f"{page}: {target}"
