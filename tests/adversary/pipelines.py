"""Data pipelines as people write them: datasets, transforms, collates and losses.

Each `Pipeline` is honest: it must train, and one unit must move the sum by at most the clip norm. All of them let units
change each other if several units are read or collated together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate

SIZE = 14  # units of a pipeline's data
ODD = 9  # the number of the record that differs from the others, where one does
FEATURES = 6

MODULE_RNG = np.random.default_rng(0)


def features(number: int) -> Tensor:
    return torch.randn(FEATURES, generator=torch.Generator().manual_seed(number)) * 3


def label(number: int) -> int:
    return number % 3


class Records(Dataset):
    """Records by number; ``item`` makes one record's item."""

    def __init__(self, numbers: Sequence[int], item: Callable[[int], Any]) -> None:
        self.numbers, self.item = list(numbers), item

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, place: int) -> Any:
        return self.item(self.numbers[place])


def cross_entropy(predict: Any, batch: Any) -> Tensor:
    return F.cross_entropy(predict(batch[0]), batch[1], reduction="none")


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 3))


@dataclass(frozen=True)
class Pipeline:
    """A dataset, a collate, a loss and a model; ``counts`` says how many of `SIZE` units must contribute."""

    name: str
    item: Callable[[int], Any]
    collate: Callable[[list], Any] = default_collate
    loss: Callable[[Any, Any], Tensor] = cross_entropy
    model: Callable[[], nn.Module] = linear
    counts: int = SIZE
    refused: str = ""  # what a refusal says, for code that cannot be trained
    make: Callable[..., Any] = field(default=Records)

    def dataset(self, numbers: Sequence[int]) -> Any:
        return self.make(numbers, self.item)


# -------------------------------------------------------------------------------------------------- random draws


def jittered(noise: Callable[[], Tensor]) -> Callable[[int], Any]:
    return lambda number: (features(number) + noise(), label(number))


class Holding:
    """A transform that holds generators of its own, as albumentations does."""

    def __init__(self, seed: int = 3) -> None:
        self.random_generator = np.random.default_rng(seed)
        self.py_random = random.Random(seed)
        self.state = np.random.RandomState(seed)
        self.torch_generator = torch.Generator().manual_seed(seed)

    def __call__(self, number: int) -> Any:
        shift = self.random_generator.normal() + self.py_random.gauss(0, 1) + self.state.normal()
        noise = torch.randn(FEATURES, generator=self.torch_generator)
        return features(number) + noise + shift, label(number)


class Replay:
    """As ReplayCompose of albumentations: generators of its own, and a record of what it did last."""

    def __init__(self) -> None:
        self.random_generator, self.py_random = np.random.default_rng(1), random.Random(1)
        self.replay: dict[str, float] = {}

    def __call__(self, *, image: np.ndarray) -> dict[str, Any]:
        self.replay = {"brightness": self.random_generator.normal(), "flip": self.py_random.random()}
        image = image + self.replay["brightness"]
        return {"image": (image[..., ::-1] if self.replay["flip"] < 0.5 else image).astype(np.float32)}


TRANSFORM = Replay()


def transformed_picture(number: int) -> Any:
    """A transform that is a variable of the module."""
    image = np.random.default_rng(number).normal(size=(1, 4, 4))
    return TRANSFORM(image=image)["image"].copy(), label(number)


def in_a_comprehension(number: int) -> Any:
    noise = torch.tensor([MODULE_RNG.normal() for _ in range(FEATURES)], dtype=torch.float32)
    return features(number) + noise, label(number)


class MadeLater:
    """A generator that is made when the first item is read, as collators with a seed do."""

    def __init__(self) -> None:
        self.rng: np.random.Generator | None = None

    def __call__(self, number: int) -> Any:
        self.rng = np.random.default_rng(42) if self.rng is None else self.rng
        return features(number) + torch.from_numpy(self.rng.normal(size=FEATURES)).float(), label(number)


def from_module_rng(number: int) -> Any:
    return features(number) + torch.from_numpy(MODULE_RNG.normal(size=FEATURES)).float(), label(number)


def draws_in_collate(items: list) -> Any:
    x, y = default_collate(items)
    return x + torch.randn_like(x) + float(np.random.normal()), y  # noqa: NPY002


# ------------------------------------------------------------------------------------------------- mixed records


