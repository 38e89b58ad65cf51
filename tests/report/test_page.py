"""What the page says, that it is well-formed, and that nothing in a folder becomes markup."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import EVIL, LONG
from folders import RATE, without_pictures, write_landscape, write_metrics, write_run, write_statement

from saltflat.privacy.record.ledger import Ledger
from saltflat.report import words as said
from saltflat.report.folder import gather
from saltflat.report.page import page
from saltflat.report.sections import SECTIONS

VOID = {"meta", "br", "hr", "img", "col"}


class Outline(HTMLParser):
    """The elements of a page, checked for nesting, and its text by id of the section."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.sections: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "section":
            self.sections[str(dict(attrs)["id"])] = ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"script", "style", "svg"} & set(self.open):
            self.words += data
            if "section" in self.open:
                self.sections[list(self.sections)[-1]] += data

    def all(self, *tags: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in tags]


def outline(text: str) -> Outline:
    found = Outline()
    found.feed(text)
    assert found.open == []
    return found


@pytest.fixture(scope="module")
def full(whole: Path) -> Outline:
    return outline(whole.read_text(encoding="utf-8"))


def test_one_heading_landmarks_and_a_way_past_them(full: Outline) -> None:
    assert (
        len(full.all("h1")) == len(full.all("main")) == len(full.all("nav")) == len(full.all("footer")) == 1
    )
    assert full.all("html") == [{"lang": "en"}]
    assert full.all("a")[0] == {"href": "#main", "class": "skip"}
    assert full.all("meta")[2]["content"] == "width=device-width, initial-scale=1"
    targets = [str(a["href"])[1:] for a in full.all("a")]
    ids = [attributes["id"] for _, attributes in full.elements if "id" in attributes]
    assert set(targets) <= set(ids)
    kinds = (
        "repeats",
        "sweep",
        "clients",
        "pate",
        "synthetic",
        "before",
        "features",
    )  # for runs of these kinds alone
    assert (
        len(full.sections) == len(SECTIONS) - len(kinds) == len([t for t in targets if "mark-" not in t]) - 1
    )
    assert next(iter(full.sections)) == "landscapes"


def test_ids_are_unique_and_references_lead_somewhere(whole: Path, full: Outline) -> None:
    ids = [attributes["id"] for _, attributes in full.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    text = whole.read_text(encoding="utf-8")
    used = set(re.findall(r"url\(#([^)]*)\)", text)) | set(re.findall(r'href="#([^"]*)"', text))
    assert len(used) > 12
    assert used <= set(ids)


def test_figures_have_captions_and_names(full: Outline) -> None:
    assert len(full.all("figure")) == len(full.all("figcaption")) == 3 + 2 + 3 + 3 + 2 + 1 + 2 + 1
    pictures = [svg for svg in full.all("svg") if "aria-hidden" not in svg and "x" not in svg]
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in pictures)
    assert len(full.all("canvas")) == 3
    assert all(canvas["tabindex"] == "0" and canvas["aria-label"] for canvas in full.all("canvas"))


def test_tables_have_headers_with_a_scope_and_a_box_to_scroll_in(full: Outline) -> None:
    assert {th["scope"] for th in full.all("th")} == {"col", "row"}
    boxes = [div for div in full.all("div") if div.get("class") == "scroll"]
    assert len(boxes) == len(full.all("table")) == len(full.all("caption"))
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)


def test_nothing_is_loaded_from_anywhere(whole: Path, full: Outline) -> None:
    for _, attributes in full.elements:
        assert not {"src", "srcset", "background", "action", "data"} & attributes.keys()
        assert str(attributes.get("href") or attributes.get("xlink:href") or "#").startswith("#")
    assert not re.search(r"@import|url\((?!#)", whole.read_text(encoding="utf-8"))
    assert "default-src 'none'" in str(full.all("meta")[1]["content"])


def test_names_and_settings_never_become_markup(whole: Path, full: Outline) -> None:
    kinds = [(script.get("type"), script.get("id")) for script in full.all("script")]
    assert kinds == [("application/json", "surface-data"), (None, None), (None, None)]
    text = whole.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert EVIL.replace("/", "\N{FRACTION SLASH}") in full.words
    data = json.loads(text.split('id="surface-data">')[1].split("</script>")[0])
    assert data["surfaces"][2]["name"] == EVIL.replace("/", "\N{FRACTION SLASH}")


