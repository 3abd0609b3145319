"""The estimate of the noise against slow versions and known noise."""

import math

import numpy as np
import pytest

from purereplay.purify import noise_rate
from purereplay.purify.noise_rate import confident_counts, neighbours, noise_rates, votes, wilson


def clusters(n, rate, seed=0, n_classes=5, width=8, spread=0.15):
    """Features around one centre a class, and labels of which a share is another class's."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, n_classes, n)
    features = rng.normal(size=(n_classes, width))[true] + spread * rng.normal(size=(n, width))
    wrong = rng.random(n) < rate
    return features, np.where(wrong, (true + rng.integers(1, n_classes, n)) % n_classes, true), wrong


def test_neighbours_are_the_nearest_by_cosine(monkeypatch):
    monkeypatch.setattr(noise_rate, "_ROWS_AT_ONCE", 7)
    features = np.random.default_rng(0).normal(size=(20, 4))
    near = neighbours(features, 3)
    for i, row in enumerate(features):
        cosines = [
            -np.inf if j == i else row @ o / np.linalg.norm(row) / np.linalg.norm(o) for j, o in enumerate(features)
        ]
        assert near[i].tolist() == sorted(range(20), key=lambda j: -cosines[j])[:3]


def test_votes_are_counted_one_by_one():
    features, labels, _ = clusters(40, 0.3)
    near = neighbours(features, 10)
    weight = [1.0] * 40
    for _ in range(4):
        shares = np.zeros((40, 5))
        for i in range(40):
            for j in near[i]:
                shares[i, labels[j]] += weight[j]
            shares[i] /= shares[i].sum()
        weight = [shares[i, labels[i]] + 1e-3 for i in range(40)]
    np.testing.assert_allclose(votes(features, labels, 5), shares)


def test_counting_one_by_one():
    rng = np.random.default_rng(1)
    shares, labels = rng.dirichlet(np.ones(4), 60), rng.integers(0, 3, 60)  # no sample has the fourth label
    thresholds = [np.mean([s[c] for s, label in zip(shares, labels, strict=True) if label == c]) for c in range(3)]
    counts = np.zeros((4, 4), int)
    for s, label in zip(shares, labels, strict=True):
        above = [c for c in range(3) if s[c] >= thresholds[c]]
        if above:
            counts[label, max(above, key=lambda c: s[c])] += 1
    assert np.array_equal(confident_counts(shares, labels), counts)
    assert counts.sum() < 60


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.4, 0.6])
def test_known_noise_is_found(rate):
    features, labels, wrong = clusters(1500, rate)
    overall, by_label = noise_rates(features, labels, 5)
    assert abs(overall.rate - wrong.mean()) < 0.03 and overall.low <= overall.rate <= overall.high
    for c, own in enumerate(by_label):
        assert abs(own.rate - wrong[labels == c].mean()) < 0.08


def test_one_label_may_be_worse_than_the_others():
    """Three in ten of class 2 bear the label 3: found, and as the module says, too low."""
    features, labels, _ = clusters(1000, 0.0)
    wrong = (labels == 2) & (np.random.default_rng(0).random(1000) < 0.3)
    overall, by_label = noise_rates(features, np.where(wrong, 3, labels), 5)
    truth = wrong.sum() / ((labels == 3).sum() + wrong.sum())
    assert truth - 0.08 < by_label[3].rate < truth + 0.02
    assert max(by_label[c].rate for c in (0, 1, 2, 4)) < 0.01
    assert overall.rate == pytest.approx(wrong.mean(), abs=0.02)


def test_few_samples_give_wide_intervals_and_none_give_none():
    assert wilson(0, 0).n == 0 and math.isnan(wilson(0, 0).rate)
    assert (wilson(0, 0).low, wilson(0, 0).high) == (0.0, 1.0)
    assert wilson(0, 5).high > 0.4 and wilson(0, 5).low == 0 and wilson(5, 5).high == 1
    middle = wilson(30, 100)  # statsmodels' proportion_confint(30, 100, method="wilson")
    assert (middle.low, middle.high) == pytest.approx((0.218949, 0.395849), abs=1e-5)
    for n in (0, 1, 2, 3):
        overall, by_label = noise_rates(np.eye(3)[:n], np.zeros(n, np.int64), 2)
        assert 0 <= overall.low <= overall.high <= 1 and by_label[1].n == 0


def test_the_noise_of_a_single_label_is_unknown():
    """Its neighbours all agree, whatever the share of wrong labels."""
    overall, by_label = noise_rates(np.random.default_rng(0).normal(size=(90, 4)), np.full(90, 1), 3)
    assert len(by_label) == 3
    for found in (overall, *by_label):
        assert math.isnan(found.rate) and (found.low, found.high, found.n) == (0.0, 1.0, 0)


def test_features_without_length_are_no_trouble():
    overall, _ = noise_rates(np.zeros((30, 4)), np.arange(30) % 3, 3)
    assert 0 <= overall.low <= overall.high <= 1
