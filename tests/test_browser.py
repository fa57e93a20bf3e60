"""The pages, opened in Chromium: every figure is there, nothing overflows, errs or is asked for outside."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from tests.conftest import imdb_tx
from tests.test_report import TITLES

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
WIDTHS = (360, 1280)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync")  # fmt: skip

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER or ""))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(trained: Path, linear: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the page of `eval`, of `compare` and of `predict --explain --attention`."""
    folder = tmp_path_factory.mktemp("pages")
    shutil.copytree(trained, folder / "run")
    shutil.copytree(linear, folder / "nb")
    assert imdb_tx("eval", folder / "run").exit_code == 0
    compare = imdb_tx("compare", folder / "run", folder / "nb", "--html", folder / "compare.html")
    assert compare.exit_code == 0
    hostile = "<img src=http://example.org/x> <script>document.title='x'</script> a good film " * 5
    explained = imdb_tx(
        "predict", "--run", folder / "run", "--explain", "--attention", "--html", folder / "why.html", hostile
    )
    assert explained.exit_code == 0
    return folder


def test_figures_can_be_read_in_the_dark(browser: Any, pages: Path) -> None:
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.get(f"file://{pages / 'run/report.html'}")
        colours = browser.execute_script(
            "const c = (e, p) => getComputedStyle(e)[p];"
            "return [c(document.body, 'color'), c(document.querySelector('#text_1 text'), 'fill')]"
        )
        assert colours[0] == colours[1] == ("rgb(255, 255, 255)" if scheme == "dark" else "rgb(0, 0, 0)")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("run/report.html", TITLES),
        ("compare.html", ["Training loss", "Validation accuracy", "ROC", "Reliability"]),
        ("why.html", []),
    ],
)
def test_a_page_shows_its_figures_and_fetches_nothing(
    browser: Any, pages: Path, name: str, titles: list[str], width: int
) -> None:
    # A window is never narrower than 500 pixels; the screen of a phone is.
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get_log("browser")
    browser.get_log("performance")
    browser.get(f"file://{pages / name}")
    assert browser.title not in ("", "x")
    figures = browser.find_elements(By.CSS_SELECTOR, "figure")
    assert [figure.find_element(By.TAG_NAME, "b").text for figure in figures] == [f"{t}." for t in titles]
    for figure in figures:
        drawn = figure.find_element(By.TAG_NAME, "svg").size
        assert drawn["width"] > 200
        assert drawn["height"] > 100
        assert figure.find_element(By.CSS_SELECTOR, "[role=img]").get_attribute("aria-label")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert sum(url.startswith("file:") for url in asked) == 1
