"""Opinions about labels: left-out scores against refits, the pool against Bayes' rule, verdicts on small problems."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.optimize import check_grad
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from purereplay.errors import InputError
from purereplay.purify.opinions import IMAGE_KINDS, FeatureMap, Model, choose_model, judge_labels, posterior
from purereplay.purify.opinions import members as members_module
from purereplay.purify.opinions.forest import Forest
from purereplay.purify.opinions.members import KINDS, fit_members
from purereplay.purify.opinions.neighbours import Neighbours
from purereplay.purify.opinions.noise_matrix import equal_noise, sparse_noise
from purereplay.purify.opinions.pool import _Problem, fit_pool
from purereplay.purify.opinions.ridge import KernelRidge, KnownPoints, LinearRidge, _solve, squared_distances

FEW = settings(deadline=None, max_examples=15, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True, scope="module")
def few_trees():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("purereplay.purify.opinions.forest.N_TREES", 20)
        yield


def blobs(n: int, n_classes: int = 3, rate: float = 0.0, seed: int = 0, d: int = 6):
    """Features around one centre per class, given labels and true labels."""
    rng = np.random.default_rng(seed)
    true = np.arange(n) % n_classes
    features = 3 * rng.normal(size=(n_classes, d))[true] + rng.normal(size=(n, d))
    wrong = rng.random(n) < rate
    given = np.where(wrong, (true + rng.integers(1, max(2, n_classes), n)) % n_classes, true)
    return features.astype(np.float32), given, true


# ---------------------------------------------------------------- members


@pytest.mark.parametrize("seed", [0, 1])
def test_a_regression_leaves_each_sample_out_as_a_refit_would(seed):
    rng = np.random.default_rng(seed)
    design = np.concatenate([rng.normal(size=(30, 4)), np.ones((30, 1))], 1).astype(np.float32)
    wanted = np.eye(3, dtype=np.float32)[rng.integers(0, 3, 30)]
    weights = rng.uniform(0.1, 1, 30).astype(np.float32)
    found = _solve(design, wanted, weights, (0.7,)).left_out
    mean = weights @ wanted / weights.sum()
    for i in range(30):
        rest = np.delete(np.arange(30), i)
        x, w = design[rest].astype(np.float64), weights[rest, None]
        solved = np.linalg.solve(x.T @ (w * x) + 0.7 * np.eye(5), x.T @ (w * (wanted[rest] - mean)))
        np.testing.assert_allclose(found[i], design[i] @ solved + mean, atol=2e-4)


def test_distances_to_known_points_are_those_of_one_row_at_a_time():
    dice = np.random.default_rng(3)
    known, rows = (dice.normal(size=(n, 24)).astype(np.float32) for n in (70, 9))
    points = KnownPoints(known)
    plain = ((rows.astype(np.float64)[:, None] - known.astype(np.float64)) ** 2).sum(2)
    np.testing.assert_allclose(points.squared_distances(rows), plain, rtol=1e-12)
    assert np.array_equal(points.squared_distances(rows), squared_distances(rows.astype(float), known.astype(float)))
    assert points.squared_distances(known).min() >= 0


def test_neighbours_leave_the_sample_out():
    features, labels, _ = blobs(40)
    weights = np.random.default_rng(0).uniform(0.1, 1, 40).astype(np.float32)
    _, left_out = Neighbours.fit(features, labels, weights, 3, 0)
    for i in range(40):
        rest = np.delete(np.arange(40), i)
        near = rest[np.argsort(((features[rest] - features[i]) ** 2).sum(1))[:30]]
        votes = np.bincount(labels[near], weights[near], minlength=3)
        share = np.bincount(labels, weights, minlength=3) + 1e-3
        votes = votes + 2 * share / share.sum() + 1 / 3
        np.testing.assert_allclose(left_out[i], np.log(votes / votes.sum()), rtol=1e-5)


def test_a_forest_is_that_of_scikit_learn(monkeypatch):
    from sklearn.ensemble import RandomForestClassifier

    features, labels, _ = blobs(80, rate=0.3)
    weights = np.ones(80, np.float32)
    model, left_out = Forest.fit(features, labels, weights, 3, 5)
    theirs = RandomForestClassifier(20, min_samples_leaf=3, random_state=5, oob_score=True)
    theirs.fit(features, labels, sample_weight=weights)
    np.testing.assert_allclose(np.exp(model.scores(features)), theirs.predict_proba(features) + 0.01, atol=1e-6)
    np.testing.assert_allclose(np.exp(left_out), theirs.oob_decision_function_ + 0.01, atol=1e-6)


@pytest.mark.parametrize("kind", [KernelRidge, LinearRidge, Neighbours, Forest])
def test_scores_leave_out_the_own_label(kind):
    """A changed label changes no score of its own sample by itself: the forest draws samples, not labels."""
    features, labels, _ = blobs(60)
    weights = np.ones(60, np.float32)
    other = labels.copy()
    other[7] = (labels[7] + 1) % 3
    _, before = kind.fit(features, labels, weights, 3, 0)
    _, after = kind.fit(features, other, weights, 3, 0)
    moved = np.abs(np.exp(after) - np.exp(before)).max(1)
    assert moved[7] < 0.05 and before[7].argmax() == after[7].argmax() == labels[7]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_saved_model_gives_the_same_scores_and_a_damaged_one_is_refused(kind):
    features, labels, _ = blobs(50)
    model, _ = KINDS[kind].fit(features, labels, np.ones(50, np.float32), 3, 0)
    tensors = model.tensors()
    again = KINDS[kind].from_tensors(tensors, 6, 3)
    assert np.array_equal(model.scores(features), again.scores(features))
    for name, t in tensors.items():
        with pytest.raises(ValueError, match=f"it lacks {name}"):
            KINDS[kind].from_tensors({own: value for own, value in tensors.items() if own != name}, 6, 3)
        broken = t.double() if t.dtype != torch.float64 else t.float()
        with pytest.raises(ValueError):
            KINDS[kind].from_tensors(tensors | {name: broken}, 6, 3)


def test_a_tree_with_a_circle_is_refused():
    features, labels, _ = blobs(50)
    model, _ = Forest.fit(features, labels, np.ones(50, np.float32), 3, 0)
    tensors = model.tensors()
    tensors["left"][-1] = 0
    with pytest.raises(ValueError, match="left child of a node of a tree comes before it"):
        Forest.from_tensors(tensors, 6, 3)


def test_samples_beyond_the_limit_are_scored_by_models_that_never_saw_them(monkeypatch):
    monkeypatch.setattr(members_module, "MOST_FITTED", 60)
    features, labels, _ = blobs(90)
    fitted = fit_members(features, labels, np.ones(90), 3, ["linear"], seed=1)
    rows = members_module.fitted_rows(90, 1)
    assert len(rows) == 60
    rest = np.setdiff1d(np.arange(90), rows)
    model, left_out = LinearRidge.fit(features[rows], labels[rows], np.ones(60, np.float32), 3, 0)
    np.testing.assert_allclose(fitted.scores[0][rest], model.scores(features[rest]))
    np.testing.assert_allclose(fitted.scores[0][rows], left_out)


# ---------------------------------------------------------------- pool and noise


def scores_of(n: int, n_classes: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, n_classes, n)
    return [rng.normal(size=(n, n_classes)) + 2 * np.eye(n_classes)[labels] for _ in range(2)], labels


@pytest.mark.parametrize("with_given", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_the_gradient_of_the_likelihood_is_right(known, with_given):
    scores, labels = scores_of(25, 3)
    trusted, rng = np.arange(25) < 6, np.random.default_rng(1)
    before = np.where(trusted, rng.integers(0, 3, 25), labels) if with_given else None
    problem = _Problem(scores, labels, trusted, equal_noise(0.2, 3) if known else None, before)
    values = problem.start(0.2) + 0.3 * rng.normal(size=len(problem.start(0.2)))
    error = check_grad(lambda v: problem._loss(v, 0.2)[0], lambda v: problem._loss(v, 0.2)[1], values)
    assert error < 1e-5


def test_the_posterior_is_that_of_bayes_rule():
    rng = np.random.default_rng(0)
    q, noise = rng.dirichlet(np.ones(4), 9), rng.dirichlet(np.ones(4), 4)
    labels, trusted = rng.integers(0, 4, 9), np.arange(9) == 3
    found = posterior(q, noise, labels, trusted)
    for i in range(9):
        joint = [q[i, k] * noise[k, labels[i]] for k in range(4)]
        wanted = np.eye(4)[labels[i]] if trusted[i] else np.array(joint) / sum(joint)
        np.testing.assert_allclose(found[i], wanted)


def test_noise_is_told_apart_from_overlap():
    """Labels are drawn from known probabilities: without noise T is about 1, with noise about what it was."""
    rng = np.random.default_rng(0)
    logits = 3 * rng.normal(size=(4000, 4))
    q = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    true = (q.cumsum(1) > rng.random((4000, 1))).argmax(1)
    assert (q.argmax(1) != true).mean() > 0.1  # the classes overlap
    nobody = np.zeros(4000, bool)
    assert 1 - fit_pool([logits], true, nobody).noise.diagonal().mean() < 0.02
    noise = equal_noise(0.3, 4)
    noise[2] = [0.4, 0, 0.6, 0]
    given = (noise[true].cumsum(1) > rng.random((4000, 1))).argmax(1)
    np.testing.assert_allclose(fit_pool([logits], given, nobody).noise, noise, atol=0.06)


def test_a_search_that_ends_without_noise_is_repeated_from_another_start(monkeypatch):
    """From soft opinions the search ends at a worse maximum: no noise, and opinions that repeat the labels."""
    dice, n, likes = np.random.default_rng(0), 1000, {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}
    truth = dice.integers(10, size=n)
    labels = np.array([likes.get(t, t) if dice.random() < 0.2 else t for t in truth])
    shares = np.full((n, 10), 0.01)
    shares[np.arange(n), truth] = [0.8 if t in likes else 1.0 for t in truth]
    for t, other in likes.items():
        shares[truth == t, other] = 0.2  # members repeat the mistakes
    shares = np.log(shares / shares.sum(1, keepdims=True))
    scores = [shares + 0.3 * dice.normal(size=shares.shape) for _ in range(3)]

    def told() -> float:
        fit, nobody = fit_pool(scores, labels, np.zeros(n, bool)), np.zeros(n, bool)
        after = posterior(fit.pool.probabilities(scores), fit.noise, labels, nobody)
        return float(1 - after[np.arange(n), labels].mean())

    assert 0.03 < told() < (labels != truth).mean()
    monkeypatch.setattr("purereplay.purify.opinions.pool._SHARP", 2.0)
    assert told() < 0.01


def test_corrected_samples_tell_about_the_noise_by_the_labels_they_had():
    scores, labels = scores_of(600, 3)
    rng = np.random.default_rng(2)
    given = np.where(rng.random(600) < 0.4, (labels + 1) % 3, labels)
    reviewed = given != labels  # a person has corrected all wrong ones
    unaware = fit_pool(scores, labels, reviewed).noise
    aware = fit_pool(scores, labels, reviewed, given=given).noise
    assert unaware.diagonal().mean() > 0.95 and abs(aware.diagonal().mean() - 0.6) < 0.06


def test_pairs_share_a_rate_unless_they_stand_out():
    rng = np.random.default_rng(0)
    counts = np.array([rng.multinomial(500, row) for row in equal_noise(0.3, 6)], float)
    found = sparse_noise(counts)
    np.testing.assert_allclose(found, equal_noise(0.3, 6), atol=0.03)
    off = found[~np.eye(6, dtype=bool)]
    assert np.median(np.abs(off - np.median(off))) < 1e-6
    counts[1, 4] += 300
    found = sparse_noise(counts)
    assert abs(found[1, 4] - counts[1, 4] / counts[1].sum()) < 0.02
    np.testing.assert_allclose(found.sum(1), 1)


# ---------------------------------------------------------------- verdicts


def digits(n: int, rate: float, seed: int = 0):
    X, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    rows = rng.permutation(len(X))[:n]
    given = np.where(rng.random(n) < rate, (y[rows] + rng.integers(1, 10, n)) % 10, y[rows])
    return FeatureMap.fit(X[rows]).transform(X[rows]), given.astype(np.int64), y[rows]


def test_wrong_labels_are_found_and_their_share_is_told():
    features, given, true = digits(500, 0.3)
    found = judge_labels(features, given, 10)
    wrong = given != true
    assert roc_auc_score(~wrong, found.clean_probability) > 0.98
    assert found.noise.overall.low <= wrong.mean() <= found.noise.overall.high
    assert abs(found.noise.overall.rate - wrong.mean()) < 0.05
    assert (found.likely_label[wrong] == true[wrong]).mean() > 0.8
    assert wrong[~found.accepted].mean() > 0.85 and wrong[found.accepted].mean() < 0.1
    assert np.isclose(sum(found.opinions.values()), 1) and set(found.opinions) == set(KINDS)
    np.testing.assert_allclose(found.class_probability.sum(1), 1)
    by_class = sum(rate.rate * rate.n for rate in found.noise.by_class)
    assert np.isclose(by_class, found.noise.overall.rate * 500)


def few_images(n: int):
    """Features of n digits, given labels of which 30 % are drawn anew, and true labels."""
    y, rng = load_digits().target, np.random.default_rng(n)
    rows = rng.permutation(len(y))[:n]
    images = torch.from_numpy(np.uint8(load_digits().images[rows] * 15))[:, None]
    labels = np.where(rng.random(n) < 0.3, (y[rows] + rng.integers(1, 10, n)) % 10, y[rows]).astype(np.int64)
    return FeatureMap.fit(images).transform(images), labels, y[rows]


@pytest.mark.parametrize("n", [100, 225])
def test_wrong_labels_of_few_images_are_found(n):
    """As many directions as images would tell the label of the image that is left out."""
    features, labels, true = few_images(n)
    found = judge_labels(features, labels, 10, kinds=IMAGE_KINDS)
    assert roc_auc_score(labels == true, found.clean_probability) > 0.95
    assert abs(found.noise.overall.rate - (labels != true).mean()) < 0.1


@pytest.mark.parametrize("seed", [0, 1])
def test_many_labels_of_a_few_samples_do_not_hide_the_noise_of_the_others(seed):
    """Twenty labels of three images of any digit; without them 20 % of the other labels are found to be wrong."""
    X, true = load_digits(return_X_y=True)
    rng = np.random.default_rng(seed)
    usual, other = np.flatnonzero(true < 3)[:200], rng.choice(np.flatnonzero(true > 2), 60, replace=False)
    wrong = rng.random(200) < 0.2
    labels = np.concatenate([(true[usual] + wrong) % 3, 3 + np.repeat(np.arange(20), 3)]).astype(np.int64)
    rows = np.concatenate([usual, other])
    found = judge_labels(FeatureMap.fit(X[rows]).transform(X[rows]), labels, 23)
    assert (~found.accepted[:200])[wrong].mean() > 0.8 and found.accepted[:200][~wrong].mean() > 0.98
    assert (
        found.accepted[200:].mean() > 0.8 and found.noise.overall.low <= wrong.sum() / 260 <= found.noise.overall.high
    )
    np.testing.assert_allclose(found.noise_matrix.sum(1), 1)


def test_rounding_does_not_move_the_estimated_noise():
    """Few samples hardly tell noise from soft opinions, so the likelihood is almost flat between them."""
    features, labels, _ = few_images(100)
    dice, told = np.random.default_rng(0), []
    for i in range(8):
        rows = dice.permutation(100) if i % 2 else np.arange(100)
        near = features * (1 + 1e-7 * dice.normal(size=features.shape))
        found = judge_labels(near[rows].astype(np.float32), labels[rows], 10, kinds=IMAGE_KINDS)
        told.append(found.noise.overall.rate)
    assert np.ptp(told) < 0.01


def test_features_that_say_nothing_leave_the_noise_open():
    labels = np.random.default_rng(0).integers(0, 2, 60)
    found = judge_labels(np.zeros((60, 4), np.float32), labels, 2)
    assert found.accepted.all() and found.noise.overall.high > 0.1 and found.clean_probability.max() < 0.999


def test_clean_data_stays_whole():
    features, given, _ = digits(500, 0.0)
    found = judge_labels(features, given, 10)
    assert found.accepted.mean() > 0.98 and found.noise.overall.rate < 0.02 and found.noise.overall.low < 0.005
    rng = np.random.default_rng(0)  # overlapping classes: one in seven lies on the wrong side
    true = np.arange(600) % 2
    x = (rng.normal(size=(600, 4)) + 1.1 * true[:, None] * [1, 1, 0, 0]).astype(np.float32)
    found = judge_labels(x, true, 2)
    assert found.accepted.mean() > 0.9 and found.noise.overall.rate < 0.05


def test_the_same_seed_gives_the_same_bits_and_the_classifier_too():
    features, given, _ = digits(120, 0.2)
    one, other = (judge_labels(features, given, 10, seed=3) for _ in range(2))
    for a, b in zip(one[:4], other[:4], strict=True):
        assert a.tobytes() == b.tobytes()
    models = [choose_model(features, given, one.clean_probability, 10, seed=3) for _ in range(2)]
    assert np.array_equal(*(model.predict_proba(features) for model in models))


def test_trusted_labels_are_never_doubted_and_teach():
    features, given, true = digits(300, 0.4)
    trusted = np.arange(300) < 60
    labels = np.where(trusted, true, given)
    found = judge_labels(features, labels, 10, trusted=trusted, given=given)
    assert (found.clean_probability[trusted] == 1).all() and found.accepted[trusted].all()
    assert (found.likely_label[trusted] == true[trusted]).all() and found.noise.overall.n == 240
    odd = judge_labels(features, given, 10, trusted=given != true)  # even if they contradict everything
    assert (odd.clean_probability[given != true] == 1).all() and odd.accepted[given != true].all()


@pytest.mark.slow
def test_corrections_of_the_worst_labels_do_not_make_the_classifier_worse():
    features, given, true = digits(500, 0.3)
    X, y = load_digits(return_X_y=True)
    test = FeatureMap.fit(X[np.random.default_rng(0).permutation(len(X))[:500]]).transform(X)
    labels, trusted, accuracy = given.copy(), np.zeros(500, bool), []
    for _ in range(3):
        found = judge_labels(features, labels, 10, trusted=trusted, given=given, kinds=IMAGE_KINDS)
        model = choose_model(features, labels, found.clean_probability, 10, kinds=IMAGE_KINDS)
        accuracy.append((model.predict_proba(test).argmax(1) == y).mean())
        worst = np.argsort(np.where(trusted, 2, found.clean_probability))[:80]
        trusted[worst], labels[worst] = True, true[worst]
    assert accuracy[1] > accuracy[0] - 0.015 and accuracy[2] > accuracy[0]


@FEW
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.integers(1, 3),
    st.sampled_from(["constant", "random", "zero"]),
)
def test_tiny_inputs_have_verdicts(labels, d, kind):
    """One class, one sample per class, fewer samples than anything, constant features."""
    rng = np.random.default_rng(len(labels))
    features = {"constant": np.ones, "zero": np.zeros, "random": lambda s: rng.normal(size=s)}[kind]((len(labels), d))
    given = np.array(labels)
    found = judge_labels(features.astype(np.float32), given, 6)
    assert ((found.clean_probability >= 0) & (found.clean_probability <= 1)).all()
    np.testing.assert_allclose(found.class_probability.sum(1), 1)
    assert np.isin(found.likely_label, given).all()
    rare = np.bincount(given, minlength=6)[given] < 3
    assert found.accepted[rare].all()
    model = choose_model(features.astype(np.float32), given, found.clean_probability, 6)
    shares = model.predict_proba(features.astype(np.float32))
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (shares[:, np.setdiff1d(np.arange(6), given)] == 0).all()
    again = Model.from_tensors(model.tensors())
    assert np.array_equal(again.predict_proba(features.astype(np.float32)), shares)


def test_more_than_256_classes():
    features, given, true = blobs(900, n_classes=260, d=12, rate=0.1)
    found = judge_labels(features, given, 260)
    assert roc_auc_score(given == true, found.clean_probability) > 0.9 and found.class_probability.shape == (900, 260)
    model = choose_model(features, given, found.clean_probability, 260)
    assert (model.predict_proba(features).argmax(1) == true).mean() > 0.8


def test_bad_input_is_reported():
    features, given, _ = blobs(10)
    with pytest.raises(InputError, match="row 4 hold NaN"):
        judge_labels(np.where(np.arange(10)[:, None] == 4, np.nan, features), given, 3)
    with pytest.raises(InputError, match="between 0 and 1"):
        judge_labels(features, given, 2)
    with pytest.raises(InputError, match="trusted has shape"):
        judge_labels(features, given, 3, trusted=np.zeros(4, bool))
    for labels in (given + 0.5, given.astype(str)):  # fractions would be cut off
        with pytest.raises(InputError, match="must be integers from 0 to 2: number them"):
            judge_labels(features, labels, 3)
    for weights in (np.ones(9), np.full(10, 1.5), np.full(10, np.nan)):
        with pytest.raises(InputError, match="10 numbers in"):
            choose_model(features, given, weights, 3)
    with pytest.raises(InputError, match=r"must be \(n, 6\)"):
        choose_model(features, given, np.ones(10), 3).predict_proba(features[:, :2])


def test_a_damaged_classifier_is_refused():
    features, given, _ = blobs(60)
    tensors = choose_model(features, given, np.ones(60), 3).tensors()
    for name in tensors:
        with pytest.raises(ValueError):
            Model.from_tensors({own: t for own, t in tensors.items() if own != name})
    with pytest.raises(ValueError, match="'kernel2'"):
        Model.from_tensors(tensors | {"kernel2.x": torch.zeros(1)})


# ---------------------------------------------------------------- features


def test_a_map_of_images_is_fitted_on_some_and_applied_in_any_pieces():
    images = torch.randint(0, 256, (70, 3, 12, 9), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    fitted = FeatureMap.fit(images[:40], seed=1)
    whole = fitted.transform(images)
    assert whole.shape == (70, 13) and fitted.n_fitted == 40 and fitted.is_for_images
    np.testing.assert_allclose(
        np.concatenate([fitted.transform(images[:33]), fitted.transform(images[33:])]), whole, atol=1e-5
    )
    again = FeatureMap.from_tensors(fitted.tensors())
    assert np.array_equal(again.transform(images), whole)
    assert fitted.fits((3, 12, 9), is_vectors=False) and not fitted.fits((1, 12, 9), is_vectors=False)
    assert not np.allclose(FeatureMap.fit(images[:40], seed=2).transform(images), whole)
    with pytest.raises(InputError, match="samples are vectors"):
        fitted.transform(np.zeros((3, 5)))
    with pytest.raises(ValueError, match="it lacks offset"):
        FeatureMap.from_tensors({name: t for name, t in fitted.tensors().items() if name != "offset"})


def test_features_of_images_are_centred_and_uncorrelated():
    images = torch.randint(0, 256, (300, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    features = FeatureMap.fit(images).transform(images)
    np.testing.assert_allclose(features.mean(0), 0, atol=1e-3)
    covariance = np.cov(features.T)
    assert np.abs(covariance - np.diag(covariance.diagonal())).max() < 0.02 * covariance.max()


def test_vectors_are_standardised_and_clipped():
    values = np.array([[1.0, 5, 1e-200], [3, 5, 3e-200], [5, 5, 5e-200]])
    fitted = FeatureMap.fit(values)
    found = fitted.transform(values)
    np.testing.assert_allclose(found[:, 0], [-1.2247449, 0, 1.2247449], rtol=1e-6)
    np.testing.assert_allclose(found[:, 2], found[:, 0], rtol=1e-6)
    assert (found[:, 1] == 0).all() and fitted.transform(np.array([[1e9, 5, 0]]))[0, 0] == 10
    with pytest.raises(InputError, match="images uint8"):
        FeatureMap.fit(np.zeros((2, 3, 4)))


def test_vectors_of_many_features_are_judged_by_their_main_directions():
    dice = np.random.default_rng(0)
    truth = np.arange(240) % 4
    vectors = dice.normal(size=(240, 600)) + 0.2 * dice.normal(size=(4, 600))[truth]
    wrong = dice.random(240) < 0.3
    given = np.where(wrong, (truth + dice.integers(1, 4, 240)) % 4, truth)
    few = FeatureMap.fit(vectors)
    assert (few.n_inputs, few.n_features) == (600, 24) and few.fits((600, 1, 1), is_vectors=True)
    whole = FeatureMap({name: t for name, t in few.parts.items() if name != "directions"})
    judged = (judge_labels(own.transform(vectors), given, 4) for own in (few, whole))
    reduced, unreduced = (roc_auc_score(~wrong, found.clean_probability) for found in judged)
    assert reduced > 0.99 > unreduced + 0.02
    again = FeatureMap.from_tensors(few.tensors())
    assert np.array_equal(again.transform(vectors), few.transform(vectors))
    with pytest.raises(ValueError, match="directions"):
        FeatureMap.from_tensors(few.tensors() | {"directions": torch.zeros(5, 2)})
    assert "directions" not in FeatureMap.fit(vectors[:, :256]).parts  # fewer features are standardised alone
