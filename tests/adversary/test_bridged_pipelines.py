"""The bridges read one unit at a time: whatever collator, tokenizer or transform there is, one moves a sum by C."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pipelines import ODD, PIPELINES, SIZE, WORDS, Pipeline, Records, text
from torch import nn

import saltflat as sf
from saltflat.clipping import Flat
from saltflat.core import contribution, sampling
from saltflat.core.contribution import Private, chunks_of
from saltflat.core.mechanism import clipped_sum
from saltflat.core.train import trainable
from saltflat.front.given import loss_of, units_of
from saltflat.tree import Tree, norm, sub

pytestmark = pytest.mark.slow
CLIP = 0.05
EVERYBODY = list(range(SIZE))
PRIVACY = {"epsilon": 8, "delta": 1e-3, "method": sf.methods.DPSGD()}


class Began(Exception):
    """What a bridge hands to the private loop."""


def handed_over(monkeypatch: pytest.MonkeyPatch, module: Any, train: Callable[[], object]) -> tuple[Any, ...]:
    """Model, loss and data, as ``train`` gives them to the private loop; nothing is trained."""

    def stop(*given: Any) -> Any:
        raise Began(*given)

    with monkeypatch.context() as patched:
        patched.setattr(module, "loop_of", stop)
        with pytest.raises(Began) as caught:
            train()
    return caught.value.args[:3]


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let the draws of a record follow its number, so that sums over neighbouring data can be compared."""
    waiting: list[int] = []
    for module in (sampling, contribution):
        monkeypatch.setattr(module, "fresh_key", lambda: waiting.pop(0) if waiting else 1)
    return waiting


def sum_over(model: nn.Module, loss: Any, data: Any, numbers: Sequence[int], keys: list[int]) -> Tree:
    private = Private.of(sf.per_example(model, loss_of(loss)), units_of(data))
    params = trainable(model)
    # What a collator does on its first call, such as making a generator, is done before keys are dealt out.
    list(private.micro_batches([np.arange(1)], 1))
    torch.manual_seed(42)
    np.random.seed(42)  # noqa: NPY002
    random.seed(42)
    keys[:] = [1000 + number for number in numbers]
    chunks = chunks_of(private, np.arange(len(numbers)), 5)
    return clipped_sum(chunks([params], [1.0]), Flat(CLIP), params).total


def moves_by_at_most_the_clip_norm(sum_of: Callable[[list[int]], Tree]) -> None:
    whole = sum_of(EVERYBODY)
    assert float(norm(whole)) > CLIP / 2
    for left in (ODD, 0, 3, SIZE - 1):
        others = [number for number in EVERYBODY if number != left]
        moved = float(norm(sub(whole, sum_of(others))))
        assert moved <= CLIP * (1 + 1e-6), left


# ------------------------------------------------------------------------------------------------ Lightning


LIGHTNING = [each for each in PIPELINES if not each.refused]


