"""The report in a real browser: it draws, it turns, it can be tabbed through, it asks for nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from folders import write_evaluation, write_landscape, write_run

from saltflat.report.folder import gather
from saltflat.report.look import DARK, LIGHT
from saltflat.report.page import page
from saltflat.report.plot import LEFT, RIGHT, WIDE

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


def show(
    browser: Any, file: Path, *, width: int = 1280, height: int = 800, scheme: str = "light", media: str = ""
) -> None:
    """Open the page in this width and colour scheme, and wait until it has drawn."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
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
        "return [...document.querySelectorAll('figure > svg, canvas')].filter(e => e.checkVisibility())"
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
    wide = browser.execute_script(
        "return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 "
        "&& !e.closest('.scroll') && !e.closest('svg') && !e.matches('.skip')).map(e => e.outerHTML.slice(0, 80))"
    )
    assert wide == []
    assert browser.execute_script("return document.documentElement.scrollWidth") == width


def test_colours_follow_the_scheme_and_paper_is_light(browser: Any, whole: Path) -> None:
    stroke = "return getComputedStyle(document.querySelector('figure .s[data-run=\"0\"] .line')).stroke"
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
    left, right, *_, reset, scale = browser.find_elements(By.CSS_SELECTOR, ".turn button")
    reset.click()
    start = pixels(browser)
    left.click()
    assert pixels(browser) != start
    right.click()
    others[0].send_keys(Keys.HOME)
    assert pixels(browser) == start
    scale.click()  # logarithmic and linear, and back
    assert pixels(browser) != start
    scale.click()
    assert pixels(browser) == start
    ActionChains(browser).move_to_element(canvas).perform()
    assert "DP-SAT: loss " in told(browser)


def told(browser: Any) -> str:
    """What the box beside the pointer says; nothing where it is hidden."""
    return browser.execute_script(
        "const t = document.querySelector('.tip'); return t.hidden ? '' : t.textContent"
    )


def chart_of(browser: Any, key: str) -> Any:
    """The chart of this figure that is shown, in the middle of the screen."""
    svg = browser.find_element(By.CSS_SELECTOR, f"figure[data-key='{key}'] > svg.chart:not([hidden])")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", svg)
    drawn(browser)
    return svg


def point_at_the_model(browser: Any, svg: Any) -> None:
    """The middle of the axes, which is not that of the picture."""
    away = ((LEFT + RIGHT) / 2 / WIDE - 0.5) * svg.rect["width"]
    ActionChains(browser).move_to_element_with_offset(svg, round(away), 0).perform()


def test_values_are_told_where_one_points(browser: Any, whole: Path) -> None:
    show(browser, whole)
    svg = chart_of(browser, "line-loss")
    point_at_the_model(browser, svg)
    said = told(browser)
    assert said.startswith("distance, in filter norms 0")
    assert "DP-SAT: 0.3" in said
    assert "_DP-SGD: 0.3" in said
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert told(browser) == ""
    browser.execute_script("arguments[0].focus()", svg)  # and without a pointer
    svg.send_keys(Keys.ARROW_RIGHT)
    first = told(browser)
    assert first.startswith("distance, in filter norms 0.02")  # on from where one pointed
    svg.send_keys(Keys.ARROW_RIGHT)
    assert told(browser) not in ("", first)
    chart_of(browser, "accuracy-training").send_keys(Keys.ARROW_RIGHT)
    assert " %" in told(browser)
    area = browser.find_element(By.CSS_SELECTOR, "figure[data-key='contours-1'] svg.map")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", area)
    ActionChains(browser).move_to_element_with_offset(area, -40, 0).perform()
    assert "DP-SAT: loss " in told(browser)


def test_a_run_is_hidden_everywhere_and_shown_again(browser: Any, whole: Path) -> None:
    show(browser, whole)
    seen = (
        'return [...document.querySelectorAll(\'.s[data-run="0"], figure[data-run="0"], .card[data-run="0"]\')]'
        ".filter(e => getComputedStyle(e).opacity !== '0' && getComputedStyle(e).display !== 'none').length"
    )
    before = browser.execute_script(seen)
    assert before > 8
    button = browser.find_element(By.CSS_SELECTOR, "header .key button[data-run='0']")
    button.click()
    assert browser.execute_script(seen) == 0
    pressed = "return [...document.querySelectorAll('button[data-run=\"0\"]')].map(b => b.ariaPressed)"
    assert set(browser.execute_script(pressed)) == {"false"}
    svg = chart_of(browser, "line-loss")
    point_at_the_model(browser, svg)
    assert "_DP-SGD: " in told(browser)
    assert "DP-SAT: " not in told(browser)
    browser.execute_script("arguments[0].click()", button)
    assert browser.execute_script(seen) == before


def test_tables_sort_by_numbers_and_by_words(browser: Any, whole: Path) -> None:
    show(browser, whole)
    column = (
        "const t = document.querySelector('#summary table'); const k = [...t.tHead.rows[0].cells].findIndex(c => "
        "c.textContent.startsWith(arguments[0])); return [...t.tBodies[0].rows].map(r => r.cells[k].textContent)"
    )
    press = (
        "const t = document.querySelector('#summary table'); [...t.tHead.rows[0].cells].find(c => "
        "c.textContent.startsWith(arguments[0])).querySelector('button').click()"
    )
    for _ in range(2):  # up, then down
        browser.execute_script(press, "epsilon")
        found = [float(value) for value in browser.execute_script(column, "epsilon")]
        assert found in (sorted(found), sorted(found, reverse=True))
    assert found == sorted(found, reverse=True)
    assert len(set(found)) > 1
    browser.execute_script(press, "method")
    words = browser.execute_script(column, "method")
    assert words == sorted(words)
    state = "return [...document.querySelectorAll('#summary th[aria-sort]')].map(h => h.ariaSort)"
    assert browser.execute_script(state) == ["ascending"]


