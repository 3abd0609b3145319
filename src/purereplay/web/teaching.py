"""Decisions teach while the page is open: a thread absorbs them and asks the new classifier about all samples.

If another process holds the state, that process absorbs the decisions, and the thread only follows it.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from purereplay.errors import BusyError, UserError
from purereplay.live.buffers import load_learner
from purereplay.live.decisions import DecisionLog, Entry, InEffect
from purereplay.live.encoding import inputs
from purereplay.live.export.accuracy import measure
from purereplay.live.memory_settings import FULL_MEMORY
from purereplay.live.predict import Predictor, current_classifier, with_current
from purereplay.live.reviewed import Reviewed, absorbed, log_path
from purereplay.live.session import Session
from purereplay.live.settings import Opened
from purereplay.live.store import Current, Store
from purereplay.live.verdicts import ALL, last_revision, read_noise
from purereplay.nets.engine import Engine
from purereplay.nets.inference import embed
from purereplay.purify.noise_rate import NoiseRate, noise_rates
from purereplay.web.opinions import Opinion, features_of, most_confident
from purereplay.web.samples import StateSamples, read_scores

_PAUSE = 1.0  # seconds between two looks at the state
_QUIET = 3.0  # seconds without a decision after which those made are learned
_REST = 5  # times as long as judging all samples took, until they are judged again
_MANY = 25  # decisions that are learned without waiting for such a pause
_CHUNK = 100  # samples classified at once; the page is served in between
_EACH, _MOST = 50, 5000  # believed-clean images per label, and in all, that similar ones are chosen from
_NOISE_SAMPLE = 2000  # scored samples for the noise estimate


class Teacher(threading.Thread):
    """Thread that keeps an opinion up to date; `publish` receives it."""

    def __init__(
        self,
        samples: StateSamples,
        engine: Engine,
        publish: Callable[[Opinion], None],
        test: Path | None,
        *,
        absorbs: bool = True,
        encoder: Opened | None = None,
    ) -> None:
        super().__init__(name="teacher", daemon=True)
        self.samples = samples  # only its newest scores are set here: its database belongs to another thread
        self.state = samples.store.folder
        self.scores = samples.scores
        self.engine = engine
        self.publish = publish
        self.test = test
        self.encoder = encoder  # that of the state, if the user named it
        self.absorbs = absorbs  # False: another process does, also while it does not hold the state
        self.activity = "starting"  # shown on the page
        self.n_absorbed = 0  # number of the last entry of the log that the state has absorbed
        self._failure: str | None = None  # the error of the last look at the state
        self._test_failure: str | None = None  # why there is no accuracy on the test folder
        self._ended = threading.Event()
        self._judged, self._judging = (
            -math.inf,
            0.0,
        )  # when all samples were judged again, and how long it took, in seconds
        self._learner: str | None = None  # digest of the learner that the published opinion is of
        self._last = Opinion(np.zeros(0, np.int32), np.zeros(0, np.float32))

    def end(self) -> None:
        """Absorb what is left, and end."""
        self._ended.set()
        self.join(timeout=60)

    def run(self) -> None:
        self._ended.wait(_PAUSE)  # the first page goes first
        while not self._ended.is_set():
            try:
                self._absorb(at_once=False)
                self._look()
                self.activity, self._failure = self._test_failure or "ready", None
            except Exception as error:  # a full memory, for instance; this thread must go on
                self._fail(error)
            self._ended.wait(_PAUSE)
        try:
            self._absorb(at_once=True)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Show an error on the page, and log it unless it is the last one again."""
        known = isinstance(error, UserError)
        sentence = str(error) if known else f"The decisions cannot be learned: {str(error).rstrip('.')}."
        if sentence != self._failure:
            logging.getLogger(__name__).warning("%s", sentence, exc_info=None if known else error)
        self.activity = self._failure = sentence

    def _absorb(self, *, at_once: bool) -> None:
        """Absorb decisions into the state, unless another process holds it or the reviewer is busy."""
        with Store.reading(self.state) as store:
            self.n_absorbed = absorbed(store).number
        with DecisionLog.reading(log_path(self.state)) as log:
            new = [] if log is None else log.entries(self.n_absorbed)
        if not self.absorbs or not new or not (at_once or is_due(new, time.time())):
            return
        if not at_once and time.monotonic() - self._judged < _REST * self._judging:
            return
        self.activity = "learning from decisions"
        try:
            with Session.open(self.state, None, self.engine) as session:
                Reviewed(session).absorb()
                self.n_absorbed = absorbed(session.store).number
                began = time.monotonic()
                if session.settle() is not None:
                    self._judged, self._judging = time.monotonic(), time.monotonic() - began
        except BusyError:
            pass  # the process that holds the state absorbs them

    def _look(self) -> None:
        """Publish new scores, and a new opinion if the state has another learner than before, or more samples."""
        with Store.reading(self.state) as store:
            with store.snapshot():
                self.samples.newest = self.scores = read_scores(store, self.scores)
            numbers = self.scores.table.number
            n = int(numbers.max()) + 1 if len(numbers) else 0

            def use(current: Current | None) -> tuple[Current, Opinion] | None:
                if current is None or (current.digest == self._learner and n <= len(self._last.suggested)):
                    return None
                self.activity = "training the classifier"
                classifier = current_classifier(store, current, self.engine)
                if classifier is None:
                    return None
                return current, self._opinion(store, classifier, n)

            made = with_current(store, use)
            if made is None:
                return
            current, opinion = made
            self.publish(opinion)  # suggestions come first
            self.activity = "classifying"
            self._classify(store, opinion)
            self._learner, self._last = current.digest, opinion
            if self._ended.is_set():
                return
            self.activity = "estimating the noise"
            with store.snapshot():
                opinion.noise = self._noise(store, current)
                self._measure(store, opinion)

    def _opinion(self, store: Store, classifier: Predictor, n: int) -> Opinion:
        """Return the opinion of a new classifier; suggestions are those of the one before until they are replaced."""
        table = self.scores.table
        held = np.array([p for (p,) in store.query("SELECT position FROM purified")], np.int64)
        rows = most_confident(table, held, _EACH, _MOST)
        numbers = table.number[rows]
        corrected = dict(store.query("SELECT position, label FROM corrections ORDER BY number"))
        labels = [corrected.get(int(p), int(code)) for p, code in zip(numbers, table.label[rows], strict=True)]
        old = self._last
        suggested, chance = np.full(n, -1, np.int32), np.zeros(n, np.float32)
        suggested[: len(old.suggested)], chance[: len(old.chance)] = old.suggested[:n], old.chance[:n]
        return Opinion(
            suggested,
            chance,
            classifier,
            numbers,
            np.array(labels, np.int64),
            features_of(classifier, inputs(store, numbers)) if len(numbers) else None,
            noise=old.noise,
            accuracy=old.accuracy,
        )

    def _noise(self, store: Store, current: Current) -> NoiseRate:
        """Return the estimated share of wrong labels among the scored samples, as they were before reviewing."""
        if store.settings.learner == FULL_MEMORY:
            with DecisionLog.reading(log_path(self.state)) as log:
                entries = [] if log is None else InEffect(log.entries()).all()
            return _noise_of_memory(store, {e.sample for e in entries if e.label is not None})
        learner = load_learner(store, current, self.engine)
        table = self.scores.table
        n = len(table.number)
        rows = np.sort(np.random.default_rng(0).permutation(n)[:_NOISE_SAMPLE])
        images = inputs(store, table.number[rows])
        features = embed(learner.network, learner.inference_base, images, penultimate=True).cpu().numpy()
        return noise_rates(features, table.label[rows], len(self.scores.labels))[0]

    def _measure(self, store: Store, opinion: Opinion) -> None:
        """Measure the accuracy on the user's test folder; what prevents it is shown on the page."""
        if self.test is None or opinion.classifier is None:
            return
        self._test_failure = None
        try:
            opinion.accuracy = measure(store, opinion.classifier, self.test, self.encoder).rate
        except UserError as error:
            self._test_failure = str(error)
            logging.getLogger(__name__).warning("%s", error)

    def _classify(self, store: Store, opinion: Opinion) -> None:
        """Fill in the suggestions of all scored samples, the most doubtful first."""
        assert opinion.classifier is not None
        numbers = self.scores.table.number
        numbers = numbers[numbers < len(opinion.suggested)]
        if store.settings.learner == FULL_MEMORY:  # by models that were not trained on the sample
            found = store.query(
                "SELECT position, label, probability FROM likely WHERE position < ?", [len(opinion.chance)]
            )
            for position, code, chance in found:
                opinion.chance[position], opinion.suggested[position] = chance, code
            return
        for start in range(0, len(numbers), _CHUNK):
            if self._ended.is_set():
                return
            part = numbers[start : start + _CHUNK]
            chances, codes = opinion.classifier.probabilities(inputs(store, part)).cpu().max(1)
            opinion.chance[part], opinion.suggested[part] = chances.numpy(), codes.numpy()
            time.sleep(0.002)  # the page goes first


