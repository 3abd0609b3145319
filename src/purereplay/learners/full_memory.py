"""A learner that keeps every sample: all of them are judged again as their number grows, and all of them teach.

`FullMemory` has the interface of `RecordedLearner`, for the scikit-learn interface. A revision judges the first n
samples together by `purify.opinions` and fits a classifier. It is a pure function of these samples and the seed, so
neither the pieces of a stream nor interrupts matter. Revisions come at 20 samples, 30, 45 and so on, so the work per
sample is bounded. `flush` asks for one of all samples.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from purereplay.data.arrays import Shape
from purereplay.data.batch import Batch
from purereplay.data.forms import MOST, Form, Forms, check_forms, n_rows, prefixed, total
from purereplay.data.progress import Progress
from purereplay.data.seeds import derive_seed
from purereplay.nets.networks import State, part
from purereplay.purify.noise_rate import NoiseRate, wilson
from purereplay.purify.opinions import IMAGE_KINDS, FeatureMap, Model, NoiseTable, choose_model, judge_labels

NAME = "full-memory"
FIRST = 20  # samples at the first revision
GROWTH = 1.5  # factor between the numbers of samples at revisions


class Revision(NamedTuple):
    """Verdicts on the first samples of a stream, and the classifier that was fitted on them."""

    feature_map: FeatureMap
    model: Model
    clean_probability: Tensor  # float64 (n,), high = clean
    likely_label: Tensor  # int64 (n,)
    passed: Tensor  # bool (n,)
    noise: NoiseTable

    @property
    def n(self) -> int:
        """Number of samples judged."""
        return len(self.passed)


class Classifier:
    """Classifier of a revision, for `n_classes` classes; later ones than those of the revision are impossible."""

    def __init__(self, revision: Revision, n_classes: int) -> None:
        self.revision, self.n_classes = revision, n_classes

    def logits(self, samples: Tensor) -> Tensor:
        """Samples -> logarithms of probabilities, float64 (n, n_classes)."""
        found = self.revision.model.predict_proba(self.revision.feature_map.transform(samples))
        wide = np.zeros((len(found), self.n_classes))
        wide[:, : found.shape[1]] = found
        with np.errstate(divide="ignore"):
            return torch.from_numpy(np.log(wide))


class FullMemory:
    """`put` samples, then `work`; `state` is everything that later results depend on."""

    scale = None  # the feature map of a revision scales

    def __init__(self, image_shape: Shape, *, is_vectors: bool, seed: int, watch: Progress | None = None) -> None:
        self.image_shape, self.is_vectors, self.seed, self.watch = image_shape, is_vectors, seed, watch
        dtype = torch.float64 if is_vectors else torch.uint8
        self._parts = [(torch.zeros((0, *image_shape), dtype=dtype), torch.zeros(0, dtype=torch.int64))]
        self.n_given = torch.zeros(0, dtype=torch.int64)  # samples so far, by label
        self.revision: Revision | None = None

    def copy(self) -> Self:
        """Return a learner that can go on in place of this one, while this one stays as it is."""
        return copy.copy(self)  # all parts are replaced, not changed

    def grow(self, n_classes: int) -> None:
        """Allow labels below `n_classes` from now on; the number never shrinks."""
        more = max(0, n_classes - len(self.n_given))
        self.n_given = torch.cat([self.n_given, torch.zeros(more, dtype=torch.int64)])

    def put(self, samples: Tensor, labels: Tensor) -> None:
        """Add samples uint8 (n, C, H, W) or float64 (n, D, 1, 1) with labels int64 (n,)."""
        self._parts = [*self._parts, (samples.clone(), labels.clone())]  # copies share the old list
        self.n_given = self.n_given + torch.bincount(labels, minlength=len(self.n_given))

    def work(self, *, flush: bool = False) -> None:
        """Revise the verdicts if there are enough new samples; `flush`: if there is any."""
        n = int(self.n_given.sum())
        n = n if flush else last_size(n)
        if n > (self.revision.n if self.revision else 0):
            samples, labels = self._samples()
            self.revision = revise(samples[:n], labels[:n], seed=self.seed, watch=self.watch)

    def _samples(self) -> tuple[Tensor, Tensor]:
        if len(self._parts) > 1:
            samples, labels = (torch.cat(own) for own in zip(*self._parts, strict=True))
            self._parts = [(samples, labels)]
        return self._parts[0]

    def classifier(self) -> Classifier | None:
        """Return the classifier, or None before the first revision."""
        return None if self.revision is None else Classifier(self.revision, len(self.n_given))

    def held(self) -> Batch:
        """Return the judged samples whose labels are believed."""
        samples, labels = self._samples()
        index = torch.zeros(0, dtype=torch.int64) if self.revision is None else self.revision.passed.nonzero()[:, 0]
        return Batch(samples[index], labels[index], index)

    def judged(self) -> tuple[Tensor, dict[str, NDArray[Any]]]:
        """Return the given labels of the judged samples, and the columns of their verdicts."""
        if self.revision is None:
            empty = np.zeros(0)
            columns = {"clean_probability": empty, "likely_label": empty.astype(np.int64), "passed": empty.astype(bool)}
            return torch.zeros(0, dtype=torch.int64), columns
        names = ("clean_probability", "likely_label", "passed")
        return self._samples()[1][: self.revision.n], {name: getattr(self.revision, name).numpy() for name in names}

    def clean_probability(self) -> Tensor:
        """Return the clean probability of the judged samples, float64 (n,)."""
        return torch.zeros(0, dtype=torch.float64) if self.revision is None else self.revision.clean_probability

    def noise(self) -> NoiseTable:
        """Return the shares of wrong labels among the judged samples; NaN before the first revision."""
        table = NoiseTable(wilson(0, 0), [], {}) if self.revision is None else self.revision.noise
        more = [wilson(0, 0)] * (len(self.n_given) - len(table.by_class))
        return table._replace(by_class=[*table.by_class, *more])

    # ---------------------------------------------------------------- files

    def state(self) -> State:
        samples, labels = self._samples()
        state = {"samples": samples, "labels": labels, "n_given": self.n_given}
        if self.revision is None:
            return state
        own = {name: getattr(self.revision, name) for name in ("clean_probability", "likely_label", "passed")}
        own |= _noise_tensors(self.revision.noise)
        own |= prefixed("map.", self.revision.feature_map.tensors()) | prefixed("model.", self.revision.model.tensors())
        return state | prefixed("revision.", own)

    def restore(self, state: State) -> None:
        """Check a saved state and load it; ValueError with the reason if it is not a state of this learner."""
        own = part(state, "revision.")
        inner = {name for name in own if name.startswith(("map.", "model."))}
        plain = {name: t for name, t in state.items() if name.removeprefix("revision.") not in inner}
        check_forms(plain, self._forms(state, own))
        counted = torch.bincount(state["labels"], minlength=len(state["n_given"]))
        if not torch.equal(counted, state["n_given"]):
            raise ValueError("n_given does not count the labels")
        revision = _revision(own) if own else None
        if revision is not None and revision.model.n_features != revision.feature_map.n_features:
            raise ValueError("its classifier has other features")
        if revision is not None and not revision.feature_map.fits(self.image_shape, is_vectors=self.is_vectors):
            raise ValueError("its features are those of other samples")
        self._parts, self.n_given = [(state["samples"], state["labels"])], state["n_given"]
        self.revision = revision

    def _forms(self, state: State, own: State) -> Forms:
        n_classes, n = len(self.n_given), total(state, "n_given")
        dtype = torch.float64 if self.is_vectors else torch.uint8
        forms = {
            "samples": Form(dtype, (n, *self.image_shape), finite=self.is_vectors),
            "labels": Form(torch.int64, (n,), 0, n_classes - 1),
            "n_given": Form(torch.int64, (n_classes,), 0, MOST),
        }
        if not own:
            return forms
        judged = n_rows(own, "passed", n)
        known, pairs = n_rows(own, "noise.by_class", n_classes), n_rows(own, "noise.pairs", MOST)
        parts = {
            "clean_probability": Form(torch.float64, (judged,), 0, 1, finite=True),
            "likely_label": Form(torch.int64, (judged,), 0, n_classes - 1),
            "passed": Form(torch.bool, (judged,)),
            "noise.overall": Form(torch.float64, (4,)),
            "noise.by_class": Form(torch.float64, (known, 4)),
            "noise.pairs": Form(torch.int64, (pairs, 2), 0, n_classes - 1),
            "noise.by_pair": Form(torch.float64, (pairs, 4)),
        }
        return forms | prefixed("revision.", parts)


def last_size(n: int) -> int:
    """Return the largest number of samples up to n at which there is a revision; 0: none."""
    size, before = FIRST, 0
    while size <= n:
        size, before = round(size * GROWTH), size
    return before


def revise(samples: Tensor, labels: Tensor, *, seed: int, watch: Progress | None = None) -> Revision:
    """Judge samples together and fit a classifier on them; only samples, labels, seed and their order matter."""
    given, n_classes = labels.numpy(), int(labels.max()) + 1
    own = derive_seed(seed, "revision", len(given))
    feature_map = FeatureMap.fit(samples, own)
    features = feature_map.transform(samples, watch)
    kinds = IMAGE_KINDS if feature_map.is_for_images else None
    found = judge_labels(features, given, n_classes, kinds=kinds, seed=own, watch=watch)
    model = choose_model(features, given, found.clean_probability, n_classes, kinds=kinds, seed=own, watch=watch)
    clean, likely, passed = map(torch.from_numpy, (found.clean_probability, found.likely_label, found.accepted))
    return Revision(feature_map, model, clean, likely, passed, found.noise)


def _noise_tensors(table: NoiseTable) -> State:
    def rows(rates: list[NoiseRate]) -> Tensor:
        return torch.tensor(rates, dtype=torch.float64).reshape(len(rates), 4)

    return {
        "noise.overall": rows([table.overall])[0],
        "noise.by_class": rows(table.by_class),
        "noise.pairs": torch.tensor(list(table.by_pair), dtype=torch.int64).reshape(len(table.by_pair), 2),
        "noise.by_pair": rows(list(table.by_pair.values())),
    }


def _revision(own: State) -> Revision:
    def rate(row: Tensor) -> NoiseRate:
        share, low, high, n = row.tolist()
        return NoiseRate(share, low, high, int(n))

    pairs = [(int(i), int(j)) for i, j in own["noise.pairs"].tolist()]
    by_pair = dict(zip(pairs, map(rate, own["noise.by_pair"]), strict=True))
    table = NoiseTable(rate(own["noise.overall"]), [rate(row) for row in own["noise.by_class"]], by_pair)
    maps, model = FeatureMap.from_tensors(part(own, "map.")), Model.from_tensors(part(own, "model."))
    return Revision(maps, model, own["clean_probability"], own["likely_label"], own["passed"], table)
