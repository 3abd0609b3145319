"""Pure Replay: its parts one by one, and what it is without them."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression

from purereplay.data.batch import Batch
from purereplay.data.forms import Limits
from purereplay.errors import UserError
from purereplay.learners.base import DataSpec
from purereplay.learners.pure_replay import PureReplay, PureReplaySettings
from purereplay.learners.pure_replay import build as build_pure_replay
from purereplay.learners.settings import DataFacts, resolve
from purereplay.learners.spr.build import build_spr
from purereplay.learners.spr.settings import SprSettings
from purereplay.nets.engine import Engine
from purereplay.nets.inference import embed, linear_probe
from purereplay.purify.agreement import label_agreement
from purereplay.purify.patches import patch_features

CPU = torch.device("cpu")
SHAPE = (1, 8, 8)
SMALL = {"hidden": 24, "delayed_size": 40, "purified_size": 30, "base_epochs": 6, "crop_area": 1.0}
WITHOUT = {
    "purified_weight": 0.0,
    "delayed_weight": 0.0,
    "average": 0.0,
    "base_features": False,
    "sharpening": 0.0,
    "agreement": 0.0,
    "purified_ceiling": 1.0,
    "admission": "partitioned",
    "classifier": "finetuned",
}


def make(n_classes: int = 4, *, shape=SHAPE, seed: int = 3, **options) -> PureReplay:
    settings = resolve(PureReplaySettings, SMALL | options, DataFacts(shape))
    data = DataSpec(image_shape=shape, n_classes=n_classes)
    return build_pure_replay(settings, data, engine=Engine(CPU), seed=seed)


def rows(n: int, seed: int, classes: tuple[int, ...] = (0, 1), wrong: float = 0.0) -> Batch:
    """Images whose class is the row that is bright; a share of the labels is wrong."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(0, len(classes), (n,), generator=generator)
    images = torch.randint(0, 90, (n, *SHAPE), dtype=torch.uint8, generator=generator)
    images[torch.arange(n), 0, torch.tensor(classes)[which] % 8] = 220
    swapped = torch.rand(n, generator=generator) < wrong
    labels = torch.tensor(classes)[torch.where(swapped, (which + 1) % len(classes), which)]
    return Batch(images, labels, torch.arange(n) + 1000 * seed)


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def close(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n].double(), b[n].double(), atol=1e-3) for n in a)


def test_without_its_parts_it_is_self_purified_replay_with_patches():
    options = SMALL | {"features": "patches", "lr": 5e-4, "schedule": "constant", "stem": "small", "flip": 0.0}
    spr = build_spr(
        resolve(SprSettings, options, DataFacts(SHAPE)),
        DataSpec(image_shape=SHAPE, n_classes=4),
        engine=Engine(CPU),
        seed=3,
    )
    pure = make(**WITHOUT)
    for seed in range(3):
        for one in (pure, spr):
            one.observe(rows(45, seed, wrong=0.3))
    assert same(pure.state(), spr.state())
    images = rows(20, 9).images
    assert torch.equal(pure.classifier().logits(images), spr.classifier().logits(images))


@pytest.mark.long
@pytest.mark.parametrize(
    "option",
    [
        {"purified_weight": 0.0},
        {"delayed_weight": 0.0},
        {"contrastive_weight": 0.0},
        {"average": 0.0},
        {"base_features": False},
        {"sharpening": 0.0},
        {"agreement": 0.0},
        {"purified_ceiling": 1.0},
        {"classifier": "layer"},
        {"classifier": "finetuned"},
        {"features": "inputs"},
        {"distillation": 1.0},
    ],
    ids=str,
)
def test_every_part_can_be_switched_off_alone_and_counts(option):
    whole, without = make(base_epochs=40), make(base_epochs=40, **option)
    for one in (whole, without):
        one.observe(rows(130, 1, wrong=0.3))
    images = rows(40, 2).images
    assert not torch.equal(whole.classifier().logits(images), without.classifier().logits(images))
    assert (without.classifier().predict(images) == rows(40, 2).labels).double().mean() > 0.8


def test_the_average_is_that_of_the_weights_after_every_step():
    one = make(average=0.0)
    one.observe(rows(45, 1))
    assert same(one.average, one.base)
    other = make()
    other.observe(rows(45, 1))
    assert not same(other.average, other.base)


