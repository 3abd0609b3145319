"""SelfCenteredFilter: equality with `score_samples` per class, block rule, independence of classes, memory."""

import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

from purereplay import SelfCenteredFilter
from purereplay.data.seeds import derive_seed
from purereplay.errors import UserError
from purereplay.purify.blocks import Block, batches, cut
from purereplay.purify.graph import padded_width
from purereplay.purify.options import FilterOptions
from purereplay.purify.self_centered import clean_probability, score_samples, select

AsGiven = partial(SelfCenteredFilter, prepare="none")


def samples(sizes: dict, n_features: int = 16, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return shuffled features with 70 % of each class around a centre, labels, and the mask of that 70 %."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(list(sizes), list(sizes.values()))
    kinds = np.repeat(np.arange(len(sizes)), list(sizes.values()))
    clean = rng.random(len(labels)) < 0.7
    centres = rng.normal(size=(len(sizes), n_features))[kinds]
    features = rng.normal(size=centres.shape) + np.where(clean[:, None], centres, rng.normal(size=centres.shape))
    order = rng.permutation(len(labels))
    return features[order].astype(np.float32), labels[order], clean[order]


SIZES = {0: 40, 1: 200, 2: 3, 3: 41, 4: 150, 5: 1}


@pytest.mark.parametrize("options", [{}, {"n_graphs": 0}, {"small_class": "keep", "scaling": "minmax", "seed": 3}])
def test_equals_score_samples_class_by_class(options: dict):
    features, labels, _ = samples(SIZES)
    ours = AsGiven(**options).fit(features, labels)
    assert ours.classes_.tolist() == list(SIZES) and ours.class_sizes_.tolist() == list(SIZES.values())
    assert (ours.n_blocks_ == 1).all() and ours.n_features_in_ == 16
    for i, label in enumerate(ours.classes_):
        own = labels == label
        chosen = {name: value for name, value in options.items() if name != "seed"}
        alone = score_samples(features[own], labels[own], options.get("seed", 0), options=FilterOptions(**chosen))
        assert np.array_equal(ours.clean_probability_[own], alone.clean_probability)
        assert np.array_equal(ours.centrality_[own], alone.centrality)
        assert ours.converged_[i] == (all(alone.fits[0].converged) and all(alone.fits[0].central))


def test_blocks_are_scored_as_classes_of_their_own():
    features, labels, _ = samples({"a": 50, "b": 131})
    ours = AsGiven(block_size=60, seed=4, n_graphs=3).fit(features, labels)
    assert ours.n_blocks_.tolist() == [1, 3]
    rows = np.flatnonzero(labels == "b")
    blocks = cut("b", rows, 60, 4)
    assert [len(block.rows) for block in blocks] == [44, 44, 43]
    for number, block in enumerate(blocks):
        alone = clean_probability(features[block.rows], labels[block.rows], 3, derive_seed(4, "block", number))
        assert np.array_equal(ours.clean_probability_[block.rows], alone)


@given(n=st.integers(1, 3000), block_size=st.integers(8, 500), seed=st.integers(0, 5))
def test_every_sample_is_in_one_block_and_blocks_have_similar_sizes(n: int, block_size: int, seed: int):
    rows = np.arange(n) * 3
    blocks = cut("x", rows, block_size, seed)
    assert len(blocks) == -(-n // block_size)
    assert sorted(np.concatenate([block.rows for block in blocks]).tolist()) == rows.tolist()
    sizes = [len(block.rows) for block in blocks]
    assert max(sizes) <= block_size and max(sizes) - min(sizes) <= 1
    assert len(blocks) == 1 or min(sizes) >= 4  # never too small for a mixture
    assert all((np.diff(block.rows) > 0).all() for block in blocks)
    assert len({block.seed for block in blocks}) == len(blocks)


def test_a_block_is_a_random_sample_of_its_class():
    # a class sorted by kind: every block must have the kinds in the class's shares, as a hypergeometric draw has
    wrong = np.arange(20_000) < 6_000
    shares = np.array([wrong[block.rows].mean() for block in cut(7, np.arange(20_000), 500, 0)])
    assert np.abs(shares - 0.3).max() < 4 * np.sqrt(0.3 * 0.7 / 500)
    assert 0.5 < shares.std() / np.sqrt(0.3 * 0.7 / 500) < 1.5
    others = cut(8, np.arange(20_000), 500, 0), cut(7, np.arange(20_000), 500, 1)
    assert all(not np.array_equal(other[0].rows, cut(7, np.arange(20_000), 500, 0)[0].rows) for other in others)


def kinds_of_one_class(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """8,000 samples of one label: 70 % are clean and of five kinds, the others are like nothing else."""
    rng = np.random.default_rng(seed)
    centres, clean = rng.normal(size=(5, 64)), rng.random(8000) < 0.7
    places = np.where(clean[:, None], centres[rng.integers(5, size=8000)], rng.normal(size=(8000, 64)))
    return rng.normal(size=(8000, 64)) + 0.8 * places + 0.3, clean


def quality(features: np.ndarray, labels: np.ndarray, right: np.ndarray, **options) -> tuple[float, float]:
    """Area under the curve of the clean probability, and the share of wrong labels among the selected."""
    found = AsGiven(**options).fit(features, labels)
    return roc_auc_score(right, found.clean_probability_), (~right)[found.select()].mean()


@pytest.mark.parametrize(("block_size", "area", "wrong"), [(256, 0.906, 0.237), (96, 0.890, 0.258), (24, 0.815, 0.295)])
def test_what_blocks_cost_on_digits(block_size: int, area: float, wrong: float):
    # docs/filter.md has these numbers: raw pixels, about 180 samples a class, 40 % wrong labels, five seeds
    images, truth = load_digits(return_X_y=True)
    found = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        labels = np.where(rng.random(len(truth)) < 0.4, (truth + rng.integers(1, 10, len(truth))) % 10, truth)
        found.append(quality(images, labels, labels == truth, block_size=block_size, seed=seed))
    assert np.mean(found, 0) == pytest.approx([area, wrong], abs=1e-3)


@pytest.mark.slow
def test_what_blocks_cost_in_a_large_class():
    # docs/filter.md has these numbers
    features, clean = kinds_of_one_class()
    for block_size, area in ((8000, 0.915), (2048, 0.912), (512, 0.893), (256, 0.868)):
        found = quality(features, np.zeros(8000, int), clean, block_size=block_size)
        assert found[0] == pytest.approx(area, abs=1e-3)


def test_neither_other_classes_nor_their_order_nor_threads_matter():
    features, labels, _ = samples(SIZES, seed=2)
    options = {"block_size": 64, "seed": 5}
    whole = AsGiven(**options, n_jobs=2).fit(features, labels)
    assert whole.n_blocks_.max() > 1
    chosen = whole.select()
    for label in SIZES:
        own = labels == label
        alone = AsGiven(**options, n_jobs=1).fit(features[own], labels[own])
        assert np.array_equal(alone.clean_probability_, whole.clean_probability_[own])
        assert np.array_equal(alone.centrality_, whole.centrality_[own])
        assert np.array_equal(alone.select(), chosen[own])
    by_class = np.concatenate([np.flatnonzero(labels == label) for label in reversed(SIZES)])
    again = AsGiven(**options).fit(features[by_class], labels[by_class])
    assert np.array_equal(again.clean_probability_, whole.clean_probability_[by_class])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_probabilities_for_anything_and_rows_may_be_shuffled(data: st.DataObject):
    n, d = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 4))
    values = st.sampled_from([0.0, 1.0, -1.0, 1e-30, 1e30, 0.5])
    features = np.array(data.draw(st.lists(values, min_size=n * d, max_size=n * d)), np.float32).reshape(n, d)
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    options = {"block_size": data.draw(st.integers(8, 20)), "n_jobs": data.draw(st.integers(1, 2))}
    n_graphs = data.draw(st.sampled_from([0, 1, 5]))
    found = AsGiven(n_graphs=n_graphs, **options).fit(features, labels)
    assert ((found.clean_probability_ >= 0) & (found.clean_probability_ <= 1)).all()
    assert np.isfinite(found.centrality_).all() and found.select().shape == (n,)
    # classes interleaved in another way: the same to the bit
    order = np.argsort(data.draw(st.permutations(range(n))))
    for label in np.unique(labels):
        order[labels[order] == label] = np.flatnonzero(labels == label)
    mixed = AsGiven(n_graphs=n_graphs, **options).fit(features[order], labels[order])
    assert np.array_equal(mixed.clean_probability_, found.clean_probability_[order])


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False))
def test_without_dice_any_order_of_the_rows_will_do(random):
    features, labels, _ = samples({0: 60, 1: 33, 2: 5}, seed=3)
    order = np.array(random.sample(range(98), 98))
    plain = AsGiven(n_graphs=0).fit(features, labels)
    mixed = AsGiven(n_graphs=0).fit(features[order], labels[order])
    assert np.allclose(mixed.clean_probability_, plain.clean_probability_[order], atol=1e-6)
    assert np.allclose(mixed.centrality_, plain.centrality_[order], atol=1e-8)


