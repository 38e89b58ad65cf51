"""The private units of a run: examples, or the clients that have them; who has what is kept with the run."""

from __future__ import annotations

from dataclasses import replace

from saltflat.core.sampling import Units
from saltflat.data import Split, Stored, is_own
from saltflat.data.arrays import read_arrays
from saltflat.errors import SettingError
from saltflat.federated.clients import Clients
from saltflat.federated.partition import Partition
from saltflat.privacy.record import durable
from saltflat.recipes import Recipe
from saltflat.recipes.build import partition_of
from saltflat.runs.layout import Folder, as_npz


def units_of(
    recipe: Recipe, split: Split, kept: Folder | None = None, *, device: str = "cpu", workers: int = 0
) -> Units:
    """The private units. Clients are those that a run in ``kept`` began with, if it kept them; else made now.

    ``workers`` threads read examples that stay on disk; of clients it says something else.
    """
    examples = split.train.to(device)
    if recipe.clients is None:
        return _read_by(workers, examples) if workers else examples
    if kept is not None and kept.clients.exists():
        divided = Partition.from_arrays(read_arrays(kept.clients, ("rows", "sizes", "numbers")))
    else:
        divided = partition_of(recipe, split)
    divided.check(examples.count)
    if len(divided.parts) > recipe.clients.count:
        raise SettingError(
            f"{recipe.data} has more than the {recipe.clients.count} clients that were declared; set --clients to a "
            "public bound"
        )
    return divided.of(examples)


def _read_by(workers: int, examples: object) -> Units:
    if not isinstance(examples, Stored):
        raise SettingError(
            "workers read what stays on disk, Parquet or a folder of .npy files, and these examples are in memory: "
            "leave workers out"
        )
    return replace(examples, workers=workers)


def keep_clients(recipe: Recipe, clients: Clients, folder: Folder) -> None:
    """Keep who has which examples, for clients that are simulated from a data set by name.

    *Guarantee*: nothing of a file of yours is kept: who has what there, and how many have anything, is private. The
    column says it again, or the seed.
    """
    if not is_own(recipe.data):
        divided = Partition(tuple(clients.parts), tuple(clients.numbers or range(clients.count)))
        durable.replace(folder.clients, as_npz(divided.arrays()))
