"""Type of the progress callback that every long operation takes: downloads, decoding, reading and scoring."""

from collections.abc import Callable

# progress(name, done, total): what is being worked on, units of work done so far, and in all (None: unknown).
# Units are bytes, images, rows or matrix entries; the time is about proportional to them.
Progress = Callable[[str, int, int | None], None]