def test_finds_the_wrong_labels():
    features, labels, clean = samples({"cat": 400, "dog": 300}, n_features=32)
    found = AsGiven().fit(features, labels)
    assert found.clean_probability_[clean].mean() - found.clean_probability_[~clean].mean() > 0.5
    assert (~clean)[found.select()].mean() < 0.5 * (~clean).mean()


def test_is_a_scikit_learn_estimator_that_answers_in_its_terms():
    features, labels, _ = samples(SIZES)
    plain = AsGiven(seed=1, block_size=50)
    assert clone(plain).get_params() == plain.get_params() and "block_size=50" in repr(plain)
    assert plain.fit(features, labels) is plain
    assert plain.clean_probability_.dtype == plain.centrality_.dtype == np.float64
    assert np.array_equal(plain.select(), plain.select(seed=1)) and not np.array_equal(plain.select(), plain.select(2))
    own = labels == 1
    assert np.array_equal(plain.select(2)[own], select(plain.clean_probability_[own], derive_seed(2, "class", 1)))
    as_tensor = clone(plain).fit(torch.from_numpy(features), torch.from_numpy(labels))
    as_lists = clone(plain).fit(features.tolist(), labels.tolist())
    for other in (as_tensor, as_lists):
        assert np.array_equal(other.clean_probability_, plain.clean_probability_)
        assert other.classes_.dtype == plain.classes_.dtype == np.int64
    mixed = np.array([("a", 1), 7, "b", "c", "d", "e"], dtype=object)[labels]
    assert set(clone(plain).fit(features, mixed).classes_) == set(mixed)
    half = clone(plain).fit(torch.from_numpy(features).bfloat16(), labels)
    assert np.isfinite(half.clean_probability_).all()


