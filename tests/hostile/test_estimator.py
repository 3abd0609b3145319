"""Hostile input to the estimator: refused with a ValueError, TypeError or UserError, and the state is as it was."""

import copy
import decimal
import pickle
import re
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sklearn.exceptions import DataConversionWarning, NotFittedError

from purereplay import SelfPurifiedClassifier
from purereplay.data.columns import check_feature_names, feature_names
from purereplay.data.labels import is_missing
from purereplay.errors import InputError, InputTypeError, UserError
from purereplay.nets.inference import Classifier
from purereplay.purify.filter import SelfCenteredFilter

TINY = {
    "delayed_size": 8,
    "purified_size": 8,
    "expert_epochs": 1,
    "base_epochs": 1,
    "settings": {"hidden": 8, "projection_size": 4, "finetune_epochs": 1, "small_class": "keep", "graphs": 1},
}
X = np.random.default_rng(0).normal(size=(20, 3))
Y = ["a", "b"] * 10


def tiny(**more) -> SelfPurifiedClassifier:
    return SelfPurifiedClassifier(learner="spr", **(TINY | more))


def state(one: SelfPurifiedClassifier) -> dict[str, object]:
    """All that later results depend on, in a form that can be compared."""
    if not one.__sklearn_is_fitted__():
        return {}
    facts, tensors = one._whole_state()
    public = {name: str(value) for name, value in vars(one).items() if name.endswith("_")}
    return {"facts": repr(facts), **public, **{name: t.numpy().tobytes() for name, t in tensors.items()}}


# ------------------------------------------------------------------ data frames


class Frame:
    """The part of a data frame that matters: columns and an array."""

    def __init__(self, values, columns) -> None:
        self.values, self.columns = np.asarray(values), columns

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def frames() -> list:
    try:
        import pandas
    except ImportError:
        return [Frame]
    return [Frame, lambda values, columns: pandas.DataFrame(values, columns=columns)]


@pytest.mark.parametrize("frame", frames())
def test_columns_in_another_order_or_missing_are_an_error(frame, tmp_path):
    one = tiny().fit(frame(X, ["a", "b", "c"]), Y)
    assert one.feature_names_in_.tolist() == ["a", "b", "c"] and one.feature_names_in_.dtype == object
    before = state(one)
    right = one.predict_proba(frame(X, ["a", "b", "c"]))
    one.save(tmp_path / "one.safetensors")
    for copied in (one, pickle.loads(pickle.dumps(one)), SelfPurifiedClassifier.load(tmp_path / "one.safetensors")):
        for columns, words in (
            (["c", "a", "b"], "Feature names must be in the same order as they were in fit"),
            (["a", "b", "x"], "unseen at fit time:\n- x\nFeature names seen at fit time, yet now missing:\n- c"),
        ):
            for ask, more in ((copied.predict, ()), (copied.predict_proba, ()), (copied.partial_fit, (Y,))):
                with pytest.raises(InputError, match=words):
                    ask(frame(X, columns), *more)
        with pytest.raises(InputError, match="now missing:\n- c"):
            copied.predict(frame(X[:, :2], ["a", "b"]))
        with pytest.warns(UserWarning, match="X does not have valid feature names"):
            assert np.array_equal(copied.predict_proba(X), right)
        assert copied.feature_names_in_.tolist() == ["a", "b", "c"] and state(copied) == before
    with pytest.warns(UserWarning, match="was fitted without feature names"):
        tiny().fit(X, Y).predict(frame(X, ["a", "b", "c"]))
    with pytest.raises(InputTypeError, match="all input features have string names"):
        tiny().fit(frame(X, ["a", "b", 3]), Y)
    assert not hasattr(one.fit(frame(X, [1, 2, 3]), Y), "feature_names_in_")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one.predict(X)


