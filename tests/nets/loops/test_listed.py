from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F

from purereplay.learners.baselines.cnll import SemiSupervised
from purereplay.learners.baselines.der import DarkExperience
from purereplay.learners.baselines.er_ace import AsymmetricCrossEntropy
from purereplay.learners.baselines.er_mkd import MomentumDistillation, flat
from purereplay.learners.baselines.mir import Interference
from purereplay.learners.baselines.puridiver import RobustTraining
from purereplay.learners.baselines.scr import SupervisedContrast
from purereplay.learners.baselines.step_views import ViewKinds
from purereplay.learners.robust.pencil import Pencil
from purereplay.nets.engine import Engine
from purereplay.nets.jobs import Listed, ListedJob
from purereplay.nets.loops.base import tf32
from purereplay.nets.losses import sample_losses
from purereplay.nets.networks import MLP, Head, Network, stack
from purereplay.nets.resnet import ResNet18
from purereplay.nets.technique import Choice
from purereplay.nets.views import Views
from purereplay.purify.aum import Margins

CPU = torch.device("cpu")
KINDS = ViewKinds(Views(area=(0.8, 1.0)), Views(area=(0.5, 1.0)))
NETWORK = Network(MLP(16, (12, 12)), Head(4))


def job(k: int, recipe: Listed, n_steps: int = 5, n: int = 20, network: Network = NETWORK, shape=(1, 4, 4)):
    generator = torch.Generator().manual_seed(k)
    images = torch.randint(0, 256, (n, *shape), dtype=torch.uint8, generator=generator)
    listed = recipe.batch_size if recipe.choice is None else 11  # 3 incoming ones, 8 candidates
    index = torch.randint(0, n, (n_steps, listed), generator=generator)
    lrs = torch.linspace(0.1, 0.05, n_steps)
    labels = torch.randint(0, 4, (n,), generator=generator)
    return ListedJob(
        phase="test",
        network=network,
        state=network.init(k),
        recipe=recipe,
        images=images,
        seed=k,
        labels=labels,
        index=index,
        lrs=lrs,
    )


