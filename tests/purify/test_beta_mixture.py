"""The beta mixture against scipy's densities, a plain EM loop and known mixtures; and its rules, one test each."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from purereplay.errors import UserError
from purereplay.purify.beta_em import Betas, log_joint, logs
from purereplay.purify.beta_mixture import RULES, BetaMixture, Fits, fit_mixtures, read_posterior


def two_betas(n: int = 400, noisy: float = 0.4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < noisy, rng.beta(2, 8, n), rng.beta(8, 3, n))


def plain_em(scores: np.ndarray, n_iter: int, scaling: str) -> tuple[list, list, float, float]:
    """One sample after the other, as in the paper's appendix: [(α, β, π) noisy, clean], scaled scores, bounds."""
    low, high = (
        (np.percentile(scores, 5), np.percentile(scores, 95)) if scaling == "trimmed" else (min(scores), max(scores))
    )
    kept = [min(max((c - low) / (high - low), 1e-3), 1 - 1e-3) for c in scores if low <= c <= high]
    components = [(1.0, 2.0, 0.5), (2.0, 1.0, 0.5)]
    for _ in range(n_iter):
        gammas = []
        for x in kept:
            joint = [w * stats.beta(a, b).pdf(x) for a, b, w in components]
            gammas.append([j / sum(joint) for j in joint])
        components = []
        for z in (0, 1):
            total = sum(g[z] for g in gammas)
            mean = sum(g[z] * x for g, x in zip(gammas, kept, strict=True)) / total
            variance = sum(g[z] * (x - mean) ** 2 for g, x in zip(gammas, kept, strict=True)) / total
            alpha = mean * (mean * (1 - mean) / variance - 1)
            components.append((alpha, alpha * (1 - mean) / mean, total / len(kept)))
    return sorted(components, key=lambda c: c[0] / (c[0] + c[1])), kept, low, high


def hand_made(alpha: list[float], beta: list[float], weights: list[float]) -> Fits:
    """One fit with given parameters, on scores that need no scaling."""
    one = torch.ones(1, dtype=torch.float64)
    betas = Betas(*(torch.tensor([part], dtype=torch.float64) for part in (alpha, beta, weights)))
    return Fits(0 * one, one, betas, one.bool(), one.long(), torch.zeros(1, dtype=torch.int64))


GRID = torch.linspace(0, 1, 401, dtype=torch.float64)[None]


def test_densities_are_scipys():
    x = np.linspace(0.001, 0.999, 50)
    fits = hand_made([0.7, 30.0], [5.0, 2.5], [0.3, 0.7])
    joint = log_joint(fits.betas, *logs(torch.from_numpy(x)[None]))[0].exp().numpy()
    assert np.allclose(joint, [0.3 * stats.beta.pdf(x, 0.7, 5.0), 0.7 * stats.beta.pdf(x, 30.0, 2.5)], rtol=1e-10)


@pytest.mark.long
@pytest.mark.parametrize("scaling", ["trimmed", "minmax"])
@pytest.mark.parametrize("n_iter", [1, 10])
def test_equals_the_plain_loop(scaling: str, n_iter: int):
    scores = two_betas(60)
    components, _, low, high = plain_em(scores, n_iter, scaling)
    mixture = BetaMixture(scaling=scaling, n_iter=n_iter).fit(scores)
    assert np.allclose(np.array(components).T, [mixture.alpha_, mixture.beta_, mixture.weights_], rtol=1e-8)
    assert (mixture.low_, mixture.high_) == pytest.approx((low, high))
    assert mixture.rule_ == "fitted" and mixture.n_iter_ == n_iter
    (a0, b0, w0), (a1, b1, w1) = components
    mid = np.linspace(low, high, 22)[6:-6]  # away from where the exact posterior is held
    x = (mid - low) / (high - low)
    ratio = w1 * stats.beta.pdf(x, a1, b1) / (w0 * stats.beta.pdf(x, a0, b0) + w1 * stats.beta.pdf(x, a1, b1))
    assert np.allclose(mixture.posterior(mid), ratio, atol=1e-9)


def test_many_fits_at_once_are_the_single_fits():
    sizes = (5, 40, 200, 2, 90)
    rows = [two_betas(n, seed=n) for n in sizes]
    scores, mask = torch.zeros(5, 200, dtype=torch.float64), torch.zeros(5, 200, dtype=torch.bool)
    for i, row in enumerate(rows):
        scores[i, : len(row)], mask[i, : len(row)] = torch.from_numpy(row), True
    fits = fit_mixtures(scores, mask)
    together = read_posterior(fits, scores)
    for i, row in enumerate(rows):
        alone = BetaMixture().fit(row)
        assert np.allclose(together[i, : len(row)], alone.posterior(row), atol=1e-10)
        assert RULES[int(fits.rule[i])] == alone.rule_