def test_names_of_arrow_tables_are_their_columns():
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"a": X[:, 0], "b": X[:, 1]})
    assert feature_names(table).tolist() == ["a", "b"] and tiny().fit(table, Y).n_features_in_ == 2
    many = np.array([f"f{i}" for i in range(9)], object)
    with pytest.raises(InputError, match=r"- f4\n- \.\.\.\n"):
        check_feature_names(many, np.array(["a"], object), "It")


class NeverEqual:
    """A missing value as in pandas: its comparisons have no truth value."""

    def __eq__(self, other):
        return self

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


def missing() -> list:
    found = [None, float("nan"), np.nan, np.float32("nan"), NeverEqual(), ("a", float("nan")), decimal.Decimal("nan")]
    found += [np.datetime64("NaT"), complex("nan")]
    try:
        import pandas
    except ImportError:
        return found
    return [*found, pandas.NA, pandas.NaT, ("a", pandas.NA)]


@pytest.mark.parametrize("value", missing(), ids=lambda value: type(value).__name__)
def test_a_missing_value_is_no_class(value):
    one = tiny().partial_fit(X, Y)
    before, labels = state(one), [*Y[:-1], value]
    for learn in (one.partial_fit, one.fit, lambda a, b: one.partial_fit(a, Y, classes=b)):
        with pytest.raises(ValueError, match="Sample 19 has"):
            learn(X, labels)
    assert state(one) == before
    if not isinstance(value, tuple):
        with pytest.raises(UserError, match="row 19"):
            SelfCenteredFilter().fit(X, np.array(labels, object))
    assert not is_missing("nan") and not is_missing((1, "a")) and not is_missing(0)


def test_nullable_columns_of_labels_and_masked_arrays():
    pandas = pytest.importorskip("pandas")
    for kind, values in (("Int64", [1, 2]), ("string", ["a", "b"]), ("category", ["a", "b"])):
        series = pandas.Series(values * 10, dtype=kind)
        assert tiny().fit(X, series).classes_.tolist() == values
        series[7] = None
        with pytest.raises(InputError, match="Sample 7 has"):
            tiny().fit(X, series)
    masked = np.ma.masked_array(X, mask=np.eye(20, 3))
    with pytest.raises(InputError, match="masked"):
        tiny().fit(masked, Y)
    with pytest.raises(InputError, match="masked"):
        tiny().fit(X, np.ma.masked_array(range(20), mask=[True] + [False] * 19))


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("learner", ["full-memory", "spr"])
@pytest.mark.parametrize(
    "name, value, words",
    [
        ("verbose", 0.0, "the parameter verbose cannot be 0.0; change it by set_params"),
        ("verbose", "no", "the parameter verbose cannot be 'no'"),
        ("random_state", 1.5, "the parameter random_state cannot be 1.5"),
        ("random_state", np.random.SeedSequence(0), "the parameter random_state cannot be SeedSequence"),
        ("device", "gpu0", "the parameter device cannot be 'gpu0'"),
        ("preset", None, "the parameter preset cannot be None"),
        ("delayed_size", 7.0, "the parameter delayed_size cannot be 7.0"),
        ("settings", {"hidden": X}, "the parameter settings cannot be "),
        ("settings", [1], r"the parameter settings cannot be \[1\]"),
        ("encoder", "nonsense", "The encoder 'nonsense' is unknown"),
    ],
)
def test_what_could_not_be_loaded_is_not_saved(tmp_path, learner, name, value, words):
    one = tiny().fit(X, Y) if learner == "spr" else SelfPurifiedClassifier().fit(X, Y)
    one.set_params(**{name: value})
    with pytest.raises(UserError, match=words):
        one.save(tmp_path / "one.safetensors")
    assert not list(tmp_path.iterdir())
    one.set_params(**{name: SelfPurifiedClassifier().get_params()[name]}).save(tmp_path / "one.safetensors")
    SelfPurifiedClassifier.load(tmp_path / "one.safetensors")


