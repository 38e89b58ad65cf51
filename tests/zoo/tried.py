"""One list of the layers and models that were tried: the tests run it, and the tables of docs/models.md are made of it.

``python tests/zoo/tried.py`` writes the tables into the page.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import saltflat as sf

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
CLASSES, WORDS, TIME = 3, 50, 6
CRITERION = nn.CrossEntropyLoss(reduction="none")


# Layers: each is a case, or several, of the layer rules' own tests


@dataclass(frozen=True)
class Layer:
    """A row of the layers' table, and the cases of `tests/gradients/layers.py` that show it."""

    name: str
    cases: tuple[str, ...]
    remark: str = ""

    @property
    def verdict(self) -> str:
        return "slow" if any(case.endswith("no rule") for case in self.cases) else "fast"


LAYERS = (
    Layer(
        "`Linear`, any number of axes",
        ("linear", "linear positions", "linear over positions", "wide linear positions", "folded positions"),
    ),
    Layer("`x @ W`, `W @ x`, `addmm`", ("bare parameters", "matmul from the left", "wide folded positions")),
    Layer("`einsum` with weights", ("einsum",)),
    Layer("`Bilinear`", ("multilinear, no rule",)),
    Layer("`Conv1d`, `Conv2d`, `Conv3d`, grouped, dilated", ("conv1d", "conv2d", "conv3d", "grouped conv2d")),
    Layer("padding modes", ("conv2d padding modes",)),
    Layer("`ConvTranspose1d`, `2d`, `3d`", ("transposed", "transposed 3d")),
    Layer("weight standardisation", ("standardised",), "`saltflat.models` has it"),
    Layer("frames folded into the batch", ("folded pictures",), "`x.flatten(0, 1)`, and back"),
    Layer(
        "`Embedding`, tied or not",
        ("token types", "tied", "embedding, sparse"),
        "with `sparse=True` too: the released gradient is dense",
    ),
    Layer(
        "`EmbeddingBag`: mean, sum, max",
        ("embedding bag", "embedding bag, padding", "embedding bag, weights", "embedding bag, largest"),
        "bags of one length, padded",
    ),
    Layer(
        "`EmbeddingBag` with offsets",
        ("embedding bag, offsets", "embedding bag, offsets, ends", "embedding bag, offsets, largest"),
        "a flattened (batch, words); bags of any length within an example",
    ),
    Layer(
        "`GroupNorm`, `LayerNorm`, `RMSNorm`, `InstanceNorm`", ("group norm", "layer norm", "instance norm")
    ),
    Layer(
        "`BatchNorm` in eval mode",
        ("fixed batch norm", "fixed batch norm, trained"),
        "its statistics must be public; scale and shift may be trained",
    ),
    Layer("`PReLU`", ("prelu", "prelu, channels")),
    Layer("`LSTM`", ("lstm", "lstm, deep", "lstm, time first", "lstm, last state", "sequence first, lstm")),
    Layer("`LSTM(proj_size=...)`", ("lstm, projected", "lstm, projected, last state")),
    Layer("`GRU`", ("gru", "gru, last state", "sequence first, gru")),
    Layer("`RNN`, tanh or relu", ("rnn", "rnn, tanh", "sequence first, rnn")),
    Layer(
        "`LSTMCell`, `GRUCell`, `RNNCell` in a loop", ("lstm cell", "gru cell", "rnn cell", "rnn cell, relu")
    ),
    Layer("`MultiheadAttention`", ("attention", "attention, time first", "cross attention")),
    Layer(
        "`TransformerEncoderLayer`, `TransformerDecoderLayer`",
        ("encoder layer", "sequence first, encoder", "sequence first, norm first", "sequence first, decoder"),
        "batch first or not inside; the data is batch first",
    ),
    Layer("attention by hand, in windows too", ("sequence first, heads", "windows", "windows, fused")),
    Layer("class tokens, positions, scales", ("bare parameters", "sequence first")),
    Layer("layers called twice, weights used twice", ("repeated layers",)),
    Layer("`parametrizations.weight_norm`", ("weight norm",)),
    Layer("frozen parameters", ("frozen",)),
)


# Refused: at once, in one line


