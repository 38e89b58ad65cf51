"""The code in docs/opacus.md, hugging_face.md, lightning.md and small_data.md runs as printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import vision

import saltflat as sf
from saltflat.errors import PrivacyError

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.S)


def run(page: str, code: str, names: dict[str, Any] | None = None) -> dict[str, Any]:
    names = {} if names is None else names
    exec(compile(code, page, "exec"), names)
    return names


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Pages write files; not here."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class TestOpacus:
    def test_ours(self, capsys: pytest.CaptureFixture[str]) -> None:
        _, ours = blocks("opacus.md")
        private = run("opacus.md", ours)["private"]
        assert private.finished
        assert 2.97 <= private.epsilon() <= 3
        assert "differentially private for each example" in capsys.readouterr().out

    @pytest.mark.slow
    def test_theirs(self) -> None:
        """Both sides take as many steps."""
        pytest.importorskip("opacus", reason="opacus is not installed: pip install '.[bench]'")
        theirs, ours = blocks("opacus.md")
        loader = run("opacus.md", theirs)["loader"]
        assert 2 * len(loader) == run("opacus.md", ours)["private"].done

    def test_the_answer_is_the_one_that_is_given(self) -> None:
        (shown,) = re.findall(r"UnknownSettingError: (.*)\n", (DOCS / "opacus.md").read_text())
        with pytest.raises(TypeError) as caught:
            sf.fit(None, None, None, target_epsilon=3)  # type: ignore[call-arg, arg-type]
        assert str(caught.value) == shown

    def test_every_word_of_ours_exists(self) -> None:
        for path in set(re.findall(r"\bsf\.([\w.]+)", (DOCS / "opacus.md").read_text())):
            value: Any = sf
            for part in path.split("."):
                value = getattr(value, part)


@pytest.mark.slow
class TestOthers:
    @pytest.fixture(autouse=True)
    def _importable(self) -> None:
        vision.make_importable()

    def test_hugging_face(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("transformers", reason="transformers is not installed")
        _, first, second = blocks("hugging_face.md")
        names = run("hugging_face.md", first)
        assert names["fitted"].epsilon <= 8
        assert (elsewhere / "private-bert" / "config.json").exists()
        names = run("hugging_face.md", second, names)
        assert names["private"].finished
        assert "step 4 of 4: epsilon" in capsys.readouterr().out

    def test_the_trainer(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """As printed; and without privacy it raises before anything is trained."""
        for package in ("transformers", "accelerate"):
            pytest.importorskip(package, reason=f"{package} is not installed")
        code, *_ = blocks("hugging_face.md")
        names = run("hugging_face.md", code)
        assert names["trainer"].private.finished
        assert (elsewhere / "private-bert" / "checkpoint-4" / "private.pt").exists()
        assert "differentially private for each example" in capsys.readouterr().out
        with pytest.raises(PrivacyError, match="privacy is not attached"):
            run("hugging_face.md", code.replace("privacy={", "# privacy={"))

    def test_lightning(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Twenty steps; then from a checkpoint after two of them, with what may have been lost counted."""
        lightning = pytest.importorskip("lightning", reason="lightning is not installed")
        (code, _) = blocks("lightning.md")
        names = run("lightning.md", code)
        assert names["module"].private.done == 20
        assert 2.97 <= names["module"].private.epsilon() <= 3
        assert "differentially private for each example" in capsys.readouterr().out
        with pytest.raises(PrivacyError, match="privacy is not attached"):
            run("lightning.md", code.replace(', privacy={"epsilon": 3, "epochs": 10}', ""))
        quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
        made = lambda: names["Classifier"](
            names["model"],
            names["loss"],
            (names["x"][:2000], names["y"][:2000]),
            privacy={"epsilon": 3, "epochs": 10},
        )
        begun, again, other = lightning.Trainer(max_epochs=1, **quiet), made(), made()
        begun.fit(again)
        begun.save_checkpoint("begun.ckpt")
        lightning.Trainer(max_epochs=20, **quiet).fit(other, ckpt_path="begun.ckpt", weights_only=True)
        assert other.private.done == 20
        assert other.private.statement.epsilon > 3  # those that may have run, and run again

    def test_accelerate(self, elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
        pytest.importorskip("accelerate", reason="accelerate is not installed")
        _, code = blocks("lightning.md")
        names = run("lightning.md", code)
        assert names["private"].finished
        assert "epsilon" in capsys.readouterr().out
        fresh = names["sf"].make_private(
            names["model"],
            names["loss"],
            (names["x"], names["y"]),
            optimizer=names["optimizer"],
            epsilon=3,
            epochs=4,
        )
        names["accelerator"]._custom_objects[:] = [fresh]
        names["accelerator"].load_state("kept")
        assert fresh.finished


class TestSmallData:
    def test_the_page(self, capsys: pytest.CaptureFixture[str]) -> None:
        (code,) = blocks("small_data.md")
        names = run("small_data.md", code)
        assert 2.97 <= names["fitted"].epsilon <= 3
        assert names["baseline"].statement.stamp.startswith("NOT PRIVATE")
        assert capsys.readouterr().out.startswith("PRIVATE, for this screen only")

    def test_what_is_chosen_is_what_it_says(self) -> None:
        from saltflat.front.given import Settings

        text = (DOCS / "small_data.md").read_text().split("## What is chosen for you")[1]
        rows = re.findall(r"^\| ([\d,]+) \| ([\d,]+) \| (\d+) \| ([\d,]+) \| (\S+) \|$", text, flags=re.M)
        assert len(rows) == 4
        for size, batch, epochs, steps, delta in rows:
            number = lambda word: int(word.replace(",", ""))
            ready = Settings(noise_multiplier=1.0).planned(number(size))
            assert ready.plan.expected_units == pytest.approx(number(batch))
            assert ready.plan.steps == number(steps) == round(int(epochs) * number(size) / number(batch))
            assert ready.delta == float(delta)

    @pytest.mark.slow
    def test_the_quick_start_is_of_use_on_few_rows_and_on_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Well above guessing on 200 rows, and near the baseline on 2,000: as the page says, with room for chance."""
        monkeypatch.syspath_prepend(str(ROOT / "experiments"))
        import small_data

        mean = lambda size, epsilon: sum(small_data.measured(size, s, epsilon).accuracy for s in range(3)) / 3
        assert mean(200, 3.0) > 0.7
        assert mean(2_000, 3.0) > mean(2_000, None) - 0.03
        assert small_data.measured(20_000, 0, 3.0).accuracy > 0.83

    def test_the_experiment_prints_a_table(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(str(ROOT / "experiments"))
        import small_data

        said: list[str] = []
        small_data.main(["--sizes", "60", "--epsilon", "3", "--seeds", "1"], said.append)
        assert said[0] == small_data.HEAD
        assert [line.split("|")[1:3] for line in said[2:]] == [[" 60 ", " 3 "], [" 60 ", " - "]]
        assert all(0 <= float(line.split("|")[6]) <= 1 for line in said[2:])
