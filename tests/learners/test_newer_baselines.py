"""ER-ACE, DER++, SCR and ER-MKD: each loss against a slow and obvious one, and the feature that defines the learner."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from test_contract import learner, same, separable, small_settings

from purereplay.data.batch import Batch
from purereplay.errors import Interrupted
from purereplay.evaluate import running
from purereplay.evaluate.settings import resolve
from purereplay.learners import registry
from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.der import DarkExperience
from purereplay.learners.baselines.er_ace import AsymmetricCrossEntropy
from purereplay.learners.baselines.er_mkd import MomentumDistillation, flat, unflat
from purereplay.learners.baselines.scr import SupervisedContrast, class_mean_state
from purereplay.nets.engine import Engine
from purereplay.nets.inference import Classifier, embed
from purereplay.nets.networks import MLP, Head, Network, is_trained, stack
from purereplay.nets.resnet import ResNet18
from purereplay.nets.technique import Step, random_views
from purereplay.nets.views import Views

NETWORK = Network(MLP(16, (12, 12)), Head(4))
RESNET = Network(ResNet18(channels=1, size=4, stem="small", width=4), Head(4))
VIEWS = Views(area=(0.3, 1.0), flip=0.5)
K, B, C = 2, 6, 4


def step(extra=None, network: Network = NETWORK, labels=None, active=(True, True)) -> Step:
    generator = torch.Generator().manual_seed(1)
    state = stack([network.init(k) for k in range(K)])
    drawn = torch.randint(0, C, (K, B), generator=generator)
    return Step(
        network,
        {n: t.requires_grad_(is_trained(n)) for n, t in state.items()},
        torch.rand(K, B, 1, 4, 4, generator=generator),
        drawn if labels is None else torch.tensor([labels] * K),
        torch.tensor([[8, 9, 3, 0, 3, 5], [8, 9, 1, 1, 2, 6]]),
        torch.tensor([5, 6]),
        torch.full((K,), 3),
        torch.zeros(K),
        torch.tensor(active),
        extra or {},
    )


def logits_of(one: Step, images: torch.Tensor | None = None, state=None) -> torch.Tensor:
    """Logits in float64; batches of an MLP may be taken apart."""
    return one.network.outputs(state or one.state, one.images if images is None else images).detach().double()


def cross_entropy(logits, label: int, classes) -> float:
    return math.log(sum(math.exp(logits[c]) for c in classes)) - float(logits[label])


# ---------------------------------------------------------------- ER-ACE


def test_er_ace_compares_incoming_samples_among_themselves_and_replayed_ones_with_all_seen():
    seen = torch.tensor([[True, False, False, False], [False, True, True, False]])
    one = step({"seen": seen.clone()}, labels=[3, 3, 0, 0, 3, 3])
    one.labels[1] = torch.tensor([2, 0, 1, 2, 2, 1])
    found = AsymmetricCrossEntropy(n_replayed=3).loss(one)
    for k, (present, known) in enumerate([({3, 0}, {0, 3}), ({2, 0, 1}, {0, 1, 2})]):
        logits = logits_of(one)[k]
        incoming = [cross_entropy(logits[i], int(one.labels[k, i]), present) for i in range(3)]
        replayed = [cross_entropy(logits[i], int(one.labels[k, i]), known) for i in range(3, 6)]
        assert found[k].item() == pytest.approx(sum(incoming) / 3 + sum(replayed) / 3, rel=1e-5)
        assert {c for c in range(C) if one.extra["seen"][k, c]} == known


def test_er_ace_does_not_move_the_outputs_of_classes_outside_the_incoming_batch():
    """Class 1 was seen, but is neither incoming nor replayed: only the replayed sample of class 0 lowers it."""
    one = step({"seen": torch.tensor([[True, True, False, False]] * K)}, labels=[2, 2, 3, 2, 3, 0])
    bias = one.state["head.output.bias"]
    [gradient] = torch.autograd.grad(AsymmetricCrossEntropy(n_replayed=1).loss(one).sum(), bias)
    p = logits_of(one)[:, 5].softmax(1)
    torch.testing.assert_close(gradient[:, 1].double(), p[:, 1], rtol=1e-4, atol=1e-6)


def test_er_ace_learns_nothing_from_an_incoming_batch_of_one_class_alone():
    one = step({"seen": torch.ones(K, C, dtype=torch.bool)}, labels=[2, 2, 2, 2, 1, 1])
    found = AsymmetricCrossEntropy(n_replayed=2).loss(one)
    expected = F.cross_entropy(logits_of(one)[:, 4:].flatten(0, 1), one.labels[:, 4:].flatten(), reduction="none")
    torch.testing.assert_close(found.double(), expected.view(K, 2).mean(1), rtol=1e-5, atol=1e-6)


def test_er_aces_finished_networks_see_no_class():
    one = step({"seen": torch.zeros(K, C, dtype=torch.bool)}, active=(True, False))
    AsymmetricCrossEntropy(n_replayed=3).loss(one)
    assert one.extra["seen"][0].any() and not one.extra["seen"][1].any()


# ---------------------------------------------------------------- DER++


def test_der_is_cross_entropy_kept_logits_and_replayed_cross_entropy():
    kept = torch.randn(K, 10, C, generator=torch.Generator().manual_seed(2))
    one = step({"logits": kept.clone()})
    found = DarkExperience(alpha=0.3, beta=0.7, n_replayed=2).loss(one)
    for k in range(K):
        logits, labels = logits_of(one)[k], one.labels[k]
        incoming = [cross_entropy(logits[i], int(labels[i]), range(C)) for i in (0, 1)]
        squares = [(float(logits[i, c]) - float(kept[k, one.rows[k, i], c])) ** 2 for i in (2, 3) for c in range(C)]
        replayed = [cross_entropy(logits[i], int(labels[i]), range(C)) for i in (4, 5)]
        expected = sum(incoming) / 2 + 0.3 * sum(squares) / 8 + 0.7 * sum(replayed) / 2
        assert found[k].item() == pytest.approx(expected, rel=1e-5)


def test_der_keeps_the_logits_of_incoming_samples_only():
    kept = torch.randn(K, 10, C, generator=torch.Generator().manual_seed(2))
    one = step({"logits": kept.clone()}, active=(True, False))
    DarkExperience(alpha=0.3, beta=0.7, n_replayed=2).loss(one)
    after = one.extra["logits"]
    torch.testing.assert_close(after[0, 8:].double(), logits_of(one)[0, :2], rtol=1e-5, atol=1e-6)
    assert torch.equal(after[0, :8], kept[0, :8]) and torch.equal(after[1], kept[1])  # the second one is finished


def test_der_keeps_the_logits_of_a_samples_arrival_as_long_as_the_sample():
    one = learner("der++")
    whole, arrived = separable(200, seed=1), {}
    for start in range(0, 200, 10):
        batch = Batch(*(t[start : start + 10] for t in whole))
        for index, logits in zip(batch.index.tolist(), embed(one.network, one.weights, batch.images), strict=True):
            arrived[index] = logits
        one.observe(batch)
    expected = torch.stack([arrived[index] for index in one.memory.index.tolist()])
    assert one.memory.is_full
    torch.testing.assert_close(one.carried["logits"], expected, rtol=1e-4, atol=1e-5)


def test_ders_kept_logits_take_part_in_the_training():
    a, b = built("der++", alpha="0"), built("der++", alpha="1")
    for each in (a, b):
        each.observe(separable(100, seed=1))
    assert not same(a, b)


# ---------------------------------------------------------------- SCR


def test_scr_contrasts_images_and_views_by_their_labels():
    technique = SupervisedContrast(temperature=0.2, projection_size=5, views=VIEWS)
    one = step(network=technique.prepare(NETWORK))
    found = technique.loss(one)
    views = random_views(one, VIEWS)
    for k in range(K):
        projections = torch.cat([logits_of(one)[k], logits_of(one, views)[k]])
        z, labels = [p / p.norm() for p in projections], one.labels[k].tolist() * 2
        losses = []
        for i in range(2 * B):
            others = [j for j in range(2 * B) if j != i]
            total = sum(math.exp(float(z[i] @ z[j]) / 0.2) for j in others)
            terms = [float(z[i] @ z[j]) / 0.2 - math.log(total) for j in others if labels[j] == labels[i]]
            losses.append(-sum(terms) / len(terms))
        assert found[k].item() == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_views_differ_between_steps_networks_and_images():
    one = step()
    same_image = one._replace(images=one.images[:1, :1].expand(K, B, 1, 4, 4))
    views = torch.stack([random_views(same_image._replace(number=torch.full((K,), i)), VIEWS) for i in (0, 1)])
    assert len({tuple(v.flatten().tolist()) for v in views.flatten(0, 2)}) == 2 * K * B
    assert torch.equal(views[1], random_views(same_image._replace(number=torch.full((K,), 1)), VIEWS))


@pytest.mark.parametrize("network", [NETWORK, RESNET], ids=["mlp", "resnet"])
def test_scr_predicts_the_nearest_mean_of_the_classes_it_holds(network):
    network, generator = replace(network, head=Head(5, hidden=True)), torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (40, 1, 4, 4), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 3, (40,), generator=generator) * 2  # classes 0, 2 and 4 of 6
    weights = network.init(1)
    held = Batch(images[:25], labels[:25], torch.arange(25))
    found = Classifier(
        replace(network, head=Head(6)), class_mean_state(network, weights, held, 6), image_shape=(1, 4, 4)
    ).predict(images)
    features = [f / f.norm() for f in embed(network, weights, images, penultimate=True).double()]
    for i in range(40):
        distances = {}
        for c in (0, 2, 4):
            of_class = [features[j] for j in range(25) if labels[j] == c]
            mean = sum(of_class) / len(of_class)
            distances[c] = float((features[i] - mean / mean.norm()).norm())
        assert int(found[i]) == min(distances, key=distances.get)


# ---------------------------------------------------------------- ER-MKD


@pytest.mark.parametrize("views", [None, VIEWS], ids=["plain", "views"])
def test_er_mkd_adds_the_distance_from_the_teacher_to_cross_entropy(views):
    technique = MomentumDistillation(strength=2.0, temperature=3.0, rate=0.25, views=views)
    before = flat(stack([NETWORK.init(k + 7) for k in range(K)]))
    one = step({"average": before.clone()})
    found = technique.loss(one)
    average = 0.75 * before + 0.25 * flat(one.state).detach()
    torch.testing.assert_close(one.extra["average"], average)
    seen = one.images if views is None else random_views(one, views)
    teacher = logits_of(one, seen, unflat(average, one.state))
    students = [logits_of(one, seen)] if views is None else [logits_of(one, seen), logits_of(one)]
    for k in range(K):
        ce = sum(cross_entropy(students[0][k, i], int(one.labels[k, i]), range(C)) for i in range(B)) / B
        distances = []
        for student in students:
            for i in range(B):
                p, q = (teacher[k, i] / 3).softmax(0).tolist(), (student[k, i] / 3).softmax(0).tolist()
                distances.append(9 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)))
        assert found[k].item() == pytest.approx(ce + 2.0 * sum(distances) / len(distances), rel=1e-4)


def test_er_mkds_finished_networks_keep_their_average():
    before = flat(stack([NETWORK.init(k + 7) for k in range(K)]))
    one = step({"average": before.clone()}, active=(True, False))
    MomentumDistillation(strength=2.0, temperature=3.0, rate=0.25, views=None).loss(one)
    assert not torch.equal(one.extra["average"][0], before[0]) and torch.equal(one.extra["average"][1], before[1])


def test_er_mkds_teacher_leaves_batch_norms_statistics_to_the_student():
    technique = MomentumDistillation(strength=2.0, temperature=3.0, rate=0.25, views=None)
    one, other = step(network=RESNET), step(network=RESNET)
    technique.loss(one._replace(extra={"average": flat(one.state).detach()}))
    RESNET.outputs(other.state, other.images, training=True)
    for name in (n for n in one.state if not is_trained(n)):
        assert torch.equal(one.state[name], other.state[name])


def test_parameters_survive_being_one_vector():
    state = stack([RESNET.init(k) for k in range(K)])
    back = unflat(flat(state), dict(reversed(state.items())))
    assert set(back) == set(state) and all(torch.equal(back[n], state[n]) for n in state)


def built(name: str, **chosen: str):
    settings = small_settings(name) | chosen
    options = resolve(dataset="digits", learner=name, device="cpu", preset_name="demo", overrides=settings).options
    data = DataSpec(image_shape=(1, 8, 8), n_classes=10, n_samples=400)
    return registry.entry(name).build(options, data, engine=Engine(torch.device("cpu")), seed=1)


@pytest.mark.parametrize(("predictor", "share"), [("mean", 0.5), ("student", 0.0), ("teacher", 1.0)])
def test_er_mkds_teacher_is_the_moving_average_of_the_weights_after_each_step(predictor, share):
    one = built("er-mkd", average_rate="0.3", predictor=predictor)
    teacher = {n: t.clone() for n, t in one.weights.items()}
    for i in range(8):
        one.observe(separable(10, seed=i))  # one step
        teacher = {n: 0.7 * t + 0.3 * one.weights[n] for n, t in teacher.items()}
    found = one.classifier().state
    for name, student in one.weights.items():
        torch.testing.assert_close(found[name], (1 - share) * student + share * teacher[name], rtol=1e-4, atol=1e-6)


def test_er_mkd_without_distillation_is_crs():
    one, crs = built("er-mkd", strength="0", predictor="student", replay_size="12"), built("crs", replay_size="12")
    for each in (one, crs):
        each.observe(separable(100, seed=1))
    images = separable(20, seed=2).images
    assert torch.equal(one.classifier().logits(images), crs.classifier().logits(images))


# ---------------------------------------------------------------- all


@pytest.mark.parametrize("name", ["er-ace", "der++", "scr", "er-mkd"])
def test_published_settings_resolve_for_colour_images(name):
    options = resolve(dataset="cifar10", learner=name, device="cpu", preset_name="published").options
    assert options.clip is None and options.memory_size == 500
    assert getattr(options, "augment", True) and getattr(options, "flip", 0.5) == 0.5


@pytest.mark.long
@pytest.mark.parametrize("name", ["er-ace", "der++", "scr", "er-mkd"])
def test_a_stopped_run_is_resumed_to_the_same_result(name, tmp_path):
    settings = resolve(dataset="digits", learner=name, preset_name="demo", device="cpu", overrides=small_settings(name))
    whole = running.run(settings, tmp_path / "whole")

    class Impatient(running.Observer):
        n = 0

        def measured(self, experiment, line) -> None:
            Impatient.n += 1
            if Impatient.n == 3:
                raise Interrupted("Stopped.")

    with pytest.raises(Interrupted):
        running.run(settings, tmp_path / "stopped", Impatient())
    resumed = running.run(settings, tmp_path / "stopped", resume=True)
    assert {k: v for k, v in whole.items() if k != "seconds"} == {k: v for k, v in resumed.items() if k != "seconds"}


@pytest.mark.long
@pytest.mark.parametrize("name", ["er-ace", "der++", "scr", "er-mkd"])
def test_colour_images_train_a_resnet_under_augmentation(name):
    few = {"replay_size": "4", "batch_size": "4"}
    options = resolve(dataset="cifar10", learner=name, device="cpu", preset_name="published", overrides=few).options
    data = DataSpec(image_shape=(3, 8, 8), n_classes=10, mean=(0.5, 0.5, 0.5), std=(0.2, 0.2, 0.2))
    ones = [
        registry.entry(name).build(o, data, engine=Engine(torch.device("cpu")), seed=1)
        for o in (options, options, replace(options, **other_augmentation(options)))
    ]
    images = torch.randint(0, 256, (12, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    batch = Batch(images, torch.arange(12) % 3, torch.arange(12))
    for one in ones:
        one.observe(batch)
    assert same(ones[0], ones[1]) and not same(ones[0], ones[2])
    assert all(t.isfinite().all() for t in ones[0].weights.values())
    assert ones[0].classifier().predict(images).shape == (12,)


def other_augmentation(options) -> dict:
    return {"augment": False} if hasattr(options, "augment") else {"crop_area": 0.9}
