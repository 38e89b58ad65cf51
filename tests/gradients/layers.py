"""One small model for every layer family, with an input that fits: the rows of the layer-rule tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from saltflat.gradients.standardised import standardised

CLASSES = 5
WORDS = 11


def per_example_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of (rows, classes) or (rows, time, classes), one number a row."""
    each = F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
    return each.view(len(targets), -1).mean(1)


@dataclass(frozen=True)
class Family:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one input; for tokens, their number
    tokens: bool = False

    def data(self, rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        g = torch.Generator().manual_seed(seed)
        if self.tokens:
            x, y = torch.randint(WORDS, (2, rows, *self.shape), generator=g)
            return x, y
        x = torch.randn(rows, *self.shape, generator=g, dtype=torch.float64)
        return x, torch.randint(CLASSES, (rows,), generator=g)


def head(features: int) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(features, CLASSES)]


class Words(nn.Module):
    """Embedding, a recurrent layer, a word for every position."""

    def __init__(self, kind: str, *, tie: bool = False, **options: object) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 6, padding_idx=0)
        self.recurrent = getattr(nn, kind)(6, 6, **{"batch_first": True, **options})
        width = (self.recurrent.proj_size or 6) * (1 + self.recurrent.bidirectional)
        self.out = nn.Linear(width, WORDS, bias=not tie)
        if tie:
            self.out.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        if self.recurrent.batch_first:
            return self.out(self.recurrent(x)[0])
        return self.out(self.recurrent(x.transpose(0, 1))[0].transpose(0, 1))


def projected_and_frozen() -> nn.Module:
    model = Words("LSTM", proj_size=2)
    model.recurrent.weight_hr_l0.requires_grad_(False)
    return model


class LastState(nn.Module):
    """Only the first output and the last state are used: most time steps have no gradient of their own."""

    def __init__(self, kind: str, **options: int) -> None:
        super().__init__()
        self.recurrent = getattr(nn, kind)(3, 4, batch_first=True, bidirectional=True, **options)
        self.out = nn.Linear(3 * (self.recurrent.proj_size or 4), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        output, state = self.recurrent(x)
        last = state[0] if isinstance(state, tuple) else state
        return self.out(torch.cat([output[:, 0], last[1]], 1))


class Bare(nn.Module):
    """A class token, position embeddings of two sorts, a scale, a matrix product, a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 8)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.position = nn.Parameter(torch.randn(1, 6, 8))
        self.table = nn.Embedding(9, 8)
        self.scale = nn.Parameter(torch.randn(8))
        self.matrix = nn.Parameter(torch.randn(8, 8))
        self.temperature = nn.Parameter(torch.tensor(0.7))
        self.register_buffer("mask", (torch.rand(8, 8) > 0.3).double())
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.enter(x)], 1)
        x = x + self.position[:, : x.shape[1]] + self.table(torch.arange(x.shape[1]))
        x = torch.tanh(x * self.scale)
        x = x @ (self.matrix * self.mask)
        return self.out(x[:, 0]) * self.temperature + x.mean((1, 2))[:, None] * 0


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, **options)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        first = self.attention.batch_first
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        z = x if first else x.transpose(0, 1)
        z, _ = self.attention(z, z, z, attn_mask=mask, need_weights=not first)
        return self.out((z if first else z.transpose(0, 1)).mean(1))


class CrossAttention(nn.Module):
    """Queries, keys and values of three widths, a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, kdim=4, vdim=4, batch_first=True, add_zero_attn=True)
        self.again = nn.MultiheadAttention(8, 4, batch_first=True)
        self.out = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.zeros(x.shape[:2], dtype=torch.bool)
        padding[:, -1] = True
        z, _ = self.attention(x[:, :2], x[..., :4], x[..., 4:], key_padding_mask=padding)
        z, _ = self.again(z, x, x)
        return self.out(z.mean(1))


