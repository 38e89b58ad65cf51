"""Text for next-word prediction: words as numbers, by a vocabulary of public text; comments as private units.

*Guarantee*: nothing is counted in private text. The vocabulary is made of the Brown corpus, or of other public
sentences; a word that it does not have is left out, and a comment's numbers depend on that comment alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from saltflat.core.sampling import Indices
from saltflat.data.examples import Examples, Split
from saltflat.data.files import Labelled, Layout, Parts, content, one_of, one_record, places, root
from saltflat.errors import DataError, SettingError
from saltflat.settings import is_whole

PADDING = 0  # the number before a comment's first word and after its last; as a target it counts nothing
SIZE = 36_743  # of the published vocabulary, the padding included
LENGTH = 20  # words of a comment that are predicted; those after them are left out
FOLDERS = ("text", "reddit")
WORD = re.compile(r"[^\W_]+(?:['’\-.][^\W_]+)*|[^\w\s]")
QUOTES = str.maketrans({"’": "'", "‘": "'", "`": '"', "“": '"', "”": '"'})


def words(text: str) -> list[str]:
    """Words in small letters, and marks, in their order; all text is taken apart in this one way.

    >>> words("Atlanta's `` over-all '' charge, U.S. style!")
    ["atlanta's", '"', 'over-all', '"', 'charge', ',', 'u.s', '.', 'style', '!']
    """
    return WORD.findall(text.lower().replace("``", '"').replace("''", '"').translate(QUOTES))


@dataclass(frozen=True)
class Vocabulary:
    """Known words, the most frequent first: word k has the number k + 1, and 0 is padding.

    >>> known = Vocabulary.of(["the cat", "the dog"], size=3)
    >>> known.words, known.numbers("The cow saw the cat")
    (('the', 'cat'), [1, 1, 2])
    """

    words: tuple[str, ...] = field(repr=False)

    def __post_init__(self) -> None:
        if not self.words or len(set(self.words)) != len(self.words):
            raise SettingError("a vocabulary holds one word or more, each of them once")

    @classmethod
    def of(cls, sentences: Iterable[str], size: int = SIZE) -> Vocabulary:
        """The most frequent words of public sentences, ``size`` numbers with the padding; among equals by letters.

        *Guarantee*: none, if the sentences are private: the list tells of them.
        """
        if not is_whole(size, 2):
            raise SettingError(f"a vocabulary has a size of 2 or more, one being the padding's; got {size!r}")
        found = Counter(word for sentence in sentences for word in words(sentence))
        ranked = sorted(found, key=lambda word: (-found[word], word))
        return cls(tuple(ranked[: size - 1]))

    @property
    def size(self) -> int:
        """How many numbers there are: a network's ``vocabulary``."""
        return len(self.words) + 1

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words, start=1)}

    def numbers(self, text: str) -> list[int]:
        """The numbers of the known words of a text; others are left out."""
        return [self._numbers[word] for word in words(text) if word in self._numbers]


def sequences(texts: Sequence[str], vocabulary: Vocabulary, *, length: int = LENGTH) -> Examples:
    """One unit for each text: inputs 0, w_1 .. w_(L-1) and targets w_1 .. w_L, padded with 0; both (n, length).

    A text without a known word is a unit too: its loss is 0.

    >>> known = Vocabulary.of(["the cat", "the dog"], size=3)
    >>> sequences(["The cat the cow", ""], known, length=4).whole()
    (tensor([[0, 1, 2, 1],
            [0, 0, 0, 0]]), tensor([[1, 2, 1, 0],
            [0, 0, 0, 0]]))
    """
    if not is_whole(length, 1):
        raise SettingError(f"length is a whole number of words, 1 or more; got {length!r}")
    rows = torch.full((len(texts), length + 1), PADDING)
    for place, text in enumerate(texts):
        known = vocabulary.numbers(text)[:length]
        rows[place, 1 : len(known) + 1] = torch.tensor(known, dtype=torch.long)
    return Examples(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())


