"""The scikit-learn face: a classifier that learns from a stream of samples whose labels it does not trust.

`SelfPurifiedClassifier` translates between what people have (arrays, pictures, labels of any kind) and a learner with
its books (`learners.audited`): labels become class numbers in the order in which they come, samples become tensors.
docs/estimator.md shows it at work.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import DataConversionWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from purereplay.data.arrays import Shape, as_given, describe, is_vectors, read_samples
from purereplay.data.files import write_whole
from purereplay.data.labels import LabelBook, in_order, label_array, label_from_json, label_to_json, read_labels
from purereplay.data.names import Name, SampleNames
from purereplay.data.packing import pack_tensors, unpack_tensors
from purereplay.errors import InputError, UserError
from purereplay.learners.base import DataSpec
from purereplay.learners.recorded import RecordedLearner
from purereplay.learners.renamed import upgrade, upgrade_names, upgrade_preset
from purereplay.learners.settings import DataFacts, from_json, resolve
from purereplay.learners.spr.build import build_spr
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.device import pick_device, pick_precision
from purereplay.nets.engine import Engine
from purereplay.nets.networks import State
from purereplay.purify.noise_rate import NoiseRate

FORMAT = 2  # of saved files; version 0.1.0 wrote format 1
_NAMED = ("delayed_size", "purified_size", "expert_epochs", "base_epochs")  # settings that are arguments
_SUSPECT: list[tuple[str, Any]] = [
    ("id", object),  # the sample's
    ("label", object),  # as given
    ("clean_probability", np.float64),  # high = clean
    ("centrality", np.float64),  # high = central among those of its label in its buffer
    ("buffer", np.int64),  # number of the delayed buffer in which it was judged
    ("passed", np.bool_),  # the decision: whether it passed the filter
]


class Purified(NamedTuple):
    """What the purified buffer holds."""

    X: NDArray[Any]  # vectors (n, D), grey images uint8 (n, H, W), colour images uint8 (n, H, W, 3)
    y: NDArray[Any]  # (n,): the labels as given
    sample_ids: NDArray[Any]  # (n,)
    clean_probability: NDArray[np.float64]  # (n,), high = clean


class NoiseEstimate(NamedTuple):
    """Shares of wrong labels among the samples judged so far; see `purify.noise_rate` for what they can tell."""

    overall: NoiseRate
    by_class: dict[Hashable, NoiseRate]  # by given label


class SelfPurifiedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Self-Purified Replay as a scikit-learn classifier for images and feature vectors with noisy labels.

    Parameters: a `preset` of settings (`purereplay settings` lists them), four settings by name (None: the preset's),
    any others as a mapping, the `device` ("auto", "cpu", "cuda") and `random_state`.

    Fitted: `classes_` (sorted where the labels can be compared, else as they came; columns of `predict_proba`),
    `n_seen_`, and `n_features_in_` for feature vectors.
    """

    def __init__(
        self,
        *,
        preset: str = "live",
        delayed_size: int | None = None,
        purified_size: int | None = None,
        expert_epochs: int | None = None,
        base_epochs: int | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | None = 0,
    ) -> None:
        self.preset = preset
        self.delayed_size = delayed_size
        self.purified_size = purified_size
        self.expert_epochs = expert_epochs
        self.base_epochs = base_epochs
        self.settings = settings
        self.device = device
        self.random_state = random_state

    # ---------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from scratch, pass over the samples once in their order, and judge them to the last."""
        samples, labels = self._read(X, y)
        if not labels:
            raise InputError("X holds 0 samples, but at least one is required.")
        self._begin(samples)
        self._know(in_order(labels))
        self._put(samples, labels, None)
        self._recorded.work(flush=True)
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: ArrayLike | Sequence[Hashable] | None = None,
        sample_ids: Sequence[Hashable] | None = None,
    ) -> Self:
        """Go on with any number of samples; they are judged as soon as a delayed buffer is full.

        `classes` may name labels that are still to come; labels that nobody named may come too. `sample_ids`, text or
        whole numbers, are what `suspects` calls the samples; without them these are numbered from 0.
        """
        samples, labels = self._read(X, y)
        named = [] if classes is None else in_order(read_labels(classes))
        is_new = not self.__sklearn_is_fitted__()
        if not is_new:
            self._check_shape(samples)
        names = (SampleNames() if is_new else self._names).check(sample_ids, len(labels))
        if not labels:
            return self
        if is_new:
            self._begin(samples)
        self._know([*named, *labels])
        self._put(samples, labels, names)
        self._recorded.work()
        return self

    def flush(self) -> Self:
        """Judge the samples that are still held back in a delayed buffer that is not full; more may come after."""
        check_is_fitted(self)
        self._recorded.work(flush=True)
        return self

    # ---------------------------------------------------------------- classifying

    def predict(self, X: Any) -> NDArray[Any]:
        """The likeliest label of each sample, (n,)."""
        best = self._scores(X).argmax(1)
        labels: NDArray[Any] = self.classes_[best]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (n, len(classes_)); while nothing has passed the filter, how often each label was given."""
        scores = self._scores(X)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        shares: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
        return shares

    def score(self, X: Any, y: Any, sample_weight: NDArray[Any] | None = None) -> float:
        """The share of samples whose predicted label is `y`."""
        labels = self._read_labels(y)
        predicted = self.predict(X).tolist()
        if len(labels) != len(predicted):
            raise InputError(f"X holds {len(predicted)} samples, but y {len(labels)} labels.")
        right = [a == b for a, b in zip(predicted, labels, strict=True)]
        return float(np.average(right, weights=sample_weight))

    # ---------------------------------------------------------------- what is believed

    def suspects(self) -> NDArray[Any]:
        """Every sample judged so far, the most suspicious first: a structured array.

        Its fields are `id`, `label` (as given), `clean_probability` (high = clean), `centrality` (high = central),
        `buffer` (the number of the delayed buffer in which it was judged) and `passed` (the decision).
        """
        check_is_fitted(self)
        judged = self._recorded.verdicts.table()
        found = np.empty(self._recorded.verdicts.n, _SUSPECT)
        found["id"] = self._names.of(range(len(found)))
        found["label"] = self._labels.given(judged.labels, objects=True)
        for name, column in zip(_SUSPECT[2:], judged[1:], strict=True):
            found[name[0]] = column.numpy()
        return found[np.argsort(found["clean_probability"], kind="stable")]

    def purified(self) -> Purified:
        """The samples that are believed to be clean and are kept for replay."""
        check_is_fitted(self)
        held = self._recorded.learner.held()
        images = held.images if self._recorded.scale is None else self._recorded.scale.undo(held.images.cpu())
        return Purified(
            as_given(images),
            self._labels.given(held.labels),
            label_array(self._names.of(held.index.tolist())),
            self._recorded.verdicts.table().clean_probability[held.index].numpy(),
        )

    def noise_estimate(self) -> NoiseEstimate:
        """How many of the labels judged so far are wrong, overall and by class, each with a 95 % interval."""
        check_is_fitted(self)
        overall, rates = self._recorded.noise()
        return NoiseEstimate(overall, dict(zip(self._labels.labels, rates, strict=True)))

    # ---------------------------------------------------------------- files

    def save(self, path: str | Path) -> None:
        """Everything as one safetensors file, written whole or not at all; the loaded one goes on bit for bit.

        Labels must be text, numbers, true or false, or tuples of them. A `random_state` that is a generator is saved
        as the seed that was drawn from it.
        """
        check_is_fitted(self)
        facts, tensors = self._facts(), self._tensors()
        facts["labels"] = [label_to_json(label) for label in facts["labels"]]
        if isinstance(facts["params"]["random_state"], np.random.RandomState):
            facts["params"]["random_state"] = facts["seed"]
        write_whole(Path(path), pack_tensors(tensors, {"format": FORMAT, **facts})[0])

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """What `save` wrote."""
        try:
            tensors, facts, _ = unpack_tensors(Path(path))
        except ValueError as error:
            raise UserError(f"{path} {error}.") from error
        if facts.get("format") == 1:
            facts = _from_format_1(facts)
        if facts.get("format") != FORMAT:
            raise UserError(f"{path} has format {facts.get('format')!r}, this version reads format {FORMAT}.")
        facts["labels"] = [label_from_json(label) for label in facts["labels"]]
        loaded = cls(**facts["params"])
        loaded._restore(facts, tensors)
        return loaded

    def _facts(self) -> dict[str, Any]:
        """What is not a tensor."""
        params = self.get_params(deep=False)
        return {
            "params": {name: _plain(value) for name, value in params.items()},
            "options": asdict(self._options),  # resolved: a later version's presets change nothing
            "seed": self._recorded.learner.seed,
            "shape": self._recorded.learner.image_shape,
            "vectors": self._recorded.is_vectors,
            "labels": list(self._labels.labels),
        }

    def _tensors(self) -> State:
        return self._recorded.state() | {"sample_ids": self._names.state()}

    def _restore(self, facts: dict[str, Any], tensors: State) -> None:
        options = from_json(SprSettings, facts["options"])
        self._build(options, tuple(facts["shape"]), facts["vectors"], facts["seed"])
        self._know(facts["labels"])
        self._recorded.load({name: t for name, t in tensors.items() if name != "sample_ids"})
        self._names.load(tensors["sample_ids"])
        self.n_seen_ = self._names.n

    def __getstate__(self) -> dict[str, Any]:
        """For copies within Python and between its processes; files are `save`'s business."""
        state = {name: getattr(self, name) for name in self.get_params(deep=False)}
        return state | ({"_saved": (self._facts(), self._tensors())} if self.__sklearn_is_fitted__() else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_saved", None)
        self.__dict__.update(state)
        if saved is not None:
            facts, tensors = saved
            self._restore(facts, {name: t.clone() for name, t in tensors.items()})

    # ---------------------------------------------------------------- small parts

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_recorded")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _begin(self, samples: Tensor) -> None:
        """Forget everything; the first samples say what there is to learn from."""
        shape, vectors = _shape(samples), is_vectors(samples)
        facts = DataFacts(shape, is_vectors=vectors)
        options = resolve(SprSettings, self._chosen(), facts, preset=self.preset)
        if isinstance(self.random_state, int | np.integer):
            seed = int(self.random_state)
        else:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._build(options, shape, vectors, seed)

    def _chosen(self) -> dict[str, Any]:
        """The settings that the arguments change."""
        chosen: dict[str, Any] = _plain(self.settings or {})
        for name in _NAMED:
            value = _plain(getattr(self, name))
            if value is not None and chosen.setdefault(name, value) != value:
                raise UserError(f"The setting {name} is {value} as an argument and {chosen[name]} in settings.")
        return chosen

    def _build(self, options: SprSettings, shape: Shape, vectors: bool, seed: int) -> None:
        device = pick_device(self.device)
        engine = Engine(torch.device(device), precision=pick_precision("auto", device))
        data = DataSpec(image_shape=shape, n_classes=0, is_vectors=vectors)
        learner = build_spr(options, data, engine=engine, seed=seed)
        # the bits shall not depend on the pieces in which the stream comes. One buffer after the other they never do;
        # with the GPU's fused loop, which is for experts on images, training many side by side changes none either
        learner.buffer_filter.one_by_one = True
        together = device == "cuda" and not vectors and options.filter == "self-centered"
        self._recorded = RecordedLearner(learner, lookahead=64 if together else 1)
        self._options, self._labels, self._names = options, LabelBook(), SampleNames()
        self.n_seen_ = 0
        if vectors:
            self.n_features_in_ = shape[0]
        elif hasattr(self, "n_features_in_"):
            del self.n_features_in_

    def _know(self, labels: Sequence[Hashable]) -> None:
        self._labels.know(labels)
        self._recorded.grow(len(self._labels.labels))
        self.classes_ = self._labels.classes

    def _put(self, samples: Tensor, labels: Sequence[Hashable], names: list[Name] | None) -> None:
        self._recorded.put(samples, self._labels.numbers(labels))
        self._names.add(names, len(labels))
        self.n_seen_ = self._names.n

    def _scores(self, X: Any) -> NDArray[np.float64]:
        """The logarithms of probabilities up to a constant, (n, len(classes_))."""
        check_is_fitted(self)
        samples = read_samples(X)
        self._check_shape(samples)
        classifier = self._recorded.classifier()
        if classifier is None:
            with np.errstate(divide="ignore"):
                logarithms = np.log(self._recorded.n_given.numpy()[self._labels.columns])
            return np.tile(logarithms, (len(samples), 1))
        scores: NDArray[np.float64] = classifier.logits(self._recorded.scaled(samples)).double().cpu().numpy()
        return scores[:, self._labels.columns]

    def _read(self, X: Any, y: Any) -> tuple[Tensor, list[Hashable]]:
        samples, labels = read_samples(X), self._read_labels(y)
        if len(samples) != len(labels):
            raise InputError(f"X holds {len(samples)} samples, but y {len(labels)} labels.")
        return samples, labels

    def _read_labels(self, y: Any) -> list[Hashable]:
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        if isinstance(y, np.ndarray) and y.ndim == 2 and y.shape[1] == 1:
            words = "A column-vector y was passed when a 1d array was expected."
            warnings.warn(words, DataConversionWarning, stacklevel=4)
            y = y[:, 0]
        return read_labels(y)

    def _check_shape(self, samples: Tensor) -> None:
        """Raise unless these samples are like those learned from."""
        ours, vectors = self._recorded.learner.image_shape, self._recorded.is_vectors
        if _shape(samples) == ours and is_vectors(samples) == vectors:
            return
        name = type(self).__name__
        if vectors and is_vectors(samples):
            raise InputError(f"X has {samples.shape[1]} features, but {name} is expecting {ours[0]} features as input.")
        theirs = describe(_shape(samples), is_vectors(samples))
        raise InputError(f"X holds {theirs}, but {name} learned from {describe(ours, vectors)}.")


def _shape(samples: Tensor) -> Shape:
    channels, height, width = samples.shape[1:]
    return channels, height, width


def _from_format_1(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that version 0.1.0 saved under the present names."""
    params = facts["params"] | {"preset": upgrade_preset(facts["params"]["preset"])}
    if params["settings"] is not None:
        params["settings"] = upgrade_names("spr", params["settings"])
    return facts | {"format": FORMAT, "params": params, "options": upgrade("spr", facts["options"])}


def _plain(value: Any) -> Any:
    """Numbers of numpy and mappings as Python's own."""
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()}
    return value.item() if isinstance(value, np.generic) else value
