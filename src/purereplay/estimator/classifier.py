"""The scikit-learn interface: a classifier that learns from a stream of samples with unreliable labels.

`SelfPurifiedClassifier` converts arrays, images and labels of any type into tensors for a learner that records every
decision (`learners.recorded`). Labels are numbered in the order of their first appearance. docs/estimator.md has
examples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
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
from purereplay.data.columns import check_feature_names, feature_names
from purereplay.data.encoders import (
    NONE,
    CheckedEncoder,
    Encoder,
    as_encoder,
    check_same,
    encoded_samples,
    runs_code,
)
from purereplay.data.files import write_whole
from purereplay.data.labels import LabelBook, in_order, label_array, label_to_json, read_labels
from purereplay.data.names import Name, SampleNames
from purereplay.data.packing import pack_tensors, unpack_tensors
from purereplay.data.scale import Scale
from purereplay.errors import InputError, InputTypeError, UserError
from purereplay.estimator.progress_line import ProgressLine
from purereplay.estimator.saved import as_saved, check_facts, check_options, read_saved_labels, with_learner
from purereplay.estimator.turns import Turns
from purereplay.learners import full_memory, own_data
from purereplay.learners.base import DataSpec
from purereplay.learners.full_memory import FullMemory
from purereplay.learners.recorded import RecordedLearner
from purereplay.learners.renamed import upgrade, upgrade_names, upgrade_preset
from purereplay.learners.settings import DataFacts, from_json
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.device import pick_device, pick_precision
from purereplay.nets.engine import Engine, TrainingProgress
from purereplay.nets.inference import Classifier, grad_mode_kept
from purereplay.nets.networks import State
from purereplay.purify.noise_rate import NoiseRate

FORMAT = 2  # of saved files; version 0.1.0 wrote format 1
_PRESET = "live"
_NAMED = ("delayed_size", "purified_size", "expert_epochs", "base_epochs")  # settings that are also arguments
_COLUMNS: dict[str, tuple[Any, Any]] = {  # of `suspects`: type, and the value of a learner that does not say it
    "id": (object, None),  # of the sample
    "label": (object, None),  # as given
    "clean_probability": (np.float64, np.nan),  # high = clean
    "likely_label": (object, None),  # most likely true label
    "passed": (np.bool_, False),  # decision: whether the label is believed
    "centrality": (np.float64, np.nan),  # high = central among the samples of its label and buffer
    "buffer": (np.int64, -1),  # number of the delayed buffer in which it was scored
}


class Purified(NamedTuple):
    """Contents of the purified buffer.

    Attributes
    ----------
    X : ndarray
        Feature vectors (n, D), those of the encoder if there is one; grey images uint8 (n, H, W), or colour images
        uint8 (n, H, W, 3).
    y : ndarray of shape (n,)
        Labels as given.
    sample_ids : ndarray of shape (n,)
        Ids of the samples.
    clean_probability : ndarray of shape (n,)
        Probability that the label is right, high = clean.
    """

    X: NDArray[Any]
    y: NDArray[Any]
    sample_ids: NDArray[Any]
    clean_probability: NDArray[np.float64]


class NoiseEstimate(NamedTuple):
    """Estimated shares of wrong labels among the scored samples; docs/estimator.md describes their limits.

    Attributes
    ----------
    overall : NoiseRate
        Share among all samples.
    by_class : dict
        Shares by given label.
    by_pair : dict
        Shares of a given label that are likely another label, by (given, likely), the largest counts first. Empty
        unless the learner is "full-memory".
    """

    overall: NoiseRate
    by_class: dict[Hashable, NoiseRate]
    by_pair: dict[tuple[Hashable, Hashable], NoiseRate]


class _View(NamedTuple):
    """All that a prediction needs, made from one whole state and never changed."""

    classifier: Classifier | full_memory.Classifier | None  # None while nothing was learned
    n_given: NDArray[np.int64]  # samples by class number
    scale: Scale | None
    classes: NDArray[Any]
    columns: list[int]  # class numbers in the order of `classes`
    shape: Shape
    is_vectors: bool
    feature_names: NDArray[Any] | None


class SelfPurifiedClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A scikit-learn classifier for images and feature vectors with noisy labels.

    The learner "full-memory" keeps all samples. Several models judge every label without having seen it, one calibrated
    probability combines them, and all samples teach with it as their weight. The learners "spr" (Self-Purified Replay)
    and "pure-replay" have a memory of fixed size: samples wait in delayed buffers, a filter scores each full buffer,
    and the classifier is trained on a buffer of samples that pass.

    Threads may share a classifier. They learn one at a time. Predictions do not wait while another thread
    learns: they come from the last classifier that was trained to its end.

    Every method may be interrupted at any moment, and called again. `fit` then leaves the classifier as it was. If
    `partial_fit` has already stored its samples (see `n_seen_`), the next call continues with them.

    Parameters
    ----------
    learner : {"full-memory", "spr", "pure-replay"}, optional
        Learner that scores samples. None: "full-memory". If one of the next six parameters is given, which
        "full-memory" does not have, None means "spr" with a warning: name the learner.
    preset : str, default="live"
        Name of a set of settings; `purereplay settings` lists them. This and the next five parameters are those of
        learners with buffers.
    delayed_size : int, optional
        Capacity of a delayed buffer, in samples. None: the value of the preset.
    purified_size : int, optional
        Capacity of the purified buffer, in samples. None: the value of the preset.
    expert_epochs : int, optional
        Epochs of an expert network per delayed buffer. None: the value of the preset. With the preset "live" images
        are scored without experts unless this is given.
    base_epochs : int, optional
        Epochs of the base network per delayed buffer. None: the value of the preset.
    settings : mapping, optional
        Any other settings by name, such as ``{"hidden": 128, "graphs": 10}``.
    device : {"auto", "cpu", "cuda"}, default="auto"
        Device of the training; "auto" is CUDA if it is available.
    random_state : int, RandomState, Generator or None, default=0
        Seed of all random draws. A RandomState, a Generator or None: draw a seed when learning starts.
    verbose : bool, optional
        Whether progress is written to the standard error stream. None: only by "full-memory", after ten seconds.
    encoder : str or object, optional
        Encoder whose features are learned instead of pixels, such as "onnx:encoder.onnx", or an object with `name`,
        `dim` and `embed`; see docs/encoders.md. Samples are images then, and PIL images may have any size.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels so far, and columns of `predict_proba`. Sorted if the labels can be compared, otherwise in order of
        appearance.
    n_seen_ : int
        Number of samples so far.
    n_features_in_ : int
        Number of features; only for feature vectors.
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Names of the features; only if the first samples came with column names that are all strings.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from purereplay import SelfPurifiedClassifier
    >>> images, labels = load_digits().images / 16, load_digits().target
    >>> classifier = SelfPurifiedClassifier().fit(images[:400], labels[:400])
    >>> classifier.predict(images[400:410]).shape
    (10,)
    >>> suspects = classifier.suspects()  # lowest clean probability first
    >>> suspects.dtype.names
    ('id', 'label', 'clean_probability', 'likely_label', 'passed', 'centrality', 'buffer')
    """

    def __init__(
        self,
        *,
        learner: str | None = None,
        preset: str = _PRESET,
        delayed_size: int | None = None,
        purified_size: int | None = None,
        expert_epochs: int | None = None,
        base_epochs: int | None = None,
        settings: Mapping[str, Any] | None = None,
        device: str = "auto",
        random_state: int | np.random.RandomState | np.random.Generator | None = 0,
        verbose: bool | None = None,
        encoder: str | Encoder | None = None,
    ) -> None:
        self.learner = learner
        self.preset = preset
        self.delayed_size = delayed_size
        self.purified_size = purified_size
        self.expert_epochs = expert_epochs
        self.base_epochs = base_epochs
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
        self.encoder = encoder

    # ---------------------------------------------------------------- learning

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from scratch in one pass over the samples, in their order, and score all of them.

        Parameters
        ----------
        X : array-like, tensor or list of PIL images
            Images (n, H, W) or (n, H, W, C), tensors (n, C, H, W), or feature vectors (n, D).
        y : array-like of shape (n,)
            Labels of any hashable type.

        Returns
        -------
        self : SelfPurifiedClassifier
            The fitted classifier.
        """
        samples, labels = self._read(X, y, is_new=True)
        names = feature_names(X)
        if not labels:
            raise InputError("X holds 0 samples, but at least one is required.")

        def learn() -> None:
            draft = self._draft()
            draft._start(samples, names)
            draft._know(in_order(labels))
            draft._put(samples, labels, None)
            draft._recorded.work(flush=True)
            self._publish(draft)

        self._turns.learning(learn, self._make_view)
        return self

    def partial_fit(
        self,
        X: Any,
        y: Any,
        classes: ArrayLike | Sequence[Hashable] | None = None,
        sample_ids: Sequence[Hashable] | None = None,
    ) -> Self:
        """Continue with any number of samples; they are scored as soon as a delayed buffer is full.

        Parameters
        ----------
        X : array-like, tensor or list of PIL images
            Samples, as for `fit`.
        y : array-like of shape (n,)
            Labels of any hashable type.
        classes : array-like, optional
            Labels that are expected. Other labels may appear as well.
        sample_ids : sequence of str or int, optional
            Ids of the samples, each used once. None: numbers in the stream, from 0.

        Returns
        -------
        self : SelfPurifiedClassifier
            The classifier.
        """
        samples, labels = self._read(X, y, is_new=not self.__sklearn_is_fitted__())
        named = [] if classes is None else in_order(read_labels(classes))

        def learn() -> None:
            is_new = not self.__sklearn_is_fitted__()
            if not is_new:
                self._check_columns(X, getattr(self, "feature_names_in_", None))
                self._check_shape(samples, self._recorded.image_shape, self._recorded.is_vectors)
            names = (SampleNames() if is_new else self._names).check(sample_ids, len(labels))
            if is_new and not labels:  # nothing can be fitted yet
                self._announced = [*self._announced, *named]
            elif labels or named:
                draft = self._draft()
                if is_new:
                    draft._start(samples, feature_names(X))
                draft._know([*(self._announced if is_new else []), *named, *labels])
                if labels:
                    draft._put(samples, labels, names)
                self._publish(draft)
                self._recorded.work()

        self._turns.learning(learn, self._make_view)
        return self

    def flush(self) -> Self:
        """Score the samples in a delayed buffer that is not full; more samples may follow.

        Returns
        -------
        self : SelfPurifiedClassifier
            The classifier.
        """
        check_is_fitted(self)
        self._turns.learning(lambda: self._recorded.work(flush=True), self._make_view)
        return self

    # ---------------------------------------------------------------- classifying

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most likely label of each sample.

        Parameters
        ----------
        X : array-like, tensor or list of PIL images
            Samples, as for `fit`.

        Returns
        -------
        y : ndarray of shape (n,)
            Labels.
        """
        scores, view = self._answer(X)
        labels: NDArray[Any] = view.classes[scores.argmax(1)]
        return labels

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of every label.

        Parameters
        ----------
        X : array-like, tensor or list of PIL images
            Samples, as for `fit`.

        Returns
        -------
        probabilities : ndarray of shape (n, n_classes)
            Columns in the order of `classes_`. While no sample has passed the filter: relative frequencies of the
            given labels.
        """
        scores, _ = self._answer(X)
        powers = np.exp(scores - scores.max(1, keepdims=True))
        shares: NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
        return shares

    def score(self, X: Any, y: Any, sample_weight: NDArray[Any] | None = None) -> float:
        """Return the accuracy of the predictions.

        Parameters
        ----------
        X : array-like, tensor or list of PIL images
            Samples, as for `fit`.
        y : array-like of shape (n,)
            True labels.
        sample_weight : array-like of shape (n,), optional
            Weights of the samples.

        Returns
        -------
        score : float
            Share of samples whose predicted label is `y`.
        """
        labels = self._read_labels(y)
        predicted = self.predict(X).tolist()
        if len(labels) != len(predicted):
            raise InputError(f"X holds {len(predicted)} samples, but y {len(labels)} labels.")
        if not labels:
            raise InputError("X holds 0 samples, but at least one is required.")
        learned = self._labels.labels
        if {isinstance(b, str) for b in labels}.isdisjoint(isinstance(a, str) for a in learned):
            raise InputError(f"y holds labels such as {labels[0]!r}, but fit got labels such as {learned[0]!r}.")
        right = [a == b for a, b in zip(predicted, labels, strict=True)]
        try:
            accuracy = float(np.average(right, weights=sample_weight))
        except (TypeError, ValueError, ZeroDivisionError) as error:
            raise InputError(f"sample_weight must be {len(right)} numbers with a sum other than 0: {error}.") from error
        if not math.isfinite(accuracy):
            raise InputError("sample_weight must be finite numbers.")
        return accuracy

    # ---------------------------------------------------------------- decisions of the filter

    def suspects(self) -> NDArray[Any]:
        """Return every scored sample, lowest clean probability first.

        Returns
        -------
        suspects : structured ndarray
            Fields: `id`, `label` (as given), `clean_probability` (high = clean), `likely_label` (most likely true
            label), `passed` (whether the label is believed), `centrality` (high = central) and `buffer` (number of the
            delayed buffer in which it was scored). The learner "full-memory" has no buffers: the last two are NaN and
            -1. The others keep too few samples for a `likely_label`, which is None.
        """
        check_is_fitted(self)

        def read() -> NDArray[Any]:
            labels, columns = self._recorded.judged()
            found = np.empty(len(labels), [(name, kind) for name, (kind, _) in _COLUMNS.items()])
            for name, (_, unknown) in _COLUMNS.items():
                found[name] = unknown
            found["id"] = self._names.of(range(len(found)))
            found["label"] = self._labels.given(labels, objects=True)
            for name, column in columns.items():
                own = name == "likely_label"
                found[name] = self._labels.given(torch.from_numpy(column), objects=True) if own else column
            return found

        found = self._turns.reading(read)
        return found[np.argsort(found["clean_probability"], kind="stable")]

    def purified(self) -> Purified:
        """Return the samples that teach: the contents of the purified buffer, or all that are believed.

        Returns
        -------
        purified : Purified
            Samples that passed the filter.
        """
        check_is_fitted(self)

        def read() -> Purified:
            held = self._recorded.held()
            return Purified(
                as_given(held.images),
                self._labels.given(held.labels),
                label_array(self._names.of(held.index.tolist())),
                self._recorded.clean_probability()[held.index].numpy(),
            )

        return self._turns.reading(read)

    def noise_estimate(self) -> NoiseEstimate:
        """Estimate the share of wrong labels among the scored samples.

        Returns
        -------
        estimate : NoiseEstimate
            Shares overall, by class and by pair of classes, each with a 95 % interval.
        """
        check_is_fitted(self)

        def read() -> NoiseEstimate:
            table, names = self._recorded.noise(), self._labels.labels
            pairs = {(names[given], names[likely]): rate for (given, likely), rate in table.by_pair.items()}
            return NoiseEstimate(table.overall, dict(zip(names, table.by_class, strict=True)), pairs)

        return self._turns.reading(read)

    # ---------------------------------------------------------------- files

    def save(self, path: str | Path) -> None:
        """Save the classifier as one safetensors file, written whole or not at all.

        A loaded classifier continues exactly as the saved one would. Labels must be str, int, float, bool, or tuples
        of these. A `random_state` that is a generator is saved as the seed that was drawn from it.

        Parameters
        ----------
        path : str or Path
            File to write.
        """
        check_is_fitted(self)
        facts, tensors = self._whole_state()
        if not isinstance(facts["params"]["encoder"], str | None):
            raise UserError("A classifier whose encoder is an object cannot be saved: give the encoder as a text.")
        facts["labels"] = [label_to_json(label) for label in facts["labels"]]
        if _is_generator(facts["params"]["random_state"]):
            facts["params"]["random_state"] = facts["seed"]
        write_whole(Path(path), pack_tensors(tensors, as_saved({"format": FORMAT, **facts}))[0])

    @classmethod
    def load(cls, path: str | Path, encoder: str | Encoder | None = None) -> Self:
        """Load a classifier that `save` has written.

        Parameters
        ----------
        path : str or Path
            File to read.
        encoder : str or object, optional
            Encoder that the classifier was saved with. It must be named again if it runs code ("python:", "torch:"),
            and if its file was moved.

        Returns
        -------
        classifier : SelfPurifiedClassifier
            The classifier.
        """
        try:
            tensors, facts, _ = unpack_tensors(Path(path))
        except ValueError as error:
            raise UserError(f"{path} {error}.") from error
        if type(facts.get("format")) is not int or facts["format"] not in (1, FORMAT):
            raise UserError(f"{path} has format {facts.get('format')!r}, this version reads format {FORMAT}.")
        try:
            facts = with_learner(facts)
            check_facts(facts)
            if facts["format"] == 1:
                facts = _from_format_1(facts)
            check_options(facts, tensors)
            if encoder is not None:
                facts["params"] = facts["params"] | {"encoder": encoder}
            elif facts["params"]["encoder"] not in (None, NONE) and runs_code(facts["params"]["encoder"]):
                text = facts["params"]["encoder"]
                raise UserError(f"it was made with {text}, which runs code; name it with encoder= if you trust it")
            loaded = cls(**facts["params"])
            loaded._restore(facts | {"labels": read_saved_labels(facts["labels"])}, tensors)
        except (UserError, ValueError, TypeError, LookupError, RuntimeError, MemoryError, OverflowError) as error:
            reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
            remedy = "" if "runs code" in reason else "; restore it from a copy"
            raise UserError(f"{path} cannot be used: {reason}{remedy}.") from error
        return loaded

    def _facts(self) -> dict[str, Any]:
        """Return the part of the state that is not tensors."""
        params = self.get_params(deep=False)
        return {
            "params": {name: _plain(value) for name, value in params.items()},
            "learner": self._learner,
            # resolved, so that the presets of a later version do not matter
            "options": {} if self._options is None else asdict(self._options),
            "seed": self._recorded.seed,
            "encoder_digest": self._encoder_digest,
            "shape": self._recorded.image_shape,
            "vectors": self._recorded.is_vectors,
            "labels": list(self._labels.labels),
            "feature_names": [str(name) for name in getattr(self, "feature_names_in_", ())] or None,
        }

    def _tensors(self) -> State:
        return self._recorded.state() | {"sample_ids": self._names.state()}

    def _whole_state(self) -> tuple[dict[str, Any], State]:
        """Return facts and tensors of one moment; later learning does not change them."""
        return self._turns.reading(lambda: (self._facts(), self._tensors()))

    def _restore(self, facts: dict[str, Any], tensors: State) -> None:
        learner = facts["learner"]
        options = None
        if learner != full_memory.NAME:
            options = from_json(own_data.settings_class(learner), facts["options"])
        names = facts.get("feature_names")  # None in files of version 0.1.0
        own = None if names is None else np.array(names, dtype=object)
        digest = facts.get("encoder_digest")  # None in files of earlier versions
        self._build(learner, options, tuple(facts["shape"]), facts["vectors"], facts["seed"], own, digest)
        self._know(facts["labels"])
        self._names.load(tensors["sample_ids"])
        self._recorded.restore({name: t for name, t in tensors.items() if name != "sample_ids"})
        self.n_seen_ = int(self._recorded.n_given.sum())
        if self._names.n != self.n_seen_:
            raise ValueError(f"{self._names.n} samples have names, but {self.n_seen_} were given")

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for copies and pickles between processes; `save` is for files."""
        state = {name: getattr(self, name) for name in self.get_params(deep=False)}
        state |= {"_announced": self._announced} if self._announced else {}
        return state | ({"_saved": self._whole_state()} if self.__sklearn_is_fitted__() else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("_saved", None)
        self.__dict__.update(state)
        if saved is not None:
            facts, tensors = saved
            self._restore(facts, {name: t.clone() for name, t in tensors.items()})

    # ---------------------------------------------------------------- small parts

    _recorded: RecordedLearner | FullMemory
    _announced: Sequence[Hashable] = ()  # `classes` of calls before the first sample

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_recorded")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    @property
    def _turns(self) -> Turns[_View]:
        """Turns of the threads that share this classifier; copies and pickles get turns of their own."""
        turns: Turns[_View] | None = self.__dict__.get("_own_turns")
        # `setdefault` is one step for all threads
        return turns if turns is not None else self.__dict__.setdefault("_own_turns", Turns())

    def _draft(self) -> Self:
        """Return a classifier to learn with in place of this one, which stays as it is until `_publish`."""
        draft = type(self).__new__(type(self))
        draft.__dict__ = self.__dict__.copy()
        if self.__sklearn_is_fitted__():
            draft._recorded, draft._labels = self._recorded.copy(), self._labels.copy()
            draft._names = self._names.copy()
        return draft

    def _publish(self, draft: Self) -> None:
        """Take over all that the draft has learned."""
        kept = {name: value for name, value in self.__dict__.items() if not _is_learned(name)}
        learned = {name: value for name, value in draft.__dict__.items() if _is_learned(name)}
        self.__dict__ = kept | learned  # one operation: an interrupt comes before or after it

    def _start(self, samples: Tensor, names: NDArray[Any] | None) -> None:
        """Start a new learner for samples of this kind."""
        shape, vectors = _shape(samples), is_vectors(samples)
        learner, options = self._resolved(DataFacts(shape, is_vectors=vectors))
        seed = _seed(self.random_state)
        kept = self.__dict__.get("_opened_encoder")
        has_encoder = self.encoder is not None and self.encoder != NONE
        self._build(learner, options, shape, vectors, seed, names, kept[1].digest if has_encoder and kept else None)

    def _resolved(self, facts: DataFacts) -> tuple[str, SprSettings | None]:
        """Return the name of the learner, and its settings; None: it has none."""
        chosen, preset_given = self._chosen(), self.preset != _PRESET
        learner = self.learner
        if learner is None:
            learner = full_memory.NAME
            if chosen or preset_given:
                learner = own_data.DEFAULT
                name = next(iter(chosen), "preset")
                words = (
                    f"{name} belongs to learners with buffers, so {learner!r} is used and not {full_memory.NAME!r}; "
                )
                warnings.warn(words + f"set learner={learner!r} to choose it.", UserWarning, stacklevel=6)
        if learner != full_memory.NAME:
            return learner, own_data.resolved(learner, chosen, facts, preset=self.preset)
        if chosen or preset_given:
            name = next(iter(chosen), "preset")
            raise UserError(f"The learner {learner} has no setting {name}: leave it out, or choose learner='spr'.")
        return learner, None

    def _chosen(self) -> dict[str, Any]:
        """Return the settings that the arguments change."""
        if self.settings is not None and not isinstance(self.settings, Mapping):
            raise InputTypeError(f"settings must be a mapping of names to values, not {type(self.settings).__name__}.")
        chosen: dict[str, Any] = _plain(self.settings or {})
        for name in _NAMED:
            value = _plain(getattr(self, name))
            if value is not None and chosen.setdefault(name, value) != value:
                raise UserError(f"The setting {name} is {value} as an argument and {chosen[name]} in settings.")
        return chosen

    def _build(
        self,
        name: str,
        options: SprSettings | None,
        shape: Shape,
        vectors: bool,
        seed: int,
        names: NDArray[Any] | None,
        encoder_digest: str | None,
    ) -> None:
        device = pick_device(self.device)
        if options is None:
            watch = None if self.verbose is False else ProgressLine(self.verbose)
            self._recorded = FullMemory(shape, is_vectors=vectors, seed=seed, watch=watch)
        else:
            self._recorded = self._with_buffers(name, options, shape, vectors, seed, device)
        self._learner, self._options, self._encoder_digest = name, options, encoder_digest
        self._labels, self._names = LabelBook(), SampleNames()
        self.n_seen_ = 0
        known = {"n_features_in_": shape[0] if vectors else None, "feature_names_in_": names if vectors else None}
        for name, value in known.items():
            self.__dict__.pop(name, None)
            if value is not None:
                setattr(self, name, value)

    def _with_buffers(
        self, name: str, options: SprSettings, shape: Shape, vectors: bool, seed: int, device: str
    ) -> RecordedLearner:
        engine = Engine(torch.device(device), precision=pick_precision("auto", device), watch=self._watch())
        data = DataSpec(image_shape=shape, n_classes=0, is_vectors=vectors)
        try:
            learner = own_data.build(name, options, data, engine=engine, seed=seed)
        except (MemoryError, RuntimeError) as error:  # PyTorch has no error type for the CPU's memory
            if isinstance(error, RuntimeError) and "memory" not in str(error):
                raise
            raise UserError("There is not enough memory for these settings: choose smaller sizes.") from error
        # Results must not depend on the pieces of the stream. Buffers that are processed one by one fulfil this. So do
        # experts on images that the CUDA loop trains side by side.
        learner.buffer_filter.one_by_one = True
        together = device == "cuda" and not vectors and options.filter == "self-centered"
        return RecordedLearner(learner, lookahead=64 if together else 1)

    def _watch(self) -> Callable[[TrainingProgress], None] | None:
        """Return what reports the training of networks."""
        if not self.verbose:
            return None
        line = ProgressLine(self.verbose)
        return lambda now: line(f"{now.phase}, step", now.done, now.total)

    def _know(self, labels: Sequence[Hashable]) -> None:
        self._labels.know(labels)
        self._recorded.grow(len(self._labels.labels))
        self.classes_ = self._labels.classes

    def _put(self, samples: Tensor, labels: Sequence[Hashable], names: list[Name] | None) -> None:
        self._recorded.put(samples, self._labels.numbers(labels))
        self._names.add(names, len(labels))
        self.n_seen_ = self._names.n

    def _make_view(self) -> _View:
        """Finetune the classifier of the present state; called within a turn."""
        check_is_fitted(self)  # also after waiting for a first `fit` that failed
        recorded, labels = self._recorded, self._labels
        return _View(
            classifier=recorded.classifier(),
            n_given=recorded.n_given.numpy(),
            scale=recorded.scale,
            classes=labels.classes,
            columns=labels.columns,
            shape=recorded.image_shape,
            is_vectors=recorded.is_vectors,
            feature_names=getattr(self, "feature_names_in_", None),
        )

    def _answer(self, X: Any) -> tuple[NDArray[np.float64], _View]:
        """Return logarithms of probabilities up to a constant, (n, n_classes), and the view that gave them."""
        check_is_fitted(self)
        samples = self._read_samples(X, is_new=False)
        view = self._turns.view(self._make_view)
        self._check_columns(X, view.feature_names)
        self._check_shape(samples, view.shape, view.is_vectors)
        if view.classifier is None:
            with np.errstate(divide="ignore"):
                logarithms = np.log(view.n_given[view.columns])
            return np.tile(logarithms, (len(samples), 1)), view
        scaled = samples if view.scale is None else view.scale.apply(samples)
        with grad_mode_kept():
            scores: NDArray[np.float64] = view.classifier.logits(scaled).double().cpu().numpy()
        return scores[:, view.columns], view

    def _read(self, X: Any, y: Any, *, is_new: bool) -> tuple[Tensor, list[Hashable]]:
        labels, samples = self._read_labels(y), self._read_samples(X, is_new=is_new)
        if len(samples) != len(labels):
            raise InputError(f"X holds {len(samples)} samples, but y {len(labels)} labels.")
        return samples, labels

    def _read_samples(self, X: Any, *, is_new: bool) -> Tensor:
        """Return samples, or their features by the encoder; `is_new`: another encoder than before may be used."""
        digest: str | None = None if is_new else self._encoder_digest
        if self.encoder is None or self.encoder == NONE:
            if digest is not None:
                raise UserError("This classifier learned features of an encoder: set encoder as it was then.")
            return read_samples(X)
        kept: tuple[str | Encoder, CheckedEncoder] | None = self.__dict__.get("_opened_encoder")
        if kept is None or kept[0] is not self.encoder:
            kept = self.encoder, as_encoder(self.encoder, again=True)
            self.__dict__["_opened_encoder"] = kept
        encoder = kept[1]
        if is_new:
            encoder.check_options()
        if not is_new and digest is None:
            raise UserError("This classifier learned samples without an encoder: set encoder=None, or call fit.")
        if digest is not None:
            check_same(encoder, str(encoder.text or encoder.name), digest, "This classifier")
        watch = None if self.verbose is False else ProgressLine(self.verbose)
        return encoded_samples(encoder, X, watch)

    def _read_labels(self, y: Any) -> list[Hashable]:
        if y is None:
            raise InputError(f"{type(self).__name__} requires y to be passed, but the target y is None.")
        shape = getattr(y, "shape", ())  # of an array, a tensor or a data frame
        if isinstance(shape, tuple) and len(shape) == 2 and shape[1] == 1:
            words = "A column-vector y was passed when a 1d array was expected."
            warnings.warn(words, DataConversionWarning, stacklevel=4)
            y = y[:, 0] if isinstance(y, np.ndarray | Tensor) else np.asarray(y)[:, 0]
        return read_labels(y)

    def _check_columns(self, X: Any, known: NDArray[Any] | None) -> None:
        check_feature_names(feature_names(X), known, type(self).__name__)

    def _check_shape(self, samples: Tensor, ours: Shape, vectors: bool) -> None:
        """Raise InputError unless these samples have the shape of the learned ones."""
        if _shape(samples) == ours and is_vectors(samples) == vectors:
            return
        name = type(self).__name__
        if vectors and is_vectors(samples):
            raise InputError(f"X has {samples.shape[1]} features, but {name} is expecting {ours[0]} features as input.")
        theirs = describe(_shape(samples), is_vectors(samples))
        raise InputError(f"X holds {theirs}, but {name} learned from {describe(ours, vectors)}.")


def _is_generator(random_state: Any) -> bool:
    """Return whether seeds are drawn from this; the module `numpy.random` is the global generator of scikit-learn."""
    return isinstance(random_state, np.random.RandomState | np.random.Generator) or random_state is np.random


def _seed(random_state: Any) -> int:
    """Return a seed, drawn unless it is given."""
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    if random_state is None or _is_generator(random_state):
        return int(check_random_state(random_state).randint(2**31 - 1))
    raise InputTypeError(f"random_state must be an int, a RandomState, a Generator or None, not {random_state!r}.")


def _is_learned(name: str) -> bool:
    """Return whether this attribute was learned, by its name: it is no parameter, no turns and no encoder."""
    return (name.startswith("_") or name.endswith("_")) and name not in ("_own_turns", "_opened_encoder")


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
    """Convert numpy numbers and mappings to those of Python."""
    if isinstance(value, Mapping):
        return {key: _plain(own) for key, own in value.items()}
    return value.item() if isinstance(value, np.generic) else value
