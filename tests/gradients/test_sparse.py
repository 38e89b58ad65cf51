"""`Embedding(sparse=True)` gives lists of rows; wherever gradients are taken plainly, they are those of all rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from reference import flat
from torch import Tensor, nn
from torch.nn import functional as F

import saltflat as sf
from saltflat.federated.clients import Client
from saltflat.federated.local import Local
from saltflat.federated.local import gradient_of as in_a_client
from saltflat.federated.together import Trainer
from saltflat.landscape.objective import gradient_of as in_a_landscape
from saltflat.landscape.objective import leaves_of
from saltflat.pate.fitting import _gradient as in_a_teacher
from saltflat.tree import Tree, called
from saltflat.warmup.descent import gradient_of as in_a_warmup

WORDS, LABELS = torch.tensor([[1, 4], [1, 0], [2, 2]]), torch.tensor([0, 2, 1])


def model(*, sparse: bool) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(6, 3, sparse=sparse), nn.Flatten(), nn.Linear(6, 3))


def loss(model: nn.Module, at: Tree) -> Tensor:
    return F.cross_entropy(called(model, at, (WORDS,)), LABELS)


def by_landscape(model: nn.Module, at: Tree) -> Tree:
    leaves = leaves_of(at)
    return in_a_landscape(loss(model, leaves), leaves)


def by_public(model: nn.Module, at: Tree) -> Tree:
    contribution = sf.per_example(model, sf.supervised(nn.CrossEntropyLoss(reduction="none")))
    return sf.Public(contribution, sf.data.TensorUnits((WORDS, LABELS)))._mean(at, np.arange(3))


WAYS: dict[str, Callable[[nn.Module, Tree], Tree]] = {
    "client": lambda model, at: in_a_client(lambda here: loss(model, here), at),
    "landscape": by_landscape,
    "public": by_public,
    "teacher": lambda model, at: in_a_teacher(model, at, (WORDS, LABELS)),
    "warm-up": lambda model, at: in_a_warmup(
        model, at, lambda predict: F.cross_entropy(predict(WORDS), LABELS)
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_gradients_have_all_rows(name: str) -> None:
    found = []
    for sparse in (True, False):
        own = model(sparse=sparse)
        found.append(WAYS[name](own, {n: p.detach() for n, p in own.named_parameters()}))
    for leaf, there in found[1].items():
        assert found[0][leaf].layout == torch.strided
        torch.testing.assert_close(found[0][leaf], there)


def test_clients_train_together_or_alone() -> None:
    """`torch.func`, which trains several clients at once, may refuse a sparse gradient; then each trains alone."""
    criterion = sf.supervised(nn.CrossEntropyLoss(reduction="none"))
    clients = [Client(k, (WORDS.roll(k, 0), LABELS)) for k in range(3)]
    ends = []
    for sparse in (True, False):
        own = model(sparse=sparse)
        point = {n: p.detach() for n, p in own.named_parameters()}
        trainer = Trainer(own, criterion, Local(epochs=1, batch_size=2, lr=0.5, seed=0))
        ends.append(trainer.differences(point, clients, 3))
    for one, other in zip(*ends, strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(flat(one), flat(other))
        assert float(flat(one).norm()) > 0
