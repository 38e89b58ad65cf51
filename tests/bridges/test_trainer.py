"""Hugging Face's Trainer around the private step: what it keeps, and every way around the door that was thought of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import vision
from torch import nn
from torch.utils.data import Dataset

import saltflat as sf
from saltflat.bridges.trainer import usual_loss
from saltflat.data import DatasetUnits
from saltflat.errors import DataError, PrivacyError, SettingError

pytestmark = pytest.mark.slow
vision.make_importable()
hf = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed")

COUNT = 60
SIZES = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZES |= {"intermediate_size": 24, "max_position_embeddings": 16, "num_labels": 2}
OFF = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
PRIVACY = {"epsilon": 8, "delta": 1e-3, "method": sf.methods.DPSGD()}


class Rows(Dataset):
    def __init__(self, count: int = COUNT, seed: int = 0) -> None:
        self.ids = torch.randint(3, 50, (count, 6), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, k: int) -> dict[str, Any]:
        return {
            "input_ids": self.ids[k],
            "attention_mask": torch.ones(6, dtype=torch.long),
            "labels": int(self.ids[k, 0]) % 2,
        }


def bert() -> nn.Module:
    torch.manual_seed(0)
    return hf.BertForSequenceClassification(hf.BertConfig(**SIZES, **OFF))


def arguments(folder: Path, **given: Any) -> Any:
    usual = {"per_device_train_batch_size": 20, "num_train_epochs": 2, "report_to": [], "use_cpu": True}
    usual |= {"logging_steps": 1, "save_strategy": "no", "disable_tqdm": True, "learning_rate": 1e-2}
    return hf.TrainingArguments(output_dir=str(folder), **(usual | given))


def trainer(folder: Path, cls: Any = None, **given: Any) -> Any:
    settings = {"model": bert(), "train_dataset": Rows(), "privacy": PRIVACY} | given
    args = settings.pop("args", None) or arguments(folder)
    return (cls or sf.bridges.PrivateTrainer)(args=args, **settings)


def test_it_trains_and_keeps_logs_schedulers_and_evaluation(tmp_path: Path) -> None:
    args = arguments(tmp_path, eval_strategy="epoch", lr_scheduler_type="linear")
    mine = trainer(tmp_path, args=args, eval_dataset=Rows(20, seed=1))
    before = {name: leaf.clone() for name, leaf in mine.model.state_dict().items()}
    mine.train()
    assert mine.private.finished
    assert mine.state.global_step == mine.private.done == mine.private.plan.steps == 6
    assert 7.5 < mine.private.epsilon() <= 8
    logs = mine.state.log_history
    spent = [entry["epsilon"] for entry in logs if "learning_rate" in entry]
    rates = [entry["learning_rate"] for entry in logs if "learning_rate" in entry]
    assert spent == sorted(spent)
    assert rates == sorted(rates, reverse=True)
    assert len(rates) == 6
    assert rates[-1] < rates[0]
    assert any("eval_loss" in entry for entry in logs)
    assert not any({"loss", "train_loss", "grad_norm"} & entry.keys() for entry in logs)
    changed = [name for name, leaf in mine.model.state_dict().items() if not torch.equal(leaf, before[name])]
    assert len(changed) == len(before)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_changes_no_weight(tmp_path: Path, reentrant: bool) -> None:
    ends = []
    for given in (
        {},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}},
    ):
        repeated = sf.Safeguards(noise=sf.privacy.SeededNoise(1), sampling=np.random.default_rng(2))
        args = arguments(tmp_path, **given)
        mine = trainer(tmp_path, args=args, privacy=PRIVACY | {"safeguards": repeated})
        mine.train()
        ends.append({name: leaf.clone() for name, leaf in mine.model.state_dict().items()})
    for name, leaf in ends[0].items():
        torch.testing.assert_close(ends[1][name], leaf, rtol=1e-5, atol=1e-6)


def test_a_step_is_that_of_the_loop(tmp_path: Path) -> None:
    """The trainer's own optimizer.step() after it changes nothing: the weights are those of make_private alone."""

    repeated = lambda: sf.Safeguards(noise=sf.privacy.SeededNoise(1), sampling=np.random.default_rng(2))
    args = arguments(tmp_path, lr_scheduler_type="constant", optim="sgd")
    mine = trainer(tmp_path, args=args, privacy=PRIVACY | {"safeguards": repeated()})
    mine.train()
    model, rows = bert(), Rows()
    own = torch.optim.SGD(model.parameters(), lr=1e-2)
    data = DatasetUnits.of(rows, hf.default_data_collator)
    given = PRIVACY | {"batch_size": 20, "epochs": 2, "safeguards": repeated()}
    loop = sf.make_private(model, usual_loss(model), data, optimizer=own, **given)
    model.train()
    for batch in loop:
        loop.step(batch)
    for name, leaf in model.state_dict().items():
        torch.testing.assert_close(mine.model.state_dict()[name], leaf, rtol=1e-5, atol=1e-7)


