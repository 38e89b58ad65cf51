"""Features of public models: computed once, each example by itself, and the statement says whose they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import vision
from safetensors.torch import save_file
from torch import Tensor, nn

import saltflat as sf
from saltflat.data import Examples, Split
from saltflat.errors import ModelError, SettingError
from saltflat.features import Pretrained, RowScaled, built, described, featured, transferred

DROPPED = nn.Sequential(nn.Flatten(), nn.Linear(12, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU())


def split(shape: tuple[int, ...] = (3, 2, 2), count: int = 70) -> Split:
    source = torch.Generator().manual_seed(0)
    make = lambda n: Examples(torch.rand(n, *shape, generator=source), torch.arange(n) % 2)
    return Split(make(count), make(10), 2)


def test_features_are_those_of_the_model_in_eval_mode() -> None:
    there = split()
    found = transferred(there, DROPPED.train(), name="a net")
    expected = DROPPED.eval()(there.train.inputs)
    torch.testing.assert_close(found.train.inputs, expected.detach(), rtol=1e-5, atol=1e-6)
    assert found.train.inputs.requires_grad is False
    assert found.shape == (6,)
    assert torch.equal(found.train.targets, there.train.targets)


def test_the_model_stays_as_it_was() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12)).train()
    before = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    transferred(split(), model, name="a net")
    assert model.training
    assert all(torch.equal(leaf, before[name]) for name, leaf in model.state_dict().items())


def test_they_are_computed_once(tmp_path: Path) -> None:
    seen: list[int] = []
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    watch = lambda done, total: seen.append(done)
    first = transferred(split(), model, name="a net", cache=tmp_path, watch=watch)
    count = len(seen)
    again = transferred(split(), model, name="a net", cache=tmp_path, watch=watch)
    assert count > 0
    assert len(seen) == count
    assert seen[-1] == 80
    assert torch.equal(first.train.inputs, again.train.inputs)
    assert {oct(file.stat().st_mode)[-3:] for file in tmp_path.rglob("*.npy")} == {"600"}
    nn.init.ones_(model[1].weight)  # other weights, other features
    other = transferred(split(), model, name="a net", cache=tmp_path, watch=watch)
    assert not torch.equal(other.train.inputs, first.train.inputs)


def test_a_pick_of_ones_own_is_never_taken_for_another(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 4))
    halves = [
        transferred(split(), model, name="a net", cache=tmp_path, pick=pick).train.inputs
        for pick in (lambda found: found[:, :2], lambda found: found[:, 2:])
    ]
    assert not torch.equal(*halves)


class Mixed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) - x.flatten(1).mean(0)


class Random(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1) + torch.randn(len(x), 1)


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.sum += x.sum()
        return x.flatten(1)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Mixed(), "mixes examples"),
        (Random(), "or by chance"),
        (Remembers(), "keeps something"),
        (nn.Flatten(0), "one row of features"),
        (nn.Linear(5, 2), "does not take examples of shape"),
        (len, "an nn.Module"),
    ],
)
def test_what_is_refused(model: Any, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        transferred(split(), model, name="a net")


def test_it_needs_a_name() -> None:
    with pytest.raises(SettingError, match="name is empty"):
        transferred(split(), DROPPED, name=" ")


def test_the_statement_says_whose_features_they_are() -> None:
    found = transferred(split(count=200), nn.Sequential(nn.Flatten(), nn.Linear(12, 4)), name="a random net")
    head = sf.models.transfer_head(4, 8, 2)
    criterion = nn.CrossEntropyLoss(reduction="none")
    fitted = sf.fit(head, criterion, found.train, epsilon=8, epochs=1, quiet=True)
    text = fitted.statement.as_text()
    assert "Features: a random net, a model declared to be made from public data alone" in text
    assert "protect no one whom they were made from" in text
    optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
    loop = sf.make_private(head, criterion, found.train, optimizer=optimizer, epsilon=8, epochs=1)
    assert "a random net" in loop.statement.as_text()
    plain = sf.fit(
        nn.Linear(5, 2), criterion, (torch.randn(200, 5), torch.arange(200) % 2), epsilon=8, epochs=1
    )
    assert "Features" not in plain.statement.as_text()


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "transfer.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S)
    exec(compile(code, "transfer.md", "exec"), {})
    assert "Features: a random convolution, a model declared" in capsys.readouterr().out


@pytest.mark.slow
class TestPretrained:
    def test_wrong_settings(self) -> None:
        for given, says in (
            ({"source": "keras"}, "source is one of"),
            ({"name": ""}, "name is empty"),
            ({"width": 0}, "width is a whole number"),
            ({"weights": ""}, "weights are missing"),
        ):
            with pytest.raises(SettingError, match=says):
                Pretrained(**{"source": "timm", "name": "a", "width": 3, "weights": "hub"} | given)

    def test_of_transformers(self, tmp_path: Path) -> None:
        vision.make_importable()
        hf = pytest.importorskip("transformers", reason="transformers is not installed")
        torch.manual_seed(0)
        small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        hf.ViTModel(hf.ViTConfig(**small, image_size=16, patch_size=8)).save_pretrained(tmp_path)
        stages = [Pretrained("transformers", str(tmp_path), width=8, side=16), RowScaled()]
        found = featured(split((1, 12, 12)), stages)
        assert found.shape == (8, 1, 1)
        assert "declared to be made from public data alone" in described(stages)
        assert found.train.features == described(stages)
        with pytest.raises(SettingError, match="gives 8 features"):
            built([Pretrained("transformers", str(tmp_path), width=9, side=16)], (3, 16, 16))
        with pytest.raises(SettingError, match="cannot be loaded"):
            built([Pretrained("transformers", str(tmp_path / "none"), width=9, side=16)], (3, 16, 16))

    def test_of_timm(self, tmp_path: Path) -> None:
        vision.make_importable()
        timm = pytest.importorskip("timm", reason="timm is not installed")
        torch.manual_seed(0)
        model = timm.create_model("test_vit", pretrained=False, num_classes=0)
        file = tmp_path / "vit.safetensors"
        save_file(model.state_dict(), file)
        stage = Pretrained("timm", "test_vit", width=64, side=160, weights=str(file))
        images = torch.rand(2, 3, 20, 20)
        assert built([stage], (3, 20, 20))(images).shape == (2, 64, 1, 1)
        save_file({"x": torch.zeros(1)}, file)
        with pytest.raises(SettingError, match="does not hold the weights"):
            built([stage], (3, 20, 20))

    def test_text_by_a_language_model(self) -> None:
        vision.make_importable()
        hf = pytest.importorskip("transformers", reason="transformers is not installed")
        small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        bert = hf.BertModel(hf.BertConfig(vocab_size=20, **small), add_pooling_layer=False)
        rows = torch.randint(1, 20, (30, 6), generator=torch.Generator().manual_seed(0))
        some = Split(Examples(rows, rows), Examples(rows, rows), 20)
        assert transferred(some, bert, name="BERT").shape == (8,)
