"""A8: nothing that was not declared or released is read, told, logged or written."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from steps import CRITERION, beside, examples, network, phase, plan
from torch import Tensor
from torch.utils.data import Dataset

from saltflat import Checkpoints, clipping, per_example, supervised, train
from saltflat.core import draw
from saltflat.core import train as loop
from saltflat.core.train import Progress
from saltflat.data import DatasetUnits
from saltflat.methods import SAT
from saltflat.privacy.record.ledger import Ledger
from saltflat.privacy.record.statement import Declared, state

DECLARED = 20


class Shy(Dataset):
    """A data set that counts how often its length is read, and then refuses."""

    def __init__(self, count: int, scale: float) -> None:
        x, y = examples(count, seed=count)
        self.rows, self.reads = (scale * x, y), 0

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.rows[0][index], self.rows[1][index]

    def __len__(self) -> int:
        self.reads += 1
        raise RuntimeError("the length of the data was read")


class Told(logging.Handler):
    def __init__(self, text: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self.text = text

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(record.getMessage())


def reports(data: Shy, count: int, folder: Path, capfd: pytest.CaptureFixture[str]) -> list[str]:
    """All that a run says and writes: logs, output, progress, ledger, manifests, statement; released trees
    stand for themselves, so only their names and shapes are here."""
    told: list[str] = []
    handler, root = Told(told), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)

    def watch(progress: Progress) -> None:
        for entry in fields(progress):
            value = getattr(progress, entry.name)
            told.append(f"{entry.name}: {shapes(value) if isinstance(value, dict) else value}")

    two = plan(phase(steps=4, noise_multiplier=2.0), phase(method=SAT(0.1), steps=3), size=DECLARED)
    folder.mkdir()
    try:
        with Ledger.open(folder / "a.ledger", dataset="d") as ledger:
            around = beside(
                meter=ledger.run("one", block=3),
                checkpoints=Checkpoints(folder / "kept", every=2),
                watch=watch,
                physical=3,
            )
            train(two, per_example(network(), supervised(CRITERION)), DatasetUnits(data, count), **around)
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    told += (folder / "a.ledger").read_text().splitlines()
    told += [file.read_text() for file in sorted((folder / "kept").glob("*.json"))]
    told.append(state(two.event(), Declared(delta=1e-5, size=DECLARED)).as_json())
    return [without_names(text) for text in [*told, *capfd.readouterr()]]


def shapes(tree: dict[str, Tensor]) -> dict[str, Any]:
    return {name: (tuple(leaf.shape), leaf.dtype) for name, leaf in tree.items()}


def without_names(text: str) -> str:
    """Hashes, identities and times differ from run to run, whatever the data; figures are left as they are."""
    text = re.sub(r"(?<=[\":])[0-9a-f]{16,}(?=\")", "HASH", text)
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:+]+", "TIME", text)


def both(folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """The reports on two data sets that differ in size, losses and norms, and in nothing that is declared."""
    return (
        reports(Shy(9, 0.01), 9, folder / "a", capfd),
        reports(Shy(31, 50.0), 31, folder / "b", capfd),
    )


def test_names_are_blanked_and_figures_are_not() -> None:
    kept, blanked = '{"loss": 1.0986122886681098, "sum":1098612288668109}', '{"id": "141cfd2a70972277"}'
    assert without_names(kept) == kept
    assert without_names(blanked) == '{"id": "HASH"}'


def test_a8_reports_do_not_depend_on_the_data(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    one, other = both(tmp_path, capfd)
    assert len(one) > 30
    assert one == other


def test_a8_the_length_is_never_read(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = Shy(12, 1.0)
    reports(data, 12, tmp_path / "a", capfd)
    assert data.reads == 0
    with pytest.raises(RuntimeError, match="length"):
        len(data)


def test_a8_catches_a_clipped_share_in_the_log(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = clipping.clip_weights

    def telling(norms: Tensor, bound: float) -> Tensor:
        weights = real(norms, bound)
        logging.getLogger("saltflat").debug("clipped share %.2f", float((weights < 1).double().mean()))
        return weights

    monkeypatch.setattr(clipping, "clip_weights", telling)
    one, other = both(tmp_path, capfd)
    assert one != other


@pytest.mark.parametrize("leak", ["size", "loss", "norm"])
def test_a8_catches_numbers_in_a_checkpoint(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, leak: str
) -> None:
    real, secret = loop.save, {"size": 0.0, "loss": 0.0, "norm": 0.0}
    sample, losses, weights = draw.poisson, CRITERION.forward, clipping.clip_weights

    def drawn(count: int, *rest: Any) -> Any:
        secret["size"] = count
        return sample(count, *rest)

    def loss(*args: Any) -> Tensor:
        found = losses(*args)
        secret["loss"] = float(found.detach().mean())
        return found

    def clipped(norms: Tensor, bound: float) -> Tensor:
        secret["norm"] = float(norms.max())
        return weights(norms, bound)

    def leaking(kept: Any, the_plan: Any, at: Any, **how: Any) -> None:
        real(kept, the_plan, at, **how)
        (file,) = sorted(Path(kept.folder).glob("*.json"))[-1:]
        file.write_text(json.dumps({**json.loads(file.read_text()), leak: secret[leak]}))

    monkeypatch.setattr(draw, "poisson", drawn)
    monkeypatch.setattr(CRITERION, "forward", loss)
    monkeypatch.setattr(clipping, "clip_weights", clipped)
    monkeypatch.setattr(loop, "save", leaking)
    one, other = both(tmp_path, capfd)
    assert one != other


def test_a8_catches_a_length_on_the_way(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data, real = Shy(12, 1.0), draw.poisson
    monkeypatch.setattr(draw, "poisson", lambda count, *rest: real(len(data), *rest))
    with pytest.raises(RuntimeError, match="length"):
        reports(data, 12, tmp_path / "a", capfd)
