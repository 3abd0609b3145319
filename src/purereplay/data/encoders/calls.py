"""Calls of code that is the user's own: what it prints goes to standard error, and what it raises becomes a reason."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, current_thread, get_ident, main_thread
from typing import Any

import numpy as np

_LONGEST = 300  # characters of a reason


class Failed(Exception):
    """The first line of the message of an error in the user's code, without a full stop."""


@contextmanager
def user_code() -> Iterator[None]:
    """Run code of the user within the block; raises Failed for an error in it.

    That is any error but an interrupt by the user: the code may call `sys.exit`, and errors of libraries in other
    languages, such as a panic of Rust, are no `Exception` either.
    """
    try:
        # the standard output is the command's own: answers or a table; so is how numpy treats errors
        with _prints_to_stderr(), np.errstate():
            yield
    except (KeyboardInterrupt, GeneratorExit) as error:
        if current_thread() is main_thread():  # Ctrl-C reaches no other
            raise
        raise Failed(_reason(error)) from error
    except BaseException as error:
        raise Failed(_reason(error)) from error


def _reason(error: BaseException) -> str:
    try:
        text = str(error).strip().partition("\n")[0].rstrip(".")
    except Exception:  # any: the error is of the user's own type
        text = ""
    kind = type(error).__name__
    return f"{kind}: {text}"[:_LONGEST] if text and isinstance(error, KeyError) else text[:_LONGEST] or kind


_lock = Lock()
_threads = list[int]()  # those that run code of the user, once per call


class _Output:
    """Standard output, and standard error for the threads that run code of the user, which may keep this object.

    `contextlib.redirect_stdout` is for one thread: if a second one enters before the first one leaves, it restores the
    redirection at its end.
    """

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def close(self) -> None:
        """Do nothing in code of the user, which would close standard error."""
        if get_ident() not in _threads:
            self.stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr if get_ident() in _threads else self.stream, name)


@contextmanager
def _prints_to_stderr() -> Iterator[None]:
    if sys.stdout is None or sys.stderr is None:  # a process without a terminal, as of pythonw
        yield
        return
    with _lock:
        own: Any = sys.stdout if isinstance(sys.stdout, _Output) else _Output(sys.stdout)
        _threads.append(get_ident())
        sys.stdout = own  # it has all attributes of the stream
    try:
        yield
    finally:
        with _lock:
            _threads.remove(get_ident())
            if not _threads and sys.stdout is own:
                sys.stdout = own.stream
