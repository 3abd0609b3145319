"""Suggested labels and similar images, by sample number.

For a state they come from its current classifier (teaching.py), for an audit from its columns.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from purereplay.live.opinion import Opinion as FullMemoryOpinion
from purereplay.live.predict import Predictor
from purereplay.nets.inference import Classifier, embed
from purereplay.purify.noise_rate import NoiseRate
from purereplay.web.samples import AuditSamples, Table


@dataclass
class Opinion:
    """Opinion of one classifier; `suggested` and `chance` are filled step by step."""

    suggested: NDArray[np.int32]  # number of the most likely label by sample number, -1: not known yet
    chance: NDArray[np.float32]  # its probability
    classifier: Predictor | None = None
    clean: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # numbers of believed-clean samples
    clean_labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    clean_features: NDArray[np.float32] | None = None  # (n, d), rows of length 1; None: no order by similarity
    noise: NoiseRate | None = None  # estimated share of wrong labels among the scored samples
    accuracy: float | None = None  # on the user's test folder

    def suggest(self, number: int, own: torch.Tensor | None = None) -> tuple[int, float] | None:
        """Return the number of the most likely label and its probability; None if it is not known.

        `own` (1, …): the sample as the classifier takes it.
        """
        if number < len(self.suggested) and self.suggested[number] >= 0:
            return int(self.suggested[number]), float(self.chance[number])
        if self.classifier is None or own is None:
            return None
        chances, codes = self.classifier.probabilities(own).cpu().max(1)
        return int(codes[0]), float(chances[0])

    def features(self, own: torch.Tensor) -> NDArray[np.float32] | None:
        """Return the features of a sample (1, …) as the classifier takes it, (d,); None without a classifier."""
        if self.classifier is None:
            return None
        return np.asarray(features_of(self.classifier, own)[0])

    def near(self, own: NDArray[np.float32] | None, code: int, n: int, but: int) -> list[int]:
        """Return the n believed-clean samples of a label that are most similar to an image with these features."""
        rows = np.flatnonzero((self.clean_labels == code) & (self.clean != but))
        if own is not None and self.clean_features is not None:
            rows = rows[np.argsort(-(self.clean_features[rows] @ own), kind="stable")]
        return [int(number) for number in self.clean[rows[:n]]]


def unknown(n: int) -> Opinion:
    """Return the opinion on n samples before there is a classifier."""
    return Opinion(np.full(n, -1, np.int32), np.zeros(n, np.float32))


def features_of(classifier: Predictor, images: torch.Tensor) -> NDArray[np.float32]:
    """Return the classifier's features of samples as it takes them, (n, d), rows of length 1."""
    if isinstance(classifier, FullMemoryOpinion):
        features = classifier.feature_map.transform(images)
    else:
        assert isinstance(classifier, Classifier)
        features = embed(classifier.network, classifier.state, images, penultimate=True).cpu().float().numpy()
    return np.asarray(features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12), np.float32)


def of_audit(samples: AuditSamples) -> Opinion:
    """Return the opinion that an audit file states; similar images are the most confident accepted ones of a label."""
    opinion = Opinion(np.array(samples.suggested, np.int32), np.array(samples.chance, np.float32))
    accepted = np.flatnonzero(samples.table.accepted)[::-1]  # the most confident first
    opinion.clean, opinion.clean_labels = samples.table.number[accepted], samples.table.label[accepted]
    return opinion


def most_confident(table: Table, held: NDArray[np.int64], each: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` rows of the table whose numbers are `held`, the most confident `each` of every label."""
    rows = np.flatnonzero(np.isin(table.number, held) & ~np.isnan(table.probability))[::-1]
    labels = table.label[rows]
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], labels[order], side="left")
    rank = np.empty(len(rows), np.int64)
    rank[order] = np.arange(len(rows)) - starts
    kept = rows[rank < each]
    return kept[:most]
