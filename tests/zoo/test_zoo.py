"""Every layer and model that docs/models.md speaks of does what the page says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import tried
import vision
from torch import Tensor, nn
from tried import CLASSES, CRITERION, KINDS, LAYERS, MODELS, REFUSED, TIME, WORDS, Model, Refused

import saltflat as sf
from saltflat.errors import ModelError
from saltflat.gradients import bare

sys.path.insert(0, str(Path(__file__).parents[1] / "gradients"))
from layers import FAMILIES

by_name = lambda each: f"{each.package} {each.name}" if isinstance(each, Model) else each.name


def test_the_page_says_what_is_tested() -> None:
    page = tried.PAGE.read_text()
    assert tried.written(page) == page


def test_every_layer_of_the_page_is_a_case_of_the_layer_rules() -> None:
    """And every case is on the page, but for those that show the engine rather than a layer."""
    named = {case for layer in LAYERS for case in layer.cases}
    assert named <= set(FAMILIES)
    kinds = {case.split(",")[0] for case in named}
    inner = {"conv2d by pixels", "maps added", "written"}
    assert {case.split(",")[0] for case in FAMILIES} - kinds <= inner


def test_there_are_as_many_as_promised() -> None:
    count = lambda package: sum(each.package == package for each in MODELS)
    assert count("timm") >= 12
    assert count("transformers") >= 8
    assert len({by_name(each) for each in MODELS}) == len(MODELS)


@pytest.mark.parametrize("case", REFUSED, ids=by_name)
def test_it_is_refused_in_one_line(case: Refused) -> None:
    torch.manual_seed(0)
    shape = (TIME, 4) if case.sequence else (4,)
    x = torch.randint(WORDS, (12, TIME)) if case.tokens else torch.randn(12, *shape)
    with pytest.raises(ModelError, match=case.says) as caught:
        sf.fit(
            case.build(),
            CRITERION,
            (x, torch.arange(12) % CLASSES),
            epsilon=8,
            delta=1e-3,
            batch_size=6,
            epochs=1,
        )
    assert "\n" not in str(caught.value)


def built(case: Model) -> nn.Module:
    vision.make_importable()
    if case.package == "peft":
        pytest.importorskip("transformers", reason="transformers is not installed")
    package = pytest.importorskip(case.package, reason=f"{case.package} is not installed")
    torch.manual_seed(0)
    return case.build(package)


def one_by_one(contribution: Any, point: dict[str, Tensor], batch: Any) -> Tensor:
    """Each example's gradient by plain automatic differentiation of its loss."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in point.items()}
    losses = contribution.losses_of_units(leaves, batch)
    found = [torch.autograd.grad(loss, list(leaves.values()), retain_graph=True) for loss in losses]
    return torch.stack([torch.cat([g.flatten() for g in grads]) for grads in found])


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELS, ids=by_name)
def test_it_is_exact_on_the_fast_path_and_trains(case: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (inputs, loss) = built(case), KINDS[case.kind]
    told: list[str] = []
    monkeypatch.setattr(bare, "_tell_once", told.append)
    wide = lambda t: t.double() if t.is_floating_point() else t
    contribution = sf.per_example(model.double(), loss).still()
    point = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    batch = wide(inputs(3)), torch.arange(3) % CLASSES
    chunk, alone = contribution([point], [1.0], batch), one_by_one(contribution, point, batch)
    weights = torch.tensor([0.3, 0.7, 1.1], dtype=torch.float64)
    total = torch.cat([leaf.flatten() for leaf in chunk.weighted_sum(weights).values()])
    torch.testing.assert_close(chunk.norms(), alone.norm(dim=1), rtol=1e-8, atol=0)
    assert float((total - weights @ alone).norm() / (weights @ alone).norm()) < 1e-8
    for rows in (
        2,
        6,
        8,
        16,
    ):  # as many as there are heads, positions or channels: none is taken for the batch
        batch = wide(inputs(rows)), torch.arange(rows) % CLASSES
        parts = [tuple(each[part] for each in batch) for part in (slice(rows // 2), slice(rows // 2, None))]
        halves = [contribution([point], [1.0], part).norms() for part in parts]
        whole = contribution([point], [1.0], batch).norms()
        torch.testing.assert_close(whole, torch.cat(halves), rtol=1e-8, atol=0)
    data = inputs(8), torch.arange(8) % CLASSES
    method, few = sf.methods.DPSGD(), {"epsilon": 8, "delta": 1e-2, "batch_size": 4, "epochs": 0.5}
    fitted = sf.fit(model.float(), loss, data, method=method, **few)
    assert all(bool(leaf.isfinite().all()) for leaf in fitted.params.values())
    assert told == []