def numpy_among_tensors(number: int) -> Any:
    return (features(number).numpy() if number == ODD else features(number)), label(number)


def tensor_label(number: int) -> Any:
    return features(number), torch.tensor(label(number)) if number == ODD else label(number)


def json_numbers(number: int) -> Any:
    """Whole numbers are ints in JSON: about half of the records have ints where others have floats."""
    values = [round(value) for value in features(number).tolist()]
    return torch.tensor(values if number % 2 else [float(v) + 0.5 for v in values]), label(number)


def one_integer_row(number: int) -> Any:
    return torch.tensor([1, 2, 3, 4, 5, 6]) if number == ODD else features(number), label(number)


def one_double(number: int) -> Any:
    return features(number).double() if number == ODD else features(number), label(number)


def optional_key(number: int) -> Any:
    found = {"x": features(number), "y": label(number)}
    return found | {"weight": torch.tensor(0.5)} if number == ODD else found


def weighted_loss(predict: Any, batch: Any) -> Tensor:
    losses = F.cross_entropy(predict(batch["x"]), batch["y"], reduction="none")
    return losses * batch["weight"] if "weight" in batch else losses


def odd_picture(number: int) -> Any:
    shape = (1, 2, 8) if number == ODD else (1, 4, 4)
    return torch.randn(*shape, generator=torch.Generator().manual_seed(number)), label(number)


def pictures() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))


def many_rows_later(items: list) -> Any:
    """From the ninth record on, a record is two rows."""
    x, y = default_collate(items)
    return (x.repeat(2, 1), y.repeat(2)) if float(x.abs().max()) > float(features(8).abs().max()) else (x, y)


def unreadable(number: int) -> Any:
    if number == ODD:
        raise OSError("cannot be read")
    return features(number), label(number)


# ---------------------------------------------------------------------------------------------- losses that assert


def asserts_few(predict: Any, batch: Any) -> Tensor:
    assert len(batch[0]) <= 5, "a batch of at most 5"
    return cross_entropy(predict, batch)


def asserts_all(predict: Any, batch: Any) -> Tensor:
    assert bool((batch[1] < 3).all())
    return cross_entropy(predict, batch)


def asserts_any(predict: Any, batch: Any) -> Tensor:
    """Fine together as long as one unit has the label 0, and fine alone for those units only."""
    assert (batch[1] == 0).any()
    return cross_entropy(predict, batch)


def asserts_mean(predict: Any, batch: Any) -> Tensor:
    assert batch[0].mean().item() < 0.5
    return cross_entropy(predict, batch)


def bad_label(number: int) -> Any:
    return features(number), 7 if number == ODD else label(number)


# --------------------------------------------------------------------------------------------------- text

WORDS = 20
LONGEST = 12  # the length of the odd text


def text(number: int) -> Any:
    length = LONGEST if number == ODD else 2 + number % 4
    words = torch.randint(1, WORDS, (length,), generator=torch.Generator().manual_seed(number))
    return words, label(number)


def characters(number: int) -> Any:
    """What a tokenizer by characters gives: lists of the text's own length."""
    written = "".join(chr(96 + int(word)) for word in text(number)[0])
    return [ord(letter) - 96 for letter in written], label(number)


def padded_characters(items: list) -> dict[str, Tensor]:
    return padded([(torch.tensor(ids), y) for ids, y in items])