def is_due(new: list[Entry], now: float) -> bool:
    """Return whether decisions are learned now: many, or after a pause; a clock that was set back is a pause."""
    return len(new) >= _MANY or (len(new) > 0 and not 0 <= now - new[-1].time < _QUIET)


def _noise_of_memory(store: Store, reviewed: set[str]) -> NoiseRate:
    """Return the estimate of `full-memory`, which leaves out corrected labels, together with those that were wrong.

    Labels that were corrected outside of the log, as by `correct`, are no longer wrong; `reviewed` are the ids in it.
    """
    found, revision = read_noise(store).get((ALL, ALL)), last_revision(store)
    if found is None or revision is None:
        return NoiseRate(math.nan, 0.0, 1.0, 0)
    sql = "SELECT s.id, c.label, s.label FROM corrections c JOIN samples s USING (position) ORDER BY c.number"
    is_wrong = {name: label != given and name in reviewed for name, label, given in store.query(sql)}
    n_wrong = sum(list(is_wrong.values())[: revision.n_corrections])  # later ones are not part of the estimate
    n, n_rest = revision.n_samples, revision.n_samples - revision.n_corrections
    rate, low, high = ((share * n_rest + n_wrong) / n for share in found[1:])
    return NoiseRate(rate, low, high, found.n)
