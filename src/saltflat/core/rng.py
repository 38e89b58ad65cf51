"""Give every unit random draws of its own while it is read.

A dataset or a collate that draws random numbers (an augmentation, a masked-language collator) takes them from streams
that all units share. If one unit leaves, the draws of all later units shift, so a repeatable stream would let one unit
change what the others contribute. Inside `fenced_draws` every stream starts from a fresh secret key for each unit.
"""

from __future__ import annotations

import ctypes
import functools
import random
import secrets
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

Generator = Any  # a torch.Generator, a numpy Generator or RandomState, or a random.Random

_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
# Objects that are visited in search of generators. A dataset that lists a million files is not walked to its end.
_MAX_VISITED = 5_000
_MAX_ITEMS = 256  # entries of one list or dictionary that are looked at
_PLAIN = (str, bytes, int, float, complex, bool, type(None), np.ndarray, torch.Tensor, torch.dtype)
# Packages whose own code draws from the default streams, or from a generator that it is given.
_LIBRARIES = {
    *("builtins", "torch", "numpy", "random", "scipy", "saltflat"),
    *("transformers", "tokenizers", "datasets", "torchvision", "PIL", "pandas", "pyarrow", "sklearn"),
}


def fresh_key() -> int:
    """A secret key for the draws of one unit, new at every call."""
    return secrets.randbits(62)


def torch_generators() -> list[torch.Generator]:
    """The streams that torch draws from by default: the CPU's, and those of devices in use."""
    found = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found += torch.cuda.default_generators
    if torch.backends.mps.is_available():
        found.append(torch.mps._get_default_mps_generator())
    return found


def default_generators() -> list[Generator]:
    """The streams that code draws from unless it names one: those of torch, numpy and `random`."""
    return [*torch_generators(), np.random.mtrand._rand, random._inst]


def find_generators(*objects: Any) -> list[Generator]:
    """Find the random generators that objects hold, at any depth.

    Attributes, containers, closures, defaults, bound methods, partial functions, and the variables of modules that a
    function or a method names are followed. At most `_MAX_VISITED` objects are visited, the nearest first. What is not
    found is noticed by `saltflat.core.reading`: such data does not repeat itself under the same key.

    Args:
        objects: Datasets, transforms, collates, augmentations.

    Returns:
        Each generator once.

    Example:
        >>> class Noisy:
        ...     def __init__(self):
        ...         self.rng = np.random.default_rng(0)
        >>> [type(found).__name__ for found in find_generators(Noisy(), Noisy.__init__)]
        ['Generator']
    """
    found: dict[int, Generator] = {}
    seen: dict[int, Any] = {}  # holds what was visited, so that no address is used twice
    waiting = deque(objects)
    while waiting and len(seen) < _MAX_VISITED:
        value = waiting.popleft()
        if isinstance(value, _PLAIN) or id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, random.SystemRandom):
            continue  # has no state: its draws are independent already
        if isinstance(value, _KINDS):
            found[id(value)] = value
        else:
            waiting.extend(_held_by(value))
    return list(found.values())


def _held_by(value: Any) -> list[Any]:
    """What an object refers to, as far as draws may come from there."""
    if isinstance(value, dict):
        return [*value.values()][:_MAX_ITEMS]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [*value][:_MAX_ITEMS]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, types.MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, types.FunctionType):
        return _held_by_function(value)
    if isinstance(value, (type, types.ModuleType, types.BuiltinFunctionType)):
        return []
    held = [*getattr(value, "__dict__", {}).values()]
    for owner in type(value).__mro__:
        if _is_of_a_library(owner.__module__):
            continue
        held += [
            getattr(value, name, None) for name in getattr(owner, "__slots__", ()) if isinstance(name, str)
        ]
        held += [each for each in vars(owner).values() if isinstance(each, (types.FunctionType, *_KINDS))]
    return held


def _held_by_function(function: types.FunctionType) -> list[Any]:
    held: list[Any] = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # not filled yet
            continue
    if _is_of_a_library(function.__module__):
        return held  # what it was given, such as a transform of the user's that a library's function calls
    names = _names_in(function.__code__)
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and not _is_of_a_library(value.__name__):
            held += [vars(value)[each] for each in names if each in vars(value)]
        elif isinstance(value, type) and not _is_of_a_library(value.__module__):
            held += [each for each in vars(value).values() if isinstance(each, (types.FunctionType, *_KINDS))]
        else:
            held.append(value)
    return held


