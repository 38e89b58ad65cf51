"""What processes with sharded weights run in `test_shards.py`; `ranks.started` starts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import ranks  # noqa: F401  (it finds the other helpers)
import torch
from reference import FixedNoise
from torch import Tensor, distributed, nn
from torch.nn import functional as F

import saltflat as sf
from saltflat.clipping import Automatic, PerLayer
from saltflat.core import shards
from saltflat.data import TensorUnits
from saltflat.errors import ModelError, SaltflatError
from saltflat.tree import Tree, own_part, whole

SIZE, WORDS, LENGTH, WIDTH, LAYERS = 24, 11, 6, 12, 3


class Block(nn.Module):
    """Attention and a small network, as language models have them."""

    def __init__(self, width: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Language(nn.Module):
    """A small transformer whose table of words is used twice: to read them and to say them."""

    def __init__(self, width: int = WIDTH, layers: int = LAYERS, words: int = WORDS) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(1, LENGTH, width) / 9)
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def loss(predict: Any, batch: Any) -> Tensor:
    """The mean over an example's own words."""
    tokens, following = batch
    each = F.cross_entropy(predict(tokens).transpose(1, 2), following, reduction="none")
    return each.mean(1)


def sentences(count: int = SIZE) -> tuple[Tensor, Tensor]:
    words = torch.randint(WORDS, (count, LENGTH + 1), generator=torch.Generator().manual_seed(4))
    return words[:, :-1], words[:, 1:]


def language(*, sharded: bool, dtype: torch.dtype = torch.float64, **sizes: int) -> Language:
    torch.manual_seed(5)
    model = Language(**sizes).to(dtype)
    return shard(model) if sharded else model


