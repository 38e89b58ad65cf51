"""Next-word prediction: from token ids to one logit for each word of the vocabulary."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from saltflat.models.common import check_sizes

BROWN_VOCABULARY = 36_743  # the words that occur at least twice in the Brown corpus


class NextWordLSTM(nn.Module):
    """Embedding of width 256, LSTM of width 96, linear: (units, tokens) -> (units, tokens, vocabulary).

    The logits at each position are for the word after it.
    """

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, 256)
        self.lstm = nn.LSTM(256, 96, batch_first=True)
        self.head = nn.Linear(96, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states)


def next_word_lstm(vocabulary: int = BROWN_VOCABULARY) -> nn.Module:
    """An LSTM that predicts the next word at every position: 13,106,215 parameters.

    >>> import torch
    >>> from saltflat.models import parameter_count
    >>> parameter_count(next_word_lstm())
    13106215
    >>> next_word_lstm(vocabulary=50)(torch.zeros(2, 20, dtype=torch.long)).shape
    torch.Size([2, 20, 50])

    Wang et al., "DPlis: Boosting Utility of Differentially Private Deep Learning via Randomized Smoothing",
    PoPETs 2021.
    """
    check_sizes(vocabulary=vocabulary)
    return NextWordLSTM(vocabulary)


def next_word_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Each unit's mean cross-entropy over its own words; (units, tokens, vocabulary), (units, tokens) -> (units,).

    A target of 0 is padding and counts nothing; a unit of padding alone has the loss 0.

    >>> import torch
    >>> next_word_loss(torch.zeros(2, 3, 8), torch.tensor([[1, 2, 0], [0, 0, 0]]))
    tensor([2.0794, 0.0000])
    """
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="none")
    return each.view(targets.shape).sum(1) / (targets != 0).sum(1).clamp(min=1)


class EveryPosition(nn.Module):
    """At each position the last ``context`` tokens, itself included: (units, tokens) -> (units, tokens, context).

    >>> import torch
    >>> EveryPosition(3)(torch.tensor([[5, 6, 7]]))
    tensor([[[0, 0, 5],
             [0, 5, 6],
             [5, 6, 7]]])
    """

    def __init__(self, context: int) -> None:
        super().__init__()
        self.context = context

    def forward(self, tokens: Tensor) -> Tensor:
        return F.pad(tokens, (self.context - 1, 0)).unfold(1, self.context, 1)


class IdsAsNumbers(nn.Module):
    """Token ids as floating-point features, (units, tokens) -> (units, tokens)."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.float()


def next_word_mlp(
    vocabulary: int = BROWN_VOCABULARY,
    *,
    context: int = 20,
    embedding_width: int | None = None,
    every_position: bool = False,
) -> nn.Module:
    """500-250-50 with ReLU on the last ``context`` tokens, (units, context) -> (units, vocabulary).

    As published the ids themselves are the features, and there are 2,022,193 parameters; with an
    ``embedding_width`` the words' learned embeddings are. With ``every_position`` it predicts after each token, as the
    LSTM does, (units, tokens) -> (units, tokens, vocabulary), so that a unit may be a whole comment.

    >>> from saltflat.models import parameter_count
    >>> parameter_count(next_word_mlp())
    2022193

    Kerrigan et al., "Differentially Private Language Models Benefit from Public Pre-training", 2020.
    """
    check_sizes(vocabulary=vocabulary, context=context)
    front: list[nn.Module] = [IdsAsNumbers()]
    features = context
    if embedding_width is not None:
        check_sizes(embedding_width=embedding_width)
        front = [nn.Embedding(vocabulary, embedding_width), nn.Flatten(-2)]
        features = context * embedding_width
    if every_position:
        front = [EveryPosition(context), *front]
    layers = [
        nn.Linear(features, 500),
        nn.ReLU(),
        nn.Linear(500, 250),
        nn.ReLU(),
        nn.Linear(250, 50),
        nn.ReLU(),
    ]
    return nn.Sequential(*front, *layers, nn.Linear(50, vocabulary))