def test_recovers_a_known_mixture():
    mixture = BetaMixture(scaling="minmax", n_iter=200).fit(two_betas(20_000))
    width = mixture.high_ - mixture.low_
    assert mixture.converged_
    assert mixture.low_ + width * mixture.means_ == pytest.approx([2 / 10, 8 / 11], abs=0.02)
    assert mixture.weights_ == pytest.approx([0.4, 0.6], abs=0.02)
    assert mixture.alpha_ == pytest.approx([2, 8], rel=0.15)
    assert mixture.beta_ == pytest.approx([8, 3], rel=0.15)


def test_high_is_clean_and_well_separated_scores_are_told_apart():
    rng = np.random.default_rng(0)
    low, high = rng.normal(0.2, 0.02, 40), rng.normal(0.8, 0.02, 60)
    posterior = BetaMixture().fit(np.concatenate([low, high])).posterior(np.concatenate([low, high]))
    assert posterior[:40].max() < 0.05 and posterior[40:].min() > 0.8


def test_converged_means_that_the_last_step_changed_little():
    scores = two_betas(300)
    assert not BetaMixture(n_iter=1).fit(scores).converged_
    assert BetaMixture(n_iter=100).fit(scores).converged_
    assert not BetaMixture(n_iter=100, tolerance=0.0).fit(scores).converged_


def test_table_is_a_hundred_bins_held_at_the_maximum():
    fits = hand_made([2.0, 12.0], [8.0, 6.0], [0.4, 0.6])  # narrow clean: the odds fall again at the right
    found = read_posterior(fits, GRID, lookup="table")[0]
    assert len(found.unique()) <= 100
    edges = np.linspace(1e-12, 1 - 1e-12, 100)
    joint = [w * stats.beta.pdf(edges, a, b) for a, b, w in zip([2, 12], [8, 6], [0.4, 0.6], strict=True)]
    table = joint[1] / (joint[0] + joint[1])
    table[table.argmax() :] = table.max()
    bins = np.clip((100 * np.clip(GRID[0].numpy(), 1e-3, 1 - 1e-3)).astype(int), 0, 99)
    assert np.allclose(found, table[bins], atol=1e-9)


def test_a_tie_with_a_bound_does_not_hang_on_the_last_bit():
    # a third of the scores tie at either end, where the percentiles lie
    scores = np.concatenate([np.full(10, 0.1), two_betas(20), np.full(10, 0.95)])
    first = BetaMixture().fit(scores)
    for bits in range(5):
        shaken = scores * (1 + np.random.default_rng(bits).integers(-4, 5, len(scores)) * 2.0**-52)
        assert np.allclose(BetaMixture().fit(shaken).alpha_, first.alpha_, rtol=1e-9)


# ---- the rules, in the order of the module's text


@pytest.mark.parametrize("n", [1, 2, 3])
def test_rule_small(n: int):
    scores = np.linspace(0.1, 0.9, n)
    for small_class, expected in (("drop", 0.0), ("keep", 0.5)):
        mixture = BetaMixture(small_class=small_class).fit(scores)
        assert mixture.rule_ == "small" and not mixture.converged_
        assert mixture.posterior(scores).tolist() == [expected] * n
    assert BetaMixture().fit(np.linspace(0.1, 0.9, 4)).rule_ != "small"


@pytest.mark.parametrize("value", [0.0, 0.3, 1e300])
def test_rule_flat(value: float):
    mixture = BetaMixture().fit(np.full(20, value))
    assert mixture.rule_ == "flat" and not mixture.converged_
    assert (mixture.posterior(np.full(20, value)) == 0.5).all()
    assert np.isfinite(np.concatenate([mixture.alpha_, mixture.beta_, mixture.weights_])).all()


def test_rule_collapsed_keeps_the_parameters_before():
    # two values only: both components end up without spread
    scores = np.repeat([0.2, 0.8], 10)
    mixture = BetaMixture(n_iter=50).fit(scores)
    assert mixture.rule_ == "collapsed" and not mixture.converged_ and mixture.n_iter_ < 50
    kept = BetaMixture(n_iter=mixture.n_iter_).fit(scores)
    assert kept.rule_ == "fitted"
    assert np.array_equal(mixture.alpha_, kept.alpha_) and np.array_equal(mixture.weights_, kept.weights_)
    posterior = mixture.posterior(scores)
    assert posterior[:10].max() < 0.01 and posterior[10:].min() > 0.99


def test_rule_collapsed_at_the_first_step_gives_the_scaled_score():
    x = torch.tensor([[0.1, 0.5, 0.75]], dtype=torch.float64)
    assert torch.allclose(read_posterior(hand_made([1.0, 2.0], [2.0, 1.0], [0.5, 0.5]), x), x)


