"""Comments as units: a vocabulary of public text, next-word models exact against the loop, the author as the unit."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reference import flat, gradient_loop
from safetensors.torch import save_file
from torch import Tensor, nn

import saltflat as sf
from saltflat.core.contribution import PerExample
from saltflat.data import Authors, Examples, Vocabulary, text
from saltflat.errors import DataError, SettingError
from saltflat.gradients import bare
from saltflat.models import next_word_loss, next_word_lstm, next_word_mlp
from saltflat.recipes import read, shipped
from saltflat.recipes.build import check_shapes, fitted, form_of, plan_of, warmed
from saltflat.runs.execute import execute, keep_evaluation, next_words, scores
from saltflat.runs.layout import Folder
from saltflat.runs.weights import initial

SENTENCES = ["the cat saw the dog .", "a dog saw a cat .", "the dog ran ."]
KNOWN = Vocabulary.of(SENTENCES, 8)
COMMENTS = ["The DOG ran", "zebra", "a cat saw the the the dog and ran away"]
REAL = Path(__file__).parents[2].parent / "shared" / "data"


def write(folder: Path, name: str, rows: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.tsv.gz").write_bytes(gzip.compress("".join(f"{row}\n" for row in rows).encode()))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    write(tmp_path / "text", "brown_sentences", [f"news\tca01\t{each}" for each in SENTENCES])
    for part in ("train", "test"):
        write(tmp_path / "text", f"goemotions_{part}", [f"{each}\t1\tid" for each in COMMENTS])
    return tmp_path


class TestWords:
    def test_the_same_words_in_other_dress(self) -> None:
        assert text.words("It’s “fine”") == text.words("it's `` fine ''") == ["it's", '"', "fine", '"']

    def test_frequent_ones_come_first_and_the_rest_is_left_out(self) -> None:
        assert KNOWN.words == (".", "dog", "the", "a", "cat", "saw", "ran")
        assert KNOWN.size == 8
        assert KNOWN.numbers("The zebra, a dog") == [3, 4, 2]

    @pytest.mark.parametrize("size", [1, 0, 2.5, True, "8"])
    def test_sizes_that_are_none(self, size: object) -> None:
        with pytest.raises(SettingError, match="size of 2 or more"):
            Vocabulary.of(SENTENCES, size)  # type: ignore[arg-type]

    def test_a_word_twice(self) -> None:
        with pytest.raises(SettingError, match="each of them once"):
            Vocabulary(("a", "a"))


class TestComments:
    def test_they_are_read_as_units(self, files: Path) -> None:
        split = text.reddit(files, vocabulary=KNOWN, length=4)
        inputs, targets = split.train.whole()
        assert inputs.tolist() == [[0, 3, 2, 7], [0, 0, 0, 0], [0, 4, 5, 6]]
        assert targets.tolist() == [[3, 2, 7, 0], [0, 0, 0, 0], [4, 5, 6, 3]]
        assert (split.classes, split.words, split.shape) == (8, 8, (4,))
        assert text.brown(files) == SENTENCES

    def test_a_comment_is_the_same_in_any_company(self) -> None:
        alone = [text.sequences([each], KNOWN).whole()[0] for each in COMMENTS]
        assert torch.equal(torch.cat(alone), text.sequences(COMMENTS, KNOWN).whole()[0])

    def test_the_vocabulary_is_not_of_the_comments(self, files: Path) -> None:
        write(files / "text", "goemotions_train", ["secret secret secret\t1\tid"])
        assert "secret" not in Vocabulary.of(text.brown(files), 8).words
        assert not text.reddit(files, vocabulary=KNOWN).train.targets.any()

    def test_messages_tell_no_words_and_places_only_if_asked_for(
        self, files: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write(files / "text", "goemotions_train", ["fine\t1\tid", "my secret"])
        with pytest.raises(DataError, match=r"a record .*: expected 3 cells") as caught:
            text.reddit(files, vocabulary=KNOWN)
        assert "line 2" not in str(caught.value)
        monkeypatch.setenv("SALTFLAT_NAME_RECORDS", "1")
        with pytest.raises(DataError, match="line 2: expected 3 cells") as caught:
            text.reddit(files, vocabulary=KNOWN)
        assert "secret" not in str(caught.value)
        (files / "text" / "goemotions_train.tsv.gz").write_bytes(gzip.compress(b"\xff\xfe\t1\t2\n"))
        with pytest.raises(DataError, match="no text in UTF-8"):
            text.reddit(files, vocabulary=KNOWN)

    def test_what_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"expected goemotions_train\.tsv"):
            text.reddit(tmp_path, vocabulary=KNOWN)
        with pytest.raises(DataError, match=r"expected brown_sentences\.tsv"):
            text.brown(tmp_path)

    def test_by_name_the_declared_vocabulary_must_be_there(self, files: Path) -> None:
        with pytest.raises(DataError, match="fewer words than the 36743"):
            sf.data.load("reddit", files)

    @pytest.mark.slow
    @pytest.mark.skipif(not (REAL / "text").is_dir(), reason="the shared data is not here")
    def test_the_real_files_have_their_published_sizes(self) -> None:
        split = sf.data.load("reddit", REAL)
        form = sf.data.official_form("reddit")
        assert (split.train.count, split.test.count) == (sf.data.official_size("reddit"), 5_427)
        assert (split.shape, split.words) == (form.shape, form.words) == ((20,), 36_743)


def every_word(model: nn.Module) -> PerExample:
    return sf.per_example(model, sf.supervised(next_word_loss))


NETWORKS = {
    "lstm": lambda: next_word_lstm(8),
    "mlp": lambda: next_word_mlp(8, context=3, every_position=True),
    "mlp, embedded": lambda: next_word_mlp(8, context=3, embedding_width=4, every_position=True),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_exact_against_the_loop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and weighted sums of comments' gradients equal the loop's, to 1e-9; no rule's slow path is taken."""
    told: list[str] = []
    monkeypatch.setattr(bare, "_tell_once", told.append)
    torch.manual_seed(0)
    wide = name != "mlp"  # whose inputs are words' numbers as float32
    model = NETWORKS[name]().double() if wide else NETWORKS[name]()
    close = {"rtol": 1e-9, "atol": 1e-12} if wide else {"rtol": 1e-4, "atol": 1e-5}
    batch = text.sequences(COMMENTS, KNOWN, length=6).whole()
    point = {name: p.detach() for name, p in model.named_parameters()}
    chunk = every_word(model)([point], [1.0], batch)
    alone = gradient_loop(model, point, *batch, next_word_loss)
    torch.testing.assert_close(chunk.norms(), alone.norm(dim=1), **close)
    weights = torch.tensor([0.3, 0.7, 1.1], dtype=alone.dtype)
    torch.testing.assert_close(flat(chunk.weighted_sum(weights)), weights @ alone, **close)
    assert float(chunk.norms()[1]) < 1e-12  # a comment without a known word
    assert told == []