def shard(model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def in_group() -> bool:
    return distributed.is_initialized()


def adamw(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(weights, lr=0.01)


METHODS: dict[str, dict[str, Any]] = {
    "DP-SGD": {"method": sf.methods.DPSGD()},
    "DP-SAT": {"method": sf.methods.SAT(radius=0.1), "optimizer": sf.optimizers.SGD(lr=0.5, momentum=0.5)},
    "DP-SAM": {"method": sf.methods.SAM(radius=0.1)},
    "DPLIS": {
        "method": sf.methods.DPLIS(lr=0.2, copies=3),
        "noise": 1.0,
    },  # whose jitter is as large as the noise
    "DPLIS by unit": {
        "method": sf.methods.DPLIS(lr=0.2, copies=2, per_example=True),
        "noise": 1.0,
        "steps": 1,
    },
    "DP-SAT drift": {"method": sf.methods.SAT(radius=0.1, drift=2)},
    "Quantile": {"method": sf.methods.Quantile(sf.methods.DPSGD())},
    "Gap": {"method": sf.methods.Gap(method=sf.methods.SAT(radius=0.1), radius=0.1, bound=1.0, share=0.1)},
    "by layer": {"method": sf.methods.DPSGD(), "clip_norm": PerLayer(0.3)},
    "automatic, AdamW": {
        "method": sf.methods.DPSGD(),
        "clip_norm": Automatic(0.3),
        "optimizer": sf.optimizers.Torch(adamw),
    },
    "AdamBC": {"method": sf.methods.DPSGD(), "optimizer": sf.optimizers.AdamBC(lr=0.01)},
}


def plan(
    *, noise: float = 0.0, steps: int = 3, rate: float = 0.5, ema: Any = None, **changes: Any
) -> sf.Plan:
    given = {"clip_norm": 0.3, "optimizer": sf.optimizers.SGD(lr=0.5), **changes}
    phase = sf.Phase(steps=steps, noise_multiplier=noise, **given)
    return sf.Plan(phases=(phase,), rate=rate, size=SIZE, ema=ema)


def trained(
    model: Any, of: sf.Plan, *, noise: Any = None, sampling: Any = None, units: Any = None, **more: Any
) -> Tree:
    """The weights at the end, whole."""
    safeguards = {"noise": noise} if noise is not None else {}
    ended = sf.train(
        of,
        sf.per_example(model, loss),
        units or TensorUnits(sentences()),
        safeguards=sf.Safeguards(sampling=sampling or np.random.default_rng(3), **safeguards),
        running=sf.Running(physical=4, **more),
    )
    return {name: whole(leaf).clone() for name, leaf in ended.items()}


class Silent:
    """Noise that is 0, for plans that have some: what is compared are the sums."""

    private = False

    def normal(self, like: Tree) -> Tree:
        return {name: torch.zeros_like(leaf) for name, leaf in like.items()}

    def part(self, number: int) -> Silent:
        return self


def every_method(rank: int, folder: Path) -> Any:
    return {name: a_method(name) for name in METHODS}


def a_method(name: str) -> Tree:
    return trained(language(sharded=in_group()), plan(**METHODS[name]), noise=Silent())


class Draws:
    """A sampler that draws these units, the same in every step."""

    private = False

    def __init__(self, *units: int) -> None:
        self.units = units

    def random(self, size: int) -> Any:
        return np.where(np.isin(np.arange(size), self.units), 0.0, 1.0)


def one_unit(rank: int, folder: Path) -> Any:
    """The second process has nobody."""
    return trained(language(sharded=in_group()), plan(method=sf.methods.DPSGD()), sampling=Draws(5))


BAD = 17


def fails_on_one(predict: Any, batch: Any) -> Tensor:
    """A loss that fails where a certain sentence is in the batch, and then runs again and again in one process."""
    if bool((batch[0] == sentences()[0][BAD]).all(1).any()):
        raise ValueError("that sentence")
    return loss(predict, batch)


def gives_up(predict: Any, batch: Any) -> Tensor:
    """A loss that is refused where that sentence is, which one process alone has."""
    if bool((batch[0] == sentences()[0][BAD]).all(1).any()):
        raise ModelError("this will not do")
    return loss(predict, batch)


def an_offender(rank: int, folder: Path) -> Any:
    model = language(sharded=in_group())
    ended = sf.train(
        plan(method=sf.methods.DPSGD(), steps=1),
        sf.per_example(model, fails_on_one),
        TensorUnits(sentences()),
        safeguards=sf.Safeguards(sampling=Draws(2, BAD, 9, 21, 4)),
        running=sf.Running(physical=2),
    )
    return {name: whole(leaf) for name, leaf in ended.items()}


NOISE = {"noise": 2.0, "steps": 2, "clip_norm": 0.3, "rate": 0.5, "method": sf.methods.DPSGD()}
STD = 0.5 * 2.0 * 0.3 / (0.5 * SIZE)  # lr sigma C / expected: what a step of noise alone moves a weight by


def noise_alone(rank: int, folder: Path) -> Any:
    """What two steps on nobody moved the weights by that this process holds."""
    model = language(sharded=True, width=48)
    moves: list[Tensor] = []
    before = [flat_parts(model)]

    def look(told: Any) -> None:
        now = torch.cat([own_part(leaf).flatten() for leaf in told.params.values()])
        moves.append(now - before.pop())
        before.append(now)

    trained(model, plan(**NOISE), sampling=Draws(), watch=look)
    return moves


def flat_parts(model: nn.Module) -> Tensor:
    return torch.cat([own_part(p.detach()).flatten().clone() for p in model.parameters()])


def counted_noise(rank: int, folder: Path) -> Any:
    """The clip norm follows a noisy count: all processes must have heard the same."""
    rows = plan(noise=1.0, method=sf.methods.Quantile(sf.methods.DPSGD(), share=0.5), steps=3)
    return trained(language(sharded=in_group(), layers=1), rows, noise=sf.privacy.SeededNoise(3))


def memory(rank: int, folder: Path) -> Any:
    """Bytes of weights between steps, in this process and in all; the most that were whole at one time in a step."""
    from torch.multiprocessing.reductions import StorageWeakRef

    model, alive, most = language(sharded=True, width=32, layers=6), [], [0]
    plain = shards.whole_of

    def counted(leaf: Any) -> Tensor:
        made = plain(leaf)
        alive[:] = [(ref, size) for ref, size in alive if not ref.expired()]
        alive.append((StorageWeakRef(made.untyped_storage()), made.untyped_storage().nbytes()))
        most[0] = max(most[0], sum(size for _, size in alive))
        return made

    shards.whole_of = counted
    try:
        ended = sf.train(
            plan(method=sf.methods.SAT(radius=0.1), steps=2),
            sf.per_example(model, loss),
            TensorUnits(sentences()),
            safeguards=sf.Safeguards(sampling=np.random.default_rng(3)),
            running=sf.Running(physical=4),
        )
    finally:
        shards.whole_of = plain
    size = lambda leaves: sum(leaf.numel() * leaf.element_size() for leaf in leaves)
    return {
        "model": size(own_part(p) for p in model.parameters()),
        "tree": size(own_part(leaf) for leaf in ended.values()),
        "whole": size(ended.values()),
        "most": most[0],
        "left": sum(size for ref, size in alive if not ref.expired()),
    }


KEPT = {"method": sf.methods.SAT(radius=0.1), "optimizer": sf.optimizers.Torch(adamw), "steps": 4}


def resumed(rank: int, folder: Path) -> Any:
    """Stopped after two steps, and then to the end: as the first process's checkpoint has it."""
    kept = sf.Checkpoints(folder / "kept", every=1) if rank == 0 else None
    early = run_kept(kept, watch=lambda told: told.step == 2)
    copy_of(folder / "kept", folder / "early", rank)
    return {"early": early, "late": run_kept(kept), "straight": run_kept(None)}


def copy_of(source: Path, target: Path, rank: int) -> None:
    import shutil

    if rank == 0:
        shutil.copytree(source, target)
    if in_group():
        distributed.barrier()


def run_kept(kept: Any, *, group: bool = True, watch: Any = None) -> Tree:
    of = plan(ema=sf.optimizers.EMA(0.5), **KEPT)
    noise = sf.privacy.SeededNoise(1)
    return trained(language(sharded=group), of, noise=noise, checkpoints=kept, watch=watch)


def fitted(rank: int, folder: Path) -> Any:
    """`fit` with an eye on public rows, and what it leaves for those without a group."""
    model, seen = language(sharded=in_group(), dtype=torch.float32), []

    def look(told: Any) -> None:
        with torch.no_grad():
            seen.append(float(told.model(sentences()[0][:3]).sum()))

    made = sf.fit(
        model, loss, sentences(), noise_multiplier=1.0, delta=1e-3, epochs=2, batch_size=12, quiet=True,
        running=sf.Running(watch=look),
    )  # fmt: skip
    state = made.state_dict()
    if rank == 0:
        torch.save(state, folder / "weights.pt")
    with torch.no_grad():
        outputs = model(sentences()[0])
    return {
        "names": list(state),
        "statement": str(made),
        "seen": seen,
        "outputs": outputs,
        "epsilon": made.epsilon,
    }


def own_loop(rank: int, folder: Path) -> Any:
    """A loop of one's own, left after two steps and gone on with in another one."""
    given = {"method": sf.methods.SAT(radius=0.1), "delta": 1e-3, "batch_size": 12, "private": False}
    half = None
    for part in range(2):
        model = language(sharded=in_group())
        if part:
            load(model, folder / "half.pt")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        private = sf.make_private(
            model,
            loss,
            sentences(),
            optimizer=optimizer,
            epochs=2,
            safeguards=sf.Safeguards(sampling=Draws(1, 4, 5, 9, 16)),
            **given,
        )
        if part:
            private.load_state_dict(torch.load(folder / "half.pt")["loop"], lost=0)
        for batch in private:
            private.step(batch)
            if private.done == 2 and not part:
                state, weights = private.state_dict(), saved(model)
                if rank == 0:
                    torch.save({"loop": state, "model": weights}, folder / "half.pt")
                if in_group():
                    distributed.barrier()
        ended = {name: whole(p.detach()).clone() for name, p in model.named_parameters()}
        half, first = ended, ended if half is None else half
    return {"straight": first, "in two": ended}


def saved(model: nn.Module) -> Tree:
    return {name: whole(p.detach()).clone() for name, p in model.named_parameters()}


def load(model: nn.Module, path: Path) -> None:
    from saltflat.core.train import put
    from saltflat.tree import cut

    own = dict(model.named_parameters())
    put({name: cut(leaf, own[name]) for name, leaf in torch.load(path)["model"].items()}, model)


class Mixing(Language):
    """Every word is seen beside the mean over the batch."""

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x - 0.1 * x.mean(0, keepdim=True))
        return self.head(self.norm(x + self.places))


class Idle(Language):
    """The norm at the end is never called."""

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.words(tokens) + self.places + 0 * self.blocks[0](self.words(tokens)))


