"""Measurements of the server in Prometheus' text format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
_PREFIX = "purereplay"

Gauges = Mapping[str, tuple[str, str, float]]  # kind, description, value by name


class Metrics:
    """Counts and times of requests; used by one event loop."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self.n_images = 0  # classified
        self.n_learned = 0  # samples acknowledged
        self.n_refused = 0  # images and samples refused

    def observe(self, path: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        self._requests[path, method, status] += 1
        buckets = self._buckets.setdefault(path, [0] * len(_BOUNDS))
        for i, bound in enumerate(_BOUNDS):
            buckets[i] += seconds <= bound
        self._seconds[path] += seconds  # type: ignore[assignment]
        self._counts[path] += 1

    def text(self, gauges: Gauges) -> str:
        """Return all measurements."""
        lines = _head("requests_total", "counter", "Requests by path, method and status.")
        for (path, method, status), n in sorted(self._requests.items()):
            labels = f'path="{path}",method="{method}",status="{status}"'
            lines.append(f"{_PREFIX}_requests_total{{{labels}}} {n}")
        lines += _head("request_seconds", "histogram", "Time to answer a request.")
        for path, buckets in sorted(self._buckets.items()):
            own = f"{_PREFIX}_request_seconds"
            bounds = [*map(str, _BOUNDS), "+Inf"]
            counts = [*buckets, self._counts[path]]
            lines += [f'{own}_bucket{{path="{path}",le="{b}"}} {n}' for b, n in zip(bounds, counts, strict=True)]
            lines.append(f'{own}_sum{{path="{path}"}} {float(self._seconds[path]):.6f}')
            lines.append(f'{own}_count{{path="{path}"}} {self._counts[path]}')
        own_gauges: Gauges = {
            "images_classified_total": ("counter", "Images classified.", self.n_images),
            "samples_acknowledged_total": ("counter", "Samples acknowledged by /learn.", self.n_learned),
            "items_refused_total": ("counter", "Images and samples refused.", self.n_refused),
        }
        for name, (kind, description, value) in {**own_gauges, **gauges}.items():
            lines += [*_head(name, kind, description), f"{_PREFIX}_{name} {value}"]
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, description: str) -> list[str]:
    return [f"# HELP {_PREFIX}_{name} {description}", f"# TYPE {_PREFIX}_{name} {kind}"]
