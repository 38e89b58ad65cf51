"""Cross-entropy over many classes: the loss and the gradient of plain PyTorch, to 1e-9 in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import gradient_loop, trained
from torch import Tensor, nn

import saltflat as sf
from saltflat.gradients.entropy import _CrossEntropy, cross_entropy


def both(logits: Tensor, targets: Tensor, **options: Any) -> tuple[list[Tensor], list[Tensor]]:
    found = []
    for run in (lambda *a, **k: cross_entropy(F.cross_entropy, *a, **k), F.cross_entropy):
        z = logits.clone().requires_grad_()
        losses = run(z, targets, reduction="none", **options)
        (grad,) = torch.autograd.grad((losses * torch.arange(1.0, len(z) + 1).to(z)).sum(), z)
        found.append([losses.detach(), grad])
    return found[0], found[1]


@pytest.mark.parametrize("options", [{}, {"ignore_index": 0}, {"label_smoothing": 0.0, "weight": None}])
@pytest.mark.parametrize("scale", [1.0, 30.0, 300.0])
def test_loss_and_gradient(scale: float, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    logits, targets = scale * torch.randn(40, 100, dtype=torch.float64), torch.randint(100, (40,))
    targets[:7] = 0 if "ignore_index" in options else -100
    mine, plain = both(logits, targets, **options)
    for a, b in zip(mine, plain, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-13)


def test_words_that_are_all_but_impossible() -> None:
    """exp(-500) is none in float32, and the loss is 500 all the same."""
    logits = torch.zeros(3, 100)
    logits[:, 0] = torch.tensor([500.0, 90.0, 3.0])
    mine, plain = both(logits, torch.tensor([5, 5, 5]))
    torch.testing.assert_close(mine[0], plain[0])
    torch.testing.assert_close(mine[1], plain[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_no_number_stays_none_and_stays_alone(bad: float) -> None:
    logits = torch.randn(4, 100)
    logits[1, :] = bad
    mine, plain = both(logits, torch.tensor([1, 2, 3, 4]))
    for a, b in zip(mine, plain, strict=True):
        assert bool(a[1].isnan().any()) == bool(b[1].isnan().any()) is True
        torch.testing.assert_close(a[[0, 2, 3]], b[[0, 2, 3]])


@pytest.mark.parametrize("wrong", [100, -1, 10**9])
def test_a_class_that_there_is_not(wrong: int) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        cross_entropy(F.cross_entropy, torch.randn(2, 100), torch.tensor([1, wrong]), reduction="none")


def test_a_second_backward_pass() -> None:
    z = torch.randn(5, 100, dtype=torch.float64, requires_grad=True)
    losses = cross_entropy(F.cross_entropy, z, torch.arange(5), reduction="none").sum()
    first, second = (torch.autograd.grad(losses, z, retain_graph=True)[0].clone() for _ in range(2))
    torch.testing.assert_close(first, second, rtol=1e-12, atol=0)


def test_a_gradient_of_a_gradient_is_refused_and_not_wrong() -> None:
    z = torch.randn(5, 100, requires_grad=True)
    losses = cross_entropy(F.cross_entropy, z, torch.arange(5), reduction="none").sum()
    (grad,) = torch.autograd.grad(losses, z, create_graph=True)
    with pytest.raises(RuntimeError):
        grad.square().sum().backward()


@pytest.mark.parametrize(
    "options",
    [
        {"reduction": "mean"},
        {"reduction": "none", "label_smoothing": 0.1},
        {"reduction": "none", "weight": torch.ones(100)},
    ],
)
def test_other_forms_run_as_they_are(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_CrossEntropy, "apply", None)
    z, y = torch.randn(5, 100), torch.arange(5)
    assert torch.equal(cross_entropy(F.cross_entropy, z, y, **options), F.cross_entropy(z, y, **options))


def test_in_a_step_it_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """And norms and sums are the loop's."""
    torch.manual_seed(0)
    seen: list[int] = []
    true = _CrossEntropy.apply
    monkeypatch.setattr(_CrossEntropy, "apply", lambda *a: seen.append(1) or true(*a))
    model = nn.Linear(6, 100).double()
    x, y = torch.randn(9, 6, dtype=torch.float64), torch.randint(100, (9,))
    criterion = nn.CrossEntropyLoss(reduction="none")
    chunk = sf.per_example(model, sf.supervised(criterion))([trained(model)], [1.0], (x, y))
    alone = gradient_loop(model, trained(model), x, y, criterion)
    torch.testing.assert_close(chunk.norms(), alone.norm(dim=1), rtol=1e-9, atol=0)
    assert seen == [1]


def test_in_a_transform_of_torchs_it_is_torchs_own() -> None:
    """A loss that goes row by row."""
    torch.manual_seed(0)
    model = nn.Linear(6, 100).double()
    x, y = torch.randn(9, 6, dtype=torch.float64), torch.randint(100, (9,))
    one = lambda z, k: F.cross_entropy(z.unsqueeze(0), k.unsqueeze(0), reduction="none").squeeze(0)
    criterion = torch.func.vmap(one)
    chunk = sf.per_example(model, sf.supervised(criterion))([trained(model)], [1.0], (x, y))
    alone = gradient_loop(model, trained(model), x, y, criterion)
    torch.testing.assert_close(chunk.norms(), alone.norm(dim=1), rtol=1e-9, atol=0)
