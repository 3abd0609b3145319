"""Label noise: exact counts, every change a real one, and only where the kind allows it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from purereplay.data.catalogue import CIFAR10_MISTAKES, CIFAR100_SUPERCLASS, DIGIT_MISTAKES, INFOS
from purereplay.data.noise import KINDS, corrupt
from purereplay.errors import UserError

rates = st.floats(0, 1)
ten_class_labels = st.lists(st.integers(0, 9), max_size=200).map(lambda values: np.array(values, dtype=np.int64))


def changed_per_class(old: np.ndarray, new: np.ndarray, n_classes: int) -> np.ndarray:
    return np.bincount(old[old != new], minlength=n_classes)


@settings(deadline=None)
@given(labels=ten_class_labels, rate=rates, seed=st.integers(0, 99))
def test_symmetric_changes_the_exact_share_of_every_class(labels: np.ndarray, rate: float, seed: int) -> None:
    before = labels.copy()
    noisy = corrupt("symmetric", labels, rate, np.random.default_rng(seed), n_classes=10)
    expected = [round(rate * n) for n in np.bincount(labels, minlength=10)]
    assert changed_per_class(labels, noisy, 10).tolist() == expected
    assert np.array_equal(labels, before)
    assert noisy.dtype == np.int64
    assert not len(noisy) or (noisy.min() >= 0 and noisy.max() < 10)


@settings(deadline=None)
@given(labels=ten_class_labels, rate=rates, seed=st.integers(0, 99))
def test_asymmetric_changes_mapped_classes_only_and_to_their_target(labels: np.ndarray, rate: float, seed: int) -> None:
    noisy = corrupt("asymmetric", labels, rate, np.random.default_rng(seed), n_classes=10, mapping=DIGIT_MISTAKES)
    counts = np.bincount(labels, minlength=10)
    expected = [round(rate * counts[c]) if c in DIGIT_MISTAKES else 0 for c in range(10)]
    assert changed_per_class(labels, noisy, 10).tolist() == expected
    for old, new in zip(labels[labels != noisy], noisy[labels != noisy], strict=True):
        assert DIGIT_MISTAKES[int(old)] == new


def test_superclass_noise_stays_in_the_superclass_and_reaches_all_siblings() -> None:
    labels = np.repeat(np.arange(100), 60)
    noisy = corrupt("superclass", labels, 0.5, np.random.default_rng(0), n_classes=100, superclass=CIFAR100_SUPERCLASS)
    groups = np.array(CIFAR100_SUPERCLASS)
    assert changed_per_class(labels, noisy, 100).tolist() == [30] * 100
    assert np.array_equal(groups[labels], groups[noisy])
    assert all(len(set(noisy[labels == c])) == 5 for c in range(100))


def test_symmetric_is_uniform_over_the_other_classes() -> None:
    labels = np.zeros(9000, dtype=np.int64)
    noisy = corrupt("symmetric", labels, 1.0, np.random.default_rng(0), n_classes=10)
    counts = np.bincount(noisy, minlength=10)
    assert counts[0] == 0
    # nine classes at 1000 each, standard deviation 30
    assert np.all(np.abs(counts[1:] - 1000) < 150)


def test_the_changed_samples_are_a_random_subset() -> None:
    labels = np.zeros(1000, dtype=np.int64)
    noisy = corrupt("symmetric", labels, 0.4, np.random.default_rng(0), n_classes=10)
    changed = np.flatnonzero(noisy)
    assert 100 < np.sum(changed < 500) < 300  # not the first 400 in file order


@pytest.mark.parametrize("kind", KINDS)
def test_same_generator_same_noise_and_rate_zero_changes_nothing(kind: str) -> None:
    labels = np.arange(1000) % 100
    mapping = {c: (c + 1) % 100 for c in range(100)}

    def draw(rate: float, seed: int) -> np.ndarray:
        generator = np.random.default_rng(seed)
        return corrupt(kind, labels, rate, generator, n_classes=100, mapping=mapping, superclass=CIFAR100_SUPERCLASS)

    assert np.array_equal(draw(0.4, 3), draw(0.4, 3))
    assert np.array_equal(draw(0.0, 3), labels)
    assert np.array_equal(draw(0.4, 3), draw(0.4, 4)) == (kind == "none")
    assert not np.shares_memory(draw(0.0, 3), labels)


@pytest.mark.parametrize(
    ("kind", "rate", "culprit"),
    [
        ("diagonal", 0.2, "diagonal"),
        ("symmetric", 1.2, "1.2"),
        ("symmetric", -0.1, "-0.1"),
        ("none", float("nan"), "nan"),
        ("asymmetric", 0.2, "mapping"),
        ("superclass", 0.2, "superclasses"),
    ],
)
def test_unusable_settings_are_named(kind: str, rate: float, culprit: str) -> None:
    with pytest.raises(UserError, match=culprit):
        corrupt(kind, np.arange(10), rate, np.random.default_rng(0), n_classes=10)


def test_mappings_are_the_papers() -> None:
    assert DIGIT_MISTAKES == {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}
    names = INFOS["cifar10"].class_names
    assert {names[a]: names[b] for a, b in CIFAR10_MISTAKES.items()} == {
        "truck": "automobile",
        "bird": "airplane",
        "cat": "dog",
        "dog": "cat",
        "deer": "horse",
    }


def test_impossible_noise_is_refused() -> None:
    generator, labels = np.random.default_rng(0), np.zeros(10, dtype=np.int64)
    with pytest.raises(UserError, match="two classes"):
        corrupt("symmetric", labels, 0.5, generator, n_classes=1)
    with pytest.raises(UserError, match="itself"):
        corrupt("asymmetric", labels, 0.5, generator, n_classes=2, mapping={0: 0})
    with pytest.raises(UserError, match="alone"):
        corrupt("superclass", labels, 0.5, generator, n_classes=2, superclass=(0, 1))
