"""The loop of the process that trains a state for a server: samples and decisions are absorbed, judged and learned.

The loop is told when there is something new, and tells when there is a new classifier. Between two steps it may be
stopped; nothing is lost then, nor by a kill.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from purereplay.errors import Interrupted
from purereplay.live.full_memory import FullMemory
from purereplay.live.inbox import Inbox, absorb
from purereplay.live.predict import current_classifier, with_current
from purereplay.live.reviewed import Reviewed
from purereplay.live.session import Session
from purereplay.live.settings import Wanted
from purereplay.live.store import Current
from purereplay.nets.engine import Engine, TrainingProgress

_LOOK = 1.0  # seconds between two looks for decisions of reviewers
_QUIET = 3.0  # seconds without anything new after which samples that are not due, and decisions, are judged
_REST = 5  # times as long as judging all samples took, until decisions are learned again

Tell = Callable[[str, str], None]  # kind of event (ready, model, activity), text


class Training:
    """Work on a state until `stop`; `wake` says that the inbox has something new."""

    def __init__(self, state: Path, engine: Engine, tell: Tell, wanted: Wanted | None = None) -> None:
        self.state = state
        self.wanted = wanted  # the state's encoder, if the user named it again
        self.engine = engine
        self.tell = tell
        self._new = threading.Event()
        self._stopped = threading.Event()
        self._activity = "ready"  # as told last
        self._known: str | None = None  # digest of the learner that was told last
        self._last_new = time.monotonic()  # when something new was absorbed
        self._settled, self._settling = 0.0, 0.0  # when decisions were learned last, and how long it took, in seconds

    def wake(self) -> None:
        """Look for new samples now."""
        self._new.set()

    def stop(self) -> None:
        """Stop between two steps."""
        self._stopped.set()
        self._new.set()

    def run(self) -> None:
        """Train until stopped."""
        with ExitStack() as stack:
            # another process, such as a server that was killed just now, may still hold the state
            waiting = Session.open_waiting(self.state, self.wanted, self.engine, give_up=self._stopped.is_set)
            self.session = stack.enter_context(waiting)
            self.inbox = stack.enter_context(Inbox.opened(self.state))
            self.reviewed = Reviewed(self.session)
            self.engine.watch = self._watch
            if isinstance(self.session.learning, FullMemory):
                self.session.learning.watch = lambda work, done, total: self._watch()
            try:
                self._publish()
                self.tell("ready", "")
                while not self._stopped.is_set():
                    self._step()
                    self._new.wait(_LOOK)
                    self._new.clear()
            except Interrupted:
                pass

    def _watch(self, now: TrainingProgress | None = None) -> None:
        if self._stopped.is_set():
            raise Interrupted("Stopped: nothing is lost.")
        self._tell_activity("learning")

    def _tell_activity(self, text: str) -> None:
        if text != self._activity:
            self._activity = text
            self.tell("activity", text)

    def _step(self) -> None:
        """Absorb what is new, and learn what is due."""
        new = absorb(self.session, self.inbox) + self.reviewed.absorb()
        if new:
            self._last_new = time.monotonic()
            self._tell_activity("learning")
        self.session.work(on_report=lambda report: self._publish())
        if time.monotonic() - self._last_new >= _QUIET:
            self._judge_waiting()
        self._publish()
        self._tell_activity("ready")

    def _judge_waiting(self) -> None:
        learning = self.session.learning
        if not isinstance(learning, FullMemory):
            return
        learning.judge_waiting()
        if time.monotonic() - self._settled >= _REST * self._settling:
            began = time.monotonic()
            if self.session.settle() is not None:
                self._settled, self._settling = time.monotonic(), time.monotonic() - began

    def _publish(self) -> None:
        """Tell of a new learner, once its classifier is on the disk."""
        current = self.session.store.current()
        if current is None or current.digest == self._known:
            return
        if not isinstance(self.session.learning, FullMemory):
            self._tell_activity("training the classifier")
            with_current(self.session.store, self._finetune)
        self._known = current.digest
        self.tell("model", current.digest)
        self._tell_activity("ready")

    def _finetune(self, current: Current | None) -> None:
        """Make the classifier of a learner with buffers, which a file keeps."""
        if current is not None:
            current_classifier(self.session.store, current, self.engine)