def _names_in(code: types.CodeType) -> set[str]:
    """Names of globals and attributes that code mentions, in functions and comprehensions inside it too."""
    inner = (each for each in code.co_consts if isinstance(each, types.CodeType))
    return {*code.co_names}.union(*map(_names_in, inner))


def _is_of_a_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _LIBRARIES


def seed_generator(generator: Generator, key: int) -> None:
    """Start a generator from ``key``."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(key)
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        bits.state = type(bits)(key).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(
            (key ^ key >> 32) & 0xFFFFFFFF
        )  # 32 bits, as torch takes of it; longer seeds take 30 us
    else:
        generator.seed(key)


def _state_of(generator: Generator) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _state_of_numpy(generator)
    return (
        generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()
    )


def _restore(generator: Generator, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.RandomState):
        _restore_numpy(generator, state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


_TWISTER_BYTES = 4 * 625  # 624 words of a Mersenne twister and its position


def _twister_memory(stream: np.random.RandomState) -> int | None:
    """Where numpy keeps the stream's state; None unless it is a Mersenne twister, which it is by default."""
    bits = stream._bit_generator
    return bits.ctypes.state_address if type(bits) is np.random.MT19937 else None


def _state_of_numpy(stream: np.random.RandomState) -> Any:
    """The state of numpy's older kind of generator.

    ``get_state`` and ``set_state`` copy the state word by word in Python objects. That takes 0.2 ms, a large part of a
    step of a small model, so the memory is copied. A normal number that waits beside that memory, as every second one
    does, is kept by the slower way.
    """
    memory = _twister_memory(stream)
    if memory is None:
        return stream.get_state()
    before = ctypes.string_at(memory, _TWISTER_BYTES)
    waiting = _drop_waiting_normal(stream, memory)
    if waiting is None:
        return before
    kind, words, position, _, _ = stream.get_state()
    return kind, words, position, 1, waiting


def _restore_numpy(stream: np.random.RandomState, state: Any) -> None:
    memory = _twister_memory(stream)
    if memory is None or not isinstance(state, bytes):
        stream.set_state(state)
        return
    ctypes.memmove(memory, state, _TWISTER_BYTES)
    _drop_waiting_normal(stream, memory)


def _drop_waiting_normal(stream: np.random.RandomState, memory: int) -> float | None:
    """Normal numbers are made in pairs, and the second one waits for the next call. Take it out if there is one."""
    before = ctypes.string_at(memory, _TWISTER_BYTES)
    value = stream.standard_normal()
    if ctypes.string_at(memory, _TWISTER_BYTES) == before:  # nothing was drawn: this one had waited
        return value
    stream.standard_normal()  # the second of the pair that was made just now
    ctypes.memmove(memory, before, _TWISTER_BYTES)
    return None


@contextmanager
def fenced_draws(held: Iterable[Generator] = ()) -> Iterator[Callable[[int], None]]:
    """Lend every random stream to the code inside, and give it back as it was.

    Args:
        held: Generators beside the default ones; see `find_generators`.

    Yields:
        A function that starts all streams from a key. Call it before each unit.

    Guarantee:
        What is drawn for a unit depends on its key alone, and what is drawn after the fence is what would have been
        drawn without it.

    Example:
        >>> _ = torch.manual_seed(1)
        >>> with fenced_draws() as start_from:
        ...     start_from(fresh_key())
        ...     _ = torch.rand(3), np.random.rand(3), random.random()
        >>> after = torch.rand(1)
        >>> _ = torch.manual_seed(1)
        >>> bool(after == torch.rand(1))
        True
    """
    generators = [*default_generators(), *held]
    before = [_state_of(each) for each in generators]

    def start_from(key: int) -> None:
        for each in generators:
            seed_generator(each, key)

    try:
        yield start_from
    finally:
        for each, state in zip(generators, before, strict=True):
            _restore(each, state)
