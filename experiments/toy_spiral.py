"""Two spiral arms, and a diffusion model fitted to points of them: how near its loss comes to the closed form.

python experiments/toy_spiral.py                        # 100, 250 and 2,500 points
python experiments/toy_spiral.py --points 2500 --steps 8000
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sklearn.svm import SVC
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from saltflat.errors import SaltflatError, SettingError
from saltflat.synthesis import EDM
from saltflat.synthesis.diffusion import Network
from saltflat.synthesis.unet import waves

TURNS, JITTER, ARMS = 1.5, 0.02, 2
REGIONS = 4  # quarters of an arm, from the dense middle to the sparse end


def place(along: Tensor, arm: Tensor) -> Tensor:
    """Where a point of an arm lies: the angle grows with ``along`` from 0 to 1, and the radius with the angle."""
    angle = 2 * math.pi * TURNS * along + math.pi * arm
    return along.unsqueeze(1) * torch.stack([angle.cos(), angle.sin()], 1)


def shares(count: int) -> Tensor:
    """How much of an arm lies at each of ``count`` places along it: less and less outwards."""
    weight = torch.arange(count, 0, -1, dtype=torch.float64)
    return weight / weight.sum()


@dataclass(frozen=True)
class Points:
    """Points of the spiral: where, of which arm, how far along it."""

    x: Tensor  # (n, 2)
    arm: Tensor  # (n,)
    along: Tensor  # (n,)

    @classmethod
    def drawn(cls, count: int, source: Generator) -> Points:
        arm = torch.arange(count) % ARMS
        along = (torch.multinomial(shares(1000), count, replacement=True, generator=source) + 0.5) / 1000
        x = place(along, arm) + JITTER * torch.randn(count, 2, generator=source)
        return cls(x.float(), arm, along)

    @property
    def region(self) -> Tensor:
        return (self.along * REGIONS).long().clamp(max=REGIONS - 1)


class MLP(nn.Module):
    """F(x, code; arm): two blocks of 64 units that are told the noise level and the arm."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enters, self.leaves = nn.Linear(2, width), nn.Linear(width, 2)
        self.told = nn.Linear(32 + ARMS, width)
        self.blocks = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])

    def forward(self, x: Tensor, code: Tensor, arm: Tensor) -> Tensor:
        known = self.told(torch.cat([waves(100 * code, 32), F.one_hot(arm, ARMS).float()], 1))
        h = self.enters(x.float())
        for block in self.blocks:
            h = h + block(F.silu(h + known))
        return self.leaves(F.silu(h))


def exact(edm: EDM, arm: Tensor, places: int = 1000) -> Network:
    """F of the closed form: the posterior mean under the spiral's own density, a mixture of Gaussians."""
    along = (torch.arange(places, dtype=torch.float64) + 0.5) / places
    centres = torch.stack(
        [place(along, torch.full((places,), float(k))) for k in range(ARMS)]
    )  # (arms, m, 2)
    logs = shares(places).log()

    def network(scaled: Tensor, code: Tensor) -> Tensor:
        s = (4 * code.double()).exp().view(-1, 1)
        both = (s.square() + edm.deviation**2).sqrt()
        x = scaled.double() * both
        spread = JITTER**2 + s.square()
        away = x.unsqueeze(1) - centres[arm]
        part = (logs - away.square().sum(2) / (2 * spread)).softmax(1).unsqueeze(2)
        mean = (part * (x.unsqueeze(1) - (s.square() / spread).unsqueeze(2) * away)).sum(1)
        return ((mean - (edm.deviation / both) ** 2 * x) / (s * edm.deviation / both)).to(scaled)

    return network


def fitted(edm: EDM, points: Points, steps: int, *, batch: int = 256, seed: int = 0) -> MLP:
    """An MLP after so many steps of Adam on these points alone."""
    torch.manual_seed(seed)
    net, source = MLP(), torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 3e-3 * (1 + math.cos(math.pi * step / steps)) / 2
        chosen = torch.randint(len(points.x), (batch,), generator=source)
        arm = points.arm[chosen]
        loss = edm.loss(lambda x, code, arm=arm: net(x, code, arm), points.x[chosen], source).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def losses(edm: EDM, net: MLP, fresh: Points, *, seed: int = 1) -> tuple[float, float]:
    """The loss of the network and of the closed form on the same fresh points, levels and noise."""
    same = lambda: torch.Generator().manual_seed(seed)
    with torch.no_grad():
        own = edm.loss(lambda x, code: net(x, code, fresh.arm), fresh.x, same()).mean()
        best = edm.loss(exact(edm, fresh.arm), fresh.x, same()).mean()
    return float(own), float(best)


def made(edm: EDM, net: MLP, count: int, *, seed: int = 2) -> tuple[Tensor, Tensor]:
    """So many points of each arm, drawn from the network."""
    arm = torch.arange(ARMS * count) % ARMS
    source = torch.Generator().manual_seed(seed)
    drawn = edm.drawn(lambda x, code: net(x, code, arm), (len(arm), 2), source, 18)
    return drawn.float(), arm


def judged(x: Tensor, arm: Tensor, fresh: Points) -> tuple[list[float], list[float]]:
    """By region of the spiral: how many of the made points lie there beside the true ones, and how often a classifier

    (a support vector machine with C = 1000) that saw made points only is right about true ones.
    """
    nearest = torch.cdist(x, fresh.x).argmin(1)
    inside = fresh.region[nearest]
    share = lambda region, k: float((region == k).double().mean())
    density = [share(inside, k) / max(share(fresh.region, k), 1e-9) for k in range(REGIONS)]
    machine = SVC(C=1000.0).fit(x.numpy(), arm.numpy())
    right = torch.from_numpy(machine.predict(fresh.x.numpy())) == fresh.arm
    return density, [float(right[fresh.region == k].double().mean()) for k in range(REGIONS)]


def line(count: int, steps: int) -> str:
    """One row of the table."""
    edm = EDM()
    fresh = Points.drawn(4000, torch.Generator().manual_seed(9))
    net = fitted(edm, Points.drawn(count, torch.Generator().manual_seed(3)), steps)
    own, best = losses(edm, net, fresh)
    density, right = judged(*made(edm, net, 1000), fresh)
    cells = [f"{own:.4f}", f"{best:.4f}", f"{own / best:.2f}", _joined(density), _joined(right)]
    return f"| {count:,} | {' | '.join(cells)} |"


def _joined(numbers: Sequence[float]) -> str:
    return " ".join(f"{each:.2f}" for each in numbers)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--points", nargs="+", type=int, default=[100, 250, 2500])
    parser.add_argument("--steps", type=int, default=2000)
    asked = parser.parse_args(words)
    if min(asked.points) < 2 * ARMS or asked.steps < 1:
        raise SettingError(f"--points is {2 * ARMS} or more, --steps 1 or more")
    print(
        "| points | loss | closed form | ratio | density by region, inner to outer | classifier by region |"
    )
    print("|---|---|---|---|---|---|")
    for count in asked.points:
        print(line(count, asked.steps), flush=True)


if __name__ == "__main__":
    try:
        main()
    except SaltflatError as error:
        sys.exit(f"toy_spiral: {error}")
