"""Which weights move: only those that were asked for, and the rest is bit-identical; DP-SAT and SAI on top."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import vision
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import saltflat as sf
from saltflat import finetune
from saltflat.errors import ModelError, SettingError
from saltflat.gradients import bare

COUNT, CLASSES = 40, 3


class Small(nn.Module):
    """Three layers and a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 4))
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.LayerNorm(4))
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)).mean(1))


WAYS: dict[str, tuple[Any, set[str]]] = {
    "whole": (lambda m: finetune.whole(m), {"cls_token", "body.0", "body.2", "head"}),
    "without tokens": (lambda m: finetune.whole(m, frozen=finetune.TOKENS), {"body.0", "body.2", "head"}),
    "last layer": (lambda m: finetune.last_layers(m), {"head"}),
    "last two": (lambda m: finetune.last_layers(m, 2), {"body.2", "head"}),
    "parts": (lambda m: finetune.only(m, "body.0", "cls_token"), {"body.0", "cls_token"}),
    "biases": (lambda m: finetune.biases(m), {"body.0.bias", "body.2.bias", "head.bias"}),
    "biases and head": (lambda m: finetune.biases(m, head=["head"]), {"body.0.bias", "body.2.bias", "head"}),
}


def data(shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    return torch.randn(COUNT, *shape, generator=torch.Generator().manual_seed(0)), torch.arange(
        COUNT
    ) % CLASSES


def moved(model: nn.Module, loss: Any, rows: Any, **settings: Any) -> set[str]:
    """The parameters and buffers that training changed by as much as a bit."""
    before = {name: leaf.clone() for name, leaf in model.state_dict().items()}
    usual = {"epsilon": 8, "delta": 1e-3, "batch_size": 20, "epochs": 1, "quiet": True}
    sf.fit(model, loss, rows, **(usual | settings))
    after = model.state_dict()
    assert after.keys() == before.keys()
    return {name for name, leaf in before.items() if not torch.equal(leaf, after[name])}


@pytest.mark.parametrize("way", WAYS)
def test_only_what_was_asked_for_moves(way: str) -> None:
    choose, parts = WAYS[way]
    model = choose(Small())
    expected = {n for n in model.state_dict() if any(n == part or n.startswith(f"{part}.") for part in parts)}
    assert finetune.trained(model).keys() == expected
    assert moved(model, nn.CrossEntropyLoss(reduction="none"), data((2, 4))) == expected


@pytest.mark.parametrize(
    ("choose", "says"),
    [
        (lambda m: finetune.only(m, "tail"), "no part 'tail'"),
        (lambda m: finetune.only(m), "nothing would be trained"),
        (lambda m: finetune.whole(m, frozen=("",)), "nothing would be trained"),
        (lambda m: finetune.last_layers(m, 9), "1 to 4"),
        (lambda m: finetune.last_layers(m, True), "1 to 4"),
        (lambda m: finetune.biases(m, head=["tail"]), "its parts are body, head"),
    ],
)
def test_what_cannot_be_chosen(choose: Any, says: str) -> None:
    with pytest.raises(SettingError, match=says):
        choose(Small())


class TestWeights:
    def test_from_a_file_and_from_a_folder(self, tmp_path: Path) -> None:
        there, own = Small(), Small()
        save_file(there.state_dict(), tmp_path / "model.safetensors")
        for path in (tmp_path, tmp_path / "model.safetensors"):
            finetune.load_weights(own, path)
            assert all(torch.equal(leaf, there.state_dict()[name]) for name, leaf in own.state_dict().items())

    def test_a_head_that_begins_anew(self, tmp_path: Path) -> None:
        there, own = Small(), Small()
        own.head = nn.Linear(4, 7)
        save_file(there.state_dict(), tmp_path / "model.safetensors")
        with pytest.raises(SettingError, match=r"'head\.weight' is missing, or of another shape"):
            finetune.load_weights(own, tmp_path)
        before = own.head.weight.clone()
        finetune.load_weights(own, tmp_path, fresh=["head"])
        assert torch.equal(own.head.weight, before)
        assert torch.equal(own.body[0].weight, there.body[0].weight)

    def test_one_tensor_under_two_names_is_saved_once(self, tmp_path: Path) -> None:
        def tied() -> nn.Module:
            model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
            model[1].weight = model[0].weight
            return model

        there, own = tied(), tied()
        save_file({"0.weight": there[0].weight.detach()}, tmp_path / "model.safetensors")
        finetune.load_weights(own, tmp_path)
        assert own[1].weight is own[0].weight
        assert torch.equal(own[1].weight, there[1].weight)

    def test_no_such_file(self, tmp_path: Path) -> None:
        for path, says in ((tmp_path, "holds no file"), (tmp_path / "none", "can be read")):
            with pytest.raises(SettingError, match=says):
                finetune.load_weights(Small(), path)


def seen(predict: Any, batch: Any) -> Tensor:
    return F.cross_entropy(predict(pixel_values=batch[0]).logits, batch[1], reduction="none")


@pytest.fixture
def vit() -> nn.Module:
    vision.make_importable()
    hf = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    config = hf.ViTConfig(**sizes, image_size=16, patch_size=8, num_labels=CLASSES)
    return hf.ViTForImageClassification(config)


def sai_plan() -> sf.Plan:
    return sf.sai(steps=(2, 2), rate=0.5, size=COUNT, epsilon=8.0, delta=1e-3)


@pytest.mark.slow
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vision.make_importable()
    for package in ("transformers", "peft"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    monkeypatch.chdir(tmp_path)
    page, names = Path(__file__).parents[1] / "docs" / "finetune.md", {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.S):
        exec(compile(code, "finetune.md", "exec"), names)
    assert names["fitted"].epsilon <= 3


@pytest.mark.slow
class TestViTWithLoRA:
    def test_only_adapters_and_head_are_clipped_noised_and_moved(
        self, vit: nn.Module, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        told: list[str] = []
        monkeypatch.setattr(bare, "_tell_once", told.append)
        model = finetune.lora(vit, rank=2, head=["classifier"])
        own = set(finetune.trained(model))
        assert own
        assert all("lora_" in name or "classifier" in name for name in own)
        found = moved(model, seen, data((3, 16, 16)), epochs=2)
        assert found == own
        assert told == []  # no rule's slow path

    def test_with_sat_and_sai(self, vit: nn.Module) -> None:
        model = finetune.lora(vit, rank=2, head=["classifier"])
        own = set(finetune.trained(model))
        assert moved(model, seen, data((3, 16, 16)), method=sf.methods.SAT(radius=0.05), epochs=2) == own
        plan = sai_plan()
        usual = {"plan": plan, "batch_size": None, "epochs": None, "epsilon": None}
        assert moved(model, seen, data((3, 16, 16)), **usual) == own

    def test_without_dropout_unless_asked(self, vit: nn.Module) -> None:
        model = finetune.lora(vit, rank=2, lora_dropout=0.1)
        assert any(isinstance(layer, nn.Dropout) and layer.p == 0.1 for layer in model.modules())

    @pytest.mark.parametrize(
        ("given", "says"),
        [
            ({"rank": 0}, "rank is a whole number"),
            ({"targets": ["nothing"]}, "peft cannot put adapters"),
            ({"head": ["tail"]}, "no part 'tail'"),
        ],
    )
    def test_wrong_settings(self, vit: nn.Module, given: dict[str, Any], says: str) -> None:
        with pytest.raises(SettingError, match=says):
            finetune.lora(vit, **given)

    def test_layers_without_known_names(self) -> None:
        pytest.importorskip("peft", reason="peft is not installed")
        with pytest.raises(SettingError, match="all-linear"):
            finetune.lora(nn.Sequential(nn.Linear(2, 2)))

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_activation_checkpointing_changes_no_gradient(self, vit: nn.Module, reentrant: bool) -> None:
        model = finetune.only(vit.train(), "vit").double()
        contribution = sf.per_example(model, seen).still()
        point = {name: leaf.detach() for name, leaf in model.named_parameters() if leaf.requires_grad}
        images, labels = data((3, 16, 16))
        rows = images[:4].double(), labels[:4]
        plain = contribution([point], [1.0], rows).weighted_sum(torch.ones(4).double())
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        again = contribution([point], [1.0], rows).weighted_sum(torch.ones(4).double())
        for name, leaf in plain.items():
            torch.testing.assert_close(again[name], leaf, rtol=1e-9, atol=1e-12)
        moved(model.float(), seen, data((3, 16, 16)))

    def test_a_compiled_model_is_refused_with_its_reason(self, vit: nn.Module) -> None:
        with pytest.raises(ModelError, match="compiled"):
            moved(torch.compile(vit), seen, data((3, 16, 16)))

    def test_autocast_changes_nothing(self, vit: nn.Module) -> None:
        """Gradients are taken in float32 whatever autocast says: half precision rounds one example by its company."""
        contribution = sf.per_example(vit, seen).still()
        point = {name: leaf.detach() for name, leaf in vit.named_parameters()}
        rows = tuple(part[:4] for part in data((3, 16, 16)))
        plain = contribution([point], [1.0], rows).norms()

        def under_autocast(predict: Any, batch: Any) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return seen(predict, batch)

        own = sf.per_example(vit, under_autocast).still()([point], [1.0], rows).norms()
        torch.testing.assert_close(own, plain, rtol=1e-5, atol=0)
