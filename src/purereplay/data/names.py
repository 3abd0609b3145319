"""Names of samples: text or whole numbers given by the user, else the number in the stream; each name is unique."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from purereplay.errors import InputError, InputTypeError

Name = str | int


class SampleNames:
    """Names of the samples 0 … n − 1 of a stream."""

    def __init__(self) -> None:
        self.n = 0
        # For samples that have a name of their own. Copies share both, so they may hold entries of a copy that was
        # dropped: numbers from `n` on, and names that are not those of their number.
        self._names: dict[int, Name] = {}  # by number
        self._numbers: dict[Name, int] = {}  # by name

    def copy(self) -> Self:
        """Return names to which more can be added while these stay as they are; then only one of the two is used."""
        return copy.copy(self)

    def check(self, names: Sequence[Any] | None, n: int) -> list[Name] | None:
        """Check names for the next n samples (None: their numbers); an error names the first sample with a bad name."""
        if names is None:
            clash = next((number for number in range(self.n, self.n + n) if self._is_given(number)), None)
            if clash is not None:
                raise InputError(
                    f"Sample {clash - self.n} needs an id: its number {clash} is the id of another sample."
                )
            return None
        plain = [name.item() if isinstance(name, np.generic) else name for name in list(names)]
        if len(plain) != n:
            raise InputError(f"X holds {n} samples, but sample_ids {len(plain)}.")
        new: set[Name] = set()
        for i, name in enumerate(plain):
            if type(name) not in (int, str):
                raise InputTypeError(f"Sample {i} has an id of type {type(name).__name__}, not text or a whole number.")
            if name in new or self._is_taken(name):
                raise InputError(f"Sample {i} has the id {name!r}, which another sample has already.")
            new.add(name)
        return plain

    def add(self, names: list[Name] | None, n: int) -> None:
        """Add the next n samples, with names from `check`."""
        while self._names and next(reversed(self._names)) >= self.n:
            self._names.popitem()
        numbered = dict(enumerate(names or [], self.n))
        self._names.update(numbered)
        self._numbers.update({name: number for number, name in numbered.items()})
        self.n += n

    def of(self, numbers: Iterable[int]) -> list[Name]:
        """Return the names of samples by number."""
        return [self._names.get(number, number) for number in numbers]

    def _is_taken(self, name: Name) -> bool:
        is_number = isinstance(name, int) and 0 <= name < self.n and name not in self._names
        return self._is_given(name) or is_number

    def _is_given(self, name: Name) -> bool:
        number = self._numbers.get(name, self.n)
        return number < self.n and self._names.get(number) == name

    def state(self) -> Tensor:
        """Return the complete state as the bytes of a text: uint8 (length,)."""
        names = {number: name for number, name in self._names.items() if number < self.n}
        text = json.dumps([self.n, list(names.keys()), list(names.values())])
        return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)

    def load(self, state: Tensor) -> None:
        """Restore a state returned by `state`; ValueError if it cannot be one."""
        self.n, numbers, names = _checked(json.loads(state.numpy().tobytes()))
        self._names = dict(zip(numbers, names, strict=True))
        self._numbers = dict(zip(names, numbers, strict=True))


def _checked(content: Any) -> tuple[int, list[int], list[Name]]:
    """Return n, numbers and names of a saved state; ValueError unless every sample has exactly one name."""
    if not (isinstance(content, list) and len(content) == 3):
        raise ValueError("the names of samples are not a list of three parts")
    n, numbers, names = content
    if type(n) is not int or n < 0 or not isinstance(numbers, list) or not isinstance(names, list):
        raise ValueError("the names of samples are not a number and two lists")
    if any(type(i) is not int or not 0 <= i < n for i in numbers) or len(set(numbers)) < len(numbers):
        raise ValueError(f"the names of samples belong to numbers that are not distinct or not below {n}")
    if len(names) != len(numbers) or any(type(name) not in (int, str) for name in names):
        raise ValueError("a name of a sample is missing, or not text or a whole number")
    named = set(numbers)
    clash = any(type(name) is int and 0 <= name < n and name not in named for name in names)
    if clash or len(set(names)) < len(names):
        raise ValueError("two samples have the same name")
    return n, numbers, names