def test_rule_swapped(monkeypatch: pytest.MonkeyPatch):
    scores = two_betas(100)
    expected = BetaMixture().fit(scores)
    from purereplay.purify import beta_mixture

    em = beta_mixture.expectation_maximisation

    def swapped(*arguments):
        ascent = em(*arguments)
        return ascent._replace(betas=Betas(*(part.flip(1) for part in ascent.betas)))

    monkeypatch.setattr(beta_mixture, "expectation_maximisation", swapped)
    mixture = BetaMixture().fit(scores)
    assert np.array_equal(mixture.alpha_, expected.alpha_) and mixture.means_[0] < mixture.means_[1]
    assert np.array_equal(mixture.posterior(scores), expected.posterior(scores))


@pytest.mark.parametrize(
    ("alpha", "beta", "turn"),
    [([30.0, 1.5], [60.0, 1.0], "minimum"), ([2.0, 12.0], [8.0, 9.0], "maximum"), ([2.0, 8.0], [8.0, 3.0], "none")],
)
def test_rule_turned(alpha: list[float], beta: list[float], turn: str):
    fits = hand_made(alpha, beta, [0.5, 0.5])
    raw = log_joint(fits.betas, *logs(GRID.clamp(1e-3, 1 - 1e-3))).softmax(1)[0, 1]
    found = read_posterior(fits, GRID)[0]
    assert (found.diff() > -1e-12).all()
    falls = bool((raw.diff() < -1e-6).any())
    assert falls == (turn != "none")
    if turn == "minimum":  # the running minimum from the right: a low score is never cleaner than a higher one
        assert torch.allclose(found, raw.flip(0).cummin(0).values.flip(0), atol=1e-4)
        assert raw[0] > 0.9 > 0.1 > found[0]
        assert (read_posterior(fits, GRID, lookup="table") > 0.999).all()  # what the released code makes of it
    if turn == "maximum":
        assert torch.allclose(found, raw.cummax(0).values, atol=1e-4)


# ---- invariants

scores_lists = st.lists(
    st.one_of(st.floats(-1e3, 1e3), st.sampled_from([0.0, 1.0, 1.0 + 1e-12, -1e308, 1e308, 5e-324])),
    min_size=1,
    max_size=40,
)
options = st.fixed_dictionaries(
    {
        "n_iter": st.sampled_from([1, 10, 60]),
        "scaling": st.sampled_from(["trimmed", "minmax"]),
        "small_class": st.sampled_from(["drop", "keep"]),
    }
)


@settings(max_examples=150, deadline=None)
@given(scores_lists, options, st.sampled_from(["exact", "table"]))
def test_posterior_is_a_probability(scores: list[float], chosen: dict, lookup: str):
    mixture = BetaMixture(lookup=lookup, **chosen).fit(scores)
    posterior = mixture.posterior([*scores, -1e308, 0.0, 1e308])
    assert ((posterior >= 0) & (posterior <= 1)).all()  # False for NaN
    assert mixture.means_[0] <= mixture.means_[1]
    assert math.isclose(mixture.weights_.sum(), 1.0, abs_tol=1e-9)
    assert all(np.isfinite(part).all() and (part > 0).all() for part in (mixture.alpha_, mixture.beta_))


@settings(max_examples=100, deadline=None)
@given(scores_lists, options)
def test_posterior_never_falls_with_the_score(scores: list[float], chosen: dict):
    mixture = BetaMixture(**chosen).fit(scores)
    line = np.unique(np.concatenate([scores, np.linspace(mixture.low_ / 2, mixture.high_ / 2, 50) * 2]))
    assert (np.diff(mixture.posterior(line)) >= -1e-9).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=40), options, st.randoms())
def test_order_of_the_samples_does_not_matter(scores: list[float], chosen: dict, random):
    order = list(range(len(scores)))
    random.shuffle(order)
    first = BetaMixture(**chosen).fit(scores).posterior(scores)
    shuffled = [scores[i] for i in order]
    assert np.allclose(BetaMixture(**chosen).fit(shuffled).posterior(shuffled), first[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BetaMixture().fit([0.1, float("nan"), 0.3]), "Score 1"),
        (lambda: BetaMixture().fit([]), "shape"),
        (lambda: BetaMixture().fit([[0.1, 0.2]]), "shape"),
        (lambda: BetaMixture().posterior([0.1]), "call fit first"),
        (lambda: BetaMixture(scaling="log").fit([0.1] * 5), "scaling is 'log'"),
        (lambda: BetaMixture(n_iter=0).fit([0.1] * 5), "n_iter is 0"),
        (lambda: BetaMixture(lookup="guess").fit([0.1] * 5).posterior([0.1]), "lookup is 'guess'"),
        (lambda: BetaMixture(small_class="maybe").fit([0.1] * 5).posterior([0.1]), "small_class is 'maybe'"),
    ],
)
def test_bad_input_is_a_user_error(make, words: str):
    with pytest.raises(UserError, match=words):
        make()
