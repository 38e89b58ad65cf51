"""Models of Hugging Face, built from small configurations: nothing is downloaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import vision
from torch import Tensor, nn
from torch.nn import functional as F

import saltflat as sf

vision.make_importable()
hf = pytest.importorskip("transformers", reason="transformers is not installed")

WORDS, TIME, COUNT = 50, 6, 12
SIZE = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
SIZE |= {"intermediate_size": 24, "max_position_embeddings": 32}


def text() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, WORDS, (COUNT, TIME), generator=generator)
    mask = torch.ones_like(ids)
    mask[::3, 4:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids[:, 0] % 2}


def classified(predict: Any, batch: Any) -> Tensor:
    answer = predict(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
    return F.cross_entropy(answer.logits, batch["labels"], reduction="none")


def continued(predict: Any, batch: Any) -> Tensor:
    ids = batch["input_ids"]
    logits = predict(input_ids=ids, attention_mask=batch["attention_mask"]).logits
    each = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    return each.view(len(ids), -1).mean(1)


def translated(predict: Any, batch: Any) -> Tensor:
    ids, mask = batch["input_ids"], batch["attention_mask"]
    logits = predict(input_ids=ids, attention_mask=mask, decoder_input_ids=ids[:, :3]).logits
    each = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:4].flatten(), reduction="none")
    return each.view(len(ids), -1).mean(1)


BERT = lambda: hf.BertForSequenceClassification(hf.BertConfig(**SIZE))
ROBERTA = lambda: hf.RobertaForSequenceClassification(hf.RobertaConfig(**SIZE))
LLAMA = lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**SIZE))
GPT2 = lambda: hf.GPT2LMHeadModel(
    hf.GPT2Config(
        vocab_size=WORDS, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=1, eos_token_id=2
    )
)
T5 = lambda: hf.T5ForConditionalGeneration(
    hf.T5Config(
        vocab_size=WORDS,
        d_model=16,
        d_ff=24,
        d_kv=8,
        num_layers=1,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
)


def without_dropout(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    return model


@pytest.mark.parametrize(
    ("build", "loss"),
    [(BERT, classified), (ROBERTA, classified), (GPT2, continued), (LLAMA, continued), (T5, translated)],
    ids=["bert", "roberta", "gpt2", "llama", "t5"],
)
def test_it_trains(build: Callable[[], nn.Module], loss: Any, caplog: pytest.LogCaptureFixture) -> None:
    """With the first step's own check: kept gradients equal plain automatic differentiation."""
    torch.manual_seed(0)
    model = without_dropout(build())
    keys = list(model.state_dict())
    fitted = sf.fit(
        model,
        loss,
        text(),
        method=sf.methods.DPSGD(),
        epsilon=3,
        delta=1e-3,
        batch_size=6,
        epochs=1,
        optimizer=sf.optimizers.SGD(lr=0.1),
    )
    assert fitted.epsilon <= 3
    assert list(fitted.model.state_dict()) == keys
    assert "no rule" not in caplog.text