@pytest.mark.parametrize("generator", [np.random, np.random.default_rng(0), np.random.RandomState(0)])
def test_seeds_of_any_generator_are_saved(tmp_path, generator):
    one = tiny(random_state=generator).fit(X, Y)
    one.save(tmp_path / "one.safetensors")
    loaded = SelfPurifiedClassifier.load(tmp_path / "one.safetensors")
    assert loaded.random_state == one._recorded.seed
    assert np.array_equal(loaded.predict_proba(X), one.predict_proba(X))


def test_a_seed_is_drawn_from_numpys_present_generator():
    seeds = [tiny(random_state=np.random.default_rng(seed)).fit(X, Y)._recorded.seed for seed in (0, 0, 1)]
    assert seeds[0] == seeds[1] != seeds[2]
    for wrong in ("x", 1.5, np.random.SeedSequence(0)):
        with pytest.raises(InputTypeError, match="random_state must be an int, a RandomState, a Generator or None"):
            tiny(random_state=wrong).fit(X, Y)


# ------------------------------------------------------------------ labels in columns


def columns() -> list:
    numbers = np.arange(20).reshape(20, 1) % 2
    found = [numbers, torch.from_numpy(numbers)]
    try:
        import pandas
    except ImportError:
        return found
    return [*found, pandas.DataFrame(numbers), pandas.DataFrame({"y": list("ab" * 10)}, dtype="category")]


@pytest.mark.parametrize("y", columns(), ids=lambda y: type(y).__name__)
def test_labels_in_a_column_are_taken_with_a_warning(y):
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        one = tiny().fit(X, y)
    assert one.classes_.tolist() in ([0, 1], ["a", "b"])


def test_labels_of_pandas_that_are_missing_are_called_so():
    pandas = pytest.importorskip("pandas")
    for column in (
        pandas.Series([1, 2, None] + [1] * 17, dtype="Int64"),
        pandas.Series(["a", "b", None] + ["a"] * 17, dtype="category"),
        pandas.Series(pandas.to_datetime(["2024-01-01", "2024-01-02", None] + ["2024-01-01"] * 17)),
        pandas.Series([1.0, 2.0, np.nan] + [1.0] * 17),
    ):
        with pytest.raises(InputError, match=r"Sample 2 has no label: y holds (nan|NaT|<NA>) there"):
            tiny().fit(X, column)


def test_a_device_that_is_not_there_is_named_as_python_does(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"No CUDA device is available: choose the device cpu\.$"):
        tiny(device="cuda").fit(X, Y)


# ------------------------------------------------------------------ classes without samples