def test_a_chart_has_another_scale(browser: Any, whole: Path) -> None:
    show(browser, whole)
    figure = browser.find_element(By.CSS_SELECTOR, "figure[data-key='spectrum']")
    text = "return arguments[0].querySelector('svg.chart:not([hidden])').textContent"
    assert "density (logarithmic)" in browser.execute_script(text, figure)
    button = figure.find_element(By.CSS_SELECTOR, "button.scale")
    assert button.text == "Linear"
    browser.execute_script("arguments[0].click()", button)
    assert "density (linear)" in browser.execute_script(text, figure)
    assert button.text == "Logarithmic"


QUESTIONS = ("Better", "How sure", "Epsilon of each", "All together", "Flatter")


@pytest.mark.parametrize(("width", "height"), [(1400, 900), (390, 844)])
def test_five_questions_are_answered_on_the_first_screen(
    browser: Any, tmp_path: Path, width: int, height: int
) -> None:
    """Which is better, by how much and how sure, at what epsilon and unit, what all cost, which is flatter."""
    right = np.arange(360) < 330
    one = write_landscape(write_run(tmp_path / "DP-SAT"), sharp=0.6)
    two = write_landscape(write_run(tmp_path / "DP-SGD", method="dp-sgd"))
    file = tmp_path / "report.html"
    runs = gather([write_evaluation(one, right), write_evaluation(two, np.roll(right, 3))])
    file.write_text(page(runs), encoding="utf-8")
    show(browser, file, width=width, height=height)
    found = browser.execute_script(
        "return [...document.querySelectorAll('.answers dt')].map(d => [d.textContent, "
        "d.nextElementSibling.textContent, d.nextElementSibling.getBoundingClientRect().bottom])"
    )
    assert [question for question, *_ in found] == list(QUESTIONS)
    assert max(bottom for *_, bottom in found) <= height
    wrapped = "return [...document.querySelectorAll('.card dt')].filter(d => d.getClientRects()[0].height > 24).length"
    assert browser.execute_script(wrapped) == 0
    answers = {question: answer for question, answer, _ in found}
    assert "91.7 %" in answers["Better"]
    assert "p = " in answers["How sure"]
    assert "unit: one example" in answers["Epsilon of each"]
    assert "Epsilon " in answers["All together"]
    assert "Largest eigenvalue: DP-SAT 40 % lower" in answers["Flatter"]


def test_every_word_and_line_has_contrast_in_the_dark(browser: Any, whole: Path) -> None:
    """The colours that are really there, of text, borders, lines and bands, against the page: at least 3 to 1."""
    show(browser, whole, scheme="dark")
    colours = browser.execute_script(
        "const found = new Set(); for (const e of document.querySelectorAll('body *')) {"
        " if (!e.checkVisibility() || e.closest('.tip, script, canvas')) continue; const s = getComputedStyle(e);"
        " if (e instanceof SVGElement) { if (s.stroke.startsWith('rgb') && e.matches('path, rect, circle, use'))"
        " found.add(s.stroke); if (s.fill.startsWith('rgb') && e.matches('.bands path, .bar rect, use'))"
        " found.add(s.fill);"
        " if (e.matches('text')) found.add(s.fill); } else { if (e.firstChild?.nodeType === 3) found.add(s.color);"
        " if (parseFloat(s.borderBottomWidth) && e.matches('th, td, h2, .card')) found.add(s.borderBottomColor); } }"
        " return [...found]"
    )
    plain = {each for each in colours if each.startswith("rgb(")}
    ground = rgb(DARK.paper)
    assert len(plain) > 15
    assert {each: ratio(each, ground) for each in plain - {ground} if ratio(each, ground) < 3} == {}


def ratio(one: str, other: str) -> float:
    """The contrast of two colours as a browser writes them."""
    bright = []
    for code in (one, other):
        parts = np.array([float(part) for part in code[4:-1].split(",")]) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        bright.append(float(np.dot([0.2126, 0.7152, 0.0722], linear)))
    return (max(bright) + 0.05) / (min(bright) + 0.05)


def test_a_phone_shows_tables_as_cards(browser: Any, whole: Path) -> None:
    show(browser, whole, width=390, height=844)
    cell = browser.find_element(By.CSS_SELECTOR, "#summary td")
    label = "return getComputedStyle(arguments[0], '::before').content"
    assert browser.execute_script(label, cell).strip('"') == cell.get_attribute("data-label")
    assert cell.value_of_css_property("display") == "grid"


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
    assert browser.execute_script(visible, "canvas, nav, .turn button, .scale") == 0
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    paper = browser.execute_cdp_cmd("Page.printToPDF", {"paperWidth": 8.27, "paperHeight": 11.69})
    assert len(paper["data"]) > 50_000


def test_a_killed_run_alone(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page(gather([write_run(tmp_path / "one", steps=20, ended=False)])), encoding="utf-8")
    show(browser, file, width=360)
    assert browser.get_log("browser") == []
    assert len(browser.find_elements(By.CSS_SELECTOR, "figure > svg")) == 3