def test_an_embedding_is_kept_by_its_touched_rows() -> None:
    """Of 36,743 rows a batch of 2 comments holds 2 x 5: no gradient of the table is ever made for a comment."""
    from saltflat.gradients.parts import Rows

    model = nn.Sequential(nn.Embedding(36_743, 256), nn.Linear(256, 3))
    inputs, targets = torch.randint(36_743, (2, 5)), torch.randint(1, 3, (2, 5))
    point = {name: p.detach() for name, p in model.named_parameters()}
    chunk = every_word(model)([point], [1.0], (inputs, targets))
    (rows,) = [part for part in chunk.parts if part.names == ("0.weight",)]
    assert isinstance(rows, Rows)
    assert rows.b.shape == (2, 5, 256)


class TestAuthors:
    @pytest.mark.parametrize(
        "authors", [[float("nan"), float("nan"), "ann"], torch.tensor([1, 1, 1]), ["a", None, "a"]]
    )
    def test_names_that_are_none(self, authors: Any) -> None:
        """No two NaN are equal, nor are two tensors: each comment would be an author."""
        with pytest.raises(DataError, match="texts or whole numbers"):
            Authors.of(text.sequences(COMMENTS, KNOWN, length=4), authors, rows=2)
        assert Authors.of(text.sequences(COMMENTS, KNOWN, length=4), np.array([7, 8, 7]), rows=2).count == 2

    def test_rows_are_the_authors_own(self) -> None:
        people = Authors.of(text.sequences(COMMENTS, KNOWN, length=4), ["ann", "bob", "ann"], rows=2)
        inputs, targets = people.take(np.array([0, 1]))
        assert people.count == 2
        assert inputs.tolist() == [[0, 3, 2, 7], [0, 4, 5, 6], [0, 0, 0, 0], [0, 0, 0, 0]]
        assert targets.shape == (4, 4)

    def test_more_comments_than_rows_are_left_out(self) -> None:
        people = Authors.of(text.sequences(COMMENTS, KNOWN, length=4), ["ann"] * 3, rows=1)
        assert people.take(np.array([0]))[0].tolist() == [[0, 3, 2, 7]]

    def test_an_author_moves_the_sum_by_one_clip(self) -> None:
        people = Authors.of(text.sequences(COMMENTS * 4, KNOWN, length=4), ["ann"] * 12, rows=12)
        model = next_word_lstm(8)
        contribution = sf.per_user(model, sf.supervised(next_word_loss), rows=people.rows)
        point = {name: p.detach() for name, p in model.named_parameters()}
        assert contribution([point], [1.0], people.take(np.array([0]))).norms().shape == (1,)
        assert contribution.unit == "user"

    def test_the_gate_lets_them_train(self) -> None:
        people = Authors.of(
            text.sequences(COMMENTS * 20, KNOWN, length=4), [str(k % 30) for k in range(60)], rows=2
        )
        model = next_word_lstm(8)
        phase = sf.Phase(
            method=sf.methods.DPSGD(),
            steps=2,
            noise_multiplier=1.0,
            clip_norm=1.0,
            optimizer=sf.optimizers.SGD(lr=0.1),
        )
        plan = sf.Plan(phases=(phase,), rate=0.2, size=30)
        sf.train(plan, sf.per_user(model, sf.supervised(next_word_loss), rows=2), people)

    def test_wrong_ones(self) -> None:
        comments = text.sequences(COMMENTS, KNOWN)
        with pytest.raises(DataError, match="one author"):
            Authors.of(comments, ["ann"], rows=2)
        with pytest.raises(SettingError, match="rows=0"):
            Authors.of(comments, ["ann"] * 3, rows=0)


