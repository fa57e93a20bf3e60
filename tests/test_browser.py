"""The pages, opened in Chromium: every figure is there, nothing overflows, errs or is asked for outside."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from imdb_transformer.inference.explanation import all_heads, choose_head
from imdb_transformer.inference.predictor import Predictor
from imdb_transformer.store import run
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
            "return [c(document.body, 'color'), c(document.querySelector('svg .value'), 'fill'),"
            "c(document.body, 'backgroundColor')]"
        )
        text, value, background = (sum(map(int, re.findall(r"\d+", colour))) for colour in colours)
        assert text == value
        assert (text > background + 300) if scheme == "dark" else (text < background - 300)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    ("name", "titles"),
    [
        ("run/report.html", TITLES),
        ("compare.html", ["Loss", "Validation accuracy", "ROC", "Reliability"]),
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
    assert [figure.find_element(By.TAG_NAME, "b").text for figure in figures] == titles
    for figure in figures:
        drawn = figure.find_element(By.CSS_SELECTOR, "svg, table").size
        assert drawn["width"] > 150
        assert drawn["height"] > 50
        if not figure.find_elements(By.TAG_NAME, "table"):
            assert figure.find_element(By.CSS_SELECTOR, "[role=img]").get_attribute("aria-label")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    text_sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg text')].map((text) =>"
        "parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a)"
    )
    assert min(text_sizes, default=10) >= 10
    assert browser.get_log("browser") == []
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
    assert {url.partition(":")[0] for url in asked} <= {"file", "data"}
    assert sum(url.startswith("file:") for url in asked) == 1


def test_an_attention_map_shows_the_chosen_head_and_the_value_under_the_pointer(
    browser: Any, pages: Path, trained: Path
) -> None:
    text = "An awful boring film"
    path = pages / "attention.html"
    command = ("predict", "--run", trained, "--attention", "--layer", 1, "--head", 1, "--html", path, text)
    assert imdb_tx(*command).exit_code == 0
    browser.get(f"file://{path}")
    assert browser.title == "What each word attended to"
    menus = [Select(each) for each in browser.find_elements(By.TAG_NAME, "select")]
    model = run.open_run(trained).config.model
    assert [len(menu.options) for menu in menus] == [model.num_layers, model.num_heads]
    menus[1].select_by_visible_text("2")
    expected = choose_head(all_heads(Predictor.load(trained), text), layer=1, head=2).weights
    cells = browser.find_element(By.CSS_SELECTOR, ".map svg")
    side = cells.size["width"] / 4
    for row, column in ((0, 0), (2, 1), (3, 3)):
        across, down = side * (column - 1.5), side * (row - 1.5)  # from the middle
        webdriver.ActionChains(browser).move_to_element_with_offset(cells, across, down).perform()
        shown = browser.find_element(By.TAG_NAME, "output").text
        words = text.split()
        weight = expected[row, column]
        value = f"{weight:.3f}" if weight >= 0.01 else "below 0.01"
        assert shown == f"“{words[row]}” to “{words[column]}”: {value}"


def test_the_words_beside_an_attention_map_stay_when_it_is_scrolled(
    browser: Any, pages: Path, trained: Path
) -> None:
    path = pages / "long.html"
    text = " ".join(f"film{i}" for i in range(30))
    assert imdb_tx("predict", "--run", trained, "--attention", "--html", path, text).exit_code == 0
    screen = {"width": 360, "height": 500, "deviceScaleFactor": 1, "mobile": True}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(f"file://{path}")
    places = browser.execute_script(
        "const map = document.querySelector('.map');"
        "const at = (s) => document.querySelector(s).getBoundingClientRect();"
        "const before = [at('.rows').left, at('.columns').top]; map.scrollTo(150, 150);"
        "return [before, [at('.rows').left, at('.columns').top], [map.scrollLeft, map.scrollTop]]"
    )
    assert places[0] == places[1]
    assert min(places[2]) > 50