def test_restores_the_number_of_threads_and_reports_progress():
    features, labels, _ = samples(dict.fromkeys(range(12), 90))
    torch.set_num_threads(2)
    try:
        calls: list[tuple[str, int, int]] = []
        AsGiven(n_graphs=200).fit(features, labels, progress=lambda *now: calls.append(now))
        assert torch.get_num_threads() == 2 and threading.active_count() < 5
        with pytest.raises(UserError, match="n_graphs is -1"):
            AsGiven(n_graphs=-1).fit(features, labels)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    done = [now for _, now, _ in calls]
    assert len(calls) > 2 and done == sorted(done) and calls[-1] == ("scoring", calls[0][2], calls[0][2])


def test_batches_are_bounded_and_hold_every_block_once():
    sizes = np.random.default_rng(0).integers(1, 300, size=200).tolist()
    blocks = [Block(i, np.arange(size), 0) for i, size in enumerate(sizes)]
    found = list(batches(blocks, 5, 16, 100_000))
    assert sorted(block.label for batch, _ in found for block in batch) == list(range(200))
    for batch, entries in found:
        widths = [padded_width(len(block.rows)) for block in batch]
        assert entries == sum(5 * w**2 + 16 * w for w in widths)
        assert entries <= 100_000 or len(batch) == 1
    assert len(found[0][0][0].rows) == max(sizes) or padded_width(max(sizes)) == padded_width(len(found[0][0][0].rows))


def bad(row: int, value: float) -> np.ndarray:
    features = np.ones((6, 2), np.float32)
    features[row, 1] = value
    return features