@pytest.mark.parametrize("learner", ["full-memory", "spr"])
def test_classes_that_are_announced_without_samples_are_kept(tmp_path, learner):
    def new() -> SelfPurifiedClassifier:
        return tiny() if learner == "spr" else SelfPurifiedClassifier()

    one = new().partial_fit(X[:0], [], classes=["q", "p"]).partial_fit(X[:0], [], classes=["c"])
    assert not one.__sklearn_is_fitted__()
    for own in (one, pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        own.partial_fit(X, Y)
        assert own.classes_.tolist() == ["a", "b", "c", "p", "q"] and own.n_seen_ == 20
    assert one.predict_proba(X).shape == (20, 5)
    one.partial_fit(X[:0], [], classes=["a", "z"])
    assert one.classes_.tolist() == ["a", "b", "c", "p", "q", "z"] and one.n_seen_ == 20
    assert one.predict_proba(X).shape == (20, 6) and set(one.predict(X)) <= {"a", "b"}
    one.save(tmp_path / "one.safetensors")
    assert SelfPurifiedClassifier.load(tmp_path / "one.safetensors").classes_.tolist() == one.classes_.tolist()
    one.partial_fit(X, Y, classes=["y"]).flush()
    assert len(one.suspects()) == 40 and one.predict_proba(X).shape == (20, 7)
    assert new().partial_fit(X[:0], [], classes=["p"]).fit(X, Y).classes_.tolist() == ["a", "b"]


# ------------------------------------------------------------------ collapsed networks


@pytest.mark.parametrize("learner", ["spr", "pure-replay"])
@pytest.mark.parametrize(("rare", "collapses", "warns"), [(20, True, True), (20, False, False), (2, True, False)])
def test_a_classifier_that_predicts_one_label_is_named(monkeypatch, caplog, learner, rare, collapses, warns):
    """As after training with a learning rate of 100: every prediction the same, with probability 1."""
    monkeypatch.setattr(Classifier, "predict", lambda _, images: torch.arange(len(images)) % (1 if collapses else 2))
    settings = TINY["settings"] | {"filter": "none"}
    one = SelfPurifiedClassifier(learner=learner, **TINY | {"purified_size": 40, "settings": settings})
    one.fit(np.concatenate([X, X]), ["a"] * (40 - rare) + ["b"] * rare).predict(X)
    said = [record.getMessage() for record in caplog.records]
    assert bool(said) == warns
    if warns:
        assert re.search("predicts one label for all .. samples in P, which have 2 labels: its training coll", said[0])


# ------------------------------------------------------------------ single calls


def test_empty_batches_of_floats_are_empty_batches():
    images = np.random.default_rng(0).random((16, 4, 4))
    one = tiny(settings=TINY["settings"] | {"features": "projection"}).partial_fit(images, Y[:16])
    before = state(one)
    for empty in (np.empty((0, 4, 4)), np.empty((0, 4, 4, 1), np.float32), torch.empty(0, 1, 4, 4)):
        assert one.predict(empty).shape == (0,) and one.predict_proba(empty).shape == (0, 2)
        assert state(one.partial_fit(empty, [])) == before
    with pytest.raises(InputError, match="0 samples"):
        one.score(np.empty((0, 4, 4)), [])
    with pytest.raises(InputError):
        one.predict(np.empty((0, 0, 4)))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"settings": [1]}, "settings must be a mapping"),
        ({"settings": "abc"}, "settings must be a mapping"),
        ({"purified_size": 10**13}, "not enough memory"),
    ],
)
def test_impossible_arguments_are_one_sentence(arguments, words):
    one = tiny(**arguments)
    with pytest.raises(UserError, match=words):
        one.fit(X, Y)
    assert not one.__sklearn_is_fitted__()


def test_labels_keep_their_type_and_value():
    for labels in ([2**63, -1], [10**30, 1], ["a\0", "a"]):
        one = tiny().fit(X, labels * 10)
        assert one.classes_.tolist() == sorted(labels)
        assert {type(label) for label in one.predict(X).tolist()} <= {type(label) for label in labels}
    moments = np.array(["2020-01-01T00:00:00.000000001", "2021-01-01"] * 10, "M8[ns]")
    assert tiny().fit(X, moments).classes_[0] == moments[0], "nanoseconds became whole numbers"


def test_weights_that_cannot_be_averaged_are_refused():
    one = tiny().fit(X, Y)
    for weights in (np.zeros(20), np.ones(3), "abc"):
        with pytest.raises(InputError, match="sample_weight"):
            one.score(X, Y, weights)


@pytest.mark.parametrize("factor", [2.0**-149, 2.0**-1000, 2.0**-1060])
def test_tiny_features_are_learned_and_do_not_become_zero(factor, tmp_path):
    whole = np.rint(8 * X)  # the smallest factor leaves them exact, but not their mean and deviation
    plain, one = tiny().fit(whole, Y), tiny().fit(whole * factor, Y)
    np.testing.assert_allclose(one.predict_proba(whole * factor), plain.predict_proba(whole), atol=1e-3)
    assert len(np.unique(one.purified().X)) > 2
    one.save(tmp_path / "tiny.safetensors")
    again = SelfPurifiedClassifier.load(tmp_path / "tiny.safetensors")
    assert np.array_equal(again.predict_proba(whole * factor), one.predict_proba(whole * factor))


