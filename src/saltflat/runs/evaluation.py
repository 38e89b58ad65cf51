"""Which public test examples a run ends up right on: one bit for each, so that two runs can be compared pair by pair.

Everything here follows from the released weights and the test examples, which count as public, so it costs nothing. It
says nothing about the private examples. Written by a run at its end, read without torch and without trust.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

VERSION = 1
_MOST = 1 << 26  # bytes: a bit for each of four hundred million examples


@dataclass(frozen=True, eq=False)
class Evaluation:
    """``right`` (count,) says of each test example whether its class was found; ``examples`` names them, by a hash.

    Two runs on one data set with equal ``examples`` were judged on the same examples, in the same order.
    """

    examples: str
    right: NDArray[np.bool_]

    @property
    def count(self) -> int:
        return len(self.right)

    @property
    def hits(self) -> int:
        """How many were right."""
        return int(self.right.sum())

    def as_json(self) -> str:
        """The file: 10,000 examples take 1.7 kB.

        >>> made = Evaluation("ab", np.array([True, False, True]))
        >>> made.as_json()
        '{"version": 1, "examples": "ab", "count": 3, "hits": 2, "right": "oA=="}\\n'
        """
        bits = base64.b64encode(np.packbits(self.right).tobytes()).decode()
        facts = {"version": VERSION, "examples": self.examples, "count": self.count, "hits": self.hits}
        return json.dumps({**facts, "right": bits}) + "\n"


def name_of(targets: NDArray[Any]) -> str:
    """A name for test examples in their order, by their true classes: features before the network do not change it."""
    whole = np.ascontiguousarray(targets, dtype="<i8")
    return hashlib.sha256(whole.tobytes()).hexdigest()[:16]


def read(path: Path) -> Evaluation:
    """What a file holds; ValueError, KeyError or TypeError if it is no such file."""
    if path.stat().st_size > _MOST:
        raise ValueError("larger than any evaluation")
    told = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(told, dict) or told.get("version") != VERSION:
        raise ValueError("it is not an evaluation that this version reads")
    count, hits, name = told["count"], told["hits"], told["examples"]
    if type(count) is not int or type(hits) is not int or not isinstance(name, str) or len(name) > 64:
        raise ValueError("count and hits are whole numbers, examples a short name")
    packed = np.frombuffer(base64.b64decode(str(told["right"]), validate=True), dtype=np.uint8)
    if count < 1 or len(packed) != -(-count // 8):
        raise ValueError(f"{len(packed)} bytes do not hold one bit for each of {str(count)[:20]} examples")
    right = np.unpackbits(packed, count=count).astype(bool)
    if int(right.sum()) != hits:
        raise ValueError("its bits do not add up to its hits")
    return Evaluation(name, right)