@dataclass(frozen=True)
class Refused:
    """A row of the table of what is refused; ``says`` is part of the message."""

    name: str
    build: Callable[[], nn.Module]
    says: str
    instead: str
    sequence: bool = False  # whether an example is (TIME, 4), else (4,)
    tokens: bool = False


class _Centre(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad - grad.mean(0)


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(4, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(_Centre.apply(torch.tanh(self.first(x))))


class Over(nn.Module):
    """A layer over a sequence, its mean over time, and classes."""

    def __init__(
        self, layer: nn.Module, width: int = 4, prepare: Callable[[Tensor], Any] = lambda x: x
    ) -> None:
        super().__init__()
        self.layer, self.out, self.prepare = layer, nn.Linear(width, CLASSES), prepare

    def forward(self, x: Tensor) -> Tensor:
        found = self.layer(self.prepare(x))
        found = found[0] if isinstance(found, tuple) else found
        if isinstance(found, nn.utils.rnn.PackedSequence):
            found = nn.utils.rnn.pad_packed_sequence(found, batch_first=True)[0]
        return self.out(found.mean(1))


class Bags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags, self.out = nn.EmbeddingBag(WORDS, 4), nn.Linear(4, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        starts = torch.arange(0, words.numel(), words.shape[1]).clamp(min=1) - 1
        return self.out(self.bags(words.flatten(), starts))


class Picked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        mask, out = x[..., 0] > -9, torch.zeros(*x.shape[:2], CLASSES, dtype=x.dtype)
        out[mask] = self.linear(x[mask])
        return out.mean(1)


def _hooked(model: nn.Module) -> nn.Module:
    next(model.parameters()).register_hook(lambda grad: grad)
    return model


def _quietly(build: Callable[[], nn.Module]) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return build()


def _packed(x: Tensor) -> Any:
    return nn.utils.rnn.pack_padded_sequence(x, [x.shape[1]] * len(x), batch_first=True)


_head = lambda layer: nn.Sequential(layer, nn.Linear(4, CLASSES))
REFUSED = (
    Refused(
        "`BatchNorm` in train mode",
        lambda: _head(nn.BatchNorm1d(4)),
        "whole batch's statistics",
        "`saltflat.without_batchnorm(model)`",
    ),
    Refused(
        "`InstanceNorm` with running statistics",
        lambda: _head(
            nn.Sequential(
                nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
            )
        ),
        "running statistics",
        "`track_running_stats=False`",
    ),
    Refused(
        "`parametrizations.spectral_norm` in train mode",
        lambda: _head(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))),
        "power iteration",
        "eval mode, or `weight_norm`",
    ),
    Refused(
        "old `utils.spectral_norm`, `utils.weight_norm`",
        lambda: _quietly(lambda: _head(nn.utils.weight_norm(nn.Linear(4, 4)))),
        "writes a tensor into the layer",
        "those of `torch.nn.utils.parametrizations`",
    ),
    Refused(
        "lazy layers", lambda: _head(nn.LazyLinear(4)), "lazy layers", "run one batch through the model first"
    ),
    Refused(
        "a custom `autograd.Function` that mixes examples",
        Centred,
        "mixes the batch|does not match plain",
        "one whose forward and backward take each example alone",
    ),
    Refused(
        "`torch.compile`", lambda: torch.compile(_head(nn.Linear(4, 4))), "compiled", "compile after training"
    ),
    Refused(
        "`DataParallel`, `DistributedDataParallel`",
        lambda: nn.DataParallel(_head(nn.Linear(4, 4))),
        "wrapped in",
        "the model itself; `torchrun` and `fully_shard` share the work",
    ),
    Refused(
        "a hook on a trained weight (`weight.register_hook`)",
        lambda: _hooked(_head(nn.Linear(4, 4))),
        "has a hook",
        "a change in the optimizer, or a `Parameter` of its own for what is trained",
    ),
    Refused(
        "packed sequences",
        lambda: Over(nn.LSTM(4, 4, batch_first=True), prepare=_packed),
        "packed sequence",
        "padded ones, with the loss masked",
        sequence=True,
    ),
    Refused(
        "sequence-first layers on batch-first data",
        lambda: Over(nn.GRU(4, 4)),
        "batch_first=True",
        "`batch_first=True`, or `x.transpose(0, 1)` inside the model",
        sequence=True,
    ),
    Refused(
        "`EmbeddingBag` with words of several examples in one bag",
        Bags,
        "words of several rows",
        "a bag that begins with each example's first word",
        tokens=True,
    ),
    Refused(
        "`Embedding(max_norm=...)`, `scale_grad_by_freq`",
        lambda: Over(nn.Embedding(WORDS, 4, max_norm=1.0)),
        "max_norm or scale_grad_by_freq",
        "leave them out",
        tokens=True,
    ),
    Refused(
        "tokens picked by a mask",
        Picked,
        "picked by a mask",
        "keep the padding, mask the loss",
        sequence=True,
    ),
)


# Models of other packages, small, with random weights


@dataclass(frozen=True)
class Model:
    """A row of the models' table; ``build`` takes the package."""

    name: str
    package: str
    build: Callable[[Any], nn.Module]
    kind: str  # of data and loss: a key of `KINDS`
    remark: str = ""


def classified(predict: Any, batch: Any) -> Tensor:
    logits = predict(input_ids=batch[0], attention_mask=torch.ones_like(batch[0])).logits
    return CRITERION(logits, batch[1])


def continued(predict: Any, batch: Any) -> Tensor:
    words = batch[0]
    logits = predict(input_ids=words).logits[:, -words.shape[1] : -1]  # a prompt of its own comes before
    return CRITERION(logits.flatten(0, 1), words[:, 1:].flatten()).view(len(words), -1).mean(1)


def translated(predict: Any, batch: Any) -> Tensor:
    words = batch[0]
    logits = predict(input_ids=words, decoder_input_ids=words[:, :3]).logits
    return CRITERION(logits.flatten(0, 1), words[:, 1:4].flatten()).view(len(words), -1).mean(1)


def seen(predict: Any, batch: Any) -> Tensor:
    return CRITERION(predict(pixel_values=batch[0]).logits, batch[1])


def pictured(side: int) -> Callable[[int], Tensor]:
    return lambda rows: torch.randn(rows, 3, side, side, generator=torch.Generator().manual_seed(0))


def worded(rows: int) -> Tensor:
    return torch.randint(3, WORDS, (rows, TIME), generator=torch.Generator().manual_seed(0))


KINDS: dict[str, tuple[Callable[[int], Tensor], Any]] = {
    "32 pixels": (pictured(32), sf.supervised(CRITERION)),
    "64 pixels": (pictured(64), sf.supervised(CRITERION)),
    "16 pixels, seen": (pictured(16), seen),
    "classified": (worded, classified),
    "continued": (worded, continued),
    "translated": (worded, translated),
}


def timm(name: str, arch: str, side: int = 32, remark: str = "", **options: Any) -> Model:
    build = lambda package: sf.without_batchnorm(package.create_model(arch, num_classes=CLASSES, **options))
    return Model(name, "timm", build, f"{side} pixels", remark)


def mixer(package: Any) -> nn.Module:
    sizes = {"img_size": 32, "patch_size": 8, "num_blocks": 2, "embed_dim": 24}
    return package.models.MlpMixer(num_classes=CLASSES, **sizes)


_NORM = "BatchNorm replaced"
_patches = {"img_size": 32, "patch_size": 8, "depth": 2, "embed_dim": 24, "num_heads": 3}
_windows = {
    "img_size": 32,
    "patch_size": 2,
    "window_size": 4,
    "embed_dim": 16,
    "depths": (2, 2),
    "num_heads": (2, 2),
}
TIMM = (
    timm("ViT", "vit_tiny_patch16_224", **_patches),
    timm("DeiT, distilled", "deit_tiny_distilled_patch16_224", **_patches),
    timm("BEiT", "beit_base_patch16_224", **_patches),
    timm("CaiT", "cait_xxs24_224", **_patches),
    timm(
        "CrossViT",
        "crossvit_tiny_240",
        img_size=32,
        img_scale=(1.0, 0.875),
        patch_size=[8, 14],
        embed_dim=[16, 24],
        depth=[[1, 2, 0]],
        num_heads=[2, 2],
        mlp_ratio=[2, 2, 1],
    ),
    timm("Swin", "swin_tiny_patch4_window7_224", **_windows),
    timm("Swin v2", "swinv2_tiny_window8_256", **_windows),
    timm("XCiT", "xcit_nano_12_p16_224", remark=_NORM, img_size=32, embed_dim=32, depth=2),
    timm(
        "LeViT",
        "levit_128s",
        64,
        _NORM,
        img_size=64,
        embed_dim=(32, 48, 64),
        num_heads=(2, 3, 4),
        depth=(1, 1, 1),
    ),
    timm("PiT", "pit_ti_224", 64, img_size=64, base_dims=(16, 16, 16), depth=(1, 1, 1), heads=(1, 2, 4)),
    Model("MLP-Mixer", "timm", mixer, "32 pixels"),
    timm("ConvNeXt", "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16)),
    timm("PoolFormer", "poolformer_s12"),
    timm("ResNet", "resnet10t", remark=_NORM),
    timm("ResNet v2, GroupNorm", "resnetv2_50", layers=(1, 1), channels=(32, 64), stem_chs=16),
    timm("RegNet", "regnetx_002", remark=_NORM),
    timm("DenseNet", "densenet121", remark=_NORM, block_config=(2, 2), growth_rate=8),
    timm("DPN", "dpn48b", remark=_NORM),
    timm("EfficientNet-Lite", "efficientnet_lite0", remark=_NORM),
    timm("MobileNet v3", "mobilenetv3_small_050", remark=_NORM),
    timm("GhostNet", "ghostnet_050", remark=_NORM),
    timm("MobileViT", "mobilevit_xxs", remark=_NORM),
)

_size = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
_size |= {"intermediate_size": 24, "max_position_embeddings": 32, "num_labels": CLASSES}
_relative = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}


def hugging(name: str, model: str, config: str, kind: str, **options: Any) -> Model:
    build = lambda package: getattr(package, model)(getattr(package, config)(**options))
    return Model(name, "transformers", build, kind)


def bert(package: Any) -> nn.Module:
    return package.BertForSequenceClassification(package.BertConfig(**_size))


def gpt2(package: Any) -> nn.Module:
    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 32}
    return package.GPT2LMHeadModel(package.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2))