def test_a_fit_that_fails_leaves_the_former_classifier():
    one = tiny().fit(X, Y)
    before, right = state(one), one.predict_proba(X)
    one.settings = TINY["settings"] | {"lr": 1e30}
    with pytest.raises(UserError):  # the training diverges
        one.fit(np.tile(X, (2, 1))[:, :2], ["c", "d"] * 20)
    one.settings = TINY["settings"]
    assert state(one) == before and np.array_equal(one.predict_proba(X), right)


# ------------------------------------------------------------------ any sequence of calls

BAD_SAMPLES = [
    None,
    object(),
    "abc",
    5,
    {"a": 1},
    [],
    [[1, 2], [3]],
    [["x"] * 3],
    [[10**400] * 3],
    [[None] * 3],
    np.full((2, 3), np.nan),
    np.full((2, 3), 1e39),
    np.ones((2, 4)),
    np.ones((2, 3), complex),
    np.ones((2, 0)),
    np.ones((2, 4, 4)),
    np.full((2, 4, 4), 2.0),
    np.array([["2020-01-01"] * 3], "M8[D]"),
    np.zeros(3, "i4,f4"),
    torch.empty(2, 3, device="meta"),
    torch.eye(3).to_sparse(),
    [torch.ones(3), torch.ones(2)],
    [torch.ones(3), "x"],
]
BAD_LABELS = [None, "ab", 5, [None, "a"], ["a"], [float("nan"), 1], [[1], [2]], [{}, {}], [0.5, 1], np.eye(2)]
BAD_LABELS += [[("a", float("nan"))] * 2, torch.empty(2, device="meta"), np.arange(2).astype("m8")]
BAD_IDS = [[1], [1, 1], [None, "a"], [1.5, 2.5], 5, [[1], [2]], [True, False]]
BAD_ARGUMENTS = [
    {"preset": "none"},
    {"preset": []},
    {"delayed_size": -1},
    {"delayed_size": "x"},
    {"settings": [1]},
    {"settings": {"hidden": float("nan")}},
    {"settings": {"unknown": 1}},
    {"device": "none"},
    {"random_state": "x"},
    {"random_state": 1.5},
    {"random_state": np.bool_(True)},
]
LABELS = st.sampled_from(["a", "b", "c", "=x", "\ud800", 1, 2**70, True, ("a", 1)])
BAD = (ValueError, TypeError, UserError)


