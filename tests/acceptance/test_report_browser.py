"""The report in a real browser: opened from the disk, used with the keyboard, on a desk and on a phone."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from classgrad.report import write_report

pytestmark = pytest.mark.browser

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NASTY = "<script>alert(1)</script>"
WAIT = 60

if CHROMIUM is None or DRIVER is None:
    pytest.skip("needs Chromium and chromedriver", allow_module_level=True)
webdriver = pytest.importorskip("selenium.webdriver")

from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The reports that are opened: two data sets, many classes, and runs with all that can go wrong."""
    synthetic = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[1] / "synthetic_runs.py")))
    pair = synthetic.demo_runs(seeds=2, algorithms=("gd", "pcngd", "sgd"), steps=60)
    broken = [
        synthetic.cut(pair[0], 4, "diverged", NASTY),
        synthetic.changed(pair[2], {"gram": None, "test/confusion": None, "test/loss": None}),
    ]
    named = [synthetic.changed(run, classes=[NASTY, "b & c"]) for run in broken]
    wide = synthetic.wide_runs(algorithms=("sgd",), seeds=1, steps=10)
    folder = tmp_path_factory.mktemp("pages")
    kinds = {"pair": pair, "broken": named, "wide": wide}
    return {name: write_report(runs, folder / name, figures=())[0] for name, runs in kinds.items()}


