"""Pictures of a report in headless Chromium, light, dark and on a phone: docs/report-*.png, and how the page behaves.

    python benchmarks/screenshots.py [--out docs] [--problem examples/serve-cost-two-pools.yaml]

Solves the problem by formulas, answers it along its rate, writes the page of both, and prints its size, how long it
takes to load, requests that it makes, errors of its console, how wide it is on a phone of 360 pixels, and the pages
that it prints on. Needs Chromium with its driver, and Selenium.
"""

import argparse
import base64
import json
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from planner.cli.main import main as planner

ROOT = Path(__file__).parent.parent
PHONE = 360


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=ROOT / "docs")
    parser.add_argument("--problem", type=Path, default=ROOT / "examples" / "serve-cost-two-pools.yaml")
    parser.add_argument("--line", default="rate=10/s..40/s", help="an answer along a line to put below; empty: none")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        page = _page(given.problem, given.line, Path(folder))
        browser = _browser()
        try:
            _judge(browser, page)
            given.out.mkdir(parents=True, exist_ok=True)
            _shoot(browser, page, given.out)
        finally:
            browser.quit()


def _page(problem: Path, line: str, folder: Path) -> Path:
    plan, page, along = folder / "plan.json", folder / "report.html", folder / "line.json"
    _run("solve", str(problem), "--level", "static", "-o", str(plan))
    if line:
        _run("sweep", str(problem), "--parametric", line, "-o", str(along))
    _run("report", str(plan), *([str(along)] if line else []), "-o", str(page))
    return page


def _run(*words: str) -> None:
    if planner([*words]):
        sys.exit(f"planner {' '.join(words)} did not answer")


def _browser() -> Any:  # noqa: ANN401 - of Selenium, which may not be installed
    try:
        from selenium import webdriver
        from selenium.webdriver.chrome.options import Options
        from selenium.webdriver.chrome.service import Service
    except ImportError:
        sys.exit("needs Selenium: `pip install selenium`")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        sys.exit("needs `chromium` and `chromedriver`")
    options = Options()
    options.binary_location = program
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver))


def _judge(browser: Any, page: Path) -> None:  # noqa: ANN401
    browser.get_log("performance")
    started = time.monotonic()
    browser.get(page.as_uri())
    opened_s = time.monotonic() - started
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    requests = [address for address in asked if address != page.as_uri() and not address.startswith("data:")]
    errors = browser.get_log("browser")
    _size(browser, PHONE, 740)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    marks = browser.execute_script("return document.querySelectorAll('.mark').length")
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    sheets = len(re.findall(rb"/Type\s*/Page\b", printed))
    print(
        f"{page.stat().st_size / 1e6:.2f} MB, {marks} marks, open in {opened_s:.2f} s, {len(requests)} requests,"
        f" {len(errors)} console errors, {wide} pixels wide on {PHONE}, {sheets} sheets printed"
    )


def _shoot(browser: Any, page: Path, out: Path) -> None:  # noqa: ANN401
    for name, scheme, width, most in (
        ("light", "light", 1000, 3400),
        ("dark", "dark", 1000, 3400),
        ("phone", "light", PHONE, 2400),
    ):
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        _size(browser, width, 1200)
        browser.get(page.as_uri())
        height = min(browser.execute_script("return document.documentElement.scrollHeight"), most)
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
        (out / f"report-{name}.png").write_bytes(base64.b64decode(shot["data"]))


def _size(browser: Any, width: int, height: int) -> None:  # noqa: ANN401
    sizes = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width <= PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)


if __name__ == "__main__":
    main()
