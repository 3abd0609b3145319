"""The kernels of the fast loop against autograd, in Triton's interpreter where there is no GPU."""

import os
from dataclasses import replace
from functools import partial

import pytest
import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton")

from purereplay.nets.jobs import Contrastive, ContrastiveJob, DrawnJob, Supervised, SupervisedJob
from purereplay.nets.loops.cuda.loop import CudaLoop, can_train, draw_views
from purereplay.nets.loops.plain import PlainLoop
from purereplay.nets.networks import MLP, Head, Network
from purereplay.nets.resnet import ResNet18
from purereplay.nets.steps import draw_numbers
from purereplay.nets.views import Views, boxes, colours

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
GREY, COLOUR = (1, 5, 6), (3, 6, 5)


def job(
    k: int, recipe: Contrastive | Supervised, shape=GREY, n: int = 10, hidden: bool = True, replay: int = 0, **more
) -> DrawnJob:
    generator = torch.Generator().manual_seed(100 + k)
    images, purified = (torch.randint(0, 256, (m, *shape), dtype=torch.uint8, generator=generator) for m in (n, replay))
    n_inputs = shape[0] * shape[1] * shape[2]
    network = Network(MLP(n_inputs, (24, 20)), Head(12, hidden=hidden), more.pop("mean", None), more.pop("std", None))
    own = {"phase": "test", "network": network, "state": network.init(k), "images": images, "seed": 1000 + k}
    if isinstance(recipe, Supervised):
        return SupervisedJob(recipe=recipe, labels=torch.arange(n) % 12, **own, **more)
    return ContrastiveJob(recipe=recipe, replay=purified if replay else None, **own, **more)


def train(loop, jobs):
    loop.load(jobs)
    left = jobs[0].n_steps
    while left:
        left -= loop.advance(left)
    return loop.answers(0.0)


def cuda_loop(jobs) -> CudaLoop:
    return CudaLoop(jobs, DEVICE, torch.float32)


def assert_same(a, b, tolerance):
    for x, y in zip(a, b, strict=True):
        assert x.loss == pytest.approx(y.loss, rel=tolerance)
        assert x.state.keys() == y.state.keys() and x.optimizer.keys() == y.optimizer.keys()
        for theirs, ours in ((x.state, y.state), (x.optimizer, y.optimizer)):
            for name in theirs:
                torch.testing.assert_close(ours[name], theirs[name], rtol=tolerance, atol=tolerance * 1e-2, msg=name)


RECIPES = {
    "all of D": (Contrastive(epochs=3, batch_size=10, lr=1e-3), {}),
    "half of P": (Contrastive(epochs=2, batch_size=5, replay_size=5, lr=1e-3), {"replay": 7}),
    "linear head": (Contrastive(epochs=2, batch_size=10, temperature=0.1), {"hidden": False}),
    "colour": (
        Contrastive(epochs=2, batch_size=10, views=Views(jitter=(0.5, 0.5, 0.5, 0.2), jitter_probability=0.8)),
        {"shape": COLOUR, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)},
    ),
    "additive jitter": (
        Contrastive(epochs=2, batch_size=10, views=Views(jitter=(0.5, 0.5, 0.5, 0.2), jitter_kind="additive")),
        {"shape": COLOUR},
    ),
    "labels": (Supervised(epochs=3, batch_size=4, decay_every=4), {"hidden": False}),
    "labels, colour, all at once, clip": (
        Supervised(epochs=2, batch_size=10, clip=1e-3),
        {"hidden": False, "shape": COLOUR, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)},
    ),
}


LONG = ("half of P", "colour", "additive jitter", "all of D")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.long] * (n in LONG)) for n in RECIPES])
def test_the_kernels_do_what_autograd_does(name):
    recipe, more = RECIPES[name]
    jobs = [job(k, recipe, **more) for k in range(2)]
    assert can_train(jobs[0])
    plain = train(PlainLoop(jobs, DEVICE, "float32"), jobs)
    assert_same(plain, train(cuda_loop(jobs), jobs), 2e-3)