def lightning_fit(pipeline: Pipeline, numbers: list[int], folder: Path, **more: Any) -> Any:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")
    torch.manual_seed(0)
    data = sf.data.DatasetUnits.of(pipeline.dataset(numbers), pipeline.collate, **more)
    module = sf.bridges.PrivateModule(
        pipeline.model(),
        pipeline.loss,
        data,
        privacy=PRIVACY | {"batch_size": 7, "epochs": 1},
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    lightning.seed_everything(42, verbose=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lightning.Trainer(
            max_epochs=9, accelerator="cpu", enable_model_summary=False, default_root_dir=folder, **quiet
        ).fit(module)
    return module


@pytest.mark.parametrize("pipeline", LIGHTNING, ids=lambda each: each.name)
class TestLightning:
    def test_it_trains(self, pipeline: Pipeline, tmp_path: Path) -> None:
        assert lightning_fit(pipeline, EVERYBODY, tmp_path).private.finished

    def test_one_unit(
        self, pipeline: Pipeline, tmp_path: Path, keys: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("lightning", reason="lightning is not installed")
        from saltflat.bridges import lightning as bridge

        def sum_of(numbers: list[int]) -> Tree:
            given = handed_over(monkeypatch, bridge, lambda: lightning_fit(pipeline, numbers, tmp_path))
            return sum_over(*given, numbers, keys)

        moves_by_at_most_the_clip_norm(sum_of)


def test_workers_under_lightning(tmp_path: Path) -> None:
    assert lightning_fit(PIPELINES[0], EVERYBODY, tmp_path, workers=2).private.finished


# --------------------------------------------------------------------------------------------- Hugging Face

LETTERS = "abcdefghijklmnopqrst"
SIZES = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
SIZES |= {"max_position_embeddings": 40}
OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def character_tokenizer() -> Any:
    """One token for a character; made here, and not fetched."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]"]
    known = {token: number for number, token in enumerate([*special, *LETTERS, " "])}
    made = Tokenizer(models.WordLevel(known, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    names = dict(
        zip(("pad_token", "unk_token", "mask_token", "cls_token", "sep_token"), special, strict=True)
    )
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def words(number: int) -> str:
    return "".join(LETTERS[int(word)] for word in text(number)[0] % len(LETTERS))


def tokenized(number: int) -> dict[str, Any]:
    """The output of a tokenizer: lists of the text's own length."""
    return dict(character_tokenizer()(words(number))) | {"labels": number % 2}


def drops_letters(number: int) -> dict[str, Any]:
    item = tokenized(number)
    ids = [known if random.random() < 0.7 else 1 for known in item["input_ids"]]
    ids = [known if float(torch.rand(())) < 0.8 else 1 for known in ids]
    return item | {"input_ids": [known if np.random.rand() < 0.8 else 1 for known in ids]}  # noqa: NPY002


def mixed(number: int) -> dict[str, Any]:
    """Lists, arrays and tensors; an optional column; and text that no model takes."""
    item = tokenized(number) | {"text": words(number)}
    as_stored = (list, np.array, torch.tensor)[number % 3]
    item["input_ids"] = as_stored(item["input_ids"])
    item["labels"] = torch.tensor(item["labels"]) if number == ODD else item["labels"]
    return item | ({"source": 3} if number % 5 == 0 else {})


def from_datasets(numbers: Sequence[int]) -> Any:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    made = datasets.Dataset.from_dict(
        {"text": [words(number) for number in numbers], "label": [number % 2 for number in numbers]}
    )
    tokenizer = character_tokenizer()

    def transform(batch: dict[str, list]) -> dict[str, list]:
        """Runs when an item is read, and leaves letters out at random."""
        keeps = lambda: random.random() < 0.8 + 0.2 * float(torch.rand(()))
        drop = lambda each: "".join(letter for letter in each if keeps())
        found = tokenizer([drop(each) or "a" for each in batch["text"]])
        return dict(found) | {"labels": batch["label"]}

    made.set_transform(transform)
    return made


def mapped_datasets(numbers: Sequence[int]) -> Any:
    """Tokenized ahead by ``map``; the texts stay beside the tokens."""
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    made = datasets.Dataset.from_dict(
        {"text": [words(number) for number in numbers], "label": [number % 2 for number in numbers]}
    )
    tokenizer = character_tokenizer()
    return made.map(lambda batch: tokenizer(batch["text"]), batched=True)


def padding() -> Any:
    from transformers import DataCollatorWithPadding

    return DataCollatorWithPadding(character_tokenizer())


def masking(**more: Any) -> Any:
    from transformers import DataCollatorForLanguageModeling

    return DataCollatorForLanguageModeling(character_tokenizer(), mlm_probability=0.4, **more)


def without_labels(number: int) -> dict[str, Any]:
    item = tokenized(number)
    del item["labels"]
    return item


def classifier() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(vocab_size=WORDS + 20, num_labels=2, **SIZES, **OFF))


def guesser() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(vocab_size=WORDS + 20, **SIZES, **OFF))


def writer() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": WORDS + 20, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=1, eos_token_id=2))


@dataclass(frozen=True)
class HuggingFace:
    """A data set, a collator and a model for the Trainer."""

    name: str
    dataset: Callable[[Sequence[int]], Any]
    collator: Callable[[], Any] = padding
    model: Callable[[], nn.Module] = classifier
    args: dict[str, Any] = field(default_factory=dict)


def of(item: Callable[[int], Any]) -> Callable[[Sequence[int]], Any]:
    return lambda numbers: Records(numbers, item)


CASES = [
    HuggingFace("dynamic padding", of(tokenized)),
    HuggingFace("draws in items", of(drops_letters)),
    HuggingFace("mixed types", of(mixed)),
    HuggingFace("masked words", of(without_labels), masking, guesser),
    HuggingFace("masked words with a seed", of(without_labels), lambda: masking(seed=42), guesser),
    HuggingFace("next words", of(without_labels), lambda: masking(mlm=False), writer),
    HuggingFace("datasets with a transform", from_datasets),
    HuggingFace("datasets, tokenized ahead", mapped_datasets),
]
cases = pytest.mark.parametrize("case", CASES, ids=lambda each: each.name)


def hugging_face(case: HuggingFace, numbers: list[int], folder: Path, **more: Any) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    torch.manual_seed(0)
    args = transformers.TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=7,
        num_train_epochs=1,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
        **(case.args | more),
    )
    return sf.bridges.PrivateTrainer(
        model=case.model(),
        args=args,
        train_dataset=case.dataset(numbers),
        data_collator=case.collator(),
        privacy=PRIVACY,
    )