def llama(package: Any) -> nn.Module:
    return package.LlamaForCausalLM(package.LlamaConfig(**_size))


_bart = {
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "max_position_embeddings": 32,
}
_bart |= {
    f"{side}_{part}": n
    for side in ("encoder", "decoder")
    for part, n in (("attention_heads", 2), ("ffn_dim", 24))
}
TRANSFORMERS = (
    Model("BERT", "transformers", bert, "classified"),
    hugging(
        "DistilBERT",
        "DistilBertForSequenceClassification",
        "DistilBertConfig",
        "classified",
        vocab_size=WORDS,
        dim=16,
        n_layers=1,
        n_heads=2,
        hidden_dim=24,
        max_position_embeddings=32,
        num_labels=CLASSES,
    ),
    hugging("RoBERTa", "RobertaForSequenceClassification", "RobertaConfig", "classified", **_size),
    hugging(
        "ALBERT", "AlbertForSequenceClassification", "AlbertConfig", "classified", **_size, embedding_size=8
    ),
    hugging(
        "ELECTRA",
        "ElectraForSequenceClassification",
        "ElectraConfig",
        "classified",
        **_size,
        embedding_size=8,
    ),
    hugging(
        "DeBERTa", "DebertaForSequenceClassification", "DebertaConfig", "classified", **_size, **_relative
    ),
    hugging(
        "DeBERTa v2 and v3",
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        "classified",
        **_size,
        **_relative,
        position_buckets=8,
        share_att_key=True,
        norm_rel_ebd="layer_norm",
    ),
    Model("GPT-2", "transformers", gpt2, "continued"),
    hugging(
        "OPT",
        "OPTForCausalLM",
        "OPTConfig",
        "continued",
        **{k: v for k, v in _size.items() if k not in ("intermediate_size", "num_labels")},
        ffn_dim=24,
        word_embed_proj_dim=16,
    ),
    hugging(
        "BLOOM",
        "BloomForCausalLM",
        "BloomConfig",
        "continued",
        vocab_size=WORDS,
        hidden_size=16,
        n_layer=1,
        n_head=2,
    ),
    Model("Llama", "transformers", llama, "continued"),
    hugging("Mistral", "MistralForCausalLM", "MistralConfig", "continued", **_size, num_key_value_heads=1),
    hugging("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", "continued", **_size, num_key_value_heads=1),
    hugging(
        "Gemma", "GemmaForCausalLM", "GemmaConfig", "continued", **_size, num_key_value_heads=1, head_dim=8
    ),
    hugging(
        "Mamba",
        "MambaForCausalLM",
        "MambaConfig",
        "continued",
        vocab_size=WORDS,
        hidden_size=16,
        num_hidden_layers=1,
    ),
    hugging(
        "T5",
        "T5ForConditionalGeneration",
        "T5Config",
        "translated",
        vocab_size=WORDS,
        d_model=16,
        d_ff=24,
        d_kv=8,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    ),
    hugging("BART", "BartForConditionalGeneration", "BartConfig", "translated", **_bart),
    Model(
        "ViT",
        "transformers",
        lambda package: seen_by("ViTForImageClassification", "ViTConfig")(package),
        "16 pixels, seen",
    ),
    Model(
        "DeiT",
        "transformers",
        lambda package: seen_by("DeiTForImageClassification", "DeiTConfig")(package),
        "16 pixels, seen",
    ),
)