class AnySequence(RuleBasedStateMachine):
    """Learns, asks, saves, loads and copies in any order, with good and bad input between."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.n = tiny(), 0

    @property
    def fitted(self) -> bool:
        return self.one.__sklearn_is_fitted__()

    def refused(self, call, *arguments, **options) -> None:
        before, own = state(self.one), dict(self.one.get_params())
        with pytest.raises(BAD) as error:
            call(*arguments, **options)
        assert str(error.value)
        assert state(self.one) == before, "bad input changed the state"
        assert self.one.get_params() == own

    @rule(labels=st.lists(LABELS, min_size=1, max_size=20), seed=st.integers(0, 99))
    def fit(self, labels, seed) -> None:
        self.one.fit(np.random.default_rng(seed).normal(size=(len(labels), 3)), labels)
        self.n = len(labels)
        assert len(self.one.suspects()) == self.n

    @rule(labels=st.lists(LABELS, max_size=20), seed=st.integers(0, 99), named=st.booleans())
    def partial_fit(self, labels, seed, named) -> None:
        names = [f"{self.n}-{i}-{seed}" for i in range(len(labels))] if named else None
        self.one.partial_fit(np.random.default_rng(seed).normal(size=(len(labels), 3)), labels, sample_ids=names)
        self.n += len(labels)

    @precondition(lambda self: self.fitted)
    @rule(n=st.integers(0, 5))
    def predict(self, n) -> None:
        before = state(self.one)
        shares = self.one.predict_proba(X[:n])
        assert shares.shape == (n, len(self.one.classes_)) and np.allclose(shares.sum(1), 1)
        assert self.one.predict(X[:n]).shape == (n,) and state(self.one) == before

    @precondition(lambda self: self.fitted)
    @rule()
    def flush(self) -> None:
        self.one.flush()
        assert len(self.one.suspects()) == self.n and len(self.one.purified().y) <= 8
        self.one.noise_estimate()

    @precondition(lambda self: self.fitted)
    @rule(how=st.sampled_from(["save", "pickle", "copy", "deepcopy"]))
    def replace_by_a_copy(self, how) -> None:
        before, answers = state(self.one), self.one.predict_proba(X)
        with tempfile.TemporaryDirectory() as folder:
            if how == "save":
                self.one.save(Path(folder) / "one")
                self.one = SelfPurifiedClassifier.load(Path(folder) / "one")
            elif how == "pickle":
                self.one = pickle.loads(pickle.dumps(self.one))
            else:
                self.one = getattr(copy, how)(self.one)
        assert state(self.one) == before and np.array_equal(self.one.predict_proba(X), answers)

    @rule(samples=st.sampled_from(BAD_SAMPLES), what=st.sampled_from(["fit", "partial_fit"]))
    def bad_samples(self, samples, what) -> None:
        n = len(samples) if isinstance(samples, list | np.ndarray | torch.Tensor) else 1
        is_vectors = isinstance(samples, np.ndarray) and np.array_equal(samples, np.ones((2, 4)))
        is_images = isinstance(samples, np.ndarray) and samples.ndim == 3 and samples.max() <= 1
        if (is_vectors or is_images) and (what == "fit" or not self.fitted):
            return  # of another shape than the learned ones, and good for a new classifier
        self.refused(getattr(self.one, what), samples, ["a"] * n)

    @precondition(lambda self: self.fitted)
    @rule(samples=st.sampled_from(BAD_SAMPLES), what=st.sampled_from(["predict", "predict_proba"]))
    def bad_questions(self, samples, what) -> None:
        self.refused(getattr(self.one, what), samples)

    @rule(labels=st.sampled_from(BAD_LABELS), what=st.sampled_from(["fit", "partial_fit", "score"]))
    def bad_labels(self, labels, what) -> None:
        self.refused(getattr(self.one, what), X[:2], labels)

    @rule(ids=st.sampled_from(BAD_IDS))
    def bad_ids(self, ids) -> None:
        self.refused(self.one.partial_fit, X[:2], ["a", "b"], sample_ids=ids)

    @rule(path=st.sampled_from(["/nowhere/at/all", "", "a\0b", 5, None]), what=st.sampled_from(["save", "load"]))
    def bad_path(self, path, what) -> None:
        self.refused(getattr(self.one, what), path)

    @rule(arguments=st.sampled_from(BAD_ARGUMENTS))
    def bad_arguments(self, arguments) -> None:
        own = {name: self.one.get_params()[name] for name in arguments}
        self.one.set_params(**arguments)
        try:
            self.refused(self.one.fit, X, Y)
        finally:
            self.one.set_params(**own)

    @precondition(lambda self: not self.fitted)
    @rule(what=st.sampled_from(["flush", "suspects", "purified", "noise_estimate"]))
    def too_early(self, what) -> None:
        with pytest.raises(NotFittedError):
            getattr(self.one, what)()

    @invariant()
    def numbers_agree(self) -> None:
        if self.fitted:
            assert self.one.n_seen_ == self.n and len(self.one.classes_) <= 8


AnySequence.TestCase.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnySequence = pytest.mark.long(AnySequence.TestCase)


@pytest.mark.slow
def test_long_sequences_of_calls():
    from hypothesis.stateful import run_state_machine_as_test

    many = settings(AnySequence.TestCase.settings, max_examples=150, stateful_step_count=50)
    run_state_machine_as_test(AnySequence, settings=many)