class WithTransform(Dataset):
    """As a data set of the `datasets` library: columns, and a function of a batch that runs when an item is read."""

    def __init__(self, numbers: Sequence[int], item: Callable[[int], Any]) -> None:
        self.columns = {"number": list(numbers)}
        self.set_transform(lambda batch: {"both": [item(number) for number in batch["number"]]})

    def set_transform(self, transform: Callable[[dict[str, list]], dict[str, list]]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return len(self.columns["number"])

    def __getitem__(self, place: int) -> Any:
        return self.transform({"number": [self.columns["number"][place]]})["both"][0]


def leaves_words_out(number: int) -> Any:
    words, y = text(number)
    kept = words[torch.rand(len(words)) < 0.7]
    return kept if len(kept) else words[:1], y


def padded(items: list) -> dict[str, Tensor]:
    words = nn.utils.rnn.pad_sequence([words for words, _ in items], batch_first=True)
    return {
        "input_ids": words,
        "attention_mask": (words > 0).long(),
        "labels": torch.tensor([y for _, y in items]),
    }


class Reader(nn.Module):
    """A mean over the words that are there, and over all positions: the second depends on padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 8), nn.Linear(16, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        found, mask = self.words(input_ids), attention_mask.unsqueeze(-1)
        mean = (found * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.out(torch.cat([mean, found.mean(1)], 1))


def reads(predict: Any, batch: Any) -> Tensor:
    logits = predict(batch["input_ids"], batch["attention_mask"])
    return F.cross_entropy(logits, batch["labels"], reduction="none")


class Masking:
    """A collate for masked language models: hides words at random and pads to the longest."""

    def __call__(self, items: list) -> dict[str, Tensor]:
        words = nn.utils.rnn.pad_sequence([words for words, _ in items], batch_first=True)
        hidden = torch.bernoulli(torch.full(words.shape, 0.3)).bool() & (words > 0)
        other = torch.randint(1, WORDS, words.shape)
        return {
            "input_ids": torch.where(hidden, other, words),
            "labels": torch.where(hidden, words, -100),
            "here": (words > 0).long(),
        }


class Guesser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, input_ids: Tensor) -> Tensor:
        return self.out(self.words(input_ids))


def guesses(predict: Any, batch: Any) -> Tensor:
    logits = predict(batch["input_ids"]).flatten(0, 1)
    each = F.cross_entropy(logits, batch["labels"].flatten(), reduction="none", ignore_index=-100)
    counted = batch["labels"] != -100
    return each.view(counted.shape).sum(1) / counted.sum(1).clamp(min=1)


WITH_ZERO = sum(label(number) == 0 for number in range(SIZE))
BELOW_HALF = sum(float(features(number).mean()) < 0.5 for number in range(SIZE))
ONE_ROW = sum(float(features(n).abs().max()) <= float(features(8).abs().max()) for n in range(SIZE))

PIPELINES = [
    Pipeline("torch draws in an item", jittered(lambda: torch.randn(FEATURES))),
    Pipeline(
        "numpy draws in an item",
        jittered(lambda: torch.from_numpy(np.random.normal(size=FEATURES)).float()),  # noqa: NPY002
    ),
    Pipeline("Python draws in an item", jittered(lambda: torch.full((FEATURES,), random.gauss(0, 2)))),
    Pipeline("a transform with generators", Holding()),
    Pipeline("a generator of the module", from_module_rng),
    Pipeline("a generator in a comprehension", in_a_comprehension),
    Pipeline("a transform of the module that replays", transformed_picture, model=pictures),
    Pipeline("a generator that is made later", MadeLater(), make=lambda n, item: Records(n, type(item)())),
    Pipeline("draws in a collate", lambda number: (features(number), label(number)), draws_in_collate),
    Pipeline("numpy among tensors", numpy_among_tensors),
    Pipeline("a tensor label among ints", tensor_label),
    Pipeline("ints and floats of JSON", json_numbers),
    Pipeline("one row of ints", one_integer_row),
    Pipeline("one float64 row", one_double),
    Pipeline("an optional key", optional_key, loss=weighted_loss),
    Pipeline("one picture of another shape", odd_picture, model=pictures),
    Pipeline("two rows of some records", lambda n: (features(n), label(n)), many_rows_later, counts=ONE_ROW),
    Pipeline("one record that cannot be read", unreadable, counts=SIZE - 1),
    Pipeline("an assert about the size", lambda n: (features(n), label(n)), loss=asserts_few),
    Pipeline("an assert about all labels", bad_label, loss=asserts_all, counts=SIZE - 1),
    Pipeline(
        "an assert about any label",
        lambda n: (features(n), label(n)),
        loss=asserts_any,
        counts=WITH_ZERO,
        refused="asserts something about the batch",
    ),
    Pipeline(
        "an assert about a mean", lambda n: (features(n), label(n)), loss=asserts_mean, counts=BELOW_HALF
    ),
    Pipeline("padding to the longest text", text, padded, reads, Reader),
    Pipeline("characters", characters, padded_characters, reads, Reader),
    Pipeline("a data set with set_transform", leaves_words_out, padded, reads, Reader, make=WithTransform),
    Pipeline("masked words", text, Masking(), guesses, Guesser),
]