class Repeated(nn.Module):
    """Layers called twice, and a weight that is also used as a plain tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.out = nn.Linear(4, 4), nn.Linear(4, CLASSES)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.wide = nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(torch.tanh(self.linear(x)))
        z = x[:, :, None, None] * torch.linspace(0, 1, 9, dtype=x.dtype).view(3, 3)
        z = self.conv(torch.tanh(self.conv(z)))
        wide = z.repeat(1, 8, 1, 1)
        wide = self.wide(torch.tanh(self.wide(wide)))
        penalty = self.out.weight[:, :2].square().sum() + self.linear.weight.norm()
        return self.out(z.mean((2, 3))) + penalty * wide.mean((1, 2, 3)).unsqueeze(1)


class Standard(nn.Conv2d):
    def __init__(self, *args: int, gain: bool = True, **options: int) -> None:
        super().__init__(*args, **options)
        self.gain = nn.Parameter(torch.randn(args[1])) if gain else None

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, standardised(self.weight, self.gain), self.bias, self.stride, self.padding)


def standardised_net() -> nn.Module:
    tiny = Standard(32, 32, 3, padding=1)
    with torch.no_grad():
        tiny.weight[0] *= 1e-3  # so small that the floor takes its norm's place
        tiny.gain[1] = 0  # switched off
    return nn.Sequential(
        Standard(3, 32, 3, padding=1),
        nn.ReLU(),
        Standard(32, 32, 3, padding=1, stride=2, gain=False),
        nn.ReLU(inplace=True),
        tiny,
        nn.Tanh(),
        Standard(32, 32, 3, padding=1),
        nn.ReLU(inplace=True),
        *head(32 * 9),
    )


class StandardGroups(Standard):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, standardised(self.weight, self.gain), self.bias, padding=1, groups=2)


class StandardLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, standardised(self.weight), self.bias)


class StandardTransposed(nn.ConvTranspose2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.conv_transpose2d(x, standardised(self.weight), self.bias)


class StandardTwice(Standard):
    """One standardised weight in a convolution and, entry by entry, in a product."""

    def forward(self, x: Tensor) -> Tensor:
        weight = standardised(self.weight, self.gain)
        return F.conv2d(x, weight, self.bias, padding=1) + x * weight[:, 0, :1, :1]


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh(), *head(6))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    model[5].bias.requires_grad_(False)
    return model


class Written(nn.Module):
    """Data written into a tensor that the forward pass made: it is data from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(3, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states = torch.zeros(len(x), 4, 6, dtype=x.dtype)
        states[:, 0] = self.first(x)
        for t in range(1, 4):
            states[:, t] = torch.tanh(self.second(states[:, t - 1].clone()))
        return self.out(states.mean(1))


class Folded(nn.Module):
    """Positions folded into the first axis, and linear layers written as a sum and a product, as GPT-2 has them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, 6)), nn.Parameter(torch.randn(6))
        self.layer, self.out = nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        z = self.layer(torch.tanh(z)).view(*x.shape[:-1], 6)
        return self.out(torch.tanh(z).mean(1))


class Typed(nn.Module):
    """Token types that are the same for all, positions that are not, and a learned bias of attention: BERT and T5."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.types, self.places = nn.Embedding(WORDS, 8), nn.Embedding(2, 8), nn.Embedding(9, 8)
        self.near = nn.Embedding(9, 2)
        self.out = nn.Linear(8, WORDS)
        self.register_buffer("type_of", torch.zeros(1, 9, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        rows, time = x.shape
        types = self.types(self.type_of[:, :time].expand(rows, time))
        places = self.places(torch.arange(time).unsqueeze(0).repeat(rows, 1))
        z = torch.tanh(self.words(x) + types + places).view(rows, time, 2, 4).transpose(1, 2)
        apart = (torch.arange(time)[:, None] - torch.arange(time)).abs()
        bias = self.near(apart).permute(2, 0, 1).unsqueeze(0)
        z = F.scaled_dot_product_attention(z, z, z, attn_mask=bias)
        return self.out(z.transpose(1, 2).flatten(2))


class Mapped(nn.Module):
    """Attention with a map each for query, key and value, on 17 words, and few of the many places of a table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 16), nn.Embedding(40, 16, padding_idx=3)
        self.query, self.key, self.value = (nn.Linear(16, 16, bias=bias) for bias in (True, False, True))
        self.mix = nn.Linear(16, 16)
        self.narrow = nn.ModuleList(nn.Linear(16, width) for width in (3, 2))  # less than their input is wide
        self.out = nn.Linear(21, WORDS)
        self.register_buffer("place_of", torch.arange(40).unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.words(x) + self.places(self.place_of[:, : x.shape[1]]))
        q, k, v = self.query(z), self.key(z), self.value(z)
        mixed = torch.tanh(
            self.mix(F.scaled_dot_product_attention(q, k, v))
        )  # another input of the same shape
        few = mixed[:, :2].contiguous()
        beside = torch.cat([narrow(few) for narrow in self.narrow], -1).mean(1, keepdim=True)
        return self.out(torch.cat([mixed, beside.expand(-1, x.shape[1], -1)], -1))


class Cells(nn.Module):
    """A recurrence written as a loop over a cell, from a state that forward makes itself."""

    def __init__(self, kind: str, **options: object) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)
        self.cell = getattr(nn, kind)(6, 6, **options)

    def forward(self, words: Tensor) -> Tensor:
        x, found = self.embedding(words), []
        state = torch.zeros(len(x), 6, dtype=x.dtype)
        both = (state, state.clone()) if isinstance(self.cell, nn.LSTMCell) else state
        for time in range(x.shape[1]):
            both = self.cell(x[:, time], both)
            found.append(both[0] if isinstance(both, tuple) else both)
        return self.out(torch.stack(found, 1))


class Bags(nn.Module):
    """Bags of words; with ``mode="sum"`` each word has a weight of its own, which is data and is differentiated."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.bags, self.scales = nn.EmbeddingBag(WORDS, 6, **options), nn.Embedding(WORDS, 1)
        self.out = nn.Linear(6, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        weights = self.scales(words).squeeze(2) if self.bags.mode == "sum" else None
        scale = 1 if weights is not None else 1 + self.scales(words[:, :1])
        found = torch.tanh(self.bags(words, per_sample_weights=weights)).unsqueeze(1) * scale
        return self.out(found.expand(-1, words.shape[1], -1))


class FlatBags(nn.Module):
    """Bags as stretches of a flat list of words, two for each example, the second one from the third word on."""

    def __init__(self, *, ends: bool = False, **options: object) -> None:
        super().__init__()
        self.bags = nn.EmbeddingBag(WORDS, 6, include_last_offset=ends, **options)
        self.scales, self.out = nn.Embedding(WORDS, 1), nn.Linear(6, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        rows, length = words.shape
        starts = length * torch.arange(rows).unsqueeze(1) + torch.tensor([0, 2])
        starts = starts.flatten()
        if self.bags.include_last_offset:
            starts = torch.cat([starts, torch.tensor([words.numel()])])
        own = self.scales(words).flatten() if self.bags.mode == "sum" else None
        found = torch.tanh(self.bags(words.flatten(), starts, per_sample_weights=own))
        x = self.out(torch.tanh(self.scales.weight.sum() * found)).view(rows, 2, -1).sum(1, keepdim=True)
        return x.expand(-1, length, -1)


class Einsum(nn.Module):
    """Projections, heads, an output, a bilinear form and a weight that is summed over, all by letters."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.back = nn.Parameter(torch.randn(6, 2, 3)), nn.Parameter(torch.randn(2, 3, 6))
        self.heads, self.form = nn.Parameter(torch.randn(2, 3, 3)), nn.Parameter(torch.randn(6, 6, 6))
        self.plain, self.turned = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6, 6))
        self.over, self.out = nn.Parameter(torch.randn(6, 3)), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(torch.einsum("btd,de->bte", x, self.plain))
        x = torch.tanh(torch.einsum("...d,ed->...e", x, self.turned))
        h = torch.tanh(torch.einsum("btd,dhk->bhtk", x, self.into))
        h = torch.tanh(torch.einsum("bhtk, hkj -> bhtj", h, self.heads))
        x = torch.tanh(torch.einsum("bhtk,hkd->btd", [h, self.back]))
        x = torch.einsum("bi,ioj,bj->bo", x[:, 0], self.form, x[:, 1]) + torch.einsum(
            "bd,dz->bd", x[:, 2], self.over
        )
        return self.out(x)


class Mixed(nn.Module):
    """A weight on the left mixes the positions of each row."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.wide = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.randn(2, 3))
        self.out = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out((self.wide @ torch.tanh(torch.matmul(self.left, x))).flatten(1))


class SequenceFirst(nn.Module):
    """Batch first in and out, sequence first inside: attention, norms, products, places, a state for every time."""

    def __init__(self, layer: Callable[[], nn.Module] | None = None, width: int = 4) -> None:
        super().__init__()
        self.layer = layer() if layer else nn.Identity()
        self.enter, self.norm, self.table = (
            nn.Linear(width, width),
            nn.LayerNorm(width),
            nn.Embedding(9, width),
        )
        self.places, self.scale = nn.Parameter(torch.randn(9, 1, width)), nn.Parameter(torch.randn(width))
        self.matrix, self.out = nn.Parameter(torch.randn(width, width)), nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x.permute(1, 0, 2)) + self.places[: x.shape[1]]
        x = x + self.table(torch.arange(len(x))).unsqueeze(1)
        x = torch.tanh(self.norm(x) * self.scale) @ self.matrix
        x = self.layer(x[:2], x) if isinstance(self.layer, nn.TransformerDecoderLayer) else self.layer(x)
        x = x[0] if isinstance(x, tuple) else x
        by_time = torch.stack([torch.tanh(step) for step in x])
        late, middle = self.out(by_time)[-1], self.out(by_time.mean(0))
        return late + middle + self.out(by_time.transpose(0, 1).reshape(x.shape[1], -1, x.shape[2])).sum(1)


class Spread(nn.Module):
    """Rows get behind time by broadcasting, by writing and by spreading, and are brought back by a transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.third, self.out = nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        times = torch.linspace(-1, 1, 4, dtype=x.dtype).view(4, 1, 1)
        spread = x + times
        states = torch.zeros(4, len(x), 4, dtype=x.dtype)
        for time in range(4):
            states[time] = torch.tanh(self.first(x) * (1 + time))
        again = torch.tanh(x.expand(4, -1, -1) * times)
        z = torch.tanh(self.second(spread.transpose(0, 1))) + self.third(torch.tanh(states).transpose(0, 1))
        z = z + torch.tanh(self.third(again)).permute(1, 0, 2) + self.second(spread).transpose(0, 1)
        return self.out(z.mean(1))


class Heads(nn.Module):
    """Attention written by hand, time first, with the heads folded into the batch for the products."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.back, self.out = nn.Linear(4, 12), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(0, 1)
        time, rows, width = x.shape
        q, k, v = (z.reshape(time, rows * 2, 2).transpose(0, 1) for z in self.qkv(x).chunk(3, -1))
        z = torch.bmm(torch.softmax(q @ k.mT, -1), v)
        z = self.back(z.transpose(0, 1).contiguous().view(time, rows, width))
        return self.out(torch.tanh(z).amax(0))


class Windows(nn.Module):
    """Attention in windows folded into the batch, with a bias looked up in a table, and a mask for each window."""

    def __init__(self, *, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.qkv, self.out = nn.Linear(4, 12), nn.Linear(4, CLASSES)
        self.table = nn.Parameter(torch.randn(7, 2))
        self.register_buffer("where", torch.arange(4)[:, None] - torch.arange(4) + 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = len(x)
        x = x.view(rows, 2, 4, 4).reshape(-1, 4, 4)
        q, k, v = self.qkv(x).reshape(len(x), 4, 3, 2, 2).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.where.view(-1)].view(4, 4, 2).permute(2, 0, 1).unsqueeze(0)
        mask = torch.zeros(2, 4, 4, dtype=x.dtype)
        mask[1, :2, 2:] = -9.0
        if self.fused:
            own = bias + mask.view(1, 2, 1, 4, 4).expand(rows, 2, 2, 4, 4).reshape(-1, 2, 4, 4)
            z = F.scaled_dot_product_attention(q, k, v, attn_mask=own)
        else:
            scores = q @ k.mT + bias
            scores = scores.view(rows, 2, 2, 4, 4) + mask.unsqueeze(1).unsqueeze(0)
            z = torch.softmax(scores.view(-1, 2, 4, 4), -1) @ v
        return self.out(torch.tanh(z.transpose(1, 2).reshape(rows, 8, 4)).mean(1))


def fixed_norm(width: int, *, trained: bool, kind: type = nn.BatchNorm2d) -> nn.Module:
    norm = kind(width).eval()
    with torch.no_grad():
        norm.running_mean.normal_()
        norm.running_var.uniform_(0.5, 2.0)
        norm.weight.normal_()
    return norm.requires_grad_(trained)


class Frames(nn.Module):
    """Several pictures in an example, folded into the batch for the layers on pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.out = nn.Conv2d(2, 4, 2), nn.GroupNorm(2, 4), nn.Linear(16, CLASSES)
        self.fixed, self.prelu = fixed_norm(4, trained=True), nn.PReLU(4)

    def forward(self, x: Tensor) -> Tensor:
        z = x.flatten(0, 1)
        z = torch.tanh(self.fixed(self.prelu(self.norm(self.conv(z)))))
        return self.out(z.view(*x.shape[:2], -1).mean(1))


class Added(nn.Module):
    """Two maps of one input whose outputs are added: one and the same gradient at both."""

    def __init__(self, *biases: bool, inputs: int = 5) -> None:
        super().__init__()
        self.maps = nn.ModuleList(nn.Linear(inputs, 4, bias) for bias in biases)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(sum(each(x) for each in self.maps)).mean(1))


FAMILIES: dict[str, Family] = {
    "maps added": Family(lambda: Added(True, True), (3, 5)),
    "maps added, one bias": Family(lambda: Added(True, False), (3, 5)),
    "maps added, wide": Family(lambda: Added(True, True, inputs=19), (3, 19)),
    "linear over positions": Family(
        lambda: nn.Sequential(nn.Linear(7, 6), nn.Tanh(), nn.Linear(6, 6), nn.ReLU(inplace=True), *head(30)),
        (5, 7),
    ),
    "linear": Family(lambda: nn.Sequential(nn.Linear(7, 6), nn.ReLU(inplace=True), *head(6)), (7,)),
    "linear positions": Family(
        lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), *head(36)), (4, 3, 5)
    ),
    "folded positions": Family(lambda: Folded(5), (4, 5)),
    "wide folded positions": Family(lambda: Folded(64), (2, 64)),
    "token types": Family(Typed, (7,), tokens=True),
    "attention, maps of one input": Family(Mapped, (17,), tokens=True),
    "wide linear positions": Family(lambda: nn.Sequential(nn.Linear(24, 24), nn.Tanh(), *head(48)), (2, 24)),
    "conv1d": Family(
        lambda: nn.Sequential(
            nn.Conv1d(3, 8, 3, padding=1, stride=2), nn.Tanh(), nn.Conv1d(8, 6, 4, padding="same"), *head(30)
        ),
        (3, 10),
    ),
    "conv2d": Family(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 16, 3, stride=2),
            nn.Tanh(),
            nn.Conv2d(16, 16, (3, 1), padding=(2, 0), dilation=2),
            nn.Conv2d(16, 8, 1),
            *head(200),
        ),
        (3, 12, 12),
    ),
    "conv2d by pixels": Family(
        lambda: nn.Sequential(
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(32, 32, 3, padding=2, dilation=2),
            nn.Conv2d(32, 32, 1),
            nn.Conv2d(32, 16, 2),
            *head(64),
        ),
        (16, 6, 6),
    ),
    "conv2d padding modes": Family(
        lambda: nn.Sequential(
            nn.Conv2d(3, 9, 3, padding=1, padding_mode="reflect"),
            nn.Tanh(),
            nn.Conv2d(9, 6, 3, padding="same", padding_mode="circular"),
            nn.Conv2d(6, 6, 2, padding="same", dilation=3),
            nn.Conv2d(6, 4, 3, padding="valid", padding_mode="replicate"),
            *head(36),
        ),
        (3, 5, 5),
    ),
    "grouped conv2d": Family(
        lambda: nn.Sequential(
            nn.Conv2d(4, 8, 3, groups=2, bias=False),
            nn.SELU(),
            nn.Conv2d(8, 8, 3, groups=8, padding=1),
            *head(32),
        ),
        (4, 4, 4),
    ),
    "conv3d": Family(
        lambda: nn.Sequential(nn.Conv3d(2, 4, 3, padding=1, stride=(1, 2, 1)), nn.Tanh(), *head(72)),
        (2, 3, 4, 3),
    ),
    "transposed": Family(
        lambda: nn.Sequential(
            nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
            nn.Tanh(),
            nn.Unflatten(0, (-1, 1)),
            nn.Flatten(1, 2),
            nn.ConvTranspose2d(6, 2, 2, dilation=2),
            nn.Flatten(2),
            nn.ConvTranspose1d(2, 2, 3, stride=2),
            *head(2 * 129),
        ),
        (4, 3, 3),
    ),
    "transposed 3d": Family(lambda: nn.Sequential(nn.ConvTranspose3d(2, 2, 2), *head(2 * 27)), (2, 2, 2, 2)),
    "group norm": Family(
        lambda: nn.Sequential(nn.Conv2d(3, 8, 1), nn.GroupNorm(4, 8), nn.ReLU(inplace=True), *head(72)),
        (3, 3, 3),
    ),
    "layer norm": Family(
        lambda: nn.Sequential(
            nn.LayerNorm(6), nn.Linear(6, 6), nn.LayerNorm((4, 6), bias=False), nn.RMSNorm(6), *head(24)
        ),
        (4, 6),
    ),
    "fixed batch norm": Family(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), fixed_norm(4, trained=False), nn.Tanh(), *head(36)),
        (3, 3, 3),
    ),
    "fixed batch norm, trained": Family(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 1),
            fixed_norm(4, trained=True),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(36, 6),
            fixed_norm(6, trained=True, kind=nn.BatchNorm1d),
            *head(6),
        ),
        (3, 3, 3),
    ),
    "folded pictures": Family(Frames, (3, 2, 3, 3)),
    "instance norm": Family(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.InstanceNorm2d(4, affine=True), nn.Tanh(), *head(36)),
        (3, 3, 3),
    ),
    "lstm": Family(lambda: Words("LSTM"), (7,), tokens=True),
    "lstm, deep": Family(lambda: Words("LSTM", num_layers=2, bidirectional=True), (5,), tokens=True),
    "lstm, no bias": Family(lambda: Words("LSTM", bias=False), (5,), tokens=True),
    "lstm, time first": Family(lambda: Words("LSTM", batch_first=False), (5,), tokens=True),
    "lstm, last state": Family(lambda: LastState("LSTM"), (4, 3)),
    "lstm, projected": Family(
        lambda: Words("LSTM", num_layers=2, bidirectional=True, proj_size=2), (5,), tokens=True
    ),
    "lstm, projected, no bias": Family(
        lambda: Words("LSTM", num_layers=2, bias=False, proj_size=5, batch_first=False), (4,), tokens=True
    ),
    "lstm, projected, frozen": Family(projected_and_frozen, (3,), tokens=True),
    "lstm, projected, last state": Family(lambda: LastState("LSTM", proj_size=2), (4, 3)),
    "gru": Family(lambda: Words("GRU", num_layers=2, bidirectional=True), (5,), tokens=True),
    "gru, last state": Family(lambda: LastState("GRU"), (4, 3)),
    "rnn": Family(lambda: Words("RNN", nonlinearity="relu"), (5,), tokens=True),
    "rnn, tanh": Family(lambda: Words("RNN"), (5,), tokens=True),
    "lstm cell": Family(lambda: Cells("LSTMCell"), (5,), tokens=True),
    "gru cell": Family(lambda: Cells("GRUCell"), (5,), tokens=True),
    "gru cell, no bias": Family(lambda: Cells("GRUCell", bias=False), (5,), tokens=True),
    "rnn cell": Family(lambda: Cells("RNNCell"), (5,), tokens=True),
    "rnn cell, relu": Family(lambda: Cells("RNNCell", nonlinearity="relu"), (5,), tokens=True),
    "tied": Family(lambda: Words("LSTM", tie=True), (7,), tokens=True),
    "attention": Family(lambda: Attention(batch_first=True, add_bias_kv=True), (4, 8)),
    "attention, time first": Family(lambda: Attention(bias=False), (4, 8)),
    "cross attention": Family(CrossAttention, (4, 8)),
    "encoder layer": Family(
        lambda: nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), *head(32)),
        (4, 8),
    ),
    "bare parameters": Family(Bare, (5, 3)),
    "repeated layers": Family(Repeated, (4,)),
    "written": Family(Written, (3,)),
    "frozen": Family(frozen, (4,)),
    "weight norm": Family(
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 6)), nn.Tanh(), *head(6)),
        (4,),
    ),
    "standardised": Family(standardised_net, (3, 6, 6)),
    "standardised, groups": Family(
        lambda: nn.Sequential(StandardGroups(8, 8, 3, groups=2), nn.Tanh(), *head(8 * 16)), (8, 4, 4)
    ),
    "standardised, linear": Family(lambda: nn.Sequential(StandardLinear(8, 8), nn.Tanh(), *head(8)), (8,)),
    "standardised, transposed": Family(
        lambda: nn.Sequential(StandardTransposed(8, 6, 2), nn.Tanh(), *head(6 * 25)), (8, 4, 4)
    ),
    "standardised, used twice": Family(
        lambda: nn.Sequential(StandardTwice(8, 8, 3, padding=1), nn.Tanh(), *head(8 * 16)), (8, 4, 4)
    ),
    "prelu": Family(lambda: nn.Sequential(nn.Linear(4, 6), nn.PReLU(6), nn.Tanh(), *head(6)), (4,)),
    "prelu, channels": Family(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.PReLU(4), nn.Conv2d(4, 4, 2), nn.PReLU(), *head(16)),
        (3, 3, 3),
    ),
    "embedding bag": Family(lambda: Bags(mode="mean"), (7,), tokens=True),
    "embedding bag, padding": Family(lambda: Bags(mode="mean", padding_idx=0), (5,), tokens=True),
    "embedding bag, weights": Family(lambda: Bags(mode="sum", padding_idx=0), (6,), tokens=True),
    "embedding bag, largest": Family(lambda: Bags(mode="max", padding_idx=-1), (5,), tokens=True),
    "embedding bag, one word": Family(lambda: Bags(mode="max"), (1,), tokens=True),
    "embedding bag, offsets": Family(lambda: FlatBags(mode="mean", padding_idx=0), (5,), tokens=True),
    "embedding bag, offsets, ends": Family(lambda: FlatBags(mode="mean", ends=True), (3,), tokens=True),
    "embedding bag, offsets, weights": Family(lambda: FlatBags(mode="sum"), (6,), tokens=True),
    "embedding bag, offsets, largest": Family(lambda: FlatBags(mode="max", padding_idx=1), (2,), tokens=True),
    "embedding, sparse": Family(
        lambda: nn.Sequential(nn.Embedding(WORDS, 6, sparse=True), nn.Tanh(), nn.Linear(6, WORDS)),
        (4,),
        tokens=True,
    ),
    "embedding bag, sparse": Family(lambda: Bags(mode="mean", sparse=True), (5,), tokens=True),
    "sequence first": Family(SequenceFirst, (4, 4)),
    "sequence first, encoder": Family(
        lambda: SequenceFirst(lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)), (4, 4)
    ),
    "sequence first, norm first": Family(
        lambda: SequenceFirst(lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, norm_first=True)),
        (3, 4),
    ),
    "sequence first, decoder": Family(
        lambda: SequenceFirst(lambda: nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0)), (4, 4)
    ),
    "sequence first, lstm": Family(lambda: SequenceFirst(lambda: nn.LSTM(4, 4, num_layers=2)), (4, 4)),
    "sequence first, gru": Family(lambda: SequenceFirst(lambda: nn.GRU(4, 4)), (3, 4)),
    "sequence first, rnn": Family(lambda: SequenceFirst(lambda: nn.RNN(4, 4)), (4, 4)),
    "sequence first, spread": Family(Spread, (4,)),
    "sequence first, heads": Family(Heads, (4, 4)),
    "windows": Family(lambda: Windows(fused=False), (8, 4)),
    "windows, fused": Family(lambda: Windows(fused=True), (8, 4)),
    "einsum": Family(Einsum, (4, 6)),
    "matmul from the left": Family(Mixed, (4, 6)),
    "multilinear, no rule": Family(lambda: Bilinear(), (4,)),
}


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.form, self.core = nn.Bilinear(4, 4, 6), nn.Parameter(torch.randn(6, CLASSES, 6))

    def forward(self, x: Tensor) -> Tensor:
        z = torch.tanh(self.form(x, x.flip(1)))
        return torch.einsum("ni,ioj,nj->no", z, self.core, z)
