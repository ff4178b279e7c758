"""A page in headless Chromium: no request, no error, pointer and keyboard, on a phone, in the dark, printed.

Skipped where Chromium, its driver or Selenium is not installed.
"""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.report.documents import report

pytest.importorskip("selenium", reason="Selenium is not installed")
BROWSER, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(BROWSER is None or DRIVER is None, reason="Chromium or its driver is not installed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
Driver = Any  # of Selenium, which may not be installed
PLAN = Path(__file__).parent.parent / "plans" / "serve.json"


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = str(BROWSER)
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=1100,1400"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    opened = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield opened
    opened.quit()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(report(str(PLAN)), encoding="utf-8")
    return path.as_uri()


def test_it_opens_without_a_request_or_an_error(driver: Driver, url: str) -> None:
    driver.get_log("performance")
    driver.get(url)
    events = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    assert [address for address in asked if address != url and not address.startswith("data:")] == []
    assert driver.get_log("browser") == []
    assert driver.execute_script("return document.querySelectorAll('svg.chart .mark').length") > 10


def test_marks_answer_to_the_pointer_and_to_the_keyboard(driver: Driver, url: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    driver.get(url)
    tip = driver.find_element(By.ID, "tip")
    assert not tip.is_displayed()
    marked = driver.find_element(By.CSS_SELECTOR, "svg.chart .mark")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", marked)
    time.sleep(0.2)
    ActionChains(driver).move_to_element(marked).perform()
    assert tip.text == marked.get_attribute("data-tip")
    driver.execute_script("document.querySelector('svg.chart').focus()")
    driver.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert "mark" in driver.switch_to.active_element.get_attribute("class")
    assert tip.is_displayed()
    driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()


def test_nothing_is_wider_than_a_phone(driver: Driver, url: str) -> None:
    sizes = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": True}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", sizes)
    driver.get(url)
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 360
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_it_has_a_dark_side_and_a_button_for_it(driver: Driver, url: str) -> None:
    from selenium.webdriver.common.by import By

    driver.get(url)
    colour = "return getComputedStyle(document.body).backgroundColor"
    light = driver.execute_script(colour)
    driver.find_element(By.ID, "theme").click()
    dark = driver.execute_script(colour)
    assert light != dark
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    driver.get(url)
    assert driver.execute_script(colour) == dark
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_it_prints_on_paper_without_its_buttons(driver: Driver, url: str) -> None:
    driver.get(url)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script("return getComputedStyle(document.getElementById('theme')).display") == "none"
    assert driver.execute_cdp_cmd("Page.printToPDF", {})["data"]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_slider_of_a_line_moves_its_mark_and_says_what_is_best_there(driver: Driver, tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    rows = [
        {"low": 5.0, "high": 7.5, "objective": 7.0, "decision": "two"},
        {"low": 7.5, "high": 10.0, "objective": 10.5, "decision": "three"},
    ]
    line = {"schema": "planner.parametric/1", "axis": "rate", "metric": "usd_per_hour", "segments": rows}
    (tmp_path / "line.json").write_text(json.dumps(line))
    (tmp_path / "page.html").write_text(report(str(PLAN), str(tmp_path / "line.json")), encoding="utf-8")
    driver.get((tmp_path / "page.html").as_uri())
    slider = driver.find_element(By.CSS_SELECTOR, "input[data-chart]")
    told, cursor = driver.find_element(By.ID, "line-rate"), driver.find_element(By.CSS_SELECTOR, ".cursor")
    before = float(cursor.get_attribute("x1"))
    assert "two" in told.text
    slider.send_keys(Keys.END)
    assert "three" in told.text
    assert float(cursor.get_attribute("x1")) > before
    assert driver.get_log("browser") == []