def seen_by(model: str, config: str) -> Callable[[Any], nn.Module]:
    sizes = {k: v for k, v in _size.items() if k not in ("vocab_size", "max_position_embeddings")}
    build = lambda package: getattr(package, model)(
        getattr(package, config)(**sizes, image_size=16, patch_size=8)
    )
    return build


def adapted(name: str, base: Callable[[Any], nn.Module], config: str, kind: str, **options: Any) -> Model:
    def build(package: Any) -> nn.Module:
        task = "SEQ_CLS" if kind == "classified" else "CAUSAL_LM"
        given = getattr(package, config)(task_type=task, **options)
        return package.get_peft_model(base(import_module("transformers")), given)

    return Model(name, "peft", build, kind)


def vit_with_lora(package: Any) -> nn.Module:
    vit = seen_by("ViTForImageClassification", "ViTConfig")(import_module("transformers"))
    return sf.finetune.lora(vit, rank=2, head=["classifier"])


PEFT = (
    Model("LoRA on ViT", "peft", vit_with_lora, "16 pixels, seen"),
    adapted("LoRA on BERT", bert, "LoraConfig", "classified", r=2),
    adapted("LoRA on GPT-2", gpt2, "LoraConfig", "continued", r=2, fan_in_fan_out=True),
    adapted(
        "DoRA", llama, "LoraConfig", "continued", r=2, use_dora=True, target_modules=["q_proj", "v_proj"]
    ),
    adapted(
        "IA3",
        llama,
        "IA3Config",
        "continued",
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
    ),
    adapted("prompt tuning", gpt2, "PromptTuningConfig", "continued", num_virtual_tokens=4),
    adapted("prompt tuning, classes", bert, "PromptTuningConfig", "classified", num_virtual_tokens=4),
    adapted(
        "p-tuning", gpt2, "PromptEncoderConfig", "continued", num_virtual_tokens=4, encoder_hidden_size=8
    ),
    adapted("prefix tuning", llama, "PrefixTuningConfig", "continued", num_virtual_tokens=4),
)
MODELS = (*TIMM, *TRANSFORMERS, *PEFT)


# The page


def tables() -> dict[str, str]:
    """The page's tables by name, as Markdown."""
    layers = [(each.name, each.verdict, each.remark) for each in LAYERS]
    refused = [(each.name, each.instead) for each in REFUSED]
    models = [(each.package, each.name, "fast", each.remark) for each in MODELS]
    return {
        "layers": _table(("layer", "path", "remark"), layers),
        "refused": _table(("refused", "instead"), refused),
        "models": _table(("package", "model", "path", "remark"), models),
    }


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ("---",) * len(head), *rows))


def written(page: str) -> str:
    """The page with its tables as they are now."""
    for name, table in tables().items():
        start, end = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, rest = page.split(start)
        page = before + start + table + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    sys.stdout.write(f"{PAGE.name}\n")
    PAGE.write_text(written(PAGE.read_text()))