@pytest.mark.parametrize(
    ("features", "labels", "options", "words"),
    [
        (bad(4, np.nan), [0] * 6, {}, "row 4 hold NaN or infinity"),
        (bad(2, np.inf), [0] * 6, {}, "row 2 hold NaN or infinity"),
        (torch.from_numpy(bad(2, np.inf)), [0] * 6, {}, "row 2 hold"),
        (np.ones(6), [0] * 6, {}, r"shape \(6,\)"),
        (np.ones((0, 2)), [], {}, r"shape \(0, 2\)"),
        (np.ones((6, 2), complex), [0] * 6, {}, "real numbers"),
        ([["a", "b"]], [0], {}, "matrix of numbers"),
        ([[1.0], [1.0, 2.0]], [0, 0], {}, "matrix of numbers"),
        (np.ones((6, 2)), [0] * 5, {}, r"shape \(5,\), but 6 samples"),
        (np.ones((3, 2)), ["a", "", "b"], {}, "label of row 1 is missing"),
        (np.ones((3, 2)), ["a", "b", "  "], {}, "label of row 2 is missing"),
        (np.ones((3, 2)), np.array(["a", None, "b"], dtype=object), {}, "label of row 1 is missing"),
        (np.ones((3, 2)), [0.0, 1.0, np.nan], {}, "label of row 2 is missing"),
        (np.ones((6, 2)), [0] * 6, {"block_size": 7}, "block_size is 7"),
        (np.ones((6, 2)), [0] * 6, {"n_jobs": 0}, "n_jobs is 0"),
        (np.ones((6, 2)), [0] * 6, {"scaling": "log"}, "scaling is 'log'"),
    ],
)
def test_bad_input_is_one_sentence_and_changes_nothing(features, labels, options: dict, words: str):
    ours = AsGiven(**options)
    with pytest.raises(UserError, match=words) as caught:
        ours.fit(features, labels)
    assert "\n" not in str(caught.value) and str(caught.value).endswith(".")
    with pytest.raises(UserError, match="must be fitted"):
        ours.select()


PEAK = """
import resource, sys
import numpy as np
from purereplay import SelfCenteredFilter
n, n_classes, d = map(int, sys.argv[1:])
rng = np.random.default_rng(0)
features, labels = rng.standard_normal((n, d), dtype=np.float32), rng.integers(n_classes, size=n)
SelfCenteredFilter(n_jobs=2).fit(rng.standard_normal((100, d), dtype=np.float32), np.zeros(100, int))  # all is loaded
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
SelfCenteredFilter(n_graphs=2, n_jobs=2).fit(features, labels)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20)
"""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the unit of ru_maxrss is another")
def test_memory_does_not_grow_with_the_number_of_classes():
    # 60 classes of 700 with 2 graphs; measured: 0.15 GiB, and 0.91 GiB when all classes are scored at once
    out = subprocess.run([sys.executable, "-c", PEAK, "42000", "60", "128"], capture_output=True, text=True, check=True)
    assert float(out.stdout) < 0.4