class Framed:
    """A method of one's own that clips around a point."""

    def init(self, params: Tree) -> None:
        return None

    def step(self, ask: Any, params: Tree, state: None) -> Any:
        return ask(params, frame=sf.frames.Shift({n: 0 * p for n, p in params.items()})), None


def refusals(rank: int, folder: Path) -> Any:
    """What is said of things that sharding cannot do; no step is charged for any of them but the last."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(5)
    partly, charged = Language(layers=1).double(), []
    for block in partly.blocks:
        fully_shard(block)
    apart = Language(layers=1).double()
    fully_shard(apart.words)
    shard(apart)
    sgd = {"method": sf.methods.DPSGD()}
    noisy = {**sgd, "noise": 1.0}
    seeded = lambda: sf.privacy.SeededNoise(1)

    class Meter:
        def step(self, rate: float, noise_multiplier: float) -> None:
            charged.append(rate)

    def tried(model: Any, plan: Any, noise: Any = None, of: Any = loss, sampling: Any = None) -> str:
        before = len(charged)
        try:
            sf.train(
                plan,
                sf.per_example(model, of),
                TensorUnits(sentences()),
                safeguards=sf.Safeguards(
                    noise=noise or sf.privacy.SecureNoise(),
                    sampling=sampling or sf.privacy.SecureSampling(),
                    meter=Meter() if rank == 0 else None,
                ),
            )
        except SaltflatError as error:
            return f"{len(charged) - before} charged: {type(error).__name__}: {error}"
        return "let pass"

    small = lambda kind=Language, **more: shard(kind(layers=1, **more).double())
    return {
        "discrete": tried(small(), plan(**noisy), sf.privacy.DiscreteNoise()),
        "fixed": tried(small(), plan(**noisy), FixedNoise(3)),
        "another source": tried(small(), plan(**noisy), None if rank == 0 else seeded()),
        "another plan": tried(small(), plan(**{**noisy, "noise": 1.0 - 0.5 * rank})),
        "partly": tried(partly, plan(**noisy)),
        "tied apart": tried(apart, plan(**noisy)),
        "narrow": tried(shard(Language(layers=1).bfloat16()), plan(**noisy)),
        "masked": tried(small(), plan(method=sf.methods.Masked(sf.methods.DPSGD()), noise=1.0)),
        "mixing": tried(small(Mixing), plan(**noisy)),
        "idle": tried(small(Idle), plan(**noisy)),
        "framed": tried(small(), plan(method=Framed(), noise=1.0)),
        "another schedule": tried(small(), plan(**noisy, noise_schedule=lambda step: 1.0 + rank)),
        "one gave up": tried(small(), plan(**noisy), of=gives_up, sampling=Draws(2, BAD, 9, 21, 4)),
    }


def numbers(rank: int, folder: Path) -> Any:
    """Numbers of a whole tree: of the weights, and of their ups and downs."""
    from saltflat import tree

    params = {name: p.detach() for name, p in language(sharded=in_group()).named_parameters()}
    other = {name: leaf.cos() for name, leaf in params.items()}
    climbed = tree.climb(params, other, radius=0.5)
    return {
        "dot": float(tree.dot(params, other)),
        "norm": float(tree.norm(params)),
        "size": tree.size(params),
        "climbed": {name: whole(leaf) for name, leaf in climbed.items()},
    }


def alike(rank: int, folder: Path) -> Any:
    return {job.__name__: job(rank, folder) for job in (one_unit, an_offender)}


def noises(rank: int, folder: Path) -> Any:
    return {job.__name__: job(rank, folder) for job in (noise_alone, counted_noise, numbers)}


def keeps(rank: int, folder: Path) -> Any:
    return {job.__name__: job(rank, folder) for job in (resumed, fitted, own_loop)}
