"""Calls of the command line in this process."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from purereplay.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["purereplay", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return Done(int(end.value.code or 0), *capsys.readouterr())

    return call


@pytest.fixture
def small_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few features: full-memory judges a few samples in no time."""
    monkeypatch.setattr("purereplay.purify.patches._N_FILTERS", 8)
