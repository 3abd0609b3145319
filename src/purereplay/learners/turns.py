"""Turns of threads at one learner: one thread at a time changes or reads its state; views are for all threads.

A view is an immutable value made from the whole state, such as a finetuned classifier with its labels. A prediction
needs only a view. While one thread learns, the others predict from the last view and do not wait.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Generic, TypeVar

from purereplay.errors import UserError

View = TypeVar("View")


class Turns(Generic[View]):
    """A lock that is given in the order of arrival, and the last view of the state behind it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._queue: deque[object] = deque()  # the turn in progress first, then the waiting ones
        self._is_learning = False  # whether the turn in progress changes the state
        self._view: View | None = None
        self._is_fresh = False  # whether `_view` shows the present state
        self._asked_beside = False  # whether a view was asked for beside learning

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Take a turn that leaves the state unchanged."""
        with self._queued() as turn:
            with self._changed:
                self._changed.wait_for(lambda: self._queue[0] is turn)
            yield

    @contextmanager
    def learning(self, make_view: Callable[[], View]) -> Iterator[None]:
        """Take a turn that changes the state; if a view was asked for beside it, the next one is made at its end."""
        with self.reading():
            with self._changed:
                self._is_learning, self._is_fresh = True, False
                self._changed.notify_all()  # threads that wait for a view may take the last one
            try:
                yield
                if self._asked_beside:  # otherwise endless learning would leave the others with an old view
                    with suppress(UserError):  # raised again by `view`
                        self._renew(make_view)
            finally:
                with self._changed:
                    self._is_learning = False

    def view(self, make_view: Callable[[], View]) -> View:
        """Return the view of the present state, or the last one while another thread learns."""
        with self._changed:
            if (usable := self._usable()) is not None:
                return usable
        with self._queued() as turn:
            with self._changed:
                while (usable := self._usable()) is None and self._queue[0] is not turn:
                    self._changed.wait()
            return self._renew(make_view) if usable is None else usable

    def _usable(self) -> View | None:
        if not (self._is_fresh or self._is_learning):
            return None
        self._asked_beside |= not self._is_fresh
        return self._view

    def _renew(self, make_view: Callable[[], View]) -> View:
        view = make_view()
        with self._changed:
            self._view, self._is_fresh, self._asked_beside = view, True, False
        return view

    @contextmanager
    def _queued(self) -> Iterator[object]:
        turn = object()
        try:
            with self._changed:
                self._queue.append(turn)
            yield turn
        finally:
            with self._changed:
                with suppress(ValueError):  # an interrupt may come before the turn is in the queue
                    self._queue.remove(turn)
                self._changed.notify_all()
