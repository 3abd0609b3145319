"""The mixture of two normal distributions against scikit-learn's."""

import warnings

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from purereplay.purify.gaussian_mixture import lower_probability


@pytest.mark.parametrize(("seed", "n", "share"), [(0, 300, 0.5), (1, 40, 0.3), (2, 9, 0.5), (3, 200, 0.05)])
def test_it_is_scikit_learns_from_the_same_start(seed, n, share):
    rng = np.random.default_rng(seed)
    n_high = max(1, int(share * n))
    values = np.concatenate([rng.beta(1.5, 8, n - n_high), rng.beta(6, 3, n_high)])
    low, high = values.min(), values.max()
    for _ in range(50):  # two means
        groups = values[values <= (low + high) / 2], values[values > (low + high) / 2]
        low, high = groups[0].mean(), groups[1].mean()
    mixture = GaussianMixture(
        2,
        max_iter=10,
        tol=1e-2,
        reg_covar=5e-4,
        weights_init=[len(g) / n for g in groups],
        means_init=[[g.mean()] for g in groups],
        precisions_init=[[[1 / (g.var() + 5e-4)]] for g in groups],
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(values[:, None])
    expected = mixture.predict_proba(values[:, None])[:, np.argmin(mixture.means_[:, 0])]
    np.testing.assert_allclose(lower_probability(values), expected, rtol=1e-6, atol=1e-9)


def test_two_groups_are_told_apart_whatever_the_order():
    values = np.array([0.9, 0.1, 0.12, 1.0, 0.08, 0.95])
    p = lower_probability(values)
    assert (p > 0.99).tolist() == [False, True, True, False, True, False]
    assert np.allclose(lower_probability(values[::-1].copy()), p[::-1])


@pytest.mark.parametrize("values", [[], [0.3], [0.3, 0.3, 0.3]])
def test_equal_values_are_one_component(values):
    assert (lower_probability(np.array(values, float)) == 1).all()
