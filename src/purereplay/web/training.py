"""The process that trains, seen from the server: started, told of new samples, and started again if it ends."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from purereplay.errors import UserError

_START = 120.0  # seconds until the state must be open
_STOP = 60.0  # seconds for the last step; a kill loses nothing
_BACKOFF = (1.0, 30.0)  # seconds until the next start, doubled each time up to the second number
_SILENCE = 60.0  # seconds without a sign of life, which comes every ten, after which the process does not respond
_STEADY = 60.0  # seconds of running after which the first pause applies again


class Trainer(threading.Thread):
    """Thread that keeps the training process running; `on_model` is called in it when there is a new classifier."""

    def __init__(self, state: Path, device: str, on_model: Callable[[], object], encoder: str | None = None) -> None:
        super().__init__(name="trainer", daemon=True)
        self.state = state
        self.device = device
        self.encoder = encoder  # that the user named again
        self.on_model = on_model
        self.activity = "starting"
        self.error: str | None = None  # why the process ended last
        self.n_starts = 0
        self.ready = threading.Event()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._heard = time.monotonic()  # when the process told something last
        self._loads = False  # whether this thread loads a classifier and does not listen
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """Number of the process; None if it does not run."""
        process = self._process
        return None if process is None or process.poll() is not None else process.pid

    @property
    def responds(self) -> bool:
        """True if the process runs and has told something lately, as far as this thread has listened."""
        return self.pid is not None and (self._loads or time.monotonic() - self._heard < _SILENCE)

    def wait_until_ready(self) -> None:
        """Return once the state is open; UserError if it cannot be opened."""
        end = time.monotonic() + _START
        while not self.ready.wait(0.05):
            if self.error is not None:
                self.stop()
                raise UserError(self.error)
            if time.monotonic() > end:
                self.stop()
                raise UserError(f"The process that trains {self.state} did not start within {_START:.0f} s.")

    def look(self) -> None:
        """Say that there are new samples."""
        self._say("look")

    def stop(self) -> None:
        """Stop the process between two steps."""
        self._stopping.set()
        self._say("stop")
        process = self._process
        if process is None:
            return
        try:
            process.wait(_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _say(self, word: str) -> None:
        with self._lock:
            process = self._process
            if process is None or process.stdin is None:
                return
            try:
                number = process.stdin.fileno()
                if hasattr(os, "set_blocking"):  # not on Windows before Python 3.12
                    os.set_blocking(number, False)
                os.write(number, f"{word}\n".encode())  # whole or not at all, since it is shorter than PIPE_BUF
            except (OSError, ValueError):
                pass  # it has ended or does not read; a new one, or one that goes on, looks by itself

    def run(self) -> None:
        pause = _BACKOFF[0]
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._follow()
            except Exception as error:  # too little memory for a process, for instance; this thread must go on
                self._fail(error)
            if self._stopping.is_set():
                return
            if time.monotonic() - began > _STEADY:
                pause = _BACKOFF[0]
            logging.getLogger(__name__).warning("%s", self.error)
            self._stopping.wait(pause)
            pause = min(2 * pause, _BACKOFF[1])

    def _fail(self, error: Exception) -> None:
        """End a process that cannot be followed, and tell why."""
        process = self._process
        if process is not None and process.poll() is None:
            process.kill()
            process.wait()
        self._loads = False
        self.activity = "stopped"
        self.error = f"The process that trains cannot be run: {str(error).rstrip('.')}."

    def _follow(self) -> None:
        """Start the process and read its events until it ends."""
        half = str(max(1, (os.cpu_count() or 1) // 2))  # the other cores are for predictions
        environment = {"GOMP_SPINCOUNT": "0", "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": half} | os.environ
        command = [sys.executable, "-m", "purereplay.live.trainer", str(self.state), self.device]
        command += [] if self.encoder is None else [self.encoder]
        with self._lock:
            self._process = process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
                start_new_session=True,  # see `trainer`
            )
        self.n_starts += 1
        self._heard = time.monotonic()
        reason = None
        assert process.stdout is not None
        for line in process.stdout:
            self._heard = time.monotonic()
            kind, text = _event(line)
            if kind == "activity":
                self.activity = text
            elif kind == "model":
                self._loads = True
                self.on_model()
                self._heard = time.monotonic()
                self._loads = False
            elif kind == "ready":
                self.error = None
                self.activity = "ready"
                self.ready.set()
            elif kind == "error":
                reason = text
        code = process.wait()
        self.activity = "stopped"
        if not self._stopping.is_set():
            self.error = reason or f"The process that trains ended with code {code}."


def _event(line: str) -> tuple[str, str]:
    """Return kind and text of an event; a kill may have cut its line."""
    try:
        values = json.loads(line)
        return str(values["event"]), str(values["text"])
    except (ValueError, KeyError, TypeError):
        return "", ""
