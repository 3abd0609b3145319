"""Each technique's loss against a slow and obvious one, sample by sample."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from purereplay.data.batch import Batch
from purereplay.errors import UserError
from purereplay.evaluate.settings import resolve
from purereplay.learners import registry
from purereplay.learners.base import DataSpec
from purereplay.learners.baselines.cnll import SemiSupervised
from purereplay.learners.baselines.der import DarkExperience
from purereplay.learners.baselines.er_ace import AsymmetricCrossEntropy
from purereplay.learners.baselines.er_mkd import MomentumDistillation, flat
from purereplay.learners.baselines.ewc import Elastic
from purereplay.learners.baselines.mir import Interference
from purereplay.learners.baselines.puridiver import RobustTraining
from purereplay.learners.baselines.scr import SupervisedContrast
from purereplay.learners.baselines.step_views import ViewKinds
from purereplay.learners.robust.jocor import JoCoR, Twins
from purereplay.learners.robust.l2r import LearningToReweight
from purereplay.learners.robust.pencil import Pencil
from purereplay.learners.robust.sl import SymmetricLearning
from purereplay.nets.draws import uniforms_per_key
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Listed, ListedJob
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import MLP, Head, Network, stack
from purereplay.nets.resnet import ResNet18
from purereplay.nets.technique import Step
from purereplay.nets.views import Views
from purereplay.purify.aum import Margins

NETWORK = Network(MLP(16, (12, 12)), Head(4))
K, B, C = 2, 6, 4


def step(network: Network = NETWORK, epoch: float = 0.0, extra=None, shape=(1, 4, 4), size: int = B) -> Step:
    generator = torch.Generator().manual_seed(1)
    state = {n: t.requires_grad_() for n, t in stack([network.init(k) for k in range(K)]).items() if "running" not in n}
    state |= {n: t for n, t in stack([network.init(k) for k in range(K)]).items() if "running" in n}
    return Step(
        network,
        state,
        torch.rand(K, size, *shape, generator=generator),
        torch.randint(0, C, (K, size), generator=generator),
        torch.arange(size).expand(K, size),
        torch.tensor([5, 6]),
        torch.full((K,), 3),
        torch.full((K,), epoch),
        torch.ones(K, dtype=torch.bool),
        extra or {},
    )


def logits_of(one: Step) -> torch.Tensor:
    return one.network.outputs(one.state, one.images, training=True).detach().double()


def test_sl_is_cross_entropy_and_its_reverse():
    one = step()
    found = SymmetricLearning(alpha=0.3, beta=2.0).loss(one)
    for k in range(K):
        total = 0.0
        for logits, label in zip(logits_of(one)[k], one.labels[k], strict=True):
            p = logits.softmax(0)
            target = F.one_hot(label, C).double()
            log_target = torch.where(target > 0, target.clamp(min=1e-9).log(), torch.tensor(-4.0, dtype=torch.double))
            total += 0.3 * -(target * p.log()).sum() + 2.0 * -(p * log_target).sum()
        assert found[k].item() == pytest.approx(float(total / B), rel=1e-5)


@pytest.mark.parametrize(("epoch", "kept"), [(0.0, 6), (5.0, 4), (10.0, 3), (40.0, 3)])
def test_jocor_learns_from_the_easiest_by_a_falling_share(epoch, kept):
    technique = JoCoR(forget=0.5, weight=0.1, epochs=10)
    one = step(technique.prepare(NETWORK), epoch)
    found = technique.loss(one)
    first, second = (t.detach().double() for t in one.network.both(one.state, one.images))
    for k in range(K):
        joint = []
        for a, b, label in zip(first[k], second[k], one.labels[k], strict=True):
            p, q = a.softmax(0), b.softmax(0)
            kl = (p * (p / q).log()).sum() + (q * (q / p).log()).sum()
            joint.append(float(0.9 * (-p[label].log() - q[label].log()) + 0.1 * kl))
        assert found[k].item() == pytest.approx(sum(sorted(joint)[:kept]) / kept, rel=1e-5)


def test_jocors_networks_differ_and_the_first_one_answers():
    twins = JoCoR(forget=0.2).prepare(NETWORK)
    assert isinstance(twins, Twins)
    state = stack([twins.init(7)])
    first, second = twins.both(state, torch.rand(1, 3, 1, 4, 4))
    assert not torch.allclose(first, second)
    alone = stack([NETWORK.init(7)])
    images = torch.rand(1, 3, 1, 4, 4)
    assert torch.equal(twins.outputs(state, images), NETWORK.outputs(alone, images))
    assert torch.equal(twins.features(state, images), NETWORK.features(alone, images))


def test_pencil_goes_through_its_stages():
    technique = Pencil(alpha=0.4, beta=0.1, lr=600, stage1=70, stage2=200)
    labels = step().labels
    begun = stack([technique.per_sample(own, C) for own in labels])
    assert torch.equal(begun["label_logits"][0, 0], 10.0 * F.one_hot(labels[0, 0], C))
    believed = torch.randn(K, B, C, generator=torch.Generator().manual_seed(2)).requires_grad_()
    losses = {
        epoch: technique.loss(step(epoch=epoch, extra={"label_logits": believed})) for epoch in (69.0, 70.0, 200.0)
    }
    logits = logits_of(step())
    for k in range(K):
        ce, kl, faith, entropy = 0.0, 0.0, 0.0, 0.0
        for i in range(B):
            p, q = logits[k, i].softmax(0), believed[k, i].detach().double().softmax(0)
            ce += float(-p[labels[k, i]].log()) / B
            kl += float((p * (p / q).log()).sum()) / B
            faith += float(-q[labels[k, i]].log()) / B
            entropy += float(-(p * p.log()).sum()) / B
        expected = {69.0: ce, 70.0: kl / C + 0.4 * faith + 0.1 * entropy / C, 200.0: kl / C}
        for epoch, value in expected.items():
            assert losses[epoch][k].item() == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize(("epoch", "moves"), [(69.0, False), (70.0, True), (199.0, True), (200.0, False)])
def test_pencils_labels_move_in_its_second_stage_alone(epoch, moves):
    value = torch.zeros(K, B, C)
    Pencil(lr=600).update(step(epoch=epoch), "label_logits", value, torch.full((K, B, C), 0.01))
    assert torch.equal(value, torch.full((K, B, C), -6.0 if moves else 0.0))


def test_pencil_repairs_wrong_labels():
    """Of a separable set with a third of the labels wrong, most are right again in the learned distributions.

    α is lower than the paper's: a label can move away from the given one only where α < 1 / number of classes.
    """
    generator = torch.Generator().manual_seed(0)
    truth = torch.arange(48) % C
    images = torch.randint(0, 40, (48, 1, 4, 4), dtype=torch.uint8, generator=generator)
    images[torch.arange(48), 0, truth] = 250
    given = torch.where(torch.arange(48) % 3 == 0, (truth + 1) % C, truth)
    technique = Pencil(alpha=0.05, lr=200, stage1=10, stage2=200)
    index = torch.stack([torch.randperm(48, generator=generator)[:16] for _ in range(400)])
    job = ListedJob(
        phase="test",
        network=NETWORK,
        state=NETWORK.init(0),
        recipe=Listed(batch_size=16, optimizer="sgd", momentum=0.9, technique=technique, epoch_steps=3),
        images=images,
        seed=0,
        labels=given,
        index=index,
        lrs=torch.full((400,), 0.05),
        extra=technique.per_sample(given, C),
    )
    [trained] = Engine(torch.device("cpu")).train([job])
    repaired = trained.extra["label_logits"].argmax(1)
    assert (given == truth).double().mean() < 0.7 < 0.9 < (repaired == truth).double().mean()


# ---------------------------------------------------------------- L2R


def by_virtual_step(technique: LearningToReweight, one: Step, alpha: float = 1.0) -> torch.Tensor:
    """As the paper writes it: a step weighted by ε = 0, the clean loss there, and its gradient back to ε."""
    n = one.extra["clean_labels"].shape[1]
    chosen = (uniforms_per_key(one.keys, one.number, technique.batch_size, stream=5) * n).long()
    all_weights = []
    for k in range(K):
        state = {name: t[k : k + 1].detach().clone().requires_grad_() for name, t in one.state.items()}
        epsilon = torch.zeros(one.images.shape[1], requires_grad=True)
        logits = one.network.outputs(state, one.images[k : k + 1], training=True)
        loss = (epsilon * sample_losses(logits, one.labels[k : k + 1])[0]).sum()
        gradients = torch.autograd.grad(loss, list(state.values()), create_graph=True)
        virtual = {name: t - alpha * g for (name, t), g in zip(state.items(), gradients, strict=True)}
        clean = one.extra["clean_images"][k, chosen[k]][None].float() / 255
        clean_logits = one.network.outputs(virtual, clean, training=True)[0]
        clean_loss = F.cross_entropy(clean_logits, one.extra["clean_labels"][k, chosen[k]])
        weights = (-torch.autograd.grad(clean_loss, epsilon)[0]).clamp(min=0)
        all_weights.append(weights / weights.sum() if weights.sum() > 0 else weights)
    return torch.stack(all_weights)


def clean_set(n: int = 20, size: int = 4) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "clean_images": torch.randint(0, 256, (K, n, 1, size, size), dtype=torch.uint8, generator=generator),
        "clean_labels": torch.randint(0, C, (K, n), generator=generator),
    }


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_l2rs_weights_are_those_of_the_explicit_virtual_step(alpha):
    technique = LearningToReweight(batch_size=9)
    one = step(extra=clean_set())
    losses, weights = technique.losses_and_weights(one)
    expected = by_virtual_step(technique, one, alpha)
    wanted = sample_losses(one.network.outputs(one.state, one.images, training=True), one.labels)
    torch.testing.assert_close(losses, wanted)
    assert (weights >= 0).all() and 0 < (weights > 0).sum() < weights.numel()  # some help, some do not
    torch.testing.assert_close(weights.sum(1), torch.ones(K))
    torch.testing.assert_close(weights, expected, rtol=1e-4, atol=1e-6)


def test_l2r_learns_from_those_who_help():
    technique = LearningToReweight(batch_size=9)
    one = step(extra=clean_set())
    losses = sample_losses(one.network.outputs(one.state, one.images, training=True), one.labels)
    expected = (by_virtual_step(technique, one) * losses).sum(1)
    torch.testing.assert_close(technique.loss(one), expected, rtol=1e-4, atol=1e-6)
    gradients = torch.autograd.grad(technique.loss(one).sum(), list(one.state.values()))
    wanted = torch.autograd.grad(expected.sum(), list(one.state.values()))
    for g, w in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-3, atol=1e-6)


def test_l2r_leaves_batch_norms_statistics_to_the_real_step():
    network = Network(ResNet18(channels=1, size=4, stem="small", width=4), Head(C))
    one, other = step(network, extra=clean_set()), step(network, extra=clean_set())
    LearningToReweight(batch_size=9).loss(one)
    other.network.outputs(other.state, other.images, training=True)
    for name in (n for n in one.state if "running" in n):
        assert torch.equal(one.state[name], other.state[name])


# ---------------------------------------------------------------- how they are asked for


@pytest.mark.parametrize("learner", ["finetune", "ewc", "multitask", "spr", "self-replay"])
def test_who_a_technique_does_not_go_with_says_so(learner):
    with pytest.raises(UserError, match="takes no loss against wrong labels: choose one of crs, prs, mir, gdumb"):
        resolve(dataset="digits", learner=learner, overrides={"robust": "sl"}, device="cpu")


def test_an_unknown_technique_is_named():
    with pytest.raises(UserError, match="robust must be one of none, l2r, pencil, sl, jocor, not 'magic'"):
        resolve(dataset="digits", learner="crs", overrides={"robust": "magic"}, device="cpu")


@pytest.mark.parametrize(
    ("noise", "rate", "forget"), [("symmetric", 0.4, 0.4), ("asymmetric", 0.4, 0.2), ("none", 0.4, 0.0)]
)
def test_jocor_passes_by_the_share_of_wrong_labels(noise, rate, forget):
    chosen = {"learner": "crs", "overrides": {"robust": "jocor"}, "device": "cpu"}
    options = resolve(dataset="digits", noise=noise, noise_rate=rate, **chosen).options
    assert math.isclose(options.jocor_forget, forget)
    told = chosen | {"overrides": {"robust": "jocor", "jocor_forget": "0.1"}}
    assert replace(options, jocor_forget=0.1) == resolve(dataset="digits", noise=noise, noise_rate=rate, **told).options


# ---------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("network", ["mlp", "resnet"])
@pytest.mark.parametrize(
    "name",
    [
        "none",
        "l2r",
        "pencil",
        "sl",
        "jocor",
        "ewc",
        "aum",
        "mir",
        "er-ace",
        "der",
        "scr",
        "er-mkd",
        "puridiver",
        "cnll",
    ],
)
def test_captured_steps_equal_those_of_the_cpu(name, network, caplog):
    techniques = {
        "l2r": LearningToReweight(batch_size=9),
        "pencil": Pencil(stage1=1, stage2=3),
        "sl": SymmetricLearning(),
        "jocor": JoCoR(forget=0.5, epochs=2),
        "ewc": Elastic(strength=100.0),
        "aum": Margins(),
        "er-ace": AsymmetricCrossEntropy(n_replayed=3),
        "der": DarkExperience(alpha=0.5, beta=0.5, n_replayed=2),
        "scr": SupervisedContrast(temperature=0.5, projection_size=8, views=Views()),
        "er-mkd": MomentumDistillation(strength=2.0, temperature=2.0, rate=0.2, views=Views()),
        "puridiver": RobustTraining(views=ViewKinds(Views(), Views()), cutmix=0.5),
        "cnll": SemiSupervised(views=ViewKinds(Views(), Views()), temperature=0.5, mixup=4, weight=3.0, delay=0),
    }
    technique = techniques.get(name)
    # a ResNet on 4×4 or 8×8 is chaotic: weights off by TF32's 0.0003 change AUM's margins by 0.15 and what MIR picks
    size = 4 if network == "mlp" else 16
    plain = NETWORK if network == "mlp" else Network(ResNet18(channels=1, size=size, stem="small", width=4), Head(C))
    net = plain if technique is None else technique.prepare(plain)
    recipe = Listed(batch_size=6, optimizer="sgd", shift_and_flip=name == "aum", technique=technique, epoch_steps=2)
    recipe = replace(recipe, choice=Interference(n_incoming=3, n_replayed=3)) if name == "mir" else recipe
    jobs, listed = [], 11 if name == "mir" else 6
    for k in range(2):
        generator = torch.Generator().manual_seed(k)
        images = torch.randint(0, 256, (20, 1, size, size), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, C, (20,), generator=generator)
        index = torch.stack([torch.randperm(20, generator=generator)[:listed] for _ in range(3)])
        state = net.init(k)
        extra = {} if technique is None else technique.per_sample(labels, C)
        extra |= {n: t[k] for n, t in clean_set(size=size).items()} if name == "l2r" else {}
        if name == "ewc":
            extra |= {f"{what}.{n}": torch.rand_like(t) for n, t in state.items() for what in ("centre", "stiffness")}
            extra = {n: t for n, t in extra.items() if "running" not in n}
        extra |= {n: torch.zeros(20) for n in Margins.recorded} if name == "aum" else {}
        extra |= {"seen": torch.ones(C, dtype=torch.bool)} if name == "er-ace" else {}
        extra |= {"average": flat(stack([net.init(9)]))[0]} if name == "er-mkd" else {}
        extra |= {"role": torch.arange(20) % 3, "small": torch.linspace(0, 1, 20)} if name == "puridiver" else {}
        extra |= {"epoch_steps": torch.tensor(2.0)} if name == "cnll" else {}
        own = {"phase": "test", "network": net, "recipe": recipe, "lrs": torch.full((3,), 1e-3)}
        jobs.append(ListedJob(state=state, images=images, seed=k, labels=labels, index=index, extra=extra, **own))
    here = Engine(torch.device("cpu")).train(jobs)
    for precision, tolerance in (("float32", 1e-4), ("bf16", 1e-2)):  # the latter is TF32 here
        there = Engine(torch.device("cuda"), precision=precision).train(jobs)
        for a, b in zip(there, here, strict=True):
            for one, other in ((a.state, b.state), (a.extra, b.extra)):
                for n in one:
                    torch.testing.assert_close(one[n].cpu(), other[n], rtol=10 * tolerance, atol=tolerance)
    assert not caplog.records  # nothing fell back


@pytest.mark.parametrize("name", ["crs", "prs", "mir"])
def test_pencil_in_a_single_pass_is_plain_replay(name):
    """One pass over the stream is one epoch, and the first stage has seventy; the former reading moves labels."""
    data = DataSpec(image_shape=(1, 8, 8), n_classes=10, n_samples=200)
    rng = np.random.default_rng(3)
    images = torch.from_numpy(rng.integers(0, 256, (200, 1, 8, 8)).astype(np.uint8))
    stream = Batch(images, torch.from_numpy(rng.integers(0, 10, 200)), torch.arange(200))

    def weights(**options: str) -> dict[str, torch.Tensor]:
        usual = {"hidden": "8", "memory_size": "20", "replay_size": "10"} | options
        run = resolve(dataset="digits", preset_name="demo", learner=name, device="cpu", overrides=usual)
        one = registry.entry(name).build(run.options, data, engine=Engine(torch.device("cpu")), seed=0)
        one.observe(stream)
        return one.weights

    plain, stream_wide = weights(), weights(robust="pencil")
    assert all(torch.equal(stream_wide[key], plain[key]) for key in plain)  # the paper's tables rely on it
    former = weights(robust="pencil", pencil_epoch="memory", pencil_stage1="1")
    assert any(not torch.allclose(former[key], plain[key], atol=1e-4) for key in plain)


def test_the_label_rate_of_pencil_is_scaled_to_the_batch():
    step = SimpleNamespace(epoch=torch.tensor([80.0]), labels=torch.zeros(1, 16, dtype=torch.int64))
    moved = []
    for technique in (Pencil(lr=8.0), Pencil(lr=8.0, lr_batch=128)):
        value = torch.zeros(1, 16, 10)
        technique.update(step, "label_logits", value, torch.ones(1, 16, 10))
        moved.append(float(value[0, 0, 0]))
    assert moved == [-8.0, -1.0]