@pytest.mark.long
@pytest.mark.parametrize("recipe", [pytest.param("views", marks=pytest.mark.slow), "labels"])
def test_resnets_go_the_same_way(recipe):
    network = Network(ResNet18(channels=3, size=8, width=4), Head(6, hidden=recipe == "views"), (0.5,) * 3, (0.2,) * 3)
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    jitter = Views(jitter=(0.5, 0.5, 0.5, 0.2))
    how = {
        "views": partial(ContrastiveJob, recipe=Contrastive(epochs=1, batch_size=4, views=jitter)),
        "labels": partial(SupervisedJob, recipe=Supervised(epochs=1, batch_size=4, clip=1e-3), labels=torch.arange(4)),
    }[recipe]
    jobs = [how(phase="test", network=network, state=network.init(k), images=images, seed=k) for k in range(2)]
    assert can_train(jobs[0])
    plain, ours = train(PlainLoop(jobs, DEVICE, "float32"), jobs), train(cuda_loop(jobs), jobs)
    for a, b in zip(plain, ours, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-3)
        assert a.state.keys() == b.state.keys() and a.optimizer.keys() == b.optimizer.keys()
        for name in (n for n in a.optimizer if n.startswith("mean.")):  # the gradient of the one step
            ours_, theirs = b.optimizer[name], a.optimizer[name]
            assert (ours_ - theirs).norm() <= 1e-2 * theirs.norm() + 1e-6, name
        for name in (n for n in a.state if "running" in n):
            torch.testing.assert_close(b.state[name], a.state[name], rtol=1e-3, atol=1e-5, msg=name)


def test_views_are_drawn_from_the_same_numbers():
    keys, steps = torch.tensor([3, -5, 2**62], device=DEVICE), torch.tensor([0, 7, 10**9], device=DEVICE)
    recipe = Contrastive(epochs=1, batch_size=70, views=Views(jitter=(0.5, 0.4, 0.3, 0.2), flip=0.3))
    numbers = draw_numbers(recipe, 70, keys, steps)
    box, colour = draw_views(recipe.views, 140, keys, steps)
    torch.testing.assert_close(box, boxes(numbers, recipe.views))
    torch.testing.assert_close(colour, colours(numbers, recipe.views.jitter, recipe.views.jitter_probability))


@pytest.mark.long
def test_a_network_does_not_depend_on_its_company():
    jobs = [job(k, Contrastive(epochs=2, batch_size=10)) for k in range(3)]
    for together, alone in zip(train(cuda_loop(jobs), jobs), jobs, strict=True):
        [own] = train(cuda_loop([alone]), [alone])
        assert own.loss == together.loss
        assert all(torch.equal(own.state[n], together.state[n]) for n in own.state)


@pytest.mark.long
def test_networks_of_different_age_train_together():
    recipe = Contrastive(epochs=2, batch_size=5, warm_epochs=0)
    young, old = job(0, recipe), job(1, replace(recipe, epochs=3))
    [grown] = train(PlainLoop([old], DEVICE, "float32"), [old])
    old = replace(old, state=grown.state, optimizer=grown.optimizer, start=3, recipe=recipe)
    plain = [train(PlainLoop([one], DEVICE, "float32"), [one])[0] for one in (young, old)]
    both = train(cuda_loop([young, old]), [young, old])
    assert_same(plain, both, 2e-3)
    assert [int(t.optimizer["step"]) for t in both] == [4, 10]


@pytest.mark.long
def test_chunks_of_steps_make_no_difference():
    one = job(0, Contrastive(epochs=3, batch_size=10))
    loops = [cuda_loop([one]), cuda_loop([one])]
    loops[1].chunk = 2
    a, b = (train(loop, [one])[0] for loop in loops)
    assert a.loss == b.loss and all(torch.equal(a.state[n], b.state[n]) for n in a.state)
    again = train(loops[1], [one])[0]  # a loop that is used again remembers nothing
    assert all(torch.equal(a.state[n], again.state[n]) for n in a.state)


def small_resnet_job() -> ContrastiveJob:
    network = Network(ResNet18(channels=3, size=8, width=4), Head(6))
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    recipe = Contrastive(epochs=5, batch_size=4)
    return ContrastiveJob(phase="test", network=network, state=network.init(0), recipe=recipe, images=images, seed=0)


@pytest.mark.gpu
def test_capturing_a_step_leaves_no_trace():
    """A loop captures when it first needs a number of steps, here 3 and then 2: that must not count as training."""
    one = small_resnet_job()
    loop = cuda_loop([one])
    loop.chunk = 3
    first, again = train(loop, [one])[0], train(loop, [one])[0]
    assert set(loop.graphs) == {3, 2}
    assert all(torch.equal(first.state[n], again.state[n]) for n in first.state)


@pytest.mark.long
def test_what_a_step_changes_is_put_back_by_a_capture():
    """Everything that a step leaves behind is a parameter, or is named as a statistic."""
    one = small_resnet_job()
    loop = cuda_loop([one])
    loop.load([one])
    before = loop.backbone.read()[0]
    p = loop.parameters
    changed = [p.weight, p.mean, p.square, *loop.backbone.statistics()]
    kept = [t.clone() for t in changed]
    loop.run_chunk(1)
    moved = loop.backbone.read()[0]
    assert any(not torch.equal(before[n], moved[n]) for n in before if "running" in n)
    for ours, t in zip(changed, kept, strict=True):
        ours.copy_(t)
    after = loop.backbone.read()[0]
    assert all(torch.equal(before[n], after[n]) for n in before)