def by_hand(one: ListedJob, choose=lambda state, index, lr: index) -> dict[str, torch.Tensor]:
    """The same training, a network and a step at a time, with PyTorch's own optimizers."""
    recipe = one.recipe
    state = {n: t.clone().requires_grad_() for n, t in stack([one.state]).items()}
    parameters = list(state.values())
    if recipe.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, weight_decay=recipe.weight_decay)
    else:
        optimizer = torch.optim.SGD(parameters, 0.1, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    for index, lr in zip(one.index, one.lrs, strict=True):
        optimizer.param_groups[0]["lr"] = float(lr)
        chosen = choose(state, index, lr)
        optimizer.zero_grad()
        logits = one.network.outputs(state, one.images[chosen][None].float() / 255, training=True)[0]
        F.cross_entropy(logits, one.labels[chosen]).backward()
        if recipe.clip is not None:
            torch.nn.utils.clip_grad_value_(parameters, recipe.clip)
        if recipe.clip_norm is not None:
            assert torch.nn.utils.clip_grad_norm_(parameters, recipe.clip_norm) > recipe.clip_norm
        optimizer.step()
    return {n: t[0].detach() for n, t in state.items()}


@pytest.mark.parametrize(
    "recipe",
    [
        Listed(batch_size=6, optimizer="sgd"),
        Listed(batch_size=6, optimizer="sgd", momentum=0.9, weight_decay=1e-2),
        Listed(batch_size=6, optimizer="adam", clip=1e-2),
        Listed(batch_size=6, optimizer="sgd", clip_norm=0.05),
    ],
)
def test_listed_batches_are_trained_on(recipe):
    jobs = [job(k, recipe) for k in range(3)]
    together = Engine(CPU).train(jobs)
    for one, trained in zip(jobs, together, strict=True):
        expected = by_hand(one)
        for name, t in trained.state.items():
            torch.testing.assert_close(t, expected[name], rtol=5e-3, atol=1e-4)
        assert int(trained.optimizer["step"]) == 5


def test_training_goes_on_where_it_was():
    recipe = Listed(batch_size=6, optimizer="sgd", momentum=0.9)
    whole = job(0, recipe, n_steps=6)
    [at_once] = Engine(CPU).train([whole])
    first = replace(whole, index=whole.index[:2], lrs=whole.lrs[:2])
    [half] = Engine(CPU).train([first])
    second = replace(whole, index=whole.index[2:], lrs=whole.lrs[2:], state=half.state, optimizer=half.optimizer)
    [rest] = Engine(CPU).train([second])
    assert all(torch.equal(rest.state[n], at_once.state[n]) for n in rest.state)


def test_jobs_with_other_rates_do_not_share_them():
    recipe = Listed(batch_size=6, optimizer="sgd")
    jobs = [job(0, recipe), replace(job(0, recipe), lrs=torch.full((5,), 0.01))]
    together = Engine(CPU).train(jobs)
    for one, trained in zip(jobs, together, strict=True):
        [alone] = Engine(CPU).train([one])
        assert all(torch.equal(alone.state[n], trained.state[n]) for n in alone.state)


def test_mir_replays_what_a_virtual_step_harms_most():
    recipe = Listed(batch_size=6, optimizer="sgd", choice=Interference(n_incoming=3, n_replayed=3))
    one = job(0, recipe)

    def brute_force(state, index, lr):
        def losses(weights, rows):
            logits = one.network.outputs(weights, one.images[rows][None].float() / 255, training=True)
            return sample_losses(logits, one.labels[rows][None])[0]

        gradients = torch.autograd.grad(losses(state, index[:3]).mean(), list(state.values()))
        virtual = {n: t - lr * g for (n, t), g in zip(state.items(), gradients, strict=True)}
        harm = {int(c): float((losses(virtual, c[None]) - losses(state, c[None])).detach()) for c in index[3:]}
        worst = sorted(range(3, 11), key=lambda i: -harm[int(index[i])])[:3]
        return torch.cat([index[:3], index[worst]])

    [trained] = Engine(CPU).train([one])
    expected = by_hand(one, brute_force)
    for name, t in trained.state.items():
        torch.testing.assert_close(t, expected[name], rtol=1e-4, atol=1e-5)


@dataclass(frozen=True, eq=False)
class Watched(Choice):
    """Takes the first listed samples and notes whether TF32 is allowed meanwhile."""

    seen: list

    def choose(self, view, index, lr):
        self.seen.append((torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32))
        return index[:, :6]


def test_a_choice_is_made_in_float32():
    """TF32 has 10 bits: in a step of MIR on MNIST, most weights of the virtual step would be those from before it."""
    seen = []
    with tf32(True):
        Engine(CPU, precision="tf32").train([job(0, Listed(batch_size=6, optimizer="sgd", choice=Watched(seen)))])
        assert torch.backends.cuda.matmul.allow_tf32 and torch.backends.cudnn.allow_tf32
    assert seen and not any(flag for flags in seen for flag in flags)


def test_mir_leaves_batch_norms_statistics_to_the_real_step():
    network = Network(ResNet18(channels=1, size=4, stem="small", width=4), Head(4))
    recipe = Listed(batch_size=6, optimizer="sgd", choice=Interference(n_incoming=3, n_replayed=3))
    plain = Listed(batch_size=6, optimizer="sgd")
    [mir] = Engine(CPU).train([job(0, recipe, n_steps=1, network=network)])
    [one] = Engine(CPU).train([job(0, plain, n_steps=1, network=network)])
    start = network.init(0)["backbone.bn1.running_mean"]
    # one step moves a running mean by a tenth of the batch's mean, whatever was tried before it
    assert mir.state["backbone.bn1.running_mean"].norm() < 2 * one.state["backbone.bn1.running_mean"].norm()
    assert not torch.equal(mir.state["backbone.bn1.running_mean"], start)


def test_cutmix_takes_part_in_training():
    a, b = (Engine(CPU).train([job(0, Listed(batch_size=6, optimizer="sgd", cutmix=p))])[0].loss for p in (0.0, 1.0))
    assert a != b


def test_shifts_take_part_in_training():
    a, b = (
        Engine(CPU).train([job(0, Listed(batch_size=6, optimizer="sgd", shift_and_flip=s))])[0].loss
        for s in (False, True)
    )
    assert a != b


@pytest.mark.parametrize(
    "recipe",
    [
        Listed(batch_size=6, optimizer="adam", clip=0.5),
        Listed(batch_size=6, optimizer="sgd", momentum=0.9, cutmix=0.5, clip_norm=0.2),
        Listed(batch_size=6, optimizer="adam", choice=Interference(n_incoming=3, n_replayed=3)),
        Listed(batch_size=6, optimizer="sgd", technique=Pencil(stage1=1, stage2=3), epoch_steps=2),
        Listed(batch_size=6, optimizer="sgd", technique=Margins(), shift_and_flip=True),
        Listed(batch_size=6, optimizer="sgd", technique=AsymmetricCrossEntropy(n_replayed=3), shift_and_flip=True),
        Listed(batch_size=6, optimizer="adam", technique=DarkExperience(alpha=0.5, beta=0.5, n_replayed=2)),
        Listed(
            batch_size=6,
            optimizer="sgd",
            technique=SupervisedContrast(temperature=0.5, projection_size=8, views=Views()),
        ),
        Listed(
            batch_size=6,
            optimizer="sgd",
            technique=MomentumDistillation(strength=2.0, temperature=2.0, rate=0.2, views=Views()),
        ),
        Listed(batch_size=6, optimizer="sgd", technique=RobustTraining(views=KINDS, cutmix=0.5)),
        Listed(
            batch_size=6,
            optimizer="sgd",
            technique=SemiSupervised(views=KINDS, temperature=0.5, mixup=4, weight=3.0, delay=0),
        ),
    ],
    ids=["adam", "sgd", "mir", "pencil", "aum", "er-ace", "der", "scr", "er-mkd", "puridiver", "cnll"],
)
@pytest.mark.parametrize("kind", ["mlp", pytest.param("resnet", marks=pytest.mark.long)])
def test_networks_of_other_ages_rates_and_lengths_train_together(recipe, kind):
    """Each ends as it does alone; who is done is not touched any more, its batch norms neither."""
    network = NETWORK if kind == "mlp" else Network(ResNet18(channels=1, size=4, stem="small", width=4), Head(4))
    network = network if recipe.technique is None else recipe.technique.prepare(network)
    shape = (1, 4, 4)
    jobs = []
    for k, (n_steps, n_before, rate) in enumerate([(4, 0, 1e-3), (1, 3, 2e-3), (2, 5, 5e-4)]):
        one = job(k, recipe, n_steps, network=network, shape=shape)
        one = replace(one, lrs=torch.full((n_steps,), rate))
        if n_before:
            plain = replace(recipe, technique=None)
            [older] = Engine(CPU).train([job(k, plain, n_before, network=network, shape=shape)])
            one = replace(one, state=older.state, optimizer=older.optimizer)
        extra = {} if recipe.technique is None else recipe.technique.per_sample(one.labels, 4)
        extra |= {n: torch.zeros(20) for n in Margins.recorded} if isinstance(recipe.technique, Margins) else {}
        if isinstance(recipe.technique, AsymmetricCrossEntropy):  # labels of replayed samples were seen before
            extra["seen"] = torch.zeros(4, dtype=torch.bool).scatter(0, one.labels, True)
        if isinstance(recipe.technique, MomentumDistillation):
            extra["average"] = flat(stack([one.state]))[0]
        if isinstance(recipe.technique, RobustTraining):
            extra |= {"role": torch.arange(20) % 3, "small": torch.linspace(0, 1, 20)}
        if isinstance(recipe.technique, SemiSupervised):
            extra["epoch_steps"] = torch.tensor(2.0)
        jobs.append(replace(one, extra=extra))
    together = Engine(CPU).train(jobs)
    for one, trained in zip(jobs, together, strict=True):
        [alone] = Engine(CPU).train([one])
        assert int(trained.optimizer["step"]) == int(alone.optimizer["step"]) == one.steps_before + one.n_steps
        assert trained.loss == pytest.approx(alone.loss, rel=1e-3, abs=1e-4)
        for ours, theirs in (
            (trained.state, alone.state),
            (trained.optimizer, alone.optimizer),
            (trained.extra, alone.extra),
        ):
            assert set(ours) == set(theirs)
            for name in ours:
                torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5)