def test_a_collator_that_pads_by_the_longest_trains(tmp_path: Path) -> None:
    class Uneven(Rows):
        def __getitem__(self, k: int) -> dict[str, Any]:
            item = super().__getitem__(k)
            length = 3 + k % 4
            return item | {key: item[key][:length] for key in ("input_ids", "attention_mask")}

    def longest(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        pad = lambda key: nn.utils.rnn.pad_sequence([each[key] for each in items], batch_first=True)
        return {key: pad(key) for key in ("input_ids", "attention_mask")} | {
            "labels": torch.tensor([each["labels"] for each in items])
        }

    mine = trainer(tmp_path, train_dataset=Uneven(), data_collator=longest)
    mine.train()
    assert mine.private.finished


class TestItRaises:
    @pytest.mark.parametrize("privacy", [None, {}, 3, "epsilon"])
    def test_without_privacy(self, tmp_path: Path, privacy: Any) -> None:
        with pytest.raises(PrivacyError, match="privacy is not attached"):
            trainer(tmp_path, privacy=privacy)

    def test_a_baseline(self, tmp_path: Path) -> None:
        with pytest.raises(PrivacyError, match="use the plain class"):
            trainer(tmp_path, privacy=PRIVACY | {"private": False})

    @pytest.mark.parametrize(
        "given",
        [
            {"gradient_accumulation_steps": 2},
            {"bf16": True},
            {"auto_find_batch_size": True},
            {"label_smoothing_factor": 0.1},
        ],
        ids=lambda given: next(iter(given)),
    )
    def test_arguments_that_have_no_meaning(self, tmp_path: Path, given: dict[str, Any]) -> None:
        with pytest.raises(SettingError, match=f"{next(iter(given))} has no meaning"):
            trainer(tmp_path, args=arguments(tmp_path, **given))

    def test_a_training_step_that_does_nothing(self, tmp_path: Path) -> None:
        class Idle(sf.bridges.PrivateTrainer):
            def training_step(self, *given: Any, **named: Any) -> Any:
                return torch.zeros(())

        with pytest.raises(PrivacyError, match="1 steps were taken and 0 of them"):
            trainer(tmp_path, Idle).train()

    def test_a_training_step_of_ones_own(self, tmp_path: Path) -> None:
        class Own(sf.bridges.PrivateTrainer):
            def training_step(self, model: Any, inputs: Any, *others: Any) -> Any:
                batch = hf.default_data_collator([self.train_dataset[k] for k in range(8)])
                loss = model(**batch).loss
                loss.backward()
                return loss.detach()

        mine = trainer(tmp_path, Own)
        before = {name: leaf.clone() for name, leaf in mine.model.state_dict().items()}
        with pytest.raises(PrivacyError, match="did not come through the private step"):
            mine.train()
        assert all(torch.equal(leaf, before[name]) for name, leaf in mine.model.state_dict().items())

    def test_more_gradients_after_the_private_step(self, tmp_path: Path) -> None:
        class More(sf.bridges.PrivateTrainer):
            def training_step(self, model: Any, inputs: Any, *others: Any) -> Any:
                found = super().training_step(model, inputs, *others)
                model(**hf.default_data_collator([self.train_dataset[0]])).loss.backward()
                return found

        with pytest.raises(PrivacyError, match="did not come through the private step"):
            trainer(tmp_path, More).train()

    def test_a_second_optimizer(self, tmp_path: Path) -> None:
        class Second(hf.TrainerCallback):
            def on_step_end(
                self, args: Any, state: Any, control: Any, model: Any = None, **given: Any
            ) -> None:
                model(**hf.default_data_collator([Rows()[0]])).loss.backward()
                torch.optim.SGD(model.parameters(), lr=0.1).step()
                model.zero_grad()

        with pytest.raises(PrivacyError, match="changed outside the private step"):
            trainer(tmp_path, callbacks=[Second()]).train()

    def test_data_written_through_the_back_door(self, tmp_path: Path) -> None:
        class Writes(hf.TrainerCallback):
            def on_step_end(
                self, args: Any, state: Any, control: Any, model: Any = None, **given: Any
            ) -> None:
                model.classifier.bias.data[0] += 1e-3

        with pytest.raises(PrivacyError, match=r"'classifier\.bias' was changed"):
            trainer(tmp_path, callbacks=[Writes()]).train()

    def test_a_loader_of_ones_own(self, tmp_path: Path) -> None:
        class Loads(sf.bridges.PrivateTrainer):
            def get_train_dataloader(self) -> Any:
                return torch.utils.data.DataLoader(
                    self.train_dataset, batch_size=20, collate_fn=hf.default_data_collator
                )

        with pytest.raises(PrivacyError, match="did not draw"):
            trainer(tmp_path, Loads).train()

    def test_a_last_step_when_training_has_ended(self, tmp_path: Path) -> None:
        class Later(hf.TrainerCallback):
            def on_train_end(self, *given: Any, model: Any = None, **named: Any) -> None:
                with torch.no_grad():
                    next(model.parameters()).add_(0.1)

        with pytest.raises(PrivacyError, match="changed outside the private step"):
            trainer(tmp_path, callbacks=[Later()]).train()

    def test_the_best_of_its_checkpoints(self, tmp_path: Path) -> None:
        often = {"eval_strategy": "steps", "save_strategy": "steps", "eval_steps": 2, "save_steps": 2}
        args = arguments(tmp_path, load_best_model_at_end=True, **often)
        trainer(tmp_path, args=args, eval_dataset=Rows(20, seed=1)).train()

    @pytest.mark.parametrize("way", ["one of several", "a part"])
    def test_evaluation_on_the_private_rows_by_another_name(self, tmp_path: Path, way: str) -> None:
        own = Rows()
        part = torch.utils.data.Subset(own, range(9))
        shown = {"one of several": {"public": Rows(20, seed=1), "train": own}, "a part": part}[way]
        with pytest.raises(PrivacyError, match="eval_dataset is the private data"):
            trainer(tmp_path, train_dataset=own, eval_dataset=shown)

    def test_evaluation_on_the_private_rows(self, tmp_path: Path) -> None:
        rows = Rows()
        with pytest.raises(PrivacyError, match="eval_dataset is the private data"):
            trainer(tmp_path, train_dataset=rows, eval_dataset=rows)

    @pytest.mark.parametrize("way", ["the same", "a part", "a loader", "its tensors", "in a dictionary"])
    def test_evaluation_and_prediction_on_private_rows_later(self, tmp_path: Path, way: str) -> None:
        own, more = Rows(), Rows(20, seed=1)
        more.ids = own.ids[40:]
        shown = {
            "the same": own,
            "a part": torch.utils.data.Subset(own, [3]),
            "a loader": torch.utils.data.ConcatDataset([Rows(20, seed=1), own]),
            "its tensors": more,
            "in a dictionary": {"public": Rows(20, seed=1), "train": own},
        }[way]
        mine = trainer(tmp_path, train_dataset=own)
        with pytest.raises(PrivacyError, match="is the private data, or has rows of it"):
            mine.evaluate(shown)
        if not isinstance(shown, dict):
            with pytest.raises(PrivacyError, match="is the private data, or has rows of it"):
                mine.predict(shown)
        mine.eval_dataset = shown
        with pytest.raises(PrivacyError, match="is the private data, or has rows of it"):
            mine.evaluate()

    def test_private_rows_in_a_loader_of_ones_own(self, tmp_path: Path) -> None:
        class Loads(sf.bridges.PrivateTrainer):
            def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
                return torch.utils.data.DataLoader(
                    self.train_dataset, batch_size=20, collate_fn=hf.default_data_collator
                )

        with pytest.raises(PrivacyError, match="the data that is evaluated is the private data"):
            trainer(tmp_path, Loads, eval_dataset=Rows(20, seed=1)).evaluate()

    @pytest.mark.parametrize("way", ["a key", "all of it", "a pair"])
    def test_a_training_step_that_looks_for_rows(self, tmp_path: Path, way: str) -> None:
        class Looks(sf.bridges.PrivateTrainer):
            def training_step(self, model: Any, inputs: Any, *others: Any) -> Any:
                if way == "a key":
                    return model(input_ids=inputs["input_ids"])
                if way == "all of it":
                    return model(**inputs)
                one, other = inputs
                return model(one, other)

        with pytest.raises(PrivacyError, match="training_step looked for rows"):
            trainer(tmp_path, Looks).train()

    def test_a_second_run(self, tmp_path: Path) -> None:
        mine = trainer(tmp_path)
        mine.train()
        with pytest.raises(PrivacyError, match="trained already"):
            mine.train()

    def test_a_search(self, tmp_path: Path) -> None:
        with pytest.raises(PrivacyError, match="every trial"):
            trainer(tmp_path).hyperparameter_search()

    def test_a_model_whose_loss_is_not_known(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        with pytest.raises(SettingError, match="give loss="):
            trainer(tmp_path, model=hf.BertModel(hf.BertConfig(**SIZES))).train()


class TestPublicRowsAreShown:
    def test_the_rest_of_a_random_split(self, tmp_path: Path) -> None:
        train, rest = torch.utils.data.random_split(Rows(80), [60, 20])
        mine = trainer(tmp_path, train_dataset=train, eval_dataset=rest)
        assert mine.evaluate()["eval_loss"] > 0
        assert len(mine.predict(rest).predictions) == 20

    def test_the_rest_of_a_list(self, tmp_path: Path) -> None:
        rows = [Rows()[k] for k in range(60)]
        mine = trainer(tmp_path, train_dataset=rows[:40], eval_dataset=rows[40:])
        assert mine.evaluate()["eval_loss"] > 0
        with pytest.raises(PrivacyError, match="is the private data"):
            mine.evaluate(rows[30:])


class TestCheckpoints:
    def test_it_goes_on_and_the_count_is_never_below_the_truth(self, tmp_path: Path) -> None:
        args = arguments(tmp_path, save_strategy="steps", save_steps=2)

        class Stops(hf.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                control.should_training_stop = state.global_step == 4

        first = trainer(tmp_path, args=args, callbacks=[Stops()])
        first.train()
        assert first.private.done == 4
        target, four = first.private.plan.epsilon(1e-3), str(tmp_path / "checkpoint-4")
        again = trainer(tmp_path, args=args, privacy=PRIVACY | {"lost": 0})
        again.train(resume_from_checkpoint=four)
        assert again.private.done == again.state.global_step == 6
        assert again.private.statement.epsilon == target
        more = trainer(tmp_path, args=args, privacy=PRIVACY | {"allow_more": True})
        more.train(resume_from_checkpoint=four)
        assert more.private.done == more.state.global_step == 6
        assert more.private.statement.epsilon > target
        assert any("is above the" in each for each in more.private.statement.warnings)

    @pytest.mark.parametrize(("lost", "steps"), [(1, 5), (2, 4), (None, 4)])
    def test_lost_steps_shorten_it(self, tmp_path: Path, lost: int | None, steps: int) -> None:
        args = arguments(tmp_path, save_strategy="steps", save_steps=4)
        first = trainer(tmp_path, args=args)
        first.train()
        again = trainer(tmp_path, args=args, privacy=PRIVACY | ({} if lost is None else {"lost": lost}))
        with pytest.warns(UserWarning, match="planned steps were left out"):
            again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        assert again.private.finished
        assert again.private.done == again.state.global_step == steps
        assert again.private.epsilon() <= again.private.statement.epsilon == first.private.statement.epsilon

    def test_a_ledger_knows_what_was_lost(self, tmp_path: Path) -> None:
        args = arguments(tmp_path, save_strategy="steps", save_steps=4)
        with sf.privacy.Ledger.open(tmp_path / "l", dataset="rows") as book:
            for number, steps in enumerate([6, 4]):  # all six are on record, and the last two are lost
                run = book.run("one", block=1)
                mine = trainer(
                    tmp_path, args=args, privacy=PRIVACY | {"safeguards": sf.Safeguards(meter=run)}
                )
                mine.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4") if number else None)
                assert mine.state.global_step == steps
                assert run.epsilon(1e-3) <= mine.private.statement.epsilon <= 8

    def test_a_checkpoint_of_a_plain_trainer(self, tmp_path: Path) -> None:
        plain = hf.Trainer(
            model=bert(),
            args=arguments(tmp_path, save_strategy="steps", save_steps=3, max_steps=3),
            train_dataset=Rows(),
        )
        plain.train()
        with pytest.raises(DataError, match="not saved by a private trainer"):
            trainer(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))


def test_a_causal_language_model_with_adapters(tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**sizes, **dropout, bos_token_id=1, eos_token_id=2))
    model = sf.finetune.lora(model, rank=2, fan_in_fan_out=True)

    class Words(Rows):
        def __getitem__(self, k: int) -> dict[str, Any]:
            item = super().__getitem__(k)
            return item | {"labels": item["input_ids"]}

    mine = trainer(tmp_path, model=model, train_dataset=Words())
    mine.train()
    assert mine.private.finished
