"""Next-word prediction: from token ids to one logit for each word of the vocabulary."""

from __future__ import annotations

from torch import Tensor, nn

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


class IdsAsNumbers(nn.Module):
    """Token ids as floating-point features, (units, tokens) -> (units, tokens)."""

    def forward(self, tokens: Tensor) -> Tensor:
        return tokens.float()


def next_word_mlp(
    vocabulary: int = BROWN_VOCABULARY, *, context: int = 20, embedding_width: int | None = None
) -> nn.Module:
    """500-250-50 with ReLU on the last ``context`` tokens, (units, context) -> (units, vocabulary).

    As published the ids themselves are the features, and there are 2,022,193 parameters; with an
    ``embedding_width`` the words' learned embeddings are.

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
        front = [nn.Embedding(vocabulary, embedding_width), nn.Flatten()]
        features = context * embedding_width
    layers = [
        nn.Linear(features, 500),
        nn.ReLU(),
        nn.Linear(500, 250),
        nn.ReLU(),
        nn.Linear(250, 50),
        nn.ReLU(),
    ]
    return nn.Sequential(*front, *layers, nn.Linear(50, vocabulary))