# the command; at its end, the most memory it had (what `getrusage` says of a child may be its parent's)
COMMAND = """
import atexit
from pathlib import Path
from purereplay.cli import main
status = Path("/proc/self/status")
atexit.register(lambda: print(next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))))
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the memory from /proc")
def test_a_million_samples_in_4_gb_and_2_minutes(tmp_path: Path):
    # what `docs/filter.md` promises, through the real command
    rng = np.random.default_rng(0)
    truth = rng.integers(1000, size=10**6)
    labels = np.where(rng.random(10**6) < 0.3, rng.integers(1000, size=10**6), truth)
    features = rng.standard_normal((10**6, 128), dtype=np.float32)
    features += 1.2 * rng.standard_normal((1000, 128), dtype=np.float32)[truth]
    np.savez(tmp_path / "features.npz", features=features, labels=labels)
    del features
    arguments = ["filter", str(tmp_path / "features.npz"), "--threads", "2", "--out", str(tmp_path / "scores.csv")]
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", COMMAND, *arguments], capture_output=True, text=True)
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stderr
    peak = int(done.stdout.splitlines()[-1].split()[1]) / 2**20
    scores = np.genfromtxt(tmp_path / "scores.csv", delimiter=",", skip_header=1, usecols=(0, 1, 2))
    assert np.array_equal(scores[:, 0], np.arange(10**6)) and np.array_equal(scores[:, 1], labels)
    right = labels == truth
    auc = roc_auc_score(right, scores[:, 2])
    print(f"{seconds:.0f} s, {peak:.2f} GiB, area under the curve {auc:.4f}, {done.stdout}")  # noqa: T201
    assert seconds < 120 and peak < 4 * 10**9 / 2**30 and auc > 0.95


def plain_directions(features: np.ndarray) -> np.ndarray:
    """Principal components of standardised features by the singular value decomposition, each divided by size^0.7."""
    x = (features - features.mean(0)) / features.std(0)
    left, size, _ = np.linalg.svd(x, full_matrices=False)
    return (left * size / size**0.7)[:, :32]


@pytest.mark.parametrize("shape", [(200, 40), (60, 90)])
def test_features_are_prepared_by_default(shape):
    rng = np.random.default_rng(0)
    features = rng.normal(size=shape) @ rng.normal(size=(shape[1], shape[1])) + 20
    labels = np.arange(shape[0]) % 3
    ours = SelfCenteredFilter(n_graphs=0).fit(features, labels)
    theirs = AsGiven(n_graphs=0).fit(plain_directions(features), labels)
    np.testing.assert_allclose(ours.centrality_, theirs.centrality_, rtol=1e-6)
    assert not np.allclose(ours.centrality_, AsGiven(n_graphs=0).fit(features, labels).centrality_, rtol=1e-3)


def test_what_all_samples_have_in_common_hides_no_wrong_label():
    features, labels, clean = samples({0: 150, 1: 150, 2: 150, 3: 150}, seed=2)
    common = features + 30
    before, after = (
        roc_auc_score(clean, one.fit(common, labels).clean_probability_) for one in (AsGiven(), SelfCenteredFilter())
    )
    assert after > 0.9 and after > before + 0.1


@pytest.mark.parametrize("features", [np.ones((20, 3)), np.full((20, 2), 1e300), np.zeros((20, 1))])
def test_constant_features_say_nothing(features):
    found = SelfCenteredFilter().fit(features, np.arange(20) % 2)
    assert np.isfinite(found.clean_probability_).all() and len(np.unique(found.centrality_.round(9))) == 1


def test_very_large_and_very_small_features_are_prepared():
    features, labels, _ = samples({0: 50, 1: 50})
    wanted = SelfCenteredFilter(n_graphs=0).fit(features.astype(np.float64), labels).centrality_
    for factor in (1e300, 1e-300):
        found = SelfCenteredFilter(n_graphs=0).fit(features.astype(np.float64) * factor, labels).centrality_
        np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_directions_of_many_samples_are_fitted_on_some_of_them(monkeypatch):
    monkeypatch.setattr("purereplay.purify.directions._MOST_FITTED", 300)
    features, labels, clean = samples({0: 300, 1: 300}, seed=1)
    one, other = SelfCenteredFilter(seed=1).fit(features, labels), SelfCenteredFilter(seed=1).fit(features, labels)
    assert np.array_equal(one.clean_probability_, other.clean_probability_)
    assert roc_auc_score(clean, one.clean_probability_) > 0.85


def test_very_wide_features_are_compared_as_given(monkeypatch):
    monkeypatch.setattr("purereplay.purify.filter.MOST_FEATURES", 15)
    features, labels, _ = samples({0: 30, 1: 30})
    found = SelfCenteredFilter().fit(features, labels)
    assert (
        found.preparation_ == "none" and SelfCenteredFilter().fit(features[:, :15], labels).preparation_ == "directions"
    )
    assert np.array_equal(found.clean_probability_, AsGiven().fit(features, labels).clean_probability_)


def test_an_unknown_preparation_is_reported():
    with pytest.raises(UserError, match="prepare is 'pca', but must be one of: directions, none"):
        SelfCenteredFilter(prepare="pca").fit(np.eye(4), [0, 0, 1, 1])
