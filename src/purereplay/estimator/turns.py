"""Turns of threads at one learner: one thread at a time changes or reads its state; views are for all threads.

A view is an immutable value made from the whole state, such as a finetuned classifier with its labels. A prediction
needs only a view. While one thread learns, the others predict from the last view and do not wait.

An interrupt (KeyboardInterrupt in the main thread) may come between any two operations of Python, also within a
`finally` or an `__exit__` that is written in Python. Therefore all that a turn has to give back is given back by a
`with` statement over an object of C: the locks of `threading`, and PyTorch's guard of the thread's grad mode.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

from purereplay.errors import UserError
from purereplay.nets.inference import grad_mode_kept

View = TypeVar("View")
Result = TypeVar("Result")

_GLANCE = 0.005  # seconds between two looks at the last view by a thread that waits for its turn to make one


class _Turn:
    """A place in the queue."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # held from the arrival to the end of the turn
        self.before: _Turn | None = None  # the turn to wait for; None once it is over


class Turns(Generic[View]):
    """A lock that is given in the order of arrival, and the last view of the state behind it."""

    def __init__(self) -> None:
        self._arriving = threading.Lock()
        self._last: _Turn | None = None  # the turn that arrived last
        self._learning = threading.Lock()  # held while a turn changes the state
        self._view: tuple[View | None, bool] = None, False  # the last view, and whether it shows the present state
        self._asked_beside = False  # whether a view was asked for beside learning

    def reading(self, work: Callable[[], Result]) -> Result:
        """Do work that leaves the state unchanged."""
        turn = _Turn()
        with turn.lock, grad_mode_kept():
            self._arrive(turn)
            self._wait(turn)
            return work()

    def learning(self, work: Callable[[], Result], make_view: Callable[[], View]) -> Result:
        """Do work that changes the state; if a view was asked for beside it, the next one is made at its end."""
        turn = _Turn()
        with turn.lock, grad_mode_kept():
            self._arrive(turn)
            self._wait(turn)
            with self._learning:
                self._view = self._view[0], False
                result = work()
                if self._asked_beside:  # otherwise endless learning would leave the others with an old view
                    with suppress(UserError):  # raised again by `view`
                        self._renew(make_view)
                return result

    def view(self, make_view: Callable[[], View]) -> View:
        """Return the view of the present state, or the last one while another thread learns."""
        if (usable := self._usable()) is not None:
            return usable
        turn = _Turn()
        with turn.lock, grad_mode_kept():
            self._arrive(turn)
            while (usable := self._usable()) is None and turn.before is not None:
                if self._view[0] is None:
                    self._wait(turn)
                elif turn.before.lock.locked():
                    time.sleep(_GLANCE)
                else:
                    turn.before = turn.before.before
            return self._renew(make_view) if usable is None else usable

    def _arrive(self, turn: _Turn) -> None:
        with self._arriving:
            turn.before, self._last = self._last, turn

    def _wait(self, turn: _Turn) -> None:
        """Wait for the turns before this one."""
        while (before := turn.before) is not None:
            with before.lock:
                turn.before = before.before  # not None if that turn was given up while it waited

    def _usable(self) -> View | None:
        view, is_fresh = self._view
        if is_fresh:
            return view
        if view is None or not self._learning.locked():
            return None
        self._asked_beside = True
        return view

    def _renew(self, make_view: Callable[[], View]) -> View:
        view = make_view()
        self._view, self._asked_beside = (view, True), False
        return view
