"""The report in a real browser: it draws, it turns, it can be tabbed through, it asks for nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from folders import write_run

from saltflat.report.folder import gather
from saltflat.report.look import DARK, LIGHT
from saltflat.report.page import page

selenium = pytest.importorskip("selenium", reason="selenium is not installed: pip install selenium")

from selenium.webdriver import ActionChains, Chrome, ChromeOptions  # noqa: E402
from selenium.webdriver.chrome.service import Service  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
FLAGS = [
    "headless=new",
    "no-sandbox",
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
]

pytestmark = pytest.mark.skipif(
    not (BROWSER and DRIVER), reason="no chromium and chromedriver here (Debian: chromium, chromium-driver)"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    options = ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (*FLAGS, f"user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_page_load_timeout(60)
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


def show(browser: Any, file: Path, *, width: int = 1280, scheme: str = "light", media: str = "") -> None:
    """Open the page in this width and colour scheme, and wait until it has drawn."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(file.as_uri())
    drawn(browser)


def drawn(browser: Any) -> None:
    """Two frames later: what was asked for is on the screen."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def pixels(browser: Any) -> list[str]:
    drawn(browser)
    return browser.execute_script("return [...document.querySelectorAll('canvas')].map(c => c.toDataURL())")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_draws_everything_without_an_error(browser: Any, whole: Path, width: int, scheme: str) -> None:
    show(browser, whole, width=width, scheme=scheme)
    assert browser.get_log("browser") == []
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('figure svg, canvas')].filter(e => e.checkVisibility())"
        ".map(e => { const box = e.getBoundingClientRect(); return [box.width, box.height]; })"
    )
    assert len(sizes) == 16
    assert all(wide > 250 and tall > 150 for wide, tall in sizes)
    painted = browser.execute_script(
        "return [...document.querySelectorAll('canvas')].map(c => { const p = c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data; let n = 0; for (let k = 3; k < p.length; k += 4) n += p[k] > 200;"
        " return n / (p.length / 4); })"
    )
    assert len(painted) == 3
    assert min(painted) > 0.1
    assert len(set(pixels(browser))) == 3


@pytest.mark.parametrize("width", [360, 320])
def test_a_phone_never_scrolls_the_page_sideways(browser: Any, whole: Path, width: int) -> None:
    show(browser, whole, width=width)
    for box in browser.find_elements(By.CSS_SELECTOR, "summary"):
        browser.execute_script("arguments[0].click()", box)
    assert browser.execute_script("return document.documentElement.scrollWidth") == width
    wide = browser.execute_script(
        "return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 "
        "&& !e.closest('.scroll') && !e.closest('svg') && !e.matches('.skip')).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []


def test_colours_follow_the_scheme_and_paper_is_light(browser: Any, whole: Path) -> None:
    stroke = (
        "return getComputedStyle([...document.querySelectorAll('figure svg path')]"
        ".find(p => p.getAttribute('style').includes('--run-0'))).stroke"
    )
    ground = "return getComputedStyle(document.body).backgroundColor"
    for scheme, media, look in (("light", "", LIGHT), ("dark", "", DARK), ("dark", "print", LIGHT)):
        show(browser, whole, scheme=scheme, media=media)
        assert browser.execute_script(stroke) == rgb(look.runs[0])
        assert browser.execute_script(ground) == rgb(look.paper)


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))})"


def test_surfaces_turn_by_keys_buttons_and_dragging(browser: Any, whole: Path) -> None:
    show(browser, whole)
    canvas, *others = browser.find_elements(By.TAG_NAME, "canvas")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", canvas)
    seen, place = pixels(browser), browser.execute_script("return scrollY")
    for key in (Keys.ARROW_LEFT, Keys.ARROW_UP, Keys.ARROW_DOWN, Keys.ARROW_DOWN):
        canvas.send_keys(key)
        before, seen = seen, pixels(browser)
        assert all(a != b for a, b in zip(before, seen, strict=True))  # all of them turn together
    assert browser.execute_script("return scrollY") == place
    ActionChains(browser).drag_and_drop_by_offset(canvas, 60, 10).perform()
    assert pixels(browser) != seen
    left, right, *_, reset = browser.find_elements(By.CSS_SELECTOR, ".turn button")
    reset.click()
    start = pixels(browser)
    left.click()
    assert pixels(browser) != start
    right.click()
    others[0].send_keys(Keys.HOME)
    assert pixels(browser) == start


def test_tab_order(browser: Any, whole: Path) -> None:
    show(browser, whole)
    expected = browser.execute_script(
        "return [...document.querySelectorAll('a[href], button, summary, [tabindex=\"0\"]')]"
        ".filter(e => e.checkVisibility()).map(e => e.outerHTML.slice(0, 200))"
    )
    reached = []
    for _ in expected:
        ActionChains(browser).send_keys(Keys.TAB).perform()
        reached.append(browser.execute_script("return document.activeElement.outerHTML.slice(0, 200)"))
    assert reached == expected  # what is read first is reached first, and nothing is left out
    assert "Skip to the results" in reached[0]
    browser.execute_script("document.activeElement.blur(); scrollTo(0, 0)")


def test_the_skip_link_shows_itself_and_leads_past_the_header(browser: Any, whole: Path) -> None:
    show(browser, whole)
    ActionChains(browser).send_keys(Keys.TAB).perform()
    assert browser.execute_script("return document.activeElement.getBoundingClientRect().left") >= 0
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert browser.execute_script("return document.activeElement.id") == "main"


def test_no_request_but_for_the_file_itself(browser: Any, whole: Path) -> None:
    show(browser, whole)
    log = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in log if m["method"] == "Network.requestWillBeSent"]
    assert asked == [whole.as_uri()]
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0
    blocked = "return fetch('http://127.0.0.1:9/').then(() => 'asked', () => 'refused')"
    assert browser.execute_script(blocked) == "refused"


def test_paper_has_still_pictures_and_every_setting(browser: Any, whole: Path) -> None:
    show(browser, whole, media="print")
    visible = "return [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility()).length"
    assert browser.execute_script(visible, ".still svg") == 3
    assert browser.execute_script(visible, "canvas, nav, .turn button") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    paper = browser.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    assert len(paper["data"]) > 50_000


def test_a_killed_run_alone(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(gather([write_run(tmp_path / "one", steps=20, ended=False)])), encoding="utf-8")
    show(browser, file, width=360)
    assert browser.get_log("browser") == []
    assert len(browser.find_elements(By.CSS_SELECTOR, "figure svg")) == 3