def test_the_clean_probability_is_sharpened_by_the_opinion_of_the_given_label():
    plain, sharp = (make(sharpening=s, agreement=0.0, base_features=False) for s in (0.0, 0.6))
    for one in (plain, sharp):
        one.observe(rows(40, 1))
    batch = rows(40, 2, classes=(0, 1, 2), wrong=0.4)
    opinion = plain._by_layer(plain.n_classes).probabilities(batch.images).double().numpy()
    [by_filter], [sharpened] = plain.observe(batch), sharp.observe(batch)
    largest = max(opinion[i, label] for i, label in enumerate(batch.labels.tolist()))
    for i, label in enumerate(batch.labels.tolist()):
        p = float(by_filter.clean_probability[i])
        if label < 2:  # class 2 was not seen before this buffer
            p = p**0.4 * max(1e-6, opinion[i, label] / largest) ** 0.6
        assert float(sharpened.clean_probability[i]) == pytest.approx(p, rel=1e-6)


def test_agreement_takes_its_share_of_the_clean_probability():
    plain, both = (make(sharpening=0.0, agreement=a, base_features=False) for a in (0.0, 0.7))
    batch = rows(40, 2, wrong=0.4)
    [by_filter], [with_agreement] = plain.observe(batch), both.observe(batch)
    patches = patch_features(batch.images, plain._seed("patches", 0), 64)
    agreed = label_agreement(F.normalize(patches), batch.labels, 40)
    expected = by_filter.clean_probability**0.3 * agreed.clamp(min=1e-6) ** 0.7
    torch.testing.assert_close(with_agreement.clean_probability, expected)


def test_distillation_keeps_the_logits_of_the_purified_buffer_for_classes_known_before():
    """Logits of P by the average before a buffer, and after training on it with and without distillation."""
    distances = []
    for weight in (0.0, 30.0):
        one = make(distillation=weight, base_epochs=40, average=0.9)
        one.observe(rows(80, 1))
        purified, before = one.held(), one._by_layer(2)
        wanted = before.logits(purified.images)
        one.observe(rows(40, 2, (2, 3)))
        assert one.network.n_classes == 4
        distances.append(float((one._by_layer(2).logits(purified.images) - wanted).square().mean()))
    assert distances[1] < 0.5 * distances[0]


def test_the_first_training_has_nothing_to_keep():
    one, other = make(distillation=1.0), make()
    for each in (one, other):
        each.observe(rows(40, 1))
    assert close(one.base, other.base)


