"""The model card: front matter that machines read, the statement, and nothing private."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import EVIL
from folders import RATE, write_landscape, write_run, write_statement

from saltflat.errors import SettingError
from saltflat.privacy.record.ledger import Ledger
from saltflat.report.card import card
from saltflat.report.folder import gather


def front(text: str) -> dict:
    """The front matter: each value is JSON, which is YAML too."""
    _, matter, _ = text.split("---\n", 2)
    return {
        key: json.loads(value) for key, _, value in (line.partition(": ") for line in matter.splitlines())
    }


def test_a_card(tmp_path: Path) -> None:
    path = write_landscape(write_run(tmp_path / "one"))
    text = card(gather([path]))
    facts = front(text)
    assert facts["tags"] == ["differential-privacy", "saltflat", "SAT"]
    assert facts["pipeline_tag"] == "image-classification"
    (result,) = facts["model-index"][0]["results"]
    assert result["dataset"]["name"] == "digits"
    assert result["metrics"] == [{"type": "accuracy", "value": 0.8868, "name": "test accuracy"}]
    for words in (
        "(1.03, 1e-05)-differentially private for each example (adjacency: add or remove one unit)",
        "| epsilon | 1.026 |",
        "| sampling | Poisson sampling at rate 0.25 |",
        "Not covered: ",
        "| phase.0.clip\\_norm | 0.1 |",
        "| weight norm | 7.25 |",
        "from saltflat.models import digits_cnn",
    ):
        assert words in text


def test_the_code_in_it_loads_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    from saltflat.models import digits_cnn

    path = write_run(tmp_path / "one")
    save_file(digits_cnn().state_dict(), str(path / "model.safetensors"))
    code = card(gather([path])).split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(path)
    exec(compile(code, "card", "exec"), {})


def test_the_code_in_it_has_the_networks_settings(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    text = (path / "recipe.toml").read_text()
    changed = text.replace('"digits_cnn"', "{tutorial_cnn = {in_channels = 3, side = 32}}")
    (path / "recipe.toml").write_text(changed)
    assert "\nmodel = tutorial_cnn(in_channels=3, side=32)\n" in card(gather([path]))


def test_nothing_measured_on_private_data_is_in_it(tmp_path: Path) -> None:
    path = write_landscape(write_run(tmp_path / "one"), status="private: keep this file")
    text = card(gather([path]))
    assert "Flatness" not in text
    assert "weight norm" not in text


def test_it_says_what_was_spent_and_what_is_in_doubt(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    other = write_run(tmp_path / "two")
    with Ledger.open(path / "ledger.jsonl", dataset="digits") as book:
        book.run("again").charge(RATE, 2.0, steps=3)
    text = card(gather([path, other]))
    assert "**The ledger has epsilon" in text
    assert "compared with 1 other on the same data" in text
    (path / "ledger.jsonl").write_bytes(b"")
    assert "**The ledger cannot confirm this" in card(gather([path]))


def test_a_seeded_run_has_no_guarantee(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    write_statement(path, stamp="NOT PRIVATE: seeded")
    text = card(gather([path]))
    assert "**NOT PRIVATE: seeded. This model has no privacy guarantee.**" in text
    assert "| epsilon | NOT PRIVATE: seeded |" in text


def test_plain_words_come_before_the_technical_statement(tmp_path: Path) -> None:
    text = card(gather([write_run(tmp_path / "one")]))
    assert text.index("### In plain words") < text.index("coin flip") < text.index("### Technical statement")
    assert "| right guesses about one unit | at most " in text


def test_a_run_that_ended_at_no_number_has_no_result(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 44, "accuracy": NaN}\n')
    text = card(gather([path]))
    assert "model-index" not in front(text)
    assert "Test accuracy: not a number at the end (step 44)." in text


def test_names_stay_text(tmp_path: Path) -> None:
    path = write_run(tmp_path / (EVIL.replace("/", "\N{FRACTION SLASH}") + "|*x*"))
    text = card(gather([path]))
    assert front(text)["model-index"][0]["name"] == path.name
    assert "<script>" not in text.split("---\n", 2)[2]
    assert "\\<script\\>" in text


def test_a_run_without_an_end_has_no_card(tmp_path: Path) -> None:
    path = write_run(tmp_path / "one", ended=False)
    with pytest.raises(SettingError, match=r"no model card of .* it has not ended"):
        card(gather([path]))