@dataclass(frozen=True)
class Authors:
    """Authors as units, each with ``rows`` comments in every batch, padded where there are fewer: for `per_user`.

    Of an author with more comments the first ``rows`` are kept. *Guarantee*: an author's rows depend on that author
    alone, and a row of padding has the loss 0.

    >>> some = Examples(torch.ones(3, 2, dtype=torch.long), torch.ones(3, 2, dtype=torch.long))
    >>> people = Authors.of(some, ["ann", "bob", "ann"], rows=2)
    >>> people.count, people.take(np.array([1]))[0]
    (2, tensor([[1, 1],
            [0, 0]]))
    """

    inputs: Tensor = field(repr=False)  # (authors, rows, length)
    targets: Tensor = field(repr=False)
    is_row_wise: ClassVar[bool] = True

    @classmethod
    def of(cls, comments: Examples, authors: Sequence[str], *, rows: int) -> Authors:
        if len(authors) != comments.count:
            raise DataError("each comment needs one author; got more of the one than of the other")
        if comments.inputs.shape != comments.targets.shape:
            raise DataError(
                "a comment is words, each with a word as its target: inputs and targets of comments have one shape; "
                "take per_user for other rows"
            )
        if not all(isinstance(author, str | int | np.integer) for author in authors):
            raise DataError(
                "authors are texts or whole numbers, and some are neither: by a missing name (NaN), or a tensor, each "
                "comment would be a unit of its own; leave such comments out, or give all of them one name"
            )
        if not is_whole(rows):
            raise SettingError(f"an author has a whole number of rows, at least one; got rows={rows!r}")
        own: dict[str, list[int]] = {}
        for place, author in enumerate(authors):
            own.setdefault(author, []).append(place)
        kept = [(who, row, place) for who, each in enumerate(own.values()) for row, place in enumerate(each)]
        into = torch.tensor([each for each in kept if each[1] < rows], dtype=torch.long).view(-1, 3)
        shape = (len(own), rows, *comments.shape)
        parts = []
        for values in (comments.inputs, comments.targets):
            part = values.new_full(shape, PADDING)
            part[into[:, 0], into[:, 1]] = values[into[:, 2]]
            parts.append(part)
        return cls(*parts)

    @property
    def rows(self) -> int:
        """Comments of one author in a batch."""
        return self.inputs.shape[1]

    @property
    def count(self) -> int:
        return len(self.inputs)

    def take(self, indices: Indices) -> tuple[Tensor, Tensor]:
        """These authors' comments, those of one author next to each other."""
        where = torch.from_numpy(np.asarray(indices, dtype=np.int64))
        return self.inputs[where].flatten(0, 1), self.targets[where].flatten(0, 1)


def column(path: Path, place: int, *, columns: int) -> list[str]:
    """One column of a file of lines with ``columns`` cells that tabs divide, plain or .gz.

    Messages name neither the line nor what stands there, which may be private; see `one_record`.
    """
    try:
        lines = content(path).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise DataError(f"{path} is no text in UTF-8") from None
    found = []
    for number, line in enumerate(lines, start=1):
        if not line and number == len(lines):
            break
        cells = line.rstrip("\r").split("\t")
        if len(cells) != columns:
            where = one_record(f"line {number}")
            raise DataError(
                f"{path}, {where}: expected {columns} cells with tabs between them, got {len(cells)}"
            )
        found.append(cells[place])
    if not found:
        raise DataError(f"{path} holds no line")
    return found


def brown(data_dir: str | Path | None = None) -> list[str]:
    """The sentences of the Brown corpus, which is public: ``brown_sentences.tsv``, plain or .gz, in ``text``."""
    base = root(data_dir)
    for place in places(base, FOLDERS):
        if any(place.glob("brown_sentences.tsv*")):
            return _sentences(place)
    raise DataError(
        f"the Brown corpus is not under {base}: expected brown_sentences.tsv in {' or '.join(FOLDERS)}"
    )


def _sentences(folder: Path) -> list[str]:
    return column(one_of(folder, ["brown_sentences.tsv"]), 2, columns=3)


def reddit(
    data_dir: str | Path | None = None, *, vocabulary: Vocabulary | None = None, length: int = LENGTH
) -> Split:
    """Reddit comments as units, for training and for testing; the vocabulary is Brown's unless one is given.

    The files of GoEmotions, ``goemotions_train.tsv`` and ``goemotions_test.tsv``, plain or .gz, in ``text``: 43,410 and
    5,427 comments. They do not say who wrote what, so the unit is a comment; where you know authors take `Authors`.
    """
    base = root(data_dir)
    for place in places(base, FOLDERS):
        if any(place.glob("goemotions_train.tsv*")):
            known = Vocabulary.of(brown(data_dir)) if vocabulary is None else vocabulary
            train, test = _comments(place, known, length)
            return Split(train, test, known.size)
    raise DataError(f"reddit is not under {base}: expected goemotions_train.tsv in {' or '.join(FOLDERS)}")


def _comments(folder: Path, vocabulary: Vocabulary, length: int) -> tuple[Examples, Examples]:
    files = [one_of(folder, [f"goemotions_{part}.tsv"]) for part in ("train", "test")]
    train, test = (sequences(column(file, 0, columns=3), vocabulary, length=length) for file in files)
    return train, test


def _read(folder: Path) -> Parts:
    """By name, as recipes read it: with the vocabulary of the Brown corpus that lies beside."""
    known = Vocabulary.of(_sentences(folder))
    if known.size != SIZE:
        raise DataError(
            f"the sentences in {folder} have fewer words than the {SIZE} that reddit is declared with; read it in "
            "Python, with data.text.reddit(vocabulary=...)"
        )
    return _labelled(*_comments(folder, known, LENGTH))


def _labelled(train: Examples, test: Examples) -> tuple[Labelled, Labelled]:
    return (train.inputs, train.targets), (test.inputs, test.targets)


LAYOUTS = (Layout(FOLDERS, "goemotions_train.tsv*", _read),)