def test_samples_above_the_ceiling_have_equal_chances_to_stay_in_the_purified_buffer():
    """P of 30 is a sample of all that passed, not their highest probabilities, and never one below the ceiling."""
    varied, typical = (make(purified_ceiling=c, admission="greedy", base_epochs=1) for c in (0.5, 1.0))
    held, passed = {}, {}
    for one in (varied, typical):
        reports = [report for seed in range(6) for report in one.observe(rows(40, seed, wrong=0.3))]
        selected = [r.clean_probability[r.selected_mask] for r in reports]
        passed[one.purified_ceiling] = torch.cat(selected)
        held[one.purified_ceiling] = one.purified.contents()[1]
    assert (passed[0.5] > 0.5).sum() > 60 > varied.purified.n == 30
    assert held[0.5].min() > 0.5 * (1 - 1e-5) and held[0.5].max() <= 0.5
    assert held[1.0].min() > 0.8
    places = varied.purified.index.sort().values  # of all six buffers
    assert len({int(i) // 1000 for i in places}) == 6


@pytest.mark.parametrize(("shape", "expected"), [((1, 28, 28), (0.25, 0.0, 300)), ((3, 32, 32), (0.08, 0.5, 128))])
def test_views_and_batches_depend_on_colour(shape, expected):
    found = resolve(PureReplaySettings, {}, DataFacts(shape, 300))
    assert (found.crop_area, found.flip, found.base_batch) == expected
    assert resolve(PureReplaySettings, {"flip": 0.1}, DataFacts(shape, 300)).flip == 0.1
    assert resolve(PureReplaySettings, {}, DataFacts(shape, 300), preset="live").base_batch == 100


def test_wrong_labels_are_found_better_once_the_base_knows_the_classes():
    def auroc(**options) -> float:
        one = make(base_epochs=30, **options)
        one.observe(rows(80, 1, wrong=0.3))
        batch = rows(40, 5, wrong=0.4)
        [report] = one.observe(batch)
        right, p = batch.labels == rows(40, 5).labels, report.clean_probability
        return float((p[right][:, None] > p[~right]).double().mean())

    assert auroc(sharpening=0.8, agreement=0.0) > auroc(sharpening=0.0, agreement=0.0, base_features=False) + 0.1


def test_a_class_that_is_added_later_is_as_if_it_had_been_there():
    small, large = make(n_classes=2), make(n_classes=5)
    first, second = rows(80, 1), rows(80, 2, classes=(1, 4))
    for one in (small, large):
        one.observe(first)
    small.grow(5)
    for one in (small, large):
        one.observe(second)
    assert close(small.state(), large.state())  # products of other widths round differently


def test_when_a_class_is_announced_does_not_matter():
    early, late = make(n_classes=1), make(n_classes=1)
    early.grow(6)
    late.grow(2)
    for one in (early, late):
        one.observe(rows(80, 1))
    late.grow(6)
    assert same(early.state(), late.state()) and early.network.n_classes == 2
    for one in (early, late):
        assert one.classifier().network.head.n_outputs == 6
        one.observe(rows(80, 2, classes=(1, 4)))
    assert same(early.state(), late.state()) and early.network.n_classes == 5


def test_a_grown_state_is_restored_into_a_fresh_learner():
    one = make(n_classes=2)
    one.observe(rows(90, 1))
    one.grow(5)
    other = make(n_classes=2)
    other.restore(one.state(), Limits(n_classes=5, n_samples=10_000))
    for each in (one, other):
        each.observe(rows(90, 2, classes=(0, 4)))
    assert same(one.state(), other.state())


def test_a_damaged_state_is_refused():
    one = make()
    one.observe(rows(50, 1))
    limits = Limits(n_classes=4, n_samples=10_000)
    for name, value in (
        ("seen", torch.zeros(3, dtype=torch.bool)),
        ("average.classes.weight", torch.zeros(2, 4)),
        ("base.classes.bias", torch.zeros(7)),
    ):
        with pytest.raises(ValueError, match=name.replace(".", r"\.")):
            make().restore(one.state() | {name: value}, limits)


def test_classes_that_were_never_seen_are_never_predicted():
    for classifier in ("probe", "layer"):
        one = make(n_classes=10, classifier=classifier)
        images = torch.randint(0, 256, (200, *SHAPE), dtype=torch.uint8)
        assert one.classifier().probabilities(images).std() < 1e-6  # nothing is known yet
        one.observe(rows(90, 1, classes=(2, 5)))
        assert set(one.classifier().predict(images).tolist()) <= {2, 5}


def test_the_probe_is_logistic_regression_on_the_purified_buffer():
    one = make()
    one.observe(rows(130, 1, classes=(0, 1, 3), wrong=0.2))
    purified = one.held()
    features = embed(one.network, one.average, purified.images, penultimate=True).double().numpy()
    x = (features - features.mean(0)) / (features.std(0) + 1e-6)
    peer = LogisticRegression(C=1 / (0.01 * len(x)), tol=1e-8, max_iter=2000).fit(x, purified.labels.numpy())
    ours = one.classifier().probabilities(purified.images)[:, torch.unique(purified.labels)].numpy()
    np.testing.assert_allclose(ours, peer.predict_proba(x), atol=2e-3)


def test_the_probe_of_a_single_class_predicts_it():
    weight, bias = linear_probe(torch.randn(5, 3), torch.full((5,), 2), 4)
    assert (torch.randn(10, 3) @ weight + bias).argmax(1).unique().tolist() == [2]


def test_feature_vectors_are_learned_from():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(130) % 2
    vectors = torch.randn(130, 6, 1, 1, generator=generator) + 3 * labels.view(-1, 1, 1, 1)
    facts = DataFacts((6, 1, 1), is_vectors=True)
    settings = resolve(PureReplaySettings, SMALL, facts)
    assert settings.features == "inputs"
    data = DataSpec(image_shape=(6, 1, 1), n_classes=2, is_vectors=True)
    one = build_pure_replay(settings, data, engine=Engine(CPU), seed=1)
    one.observe(Batch(vectors, labels, torch.arange(130)))
    assert (one.classifier().predict(vectors) == labels).double().mean() > 0.95


@pytest.mark.parametrize(
    "options",
    [
        {"replay": "union"},
        {"self_replay": "never"},
        {"sharpening": 0.8, "agreement": 0.3},
        {"purified_weight": 0.0, "delayed_weight": 0.0},
        {"contrastive_weight": 0.0, "purified_weight": 0.0, "delayed_weight": 0.0, "sharpening": 0.0},
    ],
    ids=str,
)
def test_settings_that_contradict_each_other_are_refused(options):
    with pytest.raises(UserError):
        make(**options)


def test_a_base_that_diverged_in_its_last_step_is_named():
    ours = make()
    ours.observe(rows(40, 1))
    for t in ours.inference_base.values():
        if t.is_floating_point():
            t.fill_(float("nan"))
    for ask in (ours.classifier, lambda: ours.observe(rows(40, 2))):
        with pytest.raises(UserError, match="The training of the base network diverged: lower its learning rate"):
            ask()