def test_every_fact_beside_an_epsilon(full: Outline) -> None:
    summary = full.sections["summary"]
    assert summary.count("1.026") >= 3
    for words in ("10⁻⁵", "one example", "add or remove one unit", "Poisson sampling at rate 0.25"):
        assert (
            summary.count(words) <= 2
        )  # what is the same for all is said once, and once with the joint epsilon
        assert words in summary
    assert "empty: the folder holds no run" in summary
    assert "not finished: last reading at step 20" in summary
    assert f"saltflat train --resume --out {full_path(full, LONG)}" in summary
    assert "All togetherEpsilon " in full.words
    assert "for all 4 runs on digits" in full.words


def full_path(full: Outline, name: str) -> str:
    (path,) = set(re.findall(rf"--out (\S*{name})", full.words))
    return path


def test_every_section_says_what_is_missing_and_what_makes_it(full: Outline) -> None:
    for section, file in (
        ("landscapes", "landscape/line.npz and no landscape/surface.npz"),
        ("spectra", "landscape/spectrum.npz"),
        ("measures", "landscape/measures.json and no landscape/gradients.json"),
    ):
        assert f"No {file} of {LONG}, empty: saltflat landscape " in full.sections[section]
    assert "No readings (metrics.jsonl) of empty" in full.sections["training"]
    assert "No recipe.toml of empty" in full.sections["configuration"]
    assert "No ledger.jsonl in" in full.sections["ledger"]
    assert "No audit (audit.json) of" in full.sections["audit"]
    assert f"saltflat audit {full_path(full, LONG)}/recipe.toml --out" in full.sections["audit"]
    assert full.sections["statements"].count("no statement.json") == 2
    assert "on record so far" in full.sections["statements"]


def test_settings_that_differ_come_first_and_all_can_be_seen(full: Outline) -> None:
    first, rest = re.split(r"All \d+ settings", full.sections["configuration"])
    assert "methodSATDPSGDSATSAT" in first
    assert "phase.0.method.SAT.radius0.03–0.30.03" in first
    assert "clip_norm" not in first
    assert "phase.0.clip_norm0.1" in rest  # once for all
    assert not re.search(r"phase\.0\.method(?!\.)", first + rest)  # the row "method" says it


def test_the_ledgers_history(full: Outline) -> None:
    words = full.sections["ledger"]
    assert words.count("Whole: 4 lines") == 4
    assert "a run" in words
    assert "34.2 % of the budget, epsilon 3 at delta 10⁻⁵" in words


def one_page(*paths: Path) -> Outline:
    return outline(page(gather(paths)))


