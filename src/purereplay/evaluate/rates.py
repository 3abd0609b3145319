"""Time of runs that are not computed yet, from the speeds of runs that are.

A rate is the time of one image in one training step, by phase. It is measured over the results of one kind of device.
Runs in lockstep count their share of the time, so an estimate holds for groups as large as those that were measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from purereplay.data.catalogue import info_for
from purereplay.data.episodes import tasks_for
from purereplay.evaluate.estimate import count_steps
from purereplay.evaluate.identity import settings_of
from purereplay.evaluate.plan import same_experts
from purereplay.evaluate.records import Result
from purereplay.evaluate.settings import RunSettings
from purereplay.purify.aum import AreaUnderMargin
from purereplay.purify.incv import NoisyCrossValidation

_BATCH = {  # by phase: settings whose sum is the number of images in a step
    "expert": ("expert_batch",),
    "base": ("base_batch",),
    "finetune": ("finetune_batch",),
    "online": ("batch_size", "replay_size"),
    "scratch": ("batch_size",),
}

_FILTER_BATCH = {"aum": AreaUnderMargin.batch_size, "incv": NoisyCrossValidation.batch_size}


class _Key(NamedTuple):
    """Conditions under which a rate was measured; "" stands for any."""

    network: str
    dataset: str
    learner: str
    robust: str
    phase: str


class Rates:
    """Measured seconds per image and step on one kind of device."""

    def __init__(self, results: Iterable[Result], *, gpu: bool) -> None:
        seconds: dict[_Key, float] = defaultdict(float)
        images: dict[_Key, float] = defaultdict(float)
        others: dict[tuple[str, str], list[float]] = defaultdict(list)  # by dataset and learner, "" stands for any
        experts = set[tuple[str, float]]()  # that were counted: what shares them, and the seconds of a run
        for result in results:
            on_gpu = not str(result.get("device", "cpu")).startswith("cpu")
            settings = settings_of(result) if on_gpu == gpu and "seconds" in result and "steps" in result else None
            if settings is None:
                continue
            for kind in _other_keys(settings):
                others[kind].append(result["seconds"].get("other", 0.0))
            for phase, steps in result["steps"].items():
                took = result["seconds"].get(phase, 0.0)
                # runs in lockstep that share experts have equal shares of their time
                is_counted = phase == "expert" and (same_experts(settings), took) in experts
                if phase == "expert":
                    experts.add((same_experts(settings), took))
                for key in _keys(settings, phase):
                    seconds[key] += took
                    images[key] += 0 if is_counted else steps * images_a_step(settings, phase)
        self._rates = {key: seconds[key] / n for key, n in images.items() if n}
        self._others = {kind: sorted(values)[len(values) // 2] for kind, values in others.items()}

    def seconds(self, settings: RunSettings) -> float | None:
        """Return the approximate seconds of a run; None if nothing similar was measured."""
        return self.seconds_together([settings])

    def seconds_together(self, runs: Iterable[RunSettings]) -> float | None:
        """Return the approximate seconds of runs in lockstep; experts that several runs share are trained once."""
        total, experts = 0.0, set()
        for settings in runs:
            total += next((self._others[kind] for kind in _other_keys(settings) if kind in self._others), 0.0)
            key = same_experts(settings)
            trained_before = key in experts
            experts.add(key)
            for phase, steps in count_steps(settings, task_ends(settings)).steps.items():
                rate = self._rate(settings, phase)
                if rate is None:
                    return None
                if not (phase == "expert" and trained_before):
                    total += rate * steps * images_a_step(settings, phase)
        return total

    def _rate(self, settings: RunSettings, phase: str) -> float | None:
        keys = _keys(settings, phase)
        known = next((self._rates[key] for key in keys if key in self._rates), None)
        if known is None and phase == "filter":  # AUM and INCV train with labels as the finetuning does
            return self._rate(settings, "finetune")
        if known is not None or keys[0].robust == "none":
            return known
        # a loss against wrong labels that was measured elsewhere: as many times slower than without it
        plain = next((self._rates[k] for k in _keys(settings, phase, "none") if k in self._rates), None)
        factor = self._factor(keys[0].robust, phase)
        return None if plain is None or factor is None else plain * factor

    def _factor(self, robust: str, phase: str) -> float | None:
        for key, rate in self._rates.items():
            plain = self._rates.get(key._replace(robust="none"))
            if (key.robust, key.phase) == (robust, phase) and plain:
                return rate / plain
        return None


def _other_keys(settings: RunSettings) -> list[tuple[str, str]]:
    """Return the keys of the time outside training, the closest first."""
    dataset, learner = settings.dataset, settings.learner
    return [(dataset, learner), ("", learner), (dataset, ""), ("", "")]


def task_ends(settings: RunSettings) -> tuple[int, ...]:
    """Return where the tasks of a run end if all are equally long; nothing is loaded."""
    n = info_for(settings.dataset).n_train
    n = n * 9 // 10 if settings.validation else n
    n_tasks = len(tasks_for(settings.dataset, settings.noise, settings.episode))
    return tuple(n * (i + 1) // n_tasks for i in range(n_tasks))


def _keys(settings: RunSettings, phase: str, robust: str | None = None) -> list[_Key]:
    """Return the keys of a rate, the closest first; only the learner's own if its images per step are not known."""
    options: Any = settings.options
    loss = str(robust or getattr(options, "robust", "none"))
    network, dataset, learner = f"{options.network} {getattr(options, 'stem', '')}", settings.dataset, settings.learner
    keys = [
        _Key(network, dataset, learner, loss, phase),
        _Key(network, dataset, "", loss, phase),
        _Key(network, "", learner, loss, phase),
        _Key(network, "", "", loss, phase),
    ]
    return keys if _batch(settings, phase) else keys[::2]


def images_a_step(settings: RunSettings, phase: str) -> int:
    """Return the number of images in a training step, or 1 if it is not known."""
    return _batch(settings, phase) or 1


def _batch(settings: RunSettings, phase: str) -> int:
    if phase == "filter":
        return _FILTER_BATCH.get(getattr(settings.options, "filter", ""), 0)
    return sum(getattr(settings.options, name, 0) for name in _BATCH.get(phase, ()))