@pytest.fixture(autouse=True)
def quiet_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@cases
class TestHuggingFace:
    def test_it_trains(self, case: HuggingFace, tmp_path: Path) -> None:
        trainer = hugging_face(case, EVERYBODY, tmp_path)
        before = {name: leaf.clone() for name, leaf in trainer.model.state_dict().items()}
        trainer.train()
        assert trainer.private.finished
        assert any(not torch.equal(before[name], leaf) for name, leaf in trainer.model.state_dict().items())

    def test_every_unit_contributes(
        self, case: HuggingFace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("transformers", reason="transformers is not installed")
        from saltflat.bridges import trainer as bridge

        model, loss, data = handed_over(
            monkeypatch, bridge, lambda: hugging_face(case, EVERYBODY, tmp_path).train()
        )
        private, params = Private.of(sf.per_example(model, loss), data), trainable(model)
        chunks = chunks_of(private, np.arange(SIZE), SIZE)([params], [1.0])
        norms = torch.cat([chunk.norms() for chunk in chunks])
        assert len(norms) == SIZE
        assert bool(norms.isfinite().all())

    def test_one_unit(
        self, case: HuggingFace, tmp_path: Path, keys: list[int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("transformers", reason="transformers is not installed")
        from saltflat.bridges import trainer as bridge

        def sum_of(numbers: list[int]) -> Tree:
            train = lambda: hugging_face(case, numbers, tmp_path).train()
            return sum_over(*handed_over(monkeypatch, bridge, train), numbers, keys)

        moves_by_at_most_the_clip_norm(sum_of)


@pytest.mark.parametrize("seed", [None, 42])
def test_the_trainers_seed_decides_no_mask(
    seed: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Trainer seeds torch, numpy and random with 42, and the collator may have a seed: masks are secret anyway."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    from saltflat.bridges import trainer as bridge

    case = HuggingFace("masks", of(without_labels), lambda: masking(seed=seed), guesser)

    def masks() -> Any:
        train = lambda: hugging_face(case, EVERYBODY, tmp_path).train()
        _, _, data = handed_over(monkeypatch, bridge, train)
        return [unit["labels"].tolist() for unit in data.read_each(np.arange(SIZE))]

    assert masks() != masks()


def test_the_collator_gets_one_unit_at_a_time(tmp_path: Path) -> None:
    met: list[int] = []

    def counting() -> Any:
        collate = padding()
        return lambda items: met.append(len(items)) or collate(items)

    units = hugging_face(
        HuggingFace("counting", of(tokenized), counting), EVERYBODY, tmp_path
    ).private_units()
    units.read_each(np.arange(SIZE))
    assert met == [1] * SIZE


def test_fit_takes_a_transform_that_gives_tensors() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    made = datasets.Dataset.from_dict(
        {"x": [[float(k), 1.0] for k in range(SIZE)], "y": [k % 2 for k in range(SIZE)]}
    )

    def transform(batch: dict[str, list]) -> dict[str, list]:
        return {"x": [torch.tensor(x) + torch.randn(2) for x in batch["x"]], "y": batch["y"]}

    def loss(predict: Any, batch: Any) -> torch.Tensor:
        return nn.functional.cross_entropy(predict(batch["x"]), batch["y"], reduction="none")

    made.set_transform(transform)
    assert sf.fit(nn.Linear(2, 2), loss, made, epsilon=8, batch_size=7, epochs=1).epsilon <= 8


def test_workers_under_the_trainer(tmp_path: Path) -> None:
    trainer = hugging_face(CASES[1], EVERYBODY, tmp_path, dataloader_num_workers=2)
    trainer.train()
    assert trainer.private.finished