def test_a_run_that_cost_more_than_its_statement_says(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    with Ledger.open(path / "ledger.jsonl", dataset="digits") as book:
        book.run("again").charge(RATE, 2.0, steps=3)
    found = one_page(path)
    assert "more was spent. The ledger has epsilon" in found.sections["statements"]
    assert "above the statement's" in found.sections["summary"]


def test_what_must_be_seen_first(tmp_path: Path) -> None:
    bad = without_pictures(write_landscape(write_run(tmp_path / "bad"), status="private: keep this file"))
    write_statement(bad, stamp="NOT PRIVATE: seeded")
    (bad / "ledger.jsonl.head").write_text("{}")
    header = one_page(bad).words.split("Better")[0]
    assert "bad is NOT PRIVATE: seeded" in header
    assert "bad: ledger damaged." in header
    assert "Keep private." in header
    assert (
        "Keep private" not in one_page(without_pictures(write_landscape(write_run(tmp_path / "good")))).words
    )


def test_plain_words_and_the_trade_off_curve_come_before_the_technical_statement(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    html = page(gather([path]))
    found = one_page(path).sections["statements"]
    assert found.index("In plain words") < found.index("coin flip") < found.index("Technical statement")
    assert "at 1 % false positives" in found
    assert 'data-y="true positive rate"' in html
    assert 'stroke-dasharray="4 3"' in html  # accusing at random
    more = write_run(tmp_path / "more")
    write_statement(more, stamp="NOT PRIVATE: seeded")
    assert 'data-y="true positive rate"' not in page(gather([more]))


def test_a_statement_of_an_older_version_has_neither(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    facts = json.loads((path / "statement.json").read_text())
    for name in ("tradeoff", "posteriors", "risk_source"):
        del facts[name]
    (path / "statement.json").write_text(json.dumps(facts))
    html = page(gather([path]))
    assert "In plain words" not in html
    assert 'data-y="true positive rate"' not in html
    assert "is right with probability at most" in one_page(path).sections["statements"]


def test_a_limit_is_not_shown_of_a_run_that_cost_more(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    assert "at most" in said.guesses(gather([path])[0])
    with Ledger.open(path / "ledger.jsonl", dataset="digits") as book:
        book.run("again").charge(RATE, 2.0, steps=3)
    assert said.guesses(gather([path])[0]) == "unknown"
    assert 'data-y="true positive rate"' not in page(gather([path]))


def test_measures_that_cannot_be_compared(tmp_path: Path) -> None:
    paths = [without_pictures(write_landscape(write_run(tmp_path / name))) for name in ("one", "two")]
    assert "not comparable" not in one_page(*paths).words
    file = paths[1] / "landscape" / "measures.json"
    file.write_text(file.read_text().replace("1f2e3d4c", "99999999").replace("float64", "float32"))
    words = one_page(*paths).sections["measures"]
    assert "These measures are not comparable: they differ in examples' hash, precision." in words


def test_a_hint_names_the_settings_that_fit_what_is_there(tmp_path: Path) -> None:
    path = without_pictures(write_landscape(write_run(tmp_path / "one")))
    words = one_page(path).sections
    assert "saltflat landscape --only line,surface --examples 360 --float64 " in words["landscapes"]
    assert "saltflat landscape --only spectrum --examples 360 --float64 " in words["spectra"]


def test_a_run_of_another_version(tmp_path: Path) -> None:
    path = without_pictures(write_landscape(write_run(tmp_path / "one")))
    (path / "recipe.toml").write_text('colour = "<b>blue</b>"\n')
    (path / "metrics.jsonl").write_text(
        '{"step": 3, "accuracy": 0.5, "loss": 2}\n{"step": 6, "accuracy": 0.6'
    )
    write_statement(path, renamed=[1, "<i>two</i>"], epsilon=2.0)
    file = path / "landscape" / "measures.json"
    file.write_text(
        json.dumps({"status": "public", "bumpiness": 3.25, "loss": "low", "noise_tolerance": [[1], 2]})
    )
    found = one_page(path)
    assert "written by another version" in found.sections["configuration"]
    assert "<b>blue</b>" in found.sections["configuration"]  # as text
    assert not found.all("b", "i")
    assert "left out line 2" in found.sections["training"]
    assert "renamed: 1; <i>two</i>" in found.sections["statements"]
    assert "bumpiness" in found.sections["measures"]
    assert "3.25" in found.sections["measures"]


def test_a_run_killed_before_anything_was_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one", steps=2, ended=False)
    (path / "metrics.jsonl").write_bytes(b'{"st')
    found = one_page(path)
    assert "not finished: no reading yet" in found.sections["summary"]
    assert not found.all("figure")


def test_the_same_folders_give_the_same_bytes(tmp_path: Path) -> None:
    path = write_landscape(write_run(tmp_path / "one"))
    assert page(gather([path])) == page(gather([path]))


def test_a_run_that_ended_at_no_number_shows_no_older_figure(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 44, "epoch": 11.0, "accuracy": NaN}\n')
    found = one_page(path)
    assert "onenot a number at the end (step 44)–1.026" in found.sections["summary"]
    for section in ("summary", "accuracy"):
        assert "88.6" not in found.sections[section]
    assert "then not a number" in found.sections["training"]


def test_readings_on_the_way_are_drawn_once(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    before = page(gather([path]))
    write_metrics(path, [40])  # the last step ran again: two lines, one point
    assert page(gather([path])) == before
