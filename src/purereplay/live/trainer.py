"""The process that trains a state for a server: `python -m purereplay.live.trainer STATE DEVICE [ENCODER]`.

Standard input is the server: a line "look" after samples were added, and "stop" at the end. If it closes without
"stop", the server is gone, and the process ends at once. Standard output has one JSON line per event,
and one every few seconds, so that the server notices a process that does not go on.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path

from purereplay.errors import UserError
from purereplay.live.session import make_engine
from purereplay.live.settings import Wanted, wanted_encoder
from purereplay.live.training import Tell, Training

_NICE = 10  # training takes the time that predictions leave
_BEAT = 10.0  # seconds between two signs of life


def main(state: str, device: str, encoder: str | None = None) -> None:
    """Train a state until the server says stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which then says stop
    _give_way()
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # nothing else may write between the events
    lock = threading.Lock()

    def tell(kind: str, text: str) -> None:
        with lock:
            lines.write(json.dumps({"event": kind, "text": text}) + "\n")
            lines.flush()

    ended = threading.Event()
    threading.Thread(target=_beat, args=(tell, ended), daemon=True).start()
    try:
        wanted = None if encoder is None else Wanted(encoder=wanted_encoder(encoder))
        training = Training(Path(state), make_engine(device), tell, wanted)
        threading.Thread(target=_listen, args=(training,), daemon=True).start()
        training.run()
    except UserError as error:
        tell("error", str(error))
        sys.exit(2)
    finally:
        ended.set()


def _beat(tell: Tell, ended: threading.Event) -> None:
    """Tell every few seconds that the process runs, also within a long step."""
    with suppress(OSError):  # the server is gone
        while not ended.wait(_BEAT):
            tell("alive", "")


def _listen(training: Training) -> None:
    """Follow the server; end the process if the server is gone. No kill loses anything."""
    for line in sys.stdin:
        if line.strip() == "stop":
            training.stop()
            return
        training.wake()
    os._exit(1)


def _give_way() -> None:
    """Let predictions go first, where the system can."""
    if hasattr(os, "sched_setscheduler"):
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    if hasattr(os, "nice"):
        os.nice(_NICE)
    with suppress(OSError):  # Linux may share the time between sessions first; this process has one of its own
        Path("/proc/self/autogroup").write_text(str(_NICE))


if __name__ == "__main__":
    main(*sys.argv[1:])