@contextmanager
def browser(folder, **emulation):
    """A browser with an empty profile that records what it logs and loads."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={folder}", "--window-size=1280,900"):
        options.add_argument(flag)
    if emulation:
        options.add_experimental_option("mobileEmulation", {"deviceMetrics": emulation})
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def phone(tmp_path_factory):
    with browser(tmp_path_factory.mktemp("profile"), width=390, height=844, pixelRatio=2.0, touch=True) as driver:
        yield driver


def opened(driver, path):
    for kind in ("browser", "performance"):
        driver.get_log(kind)
    driver.get(path.as_uri())
    until(driver, "return document.documentElement.dataset.ready === 'yes'")
    return driver


def until(driver, script, *arguments):
    WebDriverWait(driver, WAIT, poll_frequency=0.05).until(lambda d: d.execute_script(script, *arguments))


def drawn(driver, selector):
    """The lines drawn in a plot, as the paths that are on the screen, once there are any."""
    element = driver.find_element(By.CSS_SELECTOR, selector)
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    until(driver, "return arguments[0].querySelectorAll(arguments[1]).length", element, LINES)
    shapes = "return [...arguments[0].querySelectorAll(arguments[1])].map((s) => s.getAttribute('d') ?? s.href.baseVal)"
    return driver.execute_script(shapes, element, LINES)


LINES = ".scatterlayer path.js-line, .heatmaplayer image"
RECALL = '.pair[data-quantity="recall"] [data-side="first"] [data-kind="curves"]'


def assert_quiet(driver):
    """No error in the console, and nothing asked for but the page itself."""
    assert [entry for entry in driver.get_log("browser") if entry["level"] != "INFO"] == []
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    requests = [message["params"] for message in messages if message["method"] == "Network.requestWillBeSent"]
    page = driver.current_url.partition("#")[0]
    asked = {sent["request"]["url"] for sent in requests if sent["documentURL"].startswith(page)}
    assert {url for url in asked if not url.startswith("data:")} == {page}  # heat maps are pictures inside the page


def scroll_through(driver):
    """Let every plot be drawn: they wait until they come near the window."""
    for plot in driver.find_elements(By.CSS_SELECTOR, ".plot"):
        if plot.is_displayed():
            driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
            until(driver, "return arguments[0].childElementCount", plot)


def test_the_keyboard_switches_the_algorithm(desk, pages):
    opened(desk, pages["pair"])
    before = drawn(desk, RECALL)
    picker = desk.find_element(By.ID, "pick-first")
    assert picker.get_attribute("value") == "gd"
    desk.execute_script("arguments[0].focus()", desk.find_element(By.ID, "pick-split"))
    desk.switch_to.active_element.send_keys(Keys.TAB)
    assert desk.switch_to.active_element == picker
    picker.send_keys(Keys.ARROW_DOWN)
    assert picker.get_attribute("value") == "pcngd"
    until(desk, "return document.querySelector('#status').textContent.startsWith('Showing pcngd')")
    after = drawn(desk, RECALL)
    assert len(after) == len(before)
    assert after != before
    caption = desk.find_element(By.CSS_SELECTOR, '.pair[data-quantity="recall"] [data-side="first"] figcaption')
    assert caption.text == "pcngd"
    assert_quiet(desk)


def test_data_set_split_and_comparison_are_picked(desk, pages):
    opened(desk, pages["pair"])
    test = drawn(desk, RECALL)
    desk.find_element(By.ID, "pick-split").send_keys("train")
    assert drawn(desk, RECALL) != test
    assert len(desk.find_elements(By.CSS_SELECTOR, "#legend li")) == 2
    desk.find_element(By.ID, "pick-problem").send_keys("gauss-lt10")
    assert len(desk.find_elements(By.CSS_SELECTOR, "#legend li")) == 10
    assert desk.find_element(By.ID, "pick-split").get_attribute("value") == "train"
    other = desk.find_element(By.CSS_SELECTOR, '.pair[data-quantity="recall"] [data-side="second"]')
    assert other.is_displayed()
    desk.find_element(By.ID, "pick-second").send_keys("nothing")
    assert not other.is_displayed()
    scroll_through(desk)
    assert_quiet(desk)


def test_the_drop_is_marked_on_the_curves(desk, pages):
    opened(desk, pages["pair"])
    drawn(desk, RECALL)
    plot = desk.find_element(By.CSS_SELECTOR, RECALL)
    assert "minority initial drop" in plot.text
    assert plot.find_elements(By.CSS_SELECTOR, ".shapelayer path")
    assert plot.find_elements(By.CSS_SELECTOR, ".points path")
    verdict = desk.find_element(By.CSS_SELECTOR, '[data-side="first"] .verdict').text
    assert re.match(r"Minority initial drop in [12] of 2 runs: .* falls from \d+ % to \d+ %", verdict)
    second = desk.find_element(By.CSS_SELECTOR, RECALL.replace("first", "second"))
    assert "minority initial drop" not in second.text


def test_step_0_is_on_the_axis(desk, pages):
    opened(desk, pages["pair"])
    drawn(desk, RECALL)
    ticks = [tick.text for tick in desk.find_elements(By.CSS_SELECTOR, f"{RECALL} .xtick text")]
    assert ticks == ["0", "1", "10"]
    first = desk.execute_script(f"return document.querySelector('{RECALL}').data.at(-2).x[0]")
    assert first == 1


def test_the_numbers_behind_a_plot_can_be_read(desk, pages):
    opened(desk, pages["pair"])
    details = desk.find_element(By.CSS_SELECTOR, 'details[data-quantity="recall"]')
    desk.execute_script("arguments[0].scrollIntoView({block: 'center'})", details)
    details.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    until(desk, "return arguments[0].querySelectorAll('table').length === 2", details)
    table = details.find_element(By.TAG_NAME, "table")
    assert table.find_element(By.TAG_NAME, "caption").text == "Recall of every class, recall [%], gd"
    cells = [cell.text for cell in table.find_elements(By.CSS_SELECTOR, "tbody td:last-child")]
    drawn(desk, RECALL)
    plotted = desk.execute_script(f"return document.querySelector('{RECALL}').data.at(-2).y")
    assert [float(cell) for cell in cells] == pytest.approx(plotted, rel=0.01)


def test_dark_mode_reaches_the_plots_but_not_the_paper(desk, pages):
    opened(desk, pages["pair"])
    drawn(desk, RECALL)
    back = "return getComputedStyle(document.querySelector(arguments[0] + ' .main-svg')).backgroundColor"
    assert desk.execute_script(back, RECALL) == "rgb(255, 255, 255)"
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    desk.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [dark]})
    try:
        until(desk, f"{back} === 'rgb(20, 22, 27)'", RECALL)
        assert desk.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(20, 22, 27)"
        desk.execute_script("dispatchEvent(new Event('beforeprint'))")
        assert desk.execute_script(back, RECALL) == "rgb(255, 255, 255)"
        undrawn = "return [...document.querySelectorAll('.plot')].filter((p) => p.offsetParent && !p.childElementCount)"
        assert desk.execute_script(undrawn) == []
        desk.execute_script("dispatchEvent(new Event('afterprint'))")
        assert desk.execute_script(back, RECALL) == "rgb(20, 22, 27)"
    finally:
        desk.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert_quiet(desk)


def test_names_of_users_are_never_markup(desk, pages):
    opened(desk, pages["broken"])
    scroll_through(desk)
    assert NASTY in desk.find_element(By.ID, "legend").text
    plot = desk.find_element(By.CSS_SELECTOR, RECALL)
    assert NASTY[:18] in plot.text
    text = desk.find_element(By.TAG_NAME, "body").text
    assert "diverged after step" in text
    assert "Not measured in these runs." in text
    assert len(desk.find_elements(By.TAG_NAME, "script")) == 4
    assert_quiet(desk)


def test_a_hundred_classes_stay_readable(desk, pages):
    opened(desk, pages["wide"])
    assert len(drawn(desk, RECALL)) == 6
    assert len(drawn(desk, RECALL.replace("curves", "map"))) == 1
    assert len(desk.find_elements(By.CSS_SELECTOR, "#legend li")) == 3
    scroll_through(desk)
    assert_quiet(desk)


@pytest.mark.parametrize("name", ["pair", "wide", "broken"])
def test_a_phone_never_scrolls_sideways(phone, pages, name):
    opened(phone, pages[name])
    scroll_through(phone)
    widths = phone.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert widths == [390, 390]
    plot = phone.find_element(By.CSS_SELECTOR, RECALL)
    assert plot.size["width"] <= 390
    phone.find_element(By.ID, "pick-second").send_keys("nothing")
    assert phone.execute_script("return document.documentElement.scrollWidth") == 390
    assert_quiet(phone)


def test_without_its_script_the_page_still_tells_the_results(desk, pages):
    desk.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        desk.get(pages["pair"].as_uri())
        text = desk.find_element(By.TAG_NAME, "body").text
    finally:
        desk.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "The plots need JavaScript" in text
    assert "peak macro recall" in text