class TestRecipes:
    def test_they_fit_their_networks(self) -> None:
        for name in ("reddit-lstm-dp-sgd", "reddit-lstm-dplis", "reddit-mlp-dp-sgd"):
            recipe = shipped(name)
            form = form_of(recipe)
            assert fitted(recipe, form).model.settings["vocabulary"] == 36_743
        check_shapes(shipped("reddit-lstm-dp-sgd"), form)

    def test_a_network_that_predicts_one_word(self) -> None:
        recipe = shipped("reddit-mlp-dp-sgd").but({"model": "next_word_mlp"})
        with pytest.raises(SettingError, match="at each of 20 positions"):
            check_shapes(recipe, form_of(recipe))

    @pytest.mark.parametrize("changed", [{"features": ["Scattering"]}, {"augment": ["Flip"]}])
    def test_what_is_for_images(self, changed: dict) -> None:
        with pytest.raises(SettingError, match="reddit is text"):
            shipped("reddit-lstm-dp-sgd").but(changed)

    def test_a_warm_start(self, tmp_path: Path) -> None:
        there = sf.models.linear(features=4, outputs=2)
        save_file(dict(there.state_dict()), tmp_path / "public.safetensors")
        recipe = shipped("digits").but(
            {
                "model": {"linear": {"features": 4, "outputs": 2}},
                "start": str(tmp_path / "public.safetensors"),
            }
        )
        own = warmed(recipe, sf.recipes.network_of(recipe))
        assert all(torch.equal(leaf, there.state_dict()[name]) for name, leaf in own.state_dict().items())
        other = recipe.but({"model": {"linear": {"features": 5, "outputs": 2}}})
        with pytest.raises(SettingError, match="does not hold the weights of linear"):
            warmed(other, sf.recipes.network_of(other))
        lost = recipe.but({"start": str(tmp_path / "none.safetensors")})
        with pytest.raises(SettingError, match="no file of safetensors"):
            warmed(lost, sf.recipes.network_of(lost))


def test_the_page_runs() -> None:
    page = Path(__file__).parents[2] / "docs" / "text.md"
    names: dict = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
        exec(compile(code, "text.md", "exec"), names)
    assert names["fitted"].epsilon <= 3


def test_a_run_from_public_weights_says_so(tmp_path: Path) -> None:
    """It begins there, and the statement names the file; the path that a landscape draws begins there too."""
    there = sf.models.linear(features=64, outputs=10)
    torch.nn.init.constant_(there[1].weight, 5.0)
    save_file(dict(there.state_dict()), tmp_path / "public.safetensors")
    start = str(tmp_path / "public.safetensors")
    changed = {"model": {"linear": {"features": 64, "outputs": 10}}, "start": start, "phase.0.epochs": 0.1}
    recipe = shipped("digits").but(changed)
    split, folder = sf.data.load("digits"), Folder(tmp_path / "run")
    outcome = execute(recipe, plan_of(recipe, 1437), split, folder)
    assert "the first weights, read from public.safetensors" in outcome.statement.as_text()
    assert float(sf.load_run(folder.path).model[1].weight.detach().mean()) > 3
    assert float(initial(read(folder.recipe))["1.weight"].mean()) == 5.0


class Certain(nn.Module):
    """Says the word after the input word's number, with all but no doubt."""

    def forward(self, tokens: Tensor) -> Tensor:
        return 50 * nn.functional.one_hot((tokens + 1) % 8, 8).float()


def test_perplexity_is_over_words(tmp_path: Path) -> None:
    right = Examples(torch.tensor([[0, 1, 2, 0]]), torch.tensor([[1, 2, 3, 0]]))
    assert next_words(Certain(), right, 2) == (1.0, pytest.approx(1.0))
    uniform = nn.Sequential(nn.Embedding(8, 8))
    nn.init.zeros_(uniform[0].weight)
    split = sf.data.Split(right, right, 8)
    accuracy, error, perplexity = scores(uniform, split, 2)
    assert error is None
    assert perplexity == pytest.approx(8.0)
    keep_evaluation(
        Folder(tmp_path), uniform, split, 2
    )  # words of one text depend on each other: no bits of them
    assert list(tmp_path.iterdir()) == []
    assert accuracy == 0.0
